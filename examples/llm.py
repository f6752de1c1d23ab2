"""A model on an OpenAI-compatible server such as Ollama, with clear errors when the server cannot be used."""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import urllib.error
import urllib.request
from typing import Any

from smolagents import LogLevel, Model, OpenAIServerModel
from terminal import ExampleError

MODEL = "llama3.2"
PATIENCE = 5.0


def model_options(parser: argparse.ArgumentParser, verbosity_level: int = LogLevel.OFF) -> None:
    """The options of every example: the model, and the log level of smolagents."""
    parser.add_argument("--llm_url", help="an OpenAI-compatible server, for instance http://localhost:11434/v1")
    parser.add_argument("--model", default=MODEL, help="the name of the model on the server (default: %(default)s)")
    parser.add_argument("--api_key", help="the API key of the server, if it needs one (default: $OPENAI_API_KEY)")
    level = "how much smolagents logs: -1 nothing, 0 errors, 1 steps, 2 everything (default: %(default)s)"
    parser.add_argument("--verbosity_level", type=int, choices=range(-1, 3), default=int(verbosity_level), help=level)


def server_model(url: str, name: str, api_key: str | None = None) -> Model:
    """A model on a server.

    Raises:
        ExampleError: if the server does not answer or does not have the model, or if `openai` is not installed.
    """
    key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
    known = served(url, key)
    if known and not {name, f"{name}:latest"} & set(known):
        raise ExampleError(
            f"The server at {url} has no model {name!r}; it has {', '.join(known[:8])}. Choose one with --model, or "
            f"download it: docker exec ollama ollama pull {name}"
        )
    if importlib.util.find_spec("openai") is None:
        raise ExampleError("The package 'openai' is missing: pip install -r requirements.txt, then try again.")
    return OpenAIServerModel(name, api_base=url, api_key=key, client_kwargs={"max_retries": 1})


def served(url: str, key: str) -> list[str]:
    """The models that a server offers; this also checks that the server answers."""
    if not url.startswith(("http://", "https://")):
        raise ExampleError(f"{url!r} is not the address of a server: use one such as http://localhost:11434/v1")
    request = urllib.request.Request(f"{url.rstrip('/')}/models", headers={"Authorization": f"Bearer {key}"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            listed = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        raise ExampleError(_refused(url, error.code)) from None
    except (OSError, http.client.HTTPException) as error:
        raise ExampleError(
            f"No model server answers at {url} ({getattr(error, 'reason', error)}). Start it, for instance with "
            "docker exec ollama ollama run llama3.2, or omit --llm_url: then a script replaces the model."
        ) from None
    except ValueError:
        listed = None
    return _ids(listed, url)


def _refused(url: str, code: int) -> str:
    if code in (401, 403):
        return f"The server at {url} needs an API key: set --api_key or OPENAI_API_KEY."
    return f"{url} answers {code} to a request for its models: the address usually ends in /v1."


def _ids(listed: Any, url: str) -> list[str]:
    try:
        return [str(model["id"]) for model in listed["data"] or ()]
    except (KeyError, TypeError):
        raise ExampleError(f"{url} answers, but not as an OpenAI-compatible server: check the address.") from None
