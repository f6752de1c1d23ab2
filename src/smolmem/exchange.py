"""The part of `Memory` that exchanges runs: exports, datasets on the Hugging Face Hub, traces, and other tools' files.

The modules that do the work are imported when they are used: most programs only record.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smolmem.core.arguments import check_choice, check_scope
from smolmem.core.display import Result
from smolmem.core.redaction import Redact
from smolmem.core.values import Run
from smolmem.recalling import Recalling
from smolmem.store.base import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

    from smolmem.core.prices import Price
    from smolmem.transfer.export import Exported
    from smolmem.transfer.hub import Pushed
    from smolmem.transfer.imports import Format
    from smolmem.transfer.load import Imported, Trusted


@dataclass(frozen=True)
class Traced(Result):
    """A trace that was sent: its id, its first run, how many runs and spans it has, and where it was sent."""

    trace: str
    run: str
    runs: int
    spans: int
    to: str


class Exchange(Recalling):
    """Exports, loads, sends and imports runs."""

    def flush(self) -> None:
        """Writes everything that is not written yet."""

    def export(
        self, path: str | os.PathLike[str], *, scope: str | None = None, progress: Progress | None = None
    ) -> Exported:
        """Writes this memory's scope in an open format: JSON lines, and pictures as files.

        An export is plain text, also if the store is encrypted.

        Args:
            path: a new folder, or a new file that ends in `.zip`.
            scope: another scope; `acme/*` for `acme` and all scopes in it, `*` for everything.
            progress: called repeatedly with the amount that is done and the total.
        """
        self.flush()
        from smolmem.transfer.export import export

        return export(self._journal, path, **self._scope_filter(scope), progress=progress)

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        scope: str | None = None,
        trust: Trusted = "import",
        progress: Progress | None = None,
    ) -> Imported:
        """Reads an export, all of it or nothing; runs and notes that the store has already are not changed.

        Loaded content is not trusted: its origin is `import`, it supersedes no earlier note of the store, and its runs
        are resumed, restored or rerun only with `trust=True`.

        Args:
            path: the folder or the `.zip`.
            scope: put everything under this scope.
            trust: `keep` to trust the export as your own: origins stay as they are.
            progress: called repeatedly with the amount that is done and the total.

        Raises:
            StoreError: if the path is not an export; the message names the line and what to do.
        """
        check_choice(trust, ("import", "keep"), "trust")
        under = None if scope is None else check_scope(scope)
        from smolmem.transfer.load import load

        loaded = load(self._journal, path, scope=under, trust=trust, progress=progress)
        self._recall.loaded(progress)
        return loaded

    def push_to_hub(
        self,
        repo: str,
        *,
        scope: str | None = None,
        private: bool = True,
        redact: Redact = True,
        token: str | None = None,
        progress: Progress | None = None,
    ) -> Pushed:
        """Uploads this memory's scope to the Hugging Face Hub: a private dataset of runs, without known secrets.

        The dataset is an export and a card with counts. Pushing again replaces the export in a new commit.

        Args:
            repo: the name of the dataset, such as `acme/runs`; it is created if it does not exist.
            scope: another scope; `acme/*` for `acme` and all scopes in it, `*` for everything.
            private: False to write to a public dataset.
            redact: as for `Memory`; secrets that are in the store are taken out of the dataset. False uploads
                everything as it is stored.
            token: the token of the Hub; by default the token that `hf auth login` saved, or `HF_TOKEN`.
            progress: called repeatedly while the export is written; the upload shows progress bars of its own.

        Raises:
            InvalidArgument: if the dataset is public already, and `private` is true.
            StoreError: if the Hub cannot be reached, or refuses.
        """
        from smolmem.transfer import hub
        from smolmem.transfer.export import export

        self.flush()
        redactor = None if redact is False else self._journal.redactor.with_rules(redact)
        with tempfile.TemporaryDirectory(prefix="smolmem-") as temporary:
            folder = Path(temporary) / "export"
            bounds = self._scope_filter(scope)
            exported = export(self._journal, folder, **bounds, progress=progress, redactor=redactor)
            return hub.push(folder, exported, repo, private=private, redacted=redactor is not None, token=token)

    @classmethod
    def from_hub(
        cls,
        repo: str,
        path: str | os.PathLike[str],
        *,
        revision: str | None = None,
        trust: Trusted = "import",
        token: str | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Self:
        """Downloads a dataset of runs into a store, and opens it; runs that the store has already stay as they are.

        Args:
            repo: the name of the dataset.
            path: the path of the store; it is created if it does not exist.
            revision: a branch, tag or commit of the dataset.
            trust: as for `load`: by default, loaded content is not trusted.
            token: the token of the Hub, for private datasets.
            progress: called repeatedly while the export is loaded; the download shows progress bars of its own.
            **options: options of `Memory`, such as `scope`.

        Raises:
            NotFound: if there is no such dataset, or it holds no runs.
            StoreError: if the Hub cannot be reached, or the dataset is not an export.
        """
        from smolmem.transfer import hub

        with tempfile.TemporaryDirectory(prefix="smolmem-") as temporary:
            folder = hub.download(repo, Path(temporary), revision=revision, token=token)
            memory: Any = cls(path, **options)  # type: ignore[call-arg]
            try:
                memory.load(folder, trust=trust, progress=progress)
            except BaseException:
                memory.close()
                raise
        opened: Self = memory
        return opened

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
            prices: the prices of a million input and output tokens, to send the cost of each answer; by default the
                known prices of the model.
            progress: called repeatedly with the number of spans that are sent and the total.

        Raises:
            NotFound: if there is no such run.
            CollectorFailed: if the collector does not accept the spans.
        """
        from smolmem.transfer.traces.otlp import Collector
        from smolmem.transfer.traces.run_spans import root_of, trace_spans

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
        """Imports runs that another tool saved, all of them or none; runs that the store has already are not changed.

        Imported runs are not trusted: their origin is `import`, and they are restored or rerun only with `trust=True`.

        Args:
            source: a file, or a URL of Phoenix such as `http://localhost:6006`. OpenInference spans (JSON of the SDK,
                OTLP or Phoenix), a file of `agent.memory.get_full_steps()`, a SQLite file of OpenAI Agents,
                LangGraph or CrewAI, a chat store of LlamaIndex, or a list of messages.
            scope: the scope to import into; by default this memory's scope.
            format: the format, if the content fits several formats.
            progress: called repeatedly with the amount that is done and the total.

        Raises:
            SmolmemError: if the source cannot be read; the message says why.
        """
        from smolmem.transfer.imports import FORMATS, import_runs

        check_choice(format, FORMATS, "format")
        chosen = check_scope(self.scope if scope is None else scope)
        imported = import_runs(self._journal, source, chosen, format, progress)
        self._recall.loaded(progress)
        return imported
