"""What TensorRT's parser is given: no functions, plugins marked, standard operators that mean the same."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.calibration import int8_qdq
from capsedge.calibration.float_model import FloatModel, uniform_assignment
from capsedge.datasets import ImageSet
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.exporters.tensorrt import lowering
from capsedge.graph.functions import attach_short_functions
from capsedge.graph.ir import copy_of, inferred, operator_nodes, shapes_of
from capsedge.runtime.backends.tensorrt_library import PLUGINS
from capsedge.spec.limits import runtime_limit
from tests.exporters.nets import CONFIGS, network
from tests.exports import Exports
from tests.runtime.test_table_indices import table_file

IMAGES = np.random.default_rng(0).standard_normal((3, 1, 10, 10)).astype(np.float32)


# Vectors are lowered as matrices are.
FEWER = [
    pytest.param(name, marks=pytest.mark.thorough) if name == "attention-vector" else name
    for name in CONFIGS
]


@pytest.fixture(scope="module", params=FEWER)
def model(request: pytest.FixtureRequest, exported: Exports) -> onnx.ModelProto:
    return onnx.load(exported(network(request.param)).path)


def run(model: onnx.ModelProto, library: bool = False) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if library:
        from capsedge.runtime.backends.native_library import find_library

        if find_library() is None:
            pytest.skip("the operator library is not built")
        options.register_custom_ops_library(str(find_library()))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"images": IMAGES})


def test_native_is_standard_operators_that_mean_the_same(model: onnx.ModelProto) -> None:
    lowered = lowering.native(model)
    assert not lowered.functions
    assert {n.domain for n in lowered.graph.node} == {""}
    assert [e.domain for e in lowered.opset_import] == [""]
    onnx.checker.check_model(lowered, full_check=True)
    for found, wanted in zip(run(lowered), run(model), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    # The model given is left as it was.
    assert model.functions


def test_fused_has_marked_plugins_and_no_function(model: onnx.ModelProto) -> None:
    lowered = lowering.fused(model, "capsedge")
    assert not lowered.functions
    nodes = operator_nodes(lowered)
    assert any(n.op_type.endswith("Routing") for n in nodes)
    assert {n.op_type for n in nodes} <= set(PLUGINS)
    assert {n.domain for n in lowered.graph.node} == {"", "capsedge"}
    for node in nodes:
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        assert given["plugin_version"] == b"1"
        assert given["plugin_namespace"] == b"capsedge"
        assert not node.overload
    for found, wanted in zip(run(lowered, library=True), run(model), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_more_iterations_than_the_plugins_make_are_refused(model: onnx.ModelProto) -> None:
    lowering.check_plugin_limits(model)
    model = copy_of(model)
    routing = [n for n in operator_nodes(model) if "iterations" in {a.name for a in n.attribute}]
    if not routing:
        return  # attention routes in passes
    for attribute in routing[0].attribute:
        if attribute.name == "iterations":
            attribute.i = runtime_limit("cuda", "ITERATIONS") + 1
    with pytest.raises(
        UnsupportedModelError, match="65 iterations; the plugins support at most 64"
    ):
        lowering.check_plugin_limits(model)


def described(model: onnx.ModelProto) -> dict[str, Any]:
    """What GraphSurgeon must leave alone."""
    graph = model.graph
    stored = {t.name for t in graph.initializer}
    values = (*graph.input, *graph.output, *graph.value_info)
    return {
        "opsets": {e.domain: e.version for e in model.opset_import},
        "format": (model.ir_version, [(p.key, p.value) for p in model.metadata_props]),
        "types": {v.name: v.type for v in values if v.name not in stored},
        "order": [(n.op_type, n.domain, tuple(n.input), tuple(n.output)) for n in graph.node],
        "attributes": [
            {a.name: (a.type, helper.get_attribute_value(a)) for a in n.attribute}
            for n in graph.node
        ],
        "weights": {
            t.name: (t.data_type, tuple(t.dims), numpy_helper.to_array(t).tobytes())
            for t in graph.initializer
        },
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_types_attributes_and_opsets_survive(
    precision: str, model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GraphSurgeon takes away functions and dead nodes and marks plugins, and changes nothing else."""
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    if precision != "fp32":
        made = FloatModel(path)
        pixels = np.random.default_rng(0).integers(0, 256, (4, 10, 10, 1), dtype=np.uint8)
        images = ImageSet("random", pixels, None, made.preprocessing)
        if precision == "fp16":
            model, _ = made.to_fp16(images)
        else:
            table = made.calibrate(images, "minmax", None)
            model = int8_qdq.emit(
                made.model, made.layers, uniform_assignment(made.layers, "int8"), table
            )
            attach_short_functions(model)
    given: list[onnx.ModelProto] = []
    surgeon = lowering.gs.import_onnx
    monkeypatch.setattr(lowering.gs, "import_onnx", lambda m: given.append(m) or surgeon(m))
    for lower in (lowering.native, partial(lowering.fused, namespace="capsedge")):
        lowered = lower(model)
        before, after = described(given.pop()), described(lowered)
        assert before["weights"]
        for node, attributes in zip(lowered.graph.node, after["attributes"], strict=True):
            marks = [attributes.pop(k, None) for k in ("plugin_version", "plugin_namespace")]
            assert all(marks) == (node.domain == "capsedge")
        assert after == before


