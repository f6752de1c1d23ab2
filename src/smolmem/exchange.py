"""The part of `Memory` that exchanges runs with other tools: traces are sent, and what others saved is imported."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smolmem.core.arguments import check_choice, check_scope
from smolmem.core.display import Drawable
from smolmem.core.values import Run
from smolmem.queries import Queries
from smolmem.store.base import Progress

if TYPE_CHECKING:
    from smolmem.core.prices import Price
    from smolmem.transfer.imports import Format
    from smolmem.transfer.load import Imported


@dataclass(frozen=True)
class Traced(Drawable):
    """A trace that was sent: its id, its first run, how many runs and spans it has, and where it was sent."""

    trace: str
    run: str
    runs: int
    spans: int
    to: str


class Exchange(Queries):
    """Sends and imports."""

    def trace(
        self,
        run: Run | str,
        to: str,
        *,
        headers: Mapping[str, str] | None = None,
        prices: Price | None = None,
        progress: Progress | None = None,
    ) -> Traced:
        """Sends a recorded run to a collector of traces such as Phoenix or Langfuse: OTLP over HTTP.

        Any run can be sent: finished, failed, killed or years old. A run is sent with the runs of managed agents that
        it called, and a run of a managed agent with the run that called it. Ids are hashes: a run that is sent twice
        is one trace. Images are sent as references, and secrets stay redacted.

        Args:
            run: the run, or the beginning of its id.
            to: the collector: `http://localhost:6006`, or a whole path.
            headers: such as `{"authorization": "Bearer …"}`, besides those of `OTEL_EXPORTER_OTLP_HEADERS`.
            prices: of a million input and output tokens, to send what each answer of a model cost; by default those
                that are known for the model.
            progress: called now and then with how many spans are sent, and how many there are.

        Raises:
            NotFound: if there is no such run.
            CollectorFailed: if the collector does not take it.
        """
        from smolmem.transfer.otlp import Collector
        from smolmem.transfer.run_spans import root_of, trace_spans

        root = root_of(self._journal, self.run(run))
        collector = Collector(to, headers, root.scope)
        spans = [span for span, _ in trace_spans(self._journal, root, prices)]
        sent = 0
        for batch in collector.send(spans):
            sent += len(batch)
            if progress is not None:
                progress(sent, len(spans))
        runs = sum(span.kind == "AGENT" for span in spans)
        return Traced(spans[-1].trace if spans else "", root.id, runs, sent, collector.url)

    def import_runs(
        self,
        source: str | os.PathLike[str],
        *,
        scope: str | None = None,
        format: Format | None = None,
        progress: Progress | None = None,
    ) -> Imported:
        """Imports what another tool saved, all of it or nothing; what is here already is left as it is.

        What is imported is not trusted: its origin is `import`, and its runs are restored or rerun only with
        `trust=True`.

        Args:
            source: a file, or a URL of Phoenix such as `http://localhost:6006`. OpenInference spans (JSON of the SDK,
                OTLP or Phoenix), a file of `agent.memory.get_full_steps()`, a SQLite file of OpenAI Agents,
                LangGraph or CrewAI, a chat store of LlamaIndex, or a list of messages.
            scope: where to; by default this memory's scope.
            format: what it is, where its content could be several things.
            progress: called now and then with how much is done and how much there is.

        Raises:
            SmolmemError: if it cannot be read; the message says why.
        """
        from smolmem.transfer.imports import FORMATS, import_runs

        check_choice(format, FORMATS, "format")
        chosen = check_scope(self.scope if scope is None else scope)
        return import_runs(self._journal, source, chosen, format, progress)
