"""Runs recorded code again in a thread that may compute, read files and import modules, and do nothing else.

Two things watch that thread:

    the audit hook          Python reports file access, sockets, processes and the like as events before they happen;
                            every event that is not known to be harmless is refused
    the trace function      sees every call of a Python function; code of modules that are not `SEEN` is refused,
                            because the methods of foreign objects can do anything, and compiled libraries (pyarrow,
                            HDF5, database drivers) write files and open sockets without an event

What is refused does not happen. The reason stays in the guard, so that code cannot hide a refusal by catching it.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn, TypeVar

from smolmem.agents import compat

T = TypeVar("T")

_UNREPORTED = frozenset({"ctypes", "_ctypes", "dbm", "_dbm", "_gdbm", "tkinter", "_tkinter", "_thread", "posix", "nt"})
"""Modules of the standard library whose compiled code opens files, or calls anything, without an event."""

SEEN = (sys.stdlib_module_names - _UNREPORTED) | {
    *("smolagents", "smolmem", "numpy", "pandas", "PIL", "scipy", "sklearn", "joblib", "threadpoolctl"),
    *("sympy", "mpmath", "dateutil", "pytz", "tzdata", "six", "pydantic", "pydantic_core", "typing_extensions"),
}
"""Modules that open files and sockets through Python alone, so that the audit hook sees all they do."""

_COMPUTING = frozenset({"pyarrow.pandas_compat", "pyarrow.types", "pyarrow.compute"})
"""Parts of other libraries that only compute: pandas calls them where pyarrow is installed."""

_HARMLESS = frozenset(
    {
        *("import", "compile", "exec", "builtins.id", "code.__new__", "function.__new__", "array.__new__"),
        *("object.__getattr__", "object.__setattr__", "object.__delattr__", "pickle.find_class"),
        *("sys._getframe", "sys._getframemodulename", "sys._current_frames", "sys._current_exceptions"),
        *("sys.excepthook", "sys.unraisablehook", "marshal.dumps", "marshal.load", "marshal.loads"),
        *("gc.get_objects", "gc.get_referents", "gc.get_referrers", "os.getxattr", "os.listxattr"),
        *("os.listdir", "os.scandir", "os.walk", "os.fwalk", "glob.glob", "glob.glob/2"),
        *("pathlib.Path.glob", "pathlib.Path.rglob"),
    }
)
"""Audit events that stay within the process or only read."""

SILENT = frozenset({"mkfifo", "mknod"})
"""Functions of `os` that create files without an event."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_CHECK = "smolmem.replay_guard"


class Refused(BaseException):
    """Replayed code would reach outside; no handler for `Exception` may catch this."""


class Guard:
    """Watches one piece of code that is run again.

    `reason` says what was refused first; None if nothing was.
    """

    def __init__(self, seconds: float, stop: Callable[[], None]) -> None:
        """Watches nothing yet.

        Args:
            seconds: how long the code may take.
            stop: makes the interpreter evaluate nothing more, not even a `finally`.
        """
        self.reason: str | None = None
        self._deadline = time.monotonic() + seconds
        self._stop = stop
        self._checked = False
        self._is_watching = False

    def run(self, act: Callable[[], T]) -> T | None:
        """The result of `act`; None if something was refused. Runs in a thread of its own, which gets no signals."""
        results: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(self._watched(act))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work, name="smolmem replay", daemon=True)
        collecting = gc.isenabled()
        gc.disable()  # lest finalizers of unrelated objects run in the watched thread
        try:
            thread.start()
            thread.join()
        except BaseException:
            self._deadline = 0.0
            raise
        finally:
            if collecting:
                gc.enable()
        if self.reason is None and errors:
            raise errors[0]
        return results[0] if self.reason is None else None

    def refuse(self, reason: str) -> NoReturn:
        """Notes that the code would reach outside, and ends the code."""
        if self.reason is None:
            self.reason = reason
        self._stop()
        raise Refused(reason)

    def _watched(self, act: Callable[[], T]) -> T:
        _install()
        _watching[threading.get_ident()] = self
        sys.settrace(self._called)
        self._is_watching = True
        try:
            sys.audit(_CHECK)
            if not self._checked:
                self.refuse("this Python does not report what code does")
            return act()
        finally:
            self._is_watching = False
            sys.settrace(None)
            del _watching[threading.get_ident()]

    # --- what the thread does ----------------------------------------------------------------------------------------

    def audited(self, event: str, args: tuple[Any, ...]) -> None:
        """Refuses an audit event that could have an effect outside."""
        if not self._is_watching or event in _HARMLESS or (event == "open" and not _opens_for_writing(*args)):
            return
        if event == _CHECK:
            self._checked = True
        elif event == "time.sleep":
            if time.monotonic() + float(args[0]) > self._deadline:
                self.refuse("the code takes too long")
        elif not _is_importing(sys._getframe()):
            about = f" {args[0]}" if args and isinstance(args[0], (str, os.PathLike)) else ""
            self.refuse(f"the code would {_ACTS.get(event, event)}{about}")

    def _called(self, frame: FrameType, event: str, arg: Any) -> None:
        """Refuses a call of code whose effects the audit hook might not see."""
        module = frame.f_globals.get("__name__")
        if not self._is_watching or (module in _trusted and time.monotonic() < self._deadline):
            return
        if time.monotonic() > self._deadline:
            self.refuse("the code takes too long")
        if (not _trust(module) or frame.f_code is _START_THREAD) and not _is_importing(frame):
            self.refuse(f"the code calls {module}.{frame.f_code.co_name}")


_START_THREAD = threading.Thread.start.__code__
_ACTS = {"open": "write to", "subprocess.Popen": "start", "socket.connect": "connect to", "sqlite3.connect": "open"}


def is_seen(module: str) -> bool:
    """Whether the audit hook sees all that a module does."""
    return module.partition(".")[0] in SEEN or module in _COMPUTING


_trusted: set[Any] = set()
"""Names of modules whose functions may be called."""


def _trust(module: Any) -> bool:
    """Whether functions of a module may be called; functions of no module are made by a library (`namedtuple`)."""
    if module == "threading":  # some may, see `_START_THREAD`
        return True
    if not isinstance(module, str) or is_seen(module) or module not in sys.modules:
        _trusted.add(module)
    return module in _trusted


def _opens_for_writing(path: Any, mode: Any, flags: Any) -> bool:
    by_mode = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    return by_mode or (isinstance(flags, int) and bool(flags & _WRITING))


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported: what a module does then, it does in every process."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib._bootstrap") or frame.f_code is compat.IMPORTING:
            return True
        frame = frame.f_back
    return False


# --- the audit hook --------------------------------------------------------------------------------------------------

_watching: dict[int, Guard] = {}
"""The guard of each thread that replays code."""
_installing = threading.Lock()
_installed = False


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _watching:
        guard = _watching.get(threading.get_ident())
        if guard is not None:
            guard.audited(event, args)


def _install() -> None:
    """Installs the audit hook when code is run again for the first time: a hook cannot be removed."""
    global _installed
    with _installing:
        if not _installed:
            sys.addaudithook(_audit)
            _installed = True
