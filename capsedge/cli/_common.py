"""Printing and errors, shared by the verbs.

Everything that a person reads goes through ``say`` (results) or ``log`` (everything else), and tables go
through ``print_table``: file names and names in files may contain terminal control codes.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from capsedge.errors import CapsedgeError, EnvironmentProblem
from capsedge.runtime.files.text import printable


def say(*lines: object) -> None:
    """Print results to the standard output, one per line."""
    for line in lines or ("",):
        print(printable(line))


def log(*lines: object) -> None:
    """Print messages to the standard error; the standard output is for results."""
    print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)


def print_json(document: Any) -> None:
    """Print a result as one JSON document."""
    import json  # `capsedge --version` has no need of it

    print(json.dumps(document, indent=2, allow_nan=False))


def require(*packages: str, what: str, fix: str) -> None:
    """Refuse to start without the packages that a verb needs.

    Args:
        packages: names of modules.
        what: a sentence that states what needs them.
        fix: the command that installs them.

    Raises:
        EnvironmentProblem: a package is missing or cannot be imported, or ONNX Runtime is too old.
    """
    from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime

    for package in packages:
        try:
            import_onnxruntime() if package == "onnxruntime" else import_module(package)
        except ImportError as error:
            raise EnvironmentProblem(what, f"{error}.", fix) from error


def report(error: CapsedgeError, as_json: bool) -> None:
    """Print an error for a person (stderr), and also as JSON (stdout) where JSON was requested."""
    if as_json:
        document = {
            "error": error.what,
            "why": error.why,
            **({"details": list(error.details)} if error.details else {}),
            "fix": error.command,
            "exit_code": int(error.exit_code),
        }
        with suppress(OSError):  # printing itself may be what failed
            print_json(document)
    log_error(error)


def log_error(error: CapsedgeError) -> None:
    """Print an error for a person: what failed, why, details, and the fix, one line each."""
    what, *more = (part for part in (error.what, error.why, *error.details, error.command) if part)
    log(f"error: {what}", *more)


def report_bug(error: BaseException) -> None:
    """Print an unexpected error; its traceback only with CAPSEDGE_DEBUG=1."""
    if os.environ.get("CAPSEDGE_DEBUG") == "1":
        raise error
    log(
        f"error: capsedge failed unexpectedly: {type(error).__name__}: {error}",
        "This is a bug. Run again with CAPSEDGE_DEBUG=1 for the traceback and report both.",
    )
