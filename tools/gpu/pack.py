"""Pack what a machine without network access needs: sources, kernels and a CUDA provider, in parts."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from capsedge.runtime.backends.native_library import NAME, installed
from tests.native import cuda_library

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("benchmarks", "capsedge", "tests", "tools", "pyproject.toml", "README.md")
LEFT_OUT = ("capsedge/runtime/web", "tests/page", "tests/web")
INSIDE = Path("capsedge-gpu")  # the folder that unpacking makes
NATIVE = Path("capsedge", "runtime", "_native")
PROVIDER = "provider"  # its folder with ONNX Runtime
PART_BYTES = 30_000_000  # what a transfer takes at once


def files() -> list[Path]:
    """The files to pack: the repository's own files, and what was compiled.

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
    operators = installed(NAME)  # an editable installation has it outside of the checkout's folders
    native = sorted(operators.parent.glob("*.so*")) if operators else []
    compiled = [*native, library, cuda_library.kernels_of(library)]
    return [*(path for path in found if path.exists()), *compiled]


def size() -> int:
    """Size in bytes before compression."""
    return sum(path.stat().st_size for path in files())


def write(folder: Path, provider: Path | None = None) -> list[Path]:
    """Write the archive's parts; returns them. ``cat FOLDER/* | tar xz`` unpacks them.

    Args:
        folder: where the parts go; a new one.
        provider: a wheel of onnxruntime-gpu for the other machine's Python; its CUDA provider is packed too.

    Raises:
        FileExistsError: the folder is there already.
        FileNotFoundError: as `files`.
    """
    folder.mkdir(parents=True)
    parts = _Parts(folder)
    with tarfile.open(fileobj=parts, mode="w|gz") as archive:
        for path in files():
            archive.add(path, arcname=str(INSIDE / _inside(path)), recursive=False)
        for name, content in _wheel(provider) if provider else ():
            member = tarfile.TarInfo(str(INSIDE / PROVIDER / name))
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    parts.close()
    return parts.written


def _inside(path: Path) -> Path:
    """Where a file lies in the archive."""
    if path.parent.name == NATIVE.name:
        return NATIVE / path.name
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path("build/cuda") / path.name


def _wheel(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files of a wheel that a session on the CPU or CUDA needs."""
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if not name.endswith("/") and "providers_tensorrt" not in name:
                yield name, wheel.read(name)


class _Parts(io.RawIOBase):
    """A file that is cut into parts while it is written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._part: io.BufferedWriter | None = None
        self._left = 0
        self.written: list[Path] = []

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        rest = memoryview(data)
        while rest:
            if self._left == 0:
                self._next()
            assert self._part is not None
            taken = self._part.write(rest[: self._left])
            self._left -= taken
            rest = rest[taken:]
        return len(data)

    def _next(self) -> None:
        if self._part is not None:
            self._part.close()
        self.written.append(self._folder / f"capsedge-gpu.tar.gz.{len(self.written):03}")
        self._part = self.written[-1].open("wb")
        self._left = PART_BYTES

    def close(self) -> None:
        if self._part is not None:
            self._part.close()
        super().close()
