"""The standard streams: there for every print, and how a command ends that cannot write to them."""

from __future__ import annotations

import io
import os
import sys

from capsedge.errors import EnvironmentProblem

INTERRUPTED = 130  # as shells have it: 128 and the number of SIGINT
READER_GONE = 141  # 128 and the number of SIGPIPE


def prepare() -> None:
    """Give every print a stream that takes it: also where one is closed, or knows only ASCII."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            # Lives as long as the process; it also keeps files from getting the stream's number.
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence() -> None:
    """Send what is still to be printed nowhere, or Python complains of it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def unwritable(error: OSError) -> EnvironmentProblem:
    """What to say where results cannot be written."""
    return EnvironmentProblem(
        "Writing failed.",
        f"{error.strerror or error}.",
        "Free some space, or send the output elsewhere (TMPDIR names the folder of temporary files).",
    )
