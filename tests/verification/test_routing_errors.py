"""The routing errors name the layer and the iteration where a fault was put."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import capsedge
from capsedge.exporters.export_options import REWRITES
from capsedge.models import build
from capsedge.runtime.backends.native_library import find_library
from capsedge.spec.operators import instance_name, operator_of
from capsedge.verification.reference import Reference, load_reference
from capsedge.verification.routing_errors import (
    ErrorCell,
    ErrorRow,
    RoutingErrors,
    measure_routing_errors,
)
from capsedge.verification.routing_probe import Probe, unroll_routing_calls

CASES = [
    ("dynamic", "classes", 1), ("dynamic", "classes", 2), ("dynamic", "classes", 3),
    ("em", "capsules.0", 1), ("em", "capsules.0", 3), ("em", "capsules.1", 2),
    ("em", "classes", 1), ("em", "classes", 2), ("em", "classes", 3),
]  # fmt: skip


def _disturb(nodes, value: str, factor: float) -> None:
    """Multiply a value where it is made, so that everything after it sees the fault."""
    (index,) = [k for k, n in enumerate(nodes) if value in n.output]
    maker = nodes[index]
    maker.output[list(maker.output).index(value)] = f"right_{value}"
    constant = helper.make_node(
        "Constant", [], [f"factor_{value}"], value=numpy_helper.from_array(np.float32(factor))
    )
    multiply = helper.make_node("Mul", [f"right_{value}", f"factor_{value}"], [value])
    rest = [*nodes[: index + 1], constant, multiply, *nodes[index + 1 :]]
    del nodes[:]
    nodes.extend(rest)


def _layers(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Routing nodes by the module whose weight they take (attention: the last pass)."""
    found = {}
    for node in model.graph.node:
        if node.domain == "capsedge" and operator_of(node.op_type).endswith("Routing"):
            weight = next(i for i in node.input if i.endswith(".weight") and "norm" not in i)
            found[weight.removeprefix("model.").removesuffix(".weight")] = node
    return found


def _faulty(exported, target, layer: str, value: str, factor: float = 1.02):
    model = onnx.load(exported.onnx())
    node = _layers(model)[layer]
    operator = operator_of(node.op_type)
    (body,) = [f for f in model.functions if f.name == node.op_type]
    own = onnx.FunctionProto()  # other layers may share the function
    own.CopyFrom(body)
    own.name = node.op_type = instance_name(operator, 99)
    _disturb(own.node, f"{operator}_{value}", factor)
    model.functions.append(own)
    onnx.save(model, target)
    return target


@pytest.mark.sample(1)
@pytest.mark.parametrize(("routing", "layer", "iteration"), CASES)
def test_names_layer_and_iteration(families, tmp_path, routing, layer, iteration) -> None:
    path = _faulty(families[routing], tmp_path / "f.onnx", layer, f"iter{iteration}_pose")
    certificate = capsedge.verify(families[routing].checkpoint, path, limit=4, ops="portable")
    assert not certificate.passed
    first = certificate.to_dict()["routing_errors"]["first"]
    assert (first["layer"], first["iteration"]) == (layer, iteration)
    assert "pose" in first["columns"]


@pytest.mark.thorough
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_routing_errors_say_what_the_verdict_says(families, tmp_path, routing) -> None:
    """Faults on both sides of the tolerance: what fails has a place, and what passes has none."""
    verdicts = []
    for factor in (1.0, 1 + 3e-5, 1 + 2e-4, 1 + 3e-4, 1 + 1e-3, 1 + 1e-2):
        path = _faulty(families[routing], tmp_path / "f.onnx", "classes", "iter3_pose", factor)
        certificate = capsedge.verify(families[routing].checkpoint, path, limit=2, ops="portable")
        errors = certificate.to_dict()["routing_errors"]
        verdicts.append(certificate.passed)
        if certificate.passed:
            assert errors is None
        else:
            assert errors["first"] is not None, (factor, certificate.failures, errors["verdict"])
            assert (errors["first"]["layer"], errors["first"]["iteration"]) == ("classes", 3)
    assert verdicts[0]
    assert not verdicts[-1]
    assert verdicts == sorted(verdicts, reverse=True)


@pytest.mark.thorough
def test_a_stated_tolerance_is_the_routing_errors_too(families) -> None:
    """A right file that fails a tolerance that no FP32 meets: the routing errors find no excuse in FP64."""
    exported = families["em"]
    certificate = capsedge.verify(
        exported.checkpoint,
        exported.onnx(),
        limit=2,
        ops="portable",
        tolerance=(0, 0),
    )
    assert not certificate.passed
    assert certificate.to_dict()["routing_errors"]["first"] is not None


