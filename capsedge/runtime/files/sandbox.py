"""Run parsers of untrusted files in a process with bounded time, memory, files and output.

The parent runs a module of the package with `run_in_sandbox`. The module calls `enter_sandbox` before
it imports anything heavy, and `forbid_new_files` before it touches the file; from then on it can open
no other file. A module whose libraries the parent has already imported may run in a fork, which has
them at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Protocol

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
    memory = limits.memory
    if fork and sys.platform == "linux":  # elsewhere, system libraries do not survive it
        from capsedge.runtime.files.fork import address_space

        memory += address_space()
    arguments = [module, *(str(n) for n in (limits.seconds, memory, limits.output)), *words]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        process: _Process
        if fork and sys.platform == "linux":
            from capsedge.runtime.files.fork import Fork

            process = Fork(arguments, (file, output, log))
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


def _waited(
    process: _Process,
    seconds: int,
    log: IO[bytes],
    on_line: Callable[[str], None] | None,
) -> int:
    """The exit code, after its lines were passed on. Raises subprocess.TimeoutExpired if its time is up."""
    if sys.platform != "win32" and on_line is not None:
        return _followed(process, seconds, log, on_line)
    return process.wait(seconds)


if sys.platform != "win32":

    def _followed(
        process: _Process, seconds: int, log: IO[bytes], on_line: Callable[[str], None]
    ) -> int:
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
    """Apply the limits in the arguments (on Windows memory's alone, on macOS all others); return the rest."""
    seconds, memory, output = (int(word) for word in sys.argv[2:5])
    if sys.platform == "win32":
        from capsedge.runtime.files.windows_job import limit_memory

        limit_memory(memory)
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
