"""Run a folder of ``capsedge build --target c`` on this machine, as the backend of a session.

The network runs in a process of its own, which takes inputs and returns outputs through pipes.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, EnvironmentProblem, UsageError
from capsedge.exporters.c import toolchain
from capsedge.exporters.c.folder import origin_of
from capsedge.exporters.c.naming import check_prefix
from capsedge.exporters.c.program import C_TYPES
from capsedge.exporters.c.write_c import generate_c_folder
from capsedge.runtime.backends.backend import (
    Backend,
    BatchRange,
    Feeds,
    ModelFile,
    Port,
    closed_error,
)
from capsedge.runtime.files.reading import open_regular_file, readable_errors
from capsedge.runtime.files.writing import sha256, temporary_folder, write_bytes
from capsedge.runtime.load import load
from capsedge.runtime.metadata.engine_metadata import EngineMetadata
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.onnx_file.summary import read_harmless
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session.session import Session

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=c99", "-O2", "-ffp-contract=off")
_HOST = "caps_host.c"  # no network may have this name
_PROGRAM = "network.exe" if sys.platform == "win32" else "network"
_HOW_TO_GET = {
    "win32": "Install GCC or Clang for MinGW, and have it on PATH.",
    "darwin": "Install Apple's: xcode-select --install",
}.get(sys.platform, "Install one, for example: apt install gcc")


class CFile(NamedTuple):
    """A file of C."""

    name: str
    sha256: str
    bytes: int


class CompiledC:
    """The network of a folder, compiled.

    Args:
        process: the running network.
        description: the contents of ``NAME.json``.
        original: the ONNX file, loaded.
        folder: what remains to be removed when the process has ended.

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
        process: subprocess.Popen[bytes],
        description: dict[str, Any],
        original: Backend,
        source: CFile,
        compiler: str,
        folder: ExitStack,
    ) -> None:
        given = {each["name"]: tuple(each["shape"]) for each in description["inputs"]}
        known = {port.name: port for port in (*original.inputs, *original.outputs)}
        self._outputs: dict[str, tuple[int, ...]] = {
            each["name"]: tuple(each["shape"]) for each in description["outputs"]
        }
        self.inputs: tuple[Port, ...] = tuple(
            replace(known[name], shape=shape) for name, shape in given.items()
        )
        self.outputs: tuple[Port, ...] = tuple(
            replace(known[name], shape=shape) for name, shape in self._outputs.items()
        )
        self.batches = BatchRange.of(self.inputs)
        self.metadata: ModelMetadata | None = original.metadata
        self.source, self.compiler = source, compiler
        self._process, self._folder = process, folder
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
        """The named outputs, for inputs that have been checked.

        Raises:
            UsageError: it is closed.
            ArtefactError: the network crashed.
        """
        if self.closed:
            raise closed_error(Path(self.source.name))
        given = b"".join(
            np.ascontiguousarray(feeds[port.name], port.numpy_dtype).tobytes()
            for port in self.inputs
        )
        with self._lock:  # one process
            try:
                results = self._exchange(given)
            except BaseException:
                self.close()  # it may be in the middle of an answer
                raise
        return {name: results[name] for name in outputs}

    def _exchange(self, given: bytes) -> dict[str, NDArray[Any]]:
        """All outputs, for the bytes of all inputs."""
        taken, printed = self._process.stdin, self._process.stdout
        assert taken is not None
        assert printed is not None
        results = {}
        with suppress(BrokenPipeError):  # it shows in the answer
            taken.write(given)
            taken.flush()
        for name, shape in self._outputs.items():
            size = 4 * math.prod(shape)
            data = printed.read(size)
            if len(data) < size:
                raise _crashed(self.source.name, self._process.wait())
            results[name] = np.frombuffer(data, np.float32).reshape(shape).copy()
        return results

    def close(self) -> None:
        """End the process; further runs are refused."""
        self.closed = True
        toolchain.end(self._process)
        self._folder.close()


