"""Sends the runs of attached agents to a collector of traces while they are recorded.

The agent's thread only notes that a run has a new step. A thread of its own reads the steps from the store, on a
connection of its own, and sends their spans about once a second. So an agent never waits for a collector, whether the
collector is slow, down or answers garbage. The record is the queue: unsent steps are read again, and only the ids of
runs and of sent steps are held in memory.

A failed collector is logged once and tried again after a while. Runs that are not sent when the process ends can be
sent at any time with `memory.trace`.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from smolmem.agents.compat import Patches
from smolmem.agents.recorder import Recorder
from smolmem.core.errors import CollectorFailed, NotFound, SmolmemError
from smolmem.core.fork_lock import ForkLock
from smolmem.core.values import Run
from smolmem.store.journal import Journal
from smolmem.store.records import Records

if TYPE_CHECKING:
    from smolmem.transfer.traces.otlp import Collector
    from smolmem.transfer.traces.spans import Span

log = logging.getLogger("smolmem")

BATCH_SECONDS = 1.0
"""How long steps are collected before they are sent."""
RETRY_SECONDS = (2.0, 5.0, 15.0, 60.0)
"""How long the thread waits after the first, second, … failure in a row."""
CLOSE_SECONDS = 2.0
"""How long closing a memory, or the end of the process, waits for the last spans."""
MOST_RUNS = 1_000
"""Runs that wait to be sent while a collector is down."""


class LiveTraces:
    """The collectors that the agents of one memory are sent to."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._senders: dict[tuple[str, str], _Sender] = {}
        _all.add(self)

    def sender(self, url: str, scope: str) -> _Sender:
        """The sender of a scope's runs to a collector.

        Raises:
            InvalidArgument: if `url` is not a URL.
        """
        from smolmem.transfer.traces.otlp import Collector

        collector = Collector(url, project=scope)
        return self._senders.setdefault((url, scope), _Sender(self._journal, collector))

    def close(self) -> None:
        """Sends unsent spans, for a short time."""
        for sender in self._senders.values():
            sender.close()


class AttachedTrace:
    """Where the runs of one agent are sent."""

    def __init__(self, recorder: Recorder, traces: LiveTraces) -> None:
        self._recorder = recorder
        self._traces = traces
        self._patches = Patches()
        recorder.patches.callback(self._patches.close)

    def send_to(self, url: str) -> None:
        """Sends the runs of the agent, and of the agents it manages, to a collector, and to no other."""
        sender = self._traces.sender(url, self._recorder.scope)
        self._patches.close()
        for each in _with_managed(self._recorder):
            note = _noting(weakref.ref(each), sender)
            for listeners, listener in ((each.steps.on_saved, note), (each.on_run_end, sender.wake)):
                listeners.append(listener)
                self._patches.callback(listeners.remove, listener)


_all: weakref.WeakSet[LiveTraces] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for traces in list(_all):
        traces.close()


def _with_managed(recorder: Recorder) -> Iterator[Recorder]:
    seen, found = set[int](), [recorder]
    while found:
        each = found.pop()
        if id(each) not in seen:
            seen.add(id(each))
            found += each.managed()
            yield each


def _noting(recorder: weakref.ref[Recorder], sender: _Sender) -> Callable[[], None]:
    def note() -> None:
        followed = recorder()
        run = None if followed is None else followed.runs.run_at_work()
        if run is not None:
            sender.note(run)

    return note


class _Sender:
    """Sends runs to one collector, in a thread that ends when there is nothing more to send."""

    def __init__(self, journal: Journal, collector: Collector) -> None:
        self._journal = journal
        self._collector = collector
        self._lock = ForkLock(self._forget)
        self._forget()

    def _forget(self) -> None:
        """Drops all state, also in a forked child, which has no thread."""
        self._runs: dict[str, set[int]] = {}  # runs that are not sent as a whole, and the steps that were sent
        self._thread: threading.Thread | None = None
        self._woken, self._closing = threading.Event(), threading.Event()
        self._failures = 0
        self._is_logged = False  # whether this outage is logged

    def note(self, run: str) -> None:
        """A run has a new step. Called by the agent's thread."""
        with self._lock:
            if run in self._runs or len(self._runs) < MOST_RUNS:  # others are recorded, and can be sent later
                self._runs.setdefault(run, set())
        self.wake()

    def wake(self) -> None:
        """A run has a new step, or has ended."""
        with self._lock:
            if self._thread is None and self._runs and not self._closing.is_set():
                self._thread = threading.Thread(target=self._work, name="smolmem-trace", daemon=True)
                self._thread.start()
        self._woken.set()

    def close(self) -> None:
        """Sends unsent spans, for a short time."""
        self._closing.set()
        self._woken.set()
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)

    # --- in the thread ---------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            with closing(self._journal.store.reopened()) as store:
                self._send_all(Records(store, self._journal.redactor))
        except Exception as error:  # nobody catches an error of a thread
            self._failed(error)
            with self._lock:
                self._thread = None

    def _send_all(self, records: Records) -> None:
        """Sends new steps, until there is nothing more to send."""
        while True:
            self._woken.wait()
            self._closing.wait(self._pause())
            self._woken.clear()
            last = self._closing.is_set()
            try:
                self._send_new(records)
                self._failures = 0
            except (SmolmemError, LookupError) as error:  # of the collector, or of a run that is being written
                self._failed(error)
                self._woken.set()
            with self._lock:
                if last or not self._runs:
                    self._thread = None
                    return

    def _pause(self) -> float:
        if not self._failures:
            return BATCH_SECONDS
        return RETRY_SECONDS[min(self._failures, len(RETRY_SECONDS)) - 1]

    def _failed(self, error: Exception) -> None:
        self._failures += 1
        if not self._is_logged:
            self._is_logged = True
            log.warning(
                "smolmem could not send a trace: %s The runs are recorded: `smolmem trace RUN --to %s` sends them.",
                error,
                self._collector.url,
            )

    def _send_new(self, records: Records) -> None:
        with self._lock:
            noted = list(self._runs)
        for root in dict.fromkeys(self._root(records, run) for run in noted):
            if root is not None:
                self._send_run(records, root)

    def _root(self, records: Records, run: str) -> Run | None:
        """The run that a trace begins with; None for a run that is not stored, or was erased."""
        from smolmem.transfer.traces import run_spans

        try:
            root = run_spans.root_of(records, records.run(run))
        except NotFound:
            with self._lock:
                self._runs.pop(run, None)
            return None
        with self._lock:
            if root.id != run:
                self._runs.pop(run, None)
                self._runs.setdefault(root.id, set())
        return root

    def _send_run(self, records: Records, root: Run) -> None:
        from smolmem.transfer.traces import run_spans

        sent = self._runs.get(root.id, set())
        new = list(run_spans.trace_spans(records, root, sent=sent))
        steps = {span.id: step for span, step in new}
        try:
            for batch in self._collector.send(span for span, _ in new):
                self._is_logged = False
                self._mark(batch, steps, sent)
        except CollectorFailed as error:
            if not error.refused:
                raise
            self._failed(error)  # the same would be refused again
            sent |= {step for step in steps.values() if step is not None}
        if root.status != "running":
            with self._lock:
                self._runs.pop(root.id, None)

    def _mark(self, batch: list[Span], steps: dict[str, int | None], sent: set[int]) -> None:
        """Notes the steps whose own span was sent; it follows the spans of the calls of the step."""
        for span in batch:
            step = steps[span.id]
            if step is not None and span.kind == "CHAIN":
                sent.add(step)
