"""Named points where a test can make the program fail or die; otherwise they cost one comparison."""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None
"""Called with the point's name: `write.begun`, `write.done`, `write.committed`, and the same for `replace`."""


def point(name: str) -> None:
    """Marks a place in the order of a write."""
    if hook is not None:
        hook(name)
