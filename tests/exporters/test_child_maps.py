"""Where children lie is found by what changes them, whatever way the network makes capsules of maps."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from capsedge.exporters.user_traced_routing import ChildMap, child_map

ROWS, COLUMNS, TYPES, POSE = 3, 2, 4, 5


def _graph(nodes: list[onnx.NodeProto], capsules: list[int]) -> onnx.ModelProto:
    """A convolution to ``features [N, 20, 3, 2]``, and nodes from there to ``capsules``."""
    weight = np.random.default_rng(0).random((TYPES * POSE, 1, 2, 2), np.float32)
    constants = {
        "weight": weight,
        "flat": np.array([0, TYPES, POSE, ROWS * COLUMNS], np.int64),
        "rows": np.array([0, -1, POSE], np.int64),
    }
    shapes = {"x": [None, 1, 6, 4], "features": [None, TYPES * POSE, ROWS, COLUMNS]}
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (*shapes.items(), ("capsules", [None, *capsules]))
    ]
    first = helper.make_node("Conv", ["x", "weight"], ["features"], strides=[2, 2])
    graph = helper.make_graph(
        [first, *nodes], "g", values[:1], values[2:],
        [numpy_helper.from_array(v, k) for k, v in constants.items()], value_info=values[1:2],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _found(nodes: list[onnx.NodeProto], capsules: list[int]) -> ChildMap | None:
    x = np.random.default_rng(1).random((2, 1, 6, 4), np.float32)
    return child_map(_graph(nodes, capsules), "capsules", {"x": x})


BY_TYPE = [
    helper.make_node("Reshape", ["features", "flat"], ["split"]),
    helper.make_node("Transpose", ["split"], ["turned"], perm=[0, 1, 3, 2]),
]
BY_PLACE = [helper.make_node("Transpose", ["features"], ["turned"], perm=[0, 2, 3, 1])]
ALL = [ROWS * COLUMNS * TYPES, POSE]


def _capsules(source: str = "turned") -> list[onnx.NodeProto]:
    return [
        helper.make_node("Relu", [source], ["positive"]),  # some are zero at some values
        helper.make_node("Reshape", ["positive", "rows"], ["capsules"]),
    ]


@pytest.mark.parametrize(("nodes", "types_first"), [(BY_TYPE, True), (BY_PLACE, False)])
def test_both_orders(nodes: list[onnx.NodeProto], types_first: bool):
    assert _found([*nodes, *_capsules()], ALL) == ChildMap((ROWS, COLUMNS), types_first)


def test_capsules_across_places_have_none():
    """``view(N, -1, P)`` of a convolution's output joins neighbouring places."""
    assert _found(_capsules("features"), ALL) is None


def test_capsules_of_all_places_have_none():
    summed = helper.make_node("GlobalAveragePool", ["features"], ["turned"])
    assert _found([summed, *_capsules()], [TYPES, POSE]) is None


def test_capsules_of_no_map_have_none():
    nodes = [helper.make_node("Reshape", ["x", "rows"], ["capsules"])]
    assert _found(nodes, [-1, POSE]) is None


def test_columns_before_rows_have_none():
    """An order that the metadata cannot state."""
    other = [helper.make_node("Transpose", ["features"], ["turned"], perm=[0, 3, 2, 1])]
    assert _found([*other, *_capsules()], ALL) is None
