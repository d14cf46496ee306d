"""Try a model before deploying it, and collect what the server must know about it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import CapsedgeError, UnsupportedModelError, UsageError
from capsedge.runtime import zoo
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.files import reading
from capsedge.runtime.files.formats import is_engine
from capsedge.runtime.load import load_bytes
from capsedge.runtime.metadata import engine_metadata
from capsedge.runtime.onnx_file import summary as onnx_file
from capsedge.runtime.profiling.profile import random_inputs
from capsedge.runtime.session.session import Session
from capsedge.runtime.session.tensors import shape_fits, shape_text

# --- The trial: inputs of the warm-up, and whether the model runs batches ---

Arrays = Mapping[str, NDArray[Any]]
Note = Callable[[str], None]
_SAMPLE = "digit-7.png"
_CHANNELS = (1, 3)  # channels of images that can be read


@dataclass(frozen=True)
class Trial:
    """The results of a model's trial.

    Attributes:
        sample: one prepared image; None for a model with other inputs.
        noise: one row of inputs drawn from a fixed seed; None if the model accepts none.
        batched: whether inputs and outputs begin with one free dimension, the batch.
    """

    sample: Arrays | None
    noise: Arrays | None
    batched: bool


def try_model(session: Session, note: Note) -> Trial:
    """Run a model on the inputs of its warm-up, and on a batch of two."""
    sample, noise = _sample(session), _noise(session, note)
    if sample is not None:
        _check_outputs(session, session.run(sample))
    batched = _first_is_batch(session) and _runs_batches(session, noise, note)
    return Trial(sample, noise, batched)


def run_again(session: Session, trial: Trial) -> None:
    """Run the inputs of a warm-up in another session of the same model."""
    for arrays in (trial.sample, trial.noise):
        if arrays is not None:
            session.run(arrays)


def _first_is_batch(session: Session) -> bool:
    """Whether every input and output begins with the same free dimension."""
    ports = (*session.inputs, *session.outputs)
    if not all(port.shape and not isinstance(port.shape[0], int) for port in ports):
        return False
    return len({port.shape[0] for port in ports if port.shape[0] is not None}) <= 1


def _noise(session: Session, note: Note) -> Arrays | None:
    """Random inputs that the model accepts; integers are zero if random ones are not valid indices."""
    try:
        drawn = random_inputs(session, session.backend.batches.fixed or 1)
        zeros = {
            name: np.zeros_like(values) if values.dtype.kind in "iu" else values
            for name, values in drawn.items()
        }
        try:
            inputs, outputs = drawn, session.run(drawn)
        except CapsedgeError:
            inputs, outputs = zeros, session.run(zeros)
    except CapsedgeError as error:
        note(f"{session.path} gets no warm-up with random inputs: {error.what} {error.why}")
        return None
    _check_outputs(session, outputs)
    return inputs


def _check_outputs(session: Session, outputs: Arrays) -> None:
    """Refuse a model whose outputs differ from those declared to the server."""
    for port in session.outputs:
        shape = outputs[port.name].shape
        if not shape_fits(shape, port.shape):
            raise UnsupportedModelError(
                f"Triton cannot serve {session.path}.",
                f"Its output '{port.name}' is declared as {shape_text(port.shape)} and has the shape "
                f"{shape_text(shape)}.",
                "Write the file again with the shapes of its outputs.",
            )


def _runs_batches(session: Session, noise: Arrays | None, note: Note) -> bool:
    """Whether a batch of two gives two rows; a file may compute something other than it declares."""
    if noise is None:
        return True
    try:
        outputs = session.run({name: values.repeat(2, axis=0) for name, values in noise.items()})
    except CapsedgeError as error:
        note(
            f"{session.path} does not run a batch of two, and is served without batching: {error.why}"
        )
        return False
    wrong = [name for name, values in outputs.items() if values.shape[:1] != (2,)]
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
    image = session.prepare(zoo.samples_folder() / _SAMPLE)[None].repeat(
        session.backend.batches.fixed or 1, 0
    )
    return {port.name: image.astype(port.dtype)} if shape_fits(image.shape, port.shape) else None


# --- Model names, by one rule for `capsedge serve` and `capsedge deploy triton` ---

FIRST = "1"  # the version of a served model that is given without one
TWIN = "-portable"  # suffix of the name of a model without the operator library
_NAMED = re.compile(
    r"(?P<name>[A-Za-z0-9._-]{1,80})(?::(?P<version>[A-Za-z0-9._-]{1,80}))?=(?P<file>.+)"
)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class ModelName:
    """A model named on the command line.

    Attributes:
        name: the name that clients use.
        version: version of the name; empty if the argument has none.
        file: a path, or a name of the zoo.
    """

    name: str
    version: str
    file: str


def file_of_model_argument(argument: str | Path) -> Path:
    """The file that an argument such as ``digits=model.onnx`` names."""
    return Path(_parsed(str(argument)).file)


def parse_model_names(arguments: Sequence[str]) -> list[ModelName]:
    """Models from ``model.onnx``, ``NAME=model.onnx`` or ``NAME:VERSION=model.onnx``; version 1 else."""
    named = [replace(one, version=one.version or FIRST) for one in map(_parsed, arguments)]
    seen: dict[str, list[ModelName]] = {}
    for model in named:
        others = seen.setdefault(model.name.lower(), [])
        first = others[0] if others else model
        fix = (
            f"Set their names: other={model.file}, or {first.name}:{_free(named, model.name)}={model.file} "
            "for another version."
        )
        if first.name != model.name:
            raise UsageError(
                f"{first.file} and {model.file} would become the models '{first.name}' and '{model.name}'.",
                "The names differ only in case.",
                fix,
            )
        same = next((one for one in others if one.version == model.version), None)
        if same is not None:
            raise UsageError(
                f"{same.file} and {model.file} would both become version {model.version} of the model "
                f"'{model.name}'.",
                "",
                fix,
            )
        others.append(model)
    return named


def _free(models: Sequence[ModelName], name: str) -> int:
    """A version above those of a name."""
    taken = (m.version for m in models if m.name.lower() == name.lower() and m.version.isdecimal())
    return 1 + max((int(version) for version in taken), default=0)


def repository_models(arguments: Sequence[str]) -> list[ModelName]:
    """The same for a model repository, where each model has its own folder and may get a twin."""
    named = [_parsed(text) for text in arguments]
    seen: dict[str, str] = {}
    for model in named:
        if model.version:
            raise UsageError(
                f"{model.name}:{model.version} has a version.",
                "A repository is written with one version of each model.",
                f"Name it: {model.name}={model.file}.",
            )
        taken = (model.name.lower(), f"{model.name.lower()}{TWIN}")
        other = next((seen[name] for name in taken if name in seen), None)
        if other is not None:
            raise UsageError(
                f"{other} and {model.file} would both use the folder '{model.name}', or that of its twin.",
                "",
                f"Set their names: other={model.file}.",
            )
        seen.update(dict.fromkeys(taken, model.file))
    return named


def _parsed(argument: str) -> ModelName:
    parts = _NAMED.fullmatch(argument)
    if parts is not None and reading.path_kind(argument) is None:
        return ModelName(parts["name"], parts["version"] or "", parts["file"])
    if argument in zoo.FILES:
        return ModelName(argument, "", argument)
    name, equals, file = argument.partition("=")
    there = file in zoo.FILES or reading.path_kind(file) is not None
    if equals and there and reading.path_kind(argument) is None:
        raise UsageError(
            f"Invalid name '{name}' of {file}.",
            "It takes up to 80 letters, digits, dots, hyphens and underscores; a version follows a colon.",
            f"For example: {_name_of(file)}={file}.",
        )
    return ModelName(_name_of(argument), "", argument)


def _name_of(file: str) -> str:
    """A model's name, from that of its file."""
    return _NOT_IN_NAMES.sub("-", Path(file).stem).strip("-.")[:80] or "model"


