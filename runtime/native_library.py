"""Where the library with capsedge's own kernels for ONNX Runtime is."""

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
    named = os.environ.get(VARIABLE)
    if named:
        if not Path(named).is_file():
            raise EnvironmentProblem(
                f"The operator library {named} does not exist.",
                f"The environment variable {VARIABLE} names it.",
                f"Correct the variable, or unset it: `unset {VARIABLE}`.",
            )
        return Path(named).resolve()
    import capsedge.runtime

    # An editable install has two places: the sources and what the build installed.
    for folder in capsedge.runtime.__path__:
        library = Path(folder) / "_native" / NAME
        if library.is_file():
            return library
    return None
