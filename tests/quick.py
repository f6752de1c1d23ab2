"""Makes agents quickly: smolagents parses and compiles its prompt templates anew for every agent, the tests once.

Without this, nine tenths of the time that a test spends on an agent goes to YAML and Jinja. Nothing else changes: the
cached values depend on the text of the template alone, and every agent gets its own copy.
"""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace
from typing import Any

import smolagents.agents
import yaml
from jinja2 import Template

_parsed = functools.lru_cache(yaml.safe_load)


def _parse(text: str) -> Any:
    return copy.deepcopy(_parsed(text))


smolagents.agents.yaml = SimpleNamespace(**{**vars(yaml), "safe_load": _parse})
smolagents.agents.Template = functools.lru_cache(Template)
