"""Nodes that draw are found wherever they reach an output, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import capsedge
from capsedge.errors import UnsupportedModelError
from capsedge.graph.random_nodes import random_nodes
from tests.runtime.models import SIDE, capsule_model

Node = onnx.NodeProto


def node(kind: str, inputs: list[str], output: str, domain: str = "", **attributes: object) -> Node:
    return helper.make_node(kind, inputs, [output], name=f"n_{output}", domain=domain, **attributes)


def file(*nodes: Node, functions: tuple[onnx.FunctionProto, ...] = ()) -> onnx.ModelProto:
    """From x [2, 3] to y; the constants are false, true, zero and half."""
    values = {"false": False, "true": True, "zero": np.float32(0), "half": np.float32(0.5)}
    stored = [numpy_helper.from_array(np.array(v), k) for k, v in values.items()]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    graph = helper.make_graph(list(nodes), "g", ends[:1], ends[1:], stored)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def branch(kind: str) -> Node:
    def graph(name: str, inner: Node) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(inner.output[0], TensorProto.FLOAT, [2, 3])
        return helper.make_graph([inner], name, [], [out])

    drawn, plain = node(kind, ["x"], "drawn"), node("Relu", ["x"], "plain")
    return node("If", ["true"], "y", then_branch=graph("a", drawn), else_branch=graph("b", plain))


def function() -> onnx.FunctionProto:
    body = [node("RandomNormalLike", ["a"], "r"), node("Add", ["a", "r"], "b")]
    return helper.make_function("own", "Jitter", ["a"], ["b"], body, [helper.make_opsetid("", 20)])


DRAWING: dict[str, Callable[[], onnx.ModelProto]] = {
    **{
        kind: lambda kind=kind: file(node(kind, ["x"], "r"), node("Add", ["x", "r"], "y"))
        for kind in ("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial")
    },
    **{
        kind: lambda kind=kind: file(
            node(kind, [], "r", shape=[2, 3]), node("Add", ["x", "r"], "y")
        )
        for kind in ("RandomNormal", "RandomUniform")
    },
    "training": lambda: file(node("Dropout", ["x", "half", "true"], "y")),
    "training, default ratio": lambda: file(node("Dropout", ["x", "", "true"], "y")),
    "training computed": lambda: file(
        node("Not", ["false"], "on"), node("Dropout", ["x", "half", "on"], "y")
    ),
    "in a branch": lambda: file(branch("RandomNormalLike")),
    "in a function": lambda: file(node("Jitter", ["x"], "y", "own"), functions=(function(),)),
}
HARMLESS: dict[str, Callable[[], onnx.ModelProto]] = {
    "evaluation": lambda: file(node("Dropout", ["x", "half", "false"], "y")),
    "evaluation by default": lambda: file(node("Dropout", ["x"], "y")),
    "ratio 0": lambda: file(node("Dropout", ["x", "zero", "true"], "y")),
    "reaches no output": lambda: file(
        node("RandomNormalLike", ["x"], "r"), node("Relu", ["x"], "y")
    ),
    "only its shape": lambda: file(
        node("RandomNormalLike", ["x"], "r"),
        node("Shape", ["r"], "s"),
        node("Reshape", ["x", "s"], "y"),
    ),
    "function that nobody calls": lambda: file(node("Relu", ["x"], "y"), functions=(function(),)),
    "a type of that name in another domain": lambda: file(node("Bernoulli", ["x"], "y", "own")),
}


def test_what_draws_is_found_and_the_rest_is_not() -> None:
    wrong = [k for k, make in DRAWING.items() if len(random_nodes(make())) != 1]
    wrong += [k for k, make in HARMLESS.items() if random_nodes(make())]
    assert wrong == []


@pytest.mark.parametrize("kind", ["RandomNormalLike", "training", "in a branch", "in a function"])
def test_optimize_refuses_and_names_the_node(kind: str) -> None:
    model = DRAWING[kind]()
    (found,) = random_nodes(model)
    with pytest.raises(UnsupportedModelError, match="draws random numbers") as caught:
        capsedge.optimize(model.SerializeToString())
    assert f"'{found.name}' ({found.operator})" in caught.value.why


def test_quantize_and_cascade_refuse_and_name_the_node(tmp_path: Path) -> None:
    """Networks that state what they are, with a node that draws before their scores."""
    model = capsule_model()
    (maker,) = (n for n in model.graph.node if "lengths" in n.output)
    maker.output[list(maker.output).index("lengths")] = "exact"
    model.graph.node.append(node("RandomNormalLike", ["exact"], "r"))
    model.graph.node.append(node("Add", ["exact", "r"], "lengths"))
    drawing, right = tmp_path / "drawing.onnx", tmp_path / "right.onnx"
    onnx.save(model, drawing)
    onnx.save(capsule_model(), right)
    images = np.zeros((8, SIDE, SIDE), np.uint8)
    made = tmp_path / "made.onnx"
    verbs: dict[str, Callable[[], object]] = {
        "quantize": lambda: capsedge.quantize(drawing, made, calib_data=images),
        "cascade, small": lambda: capsedge.cascade(drawing, right, made, data=images),
        "cascade, large": lambda: capsedge.cascade(right, drawing, made, data=images),
    }
    for verb, call in verbs.items():
        with pytest.raises(UnsupportedModelError, match="draws random numbers") as caught:
            call()
        assert "'n_r' (RandomNormalLike)" in caught.value.why, verb
        assert not made.exists()
