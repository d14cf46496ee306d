"""What is emitted computes nearly the same, in the precision that was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.calibration import collect, int8_cpu, quantizable_layers
from capsedge.calibration.accuracy import Gate
from capsedge.calibration.float_model import FloatModel, uniform_assignment
from capsedge.calibration.int8_cpu import activation_parameters
from capsedge.calibration.mixed_precision import search, sensitivity
from capsedge.calibration.quantizable_layers import LayerGraph, calibrated_tensors, find_layers
from capsedge.calibration.quantization_report import executed_precision, optimized_graph
from capsedge.calibration.ranges import CalibrationTable
from capsedge.datasets import ImageSet
from capsedge.errors import UsageError
from capsedge.runtime.inspection import inspect_file as inspect
from capsedge.runtime.load import load_bytes
from capsedge.spec.operators import operator_of

from .conftest import pixels


@pytest.fixture(scope="module")
def calibration(source: FloatModel):
    return pixels(48, 1, source)


@pytest.fixture(scope="module")
def table(source: FloatModel, calibration):
    return source.calibrate(calibration, "minmax", None)


def _range(source: FloatModel, data) -> float:
    scores = np.concatenate(next(iter(source.criterion_outputs(data).values())))
    return float(scores.max() - scores.min())


def test_int8_for_onnx_runtime(source: FloatModel, table, calibration) -> None:
    model, _ = source.emit(uniform_assignment(source.layers, "int8"), table, "ort-cpu")
    data = pixels(40, 2, source)
    assert source.outcome(model, data).error < 0.05 * _range(source, data)
    kinds = {(n.domain, n.op_type) for n in model.graph.node}
    assert ("capsedge", "QuantizedConv") in kinds
    assert ("", "Conv") not in kinds
    # Absorbed: uint8 with zero point 0 cuts where it would. Exact Sigmoids have their own.
    assert not [
        n.output[0]
        for n in model.graph.node
        if n.op_type == "Relu" and "sigmoid" not in n.output[0]
    ]
    for t in model.graph.initializer:
        # of the rectified tensors; the primary capsules have no ReLU
        if t.name.endswith("relu_zero_point"):
            assert numpy_helper.to_array(t) == 0
    content = model.SerializeToString()
    runs = executed_precision(content)
    assert all(e.precision != "unknown" for e in runs)
    assert {e.precision for e in runs if "Conv" in e.op} == {"int8"}
    for ops in ("auto", "portable"):
        found = load_bytes(content, ops=ops).run(next(data.batches(3)))
        assert all(np.isfinite(v).all() for v in found.values())


def test_the_bodies_are_what_the_kernels_compute(source: FloatModel, table) -> None:
    model, _ = source.emit(uniform_assignment(source.layers, "int8"), table, "ort-cpu")
    images = next(pixels(8, 3, source).batches(8))
    content = model.SerializeToString()
    fused, bodies = load_bytes(content), load_bytes(content, ops="portable")
    if fused.backend.ops != "fused":
        pytest.skip("the operator library is not built here")
    for name, value in bodies.run(images).items():
        np.testing.assert_allclose(fused.run(images)[name], value, atol=1e-4, rtol=1e-3)


def test_without_the_library_it_is_qlinearconv(source: FloatModel, table, monkeypatch) -> None:
    monkeypatch.setattr("capsedge.calibration.quantization_report.find_library", lambda: None)
    model, _ = source.emit(uniform_assignment(source.layers, "int8"), table, "ort-cpu")
    kinds = [n.op_type for n in optimized_graph(model.SerializeToString()).graph.node]
    # A uniform pass of attention is a convolution too, in FP32.
    uniform_passes = sum(operator_of(n.op_type) == "UniformRouting" for n in model.graph.node)
    assert kinds.count("QLinearConv") == sum(u.kind == "conv" for u in source.layers)
    assert sum("Conv" in k for k in kinds) <= kinds.count("QLinearConv") + uniform_passes


def test_convolutions_that_share_a_weight() -> None:
    """Each has the scale of its own input in its bias."""
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 1, (8, 8, 3, 3)).astype(np.float32)
    weight[3] = 0  # this channel's scale is what its biases need
    bias = np.linspace(-20, 20, 8).astype(np.float32)
    shape = ["N", 8, 10, 10]
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Conv", ["x", "w.weight", "b"], ["h"], pads=[1] * 4),
             helper.make_node("Conv", ["h", "w.weight", "b"], ["y"], pads=[1] * 4)],
            "shared",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            [numpy_helper.from_array(weight, "w.weight"), numpy_helper.from_array(bias, "b")],
        ),
        opset_imports=[helper.make_opsetid("", 20)], ir_version=9,
    )  # fmt: skip
    graph = LayerGraph(model)
    units, _ = find_layers(graph)
    data = ImageSet("random", rng.normal(0, 1, (40, 8, 10, 10)).astype(np.float32), None, None)
    found = collect.histograms(model, calibrated_tensors(graph, units), data)
    table = CalibrationTable.from_histograms("", "", "minmax", 40, "", found)
    quantized = int8_cpu.emit(model, units, uniform_assignment(units, "int8"), table)
    outputs = []
    for each in (model, quantized):
        outputs.append(load_bytes(each.SerializeToString()).run(data.images)["y"])
    wanted, got = outputs
    assert np.abs(got - wanted).max() < 0.05 * np.ptp(wanted)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_elements_of_a_weight_that_are_looked_up(axis: int, order: int) -> None:
    """A codebook: a product takes it in 8 bits, the lookup beside it stays as it is."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w.weight"], ["p"]),
        helper.make_node("Gather", ["w.weight", "at"], ["g"], axis=axis),
    ]
    nodes = [
        *(nodes if order else nodes[::-1]),
        helper.make_node("ReduceSum", ["g"], ["s"]),
        helper.make_node("Add", ["p", "s"], ["y"]),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes, "codebook",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 24]),
             helper.make_tensor_value_info("at", TensorProto.INT64, ["N"])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(rng.normal(0, 1, (24, 40)).astype(np.float32), "w.weight")],
        ),
        opset_imports=[helper.make_opsetid("", 20)], ir_version=9,
    )  # fmt: skip
    units, _ = find_layers(LayerGraph(model))
    assert [u.kind for u in units] == ["linear"]
    table = CalibrationTable("", "", "minmax", 1, "", {})
    quantized = int8_cpu.emit(model, units, uniform_assignment(units, "int8"), table)
    feeds = {"x": rng.normal(0, 1, (5, 24)).astype(np.float32), "at": np.array([3, 0, 23, 7, 7])}
    wanted, got = (
        load_bytes(each.SerializeToString()).run(feeds)["y"] for each in (model, quantized)
    )
    assert np.abs(got - wanted).max() < 0.02 * np.ptp(wanted)


