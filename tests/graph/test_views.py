"""What counts as a view of a tensor."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from capsedge.graph.portable import merge_views

END = 2**63 - 1
GRAPH = """
<ir_version: 8, opset_import: ["" : 18]>
sliced (float[N, 4, 6] x) => (float[M, A, B] y)
<int64[{k}] starts = {{{starts}}}, int64[{k}] ends = {{{ends}}}, int64[{k}] axes = {{{axes}}},
 int64[{k}] steps = {{{steps}}}>
{{ s = Slice(x, starts, ends, axes, steps)  y = Neg(s) }}
"""


@pytest.mark.parametrize(
    ("starts", "ends", "axes", "steps", "left"),
    [
        ([0], [4], [1], [1], False),
        ([0, 0], [END, 9], [0, -1], [1, 1], False),
        ([0], [3], [1], [1], True),
        ([1], [4], [1], [1], True),
        ([0], [4], [0], [1], True),  # four images of however many
        ([0], [6], [2], [2], True),
        ([-1], [-END], [2], [-1], True),  # all of it, backwards
    ],
)
def test_a_slice_of_everything_is_a_view(
    starts: list[int], ends: list[int], axes: list[int], steps: list[int], left: bool
) -> None:
    given = {"starts": starts, "ends": ends, "axes": axes, "steps": steps}
    text = {name: ", ".join(map(str, values)) for name, values in given.items()}
    model = onnx.parser.parse_model(GRAPH.format(k=len(starts), **text))
    x = np.random.default_rng(0).random((5, 4, 6), np.float32)
    wanted = _run(model, x)
    merge_views(model)
    assert ("Slice" in {n.op_type for n in model.graph.node}) == left
    np.testing.assert_array_equal(_run(model, x), wanted)


def _run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return np.asarray(session.run(None, {"x": x})[0])
