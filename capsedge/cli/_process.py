"""Handle the standard streams and the signals of the process."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from capsedge.runtime.files.writing import FULL
from capsedge.spec import limits

# --- Streams that accept every print, and the exit of a command that cannot write ---

READER_GONE = 141  # 128 plus the number of SIGPIPE

# The standard output or a temporary file cannot be written; for a verb's paths, `check_writable` reports it.
_UNWRITABLE = FULL | {errno.EIO, errno.EAGAIN, errno.EBADF, errno.ENXIO}
_NO_ROOM = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.ENAMETOOLONG, errno.ENXIO, errno.ENODEV,
}  # fmt: skip


class _StandardError(io.FileIO):
    """Standard error: a message that cannot be written is dropped, and the work continues."""

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        return len(data) if written is None else written


def prepare() -> None:
    """Provide streams that accept every print, even where one is closed, full, or limited to ASCII."""
    # Otherwise the next file opened gets the number of a closed stream, and the output of libraries with it.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Lives as long as the process.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if sys.platform == "win32" and sys.stderr.isatty():
        return  # its console does not accept bytes
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        messages = _StandardError(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(messages),
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )


def reader_gone(error: OSError) -> bool:
    """Whether a write failed because the reader of a pipe has ended."""
    return isinstance(error, BrokenPipeError) or (
        sys.platform == "win32" and error.errno == errno.EINVAL and error.filename is None
    )


def silence() -> None:
    """Discard unprinted output; otherwise Python complains on exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def readable_error(error: OSError | ImportError) -> CapsedgeError | None:
    """Turn an error of standard output, of a path or of a package that does not load into a readable one;
    None for a bug."""
    if isinstance(error, ImportError):
        return _broken_package(error)
    why = f"{error.strerror or error}."
    if isinstance(error, FileNotFoundError) and error.filename is None and _current_folder_gone():
        return UsageError(
            "The current folder is gone.", "It was removed or replaced.", "Go to another: cd FOLDER"
        )
    if error.errno in _UNWRITABLE:
        return EnvironmentProblem(
            "Writing failed.",
            why,
            "Free some space, or send the output elsewhere (TMPDIR names the folder of temporary files).",
        )
    if error.errno in _NO_ROOM and error.filename is not None:
        return UsageError(f"{os.fsdecode(error.filename)} cannot be used.", why, "Check the path.")
    return None


def _current_folder_gone() -> bool:
    """Whether the current folder was removed; it can still be looked at, but has no path."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _broken_package(error: ImportError) -> CapsedgeError | None:
    """The error for an installed package whose compiled part does not load; None if it is something else."""
    parts = Path(error.path or "").parts
    places = [k for k, part in enumerate(parts[:-1]) if part in ("site-packages", "dist-packages")]
    if not places or not parts[-1].endswith((".so", ".pyd")):
        return None
    package = parts[places[-1] + 1].partition(".")[0]
    return EnvironmentProblem(
        f"The package {package} is installed, but cannot be loaded.",
        f"{str(error).rstrip('.')}.",
        f"Install it again, as with `pip install --force-reinstall {package}`; `capsedge doctor` shows "
        "what else is missing.",
    )


# --- Signals: the command cleans up and exits with 128 plus the signal's number ---

INTERRUPTED = 128 + signal.SIGINT  # exit code, as in shells
_SIGNALS = [signal.SIGINT, signal.SIGTERM]
if sys.platform != "win32":
    _SIGNALS.append(signal.SIGHUP)
_received = 0


class _SentAgain:
    """Held by an exception during an import: libraries may drop it there, and the signal is then sent again.

    Attributes:
        fate: whether the exception arrived or was dropped, as soon as that is known.
    """

    def __init__(self, number: int) -> None:
        self.fate: list[str] = []
        threading.Thread(target=_watch, args=(number, self.fate), daemon=True).start()

    def __del__(self) -> None:
        self.fate.append("dropped")  # no more: it may run amid C code


def _watch(number: int, fate: Sequence[str]) -> None:
    """Send a signal again once its exception is known to be dropped."""
    while not fate:
        time.sleep(0.05)
    if fate[0] == "dropped":
        _send(number)


def _send(number: int) -> None:
    """Send this process a signal; one to its main thread also ends what that waits for."""
    if sys.platform == "win32":
        signal.raise_signal(number)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


class _Ended(KeyboardInterrupt):
    """A signal asked this process to end."""

    resend: _SentAgain | None = None


class Terminated(_Ended):
    """Another process, or the closing of the terminal, asked this process to end."""


def note_arrival(error: BaseException) -> None:
    """Note that an exception of a signal was not lost."""
    if isinstance(error, _Ended) and error.resend is not None:
        error.resend.fate.append("arrived")


@contextmanager
def raising() -> Iterator[None]:
    """Make signals raise inside the block, so that temporary files are removed; later they end the process.

    Signals that are already ignored when the command starts stay ignored.
    """
    ours = [
        number
        for number in _SIGNALS
        if signal.getsignal(number)
        not in (signal.SIG_IGN, None)  # None: a handler not set by Python
    ]
    for number in ours:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, _end)


def exit_code() -> int:
    """The exit code for the signal received; 0 if there was none."""
    return 128 + _received if _received else 0


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """If the block is interrupted, print how to continue, and end the command.

    Args:
        kept: what is kept once it is finished, such as ``epochs``.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        from capsedge.cli._output import log

        note_arrival(error)
        log(f"interrupted: finished {kept} are kept; continue with the same command and --resume")
        raise SystemExit(exit_code() or INTERRUPTED) from None


def leave(code: int) -> NoReturn:
    """End the command; a thread that still computes what nobody waits for does not hold it up."""
    if any(not one.daemon for one in threading.enumerate() if one is not threading.main_thread()):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    raise SystemExit(code)


def _raise(number: int, frame: FrameType | None) -> None:
    global _received
    _received = number
    error = _Ended() if number == signal.SIGINT else Terminated()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    if frame is not None:
        error.resend = _SentAgain(number)
    try:
        raise error
    finally:
        del error  # a cycle through this frame would keep it alive


def _end(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)


# --- Standard input: an image that the command line names ``-`` ---

_NAME = Path("-")


class StandardInput(io.BytesIO):
    """The content of standard input, with the name used in errors."""

    name = "Standard input"


def read_standard_input(files: Sequence[Path]) -> dict[int, StandardInput]:
    """The content of standard input, keyed by the index of the file named ``-``.

    Raises:
        UsageError: it is named twice, is a terminal, is closed, empty or cannot be read.
    """
    places = [number for number, file in enumerate(files) if file == _NAME]
    if len(places) > 1:
        raise UsageError("- is used twice.", "Standard input holds a single image.", "Use - once.")
    return {number: StandardInput(_read()) for number in places}


def _read() -> bytes:
    """All bytes up to one over the limit, so that the decoder refuses anything larger."""
    fix = "Send it an image: capsedge infer - < image.png"
    if sys.stdin is None:
        raise UsageError("Standard input is closed.", "- reads an image from it.", fix)
    if sys.stdin.isatty():
        raise UsageError("Standard input is a terminal.", "- reads an image from it.", fix)
    try:
        data = sys.stdin.buffer.read(limits.IMAGE_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(
            "Standard input cannot be read.", f"{error.strerror or error}.", fix
        ) from error
    if not data:
        why = "The command before the pipe wrote nothing, or the file has 0 bytes."
        raise UsageError("Standard input is empty.", why, fix)
    return data
