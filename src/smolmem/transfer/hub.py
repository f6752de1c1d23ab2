"""Datasets of runs on the Hugging Face Hub: an export, and a card that says how much it holds.

Runs of agents are private, so a dataset is private unless the user says otherwise, and nothing is written to a dataset
that is public already. A downloaded dataset is untrusted input, as any export.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, errors

from smolmem.core.display import Result
from smolmem.core.errors import InvalidArgument, NotFound, SmolmemError, StoreError
from smolmem.core.text import byte_size, one_line
from smolmem.core.version import __version__
from smolmem.transfer.archive import JOURNAL
from smolmem.transfer.export import Exported

_FILES = [JOURNAL, "media/*"]


@dataclass(frozen=True)
class Pushed(Result):
    """The URL and contents of a dataset."""

    url: str
    commit: str
    private: bool
    written: dict[str, int]
    bytes: int


def push(folder: Path, exported: Exported, repo: str, *, private: bool, redacted: bool, token: str | None) -> Pushed:
    """Uploads the folder of an export as one commit; files of an earlier push are replaced."""
    api = _api(token)
    (folder / "README.md").write_text(card(folder, exported, repo, redacted=redacted), encoding="utf-8")
    with _explained(repo):
        api.create_repo(repo, repo_type="dataset", private=private, exist_ok=True)
        if private and not api.dataset_info(repo).private:
            raise InvalidArgument(
                f"the dataset {repo} is public: make it private on the Hub, use another name, or pass private=False."
            )
        commit = api.upload_folder(
            repo_id=repo,
            repo_type="dataset",
            folder_path=folder,
            commit_message=f"Runs of agents, exported by smolmem {__version__}",
            delete_patterns=_FILES,
        )
    url = f"{api.endpoint}/datasets/{repo}"
    return Pushed(url, str(commit.oid), private, exported.written, exported.bytes)


def download(repo: str, folder: Path, *, revision: str | None, token: str | None) -> Path:
    """Downloads an export."""
    wanted: Any = {"repo_type": "dataset", "allow_patterns": _FILES, "max_workers": 4}
    with _explained(repo):
        _api(token).snapshot_download(repo, revision=revision, local_dir=folder, **wanted)
    if not (folder / JOURNAL).is_file():
        raise NotFound(f"the dataset {repo} holds no {JOURNAL}: it was not made by memory.push_to_hub().")
    return folder


def _api(token: str | None) -> HfApi:
    return HfApi(token=token, library_name="smolmem", library_version=__version__)


@contextmanager
def _explained(repo: str) -> Iterator[None]:
    """Errors of the Hub as errors of smolmem."""
    login = "log in with `hf auth login`, set HF_TOKEN, or give token="
    try:
        yield
    except SmolmemError:
        raise
    except errors.HFValidationError as error:
        raise InvalidArgument(f"{repo!r} is not the name of a dataset, such as 'acme/runs'.") from error
    except errors.RepositoryNotFoundError as error:
        raise NotFound(f"there is no dataset {repo}, or this token may not see it: {login}.") from error
    except errors.RevisionNotFoundError as error:
        raise NotFound(f"the dataset {repo} has no such revision.") from error
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", 0)
        advice = login if status in (401, 403) else "try again later"
        raise StoreError(f"the Hub refuses {repo} ({status}): {advice}.") from error
    except Exception as error:  # no network, no token: the library's HTTP client differs between its releases
        reason: BaseException = error
        while (before := reason.__cause__ or reason.__context__) is not None:
            reason = before  # the first error of the chain, such as "Connection refused"
        advice = "check the network, and HF_ENDPOINT if it is set" if isinstance(reason, OSError) else login
        raise StoreError(f"the Hub cannot be used for {repo} ({one_line(str(reason), 200)}): {advice}.") from error


# --- the card -----------------------------------------------------------------------------------------------------


def card(folder: Path, exported: Exported, repo: str, *, redacted: bool) -> str:
    """The README of a dataset: what it holds, and how it is read."""
    agents, statuses = Counter[str](), Counter[str]()
    with open(folder / JOURNAL, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith('{"type":"run"'):
                run: dict[str, Any] = json.loads(line)
                agents[one_line(str(run.get("agent")), 60)] += 1
                statuses[str(run.get("status"))] += 1
    written = exported.written
    rows = {
        "runs": f"{written.get('run', 0):,}",
        "steps": f"{written.get('step', 0):,}",
        "notes": f"{written.get('note', 0):,}",
        "pictures and long texts": f"{exported.media:,}",
        "size": byte_size(exported.bytes),
        "statuses": _counts(statuses),
        "agents": _counts(agents),
    }
    table = "\n".join(f"| {name} | {value.replace('|', '/')} |" for name, value in rows.items())
    secrets = (
        "Keys, tokens and passwords of known formats were replaced with placeholders. Other private text was not."
        if redacted
        else "This dataset was pushed without redaction: it may hold keys, tokens and passwords."
    )
    return _CARD.format(table=table, secrets=secrets, repo=repo, version=__version__)


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counter.most_common(10)) or "none"


_CARD = """\
---
tags:
- smolagents
- smolmem
- agent-traces
viewer: false
---

# Runs of smolagents agents

Recorded by smolmem {version}.

| | |
|---|---|
{table}

{secrets}

```python
from smolmem import Memory

memory = Memory.from_hub("{repo}", "runs.db")
for run in memory.runs(scope="*"):
    print(run)
```

The runs can be searched, replayed and restored. Their content is not trusted: its origin is `import`.
"""
