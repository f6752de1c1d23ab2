"""A model on a server that speaks OpenAI's protocol, such as Ollama; and what to tell when there is none."""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import urllib.error
import urllib.request
from typing import Any

from smolagents import Model, OpenAIServerModel
from terminal import Trouble

MODEL = "llama3.2"
PATIENCE = 5.0


def model_options(reader: argparse.ArgumentParser) -> None:
    """The flags that every example has: which model, and how much of smolagents' log."""
    reader.add_argument("--llm_url", help="an OpenAI-compatible server, for instance http://localhost:11434/v1")
    reader.add_argument("--model", default=MODEL, help="the model's name there (default: %(default)s)")
    reader.add_argument("--api_key", help="if the server wants one (default: $OPENAI_API_KEY)")
    reader.add_argument("--verbose", action="store_true", help="show smolagents' own log too")


def server_model(url: str, name: str, api_key: str | None = None) -> Model:
    """A model on a server.

    Raises:
        Trouble: the server does not answer, does not have the model, or `openai` is not installed.
    """
    key = api_key or os.environ.get("OPENAI_API_KEY") or "none"
    known = served(url, key)
    if known and not {name, f"{name}:latest"} & set(known):
        raise Trouble(
            f"The server at {url} has no model {name!r}; it has {', '.join(known[:8])}. Choose one with --model, or "
            f"fetch it: docker exec ollama ollama pull {name}"
        )
    if importlib.util.find_spec("openai") is None:
        raise Trouble("The package 'openai' is missing: pip install -r requirements.txt, then try again.")
    return OpenAIServerModel(name, api_base=url, api_key=key, client_kwargs={"max_retries": 1})


def served(url: str, key: str) -> list[str]:
    """The models that a server offers: the quickest way to find out whether it is there."""
    if not url.startswith(("http://", "https://")):
        raise Trouble(f"{url!r} is no address of a server: it looks like http://localhost:11434/v1")
    request = urllib.request.Request(f"{url.rstrip('/')}/models", headers={"Authorization": f"Bearer {key}"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            listed = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        raise Trouble(_refused(url, error.code)) from None
    except (OSError, http.client.HTTPException) as error:
        raise Trouble(
            f"No model server answers at {url} ({getattr(error, 'reason', error)}). Start it, for instance with "
            "docker exec ollama ollama run llama3.2, or leave --llm_url out: then a script plays the model's part."
        ) from None
    except ValueError:
        listed = None
    return _ids(listed, url)


def _refused(url: str, code: int) -> str:
    if code in (401, 403):
        return f"The server at {url} wants an API key: give it with --api_key, or in OPENAI_API_KEY."
    return f"{url} answers {code} when asked for its models: such an address usually ends in /v1."


def _ids(listed: Any, url: str) -> list[str]:
    try:
        return [str(model["id"]) for model in listed["data"] or ()]
    except (KeyError, TypeError):
        raise Trouble(f"{url} answers, but not as an OpenAI-compatible server: check the address.") from None
