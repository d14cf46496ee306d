"""Small ONNX files made by hand: what the exporter would write, and what it would not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from capsedge.runtime.metadata.metadata import ModelMetadata, Preprocessing

CLASSES, POSE, SIDE = 3, 4, 8


def metadata(**changes: object) -> ModelMetadata:
    values: dict[str, object] = {
        "architecture": "capsnet",
        "configuration": {},
        "routing": "dynamic",
        "iterations": 3,
        "class_names": ("left", "right", "none"),
        "preprocessing": Preprocessing(SIDE, SIDE, 1),
        **changes,
    }
    return ModelMetadata(**values)  # type: ignore[arg-type]


def squash_function() -> onnx.FunctionProto:
    """``Squash`` as standard operators (docs/reference/operators.md)."""
    opsets = [helper.make_opsetid("", 20)]
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[-1])
    one = helper.make_node("Constant", [], ["one"], value_float=1.0)
    epsilon = helper.make_node("Constant", [], ["epsilon"])
    epsilon.attribute.append(
        onnx.AttributeProto(
            name="value_float", type=onnx.AttributeProto.FLOAT, ref_attr_name="epsilon"
        )
    )
    nodes = [
        axes,
        one,
        epsilon,
        helper.make_node("Mul", ["x", "x"], ["xx"]),
        helper.make_node("ReduceSum", ["xx", "axes"], ["n2"], keepdims=1),
        helper.make_node("Add", ["n2", "one"], ["below"]),
        helper.make_node("Div", ["n2", "below"], ["length"]),
        helper.make_node("Add", ["n2", "epsilon"], ["safe"]),
        helper.make_node("Sqrt", ["safe"], ["norm"]),
        helper.make_node("Div", ["length", "norm"], ["factor"]),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    return helper.make_function(
        "capsedge", "Squash", ["x"], ["y"], nodes, opsets, attributes=["axis", "epsilon"]
    )


def capsule_model(
    *,
    properties: dict[str, str] | None = None,
    scores: str = "lengths",
    capsedge_node: bool = True,
    function: bool = True,
    batch: int | str = "N",
    channels: int = 1,
    reconstruction: bool = False,
    gain: float = 4.0,
) -> onnx.ModelProto:
    """A model whose class 0 grows with the left half of the image, class 1 with the right half.

    ``properties`` None writes the metadata of `metadata`; an empty dictionary writes none.
    """
    weight = np.zeros((channels, SIDE, SIDE, CLASSES, POSE), np.float32)
    weight[:, :, : SIDE // 2, 0, 0] = gain / (SIDE * SIDE / 2)
    weight[:, :, SIDE // 2 :, 1, 1] = gain / (SIDE * SIDE / 2)
    weight[..., 2, 2] = 0.1 / (SIDE * SIDE)
    initializers = [
        numpy_helper.from_array(weight.reshape(-1, CLASSES * POSE), "weight"),
        numpy_helper.from_array(np.array([-1, channels * SIDE * SIDE]), "flat"),
        numpy_helper.from_array(np.array([-1, CLASSES, POSE]), "capsules"),
        numpy_helper.from_array(np.array([-1]), "last"),
    ]
    nodes = [
        helper.make_node("Reshape", ["images", "flat"], ["pixels"]),
        helper.make_node("MatMul", ["pixels", "weight"], ["votes"]),
        helper.make_node("Reshape", ["votes", "capsules"], ["s"]),
        helper.make_node("Squash", ["s"], ["poses"], domain="capsedge", axis=-1, epsilon=1e-8)
        if capsedge_node
        else helper.make_node("Tanh", ["s"], ["poses"]),
        helper.make_node("ReduceL2", ["poses", "last"], [scores], keepdims=0),
    ]
    outputs = [
        helper.make_tensor_value_info(scores, TensorProto.FLOAT, [batch, CLASSES]),
        helper.make_tensor_value_info("poses", TensorProto.FLOAT, [batch, CLASSES, POSE]),
    ]
    if reconstruction:
        halves = np.zeros((1, CLASSES, 1, SIDE, SIDE), np.float32)
        halves[0, 0, :, :, : SIDE // 2] = 1
        halves[0, 1, :, :, SIDE // 2 :] = 1
        initializers += [
            numpy_helper.from_array(halves, "halves"),
            numpy_helper.from_array(np.array([-1, CLASSES, 1, 1, 1]), "each"),
        ]
        nodes += [
            helper.make_node("Reshape", [scores, "each"], ["strength"]),
            helper.make_node("Mul", ["strength", "halves"], ["reconstruction"]),
        ]
        outputs.append(
            helper.make_tensor_value_info(
                "reconstruction", TensorProto.FLOAT, [batch, CLASSES, 1, SIDE, SIDE]
            )
        )
    graph = helper.make_graph(
        nodes,
        "capsules",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, channels, SIDE, SIDE])],
        outputs,
        initializers,
    )
    model = helper.make_model(
        graph,
        ir_version=10,
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("capsedge", 1)],
        functions=[squash_function()] if capsedge_node and function else [],
    )
    if properties is None:
        properties = metadata().to_properties()
    helper.set_model_props(model, properties)
    return model


def foreign_model(
    outputs: Mapping[str, Sequence[int | str]],
    *,
    properties: dict[str, str] | None = None,
    batch: int | str = "N",
    channels: int = 1,
    side: int | str = SIDE,
    kinds: Mapping[str, str] | None = None,
    last: bool = False,
) -> onnx.ModelProto:
    """A linear model with outputs of any names and shapes ``[N, ...]``, as another tool writes them.

    Args:
        outputs: the shape of each for one image, as the file declares it; a string leaves a size of 3 open.
        kinds: an operator to apply to an output, such as ``Softmax`` or ``Sigmoid``.
        last: whether the input has the channels last.
    """
    rng = np.random.default_rng(7)
    sizes = {
        name: [3 if isinstance(d, str) else d for d in shape] for name, shape in outputs.items()
    }
    initializers = [numpy_helper.from_array(np.array([1, 2] if last else [2, 3]), "area")]
    nodes = [helper.make_node("ReduceMean", ["images", "area"], ["means"], keepdims=0)]
    for name, shape in sizes.items():
        weight = rng.normal(size=(channels, int(np.prod(shape)))).astype(np.float32)
        initializers += [
            numpy_helper.from_array(weight, f"{name} weight"),
            numpy_helper.from_array(np.array([-1, *shape]), f"{name} shape"),
        ]
        kind = (kinds or {}).get(name, "Identity")
        nodes += [
            helper.make_node("MatMul", ["means", f"{name} weight"], [f"{name} flat"]),
            helper.make_node(kind, [f"{name} flat"], [f"{name} made"]),
            helper.make_node("Reshape", [f"{name} made", f"{name} shape"], [name]),
        ]
    declared = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, *shape])
        for name, shape in outputs.items()
    ]
    images = helper.make_tensor_value_info(
        "images",
        TensorProto.FLOAT,
        [batch, *((side, side, channels) if last else (channels, side, side))],
    )
    graph = helper.make_graph(nodes, "foreign", [images], declared, initializers)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])
    helper.set_model_props(model, properties or {})
    return model


def segmentation_model(
    shape: Sequence[int], *, properties: dict[str, str] | None = None, kind: str = "Identity"
) -> onnx.ModelProto:
    """A convolution of one channel whose output ``mask`` has the given shape for an image: ``[H, W]``,
    ``[maps, H, W]`` or, of images with the channel last, ``[H, W, 1]``."""
    last = len(shape) == 3 and shape[2] == 1
    maps = shape[0] if len(shape) == 3 and not last else 1
    height, width = shape[:2] if last else shape[-2:]
    weight = np.random.default_rng(7).standard_normal((maps, 1, 3, 3)).astype(np.float32)
    initializers = [
        numpy_helper.from_array(weight, "weight"),
        numpy_helper.from_array(np.array([-1, 1, height, width]), "planes"),
        numpy_helper.from_array(np.array([-1, *shape]), "shape"),
    ]
    nodes = [
        helper.make_node("Reshape", ["images", "planes"], ["grey"]),
        helper.make_node("Conv", ["grey", "weight"], ["maps"], pads=[1, 1, 1, 1]),
        helper.make_node(kind, ["maps"], ["made"]),
        helper.make_node("Reshape", ["made", "shape"], ["mask"]),
    ]
    image = [height, width, 1] if last else [1, height, width]
    graph = helper.make_graph(
        nodes,
        "segmentation",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", *image])],
        [helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["N", *shape])],
        initializers,
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])
    helper.set_model_props(model, properties or {})
    return model


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write the file; returns its path."""
    path.write_bytes(model.SerializeToString())
    return path
