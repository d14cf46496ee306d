"""One file for histories of any length: the number of children is free where all have the same weight."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from capsedge.exporters.tensorrt import lowering
from capsedge.graph.bodies import function_body
from capsedge.models import ops
from capsedge.runtime.backends.native_library import find_library

N, J, PIN, POUT = 3, 4, 5, 6
ATTRIBUTES = {"iterations": 3, "over_children": 1}
NAMES = ("u", "weight", "log_prior", "bias", "vote_bias", "image_prior", "mask")


def model(count: int = len(NAMES)) -> bytes:
    """A node over ``u [N, I, 5]``, its function body, and that many inputs of the operator as inputs."""
    shapes: list[tuple[int | None, ...]] = [
        (None, None, PIN), (1, J, POUT, PIN), (1, J), (J, POUT), (1, J, POUT), (1, 1, 1), (None, None),
    ][:count]  # fmt: skip
    body = function_body("DynamicRouting", shapes, ATTRIBUTES)
    node = helper.make_node(
        "DynamicRouting", NAMES[:count], ["v"], domain=body.domain, **ATTRIBUTES
    )
    inputs = [
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT, [d or "NI"[k] for k, d in enumerate(shape)]
        )
        for name, shape in zip(NAMES, shapes, strict=False)
    ]
    output = helper.make_tensor_value_info("v", TensorProto.FLOAT, ["N", J, POUT])
    opsets = [*body.opset_import, helper.make_opsetid(body.domain, 1)]
    made = helper.make_model(
        helper.make_graph([node], "g", inputs, [output]),
        functions=[body], opset_imports=opsets, ir_version=10,
    )  # fmt: skip
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("fused", [False, True])
def test_one_file_for_every_length(fused: bool) -> None:
    options = onnxruntime.SessionOptions()
    if fused:
        options.register_custom_ops_library(str(find_library()))
    session = onnxruntime.InferenceSession(model(), options, providers=["CPUExecutionProvider"])
    torch.manual_seed(2)
    weight, prior, bias = torch.randn(1, J, POUT, PIN), torch.randn(1, J), torch.randn(J, POUT)
    for length in (1, 7, 50, 120):
        u = torch.randn(N, length, PIN)
        mask = (torch.arange(length) < torch.tensor([[0], [length // 2], [length]])).float()
        wanted, _ = ops.dynamic_routing(
            u, weight, prior, bias, mask=mask, iterations=3, softmax="children"
        )
        none = torch.zeros(1, J, POUT), torch.zeros(1, 1, 1)
        tensors = (u, weight, prior, bias, *none, mask)
        feeds = {name: x.numpy() for name, x in zip(NAMES, tensors, strict=True)}
        np.testing.assert_allclose(session.run(None, feeds)[0], wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("children", [None, 7])
def test_tensorrt_gets_a_prior_of_every_child(children: int | None) -> None:
    """The plugins read one, whether the number of children is free or not."""
    source = onnx.load_from_string(model(4))
    for value in source.graph.input:
        for size in value.type.tensor_type.shape.dim[1:]:
            if size.dim_param and children:
                size.dim_value = children
    lowered = lowering.fused(source, "capsedge")
    assert {node.op_type for node in lowered.graph.node if node.domain} == {"DynamicRouting"}
    assert any(node.op_type == "Expand" for node in lowered.graph.node)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(find_library()))
    sessions = [
        onnxruntime.InferenceSession(
            m.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for m in (lowered, source)
    ]
    rng = np.random.default_rng(0)
    for length in (children,) if children else (1, 7, 50):
        sizes = [(N, length, PIN), (1, J, POUT, PIN), (1, J), (J, POUT)]
        feeds = {
            name: rng.standard_normal(shape, np.float32)
            for name, shape in zip(NAMES, sizes, strict=False)
        }
        found, wanted = (session.run(None, feeds)[0] for session in sessions)
        np.testing.assert_array_equal(found, wanted)


def test_tensorrt_gets_the_body_with_a_mask() -> None:
    lowered = lowering.fused(onnx.load_from_string(model()), "capsedge")
    assert {node.domain for node in lowered.graph.node} == {""}
