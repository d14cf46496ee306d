"""Run a folder of ``capsedge build --target c`` on this machine, as the backend of a session."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, EnvironmentProblem, UsageError
from capsedge.exporters.c.folder import origin_of
from capsedge.exporters.c.naming import check_prefix
from capsedge.exporters.c.write_c import generate
from capsedge.runtime.backends.backend import (
    Backend,
    BatchRange,
    Feeds,
    ModelFile,
    Port,
    closed_error,
)
from capsedge.runtime.engine_metadata import EngineMetadata
from capsedge.runtime.files.reading import open_regular_file, readable_errors
from capsedge.runtime.files.writing import sha256, temporary_folder, write_bytes
from capsedge.runtime.load import load
from capsedge.runtime.metadata import ModelMetadata
from capsedge.runtime.onnx_file.summary import read_harmless
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session import Session

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O2", "-ffp-contract=off")
_ALIGNMENT = 16  # bytes, of the arena


class CFile(NamedTuple):
    """A file of C."""

    name: str
    sha256: str
    bytes: int


class CompiledC:
    """The network of a folder, compiled.

    Args:
        library: the compiled source, loaded.
        description: the contents of ``NAME.json``.
        original: the ONNX file, loaded.

    Attributes:
        source: ``NAME.c``.
        compiler: what ``--version`` of the compiler begins with.
    """

    name: ClassVar[str] = "c"
    ops: str = "portable"
    gpu: int | None = None
    threads: int = 1
    engine_metadata: EngineMetadata | None = None

    def __init__(
        self,
        library: ctypes.CDLL,
        description: dict[str, Any],
        original: Backend,
        source: CFile,
        compiler: str,
    ) -> None:
        shape = tuple(description["input"]["shape"])
        known = {port.name: port for port in original.outputs}
        self._outputs: dict[str, tuple[int, ...]] = {
            each["name"]: tuple(each["shape"]) for each in description["outputs"]
        }
        self.inputs: tuple[Port, ...] = (replace(original.inputs[0], shape=shape),)
        self.outputs: tuple[Port, ...] = tuple(
            replace(known[name], shape=shape) for name, shape in self._outputs.items()
        )
        self.batches = BatchRange(shape[0], shape[0])
        self.metadata: ModelMetadata | None = original.metadata
        self.source, self.compiler = source, compiler
        self._arena = np.zeros(description["memory"]["arena_bytes"] + _ALIGNMENT, np.uint8)
        self._run: Any = getattr(library, f"{description['name']}_run")
        self._lock = threading.Lock()
        self.closed = False

    @classmethod
    def accepts(cls, file: ModelFile) -> bool:
        """No file alone: `open_folder` opens a folder with the file that it was made from."""
        return False

    @classmethod
    def open(cls, file: ModelFile, options: RuntimeOptions) -> CompiledC:
        """See `open_folder`.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{file.path} is not a folder of C.", "", "Use open_folder.")

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The named outputs, for an input that has been checked.

        Raises:
            UsageError: it is closed.
        """
        if self.closed:
            raise closed_error(Path(self.source.name))
        images = np.ascontiguousarray(feeds[self.inputs[0].name], np.float32)
        results = {name: np.empty(shape, np.float32) for name, shape in self._outputs.items()}
        pointers = (ctypes.c_void_p * len(results))(
            *(results[name].ctypes.data if name in outputs else None for name in results)
        )
        start = self._arena.ctypes.data + -self._arena.ctypes.data % _ALIGNMENT
        with self._lock:  # one arena
            self._run(ctypes.c_void_p(start), ctypes.c_void_p(images.ctypes.data), pointers)
        return {name: results[name] for name in outputs}

    def close(self) -> None:
        """Refuse further runs; the code stays in memory."""
        self.closed = True


def open_folder(folder: Path, file: Path) -> Session:
    """Compile a folder of ``capsedge build --target c`` with the compiler of this machine.

    C is code, so it is only compiled if it is, byte for byte, what this version writes for the file.

    Args:
        file: the ONNX file that the folder was made from.

    Returns:
        A session of the network; its path is that of the ONNX file, whose metadata it has.

    Raises:
        UsageError: it is not such a folder.
        ArtefactError: it was made from another file, or its source is not what this version writes.
        EnvironmentProblem: there is no C compiler, or it fails.
    """
    origin = origin_of(folder)
    if origin.sha256 != sha256(file):
        raise ArtefactError(
            f"{folder} was not made from {file}.",
            f"It was made from {origin.file}, SHA-256 {origin.sha256}.",
            "Pass that file with --reference.",
        )
    data, _ = read_harmless(file)
    prefix = check_prefix(origin.name)
    files, description = generate(data, Path(origin.file), prefix, origin.batch)
    for name in (f"{prefix}.h", f"{prefix}.c"):
        with readable_errors(folder / name), open_regular_file(folder / name) as stream:
            content = stream.read(len(files[name]) + 1)
        if content != files[name]:
            raise ArtefactError(
                f"{folder / name} is not what capsedge writes for {file}.",
                "It was changed, or another version wrote it. Only unchanged source is compiled.",
                f"Build it again: capsedge build --target c {file} -o {folder}",
            )
    library, compiler = _compile(files, prefix)
    text = files[f"{prefix}.c"]
    source = CFile(f"{prefix}.c", hashlib.sha256(text).hexdigest(), len(text))
    with load(file, RuntimeOptions(ops="portable")) as original:
        backend = CompiledC(library, description, original.backend, source, compiler)
    return Session(file, backend)


def _compile(files: Mapping[str, bytes], prefix: str) -> tuple[ctypes.CDLL, str]:
    """The loaded library, and the name and version of the compiler."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise EnvironmentProblem(
            "No C compiler was found.",
            "A folder of C is verified by compiling it and running it on this machine.",
            "Install one, for example: apt install gcc",
        )
    with temporary_folder() as folder:
        for name in (f"{prefix}.h", f"{prefix}.c"):
            write_bytes(folder / name, files[name])
        library = folder / "network.so"
        words = [compiler, *FLAGS, "-shared", "-fPIC", "-o", str(library), f"{prefix}.c"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise EnvironmentProblem(
                f"{compiler} cannot compile {prefix}.c.",
                next(iter(done.stderr.splitlines()), f"It ended with {done.returncode}."),
                "Install GCC 7 or later, or Clang.",
            )
        try:
            loaded = ctypes.CDLL(str(library))  # it stays in memory after the file is removed
        except OSError as error:
            raise EnvironmentProblem(
                f"The compiled {prefix}.c cannot be loaded.",
                f"{error}.",
                "Set TMPDIR to a folder that programs may run from.",
            ) from error
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return loaded, next(iter(version.stdout.splitlines()), Path(compiler).name)
