"""Pack what a machine without network access needs: sources and compiled kernels, in one archive."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from tests.native import cuda_library

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("benchmarks", "capsedge", "tests", "tools", "pyproject.toml", "README.md")
LEFT_OUT = ("capsedge/runtime/web", "tests/page", "tests/web")
LIMIT = 60_000_000


def files() -> list[Path]:
    """The files to pack: the repository's own files and the compiled kernels.

    Raises:
        FileNotFoundError: the kernels are not built, or this is not a checkout.
    """
    if not (ROOT / ".git").exists():
        raise FileNotFoundError("an archive is packed in a checkout; this is none")
    library = cuda_library.gpu_library()
    if library is None or not cuda_library.kernels_of(library).is_file():
        raise FileNotFoundError(
            "the CUDA kernels are not built: `make cuda CUDA_ARCHITECTURES=90` for compute capability 9.0"
        )
    listed = subprocess.run(
        ["git", "ls-files", "--", *PARTS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = [ROOT / name for name in listed.stdout.splitlines() if not name.startswith(LEFT_OUT)]
    return [*(path for path in found if path.exists()), library, cuda_library.kernels_of(library)]


def size() -> int:
    """Size in bytes before compression."""
    return sum(path.stat().st_size for path in files())


def write(target: Path) -> int:
    """Write the archive; returns its size in bytes."""
    with tarfile.open(target, "w:gz") as archive:
        for path in files():
            inside = (
                path.relative_to(ROOT)
                if path.is_relative_to(ROOT)
                else Path("build/cuda") / path.name
            )
            archive.add(path, arcname=str(Path("capsedge-gpu") / inside), recursive=False)
    found = target.stat().st_size
    if found > LIMIT:
        raise ValueError(f"{target} has {found} bytes, more than {LIMIT}")
    return found
