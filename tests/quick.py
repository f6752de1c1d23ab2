"""Makes agents and pages quickly: their templates are parsed and compiled once for all tests.

smolagents parses and compiles its prompts anew for every agent, the inspector its pages for every memory. Without this,
nine tenths of the time that a test spends on them goes to YAML and Jinja. Nothing else changes: what is cached depends
on the text of the template and the options of Jinja alone, and every agent gets its own copy.
"""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace
from typing import Any

import jinja2
import smolagents.agents
import yaml

_parsed = functools.lru_cache(yaml.safe_load)
_compile = jinja2.Environment.compile
_compiled: dict[Any, Any] = {}


def _parse(text: str) -> Any:
    return copy.deepcopy(_parsed(text))


def _compile_once(env: jinja2.Environment, source: Any, name: str | None = None, *given: Any, **more: Any) -> Any:
    if name is None:  # not the template of a page
        return _compile(env, source, name, *given, **more)
    key = (source, name, env.autoescape, env.trim_blocks, env.lstrip_blocks, *env.extensions)
    if key not in _compiled:
        _compiled[key] = _compile(env, source, name, *given, **more)
    return _compiled[key]


smolagents.agents.yaml = SimpleNamespace(**{**vars(yaml), "safe_load": _parse})
smolagents.agents.Template = functools.lru_cache(jinja2.Template)
jinja2.Environment.compile = _compile_once  # type: ignore[method-assign]
