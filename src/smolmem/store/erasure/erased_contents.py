"""Removes contents, prompts and quotations after an erase.

A content that nothing refers to is deleted. A content that only prompts of other runs refer to becomes a placeholder in
its place, with the same number of messages and the same roles: the prompts keep their length and their seals.

Where a run recalled something that is erased, the recalled lines become `[erased]` in everything that its session
holds: the block, the prompts, the observations and the results of calls. A model's own words about
them belong to that run.

Each placeholder names the number of its content, because no two contents may have the same hash. The newest content and
prompt become placeholders instead of being deleted: the database would reuse their numbers, and other processes cache
contents by number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from smolmem.core.encoding import codec, packing, step_facts, wire
from smolmem.core.encoding.chunks import NAMED
from smolmem.store.base import Row
from smolmem.store.contents import seal, with_hash
from smolmem.store.journal import Journal
from smolmem.store.passage_rows import json_list
from smolmem.store.side_tables import QUOTE, quoted_lines

_HEAD = re.compile(r"\[(\d+)\] ")
_SHORTEST = 12
"""Characters of a line that is recognised by its text alone."""


class Sweep:
    """Removes contents and prompts that erased rows leave behind; part of the caller's transaction."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._store = journal.store
        self.deleted = self.replaced = self.prompts = 0

    # --- prompts ---------------------------------------------------------------------------------------------------

    def drop_prompts(self, given: Iterable[int]) -> set[int]:
        """Deletes prompts, and the prompts they begin with, unless something refers to them.

        Returns:
            The contents that the deleted prompts named.
        """
        doomed = set(self.chain(given))
        doomed -= {row["prompt"] for row in self._store.rows("prompts_in_use", {"ids": json_list(doomed)})}
        following = [
            (row["parent"], row["id"]) for row in self._store.rows("prompts_beginning_with", {"ids": json_list(doomed)})
        ]
        while needed := {parent for parent, child in following if parent in doomed and child not in doomed}:
            doomed -= needed
        rows = self._store.rows("prompts_by_ids", {"ids": json_list(doomed)})
        contents = {part for row in rows for part in json.loads(row["suffix"])}
        last = self._store.do("last_prompt", {})
        if last in doomed:
            empty: Row = {"parent": None, "keep": 0, "size": 0, "suffix": "[]"}
            self._store.do("put_prompt", empty | {"id": last, "hash": seal("prompt", empty)})
        self.prompts = len(self._store.rows("erase_prompts", {"ids": json_list(doomed - {last})}))
        return contents

    def chain(self, prompts: Iterable[int]) -> dict[int, list[int]]:
        """Prompts and the prompts they begin with, each with the contents it adds."""
        found: dict[int, list[int]] = {}
        coming = set(prompts)
        while coming:
            rows = self._store.rows("prompts_by_ids", {"ids": json_list(coming)})
            found |= {row["id"]: json.loads(row["suffix"]) for row in rows}
            coming = {row["parent"] for row in rows if row["parent"] is not None} - found.keys()
        return found

    # --- contents --------------------------------------------------------------------------------------------------

    def drop_contents(self, erased: set[int], unclear: set[int], lossy: set[int]) -> None:
        """Deletes contents without references, and replaces contents that only prompts refer to by placeholders.

        Args:
            erased: contents of erased rows.
            unclear: contents of prompts that were deleted, or that belong to sessions which lost steps.
            lossy: the prompts of sessions which lost steps.
        """
        given = erased | unclear
        given -= {row["id"] for row in self._store.rows("contents_in_use", {"ids": json_list(given)})}
        users: dict[int, set[int]] = {}
        for row in self._store.rows("contents_in_prompts", {"ids": json_list(given)}):
            users.setdefault(row["id"], set()).add(row["prompt"])
        doomed = {number for number in given if number not in users}
        blank = {number for number in given & users.keys() if number in erased or users[number] <= lossy}
        named = self._journal.named_below(doomed | blank)
        for number in sorted(blank):
            self.put(number, self._placeholder(number))
        self._delete(doomed)
        self._drop_named(named)

    def _delete(self, doomed: set[int]) -> None:
        self._unchain(doomed)
        last = self._store.do("last_content", {})
        if last in doomed:
            self.put(last, codec.encode(f"[erased {last}]").record)
        self.deleted += len(self._store.rows("erase_contents", {"ids": json_list(doomed - {last})}))

    def put(self, number: int, data: bytes) -> None:
        """Replaces the bytes of a content; references stay valid."""
        self._unchain({number})
        key = bytes.fromhex(wire.fingerprint(data))
        self._store.do("put_content", {"id": number, "hash": key, "bytes": packing.pack(data)})
        self.replaced += 1

    def _unchain(self, going: set[int]) -> None:
        """Repacks contents whose dictionary is about to be deleted."""
        later = {row["id"] for row in self._store.rows("contents_packed_with", {"ids": json_list(going)})} - going
        repacked = [(number, self._journal.content(number)) for number in sorted(later)]
        for number, data in repacked:
            key = bytes.fromhex(wire.fingerprint(data))
            self._store.do("put_content", {"id": number, "hash": key, "bytes": packing.pack(data)})

    def _placeholder(self, number: int) -> bytes:
        value = self._journal.value(number)
        text = f"[erased {number}]"
        messages = value if isinstance(value, list) else [value]
        if not all(hasattr(message, "role") for message in messages):
            return codec.encode(text).record
        new = [type(each)(role=each.role, content=[{"type": "text", "text": text}]) for each in messages]
        return codec.encode(new if isinstance(value, list) else new[0]).record

    def _drop_named(self, keys: set[str]) -> None:
        """Deletes the contents with these hashes that no remaining content names."""
        if not keys:
            return
        naming: dict[str, set[str]] = {}  # by the content that names them; "" for contents that stay
        last = 0
        while rows := self._store.rows("contents_after", {"id": last}):
            last = rows[-1]["id"]
            for row in rows:
                data = self._journal.checked([row], f"content {row['id']}")
                named = {key.decode() for _, key in NAMED.findall(data)} & keys
                naming.setdefault(row["hash"].hex() if row["hash"].hex() in keys else "", set()).update(named)
        staying = naming.pop("", set()) | self._in_use(keys)
        while further := {key for name in staying & naming.keys() for key in naming[name]} - staying:
            staying |= further
        self._delete({number for number in map(self._number, keys - staying) if number is not None})

    def _in_use(self, keys: set[str]) -> set[str]:
        """The hashes, of those given, that rows of other tables refer to."""
        numbers = {number: key for key in keys if (number := self._number(key)) is not None}
        asked = {"ids": json_list(numbers)}
        used = self._store.rows("contents_in_use", asked) + self._store.rows("contents_in_prompts", asked)
        return {numbers[row["id"]] for row in used}

    def _number(self, key: str) -> int | None:
        found: int | None = self._store.do("content_id", {"hash": bytes.fromhex(key)})
        return found

    def own_parts(self, shown: Iterable[int]) -> set[int]:
        """Contents of single rendered messages: prompts that were not rendered from whole steps consist of them."""
        keys = [codec.encode(message).key for number in shown for message in self._journal.part(number)]
        found = (self._store.do("content_id", {"hash": bytes.fromhex(key)}) for key in set(keys))
        return {number for number in found if number is not None}

    # --- quotes in other runs --------------------------------------------------------------------------------------

    def erase_quotes(self, steps: Iterable[int], notes: Iterable[str], scopes: set[str], texts: list[str]) -> set[str]:
        """Replaces recalled lines that came from erased steps and notes; returns the sessions that held them."""
        gone: set[int | str] = {*steps, *notes}
        everything = "\n".join(texts)
        lines: dict[str, set[str]] = {}
        sources = {"sources": json_list(gone), "scopes": json_list(scopes)}
        for row in self._store.rows("recalled_from", sources):
            session = row.pop("session")
            found = json.loads(row["found"])
            if row["block"] is not None:
                lines.setdefault(session, set()).update(self._quoted(row["block"], found, gone, everything))
            left = row | {"found": json.dumps([0 if source in gone else source for source in found])}
            if left != row:
                self._store.do("put_recalled", with_hash("recalled", left))
        touched = {session for session, found in lines.items() if found}
        return touched.union(*(self._replace_lines(session, lines[session]) for session in touched))

    def _quoted(self, block: int, found: list[Any], gone: set[int | str], everything: str) -> set[str]:
        """The lines of a block that quote something erased."""
        messages = self._journal.part(block)
        if {*found} <= {*gone, 0}:
            return {f"{QUOTE}{line}" for line in quoted_lines(messages)}
        texts = [part["text"] for message in messages for part in message.content if part.get("type") == "text"]
        heads = [line for text in texts for line in text.splitlines() if _HEAD.match(line)]
        if len(heads) != len(found) or "*" in found:
            quotes = (line for line in quoted_lines(messages) if len(line.strip()) >= _SHORTEST)
            return {f"{QUOTE}{line}" for line in quotes if line.strip() in everything}
        lines_gone: set[str] = set()
        erased = False
        for line in (line for text in texts for line in text.splitlines()):
            head = _HEAD.match(line)
            if head is not None:
                number = int(head[1]) - 1
                erased = number < len(found) and found[number] in gone
            if erased and (line.startswith(QUOTE) or head is not None):
                lines_gone.add(line)
        return lines_gone

    def _replace_lines(self, session: str, lines: set[str]) -> set[str]:
        """Replaces lines in all contents of a session, and updates its steps.

        Returns:
            The sessions of these steps: equal steps of two sessions share one content.
        """
        events = self._store.rows("events_by_sessions", {"ids": json_list([session])})
        runs = json_list({event["run"] for event in events})
        numbers = {event[column] for event in events for column in ("record", "shown", "state")}
        for row in self._store.rows("calls_by_runs", {"ids": runs}):
            numbers |= {row["arguments"], row["outcome"]}
        for row in self._store.rows("runs_by_ids", {"ids": runs}):
            numbers |= {row["answer"], row["failure"]}
        numbers |= {row["block"] for row in self._store.rows("recalled_by_runs", {"ids": runs})}
        chain = self.chain(event["prompt"] for event in events if event["prompt"] is not None)
        numbers |= {part for parts in chain.values() for part in parts}
        changed = [number for number in sorted(numbers - {None}) if self._replace(number, lines)]
        self._journal.forget_cached()
        steps = self._store.rows("steps_by_records", {"ids": json_list(changed)})
        for row in steps:
            new = row | step_facts.facts(self._journal.value(row["record"]))
            self._store.do("put_step", with_hash("step", new))
        return {row["session"] for row in steps}

    def _replace(self, number: int, lines: set[str]) -> bool:
        """Replaces lines in one content, and in the long texts and chunks that it names."""
        before = self._journal.content(number)
        ordered = sorted(lines, key=len, reverse=True)
        dropped: set[str] = set()
        data = self._without(before, ordered, f"erased {number}", dropped)
        if data != before:
            self.put(number, data)
            self._drop_named(dropped)
        return data != before

    def _without(self, data: bytes, lines: list[str], instead: str, dropped: set[str]) -> bytes:
        """A record without lines; adds the hashes of contents that were replaced to `dropped`."""
        for kind, key in set(NAMED.findall(data)):
            inner = self._journal.blob(key.decode())
            if kind == b"chunk":
                new = self._without(inner, lines, instead, dropped)
            else:
                new = inner
                for line in lines:
                    new = new.replace(line.encode("utf-8", "surrogatepass"), f"{QUOTE}[erased]".encode())
            if new != inner:
                fresh = wire.fingerprint(new)
                row = {"hash": bytes.fromhex(fresh), "bytes": packing.pack(new), "base": None}
                self._store.do("add_content", row)
                data = data.replace(key, fresh.encode())
                dropped.add(key.decode())
        for line in lines:
            head = _HEAD.match(line)
            new_line = f"{head[0]}[{instead}]" if head is not None else f"{QUOTE}[{instead}]"
            data = data.replace(wire.dumps(line)[1:-1], wire.dumps(new_line)[1:-1])
        return data
