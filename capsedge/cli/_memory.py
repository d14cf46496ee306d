"""Explain a command that fails because its process may use little memory, as after ``ulimit -v 300000``.

Where memory is short, any import and any allocation may fail, so everything here is made in advance.
"""

from __future__ import annotations

import errno
import os

# Bytes with which numpy cannot be imported; its library ends the process without a word.
LEAST = 256 << 20
_LOW = 4 << 30  # bytes beyond which a failure has another cause


def _limit() -> int | None:
    """The bytes of address space that this process may use; None if there is no limit, or it is high."""
    try:
        file = os.open("/proc/self/limits", os.O_RDONLY)
    except OSError:  # not Linux
        return None
    lines = os.read(file, 4096).splitlines()
    os.close(file)
    words = next((line.split() for line in lines if line.startswith(b"Max address space")), [])
    found = words[3] if len(words) > 3 else b""
    return int(found) if found.isdigit() and int(found) < _LOW else None


LIMIT = _limit()
# What failed, why, and how to fix it.
EXPLANATION = (
    (
        "There is not enough memory.",
        f"This process may use {LIMIT >> 20:,} MiB of address space; most commands need 2,500.",
        "Raise the limit, as with `ulimit -v unlimited`, or run the command without it.",
    )
    if LIMIT is not None
    else ("There is not enough memory.", "", "Free some memory, or process fewer images at a time.")
)
_MESSAGE = b"error: " + "".join(f"{line}\n" for line in EXPLANATION if line).encode()


def is_cause(error: BaseException) -> bool:
    """Whether an error comes from the lack of memory."""
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
        return True
    if isinstance(error, ModuleNotFoundError) or LIMIT is None:
        return False
    # A library that cannot be mapped; a C function that lost its MemoryError; a thread without a stack.
    return isinstance(error, (ImportError, SystemError)) or "start new thread" in str(error)


def check() -> None:
    """Refuse to start a verb that could only be ended by a library.

    Raises:
        EnvironmentProblem: the process may use too little memory.
    """
    if LIMIT is None:
        return
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # each has buffers, and ends the process without
    if LIMIT < LEAST:
        from capsedge.errors import EnvironmentProblem

        raise EnvironmentProblem(*EXPLANATION)


def end(error: BaseException) -> None:
    """End the process with the explanation, if memory is the cause of an error that could not be reported."""
    if is_cause(error):
        os.write(2, _MESSAGE)
        os._exit(3)
