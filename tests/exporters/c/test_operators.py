"""Single operators as C, compared with ONNX Runtime; those without a translation are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.errors import UnsupportedModelError
from capsedge.exporters.c.write_c import generate_c_folder, write_c
from tests.exporters.c.compiled import Compiled
from tests.exporters.c.sanitized import Case, extreme_inputs, run_sanitized

RNG = np.random.default_rng(0)


def _floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _model(
    nodes: list[onnx.NodeProto], shape: list[int], constants: dict[str, Any], name: str = "y"
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def _one(
    operator: str, shape: list[int], constants: dict[str, Any] | None = None, **attributes: Any
) -> onnx.ModelProto:
    constants = constants or {}
    names = list(constants)
    return _model(
        [helper.make_node(operator, ["x", *names], ["y"], **attributes)], shape, constants
    )


IMAGE = [1, 6, 9, 8]
PADS = [1, 1, 1, 1]
NONE = np.array([], np.float32)
CASES: dict[str, onnx.ModelProto] = {
    "convolution": _one(
        "Conv",
        IMAGE,
        {"w": _floats(11, 6, 3, 3), "b": _floats(11)},
        pads=[1, 2, 0, 1],
        strides=[2, 1],
    ),
    "dilated": _one("Conv", IMAGE, {"w": _floats(4, 6, 3, 2)}, dilations=[2, 3], pads=PADS),
    "depthwise": _one(
        "Conv", IMAGE, {"w": _floats(12, 1, 3, 3), "b": _floats(12)}, group=6, pads=PADS
    ),
    "grouped": _one(
        "Conv", IMAGE, {"w": _floats(8, 3, 2, 2)}, group=2, auto_pad="SAME_UPPER", strides=[2, 2]
    ),
    "of a line": _one("Conv", [1, 3, 20], {"w": _floats(5, 3, 4)}, strides=[2], pads=[1, 2]),
    "transposed": _one(
        "ConvTranspose",
        IMAGE,
        {"w": _floats(6, 5, 3, 3), "b": _floats(5)},
        strides=[2, 2],
        pads=[1, 0, 0, 1],
        output_padding=[1, 0],
    ),
    "largest": _one(
        "MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1
    ),
    "mean": _one(
        "AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=PADS, count_include_pad=1
    ),
    "mean inside": _one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=PADS),
    "mean of all": _one("GlobalAveragePool", IMAGE),
    "product": _one("MatMul", [2, 3, 5], {"w": _floats(5, 7)}),
    "products": _one("MatMul", [4, 1, 3, 5], {"w": _floats(2, 5, 6)}),
    "gemm": _one(
        "Gemm", [3, 5], {"w": _floats(7, 5), "c": _floats(7)}, transB=1, alpha=0.5, beta=2.0
    ),
    "softmax": _one("Softmax", [2, 5, 3], axis=1),
    "log softmax": _one("LogSoftmax", [4, 6], axis=-1),
    "layer norm": _one("LayerNormalization", [2, 3, 8], {"s": _floats(8), "b": _floats(8)}),
    "instance norm": _one("InstanceNormalization", IMAGE, {"s": _floats(6), "b": _floats(6)}),
    "batch norm": _one(
        "BatchNormalization",
        IMAGE,
        {"s": _floats(6), "b": _floats(6), "m": _floats(6), "v": np.abs(_floats(6)) + 0.5},
    ),
    "sum": _one("ReduceSum", [2, 3, 4, 5], {"a": np.array([1, 3])}, keepdims=0),
    "norm": _one("ReduceL2", [2, 3, 4], {"a": np.array([-1])}),
    "largest along": _one("ReduceMax", [2, 3, 4], {"a": np.array([1])}, keepdims=0),
    "broadcast": _one("Add", [2, 3, 4], {"c": _floats(3, 1)}),
    "power": _one("Pow", [4, 4], {"p": np.float32(3)}),
    "clip": _one("Clip", [4, 4], {"a": np.float32(-0.5), "b": np.float32(0.25)}),
    "leaky": _one("LeakyRelu", [4, 4], alpha=0.2),
    "transpose": _one("Transpose", [2, 3, 4], perm=[2, 0, 1]),
    "slice": _one(
        "Slice",
        [4, 6, 5],
        {
            "s": np.array([1, 0]),
            "e": np.array([4, 6]),
            "a": np.array([0, 1]),
            "t": np.array([1, 2]),
        },
    ),
    "pad": _one("Pad", [2, 3, 4], {"p": np.array([0, 1, 2, 0, 1, 0]), "v": np.float32(0.5)}),
    "gather": _one("Gather", [3, 5, 2], {"i": np.array([[4, 0], [2, 2]])}, axis=1),
    "tile": _one("Tile", [1, 3, 2], {"r": np.array([4, 2, 1])}),
    "bigger": _one(
        "Resize",
        [1, 2, 5, 4],
        {"r": NONE, "s": np.array([1, 1, 2, 2.5], np.float32)},
        mode="linear",
    ),
    "nearest": _one(
        "Resize",
        [1, 2, 5, 4],
        {"r": NONE, "s": np.array([1, 1, 2, 2], np.float32)},
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    ),
    "depth to space": _one("DepthToSpace", [1, 8, 3, 2], blocksize=2, mode="CRD"),
    **{
        name: _one(name, [3, 7])
        for name in (
            "Exp",
            "Sigmoid",
            "Tanh",
            "Softplus",
            "Abs",
            "Neg",
            "Relu",
            "Reciprocal",
            "Elu",
            "HardSigmoid",
        )
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_operator(name: str, tmp_path: Path) -> None:
    model = CASES[name]
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    net = Compiled(path, tmp_path / "net")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = (
        np.random.default_rng(1)
        .standard_normal(net.description["inputs"][0]["shape"])
        .astype(np.float32)
    )
    (want,) = session.run(None, {"x": x})
    np.testing.assert_allclose(net.run(x)["y"], want, rtol=2e-5, atol=2e-6)


@pytest.mark.thorough
def test_functions_of_one_number(tmp_path: Path) -> None:
    """Exponential and logarithm stay within 2 units in the last place, also for subnormal results."""
    exp = np.concatenate(
        [np.linspace(-104, 89, 60_000), [0, -0.0, 88.72, 88.7229, -103.9, np.inf, -np.inf]]
    )
    log = np.concatenate([np.geomspace(1e-44, 3e38, 60_000), [1, 1.0000001, np.inf]])
    for operator, x, function in (("Exp", exp, np.exp), ("Log", log, np.log)):
        path = tmp_path / f"{operator}.onnx"
        onnx.save(_one(operator, [1, x.size]), path)
        x = x.astype(np.float32)
        got = Compiled(path, tmp_path / operator).run(x[None])["y"][0]
        with np.errstate(over="ignore"):
            exact = function(x.astype(np.float64))
            want = exact.astype(np.float32)
        finite = np.isfinite(want)
        assert np.array_equal(got[~finite], want[~finite])
        assert (np.abs(got - exact)[finite] / np.spacing(np.abs(want[finite]))).max() < 2


@pytest.mark.thorough
def test_powers_of_zeros_and_infinities_are_those_of_ieee(tmp_path: Path) -> None:
    bases = np.array([0.0, -0.0, np.inf, -np.inf, 1, -1, 4, -4], np.float32)
    powers = np.array([0, 0.5, -0.5, 1.5, -1.5, 2, 3, -3, 17, -17, 18, 1e9], np.float32)
    path = tmp_path / "power.onnx"
    onnx.save(_one("Pow", [bases.size, 1], {"p": powers}), path)
    net = Compiled(path, tmp_path / "net", batch=bases.size)
    with np.errstate(all="ignore"):
        want = bases[:, None] ** powers
    got = net.run(bases[:, None])["y"]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    known = ~np.isnan(want)
    assert np.array_equal(np.signbit(got)[known], np.signbit(want)[known])


@pytest.mark.thorough
@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin", "MaxPool"])
def test_the_largest_of_numbers_and_nan_is_nan(operator: str, at: int, tmp_path: Path) -> None:
    axes = {} if operator == "MaxPool" else {"a": np.array([2, 3])}
    attributes = {"kernel_shape": [2, 2]} if operator == "MaxPool" else {"keepdims": 1}
    path = tmp_path / "m.onnx"
    onnx.save(_one(operator, [1, 1, 2, 2], axes, **attributes), path)
    x = np.ones(4, np.float32)
    x[at] = np.nan
    assert np.isnan(Compiled(path, tmp_path / "net").run(x.reshape(1, 1, 2, 2))["y"]).all()


def test_a_network_that_reads_only_the_shape_compiles_without_a_warning(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    path = tmp_path / "shape.onnx"
    onnx.save(_model(nodes, [1, 3], {}), path)
    net = Compiled(path, tmp_path / "net")
    assert net.run(np.zeros((1, 3), np.float32))["y"].tolist() == [1, 3]


def test_an_operator_without_translation_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    path, folder = tmp_path / "m.onnx", tmp_path / "net"
    onnx.save(_one("Sin", [1, 4]), path)
    with pytest.raises(UnsupportedModelError, match=r"'y' \(Sin\) cannot be written as C"):
        write_c(path, folder)
    assert not folder.exists()


def test_outputs_that_do_not_need_the_operator_are_pointed_out(tmp_path: Path) -> None:
    model = _one("Sin", [1, 4])
    model.graph.node.append(helper.make_node("Exp", ["x"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4]))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModelError) as caught:
        write_c(tmp_path / "m.onnx", tmp_path / "net")
    assert caught.value.fix.startswith("Only the output 'y' needs it: return the others alone")


def _integers(kind: int, *nodes: onnx.NodeProto, **constants: Any) -> onnx.ModelProto:
    """The input as integers ``a``, nodes from it to ``b``, and ``b`` as floats."""
    casts = [
        helper.make_node("Cast", ["x"], ["a"], to=kind),
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    return _model([casts[0], *nodes, casts[1]], [1, 6], constants)


NUMBERS = np.array([[7, -7, 0, np.nan, 1e30, -1e30]], np.float32)
ENDS = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT32: (-(1 << 31), (1 << 31) - 1),
    TensorProto.INT64: (-(1 << 63), (1 << 63) - 1),
}


@pytest.mark.thorough
def test_every_number_has_a_result_and_sanitizers_find_nothing(tmp_path: Path) -> None:
    """All operators on random and extreme inputs; integers also against the stated results."""
    models: dict[str, tuple[onnx.ModelProto, np.ndarray | None]] = {
        name: (model, None) for name, model in CASES.items()
    }
    for kind, (low, high) in ENDS.items():
        known = np.clip([[7, -7, 0, 0]], low, high).astype(np.float64)
        cast = np.append(known, [[high, low]], axis=1)
        models[f"cast {kind}"] = (_integers(kind, helper.make_node("Identity", ["a"], ["b"])), cast)
        zero = [
            helper.make_node("Sub", ["a", "a"], ["zero"]),
            helper.make_node("Div", ["a", "zero"], ["b"]),
        ]
        models[f"by zero {kind}"] = (_integers(kind, *zero), np.zeros((1, 6)))
        if low < 0:
            minus = np.array(-1, helper.tensor_dtype_to_np_dtype(kind))
            by = _integers(kind, helper.make_node("Div", ["a", "m"], ["b"]), m=minus)
            models[f"by -1 {kind}"] = (by, np.append(-known, [[-high, low]], axis=1))
        for operator in ("Add", "Mul", "Sub"):
            node = helper.make_node(operator, ["a", "a"], ["b"])
            models[f"{operator} {kind}"] = (_integers(kind, node), None)
    cases = []
    for number, (model, _) in enumerate(models.values()):
        files, description = generate_c_folder(
            model.SerializeToString(), Path("m.onnx"), f"n{number}"
        )
        inputs = extreme_inputs(description["inputs"][0]["shape"])
        cases.append(Case(files, description, [NUMBERS] * (inputs[0].size == 6) or inputs))
        cases[-1].inputs = [*cases[-1].inputs, *inputs]
    for flags in (["-O0"], ["-O0", "-DCAPS_PORTABLE"]):
        assert run_sanitized(cases, tmp_path / flags[-1], flags) == ""
        for case, (name, (_, want)) in zip(cases, models.items(), strict=True):
            if want is not None:
                got = case.results[0]["y"]
                np.testing.assert_array_equal(got, want.astype(np.float32), err_msg=name)
