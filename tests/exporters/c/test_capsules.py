"""The operators of capsules as C, compared with their function bodies in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.bodies import function_body
from capsedge.spec.operators import DOMAIN, OPERATORS
from tests.exporters.c.compiled import Compiled

RNG = np.random.default_rng(3)
EM = {"iterations": 2, "inverse_temperatures": [0.05, 0.1]}


def _floats(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 0.5).astype(np.float32)


def _int8(*shape: int) -> np.ndarray:
    return RNG.integers(-127, 128, shape).astype(np.int8)


def _dynamic(j: int, p: int, **attributes: Any) -> tuple[str, list[Any], dict[str, Any]]:
    constants = [_floats(7, j, p, 5), _floats(7, j), _floats(j, p)]
    return "DynamicRouting", [[1, 7, 5], *constants], attributes


def _em(*weight: int, **attributes: Any) -> tuple[str, list[Any], dict[str, Any]]:
    size = weight[4] * weight[5]
    inputs = [
        [1, 4, 3, weight[2], size],
        "activations",
        _floats(*weight),
        _floats(weight[3]),
        _floats(weight[3]),
    ]
    return "EMRouting", inputs, {**EM, **attributes}


def _maps(
    operator: str, *weight: int, rows: int = 0, **attributes: Any
) -> tuple[str, list[Any], dict[str, Any]]:
    rows = rows or weight[4]
    return operator, [[1, 4, 4, weight[2], rows * weight[4]], _floats(*weight), _floats(rows * weight[5]),
                      _floats(rows * weight[5])], attributes  # fmt: skip


CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "squash": ("Squash", [[2, 3, 5]], {}),
    "squash of columns": ("Squash", [[1, 6, 4, 3]], {"axis": 1}),
    "dynamic": _dynamic(3, 4),
    "odd sizes": _dynamic(3, 5, iterations=2),
    "one weight": (
        "DynamicRouting",
        [[1, 7, 5], _floats(1, 3, 4, 5), _floats(7, 3), _floats(3, 4)],
        {},
    ),
    "leaky": _dynamic(4, 3, leaky=1, agreement_scale=0.5),
    "over children": _dynamic(3, 4, over_children=1),
    "replaced": _dynamic(3, 4, replace=1, normalize=1),
    "of elements": _dynamic(3, 4, elementwise=1),
    "one iteration": _dynamic(3, 4, iterations=1),
    "dynamic int8": (
        "QuantizedDynamicRouting",
        [[1, 7, 5], _int8(7, 3, 6, 5), np.abs(_floats(3, 6)) * 0.02, _floats(7, 3), _floats(3, 6)],
        {},
    ),
    "votes": ("VoteRouting", [[1, 5, 3, 4], _floats(5, 3), _floats(3, 4)], {"iterations": 2}),
    "em": _em(2, 2, 3, 5, 4, 4, strides=[2, 1], coordinate_addition=1),
    "em of 3x3 poses": _em(2, 2, 3, 4, 3, 3, ones_first=1, normalize_activations=1),
    "em with epsilons": _em(
        2, 2, 3, 5, 4, 4, variance_epsilon=1e-3, activation_epsilon=1e-2, cost_epsilon=0.1
    ),
    "em of all": _em(1, 1, 3, 5, 4, 4, shared=1, coordinate_addition=1),
    "uniform": _maps("UniformRouting", 3, 3, 2, 4, 4, 4),
    "uniform of vectors": _maps(
        "UniformRouting", 2, 2, 3, 4, 6, 5, rows=1, matrix_pose=0, strides=[2, 2]
    ),
    "self-attention": ("SelfAttentionRouting", [[1, 6, 4], _floats(6, 3, 5, 4), _floats(6, 3)], {}),
    "normalization": ("PoseNormalization", [[1, 2, 3, 8], _floats(8), _floats(8)], {}),
}


def _model(operator: str, inputs: list[Any], attributes: dict[str, Any]) -> onnx.ModelProto:
    """One node; its first input is the graph's, and activations are made of that."""
    spec = OPERATORS[operator]
    attributes = spec.complete(attributes)
    names, shapes, constants, nodes = ["x"], [tuple(inputs[0])], [], []
    for value, given in zip(spec.inputs[1:], inputs[1:], strict=False):
        names.append(value.name)
        if isinstance(given, str):
            shapes.append(tuple(inputs[0][:4]))
            nodes += [
                helper.make_node("ReduceMean", ["x", "last"], ["mean"], keepdims=0),
                helper.make_node("Sigmoid", ["mean"], [value.name]),
            ]
            constants.append(numpy_helper.from_array(np.array([-1]), "last"))
        else:
            shapes.append(given.shape)
            constants.append(numpy_helper.from_array(given, value.name))
    body = function_body(operator, list(shapes), attributes)
    outputs = [o.name for o in spec.outputs]
    nodes.append(
        helper.make_node(operator, names, outputs, domain=DOMAIN, name="routing", **attributes)
    )
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs[0])],
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs],
        constants,
    )
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9, functions=[body])


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_operator(name: str, tmp_path: Path) -> None:
    model = _model(*CASES[name])
    onnx.save(model, tmp_path / "m.onnx")
    net = Compiled(tmp_path / "m.onnx", tmp_path / "net")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = (
        np.random.default_rng(1)
        .standard_normal(net.description["inputs"][0]["shape"])
        .astype(np.float32)
    )
    got = net.run(x)
    for output, want in zip(session.get_outputs(), session.run(None, {"x": x}), strict=True):
        np.testing.assert_allclose(got[output.name], want, rtol=1e-4, atol=1e-5)
    for flag in ("-DCAPS_PORTABLE", "-march=native"):
        net.again(flag)
        for name, value in net.run(x).items():
            assert np.array_equal(value, got[name]), (flag, name)
