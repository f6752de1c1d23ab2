"""Datasets of runs on the Hugging Face Hub: pushed to and read from a Hub that the tests start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from fake_hub import TOKEN, Hub, running_hub
from PIL import Image
from scripted import code, code_agent

import smolmem
from smolmem import Memory, SmolmemError
from smolmem.core.errors import InvalidArgument, NotFound, StoreError

ROOT = Path(__file__).parent.parent
KEY = "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"
"""A token of a known format."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with running_hub() as running:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", running.endpoint)
        files = f"{running.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        yield running


def fill(path: Path, **options: Any) -> list[Any]:
    """Runs with a secret in a task, in code, in a long text, under a name, and in a note."""
    with Memory(path, **options) as memory:
        long = "line of the log\n" * 600 + f"token {KEY}\n"
        agent = memory.attach(
            code_agent(
                code(f"settings = {{'password': 'hunter2hunter2'}}\nprint({KEY!r})"),
                code(f"text = {long!r}\nprint(text)"),
                code("final_answer('deployed')"),
            )
        )
        agent.run(f"Deploy with {KEY}", images=[Image.effect_noise((200, 200), 80).convert("RGB")])
        memory.remember(f"The token is {KEY}", tags=["deploy"])
        return [(run.status, run.answer, run.step_count) for run in memory.runs()]


def test_a_dataset_comes_back_as_it_was_pushed(hub: Hub, tmp_path: Path) -> None:
    before = fill(tmp_path / "agent.db")
    with Memory(tmp_path / "agent.db") as memory:
        pushed = memory.push_to_hub("acme/runs")
        steps = [step.text for step in memory.runs()[0].steps]
    assert pushed.url == f"{hub.endpoint}/datasets/acme/runs"
    assert pushed.written["run"] == 1
    assert hub.private == {"acme/runs": True}, "private unless the user says otherwise"
    with Memory.from_hub("acme/runs", tmp_path / "other.db") as other:
        assert [(run.status, run.answer, run.step_count) for run in other.runs()] == before
        assert [step.text for step in other.runs()[0].steps] == steps
        assert other.runs()[0].imported, "what was downloaded is not trusted"
        assert other.verify()
        assert other.recall("when was the token used")


def test_a_dataset_is_trusted_on_request_and_downloaded_with_a_given_token(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "agent.db")
    with Memory(tmp_path / "agent.db") as memory:
        memory.push_to_hub("acme/runs")
    monkeypatch.delenv("HF_TOKEN")
    reported: list[int] = []
    options = {"trust": "keep", "token": TOKEN, "progress": lambda done, _: reported.append(done)}
    with Memory.from_hub("acme/runs", tmp_path / "other.db", **options) as other:
        assert not other.runs()[0].imported
    assert reported


def test_the_card_says_how_much_there_is(hub: Hub, tmp_path: Path) -> None:
    fill(tmp_path / "agent.db")
    with Memory(tmp_path / "agent.db") as memory:
        memory.push_to_hub("acme/runs")
    text = hub.files["acme/runs"]["README.md"].decode()
    for line in ("| runs | 1 |", "| notes | 1 |", "| statuses | finished 1 |", "| agents | CodeAgent 1 |"):
        assert line in text
    assert 'Memory.from_hub("acme/runs", "runs.db")' in text
    assert "were replaced with placeholders" in text


def test_secrets_that_are_in_the_store_are_not_in_the_dataset(hub: Hub, tmp_path: Path) -> None:
    fill(tmp_path / "agent.db", redact=False)
    with Memory(tmp_path / "agent.db", redact=False) as memory:
        assert KEY in memory.runs()[0].task
        memory.push_to_hub("acme/runs")
        assert KEY in memory.runs()[0].task, "the store stays as it is"
        memory.push_to_hub("acme/open", redact=False)
    everything = b"".join(hub.files["acme/runs"].values())
    assert KEY.encode() not in everything
    assert b"hunter2hunter2" not in everything
    assert KEY.encode() in b"".join(hub.files["acme/open"].values())
    assert b"without redaction" in hub.files["acme/open"]["README.md"]
    with Memory.from_hub("acme/runs", tmp_path / "other.db") as other:
        assert other.verify(), "every hash is that of the redacted content"
        run = other.runs()[0]
        assert run.answer == "deployed"
        assert run.task.startswith("Deploy with ⟨secret:github")
        texts = "".join(step.text for step in run.steps)
        assert texts.count("line of the log") >= 600
        assert KEY not in texts + str([step.to_smolagents() for step in run.steps])
        assert "⟨secret:github" in other.notes()[0].text


