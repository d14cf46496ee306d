"""``config.pbtxt``: what Triton Inference Server is told of a model (model_config.proto)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsedge.deploy.pbtxt import Message, Symbol
from capsedge.deploy.served import TYPES, ServedEngine, ServedModel
from capsedge.deploy.trial import Arrays
from capsedge.runtime.backends.backend import Port

LABELS, WARMUP = "labels.txt", "warmup"
_VERSION = "1"
MODEL_FILE, ENGINE_FILE = f"{_VERSION}/model.onnx", f"{_VERSION}/model.plan"


@dataclass(frozen=True)
class Serving:
    """How Triton runs the models.

    Attributes:
        gpu: number of the GPU; None runs on the CPU.
        instances: copies of each model that run at the same time.
        threads: of one inference on the CPU; None leaves the choice to ONNX Runtime.
        max_batch: rows of the largest batch that requests are joined to.
        preferred_batches: sizes that are run at once when they are reached.
        queue_delay: microseconds that a request may wait for others.
    """

    gpu: int | None = None
    instances: int = 1
    threads: int | None = None
    max_batch: int = 32
    preferred_batches: tuple[int, ...] = ()
    queue_delay: int = 0


def onnx_config(model: ServedModel, name: str, serving: Serving, library: str) -> Message:
    """The configuration of an ONNX file.

    Args:
        name: of its folder, which for a twin is not the model's own.
        library: path of the operator library where the server runs; empty for none.
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


def engine_config(engine: ServedEngine, serving: Serving) -> Message:
    """The configuration of a TensorRT engine; Triton completes inputs and outputs from the engine."""
    low, best, high = engine.passport.batch
    most = min(high, serving.max_batch) if low == 1 < high else 0
    if best <= most and not serving.preferred_batches:
        serving = Serving(**{**vars(serving), "preferred_batches": (best,)})
    head = _head(engine.name, "tensorrt", "tensorrt_plan", ENGINE_FILE, most)
    return {**head, **_running(serving, most, serving.gpu or 0)}


def warmup_files(model: ServedModel) -> Iterator[tuple[str, bytes]]:
    """Name and content of the files with the inputs of the warm-up; one row each where batches are free."""
    for kind, arrays in (("sample", model.trial.sample), ("noise", model.trial.noise)):
        for number, port in enumerate(model.inputs):
            if arrays is not None:
                array = np.ascontiguousarray(arrays[port.name])
                yield f"{kind}-{number}", array.astype(array.dtype.newbyteorder("<")).tobytes()


def dims(port: Port, batched: bool) -> list[int]:
    """Sizes as Triton has them: without the batch, -1 for those that are free."""
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


def _running(serving: Serving, most: int, gpu: int | None) -> dict[str, Any]:
    group: dict[str, Any] = {"count": serving.instances}
    group["kind"] = Symbol("KIND_CPU" if gpu is None else "KIND_GPU")
    if gpu is not None:
        group["gpus"] = gpu
    found: dict[str, Any] = {"instance_group": group}
    if most > 1:
        sizes = [size for size in serving.preferred_batches if size <= most]
        found["dynamic_batching"] = {
            "preferred_batch_size": sizes,
            "max_queue_delay_microseconds": serving.queue_delay,
        }
    return found


def _port(port: Port, most: int) -> dict[str, Any]:
    found: dict[str, Any] = {"name": port.name, "data_type": Symbol(TYPES[port.dtype])}
    sizes = dims(port, most > 0)
    found["dims"] = sizes or [1]
    if not sizes and most:  # one number a row: Triton has no dims without a size
        found["reshape"] = {}
    return found


def _warmups(model: ServedModel, most: int) -> Iterator[tuple[str, str, int, ServedModel, Arrays]]:
    """Name, file prefix and batch of each warm-up: a sample alone, and the largest batch."""
    if model.trial.sample is not None:
        yield "sample", "sample", 1, model, model.trial.sample
    if model.trial.noise is not None:
        yield "noise", "noise", 1, model, model.trial.noise
        if most > 1:
            yield "largest batch", "noise", most, model, model.trial.noise


def _warmup(name: str, file: str, batch: int, model: ServedModel, arrays: Arrays) -> dict[str, Any]:
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
