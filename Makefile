# Each target sets up what it needs in .venv; nothing else has to be installed by hand.

PYTHON ?= python3
BIN := .venv/bin

demo: .venv/ready      ## an agent is killed in the middle of its work, and nothing is lost
	@$(BIN)/python demo.py $(ARGS)

test: .venv/ready      ## lint, types, every test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n auto $(ARGS)

check: .venv/ready     ## lint and types alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

torture: .venv/ready   ## the long version: thousands of kills, many processes
	SMOLMEM_TORTURE=1 $(BIN)/pytest -n auto -m promise $(ARGS)

bench: .venv-bench/ready   ## side by side with what one would use instead
	.venv-bench/bin/python bench/growth.py $(ARGS)

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --upgrade "pip>=25.1"
	$(BIN)/pip install -q -e . --group dev
	@touch $@

.venv-bench/ready: pyproject.toml bench/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install -q --upgrade "pip>=25.1"
	.venv-bench/bin/pip install -q -e . -r bench/requirements.txt
	@touch $@

help:                  ## this list
	@grep -E '^[a-z]+:' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/'

.PHONY: demo test check torture bench help