def test_a_weight_stays_if_one_of_its_convolutions_must() -> None:
    weight = numpy_helper.from_array(np.ones((4, 4, 3, 3), np.float32), "w.weight")
    for attributes in ({"pads": [1] * 4}, {"auto_pad": "SAME_UPPER"}):
        other = {"auto_pad": "SAME_UPPER"} if "pads" in attributes else {"pads": [1] * 4}
        graph = helper.make_graph(
            [helper.make_node("Conv", ["x", "w.weight"], ["h"], **attributes),
             helper.make_node("Conv", ["h", "w.weight"], ["y"], **other)],
            "shared",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 9, 9])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [weight],
        )  # fmt: skip
        layers, kept = find_layers(LayerGraph(helper.make_model(graph)))
        assert layers == []
        assert [k.numbers for k in kept] == ["its padding is computed (auto_pad)"]


@pytest.mark.parametrize(
    ("low", "high"), [(101_320.0, 101_330.0), (0.99999, 1.0), (1.7e9, 1.7e9 + 128), (0.0, 1e-44)]
)
def test_ranges_that_are_narrow_beside_their_values(low: float, high: float) -> None:
    """Pressures in pascals, saturated activations, times in seconds."""
    values = np.linspace(low, high, 4 * 64).astype(np.float32).reshape(4, 1, 8, 8)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 1, 8, 8]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    found = collect.histograms(model, ["y"], ImageSet("narrow", values, None, None))["y"]
    assert found.counts.sum() == values.size
    assert (found.low, found.high) == (values.min(), values.max())
    scale, _ = activation_parameters(found.low, found.high)
    assert np.float32(scale) > 0