@pytest.mark.sample(1)
@pytest.mark.parametrize(("routing", "layer"), [("dynamic", "classes"), ("em", "capsules.1")])
def test_names_couplings(families, tmp_path, routing, layer) -> None:
    path = _faulty(families[routing], tmp_path / "f.onnx", layer, "iter2_couplings")
    first = capsedge.verify(families[routing].checkpoint, path, limit=4, ops="portable").to_dict()[
        "routing_errors"
    ]["first"]
    assert (first["layer"], first["iteration"]) == (layer, 2)
    assert "couplings" in first["columns"]


@pytest.mark.thorough
def test_attention_pass_of_the_schedule(families, tmp_path) -> None:
    """The last node of the class layer is its third pass, though its body knows only one."""
    path = _faulty(families["attention"], tmp_path / "f.onnx", "capsules.2", "iter1_pose")
    first = capsedge.verify(
        families["attention"].checkpoint, path, limit=4, ops="portable"
    ).to_dict()["routing_errors"]["first"]
    assert (first["layer"], first["iteration"]) == ("capsules.2", 3)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("number", "layer"), [(0, "capsules.0"), (1, "capsules.1"), (2, "capsules.2")]
)
def test_first_pass_that_became_linear(families, tmp_path, number, layer) -> None:
    model = onnx.load(families["attention"].onnx())
    passes = [n for n in model.graph.node if operator_of(n.op_type) == "UniformRouting"]
    scale = passes[number].input[2]
    (weights,) = [t for t in model.graph.initializer if t.name == scale]
    wrong = numpy_helper.from_array(numpy_helper.to_array(weights) * np.float32(1.02), "wrong")
    model.graph.initializer.append(wrong)
    passes[number].input[2] = "wrong"
    path = tmp_path / "f.onnx"
    onnx.save(model, path)
    first = capsedge.verify(
        families["attention"].checkpoint, path, limit=4, ops="portable"
    ).to_dict()["routing_errors"]["first"]
    assert (first["layer"], first["iteration"]) == (layer, 1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("routing", ["dynamic", "em", "attention"])
def test_fault_in_the_stem_is_before_routing(families, tmp_path, routing) -> None:
    model = onnx.load(families[routing].onnx())
    convolution = next(n for n in model.graph.node if n.op_type == "Conv")
    _disturb(model.graph.node, convolution.output[0], 1.02)
    path = tmp_path / "f.onnx"
    onnx.save(model, path)
    errors = capsedge.verify(families[routing].checkpoint, path, limit=4, ops="portable").to_dict()[
        "routing_errors"
    ]
    assert errors["first"]["iteration"] == 0
    assert "before it" in errors["verdict"]


@pytest.mark.thorough
@pytest.mark.parametrize("routing", ["dynamic", "em"])
def test_portable_file(families, tmp_path, routing) -> None:
    """Inlined bodies keep the names of their values."""
    model = onnx.load(families[routing].onnx("portable"))
    values = [o for n in model.graph.node for o in n.output if "_iter2_pose" in o]
    _disturb(model.graph.node, values[-1], 1.02)
    path = tmp_path / "f.onnx"
    onnx.save(model, path)
    first = capsedge.verify(families[routing].checkpoint, path, limit=4, ops="portable").to_dict()[
        "routing_errors"
    ]["first"]
    assert (first["layer"], first["iteration"]) == ("classes", 2)


@pytest.mark.parametrize(
    ("ops", "routing"),
    [
        ("auto", "dynamic"),
        ("auto", "attention"),
        ("portable", "em"),
        pytest.param("auto", "em", marks=pytest.mark.thorough),
        pytest.param("portable", "dynamic", marks=pytest.mark.thorough),
        pytest.param("portable", "attention", marks=pytest.mark.thorough),
    ],
)
def test_right_files_are_within_tolerance(families, routing, ops) -> None:
    """No false alarm, and every live routing place of the reference is found in the file.

    With couplings as an output, ``auto`` mixes capsedge nodes and inlined bodies.
    """
    exported = families[routing]
    session = capsedge.load(
        exported.onnx(ops, **({} if ops == "portable" else {"extra_outputs": ("couplings",)})),
        ops="portable",
    )
    reference = Reference(
        load_reference(exported.checkpoint, session.metadata), [p.name for p in session.outputs]
    )
    images = np.random.default_rng(1).random((3, 1, 28, 28), np.float32)
    errors = measure_routing_errors(reference, session, images)
    assert errors.rows, errors.note
    assert errors.first is None, errors.verdict()
    iterations = {(r.layer, r.iteration) for r in errors.rows if r.iteration}
    wanted = {
        "dynamic": {("classes", t) for t in (1, 2, 3)},
        "em": {(n, t) for n in ("capsules.0", "capsules.1", "classes") for t in (1, 2, 3)},
        # Light cone: of T = 3 passes, layer k of 3 matters up to pass k.
        "attention": {(f"capsules.{k}", t) for k in range(3) for t in range(1, k + 2)},
    }[routing]
    assert iterations == wanted


@pytest.mark.thorough
def test_without_rewrites(families, tmp_path) -> None:
    """Without the light cone the file routes where the output does not look, too."""
    exported = families["attention"]
    path = tmp_path / "plain.onnx"
    capsedge.export(exported.model, path, no_rewrite=tuple(REWRITES))
    session = capsedge.load(path, ops="portable")
    reference = Reference(exported.model, [p.name for p in session.outputs])
    images = np.random.default_rng(1).random((2, 1, 28, 28), np.float32)
    errors = measure_routing_errors(reference, session, images)
    assert len({(r.layer, r.iteration) for r in errors.rows if r.iteration}) == 9, errors.note
    assert errors.first is None, errors.verdict()


def test_fused_kernels_from_outside(families) -> None:
    """What routing errors can see of a fused kernel: what it is given and what it gives."""
    exported = families["em"]
    probe = Probe(exported.onnx())
    outside = Probe(exported.onnx(), library=exported.onnx())  # any path: nothing is loaded yet
    assert [max(s.values) for s in outside.sites] == [3, 3, 3]
    assert all(set(s.values) == {0, 3} for s in outside.sites)
    assert all(set(s.values) == {0, 1, 2, 3} for s in probe.sites)


def test_a_file_that_cannot_be_matched_says_so(families, tmp_path) -> None:
    exported = families["em"]
    session = capsedge.load(exported.onnx(), ops="portable")
    other = Reference(families["dynamic"].model, ["lengths", "poses"])
    errors = measure_routing_errors(other, session, np.zeros((1, 1, 28, 28), np.float32))
    assert not errors.rows
    assert "cannot be compared" in errors.verdict()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("routing", "field", "told"),
    [
        ("dynamic", "primary_types", "poses of another size"),
        ("attention", "primary_types", "poses of another size"),
        ("dynamic", "iterations", "more iterations"),
    ],
)
@pytest.mark.parametrize("ops", ["auto", "portable"])
def test_a_file_of_another_network(families, exported, routing, field, told, ops) -> None:
    model = capsedge.load_checkpoint(families[routing].checkpoint)
    config = model.config.replace(**{field: getattr(model.config, field) + 1})
    torch.manual_seed(3)
    other = exported(build(config).eval()).path
    certificate = capsedge.verify(model, other, limit=4, ops=ops)
    assert not certificate.passed
    assert told in certificate.to_dict()["routing_errors"]["verdict"]


