"""What a model server must know of a model: its inputs and outputs, its batch, its classes, sample inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from capsedge import samples, zoo
from capsedge.deploy.grouping import unused
from capsedge.deploy.models import harmless_name
from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.runtime import passport
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.onnxruntime_backend import Port
from capsedge.runtime.files import opening
from capsedge.runtime.inputs import fits
from capsedge.runtime.loading import load_bytes
from capsedge.runtime.profiling.profiler import random_inputs
from capsedge.runtime.reading import onnx_file
from capsedge.runtime.session import Session

Arrays = Mapping[str, NDArray[Any]]
Note = Callable[[str], None]
TWIN = "-portable"  # at the end of its name
_SAMPLE = "digit-7.png"
_CHANNELS = (1, 3)  # of images that can be read


@dataclass(frozen=True)
class ServedModel:
    """An ONNX file for a model server.

    Attributes:
        name: of its folder, unlike that of any other.
        data: its bytes.
        inputs, outputs: with the batch as their first dimension where ``batched``.
        batched: whether inputs and outputs begin with one free dimension, the batch.
        library: the operator library for its capsule operators; None runs their function bodies.
        portable: whether it runs without the library.
        scores: the output that decides the class; empty for other models.
        classes: their names.
        sample: one prepared image; None for a model of other inputs.
        noise: inputs drawn from a fixed seed, of one row; None where sizes besides the batch are free.
    """

    name: str
    data: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    batched: bool
    library: Path | None
    portable: bool
    scores: str
    classes: tuple[str, ...]
    sample: Arrays | None
    noise: Arrays | None


@dataclass(frozen=True)
class ServedEngine:
    """A TensorRT engine for a model server; it tells the server its inputs and outputs itself.

    Attributes:
        name: of its folder.
        path: the engine.
        passport: what it was built for.
    """

    name: str
    path: Path
    passport: passport.Passport


def served(name: str, given: str, ops: str, on_gpu: bool, note: Note) -> ServedModel | ServedEngine:
    """Read and try a model.

    Args:
        name: of its folder.
        given: a file, or a name of the zoo.
        ops: ``auto``, ``fused`` or ``portable``.
        on_gpu: whether the server runs it on a GPU, where the operator library has no kernels.
        note: told what a person should know.

    Raises:
        UsageError: there is no such model.
        EnvironmentProblem: the operator library is wanted and missing.
        UnsupportedModelError: a server cannot run it.
        ArtefactError: a file is damaged.
    """
    path = zoo.zoo_model(given) or Path(given)
    if not path.suffix and not opening.kind(path):
        raise zoo.unknown_model(given)
    if passport.is_engine(path):
        return ServedEngine(name, path, _engine_passport(path))
    data, summary = onnx_file.read_harmless(path)
    with load_bytes(data, path, ops="portable" if on_gpu else ops) as session:
        _check_types(session)
        fused = session.ops != "portable"
        noise = _noise(session, note)
        batched = _first_is_batch(session) and _runs_batches(session, noise, note)
        if summary.overloaded and not fused:
            note(
                f"{name} has functions that ONNX Runtime tells apart from 1.26 on: Triton 26.07 or later"
            )
        classes = session.metadata.class_names if session.metadata else ()
        return ServedModel(
            name, data, session.inputs, session.outputs, batched,
            find_library() if fused else None, not summary.missing_functions,
            (session.score_output or "") if classes else "", classes, _sample(session), noise,
        )  # fmt: skip


def names_of(given: Sequence[str]) -> list[str]:
    """A folder name for each model; no two of them and of their twins are the same, in any case."""
    found: list[str] = []
    for path in given:
        wanted = harmless_name(path if zoo.zoo_model(path) else Path(path).stem)
        twins = [f"{name}{TWIN}" for name in found]
        with_this_twin = [name.lower().removesuffix(TWIN) for name in found]
        found.append(unused(wanted, [*found, *twins, *with_this_twin]))
    return found


def _engine_passport(path: Path) -> passport.Passport:
    found = passport.read(path)
    if found.portable:
        raise UnsupportedModelError(
            f"Triton cannot run {path}.",
            "It is an engine for TensorRT-RTX; Triton's backend has TensorRT.",
            "Build it on the server's GPU with `capsedge build`, or deploy the ONNX file.",
        )
    return found


def _check_types(session: Session) -> None:
    for port in (*session.inputs, *session.outputs):
        if port.dtype not in TYPES:
            raise UnsupportedModelError(
                f"Triton cannot serve {session.path}.",
                f"'{port.name}' is a {port.dtype}, which its protocol does not have.",
                "Serve a model whose inputs and outputs are tensors of numbers.",
            )


# By numpy's name: DataType of Triton's model_config.proto.
TYPES = {
    "float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64", "bool": "TYPE_BOOL",
    "tensor(bfloat16)": "TYPE_BF16",
    **{f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip


def _first_is_batch(session: Session) -> bool:
    """Whether every input and output begins with the same free dimension."""
    ports = (*session.inputs, *session.outputs)
    if not all(port.shape and not isinstance(port.shape[0], int) for port in ports):
        return False
    return len({port.shape[0] for port in ports if port.shape[0] is not None}) <= 1


def _noise(session: Session, note: Note) -> Arrays | None:
    try:
        found = random_inputs(session, session.batch or 1)
        session.run(found)
    except CapsedgeError as error:
        note(f"{session.path} gets no warm-up with random inputs: {error.what} {error.why}")
        return None
    return found


def _runs_batches(session: Session, noise: Arrays | None, note: Note) -> bool:
    """Whether a batch of two gives two rows; what the file declares may not be what it computes."""
    if noise is None:
        return True
    try:
        found = session.run(random_inputs(session, 2))
    except CapsedgeError as error:
        note(
            f"{session.path} does not run a batch of two, and is served without batching: {error.why}"
        )
        return False
    wrong = [name for name, values in found.items() if values.shape[:1] != (2,)]
    if wrong:
        note(
            f"{session.path} is served without batching: '{wrong[0]}' of two inputs has not two rows"
        )
    return not wrong


def _sample(session: Session) -> Arrays | None:
    prepared = session.metadata.preprocessing if session.metadata else None
    if prepared is None or prepared.channels not in _CHANNELS or len(session.inputs) != 1:
        return None
    (port,) = session.inputs
    image = session.prepare(samples.folder() / _SAMPLE)[None].repeat(session.batch or 1, 0)
    return {port.name: image.astype(port.dtype)} if fits(image.shape, port.shape) else None