def test_the_bias_makes_up_for_the_rounding_of_the_weights() -> None:
    """The mean of every channel stays, though 4-bit weights are off by much and the inputs have a mean."""
    rng = np.random.default_rng(0)
    weight = rng.normal(0, 1, (6, 8, 1, 1)).astype(np.float32)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Conv", ["x", "w.weight"], ["y"])],
            "biased",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8, 10, 10])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 6, 10, 10])],
            [numpy_helper.from_array(weight, "w.weight")],
        ),
        opset_imports=[helper.make_opsetid("", 20)], ir_version=9,
    )  # fmt: skip
    graph = LayerGraph(model)
    units, _ = find_layers(graph)
    images = rng.normal(5, 1, (40, 8, 10, 10)).astype(np.float32)
    data = ImageSet("random", images, None, None)
    found = collect.histograms(model, calibrated_tensors(graph, units), data)
    table = CalibrationTable.from_histograms("", "", "minmax", 40, "", found)
    quantized = int8_cpu.emit(model, units, uniform_assignment(units, "int4"), table)
    wanted, got = (load_bytes(m.SerializeToString()).run(images)["y"] for m in (model, quantized))
    apart = np.abs((got - wanted).mean(axis=(0, 2, 3)))
    assert apart.max() < 0.02


def test_a_fixed_batch_larger_than_the_data_is_refused(source: FloatModel) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 1, 10, 10])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 1, 10, 10])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "fixed", [x], [y])
    fixed = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    with pytest.raises(UsageError, match="too few"):
        collect.magnitudes(fixed, ["y"], pixels(7, 0, source))
    assert collect.magnitudes(fixed, ["y"], pixels(9, 0, source))["y"][1] <= 1


def test_int4_is_packed_and_runs_as_int8(source: FloatModel, table) -> None:
    eight, _ = source.emit(uniform_assignment(source.layers, "int8"), table, "ort-cpu")
    four, _ = source.emit(uniform_assignment(source.layers, "int4"), table, "ort-cpu")
    packed = [t for t in four.graph.initializer if t.data_type == TensorProto.INT4]
    whole = {t.name: len(t.raw_data) for t in eight.graph.initializer}
    for t in packed:
        assert len(t.raw_data) == (whole[t.name.replace("_int4", "_int8")] + 1) // 2
    assert len(packed) == len(source.layers)
    content = four.SerializeToString()
    assert "Cast" not in {
        n.op_type for n in optimized_graph(content).graph.node
    }  # folded on loading
    assert any(e.precision == "int8" for e in executed_precision(content))
    assert source.outcome(four, pixels(20, 2, source)).error < 0.5


def test_for_tensorrt(source: FloatModel, table) -> None:
    chosen = source.quantizable("tensorrt")
    assert chosen
    model, kept = source.emit(uniform_assignment(chosen, "int8"), table, "tensorrt")
    makers = {o: n for n in model.graph.node for o in n.output}
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    convs = [n for n in model.graph.node if n.op_type == "Conv"]
    quantized = [n for n in convs if n.input[1] in makers]
    assert len(quantized) == len(chosen)
    for node in quantized:
        for k in (0, 1):
            dq = makers[node.input[k]]
            assert dq.op_type == "DequantizeLinear"
            assert values[dq.input[2]].dtype == np.int8
            assert not values[dq.input[2]].any()
            assert (values[dq.input[1]] > 0).all()
        assert values[makers[node.input[1]].input[1]].shape == (values[node.input[2]].shape[0],)
        # nothing between a convolution and its ReLU
        users = {n.op_type for n in model.graph.node if node.output[0] in n.input}
        assert "QuantizeLinear" not in users or len(users) > 1 or users == {"QuantizeLinear"}
    routing = [n for n in model.graph.node if n.domain == "capsedge"]
    assert routing
    assert not any(n.op_type.startswith("Quantized") for n in routing)
    assert {k.rule for k in kept} <= {"not-fused", "narrow", "small", "shape"}
    assert all(k.numbers for k in kept)
    data = pixels(20, 2, source)
    assert source.outcome(model, data).error < 0.05 * _range(source, data)


