"""Run parsers of untrusted files in a process with bounded time, memory, files and output.

The parent runs a module of the package with `run_in_sandbox`. The module calls `enter_sandbox` before
it imports anything heavy, and `forbid_new_files` before it touches the file; from then on it can open
no other file. A module whose libraries the parent has already imported may run in a fork, which has
them at once.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn, Protocol

# Without the folder that the user happens to be in, where `python -m` looks for modules first: an h5py.py
# that came with the file would run.
_START = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "import runpy; runpy.run_module(sys.argv[1], run_name='__main__')"
)

_POLL = 0.2  # seconds
_LONGEST = 500  # bytes of a line


@dataclass(frozen=True)
class SandboxLimits:
    """What the process may use.

    Attributes:
        seconds: wall-clock time in seconds.
        memory: bytes of address space, of which libraries take a part; in a fork, on top of the parent's.
        output: maximum number of bytes of its result.
    """

    seconds: int
    memory: int
    output: int


@dataclass(frozen=True)
class SandboxResult:
    """A process that ended.

    Attributes:
        exit_code: exit code, negative for a signal; None if its time was up.
        output: its standard output, positioned at the start.
        log: the end of its standard error.
    """

    exit_code: int | None
    output: IO[bytes]
    log: str


@contextmanager
def run_in_sandbox(
    module: str,
    file: IO[bytes],
    limits: SandboxLimits,
    environment: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
    fork: bool = False,
) -> Iterator[SandboxResult]:
    """Run a module of the package on an open file, which it finds on its standard input.

    Args:
        module: run as the main module; its first act is `enter_sandbox`.
        file: a real file, not a buffer; the process reads it from its start and cannot name it.
        environment: variables to set in a new process; a fork has its parent's.
        words: more arguments, which `enter_sandbox` returns in the process.
        on_line: called with each line of its standard error while it runs (not on Windows).
        fork: run the module's ``main`` in a fork of this process, on Linux. It must use the descriptors 0
            to 2, not ``sys.stdin``, start no threads, and compute nothing that libraries share among threads.
    """
    fork = fork and sys.platform == "linux"  # elsewhere, system libraries do not survive it
    memory = limits.memory + (_address_space() if fork else 0)
    arguments = [module, *(str(n) for n in (limits.seconds, memory, limits.output)), *words]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        process: _Process
        if fork:
            process = _Fork(arguments, (file, output, log))
        else:
            process = subprocess.Popen(
                [sys.executable, "-c", _START, *arguments],
                stdin=file,
                stdout=output,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        try:
            code: int | None = _waited(process, limits.seconds, log, on_line)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
        log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
        output.seek(0)
        yield SandboxResult(code, output, log.read().decode(errors="replace"))


class _Process(Protocol):
    """The parts of `subprocess.Popen` that are needed."""

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class _Fork:
    """A fork of this process in which a module's ``main`` runs."""

    def __init__(self, arguments: Sequence[str], files: Sequence[IO[bytes]]) -> None:
        self._code: int | None = None
        with warnings.catch_warnings():
            # Python 3.12 warns that other threads may hold locks. The fork takes none but those that Python
            # and the C library renew in it; should a library have another, the time limit ends the wait.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._number = os.fork()
        if not self._number:
            _run(arguments, files)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises subprocess.TimeoutExpired if it still runs."""
        end, pause = time.monotonic() + (timeout or 0), 0.0005
        while self._code is None:
            try:
                number, status = os.waitpid(self._number, os.WNOHANG if timeout is not None else 0)
            except ChildProcessError:  # a program that ignores SIGCHLD is not told
                number, status = self._number, 0
            if number:
                self._code = os.waitstatus_to_exitcode(status)
                break
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired("fork", timeout or 0)
            time.sleep(pause)
            pause = min(2 * pause, 0.05)
        return self._code

    def kill(self) -> None:
        """End it."""
        if self._code is None:
            os.kill(self._number, signal.SIGKILL)


def _run(arguments: Sequence[str], files: Sequence[IO[bytes]]) -> NoReturn:
    """Run in the fork, which keeps no file of the parent open and destroys none of its objects."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        held = [os.dup(file.fileno()) for file in files]  # whatever numbers they have
        for target, own in enumerate(held):
            os.dup2(own, target)
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= len(held):
                with suppress(OSError):  # the listing itself is closed already
                    os.close(int(name))
        gc.disable()  # the parent cleans up its own garbage
        sys.argv = ["", *arguments]
        import_module(arguments[0]).main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _address_space() -> int:
    """Bytes of this process's address space."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _waited(
    process: _Process,
    seconds: int,
    log: IO[bytes],
    on_line: Callable[[str], None] | None,
) -> int:
    """The exit code, after its lines were passed on. Raises subprocess.TimeoutExpired if its time is up."""
    if on_line is None or sys.platform == "win32":
        return process.wait(seconds)
    end, at, part = time.monotonic() + seconds, 0, b""
    while True:
        try:
            code: int | None = process.wait(min(_POLL, max(0.0, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            code = None
        # The process writes where the file's one offset is, which `pread` leaves alone.
        while more := os.pread(log.fileno(), 1 << 16, at):
            at += len(more)
            *lines, part = (part + more).split(b"\n")
            part = part[-_LONGEST:]
            for line in lines:
                on_line(line[:_LONGEST].decode(errors="replace"))
        if code is not None:
            return code
        if time.monotonic() >= end:
            raise subprocess.TimeoutExpired("sandboxed", seconds)


def enter_sandbox() -> list[str]:
    """Apply the limits in the arguments (none on Windows, not memory's on macOS); return the others."""
    seconds, memory, output = (int(word) for word in sys.argv[2:5])
    bounds = {"RLIMIT_CPU": 4 * seconds, "RLIMIT_FSIZE": output}
    if sys.platform != "darwin":
        bounds["RLIMIT_AS"] = memory
    _limit(bounds)
    return sys.argv[5:]


def forbid_new_files() -> None:
    """From now on, open no file, whether through a link in the file or as a plugin. Open files stay open."""
    _limit({"RLIMIT_NOFILE": 0})


def _limit(wanted: Mapping[str, int]) -> None:
    if sys.platform != "win32":
        import resource

        for name, limit in wanted.items():
            kind = getattr(resource, name)
            _, hard = resource.getrlimit(kind)
            least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(kind, (least, least))
