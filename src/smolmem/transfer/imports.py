"""Imports files of other tools as runs: the format is recognised by the content, and all or nothing is written.

Files are untrusted: they are read as data, within limits, and pickles are never loaded.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import requests

from smolmem.core.text import byte_size, one_line
from smolmem.store.base import Progress
from smolmem.store.journal import Journal
from smolmem.transfer import chats, saved_steps
from smolmem.transfer.foreign import ForeignRun, Unreadable, write_runs
from smolmem.transfer.load import Imported
from smolmem.transfer.traces import span_files, span_runs
from smolmem.transfer.traces.otlp import failure_reason

Format = Literal["traces", "steps", "openai", "langgraph", "crewai", "llama-index", "messages"]
FORMATS: tuple[Format, ...] = get_args(Format)
LARGEST = 512 << 20
"""Bytes of a JSON file."""
PAGE = 1_000
MOST_PAGES = 10_000
_SQLITE = b"SQLite format 3\0"
_HOW = "`smolmem import --help` lists what can be imported"


def import_runs(
    journal: Journal,
    source: str | os.PathLike[str],
    scope: str,
    format: Format | None = None,
    progress: Progress | None = None,
) -> Imported:
    """Imports a file or URL into a scope, in one transaction.

    Raises:
        Unreadable: if it cannot be read; nothing was imported.
    """
    name = os.fspath(source)
    try:
        is_url = urlsplit(name).scheme in ("http", "https")
        runs = _from_url(name, progress) if is_url else _from_file(Path(name), format)
        if not runs:
            raise Unreadable("the file has no runs of agents")
    except Unreadable as error:
        reason = str(error).rstrip(".")
        raise Unreadable(f"cannot import {_shown(name)}: {reason}. Nothing was imported.") from error
    return write_runs(journal, _shown(name), runs, scope, progress)


def _shown(name: str) -> str:
    """A file or URL without a password."""
    parts = urlsplit(name)
    return name.replace(f"{parts.netloc.rpartition('@')[0]}@", "", 1) if parts.scheme and "@" in parts.netloc else name


# --- files -----------------------------------------------------------------------------------------------------------


def _from_file(path: Path, format: Format | None) -> list[ForeignRun]:
    try:
        if path.is_dir():
            raise Unreadable(f"this is a folder: `smolmem load` reads exports of smolmem. {_HOW}")
        at = path.stat().st_mtime
        with path.open("rb") as file:
            head = file.read(16)
            if head == _SQLITE:
                return chats.read_sqlite(path, format)
            if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
                raise Unreadable(
                    "this is a pickle, and loading a pickle runs whatever code is in it: save json.dumps(agent.memory."
                    "get_full_steps(), default=str) instead"
                )
            if head.startswith(b"PK"):
                raise Unreadable(f"this is a zip: `smolmem load` reads exports of smolmem. {_HOW}")
            data = head + file.read(LARGEST)
    except (OSError, ValueError) as error:
        raise Unreadable(f"the file cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if len(data) > LARGEST:
        raise Unreadable(f"the file is larger than {byte_size(LARGEST)}: import it in parts")
    return _from_json(json_values(data), path.name, at, format)


def _from_json(values: list[Any], name: str, at: float, format: Format | None) -> list[ForeignRun]:
    readers: dict[str, tuple[Callable[[list[Any]], bool], Callable[[], list[ForeignRun]]]] = {
        "traces": (span_files.is_spans, lambda: span_runs.runs_of(span_files.read_spans(values))),
        "steps": (saved_steps.is_steps, lambda: saved_steps.read_steps(values, at)),
        "llama-index": (chats.is_llama_index, lambda: chats.read_llama_index(values, at)),
        "messages": (chats.is_messages, lambda: chats.read_messages(values, at, name)),
    }
    for each, (fits, read) in readers.items():
        if format in (None, each) and fits(values):
            return read()
    known = "the format of the file is not known" if format is None else f"the file does not have the format {format}"
    raise Unreadable(f"{known}. {_HOW}")


def json_values(data: bytes) -> list[Any]:
    """The JSON values of a text, one after another: one value, or a value on each line."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable(f"the file is neither JSON nor SQLite. {_HOW}") from error
    decoder, values, at = json.JSONDecoder(), list[Any](), 0
    try:
        while at < len(text):
            if text[at] in " \t\r\n":
                at += 1
                continue
            value, at = decoder.raw_decode(text, at)
            values.append(value)
    except json.JSONDecodeError as error:
        short = f"the file is not JSON, or ends too early: error at line {error.lineno:,} ({one_line(error.msg, 60)})"
        raise Unreadable(short) from error
    except (RecursionError, ValueError) as error:
        raise Unreadable(f"the JSON of the file cannot be read ({one_line(str(error), 60)})") from error
    if not values:
        raise Unreadable("the file is empty")
    return values


# --- Phoenix ---------------------------------------------------------------------------------------------------------


def _from_url(url: str, progress: Progress | None) -> list[ForeignRun]:
    """Spans from a server: all pages of `/v1/projects/<name>/spans` of Phoenix, or the JSON at another URL."""
    parts = urlsplit(url)
    if not parts.path.strip("/"):
        url = f"{url.rstrip('/')}/v1/projects/default/spans"
    values: list[Any] = []
    cursor: str | None = None
    for number in range(MOST_PAGES):
        page = _page(url, {"limit": str(PAGE)} | ({} if cursor is None else {"cursor": cursor}))
        values += page
        following = page[0].get("next_cursor") if len(page) == 1 and isinstance(page[0], dict) else None
        if not following or following == cursor:
            return _from_json(values, url, time.time(), None)
        cursor = str(following)
        if progress is not None:
            progress(number + 1, number + 2)
    raise Unreadable(f"the server has more than {MOST_PAGES:,} pages: give a URL with a time range")


def _page(url: str, query: dict[str, str]) -> list[Any]:
    paged = query if urlsplit(url).path.rstrip("/").endswith("/spans") else {}
    try:
        with requests.get(url, params=paged, timeout=(5, 60), stream=True) as answer:
            if answer.status_code != 200:
                raise Unreadable(f"the server answered {answer.status_code}: give a URL such as http://localhost:6006")
            data = bytearray()
            for part in answer.iter_content(1 << 16):
                data += part
                if len(data) > LARGEST:
                    raise Unreadable(f"the answer is larger than {byte_size(LARGEST)}")
    except (requests.RequestException, OSError, ValueError) as error:
        reason = failure_reason(error)
        raise Unreadable(f"the server does not answer ({reason}): start it, or give another URL") from error
    return json_values(bytes(data))
