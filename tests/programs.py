"""Starts Python programs quickly: forked from a process that has smolagents and smolmem loaded already.

Loading both takes longer than what most tests do with a program. `start` and `run` take a command as `subprocess.Popen`
and `subprocess.run` do, without the interpreter: `[script, …]`, `["-c", code, …]` or `["-m", module, …]`. The program
has its own arguments, variables, folder and standard streams, ends as any program does, and can be killed. It can
import the modules of this folder.

A test of what a program loads, of the installed command, or of the very end of a process starts a real process. `make
torture` starts real processes everywhere.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from typing import IO, Any

PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
HERE = os.path.dirname(os.path.abspath(__file__))
FORKS = sys.platform == "linux" and not os.environ.get("SMOLMEM_TORTURE")
NUMBER = struct.Struct("i")
"""How the number of a process and the status of its end are told."""
REQUEST = 150_000
"""The most bytes that a request has: the arguments and variables of a program."""


def start(
    command: Sequence[object],
    *,
    cwd: object = None,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
    stdout: int | None = PIPE,
    stderr: int | None = PIPE,
    loaded: Sequence[str] = (),
) -> Program | subprocess.Popen[str]:
    """Starts a program, whose streams are text; modules of `loaded` are loaded before, and once for all programs."""
    words = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in command]
    variables = dict(os.environ if env is None else env)
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path not in ("", HERE)]
    variables["PYTHONPATH"] = os.pathsep.join([*paths, HERE])
    folder = os.getcwd() if cwd is None else str(cwd)
    if FORKS:
        request = {"words": words, "folder": folder, "variables": variables, "loaded": loaded}
        return Program(request, stdin, stdout, stderr)
    line = [sys.executable, *words]
    return subprocess.Popen(line, cwd=folder, env=variables, stdin=stdin, stdout=stdout, stderr=stderr, text=True)


def run(
    command: Sequence[object],
    *,
    cwd: object = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    stderr: int | None = PIPE,
    timeout: float = 120,
    check: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, and returns what it wrote."""
    with start(command, cwd=cwd, env=env, stdin=DEVNULL if input is None else PIPE, stderr=stderr) as program:
        try:
            out, err = program.communicate(input, timeout=timeout)
        except BaseException:
            program.kill()
            raise
    done = subprocess.CompletedProcess(list(command), program.returncode, out, err)
    if check:
        assert done.returncode == 0, done.stderr
    return done


class Program:
    """A program that was forked; what tests use of `subprocess.Popen`."""

    def __init__(self, request: Mapping[str, Any], stdin: int | None, stdout: int | None, stderr: int | None) -> None:
        self.args: list[str] = request["words"]
        self.returncode: int | None = None
        (child_in, ours_in), (child_out, ours_out) = _stream(stdin, 0), _stream(stdout, 1)
        child_err, ours_err = (os.dup(child_out), None) if stderr == STDOUT else _stream(stderr, 2)
        self._told, telling = os.pipe()
        self._waiting = threading.Lock()
        given = [child_in, child_out, child_err, telling]
        try:
            _parent_of(request["variables"]).fork(request, given)
        finally:
            for fd in given:
                os.close(fd)
        self.stdin: IO[str] | None = None if ours_in is None else os.fdopen(ours_in, "w", encoding="utf-8")
        self.stdout: IO[str] | None = None if ours_out is None else os.fdopen(ours_out, encoding="utf-8")
        self.stderr: IO[str] | None = None if ours_err is None else os.fdopen(ours_err, encoding="utf-8")
        self.pid = NUMBER.unpack(os.read(self._told, NUMBER.size))[0]

    def poll(self) -> int | None:
        with self._waiting:
            if self.returncode is None and select.select([self._told], [], [], 0)[0]:
                self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            select.select([self._told], [], [], left)
        assert self.returncode is not None
        return self.returncode

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Writes the input, reads all output, and waits for the end."""
        end = None if timeout is None else time.monotonic() + timeout
        read: dict[str, str] = {}

        def read_all(name: str, stream: IO[str]) -> None:
            read[name] = stream.read()

        readers = [
            threading.Thread(target=read_all, args=(name, stream), daemon=True)
            for name, stream in (("out", self.stdout), ("err", self.stderr))
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            try:
                self.stdin.write(input or "")
                self.stdin.close()
            except BrokenPipeError:
                pass
        for reader in readers:
            reader.join(None if end is None else max(0.0, end - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait(None if end is None else max(0.001, end - time.monotonic()))
        return read.get("out", ""), read.get("err", "")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        self.wait()

    def _end(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(NUMBER.unpack(os.read(self._told, NUMBER.size))[0])
        os.close(self._told)

    def __del__(self) -> None:
        if getattr(self, "returncode", 0) is None:
            os.close(self._told)


def _stream(wanted: int | None, number: int) -> tuple[int, int | None]:
    """The file descriptor that the program gets, and ours."""
    if wanted == PIPE:
        reading, writing = os.pipe()
        return (reading, writing) if number == 0 else (writing, reading)
    if wanted == DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    return os.dup(number if wanted is None else wanted), None


# --- the process that forks -----------------------------------------------------------------------------------------


class Parent:
    """A process that waits, with everything loaded, and forks a child for each program."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._asking = threading.Lock()
        line = [sys.executable, __file__, str(theirs.fileno())]
        quiet = {"stdin": DEVNULL, "stdout": DEVNULL}
        self._process = subprocess.Popen(line, env=dict(variables), pass_fds=[theirs.fileno()], **quiet)
        theirs.close()
        atexit.register(self._close)

    def fork(self, request: Mapping[str, Any], streams: list[int]) -> None:
        content = json.dumps(request).encode("ascii")
        assert len(content) < REQUEST
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        with self._asking:
            self._ours.sendmsg([content], rights)

    def _close(self) -> None:
        self._ours.close()
        self._process.wait()


