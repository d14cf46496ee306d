"""Write a model repository for Triton Inference Server, with ``config.pbtxt``."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from capsedge.deploy.deploy_options import TritonOptions
from capsedge.deploy.deployment import (
    ServedTensor,
    TritonDeployment,
    TritonModel,
    earlier_files,
    listed,
)
from capsedge.errors import UsageError
from capsedge.options import takes_options
from capsedge.runtime import zoo
from capsedge.runtime.backends.backend import Port, parse_device
from capsedge.runtime.files.text import printable
from capsedge.runtime.files.writing import MODEL, as_path, check_replaceable, write_folder
from capsedge.serving.server_model import (
    TWIN,
    TYPES,
    Arrays,
    Note,
    ServerEngine,
    ServerModel,
    read_server_model,
    repository_models,
)
from capsedge.spec.fields import MANIFEST, MANIFEST_SCHEMA

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import TritonKeywords

# --- Protobuf's text format, written without the package ``protobuf`` ---


class Symbol(str):
    """An enumeration value, written without quotes."""


Scalar: TypeAlias = "Symbol | str | bool | int"
Message: TypeAlias = Mapping[str, Any]  # scalars, messages, and lists of either

_PLAIN = range(0x20, 0x7F)


def text_format(message: Message) -> str:
    """The text of a message, one line per field; a sequence repeats its field."""
    return "".join(f"{line}\n" for line in _lines(message, ""))


def _lines(message: Message, indent: str) -> Iterator[str]:
    for name, value in message.items():
        several = isinstance(value, Sequence) and not isinstance(value, str)
        for each in value if several else [value]:
            if isinstance(each, Mapping):
                yield f"{indent}{name} {{"
                yield from _lines(each, f"{indent}  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{name}: {_scalar(each)}"


def _scalar(value: Scalar) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, Symbol)):
        return str(value)
    return '"' + "".join(_escaped(byte) for byte in value.encode()) + '"'


def _escaped(byte: int) -> str:
    """A byte of a string; anything but plain ASCII becomes an octal escape, which all parsers read alike."""
    letter = chr(byte)
    return letter if byte in _PLAIN and letter not in '"\\' else f"\\{byte:03o}"


# --- ``config.pbtxt`` (model_config.proto) ---

LABELS, WARMUP = "labels.txt", "warmup"
_VERSION = "1"
MODEL_FILE, ENGINE_FILE = f"{_VERSION}/model.onnx", f"{_VERSION}/model.plan"


@dataclass(frozen=True)
class TritonSettings:
    """How Triton runs the models.

    Attributes:
        gpu: number of the GPU; None for the CPU.
        instances: number of copies of each model that run concurrently.
        threads: number of threads for one inference on the CPU; None leaves the choice to ONNX Runtime.
        max_batch: rows of the largest batch formed from requests.
        preferred_batches: batch sizes that run as soon as they are reached.
        queue_delay: microseconds that a request may wait for others.
    """

    gpu: int | None = None
    instances: int = 1
    threads: int | None = None
    max_batch: int = 32
    preferred_batches: tuple[int, ...] = ()
    queue_delay: int = 0


def onnx_config(model: ServerModel, name: str, serving: TritonSettings, library: str) -> Message:
    """The configuration of an ONNX file.

    Args:
        name: the name of its folder, which differs from the model's for a twin.
        library: path of the operator library on the server; empty if there is none.
    """
    most = serving.max_batch if model.trial.batched else 0
    config: dict[str, Any] = {
        **_head(name, "onnxruntime", "onnxruntime_onnx", MODEL_FILE, most),
        "input": [_port(port, most) for port in model.inputs],
        "output": [
            {
                **_port(port, most),
                **({"label_filename": LABELS} if port.name == model.scores else {}),
            }
            for port in model.outputs
        ],
        **_running(serving, most, serving.gpu),
    }
    if serving.threads is not None:
        value = {"string_value": str(serving.threads)}
        config["parameters"] = {"key": "intra_op_thread_count", "value": value}
    if library:
        config["model_operations"] = {"op_library_filename": library}
    config["model_warmup"] = [_warmup(*each) for each in _warmups(model, most)]
    return config


def engine_config(engine: ServerEngine, serving: TritonSettings) -> Message:
    """The configuration of a TensorRT engine; Triton completes inputs and outputs from the engine."""
    low, best, high = engine.engine_metadata.batch
    most = min(high, serving.max_batch) if low == 1 < high else 0
    if best <= most and not serving.preferred_batches:
        serving = TritonSettings(**{**vars(serving), "preferred_batches": (best,)})
    head = _head(engine.name, "tensorrt", "tensorrt_plan", ENGINE_FILE, most)
    return {**head, **_running(serving, most, serving.gpu or 0)}


def warmup_files(model: ServerModel) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the warm-up input files; one row each if the batch is free."""
    for kind, arrays in (("sample", model.trial.sample), ("noise", model.trial.noise)):
        for number, port in enumerate(model.inputs):
            if arrays is not None:
                array = np.ascontiguousarray(arrays[port.name])
                yield f"{kind}-{number}", array.astype(array.dtype.newbyteorder("<")).tobytes()