def _crashed(source: str, code: int) -> ArtefactError:
    try:
        how = f"It was ended by {signal.Signals(-code).name}."
    except ValueError:
        how = f"It ended with {code}."
    return ArtefactError(
        f"The network compiled from {source} crashed.",
        how,
        "Run the ONNX file with ONNX Runtime instead, and report this with the file.",
    )


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
        EnvironmentProblem: there is no C compiler, it fails, or its program cannot be started.
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
    files, description = generate_c_folder(
        data, Path(origin.file), prefix, origin.batch, origin.fit
    )
    for name in (f"{prefix}.h", f"{prefix}.c"):
        with readable_errors(folder / name), open_regular_file(folder / name) as stream:
            content = stream.read(len(files[name]) + 1)
        if content != files[name]:
            raise ArtefactError(
                f"{folder / name} is not what capsedge writes for {file}.",
                "It was changed, or another version wrote it. Only unchanged source is compiled.",
                f"Build it again: capsedge build --target c {file} -o {folder}",
            )
    process, compiler, left = _started(files, description)
    text = files[f"{prefix}.c"]
    source = CFile(f"{prefix}.c", hashlib.sha256(text).hexdigest(), len(text))
    try:
        with load(file, RuntimeOptions(ops="portable")) as original:
            backend = CompiledC(process, description, original.backend, source, compiler, left)
    except BaseException:
        toolchain.end(process)
        left.close()
        raise
    return Session(file, backend)


def _started(
    files: Mapping[str, bytes], description: Mapping[str, Any]
) -> tuple[subprocess.Popen[bytes], str, ExitStack]:
    """The running network, the name and version of the compiler, and what removes the rest."""
    prefix = description["name"]
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise EnvironmentProblem(
            "No C compiler was found.",
            "A folder of C is verified by compiling it and running it on this machine.",
            _HOW_TO_GET,
        )
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        for name in (f"{prefix}.h", f"{prefix}.c"):
            write_bytes(folder / name, files[name])
        write_bytes(folder / _HOST, _host(description).encode("ascii"))
        program = folder / _PROGRAM
        words = [compiler, *FLAGS, "-o", str(program), f"{prefix}.c", _HOST]
        try:
            done = toolchain.run(words, folder)
            version = toolchain.run([compiler, "--version"], folder)
        except OSError as error:
            raise EnvironmentProblem(
                f"{compiler} cannot be started.",
                f"{error.strerror}.",
                "Install GCC or Clang again.",
            ) from error
        if done.returncode:
            raise EnvironmentProblem(
                f"{compiler} cannot compile {prefix}.c.",
                next(iter(done.stderr.splitlines()), f"It ended with {done.returncode}."),
                "Install GCC 7 or later, or Clang.",
            )
        try:
            process = toolchain.start(
                [str(program)],
                folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise EnvironmentProblem(
                f"The compiled {prefix}.c cannot be started.",
                f"{error.strerror}.",
                "Set TMPDIR to a folder that programs may run from.",
            ) from error
        # Windows removes no file that runs; elsewhere the process goes on without it.
        left = stack.pop_all() if sys.platform == "win32" else ExitStack()
    return process, next(iter(version.stdout.splitlines()), Path(compiler).name), left


# Windows would translate line ends.
_BINARY_STREAMS = (
    ("#ifdef _WIN32", "#include <fcntl.h>", "#include <io.h>", "#endif"),
    ("#ifdef _WIN32", "  _setmode(0, _O_BINARY);", "  _setmode(1, _O_BINARY);", "#endif"),
)


def _host(description: Mapping[str, Any]) -> str:
    """The program around the network: reads all inputs, writes all outputs, until no more come."""
    name, sizes = description["name"], [math.prod(o["shape"]) for o in description["outputs"]]
    results = range(len(sizes))
    given = [
        (C_TYPES[i["type"]], f"caps_{i['parameter']}", i["size"]) for i in description["inputs"]
    ]
    read = " && ".join(f"fread({each}, sizeof {each}, 1, stdin) == 1" for _, each, _ in given)
    lines = [
        "#include <stdio.h>",
        *_BINARY_STREAMS[0],
        f'#include "{name}.h"',
        f"static uint8_t caps_arena[{description['memory']['arena_bytes']}] __attribute__((aligned(16)));",
        *(f"static {kind} {each}[{size}];" for kind, each, size in given),
        *(f"static float caps_result{k}[{size}];" for k, size in enumerate(sizes)),
        "int main(void) {",
        *_BINARY_STREAMS[1],
        f"  {name}_outputs caps_results = {{{', '.join(f'caps_result{k}' for k in results)}}};",
        f"  while ({read}) {{",
        f"    {name}_run(caps_arena, {', '.join(each for _, each, _ in given)}, &caps_results);",
        *(f"    fwrite(caps_result{k}, sizeof caps_result{k}, 1, stdout);" for k in results),
        "    if (fflush(stdout)) return 1;",
        "  }",
        "  return 0;",
        "}",
    ]
    return "\n".join([*lines, ""])