@pytest.mark.parametrize("routing", ["dynamic", "em", "attention"])
def test_trace_ends_where_the_model_ends(families, routing) -> None:
    """The unrolled values of the last iteration are the model's own output."""
    model = families[routing].model
    images = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        out = model(images)
    last = unroll_routing_calls(model, images)[-1]
    np.testing.assert_array_equal(last.steps[-1].pose.reshape(out.poses.shape), out.poses.numpy())
    assert last.layer.split(".")[0] in ("classes", "capsules")


def test_first_row_beyond_tolerance() -> None:
    fine, bad = ErrorCell(1e-9, 1e-6), ErrorCell(1e-3, 1e-6)
    rows = (
        ErrorRow("a", 1, fine, fine, None),
        ErrorRow("a", 2, None, bad, fine),
        ErrorRow("b", 1, bad, bad, bad),
    )
    errors = RoutingErrors(rows)
    assert errors.first is rows[1]
    assert errors.verdict() == "First beyond tolerance: layer a, iteration 2 (pose)."
    assert ErrorCell(float("nan"), 1.0).over


@pytest.mark.sample(1)
@pytest.mark.skipif(find_library() is None, reason="needs the operator library: pip install .")
@pytest.mark.parametrize("layer", ["capsules.1", "classes"])
def test_fused_layer_with_a_wrong_weight(families, tmp_path, layer) -> None:
    """Fused kernels show what they are given and what they give: enough to name the layer."""
    exported = families["em"]
    model = onnx.load(exported.onnx())
    (weight,) = [t for t in model.graph.initializer if t.name == f"model.{layer}.weight"]
    wrong = numpy_helper.to_array(weight) * np.float32(1.02)
    weight.CopyFrom(numpy_helper.from_array(wrong, weight.name))
    path = tmp_path / "f.onnx"
    onnx.save(model, path)
    certificate = capsedge.verify(exported.checkpoint, path, limit=4, ops="fused")
    errors = certificate.to_dict()["routing_errors"]
    assert (errors["first"]["layer"], errors["first"]["iteration"]) == (layer, 3)
    assert "Fused kernels" in errors["note"]
