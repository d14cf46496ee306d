"""Pixels become the same input as in Python, for every preprocessing of ``spec/vectors/images.json``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.runtime.images.preprocessing import prepare
from capsedge.runtime.metadata.metadata import ModelMetadata, Preprocessing
from tests.exporters.c.compiled import Compiled
from tests.runtime.image_bits import BITS


def model(path: Path, p: Preprocessing) -> Path:
    """A network of one product over images of this preprocessing."""
    size = p.channels * p.height * p.width
    weight = np.full((size, 2), 0.5, np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["images", "s"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], ["lengths"]),
        ],
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", *p.shape])],
        [helper.make_tensor_value_info("lengths", TensorProto.FLOAT, ["N", 2])],
        [
            numpy_helper.from_array(np.array([-1, size]), "s"),
            numpy_helper.from_array(weight, "w"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    metadata = ModelMetadata("capsnet", {}, "dynamic", 3, ("a", "b"), p)
    helper.set_model_props(made, metadata.to_properties())
    onnx.save(made, path)
    return path


@pytest.mark.thorough
def test_every_preprocessing_of_the_vectors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wrong = []
    for number, p in enumerate(bits.preprocessing for bits in BITS):
        c = Compiled(model(tmp_path / f"{number}.onnx", p), tmp_path / f"{number}")
        shape = (p.height, p.width, p.channels)
        for pixels in (rng.integers(0, 256, shape, np.uint8), np.full(shape, 7, np.uint8)):
            if c.prepare(pixels).tobytes() != prepare(pixels, p).tobytes():
                wrong.append(p)
    assert not wrong