def dims(port: Port, batched: bool) -> list[int]:
    """Sizes in Triton's form: without the batch, and -1 for free ones."""
    return [d if isinstance(d, int) else -1 for d in port.shape[1 if batched else 0 :]]


def _head(name: str, backend: str, platform: str, file: str, most: int) -> dict[str, Any]:
    return {
        "name": name,
        "backend": backend,
        "platform": platform,
        "default_model_filename": file.rpartition("/")[2],
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": most,
    }


def _running(serving: TritonSettings, most: int, gpu: int | None) -> dict[str, Any]:
    group: dict[str, Any] = {"count": serving.instances}
    group["kind"] = Symbol("KIND_CPU" if gpu is None else "KIND_GPU")
    if gpu is not None:
        group["gpus"] = gpu
    settings: dict[str, Any] = {"instance_group": group}
    if most > 1:
        sizes = [size for size in serving.preferred_batches if size <= most]
        settings["dynamic_batching"] = {
            "preferred_batch_size": sizes,
            "max_queue_delay_microseconds": serving.queue_delay,
        }
    return settings


def _port(port: Port, most: int) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": port.name, "data_type": Symbol(TYPES[port.dtype])}
    sizes = dims(port, most > 0)
    entry["dims"] = sizes or [1]
    if not sizes and most:  # one number per row: Triton does not accept empty dims
        entry["reshape"] = {}
    return entry


def _warmups(model: ServerModel, most: int) -> Iterator[tuple[str, str, int, ServerModel, Arrays]]:
    """Name, file prefix and batch of each warm-up: a sample alone, and the largest batch."""
    if model.trial.sample is not None:
        yield "sample", "sample", 1, model, model.trial.sample
    if model.trial.noise is not None:
        yield "noise", "noise", 1, model, model.trial.noise
        if most > 1:
            yield "largest batch", "noise", most, model, model.trial.noise


def _warmup(name: str, file: str, batch: int, model: ServerModel, arrays: Arrays) -> dict[str, Any]:
    inputs = [
        {
            "key": port.name,
            "value": {
                "data_type": Symbol(TYPES[port.dtype]),
                "dims": list(arrays[port.name].shape[1 if model.trial.batched else 0 :]) or [1],
                "input_data_file": f"{file}-{number}",
            },
        }
        for number, port in enumerate(model.inputs)
    ]
    return {"name": name, "batch_size": batch, "inputs": inputs}


# --- ``capsedge.deploy_triton`` ---

KIND = "triton"  # kind stated in the manifest
Contents = dict[str, "bytes | Path"]


@takes_options(TritonOptions)
def deploy_triton(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    options: TritonOptions = TritonOptions(),
    *,
    note: Callable[[str], None] | None = None,
    **_keywords: Unpack[TritonKeywords],
) -> TritonDeployment:
    """Write a model repository for Triton Inference Server.

    Each ONNX file is loaded and run once, so that shapes, types and batching are the actual ones, not just
    the declared ones.

    By default, capsule operators run in the operator library, which is copied next to the model, and a twin
    ``NAME-portable`` runs without it.

    Args:
        models: ONNX files, TensorRT engines, or names of the zoo; ``NAME=FILE`` sets the name.
        output: the folder; a folder written by an earlier call is replaced as a whole.
        note: called with each of the report's notes as it arises.

    Returns:
        The repository's models and files.

    Raises:
        UsageError: a model does not exist, two have the same name, an option is out of range, or the folder
            holds other files.
        EnvironmentProblem: ONNX Runtime or a required operator library is missing, or the disk is full.
        UnsupportedModelError: Triton cannot serve a model.
        ArtefactError: a file is damaged.

    Example:
        >>> deployment = capsedge.deploy_triton("digits-dynamic", "repository/")
        >>> [model.name for model in deployment.models]
        ['digits-dynamic', 'digits-dynamic-portable']
    """
    names = [models] if isinstance(models, (str, os.PathLike)) else list(models)
    paths = [str(as_path(path, MODEL)) for path in names]
    target = as_path(output, "the path of a folder to write")
    gpu = None if options.device is None else parse_device(options.device)
    _check(paths, options.ops, gpu)
    serving = TritonSettings(
        gpu, options.instances, options.threads, options.max_batch, options.preferred_batches,
        options.queue_delay,
    )  # fmt: skip
    earlier = earlier_files(target)
    check_replaceable(target, earlier)
    notes: list[str] = []

    def noted(text: str) -> None:
        notes.append(printable(text))
        if note is not None:
            note(notes[-1])

    contents: Contents = {}
    served: list[TritonModel] = []
    for one in repository_models(paths):
        model = read_server_model(one.name, one.file, options.ops, gpu is not None, noted)
        if isinstance(model, ServerEngine):
            served.append(_add_engine(contents, model, serving, options.device, noted))
        else:
            served += _add_model(contents, model, serving, options.mount)
    architecture = platform.machine() if any(map(_uses_library, served)) else ""
    files = [listed(path, contents[path]) for path in sorted(contents)]
    deployment = TritonDeployment(
        target, options.mount, architecture, tuple(served), tuple(files), tuple(notes)
    )
    manifest = _manifest(deployment)
    write_folder(target, {**contents, MANIFEST: manifest}, earlier)
    return TritonDeployment(
        target,
        options.mount,
        architecture,
        deployment.models,
        (*files, listed(MANIFEST, manifest)),
        deployment.notes,
    )


