"""The models that NVIDIA's library is given: the zoo as a user has it, the registry with random weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from capsedge.calibration.float_model import FloatModel, uniform_assignment
from capsedge.datasets import ImageSet
from capsedge.exporters import subject as modules
from capsedge.exporters.export import export
from capsedge.exporters.export_options import ExportOptions
from capsedge.exporters.module_graph import to_graph
from capsedge.graph import Rewrites
from capsedge.models import build
from capsedge.models.checkpoint import load_checkpoint
from capsedge.models.configs import Conv, EfficientCapsNetConfig, ModelConfig
from capsedge.models.registry import get_config
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.zoo import zoo_checkpoint
from tests.graph import test_free_children
from tests.graph.fusion.histories import AnyLength, histories

PRECISIONS = ("fp32", "fp16", "int8", "mixed")
_IMAGES = 8  # enough for ranges; accuracy is no matter here


@cache
def zoo(routing: str, folder: Path, iterations: int = 3) -> Path:
    """A model of the zoo, exported and verified."""
    path = folder / f"{routing}.onnx"
    export(
        load_checkpoint(zoo_checkpoint(f"digits-{routing}")),
        path,
        ExportOptions(iterations=iterations),
    )
    return path


def quantized(source: Path, precision: str) -> Path:
    """The file in another precision, as ``capsedge quantize --target tensorrt`` emits it.

    ``mixed`` is the assignment of a search that keeps the first layer in FP32.
    """
    if precision == "fp32":
        return source
    made = FloatModel(source)
    prep = made.preprocessing
    assert prep is not None
    pixels = np.random.default_rng(0).integers(
        0, 256, (_IMAGES, prep.height, prep.width, prep.channels), dtype=np.uint8
    )
    images = ImageSet("random", pixels, None, prep)
    if precision == "fp16":
        model, _ = made.to_fp16(images)
    else:
        units = made.quantizable("tensorrt")
        assignment = uniform_assignment(units, "int8")
        if precision == "mixed":
            assignment[units[0].name] = "fp32"
        model, _ = made.emit(assignment, made.calibrate(images, "minmax", None), "tensorrt")
    path = source.with_name(f"{source.stem}.{precision}.onnx")
    path.write_bytes(model.SerializeToString())
    return path


# Height and width of the paper are 512, for which the limit on all values of a graph is too low.
_SIDES = {"segcaps": 128}


def registered(name: str, folder: Path) -> Path:
    """A model of the registry with random weights; not verified, which other tests do."""
    config = get_config(name)
    if side := _SIDES.get(name):
        preprocessing = replace(config.preprocessing, height=side, width=side)
        config = config.replace(preprocessing=preprocessing)
    return _exported(config, folder / f"{name}.onnx")


def efficient_capsnet(folder: Path) -> Path:
    """Efficient-CapsNet for MNIST (Mazzia, Salvetti, Chiaberge 2021) with random weights."""
    config = EfficientCapsNetConfig(
        class_names=tuple("0123456789"),
        preprocessing=Preprocessing(height=28, width=28, channels=1),
        stem=(Conv(32, 5, 1), Conv(64, 3, 1), Conv(64, 3, 1), Conv(128, 3, 2)),
        primary_types=16,
        primary_kernel=9,
    )
    return _exported(config, folder / "efficient-capsnet.onnx")


def recommender(folder: Path, each: bool) -> Path:
    """Routing over ids of any length, with a mask; a matrix for each interest, or one for all."""
    path = folder / f"recommender-{each}.onnx"
    module = AnyLength(each=each).eval()
    export(module, path, example=histories(4, 9), free_axes={"history": [1]})
    return path


def shared_weights(folder: Path) -> Path:
    """A routing node of any number of children, which share their weights."""
    path = folder / "shared-weights.onnx"
    model = onnx.load_from_string(test_free_children.model(4))
    rng = np.random.default_rng(0)
    for value in model.graph.input[1:]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = rng.standard_normal(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    del model.graph.input[1:]
    onnx.save(model, path)
    return path


def _exported(config: str | ModelConfig, path: Path) -> Path:
    torch.manual_seed(0)
    subject = modules.of_capsule_model(build(config).eval(), (), None, "")
    model = to_graph(subject, 20, None, Rewrites()).lowered.model
    path.write_bytes(model.SerializeToString())
    return path


def quantized_products(path: Path) -> int:
    """Convolutions and matrix products of a file, both of whose inputs are quantized."""
    model = onnx.load(path)
    made = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    return sum(
        n.op_type in ("Conv", "Gemm", "MatMul") and set(n.input[:2]) <= made
        for n in model.graph.node
    )
