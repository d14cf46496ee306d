"""One model of each kind that a server may get."""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto, helper

from capsedge.optimization.cascade import cascade
from capsedge.optimization.cascade_options import CascadeOptions
from capsedge.runtime.metadata.metadata import Outputs, Preprocessing
from capsedge.spec.vocabularies import SEGMENTATION
from tests.conftest import ROOT
from tests.optimization.cascades import pair, pixels
from tests.runtime.models import capsule_model, foreign_model, metadata, save, segmentation_model

DIGITS = ROOT / "capsedge/zoo/digits-dynamic.onnx"


def regression(folder: Path) -> Path:
    """Three angles of an image, as two outputs."""
    declared = Outputs(
        values=("yaw", "tilt"), names=("yaw", "pitch", "roll"), units=("degrees", "degrees", "")
    )
    said = metadata(task="regression", class_names=(), outputs=declared, routing="", iterations=0)
    model = foreign_model({"yaw": [1], "tilt": [2]}, properties=said.to_properties())
    return save(model, folder / "angles.onnx")


def segmentation(folder: Path) -> Path:
    """Three maps of logits of an image of 8x12."""
    said = metadata(
        architecture="", configuration={}, routing="", iterations=0, task=SEGMENTATION,
        class_names=("road", "tree", "sky"), preprocessing=Preprocessing(8, 12, 1),
        outputs=Outputs(scores="mask", kind="logits"),
    )  # fmt: skip
    model = segmentation_model((3, 8, 12), properties=said.to_properties())
    return save(model, folder / "maps.onnx")


def two_inputs(folder: Path) -> Path:
    """A model of another tool: float16 and int64 in, float16 and bool out, sizes free."""
    half, whole = TensorProto.FLOAT16, TensorProto.INT64
    nodes = [
        helper.make_node("Cast", ["shift"], ["cast"], to=half),
        helper.make_node("Add", ["x", "cast"], ["sum"]),
        helper.make_node("Greater", ["shift", "shift"], ["more"]),
    ]
    sizes = ["A", "B"]
    graph = helper.make_graph(
        nodes,
        "two",
        [
            helper.make_tensor_value_info("x", half, sizes),
            helper.make_tensor_value_info("shift", whole, sizes),
        ],
        [
            helper.make_tensor_value_info("sum", half, sizes),
            helper.make_tensor_value_info("more", TensorProto.BOOL, sizes),
        ],
    )  # fmt: skip
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])
    return save(model, folder / "two.onnx")


def fixed(folder: Path) -> Path:
    """A model whose batch is fixed to 4."""
    return save(capsule_model(batch=4), folder / "fixed.onnx")


def cascade_file(folder: Path) -> Path:
    """A cascade."""
    small, large = pair(folder)
    made = folder / "cascade.onnx"
    cascade(small, large, made, CascadeOptions(min_agreement=0, max_share=1), data=pixels(200))
    return made
