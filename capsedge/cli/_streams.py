"""The standard streams: usable by every print, and the end of a command that cannot write to them."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from capsedge.runtime.files.writing import FULL

READER_GONE = 141  # 128 plus the number of SIGPIPE

# The standard output or a temporary file cannot be written; for a verb's paths, `check_writable` reports it.
_UNWRITABLE = FULL | {errno.EIO, errno.EAGAIN, errno.EBADF, errno.ENXIO}
_PLACE = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.ENAMETOOLONG, errno.ENXIO, errno.ENODEV,
}  # fmt: skip


class _Messages(io.FileIO):
    """The standard error: a message that cannot be written is dropped, and the work continues."""

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
        return  # its console takes no bytes
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        messages = _Messages(sys.stderr.fileno(), "w", closefd=False)
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
    """Discard unprinted output; otherwise Python complains about it when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def problem_of(error: OSError) -> CapsedgeError | None:
    """Turn a system error of the standard output or of a path into a readable one; None for a bug."""
    why = f"{error.strerror or error}."
    if error.errno in _UNWRITABLE:
        return EnvironmentProblem(
            "Writing failed.",
            why,
            "Free some space, or send the output elsewhere (TMPDIR names the folder of temporary files).",
        )
    if error.errno in _PLACE and error.filename is not None:
        return UsageError(f"{os.fsdecode(error.filename)} cannot be used.", why, "Check the path.")
    return None