_parents: dict[tuple[tuple[str, str], ...], Parent] = {}
_making = threading.Lock()


def _parent_of(variables: Mapping[str, str]) -> Parent:
    """The parent for a program with these variables: there is one for each setting of Python itself."""
    own = tuple(sorted((name, value) for name, value in variables.items() if name.startswith("PYTHON")))
    with _making:
        if own not in _parents:
            _parents[own] = Parent(variables)
        return _parents[own]


def _serve(control: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks a child for each request, and reports its end; returns in the child, with what it is to run."""
    waking, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, lambda *_: None)  # which ends the tests; that ends this process, too
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([control, waking], [], [])
        if waking in ready:
            os.read(waking, 1000)
            _report_ended(running)
        if control not in ready:
            continue
        content, rights, _, _ = control.recvmsg(REQUEST, socket.CMSG_SPACE(4 * array.array("i").itemsize))
        if not content:
            os._exit(0)
        streams = array.array("i")
        for _, _, data in rights:
            streams.frombytes(data)
        *standard, telling = streams
        request = json.loads(content)
        _load(*request["loaded"])
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for fd in (waking, wake, telling, *running.values()):
                os.close(fd)
            control.close()
            return request, standard
        for fd in standard:
            os.close(fd)
        running[child] = telling
        os.write(telling, NUMBER.pack(child))


def _report_ended(running: dict[int, int]) -> None:
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        telling = running.pop(child)
        try:
            os.write(telling, NUMBER.pack(status))
        except BrokenPipeError:
            pass
        os.close(telling)


def _execute(request: dict[str, Any], standard: list[int]) -> None:
    """Runs a program as the interpreter does."""
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
        os.close(fd)
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding="utf-8", closefd=False)  # type: ignore[misc]
    out, err = os.fdopen(1, "wb", closefd=False), os.fdopen(2, "wb", closefd=False)
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(out, encoding="utf-8", write_through=at_once)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(  # type: ignore[misc]
        err, encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
    os.environ.clear()
    os.environ.update(request["variables"])
    os.chdir(request["folder"])
    time.tzset()
    tempfile.tempdir = None
    what, *words = request["words"]
    if what == "-m":
        sys.argv, sys.path[0] = words, os.getcwd()
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if what == "-c":
        source, name = words[0], "<string>"
        sys.argv, sys.path[0] = ["-c", *words[1:]], ""
    else:
        with open(what, "rb") as file:
            source, name = file.read(), what  # type: ignore[assignment]
        sys.argv, sys.path[0] = [what, *words], os.path.dirname(os.path.abspath(what))
        main.__file__ = what
    exec(compile(source, name, "exec"), main.__dict__)


def _run_and_exit(request: dict[str, Any], standard: list[int]) -> None:
    """Runs a program and ends as the interpreter does, without taking down all that is loaded, which takes longer."""
    status = 0
    try:
        _execute(request, standard)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        status = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except OSError:
            status = 120
    if status < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


def _load(*modules: str) -> None:
    for name in modules:
        if name not in sys.modules:
            importlib.import_module(name)
            gc.collect()
            gc.freeze()  # the collector of a child leaves alone what is loaded, so that those pages are not copied


if __name__ == "__main__":
    _load("quick", "smolagents", "smolmem.memory")  # `quick` changes how smolagents makes agents
    _run_and_exit(*_serve(socket.socket(fileno=int(sys.argv[1]))))
