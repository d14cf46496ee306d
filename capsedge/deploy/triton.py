"""``capsedge.deploy_triton``: a model repository for Triton Inference Server."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from capsedge import zoo
from capsedge.deploy import triton_config
from capsedge.deploy.manifest import MANIFEST, earlier_files, listed
from capsedge.deploy.naming import TWIN, folders
from capsedge.deploy.pbtxt import text_format
from capsedge.deploy.repository_report import ServedTensor, TritonDeployment, TritonModel
from capsedge.deploy.served import TYPES, ServedEngine, ServedModel, served
from capsedge.deploy.trial import Note
from capsedge.deploy.triton_config import Serving
from capsedge.errors import UsageError
from capsedge.runtime.backends.backend import OPS, Port, parse_device
from capsedge.runtime.files.folders import check_replaceable, write_folder
from capsedge.runtime.files.given import MODEL, as_path
from capsedge.runtime.files.text import printable

KIND = "triton"  # in the manifest
MOUNT = "/models"
_MOST = 2**31 - 1  # int32 of the protocol
_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")
Contents = dict[str, "bytes | Path"]


def deploy_triton(
    models: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    device: str | None = None,
    ops: str = "auto",
    max_batch: int = 32,
    preferred_batches: Sequence[int] = (),
    queue_delay: int = 0,
    instances: int = 1,
    threads: int | None = None,
    mount: str = MOUNT,
    note: Callable[[str], None] | None = None,
) -> TritonDeployment:
    """Write a model repository for Triton Inference Server.

    Each ONNX file is loaded and run once here, so that shapes, types and batching are those of the model,
    not only those that it declares.

    Args:
        models: ONNX files, TensorRT engines, or names of the zoo; ``NAME=FILE`` sets the name.
        output: the folder; one that an earlier call wrote is replaced as a whole.
        device: ``cpu``, ``cuda`` or ``cuda:1``; by default the CPU, or the GPU for an engine.
        ops: ``auto``: capsule operators run in the operator library, which is copied beside the model, and
            a twin ``NAME-portable`` runs without it; ``fused``: no twin; ``portable``: no library.
        max_batch: rows of the largest batch, where the batch of a model is free.
        preferred_batches: sizes of batches that run at once when they are reached.
        queue_delay: microseconds that a request may wait for others; 0 joins only what waits anyway.
        instances: copies of each model that run at the same time.
        threads: of one inference on the CPU; by default ONNX Runtime's choice, a thread for each core.
        mount: where the server sees the folder; the path of the operator library begins with it.
        note: told at once what else stands in the report's notes.

    Returns:
        The repository's models and files.

    Raises:
        UsageError: a model does not exist, two have the same name, an option is out of range, or the folder
            holds other files.
        EnvironmentProblem: ONNX Runtime or a wanted operator library is missing, or the disk is full.
        UnsupportedModelError: Triton cannot serve a model.
        ArtefactError: a file is damaged.

    Example:
        >>> made = capsedge.deploy_triton("digits-dynamic", "repository/")
        >>> [model.name for model in made.models]
        ['digits-dynamic', 'digits-dynamic-portable']
    """
    given = [models] if isinstance(models, (str, os.PathLike)) else list(models)
    paths = [str(as_path(path, MODEL)) for path in given]
    target = as_path(output, "the path of a folder to write")
    gpu = None if device is None else parse_device(device)
    sizes = tuple(sorted(set(preferred_batches)))
    serving = Serving(gpu, instances, threads, max_batch, sizes, queue_delay)
    _check(paths, serving, ops, mount)
    earlier = earlier_files(target)
    check_replaceable(target, earlier)
    notes: list[str] = []

    def noted(text: str) -> None:
        notes.append(printable(text))
        if note is not None:
            note(notes[-1])

    contents: Contents = {}
    found: list[TritonModel] = []
    for one in folders(paths):
        model = served(one.name, one.file, ops, gpu is not None, noted)
        if isinstance(model, ServedEngine):
            found.append(_add_engine(contents, model, serving, device, noted))
        else:
            found += _add_model(contents, model, serving, mount)
    architecture = platform.machine() if any(map(_uses_library, found)) else ""
    files = [listed(path, contents[path]) for path in sorted(contents)]
    made = TritonDeployment(target, mount, architecture, tuple(found), tuple(files), tuple(notes))
    manifest = _manifest(made)
    write_folder(target, {**contents, MANIFEST: manifest}, earlier)
    return TritonDeployment(
        target, mount, architecture, made.models, (*files, listed(MANIFEST, manifest)), made.notes
    )


def _check(given: Sequence[str], serving: Serving, ops: str, mount: str) -> None:
    if not given:
        raise UsageError("There is no model.", "", f"Name ONNX files, or {', '.join(zoo.MODELS)}.")
    if ops not in OPS:
        raise UsageError(f"There is no ops '{ops}'.", "", f"Known: {', '.join(OPS)}.")
    if ops == "fused" and serving.gpu is not None:
        raise UsageError(
            "ops is 'fused' on a GPU.",
            "The operator library of ONNX Runtime has kernels for the CPU.",
            "Leave ops out, or deploy an engine of `capsedge build --plugin fused`.",
        )
    for what, least, value in (
        ("max_batch", 1, serving.max_batch),
        ("queue_delay", 0, serving.queue_delay),
        ("instances", 1, serving.instances),
        ("threads", 1, 1 if serving.threads is None else serving.threads),
        *(("preferred_batches", 1, size) for size in serving.preferred_batches),
    ):
        most = serving.max_batch if what == "preferred_batches" else _MOST
        if type(value) is not int or not least <= value <= most:
            raise UsageError(
                f"{what} cannot be {value!r}.",
                f"Wanted: a whole number from {least} to {most}.",
                "Correct the option, or leave it out.",
            )
    if not _PATH.fullmatch(mount) or ".." in mount.split("/"):
        raise UsageError(
            f"The server cannot see the repository at '{mount}'.",
            "Wanted: an absolute path of letters, digits, '.', '_' and '-'.",
            f"For example --mount {MOUNT}.",
        )


def _add_model(
    contents: Contents, model: ServedModel, serving: Serving, mount: str
) -> list[TritonModel]:
    """Add a model, and its portable twin where it gets one."""
    found = [_add_variant(contents, model, model.name, serving, mount)]
    if model.twin:
        twin = _add_variant(contents, model, f"{model.name}{TWIN}", serving, "")
        found.append(replace(twin, twin_of=model.name))
    return found


def _add_variant(
    contents: Contents, model: ServedModel, name: str, serving: Serving, mount: str
) -> TritonModel:
    library = model.library if mount else None
    config = triton_config.onnx_config(
        model, name, serving, f"{mount}/{name}/{library.name}" if library else ""
    )
    contents[f"{name}/config.pbtxt"] = text_format(config).encode()
    contents[f"{name}/{triton_config.MODEL_FILE}"] = model.data
    if library is not None:
        contents[f"{name}/{library.name}"] = library
    if model.scores:
        labels = "".join(f"{printable(label)}\n" for label in model.classes)
        contents[f"{name}/{triton_config.LABELS}"] = labels.encode(errors="backslashreplace")
    for file, data in triton_config.warmup_files(model):
        contents[f"{name}/{triton_config.WARMUP}/{file}"] = data
    return TritonModel(
        name, "onnxruntime", "fused" if library else "portable",
        "cpu" if serving.gpu is None else "cuda", serving.max_batch if model.trial.batched else 0,
        _tensors(model.inputs, model.trial.batched), _tensors(model.outputs, model.trial.batched),
    )  # fmt: skip


def _add_engine(
    contents: Contents, engine: ServedEngine, serving: Serving, device: str | None, note: Note
) -> TritonModel:
    if device is not None and serving.gpu is None:
        raise UsageError(
            f"{engine.path} is a TensorRT engine.",
            "It runs on a GPU.",
            "Leave out --device, or serve the ONNX file that it was built from.",
        )
    config = triton_config.engine_config(engine, serving)
    contents[f"{engine.name}/config.pbtxt"] = text_format(config).encode()
    contents[f"{engine.name}/{triton_config.ENGINE_FILE}"] = engine.path
    built = engine.passport
    note(
        f"{engine.name} runs only where the server has TensorRT {built.machine.tensorrt} and "
        f"a {built.machine.gpu}"
    )
    fused = built.plugin == "fused"
    if fused:
        note(
            f"{engine.name} has fused routing: start the server with "
            "LD_PRELOAD=libcapsedge_tensorrt_static.so"
        )
    ops = "fused" if fused else "portable"
    most = config["max_batch_size"]
    assert isinstance(most, int)
    return TritonModel(engine.name, "tensorrt", ops, "cuda", most)


def _tensors(ports: Sequence[Port], batched: bool) -> tuple[ServedTensor, ...]:
    return tuple(
        ServedTensor(p.name, TYPES[p.dtype], tuple(triton_config.dims(p, batched))) for p in ports
    )


def _uses_library(model: TritonModel) -> bool:
    return (model.backend, model.ops) == ("onnxruntime", "fused")


def _manifest(made: TritonDeployment) -> bytes:
    document: dict[str, Any] = {
        "schema": 1,
        "kind": KIND,
        "mount": made.mount,
        "architecture": made.architecture,
        "models": [
            {"name": m.name, "device": m.device, "ops": m.ops, "twin_of": m.twin_of}
            for m in made.models
        ],
        "files": {f.path: {"bytes": f.bytes, "sha256": f.sha256} for f in made.files},
    }
    return json.dumps(document, indent=1).encode()
