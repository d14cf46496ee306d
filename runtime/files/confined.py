"""A process of its own for libraries that parse untrusted files: bounded in time, memory, files and output.

The parent runs a module of the package with `confined`; the module calls `confine` before it imports
anything heavy and `close_doors` before it touches the file, from which on it can open no other file.
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
from typing import IO

# Without the folder that the user happens to be in, where `python -m` looks for modules first: an h5py.py
# that came with the file would run.
_START = (
    "import sys; sys.path[:] = [p for p in sys.path if p]; "
    "import runpy; runpy.run_module(sys.argv[1], run_name='__main__')"
)

_POLL = 0.2  # seconds
_LONGEST = 500  # bytes of a line


@dataclass(frozen=True)
class Bounds:
    """What the process may use.

    Attributes:
        seconds: of wall-clock time.
        memory: bytes of address space, of which libraries take a part.
        output: bytes of its answer.
    """

    seconds: int
    memory: int
    output: int


@dataclass(frozen=True)
class Ended:
    """A process that ended.

    Attributes:
        code: exit code, negative for a signal; None if its time was up.
        answer: its standard output, positioned at the start.
        said: the end of its standard error.
    """

    code: int | None
    answer: IO[bytes]
    said: str


@contextmanager
def confined(
    module: str,
    file: IO[bytes],
    bounds: Bounds,
    environment: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
    told: Callable[[str], None] | None = None,
) -> Iterator[Ended]:
    """Run a module of the package on an open file, which it finds on its standard input.

    Args:
        module: run as the main module; its first act is `confine`.
        file: a real file, not a buffer; the process reads it from its start and cannot name it.
        environment: variables to set.
        words: more arguments, which `confine` returns in the process.
        told: called with each line of its standard error while it runs (not on Windows).
    """
    numbers = [str(n) for n in (bounds.seconds, bounds.memory, bounds.output)]
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as said:
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        process = subprocess.Popen(
            [sys.executable, "-c", _START, module, *numbers, *words],
            stdin=file,
            stdout=answer,
            stderr=said,
            env={**os.environ, **(environment or {})},
        )
        try:
            code: int | None = _waited(process, bounds.seconds, said, told)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
        said.seek(max(0, said.seek(0, os.SEEK_END) - 2000))
        answer.seek(0)
        yield Ended(code, answer, said.read().decode(errors="replace"))


def _waited(
    process: subprocess.Popen[bytes],
    seconds: int,
    said: IO[bytes],
    told: Callable[[str], None] | None,
) -> int:
    """The exit code, after its lines were passed on.

    Raises:
        subprocess.TimeoutExpired: its time is up.
    """
    if told is None or sys.platform == "win32":
        return process.wait(seconds)
    end, at, part = time.monotonic() + seconds, 0, b""
    while True:
        try:
            code: int | None = process.wait(min(_POLL, max(0.0, end - time.monotonic())))
        except subprocess.TimeoutExpired:
            code = None
        # The process writes where the file's one offset is, which `pread` leaves alone.
        while more := os.pread(said.fileno(), 1 << 16, at):
            at += len(more)
            *lines, part = (part + more).split(b"\n")
            part = part[-_LONGEST:]
            for line in lines:
                told(line[:_LONGEST].decode(errors="replace"))
        if code is not None:
            return code
        if time.monotonic() >= end:
            raise subprocess.TimeoutExpired(process.args, seconds)


def confine() -> list[str]:
    """Take on the bounds that the arguments name, as far as the system has them; returns the other words.

    Windows has none, and macOS does not limit memory.
    """
    seconds, memory, output = (int(word) for word in sys.argv[2:5])
    _limit({"RLIMIT_CPU": 4 * seconds, "RLIMIT_AS": memory, "RLIMIT_FSIZE": output})
    return sys.argv[5:]


def close_doors() -> None:
    """Open no file from now on: not by a link in the file, not as a plugin. What is open stays open."""
    _limit({"RLIMIT_NOFILE": 0})


def _limit(wanted: Mapping[str, int]) -> None:
    if sys.platform != "win32":
        import resource

        for name, limit in wanted.items():
            kind = getattr(resource, name)
            _, hard = resource.getrlimit(kind)
            least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            try:
                resource.setrlimit(kind, (least, least))
            except ValueError:
                if sys.platform != "darwin":  # which does not limit the address space
                    raise
