"""What the verbs share: options, printing, errors."""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from capsedge.errors import CapsedgeError, ExitCode, UsageError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


def log(message: str) -> None:
    """Say something to the person; the standard output is for results."""
    print(message, file=sys.stderr, flush=True)


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
        print_json(
            {
                "error": error.what,
                "why": error.why,
                "fix": error.fix,
                "exit_code": int(error.exit_code),
            }
        )
    log(f"error: {error}")


def report_bug(error: BaseException) -> NoReturn:
    """Print an unexpected error; its traceback only with CAPSEDGE_DEBUG=1."""
    if os.environ.get("CAPSEDGE_DEBUG") == "1":
        raise error
    log(
        f"error: capsedge failed unexpectedly: {type(error).__name__}: {error}\n"
        "This is a bug. Run again with CAPSEDGE_DEBUG=1 for the traceback and report both."
    )
    raise SystemExit(int(ExitCode.BUG))
