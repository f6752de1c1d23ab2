"""Text that nothing obeys: a terminal's orders are shown, not carried out. Whatever is printed passes here."""

from __future__ import annotations

import re

ORDERS = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
"""DEL, C1, and what reorders or breaks lines in Unicode."""
_OBEYED = re.compile(f"[\x00-\x08\x0b-\x1f{ORDERS}]")
"""These, and the control characters of ASCII but for tab and line feed."""


def inert(text: str) -> str:
    """Text with a picture (`␛`) or a mark in the place of whatever a terminal would obey."""
    return _OBEYED.sub(lambda found: chr(0x2400 + ord(found[0])) if ord(found[0]) < 0x20 else "\ufffd", text)
