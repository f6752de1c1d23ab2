"""Which packages that smolmem works with are installed, for `smolmem doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Literal

PACKAGES = {
    "mcp": "mcp",
    "opentelemetry-sdk": "otel",
    "langchain-core": "langchain",
    "langgraph": "langchain",
    "llama-index-core": "llama-index",
    "chromadb": "chroma",
    "faiss-cpu": "faiss",
    "psycopg": "postgres",
    "starlette": "ui",
    "onnxruntime": "semantic",
    "gradio": "",
    "huggingface_hub": "",
}
"""The package of each integration, and the extra that installs it."""


def version(package: str) -> str | None:
    """The version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def findings() -> Iterator[tuple[Literal["ok", "hint"], str, str]]:
    """The findings for `doctor`: the level, a sentence, and the command that repairs it."""
    found = {package: version(package) for package in PACKAGES}
    here = ", ".join(f"{package} {number}" for package, number in found.items() if number is not None)
    extras = sorted({PACKAGES[package] for package, number in found.items() if number is None} - {""})
    yield "ok", f"Integrations: {here or 'none'}.", f"pip install 'smolmem[{','.join(extras)}]' for more" * bool(extras)
    release = (found["mcp"] or "").partition(".")[0]
    if version("mcpadapt") is not None and release.isdigit() and int(release) >= 2:
        text = f"smolagents' MCPClient cannot import mcp {found['mcp']}; `smolmem mcp` can."
        yield "hint", text, "pip install 'mcp<2'"
