"""The part of `Memory` that shares runs as datasets on the Hugging Face Hub."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from smolmem.core.redaction import Redact
from smolmem.recalling import Recalling
from smolmem.store.base import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

    from smolmem.transfer.hub import Pushed
    from smolmem.transfer.load import Trusted


class Publishing(Recalling):
    """Datasets of runs."""

    def flush(self) -> None:
        """Writes everything that is not written yet."""

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
            token: the token of the Hub; by default the one that `hf auth login` saved, or `HF_TOKEN`.
            progress: called now and then while the export is written; the upload shows progress bars of its own.

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
            trust: as for `load`: by default, what is loaded is not trusted.
            token: the token of the Hub, for private datasets.
            progress: called now and then while the export is loaded; the download shows progress bars of its own.
            **options: options of `Memory`, such as `scope`.

        Raises:
            NotFound: if there is no such dataset, or it holds no runs.
            StoreError: if the Hub cannot be reached, or it is not an export.
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