def _check(models: Sequence[str], ops: str, gpu: int | None) -> None:
    if not models:
        raise UsageError("No model was given.", "", f"Pass ONNX files, or {', '.join(zoo.FILES)}.")
    if ops == "fused" and gpu is not None:
        raise UsageError(
            "ops is 'fused' on a GPU.",
            "Triton cannot choose the operator library's CUDA kernels for a file.",
            "Leave ops out, or deploy an engine of `capsedge build --plugin fused`.",
        )


def _add_model(
    contents: Contents, model: ServerModel, serving: TritonSettings, mount: str
) -> list[TritonModel]:
    """Add a model, and its portable twin if it gets one."""
    served = [_add_variant(contents, model, model.name, serving, mount)]
    if model.twin:
        twin = _add_variant(contents, model, f"{model.name}{TWIN}", serving, "")
        served.append(replace(twin, twin_of=model.name))
    return served


def _add_variant(
    contents: Contents, model: ServerModel, name: str, serving: TritonSettings, mount: str
) -> TritonModel:
    library = model.library if mount else None
    config = onnx_config(model, name, serving, f"{mount}/{name}/{library.name}" if library else "")
    contents[f"{name}/config.pbtxt"] = text_format(config).encode()
    contents[f"{name}/{MODEL_FILE}"] = model.data
    if library is not None:
        contents[f"{name}/{library.name}"] = library
    if model.scores:
        labels = "".join(f"{printable(label)}\n" for label in model.classes)
        contents[f"{name}/{LABELS}"] = labels.encode(errors="backslashreplace")
    for file, data in warmup_files(model):
        contents[f"{name}/{WARMUP}/{file}"] = data
    return TritonModel(
        name, "onnxruntime", "fused" if library else "portable",
        "cpu" if serving.gpu is None else "cuda", serving.max_batch if model.trial.batched else 0,
        _tensors(model.inputs, model.trial.batched), _tensors(model.outputs, model.trial.batched),
    )  # fmt: skip


def _add_engine(
    contents: Contents,
    engine: ServerEngine,
    serving: TritonSettings,
    device: str | None,
    note: Note,
) -> TritonModel:
    if device is not None and serving.gpu is None:
        raise UsageError(
            f"{engine.path} is a TensorRT engine.",
            "It runs on a GPU.",
            "Leave out --device, or serve the ONNX file that it was built from.",
        )
    config = engine_config(engine, serving)
    contents[f"{engine.name}/config.pbtxt"] = text_format(config).encode()
    contents[f"{engine.name}/{ENGINE_FILE}"] = engine.path
    built = engine.engine_metadata
    note(
        f"{engine.name} runs only where the server has TensorRT {built.machine.tensorrt} and "
        f"a {built.machine.gpu}"
    )
    fused = built.plugin == "fused"
    if fused:
        note(
            f"{engine.name} has fused routing: start the server with "
            f"LD_PRELOAD=libcapsedge_tensorrt{built.machine.tensorrt.split('.')[0]}_static.so"
        )
    ops = "fused" if fused else "portable"
    most = config["max_batch_size"]
    assert isinstance(most, int)
    return TritonModel(engine.name, "tensorrt", ops, "cuda", most)


def _tensors(ports: Sequence[Port], batched: bool) -> tuple[ServedTensor, ...]:
    return tuple(ServedTensor(p.name, TYPES[p.dtype], tuple(dims(p, batched))) for p in ports)


def _uses_library(model: TritonModel) -> bool:
    return (model.backend, model.ops) == ("onnxruntime", "fused")


def _manifest(deployment: TritonDeployment) -> bytes:
    document: dict[str, Any] = {
        "schema": MANIFEST_SCHEMA,
        "kind": KIND,
        "mount": deployment.mount,
        "architecture": deployment.architecture,
        "models": [
            {"name": m.name, "device": m.device, "ops": m.ops, "twin_of": m.twin_of}
            for m in deployment.models
        ],
        "files": {f.path: {"bytes": f.bytes, "sha256": f.sha256} for f in deployment.files},
    }
    return json.dumps(document, indent=1).encode()