def test_nothing_is_left_over(model: onnx.ModelProto) -> None:
    """Nodes that reach no output, and functions that nothing calls."""
    wanted = lowering.fused(model, "capsedge")
    first = model.graph.input[0].name
    littered = onnx.ModelProto()
    littered.CopyFrom(model)
    littered.graph.node.insert(0, helper.make_node("Relu", [first], ["nowhere"]))
    spare = helper.make_function("own", "Spare", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])],
                                 [helper.make_opsetid("", 20)])  # fmt: skip
    littered.functions.append(spare)
    littered.opset_import.append(helper.make_opsetid("own", 1))
    lowered = lowering.fused(littered, "capsedge")
    assert not lowered.functions
    assert [n.op_type for n in lowered.graph.node] == [n.op_type for n in wanted.graph.node]


def test_axes_are_weights(model: onnx.ModelProto) -> None:
    """TensorRT 10.3 wants the axes of reductions as initializers, not as anything computed."""
    lowered = lowering.native(model)
    weights = {t.name for t in lowered.graph.initializer}
    reductions = [n for n in lowered.graph.node if n.op_type.startswith("Reduce")]
    assert all(n.input[1] in weights for n in reductions if len(n.input) > 1)
    assert not {"Loop", "If", "Scan", "Einsum"} & {n.op_type for n in lowered.graph.node}


def test_batch_becomes_a_number(model: onnx.ModelProto) -> None:
    fixed = lowering.native(lowering.fix_engine_batch(model, 3))
    shapes = shapes_of(inferred(fixed))
    assert shapes["images"][0] == 3
    assert all(s[0] == 3 for o in fixed.graph.output for s in [shapes[o.name]])
    for found, wanted in zip(run(fixed), run(model), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="fixed at batch 3, not 2"):
        lowering.fix_engine_batch(fixed, 2)


def test_choice_of_batch(model: onnx.ModelProto) -> None:
    assert lowering.choose_batch(model, None) == (1, 1, 1)
    assert lowering.choose_batch(model, (1, 4, 8)) == (1, 4, 8)
    fixed = lowering.fix_engine_batch(model, 5)
    assert lowering.choose_batch(fixed, None) == (5, 5, 5)
    with pytest.raises(UsageError, match="fixed at batch 5"):
        lowering.choose_batch(fixed, (1, 4, 8))


def test_operators_without_bodies_are_refused(exported: Exports) -> None:
    path = exported(network("dynamic"), ops="fused", task="multi-label").path
    with pytest.raises(UnsupportedModelError, match="converted to standard operators"):
        lowering.native(onnx.load(path))
    assert operator_nodes(lowering.fused(onnx.load(path), ""))


def quantized(zero_point: np.ndarray) -> onnx.ModelProto:
    """A convolution between Q/DQ pairs, weights in INT8."""
    scale = numpy_helper.from_array(np.float32(0.05), "scale")
    weight = np.random.default_rng(0).integers(-127, 127, (16, 16, 3, 3)).astype(np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "wzero"], ["wd"]),
        helper.make_node("Conv", ["d", "wd"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "q",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16, 6, 6])],
        [
            scale,
            numpy_helper.from_array(zero_point, "zero"),
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.int8(0), "wzero"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_int8_stays_int8() -> None:
    """Folding must not turn INT8 weights with their DequantizeLinear back into FP32."""
    for lowered in (
        lowering.native(quantized(np.int8(0))),
        lowering.fused(quantized(np.int8(0)), ""),
    ):
        kinds = [n.op_type for n in lowered.graph.node]
        assert kinds.count("DequantizeLinear") == 2
        assert kinds.count("QuantizeLinear") == 1
        assert TensorProto.INT8 in {t.data_type for t in lowered.graph.initializer}


@pytest.mark.parametrize("zero", [np.uint8(0), np.uint8(128), np.int8(-128)])
def test_other_quantizations_are_refused(zero: np.ndarray) -> None:
    with pytest.raises(UnsupportedModelError, match="other than TensorRT"):
        lowering.check(quantized(zero))


def test_newer_opsets_are_refused() -> None:
    model = quantized(np.int8(0))
    model.opset_import[0].version = 21
    with pytest.raises(UnsupportedModelError, match="opset 21"):
        lowering.check(model)


def test_quantized_capsule_operators_are_refused() -> None:
    model = quantized(np.int8(0))
    model.graph.node.append(
        helper.make_node("QuantizedDynamicRouting", ["y"], ["z"], domain="capsedge")
    )
    with pytest.raises(UnsupportedModelError, match="only on the CPU"):
        lowering.check(model)


def test_the_length_of_an_engine(tmp_path: Path) -> None:
    """By default to the longest that the file states; none where the file's is fixed."""
    free = onnx.load(table_file(tmp_path / "free.onnx"))
    fixed = onnx.load(table_file(tmp_path / "fixed.onnx", length=5))
    for model, wanted in ((free, (1, 6, 6)), (fixed, ())):
        lowering.check(model)
        assert lowering.choose_length(model, None) == wanted
    assert lowering.choose_length(free, (2, 3, 4)) == (2, 3, 4)
