"""Where the compiled libraries of capsedge are, and the operator library for ONNX Runtime."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from capsedge.errors import EnvironmentProblem

NAME = "libcapsedge_ort.so"
VARIABLE = "CAPSEDGE_OPS_LIBRARY"


def find_library() -> Path | None:
    """The operator library: the one that CAPSEDGE_OPS_LIBRARY names, else the installed one, else None.

    Raises:
        EnvironmentProblem: the variable names a file that does not exist.
    """
    return named_or_installed(NAME, VARIABLE, "operator library")


def named_or_installed(name: str, variable: str, what: str) -> Path | None:
    """A library of ours: the file that an environment variable names, else the installed one, else None.

    Args:
        what: its name in errors.

    Raises:
        EnvironmentProblem: the variable names a file that does not exist.
    """
    named = os.environ.get(variable)
    if not named:
        return installed(name)
    if not Path(named).is_file():
        raise EnvironmentProblem(
            f"The {what} {named} does not exist.",
            f"The environment variable {variable} names it.",
            f"Correct the variable, or unset it: `unset {variable}`.",
        )
    return Path(named).resolve()


def installed(*parts: str) -> Path | None:
    """A file that the native build installed, by its path in the folder of libraries; None if not there."""
    import capsedge.runtime

    # The package may come from its sources while the build installed the library elsewhere: an editable
    # install has both folders, and in the root of a checkout the sources hide the installed package.
    elsewhere = (Path(folder, "capsedge", "runtime") for folder in sys.path)
    for place in itertools.chain(map(Path, capsedge.runtime.__path__), elsewhere):
        file = place.joinpath("_native", *parts)
        if file.is_file():
            return file
    return None
