"""Runs recorded code again in a thread that may compute, read files and import modules, and do nothing else.

Two things watch that thread:

    the audit hook          Python reports file access, sockets, processes and the like as events before they happen;
                            every event that is not known to be harmless is refused
    the trace function      sees every call of a Python function. Code of the application itself is refused: it can hand
                            work to another thread or change an object of the process, which no event tells. So are
                            compiled libraries (pyarrow, HDF5, database drivers): they write files and open sockets
                            without an event. Python's own modules and libraries in Python alone are watched by the hook

Tracing makes code three to four times slower, so it is left out where the code can reach neither: where it imports
nothing but Python's own modules and was given nothing but plain data.

What is refused does not happen. The reason stays in the guard, so that code cannot hide a refusal by catching it.
"""

from __future__ import annotations

import gc
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn, TypeVar

import smolagents

import smolmem
from smolmem.agents import compat

T = TypeVar("T")

_UNREPORTED = frozenset(
    {
        *("ctypes", "_ctypes", "dbm", "_dbm", "_gdbm", "tkinter", "_tkinter", "_thread", "posix", "nt", "curses"),
        *("logging", "atexit", "signal", "_signal", "faulthandler", "readline", "resource"),
    }
)
"""Modules of the standard library that open files, write to open ones, or change the process without an event."""
_REACHING = frozenset(
    {
        *("sys", "builtins", "importlib", "imp", "pkgutil", "runpy", "inspect", "gc", "traceback", "unittest"),
        *("doctest", "pickle", "_pickle", "copyreg", "copy", "shelve", "marshal", "code", "codeop", "pydoc"),
        *("trace", "pdb", "bdb", "multiprocessing", "concurrent", "threading", "asyncio", "weakref", "types"),
        *("site", "zipimport", "ast"),
    }
)
"""Modules of the standard library that lead to other modules, or to objects of the process."""

_COMPUTING = frozenset(
    {
        *("numpy", "pandas", "PIL", "scipy", "sklearn", "pydantic_core", "regex", "yaml"),
        *("pyarrow.pandas_compat", "pyarrow.types", "pyarrow.compute"),  # pandas calls them where pyarrow is installed
    }
)
"""Compiled libraries, or modules of them, that open files and sockets through Python alone: the hook sees it."""

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

SILENT = frozenset(
    {
        *("mkfifo", "mknod", "pwrite", "pwritev", "writev", "sendfile", "splice", "copy_file_range", "posix_fallocate"),
        *("dup2", "closerange", "_exit", "abort", "setuid", "setgid", "setsid", "setpgid", "nice", "umask", "fdopen"),
        *("os.write", "os.close", "posix.write", "posix.close"),
    }
)
"""Functions of `os` that have an effect outside without an event."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_CHECK = "smolmem.replay_guard"


class Refused(BaseException):
    """Replayed code would reach outside; no handler for `Exception` may catch this."""


class Guard:
    """Watches one piece of code that is run again.

    `reason` says what was refused first; None if nothing was.
    """

    def __init__(
        self,
        seconds: float,
        stop: Callable[[], None],
        *,
        traced: bool = True,
        methods: Collection[CodeType] = frozenset(),
    ) -> None:
        """Watches nothing yet.

        Args:
            seconds: how long the code may take.
            stop: makes the interpreter evaluate nothing more, not even a `finally`.
            traced: whether to look at every call; not needed for code that can reach Python's own modules alone.
            methods: code of the application that may be called: that of the data classes which results are made of.
        """
        self.reason: str | None = None
        self._deadline = time.monotonic() + seconds
        self._stop = stop
        self._traced = traced
        self._methods = methods
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
            thread.join(max(0.0, self._deadline - time.monotonic()))
            if thread.is_alive():
                self._end("the code takes too long")
                thread.join(_PATIENCE)  # what still computes then is left behind: it can do nothing any more
        except BaseException:
            self._end("the replay was interrupted")
            raise
        finally:
            if collecting:
                gc.enable()
        if self.reason is None and errors:
            raise errors[0]
        return results[0] if self.reason is None else None

    def refuse(self, reason: str) -> NoReturn:
        """Notes that the code would reach outside, and ends the code."""
        self._end(reason)
        raise Refused(reason)

    def _end(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
        self._stop()

    def _watched(self, act: Callable[[], T]) -> T:
        _install()
        _watching[threading.get_ident()] = self
        if self._traced:
            sys.settrace(self._called)
        self._is_watching = True
        try:
            sys.audit(_CHECK)
            if not self._checked:
                self.refuse("this Python does not report what code does")
            return act()
        finally:
            self._is_watching = False
            if self._traced:
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
        elif self.reason is not None or not _is_importing(sys._getframe()):
            about = f" {args[0]}" if args and isinstance(args[0], (str, os.PathLike)) else ""
            self.refuse(f"the code would {_ACTS.get(event, event)}{about}")

    def _called(self, frame: FrameType, event: str, arg: Any) -> None:
        """Refuses a call of code whose effects the audit hook might not see."""
        if (frame.f_code.co_filename in _watched_files and self.reason is None) or not self._is_watching:
            return
        if self.reason is not None:
            self.refuse(self.reason)
        if not (frame.f_code in self._methods or _is_watched(frame) or _is_importing(frame)):
            self.refuse(f"the code calls {frame.f_globals.get('__name__')}.{frame.f_code.co_name}")


_START_THREAD = threading.Thread.start.__code__
_PATIENCE = 1.0
_ACTS = {"open": "write to", "subprocess.Popen": "start", "socket.connect": "connect to", "sqlite3.connect": "open"}


# --- whose code it is ------------------------------------------------------------------------------------------------

_LIBRARIES = tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib")})
_OURS = tuple(f"{Path(package.__file__ or '').parent}{os.sep}" for package in (smolagents, smolmem))
_watched_files: set[str] = set()
"""Files whose functions may be called."""


def _is_watched(frame: FrameType) -> bool:
    """Whether the audit hook sees all that a function does."""
    file, module = frame.f_code.co_filename, frame.f_globals.get("__name__")
    if frame.f_code is _START_THREAD:  # what another thread does is not watched
        return False
    if file.startswith("<") or file == threading.__file__:  # made at run time: a library's, if no module holds it
        return not isinstance(module, str) or module not in sys.modules or is_seen(module)
    if file.startswith(_OURS) or (isinstance(module, str) and is_seen(module)):
        _watched_files.add(file)
        return True
    return False


@cache
def is_seen(module: str) -> bool:
    """Whether the audit hook sees all that a module does: Python's own, or of a library without compiled code."""
    package = module.partition(".")[0]
    if package in sys.stdlib_module_names or package in ("smolagents", "smolmem"):
        return package not in _UNREPORTED
    if package in _COMPUTING or module in _COMPUTING:
        return True
    file = getattr(sys.modules.get(package), "__file__", None) or _found(package)
    return file is not None and file.startswith(_LIBRARIES) and not _is_compiled(Path(file))


def is_confined(module: str) -> bool:
    """Whether code that imports a module can reach nothing but Python's own modules through it."""
    package = module.partition(".")[0]
    return package in sys.stdlib_module_names and package not in _UNREPORTED | _REACHING


def _found(package: str) -> str | None:
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None else None


def _is_compiled(file: Path) -> bool:
    """Whether a library is compiled, or has a part that is."""
    if file.name != "__init__.py":
        return file.name.endswith(tuple(EXTENSION_SUFFIXES))
    return any(path.name.endswith(tuple(EXTENSION_SUFFIXES)) for path in file.parent.rglob("*"))


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
