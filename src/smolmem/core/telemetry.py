"""Telemetry of the libraries that smolmem uses is turned off before they are imported.

ONNX Runtime 1.29 and later otherwise resolve a host, write a device id into the user's cache and send which models are
loaded. Chroma sends how often collections are used. A switch that the user has set is left as it is.
"""

from __future__ import annotations

import os
from typing import Any

SWITCHES = {"ORT_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "ANONYMIZED_TELEMETRY": "False"}


def disable() -> None:
    """Sets the switches of libraries that are not imported yet."""
    for switch, value in SWITCHES.items():
        os.environ.setdefault(switch, value)


def quiet_onnxruntime() -> Any:
    """ONNX Runtime, without telemetry.

    Raises:
        ImportError: it is not installed.
    """
    disable()
    import onnxruntime

    if os.environ["ORT_DISABLE_TELEMETRY"] == "1":
        onnxruntime.disable_telemetry_events()  # on Windows, the variable is not read
    return onnxruntime


def quiet_chromadb() -> Any:
    """Chroma, without telemetry.

    Raises:
        ImportError: it is not installed.
    """
    disable()
    import chromadb

    return chromadb