def test_variables_are_in_a_dataset_only_without_redaction(hub: Hub, tmp_path: Path) -> None:
    with Memory(tmp_path / "agent.db", redact=False) as memory:
        agent = code_agent(code("n = 41\nparts = 'abc' + KEY_PART * 2000\nprint(n)"), code("final_answer(n)"))
        agent.state["KEY_PART"] = "only-in-a-variable "
        memory.attach(agent).run("Count", additional_args={"KEY_PART": "only-in-a-variable "})
        memory.push_to_hub("acme/runs", scope="*")
        memory.push_to_hub("acme/open", scope="*", redact=False)
    assert b"only-in-a-variable only-in-a-variable" not in b"".join(hub.files["acme/runs"].values())
    with Memory.from_hub("acme/runs", tmp_path / "other.db") as other:
        assert other.verify()
        again = code_agent()
        other.runs()[0].restore(again, trust=True)
        assert len(again.memory.steps) == 3
        assert "n" not in again.python_executor.state
    with Memory.from_hub("acme/open", tmp_path / "open.db") as other:
        again = code_agent(code("final_answer(n + 1)"))
        other.runs()[0].restore(again, trust=True)
        assert again.run("One more", reset=False) == 42


def test_own_rules_and_named_secrets_hold_for_the_dataset_too(hub: Hub, tmp_path: Path) -> None:
    fill(tmp_path / "agent.db", redact=False)
    with Memory(tmp_path / "agent.db", redact=False, secrets={"word": "deployed"}) as memory:
        memory.push_to_hub("acme/runs", redact=r"line of the \w+")
    everything = b"".join(hub.files["acme/runs"].values())
    assert b"deployed" not in everything
    assert b"line of the log" not in everything


def test_only_the_scope_is_pushed_and_another_push_replaces_the_first(hub: Hub, tmp_path: Path) -> None:
    fill(tmp_path / "agent.db")
    with Memory(tmp_path / "agent.db") as memory:
        memory.remember("The word of bob is apple", scope="bob")
        memory.push_to_hub("acme/runs", scope="*")
        assert any(name.startswith("media/") for name in hub.files["acme/runs"])
        memory.push_to_hub("acme/runs", scope="bob")
    assert sorted(hub.files["acme/runs"]) == ["README.md", "smolmem.jsonl"]
    with Memory.from_hub("acme/runs", tmp_path / "other.db", scope="*") as other:
        assert [note.scope for note in other.notes()] == ["bob"]
        assert other.runs() == []


def test_nothing_is_written_to_a_public_dataset_unless_the_user_says_so(hub: Hub, memory: Memory) -> None:
    hub.private["acme/runs"], hub.files["acme/runs"] = False, {}
    with pytest.raises(InvalidArgument, match="the dataset acme/runs is public: make it private on the Hub"):
        memory.push_to_hub("acme/runs")
    assert hub.files["acme/runs"] == {}
    memory.push_to_hub("acme/runs", private=False)
    assert "smolmem.jsonl" in hub.files["acme/runs"]


def test_what_the_hub_refuses_is_one_sentence(
    hub: Hub, memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.private["acme/other"], hub.files["acme/other"] = False, {"data.csv": b"1,2"}
    cases: list[tuple[Any, type[SmolmemError], str]] = [
        (
            lambda: memory.push_to_hub("acme/runs", token="hf_wrong"),
            StoreError,
            r"\(401\): log in with `hf auth login`",
        ),
        (lambda: memory.push_to_hub("not a name"), InvalidArgument, "is not the name of a dataset"),
        (lambda: Memory.from_hub("acme/none", tmp_path / "a.db"), NotFound, "there is no dataset acme/none, or this"),
        (lambda: Memory.from_hub("acme/other", tmp_path / "a.db"), NotFound, "holds no smolmem.jsonl"),
        (lambda: Memory.from_hub("acme/other", tmp_path / "a.db", revision="v9"), NotFound, "has no such revision"),
    ]
    for act, kind, message in cases:
        with pytest.raises(kind, match=message) as raised:
            act()
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "a.db").exists(), "no store is made of nothing"
    hub.files["acme/other"]["smolmem.jsonl"] = b"no export"
    with pytest.raises(StoreError):
        Memory.from_hub("acme/other", tmp_path / "a.db")
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"cannot be used for acme/runs .*: check the network"):
        memory.push_to_hub("acme/runs")


def test_the_page_runs_as_it_stands(hub: Hub, tmp_path: Path) -> None:
    """With another endpoint, as a user sets it: `HF_ENDPOINT`."""
    source = str(Path(smolmem.__file__).parent.parent)
    env = os.environ | {"PYTHONPATH": os.pathsep.join((source, str(ROOT / "tests"))), "HF_ENDPOINT": hub.endpoint}
    line = [sys.executable, "-W", "error", str(ROOT / "tests/pages.py"), str(ROOT / "docs/hub.md")]
    done = subprocess.run(line, env=env, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert hub.private == {"acme/runs": True}
