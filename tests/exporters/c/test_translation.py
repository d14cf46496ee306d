"""Nodes become C with ONNX's sizes and elements, or are refused; nothing runs without an end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.errors import UnsupportedModelError
from capsedge.exporters.c import graph as translation
from capsedge.exporters.c import movement
from capsedge.exporters.c.write_c import write_c
from tests.exporters.c.compiled import Compiled

SCALES = (0.1, 0.3, 1 / 3, 0.6, 2 / 3, 0.7, 0.9, 1.1, 1.2, 1.3, 1.4, 1.7, 1.9, 2.0, 2.5, 3.3)


def saved(
    path: Path, nodes: list[onnx.NodeProto], shape: list[int], **stored: Any
) -> onnx.ModelProto:
    """A file from ``x`` to ``y``."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return model


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("scale", SCALES)
def test_nearest_neighbours_are_those_of_onnx_runtime(scale: float, tmp_path: Path) -> None:
    """As PyTorch exports ``mode="nearest"``: the last bit decides which element is read."""
    sizes = [n for n in (1, 2, 3, 5, 7, 9, 10, 15, 20, 30, 49, 50) if int(n * scale) not in (0, n)]
    for n in sizes:
        resize = helper.make_node(
            "Resize", ["x", "", "s"], ["y"],
            mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
        )  # fmt: skip
        model = saved(tmp_path / "m.onnx", [resize], [n], s=np.array([scale], np.float32))
        (want,) = ort.InferenceSession(model.SerializeToString()).run(
            None, {"x": np.arange(n, dtype=np.float32)}
        )
        by = float(np.float32(scale))
        at = movement._positions(n, len(want), by, "asymmetric").astype(np.float64)
        assert np.clip(np.floor(at), 0, n - 1).tolist() == want.tolist(), n


def test_scaled_sizes_are_rounded_as_in_onnx(tmp_path: Path) -> None:
    """10 * 0.7 is 7 in FP32, and 6.9999999 in FP64."""
    resize = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")
    scales = np.array([1, 1, 0.7, 1.9], np.float32)
    saved(tmp_path / "m.onnx", [resize], [1, 2, 10, 10], s=scales)
    report = write_c(tmp_path / "m.onnx", tmp_path / "net", name="net")
    assert report.description["outputs"][0]["shape"] == [1, 2, 7, 19]


@pytest.mark.thorough
def test_a_scale_that_changes_no_size(tmp_path: Path) -> None:
    resize = helper.make_node(
        "Resize", ["x", "", "s"], ["y"],
        mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip
    scales = np.array([1, 1, 1.1, 1.2], np.float32)
    model = saved(tmp_path / "m.onnx", [resize], [1, 1, 2, 3], s=scales)
    x = floats(1, 1, 2, 3)
    (want,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    assert np.array_equal(Compiled(tmp_path / "m.onnx", tmp_path / "net").run(x)["y"], want)


def test_a_result_of_another_size_than_in_onnx_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {**translation.TRANSLATORS, "Neg": lambda program, node: [program.new((7,))]}
    monkeypatch.setattr(translation, "TRANSLATORS", wrong)
    saved(tmp_path / "m.onnx", [helper.make_node("Neg", ["x"], ["y"])], [3])
    with pytest.raises(UnsupportedModelError, match=r"shape \[7\], in ONNX it has \[3\]"):
        write_c(tmp_path / "m.onnx", tmp_path / "net", name="net")


@pytest.mark.thorough
@pytest.mark.parametrize("final", [True, False])
def test_constant_layers_and_their_relu(final: bool, tmp_path: Path) -> None:
    """Learned queries: a layer of constants alone is computed beforehand, and so is its ReLU."""
    nodes = [
        helper.make_node("Gemm", ["c", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Add", ["r", "x"], ["y"]),
    ]
    constants = {"c": floats(2, 3), "w": floats(3, 4), "b": floats(4)}
    model = saved(tmp_path / "m.onnx", nodes, [2, 4], **constants)
    if final:
        model.graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, [2, 4]))
        onnx.save(model, tmp_path / "m.onnx")
    x = floats(2, 4)
    session = ort.InferenceSession(model.SerializeToString())
    want = dict(
        zip([o.name for o in session.get_outputs()], session.run(None, {"x": x}), strict=True)
    )
    got = Compiled(tmp_path / "m.onnx", tmp_path / "net").run(x)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_a_square_takes_the_rank_of_its_exponent(tmp_path: Path) -> None:
    power = helper.make_node("Pow", ["x", "p"], ["y"])
    saved(tmp_path / "m.onnx", [power], [3], p=np.full((1, 1), 2, np.float32))
    net = Compiled(tmp_path / "m.onnx", tmp_path / "net")
    assert net.description["outputs"][0]["shape"] == [1, 3]
    assert net.run(np.array([1, -2, 3], np.float32))["y"].tolist() == [[1, 4, 9]]


def test_a_loop_of_constants_is_never_run(tmp_path: Path) -> None:
    """It may have no end."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [3]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["", "yes", "c"], ["l"], body=body),
        helper.make_node("Add", ["l", "x"], ["y"]),
    ]
    saved(tmp_path / "m.onnx", nodes, [3], yes=np.array(True), c=floats(3))
    with pytest.raises(UnsupportedModelError, match="Loop"):
        write_c(tmp_path / "m.onnx", tmp_path / "net", name="net")


def test_an_operator_of_unknown_sizes_is_refused() -> None:
    graph = helper.make_graph(
        [
            helper.make_node("Unheard", ["x"], ["u"], domain="other"),
            helper.make_node(
                "VoteRouting", ["u", "prior", "bias"], ["y"], domain="capsedge", iterations=2
            ),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            numpy_helper.from_array(np.zeros((4, 2), np.float32), "prior"),
            numpy_helper.from_array(np.zeros((2, 3), np.float32), "bias"),
        ],
    )
    opsets = [
        helper.make_opsetid("", 17),
        helper.make_opsetid("capsedge", 1),
        helper.make_opsetid("other", 1),
    ]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    with pytest.raises(UnsupportedModelError, match="VoteRouting"):
        translation.prepare(model, ["y"])
