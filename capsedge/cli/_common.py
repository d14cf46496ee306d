"""What the verbs share: options, printing, errors.

Everything that a person reads goes through ``say`` (results) and ``log`` (all else), and tables through
``print_table``: names from files and of files may hold codes that a terminal obeys.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from capsedge.errors import CapsedgeError, UsageError
from capsedge.runtime.files.text import printable

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def say(*lines: object) -> None:
    """Print results to the standard output, each in a line of its own."""
    for line in lines or ("",):
        print(printable(line))


def log(*lines: object) -> None:
    """Say something to the person; the standard output is for results."""
    print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """Print a result as one JSON document."""
    print(json.dumps(document, indent=2, allow_nan=False))


def batch_sizes(text: str) -> list[int]:
    """Batch sizes as an option gives them, ``1,8``; once each, the smallest first.

    Raises:
        UsageError: they are no whole numbers.
    """
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise UsageError(
            f"Batch sizes '{text}'.", "Wanted whole numbers.", "Use --batch 1,8."
        ) from None


def report(error: CapsedgeError, as_json: bool) -> None:
    """Print an error for a person (stderr), or as JSON (stdout) where JSON was asked for."""
    if as_json:
        document = {
            "error": error.what,
            "why": error.why,
            "fix": error.fix,
            "exit_code": int(error.exit_code),
        }
        with suppress(OSError):  # the error may be that nothing can be printed
            print_json(document)
    log_error(error)


def log_error(error: CapsedgeError) -> None:
    """Print an error for a person: what, why, and the fix, a line each."""
    what, *more = (part for part in (error.what, error.why, error.fix) if part)
    log(f"error: {what}", *more)


def report_bug(error: BaseException) -> None:
    """Print an unexpected error; its traceback only with CAPSEDGE_DEBUG=1."""
    if os.environ.get("CAPSEDGE_DEBUG") == "1":
        raise error
    log(
        f"error: capsedge failed unexpectedly: {type(error).__name__}: {error}",
        "This is a bug. Run again with CAPSEDGE_DEBUG=1 for the traceback and report both.",
    )