@pytest.mark.parametrize("target", ["openvino", "litert"])
def test_for_other_runtimes(path: Path, target: str) -> None:
    """Q/DQ in standard operators; LiteRT's with constant shapes."""
    source = FloatModel(path, runtime=target)
    calibration, data = pixels(48, 1, source), pixels(20, 2, source)
    table = source.calibrate(calibration, "minmax", None)
    chosen = source.quantizable(target)
    assert {u.kind for u in chosen} == {"conv"}
    assert {u.name for u in source.quantizable("tensorrt")} <= {u.name for u in chosen}
    model, _ = source.emit(uniform_assignment(chosen, "int8"), table, target)
    assert {o.domain for o in model.opset_import} == {""}
    assert not model.functions
    kinds = [n.op_type for n in model.graph.node]
    assert "QLinearConv" not in kinds
    assert kinds.count("QuantizeLinear") >= 1
    weights_int8 = [t for t in model.graph.initializer if len(t.dims) == 4 and t.data_type == 3]
    assert len(weights_int8) == len(chosen)
    batch = model.graph.input[0].type.tensor_type.shape.dim[0]
    assert batch.dim_value == (1 if target == "litert" else 0)
    assert source.outcome(model, data).error < 0.05 * _range(source, data)


def test_fp16_islands(source: FloatModel, calibration) -> None:
    model, kept = source.to_fp16(calibration)
    halves = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT16]
    assert len(halves) >= len(source.layers)
    kinds = {k.op: k for k in kept}
    assert set(kinds) & {"Sqrt", "Exp", "LayerNormalization", "Softmax"} or not kept
    if "Sqrt" in kinds:  # the whole norm: squares and their sum too
        assert {"Mul", "MatMul"} <= set(kinds)
    for k in kept:
        assert k.rule in ("statistics", "range", "epsilon")
        assert k.numbers
    data = pixels(40, 2, source)
    outcome = source.outcome(model, data)
    assert outcome.error < 0.005 * max(_range(source, data), 0.1)
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


def test_fp16_keeps_what_does_not_fit(source: FloatModel, calibration) -> None:
    from capsedge.calibration import collect, fp16
    from capsedge.calibration.quantizable_layers import float_tensors

    limits = collect.magnitudes(source.model, float_tensors(source.model), calibration)
    first = next(n for n in source.model.graph.node if n.op_type == "Conv")
    limits[first.output[0]] = (-3e4, 2e4)
    _, kept = fp16.emit(source.model, limits)
    mine = next(k for k in kept if k.rule == "range")
    assert "3e+04" in mine.numbers
    assert "65504" in mine.numbers


@pytest.mark.thorough
def test_sensitivity_ranks_layers_and_iterations(source: FloatModel, table, calibration) -> None:
    found = sensitivity(source, table, pixels(30, 2, source), calibration)
    errors = [d.outcome.error for d in found]
    assert errors == sorted(errors, reverse=True)
    assert {u.name for u in source.layers} <= {d.name for d in found}
    iterations = [d for d in found if d.kind == "iteration"]
    assert len(iterations) >= source.metadata.iterations - 1
    assert all("iteration" in d.name for d in iterations)
    assert len({d.name for d in iterations}) == len(iterations)


@pytest.mark.thorough
def test_mixed_search_stays_within_the_drop(source: FloatModel, table) -> None:
    data = pixels(60, 4, source)
    found = search(source, table, data, "ort-cpu", Gate(0.0), threads=1)
    assert found.smallest is not None
    assert found.fastest is not None
    assert found.smallest.outcome.drop <= 0.0
    assert found.smallest.bytes == min(c.bytes for c in found.candidates if c.fits)
    front = found.pareto()
    assert front == sorted(front, key=lambda c: c.bytes)
    wide = search(source, table, data, "ort-cpu", Gate(100.0), threads=1)
    assert wide.smallest is not None
    assert "int4" in wide.smallest.assignment.values()
    assert wide.smallest.bytes <= found.smallest.bytes


