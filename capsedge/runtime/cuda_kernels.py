"""Find the CUDA kernels: the file that the package capsedge-cuda has, of exactly the version of capsedge."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from capsedge.errors import EnvironmentProblem
from capsedge.spec.version import VERSION

VARIABLE = "CAPSEDGE_CUDA_KERNELS"
_MODULE = "capsedge_cuda"
_FILE = "kernels.fatbin"
# It is on no package index yet.
HOW_TO_GET = (
    "In a checkout of this version: `make cuda-wheel`, then `pip install dist/capsedge_cuda-*.whl`."
)


def find_cuda_kernels() -> Path | None:
    """The file that CAPSEDGE_CUDA_KERNELS names, else that of the package capsedge-cuda, else None.

    Raises:
        EnvironmentProblem: the variable names a file that does not exist, or the package is of another
            version, or damaged.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return _named(Path(named))
    try:
        module = importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return None
    found = getattr(module, "__version__", "unknown")
    if found != VERSION:
        raise EnvironmentProblem(
            "The installed CUDA kernels are of another version than capsedge.",
            f"capsedge-cuda is {found}, and capsedge is {VERSION}.",
            HOW_TO_GET,
        )
    file = Path(str(module.__file__)).with_name(_FILE)
    if not file.is_file():
        raise EnvironmentProblem(
            "The package capsedge-cuda is damaged.",
            f"{file} is missing.",
            HOW_TO_GET,
        )
    return file


def _named(path: Path) -> Path:
    if not path.is_file():
        raise EnvironmentProblem(
            f"The file of CUDA kernels {path} does not exist.",
            f"The environment variable {VARIABLE} names it.",
            f"Correct the variable, or unset it: `unset {VARIABLE}`.",
        )
    return path.resolve()
