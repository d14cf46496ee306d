"""Run parsers of untrusted files in a process with bounded time, memory, files and output.

The parent runs a module of the package with `run_in_sandbox`. The module calls `enter_sandbox` before
it imports anything heavy, and `forbid_new_files` before it touches the file; from then on it can open
no other file. A module whose libraries the parent has already imported may run in a fork, which has
them at once. What is too large for a file, such as the frames of a video, `stream_from_sandbox` reads from
a pipe while the process computes it.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
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
_LOG_END = 2000  # bytes of its standard error that are kept
_PIPE = 1 << 20  # bytes that a pipe holds, where the system lets us choose


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
        from capsedge.runtime.files.sandbox import address_space

        memory += address_space()
    arguments = [module, *(str(n) for n in (limits.seconds, memory, limits.output)), *words]
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        process: _Process
        if fork and sys.platform == "linux":
            from capsedge.runtime.files.sandbox import Fork

            process = Fork(arguments, (file, output, log))
        else:
            process = _new_process(arguments, file, output, log, environment)
        try:
            code: int | None = _waited(process, limits.seconds, log, on_line)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        yield SandboxResult(code, output, _end_of(log))


def _new_process(
    arguments: Sequence[str],
    file: IO[bytes],
    output: IO[bytes] | int,
    log: IO[bytes],
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", _START, *arguments],
        bufsize=0,
        stdin=file,
        stdout=output,
        stderr=log,
        env={**os.environ, **(environment or {})},
    )


def _end_of(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_END))
    return log.read().decode(errors="replace")


class SandboxStream:
    """The standard output of a process that still runs.

    Args:
        process: the process, with a pipe as its standard output.
        log: its standard error.
        patience: seconds that the process may take to write what is read.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: IO[bytes], patience: float) -> None:
        assert process.stdout is not None
        self._process, self._output, self._log = process, process.stdout, log
        self._patience, self._deadline = patience, float("inf")
        self._late, self._closed = False, threading.Event()
        self._watch = threading.Thread(target=self._end_if_late, daemon=True)
        self._watch.start()

    @property
    def late(self) -> bool:
        """Whether it was ended because it wrote nothing for too long."""
        return self._late

    def fill(self, buffer: memoryview) -> bool:
        """Fill a buffer of bytes; waits for the process. False if its output ends before."""
        self._deadline = time.monotonic() + self._patience
        try:
            while len(buffer):
                count = self._output.readinto(buffer)  # type: ignore[attr-defined] # a raw pipe
                if not count:
                    return False
                buffer = buffer[count:]
            return True
        finally:
            self._deadline = float("inf")

    def ended(self) -> tuple[int, str]:
        """The exit code, and the end of its standard error, once its output has ended."""
        try:
            code = self._process.wait(self._patience)
        except subprocess.TimeoutExpired:  # it closed its output and runs on
            self._process.kill()
            code = self._process.wait()
        return code, _end_of(self._log)

    def close(self) -> None:
        """End the process if it still runs."""
        self._closed.set()
        self._process.kill()
        self._process.wait()
        self._output.close()
        self._watch.join()

    def _end_if_late(self) -> None:
        """Read in a thread: on Windows, nothing waits for a pipe with a time limit."""
        while not self._closed.wait(_POLL):
            if time.monotonic() > self._deadline:
                self._late = True
                self._process.kill()
                return


@contextmanager
def stream_from_sandbox(
    module: str,
    file: IO[bytes],
    limits: SandboxLimits,
    patience: float,
) -> Iterator[SandboxStream]:
    """Run a module as `run_in_sandbox` does, and read its standard output while it runs.

    The process waits until what it writes is read, so memory stays bounded; the end of the block ends it.

    Args:
        module, file: as for `run_in_sandbox`.
        limits: as for `run_in_sandbox`, but ``seconds`` limits only its processor time, to four times as
            many, and ``output`` only its standard error.
        patience: seconds that it may take to write what the caller waits for.
    """
    arguments = [module, *(str(n) for n in (limits.seconds, limits.memory, limits.output))]
    with tempfile.TemporaryFile() as log:
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        process = _new_process(arguments, file, subprocess.PIPE, log)
        _enlarge(process.stdout)
        stream = SandboxStream(process, log, patience)
        try:
            yield stream
        finally:
            stream.close()


