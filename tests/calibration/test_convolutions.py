"""Which convolutions can run in 8 bits, and why others cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from capsedge.calibration.quantizable_layers import LayerGraph, conv_problem
from capsedge.spec import limits
from tests.tables import table

MOST = limits.CONVOLUTION_PRODUCTS


@table(
    "weight, attributes, told",
    [
        ((3, 2, 5, 5), {}, ""),
        ((1, MOST, 1, 1), {}, ""),
        ((1, MOST + 1, 1, 1), {}, f"{MOST + 1} products"),
        ((1, 1, MOST + 1, 1), {}, f"{MOST + 1} products"),
        ((3, 2, 5), {}, "1 spatial dimensions, not 2"),
        ((2, 1, 3, 3), {"group": 2}, "2 groups, not 1"),
        ((3, 2, 5, 5), {"auto_pad": "SAME_UPPER"}, "auto_pad"),
    ],
)
def test_why_a_convolution_stays(
    weight: tuple[int, ...], attributes: dict[str, Any], told: str
) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
    value = numpy_helper.from_array(np.zeros(weight, np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "xy")
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], [value]))
    found = conv_problem(LayerGraph(model), model.graph.node[0])
    assert told in found
    assert bool(found) == bool(told)