def test_weights_round_trip() -> None:
    w = np.random.default_rng(0).normal(size=(8, 3, 3, 3)).astype(np.float32)
    w[5] = 0
    w[2, 1] *= 0.05  # a kernel of small weights in a channel of large ones
    integers, scale = quantizable_layers.quantize(w, (1, 2, 3))
    assert scale.shape == (8, 1, 1, 1)
    assert np.abs(integers.astype(int)).max() == 127
    assert np.abs(integers * scale - w).max() <= scale.max() / 2 + 1e-7
    assert scale[5] == 0
    assert not integers[5].any()
    four, multiplier = quantizable_layers.quantize4(w, scale)
    assert np.abs(four.astype(int)).max() <= 7
    assert multiplier.shape == (8, 3, 1, 1)
    whole = four.astype(int) * multiplier
    assert np.abs(whole).max() <= 127
    assert multiplier[2, 1] < multiplier[2, 0]
    plain = np.abs(w).max(axis=(1, 2, 3), keepdims=True) / 7
    with np.errstate(invalid="ignore"):
        simple = np.nan_to_num(np.rint(w / plain)) * plain
    assert np.square(w - whole * scale).sum() < np.square(w - simple).sum()


def test_groups_of_one_multiplier_have_eight_weights_or_a_whole_channel() -> None:
    for shape, wanted in (
        ((8, 3, 3, 3), (8, 3, 1, 1)),
        ((8, 3, 2, 4), (8, 3, 1, 1)),
        ((8, 3, 2, 2), (8, 1, 1, 1)),
        ((8, 3, 1, 1), (8, 1, 1, 1)),
        ((4, 2, 3, 5, 1, 2), (4, 2, 3, 1, 1, 1)),
        ((300,), (1,)),
    ):
        w = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        scale = quantizable_layers.quantize(w, tuple(range(1, len(shape))) or (0,))[1]
        assert quantizable_layers.quantize4(w, scale)[1].shape == wanted, shape


def test_int4_packing() -> None:
    values = np.array([[-7, 7, 1], [0, -1, 3]], np.int8)
    tensor = quantizable_layers.int4_tensor("w", values)
    onnx.checker.check_tensor(tensor)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor).astype(np.int8), values)


def test_activation_parameters_hold_zero() -> None:
    assert activation_parameters(0.0, 255.0) == (1.0, 0)
    scale, zero = activation_parameters(-1.0, 1.0)
    assert zero in (127, 128)
    assert activation_parameters(0.5, 1.0)[1] == 0
    assert activation_parameters(-2.0, -1.0)[1] == 255
    assert activation_parameters(0.0, 0.0) == (1.0, 0)
    assert scale == pytest.approx(2 / 255)


def test_inspect_shows_routing_with_int8_weights(source: FloatModel, tmp_path: Path) -> None:
    """The same votes as in FP32, with a quarter of the weights' bytes."""
    table = source.calibrate(pixels(8, 0, source), "minmax", None)
    path = tmp_path / "int8.onnx"
    made, _ = source.emit(uniform_assignment(source.layers, "int8"), table, "ort-cpu")
    onnx.save(made, path)
    wanted, found = inspect(source.path, [1, 8]).routing, inspect(path, [1, 8]).routing
    assert found
    assert len(found) == len(wanted)
    eight = {u.name for u in source.layers if u.kind == "routing"}
    for own, other in zip(found, wanted, strict=True):
        assert own.name == other.name
        assert own.operator == ("Quantized" if own.name in eight else "") + other.operator
        assert (own.positions, own.children) == (other.positions, other.children)
        assert (own.parents, own.pose, own.votes) == (other.parents, other.pose, other.votes)
        assert own.votes
        assert (own.fused[8] < other.fused[8]) == (own.name in eight)