def _enlarge(pipe: IO[bytes] | None) -> None:
    """Let a pipe hold more, so that the process writes a picture in fewer steps."""
    if sys.platform == "linux" and pipe is not None:
        import fcntl

        with suppress(OSError):  # beyond what this user may have
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE)


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
        from capsedge.runtime.files.sandbox import limit_memory

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


if sys.platform == "win32":
    import ctypes

    # JobObjectExtendedLimitInformation, JOB_OBJECT_LIMIT_PROCESS_MEMORY, JOB_OBJECT_LIMIT_ACTIVE_PROCESS
    _EXTENDED_LIMITS, _PROCESS_MEMORY, _ACTIVE_PROCESSES = 9, 0x100, 0x8

    class _Limits(ctypes.Structure):
        """``JOBOBJECT_EXTENDED_LIMIT_INFORMATION``."""

        _fields_ = (
            ("process_time", ctypes.c_int64),
            ("job_time", ctypes.c_int64),
            ("flags", ctypes.c_uint32),
            ("least_working_set", ctypes.c_size_t),
            ("most_working_set", ctypes.c_size_t),
            ("processes", ctypes.c_uint32),
            ("affinity", ctypes.c_size_t),
            ("priority", ctypes.c_uint32),
            ("scheduling", ctypes.c_uint32),
            ("io_counters", ctypes.c_uint64 * 6),
            ("process_memory", ctypes.c_size_t),
            ("job_memory", ctypes.c_size_t),
            ("peak_process_memory", ctypes.c_size_t),
            ("peak_job_memory", ctypes.c_size_t),
        )

    def limit_memory(size: int) -> None:
        """Let this process commit no more memory than this, and start no other.

        Raises:
            OSError: Windows refuses.
        """
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        kernel.CreateJobObjectW.restype = ctypes.c_void_p
        kernel.GetCurrentProcess.restype = ctypes.c_void_p
        kernel.SetInformationJobObject.argtypes = (
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_uint32,
        )
        kernel.AssignProcessToJobObject.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        limits = _Limits(
            flags=_PROCESS_MEMORY | _ACTIVE_PROCESSES, processes=1, process_memory=size
        )
        job = kernel.CreateJobObjectW(None, None)  # stays open as long as the process
        if (
            not job
            or not kernel.SetInformationJobObject(
                job, _EXTENDED_LIMITS, ctypes.byref(limits), ctypes.sizeof(limits)
            )
            or not kernel.AssignProcessToJobObject(job, kernel.GetCurrentProcess())
        ):
            raise ctypes.WinError(ctypes.get_last_error())


if sys.platform == "linux":

    class Fork:
        """A fork of this process in which a module's ``main`` runs."""

        def __init__(self, arguments: Sequence[str], files: Sequence[IO[bytes]]) -> None:
            self._code: int | None = None
            with warnings.catch_warnings():
                # Python 3.12 warns that other threads may hold locks. The fork takes none but those that
                # Python and the C library renew in it; for any other, the time limit ends the wait.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._number = os.fork()
            if not self._number:
                _run(arguments, files)

        def wait(self, timeout: float | None = None) -> int:
            """The exit code, negative for a signal.

            Raises:
                subprocess.TimeoutExpired: it still runs.
            """
            end, pause = time.monotonic() + (timeout or 0), 0.0005
            while self._code is None:
                try:
                    number, status = os.waitpid(
                        self._number, os.WNOHANG if timeout is not None else 0
                    )
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
        """Run in the fork: with none of the parent's open files, and without cleaning up its objects at
        the end.
        """
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

    def address_space() -> int:
        """Bytes of this process's address space."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
