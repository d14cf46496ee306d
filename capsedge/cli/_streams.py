"""The standard streams: there for every print, and how a command ends that cannot write to them."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from capsedge.runtime.files.writing import FULL

READER_GONE = 141  # 128 and the number of SIGPIPE

# The standard output, or a temporary file, that takes no more; a path of a verb says so itself.
_UNWRITABLE = FULL | {errno.EIO, errno.EAGAIN, errno.EBADF, errno.ENXIO}
_PLACE = {
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP,
    errno.ENAMETOOLONG, errno.ENXIO, errno.ENODEV,
}  # fmt: skip


class _Messages(io.FileIO):
    """The standard error: a message that it does not take is lost, and the work goes on."""

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError:
            written = None
        return len(data) if written is None else written


def prepare() -> None:
    """Give every print a stream that takes it: also where one is closed, full, or knows only ASCII."""
    # Or the next file that is opened gets the number of a closed stream, and what libraries print.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Lives as long as the process.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        messages = _Messages(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(messages),
            encoding=sys.stderr.encoding,
            errors="backslashreplace",
            line_buffering=True,
        )


def silence() -> None:
    """Send what is still to be printed nowhere, or Python complains of it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def problem_of(error: OSError) -> CapsedgeError | None:
    """What to say of an error of the system: of the standard output, or of a path; None for a bug."""
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