# --- Inputs, outputs, batch, classes and sample inputs ---


@dataclass(frozen=True)
class ServerModel:
    """An ONNX file for a model server.

    Attributes:
        name: the unique name of its folder.
        data: its bytes.
        inputs, outputs: with the batch as their first dimension if batched.
        library: the operator library for its capsule operators; None runs their function bodies.
        twin: whether it gets a portable twin, which runs without the library.
        scores: the output that decides the class; empty for other models.
        classes: the class names.
        trial: the results of its trial.
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
class ServerEngine:
    """A TensorRT engine for a model server; it declares its inputs and outputs to the server itself.

    Attributes:
        name: name of its folder.
        path: the engine.
        engine_metadata: the target that it was built for.
    """

    name: str
    path: Path
    engine_metadata: engine_metadata.EngineMetadata


def read_server_model(
    name: str, file: str, ops: str, on_gpu: bool, note: Note
) -> ServerModel | ServerEngine:
    """Read and try a model.

    Args:
        file: a file, or a name of the zoo.
        ops: ``auto``, ``fused`` or ``portable``.
        on_gpu: whether the server runs it on a GPU, where it cannot choose the library's CUDA kernels.
    """
    path = zoo.zoo_model(file) or Path(file)
    if not path.suffix and not reading.path_kind(path):
        raise zoo.unknown_model(file)
    if is_engine(path):
        return ServerEngine(name, path, _engine_metadata(path))
    data, summary = onnx_file.read_harmless(path)
    with load_bytes(data, path, ops="portable" if on_gpu else ops) as session:
        _check_types(session)
        fused = session.backend.ops != "portable"
        if summary.capsedge_nodes and not fused and not on_gpu and ops == "auto":
            note(
                f"{name} runs its function bodies: the operator library is not in this installation"
            )
        trial = try_model(session, note)
        declared, scores = session.metadata, session.roles.scores or ""
        inputs, outputs = session.inputs, session.outputs
    twin = fused and ops == "auto" and _runs_portably(name, data, path, trial, note)
    if summary.overloaded and (twin or not fused):
        note(
            f"{name}{TWIN if twin else ''} has functions that only ONNX Runtime 1.26 and later tell apart: "
            "it needs Triton 26.07 or later"
        )
    classes = declared.class_names if declared else ()
    library = find_library() if fused else None
    return ServerModel(
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


def _engine_metadata(path: Path) -> engine_metadata.EngineMetadata:
    metadata = engine_metadata.read(path)
    if metadata.portable:
        raise UnsupportedModelError(
            f"Triton cannot run {path}.",
            "It is a TensorRT-RTX engine, and Triton's backend uses TensorRT.",
            "Build it on the server's GPU with `capsedge build`, or deploy the ONNX file.",
        )
    return metadata


def _check_types(session: Session) -> None:
    for port in (*session.inputs, *session.outputs):
        if port.dtype not in TYPES:
            raise UnsupportedModelError(
                f"Triton cannot serve {session.path}.",
                f"'{port.name}' is a {port.dtype}, which its protocol does not support.",
                "Serve a model whose inputs and outputs are tensors of numbers.",
            )


# By numpy's name: DataType of Triton's model_config.proto.
TYPES = {
    "float16": "TYPE_FP16", "float32": "TYPE_FP32", "float64": "TYPE_FP64", "bool": "TYPE_BOOL",
    "tensor(bfloat16)": "TYPE_BF16",
    **{f"{sign}int{bits}": f"TYPE_{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
