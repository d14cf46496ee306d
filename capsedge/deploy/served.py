"""What a model server must know of a model: its inputs and outputs, its batch, its classes, sample inputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capsedge import zoo
from capsedge.deploy.naming import TWIN
from capsedge.deploy.trial import Note, Trial, run_again, tried
from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.runtime import passport
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.files import opening
from capsedge.runtime.load import load_bytes
from capsedge.runtime.reading import onnx_file
from capsedge.runtime.session import Session


@dataclass(frozen=True)
class ServedModel:
    """An ONNX file for a model server.

    Attributes:
        name: of its folder, unlike that of any other.
        data: its bytes.
        inputs, outputs: with the batch as their first dimension where it is batched.
        library: the operator library for its capsule operators; None runs their function bodies.
        twin: whether it gets a portable twin, which runs without the library.
        scores: the output that decides the class; empty for other models.
        classes: their names.
        trial: what it has run.
    """

    name: str
    data: bytes
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    library: Path | None
    twin: bool
    scores: str
    classes: tuple[str, ...]
    trial: Trial


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
        fused = session.backend.ops != "portable"
        if summary.capsedge_nodes and not fused and not on_gpu and ops == "auto":
            note(
                f"{name} runs its function bodies: the operator library is not in this installation"
            )
        trial = tried(session, note)
        stated, scores = session.metadata, session.roles.scores or ""
        inputs, outputs = session.inputs, session.outputs
    twin = fused and ops == "auto" and _runs_portably(name, data, path, trial, note)
    if summary.overloaded and (twin or not fused):
        note(
            f"{name}{TWIN if twin else ''} has functions that only ONNX Runtime 1.26 and later tell apart: "
            "it needs Triton 26.07 or later"
        )
    classes = stated.class_names if stated else ()
    library = find_library() if fused else None
    return ServedModel(
        name, data, inputs, outputs, library, twin, scores if classes else "", classes, trial
    )


def _runs_portably(name: str, data: bytes, path: Path, trial: Trial, note: Note) -> bool:
    """Whether a model runs without the operator library."""
    try:
        with load_bytes(data, path, ops="portable") as session:
            run_again(session, trial)
    except CapsedgeError as error:
        note(f"{name} gets no portable twin: {error.what} {error.why}")
        return False
    return True


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
