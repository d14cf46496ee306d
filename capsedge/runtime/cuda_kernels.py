"""Find the CUDA kernels: files that the package capsedge-cuda has, of exactly the version of capsedge."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.native_library import removal_of
from capsedge.spec.version import VERSION

VARIABLE = "CAPSEDGE_CUDA_KERNELS"
CUDA = 13  # whose compiler makes the kernels: an older driver does not know its machine code
_MODULE = "capsedge_cuda"
_FILE = "kernels.fatbin"
# It is on no package index yet.
HOW_TO_GET = (
    "In a checkout of this version: `make cuda-wheel`, then `pip install dist/capsedge_cuda-*.whl`."
)


def find_cuda_kernels() -> Path | None:
    """The file that CAPSEDGE_CUDA_KERNELS names, else that of the package capsedge-cuda, else None."""
    named = os.environ.get(VARIABLE)
    if named:
        return _named(Path(named))
    folder = find_package()
    if folder is None:
        return None
    file = folder / _FILE
    if not file.is_file():
        raise EnvironmentProblem(
            "The package capsedge-cuda is damaged.",
            f"{file} is missing.",
            HOW_TO_GET,
        )
    return file


def find_package() -> Path | None:
    """The folder of the package capsedge-cuda, or None."""
    try:
        module = importlib.import_module(_MODULE)
    except ModuleNotFoundError:
        return None
    version = getattr(module, "__version__", "unknown")
    if version != VERSION:
        raise EnvironmentProblem(
            "The installed CUDA kernels are of another version than capsedge.",
            f"capsedge-cuda is {version}, and capsedge is {VERSION}.",
            HOW_TO_GET,
        )
    return Path(str(module.__file__)).parent


def code_for(kernels: Path, driver: str, compute_capability: str) -> Path | None:
    """The file that a GPU's driver takes, as the loader chooses it; None if the driver is too old for all.

    Args:
        kernels: the file with the code for every GPU, as `find_cuda_kernels` returns it.
        driver: newest CUDA that the driver supports, such as ``"12.6"``.
        compute_capability: of the GPU, such as ``"8.7"``.
    """
    major = int(driver.split(".")[0])
    if major >= CUDA:
        return kernels
    own = kernels.with_suffix(f".cuda12.sm{compute_capability.replace('.', '')}.cubin")
    return own if major == CUDA - 1 and own.is_file() else None


def _named(path: Path) -> Path:
    if not path.is_file():
        raise EnvironmentProblem(
            f"The file of CUDA kernels {path} does not exist.",
            f"The environment variable {VARIABLE} names it.",
            f"Correct the variable, or remove it: `{removal_of(VARIABLE)}`.",
        )
    return path.resolve()
