"""Telemetry of the libraries that smolmem uses is turned off before they are imported.

ONNX Runtime 1.29 and later otherwise resolve a host, write a device id into the user's cache and send which models are
loaded. A switch that the user has set is left as it is.
"""

from __future__ import annotations

import os
from typing import Any

SWITCHES = ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY")


def disable() -> None:
    """Sets the switches of libraries that are not imported yet."""
    for switch in SWITCHES:
        os.environ.setdefault(switch, "1")


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
