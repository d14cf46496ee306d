"""Where the compiled libraries of capsedge are; this one knows those for ONNX Runtime."""

from __future__ import annotations

import os
from pathlib import Path

from capsedge.errors import EnvironmentProblem

NAME = "libcapsedge_ort.so"
VARIABLE = "CAPSEDGE_OPS_LIBRARY"


def find_library() -> Path | None:
    """The custom-op library: the one that CAPSEDGE_OPS_LIBRARY names, else the installed one, else None.

    Raises:
        EnvironmentProblem: the variable names a file that does not exist.
    """
    return named_or_installed(NAME, VARIABLE, "operator library")


def named_or_installed(name: str, variable: str, what: str) -> Path | None:
    """A library of ours: the file that an environment variable names, else the installed one, else None.

    Args:
        what: what errors call it.

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

    # An editable install has two places: the sources and what the build installed.
    for folder in capsedge.runtime.__path__:
        file = Path(folder, "_native", *parts)
        if file.is_file():
            return file
    return None
