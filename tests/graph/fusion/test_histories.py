"""Routing over histories in foreign files: the ways to mask, and logits that come in."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

import capsedge
from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.formulas import LOWEST, Dynamic
from capsedge.graph.fusion.optimize_graph import OptimizedGraph, optimize_model
from capsedge.graph.fusion.per_image import find_other_inputs
from capsedge.graph.fusion.values import Values
from capsedge.runtime.backends.native_library import find_library
from tests.graph.fusion.histories import (
    Attended,
    Compared,
    Fading,
    Floats,
    Interests,
    Mask,
    Mind,
    Words,
)

NAMES = ("items", "mask", "logits")


def exported(module: Interests | Mind) -> bytes:
    stream = io.BytesIO()
    example = module.eval().example()
    names = list(NAMES[: len(example)])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, example, stream, dynamo=False, opset_version=17, input_names=names,
            output_names=["interests"], dynamic_axes={name: {0: "N"} for name in names},
        )  # fmt: skip
    return stream.getvalue()


def run(model: bytes, feeds: dict[str, Any], *, fused: bool) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if fused:
        options.register_custom_ops_library(str(find_library()))
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, feeds)[0]
    return found


def checked(module: Interests | Mind) -> OptimizedGraph:
    """The optimized file, after comparing it with the module: bodies and kernels, several batches."""
    result = optimize_model(exported(module))
    for batch in (1, 5):
        example = module.example(batch)
        with torch.no_grad():
            wanted = module(*example).numpy()
        feeds = {name: x.numpy() for name, x in zip(NAMES, example, strict=False)}
        for fused in (False, True):
            found = run(result.model, feeds, fused=fused)
            there = np.isfinite(wanted)  # an empty history divides zero by zero
            assert np.isfinite(found).all()
            assert there[1:].all()
            np.testing.assert_allclose(found[there], wanted[there], atol=2e-6, rtol=1e-4)
    return result


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("settings", "couplings"),
    [
        ({}, "a mask after the softmax"),
        ({"mask": "before"}, "a mask before the softmax"),
        ({"mask": "both"}, "a mask before the softmax and a mask after the softmax"),
        ({"mask": "added"}, "priors of each image"),
        ({"mask": "subtracted"}, "priors of each image"),
        ({"mask": "product"}, "a mask before the softmax"),
        ({"mask": "infinite"}, "a mask before the softmax and a mask after the softmax"),
        ({"mask": "divided"}, "a mask before the softmax"),
        ({"mask": "divided parents", "weights": "each interest"}, "a mask after the softmax"),
        ({"mask": "parents", "weights": "each interest"}, "factors of each image"),
        ({"mask": "before parents"}, "a mask before the softmax"),
        (
            {"mask": "parents", "weights": "each interest", "summed": True},
            "factors of each image",
        ),
        (
            {"weights": "one", "given": True},
            "priors of each image and a mask after the softmax",
        ),
        (
            {"mask": "before", "weights": "each interest", "given": True},
            "a mask before the softmax and priors of each image",
        ),
    ],
)
def test_masks_and_given_logits(settings: dict[str, Any], couplings: str) -> None:
    (fused,) = checked(Interests(**settings)).fusion.fused
    one = settings.get("weights") == "one"
    assert fused.operator == ("VoteRouting" if one else "DynamicRouting")
    assert fused.parameters["couplings"] == couplings
    assert ("softmax" in fused.parameters) == ("parents" not in settings.get("mask", ""))


@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["divided safely", "mean over items"])
def test_couplings_divided_by_their_sum_are_named(mask: Mask) -> None:
    """With an epsilon it is another function; over the items, no operator has it."""
    fusion = checked(Interests(mask=mask)).fusion
    assert not [one for one in fusion.fused if one.operator != "Squash"]
    reasons = {one.reason for one in fusion.not_fused}
    assert reasons == {"couplings that are divided by their sum again: no operator supports this"}


@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["after", "before", "parents"])
def test_a_mask_of_words_is_repeated_for_the_capsules_of_each(mask: Any) -> None:
    module = Words(items=8, mask=mask, weights="each interest")
    (fused,) = checked(module).fusion.fused
    assert fused.operator == "DynamicRouting"
    assert "couplings" in fused.parameters


@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["before parents", "both", "parents"])
def test_zeros_tell_a_mask_of_floats_from_priors(mask: Any) -> None:
    """Random floats do not: a prior that all parents have makes no difference to their softmax."""
    module = Floats(mask=mask, weights="each interest")
    (fused,) = checked(module).fusion.fused
    assert fused.parameters["couplings"] != "priors of each image"


@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["parents", "after"])
def test_a_mask_by_comparison_is_no_coupling(mask: Any) -> None:
    module = Compared(mask=mask, weights="each interest", summed=True)
    (fused,) = checked(module).fusion.fused
    assert "couplings" in fused.parameters


@pytest.mark.thorough
@pytest.mark.parametrize("mask", ["after", "parents"])
def test_attention_to_the_interests_is_no_further_iteration(mask: Any) -> None:
    fused = checked(Attended(mask=mask, weights="each interest")).fusion.fused
    routing = [each.parameters["iterations"] for each in fused if each.operator == "DynamicRouting"]
    assert routing == ["3"]


@pytest.mark.thorough
def test_factors_that_are_constant_for_each_item_are_no_couplings() -> None:
    (fused,) = checked(Fading(mask="parents", weights="each interest")).fusion.fused
    assert fused.parameters["couplings"] == "factors of each image"


@pytest.mark.thorough
def test_without_a_mask_the_operator_has_no_more_inputs() -> None:
    result = optimize_model(exported(Interests(mask="none")))
    (node,) = [
        n for n in onnx.load_from_string(result.model).graph.node if n.op_type == "DynamicRouting"
    ]
    assert len(node.input) == 4


@pytest.mark.thorough
def test_export_recognizes_it_too(tmp_path: Path) -> None:
    module = Interests().eval()
    report = capsedge.export(module, tmp_path / "m.onnx", example=module.example())
    (fused,) = report.fusion.fused
    assert fused.parameters["couplings"] == "a mask after the softmax"
    assert report.inputs == {"items": ["N", 7, 6], "mask": ["N", 7]}


@pytest.mark.thorough
def test_votes_that_all_parents_have_are_made_once() -> None:
    """One matrix for all interests, as in MIND: no vote and no weight is there once for each of them."""
    module = Interests(weights="one", given=True)
    model = onnx.load_from_string(checked(module).model)
    (node,) = [n for n in model.graph.node if n.op_type == "VoteRouting"]
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info
    }
    assert shapes[node.input[0]][1:] == [module.items, 1, module.size]
    assert max(np.prod(t.dims) for t in model.graph.initializer) == module.size**2


@pytest.mark.thorough
@pytest.mark.parametrize("over", [1, 2])
@pytest.mark.parametrize(("items", "size"), [(7, 6), (9, 8)])
def test_votes_without_an_axis_for_the_parents(items: int, size: int, over: int) -> None:
    """As MIND's authors write them: neither repeated for the interests, nor a multiple of the couplings."""
    module = Mind(items, size, over=over)
    result = checked(module)
    (fused,) = result.fusion.fused
    assert fused.operator == "VoteRouting"
    assert fused.parameters["children"] == f"{items}, votes of all parents"
    assert fused.parameters["couplings"] == "a mask before the softmax"
    nodes = [n.op_type for n in onnx.load_from_string(result.model).graph.node]
    assert nodes.count("MatMul") == 1  # by the one matrix


def test_what_is_out_does_not_feel_agreements() -> None:
    votes = np.random.default_rng(1).standard_normal((2, 3, 4, 5))
    prior = np.zeros((2, 1, 4))
    prior[0] = LOWEST
    prior[1, :, 2:] = LOWEST
    routed = Dynamic(iterations=3, over="i", epsilon=1e-8)
    whole, part = routed(votes, prior), routed(votes[1:, :, :2])
    np.testing.assert_allclose(whole[1:], part, rtol=1e-12)
    mean = Dynamic(over="i", epsilon=1e-8)(votes[:1])
    np.testing.assert_allclose(whole[:1], mean, rtol=1e-12)


def graph_of(*nodes: onnx.NodeProto) -> Values:
    """Routing once over votes ``x [2, 3, 4, 5]`` beside an input ``m [2, 4]``."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4, 5]),
        helper.make_tensor_value_info("m", TensorProto.FLOAT, [2, 4]),
    ]
    ones = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    last = helper.make_tensor("last", TensorProto.INT64, [1], [-1])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(list(nodes), "g", inputs, outputs, [ones, last])
    return Values(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    )


def test_the_smallest_tensor_is_found_and_its_neutral_value() -> None:
    op = helper.make_node
    graph = graph_of(
        op("ReduceSum", ["x", "last"], ["b"], keepdims=0),
        op("Unsqueeze", ["m", "one"], ["wide"]),
        op("Add", ["b", "wide"], ["logits"]),
        op("Softmax", ["logits"], ["c"]),
        op("Unsqueeze", ["c", "last"], ["cc"]),
        op("Mul", ["cc", "x"], ["y"]),
    )
    (((other, *_),), *_) = find_other_inputs(graph, "x", "c")
    assert (other.name, other.neutral) == ("wide", 0.0)


def test_first_couplings_are_no_mask() -> None:
    """Equal couplings times a mask, multiplied with the votes: neutral is the mask, not their product."""
    op = helper.make_node
    third = helper.make_tensor("third", TensorProto.FLOAT, [1], [1 / 3])
    graph = graph_of(
        op("Constant", [], ["equal"], value=third),
        op("Unsqueeze", ["m", "one"], ["wide"]),
        op("Mul", ["equal", "wide"], ["first"]),
        op("Unsqueeze", ["first", "last"], ["firsts"]),
        op("Mul", ["firsts", "x"], ["weighed"]),
        op("ReduceSum", ["weighed", "last"], ["b"], keepdims=0),
        op("Softmax", ["b"], ["c"], axis=1),
        op("Mul", ["c", "wide"], ["masked"]),
        op("Unsqueeze", ["masked", "last"], ["cc"]),
        op("Mul", ["cc", "x"], ["y"]),
    )
    (((other, *_),), *_) = find_other_inputs(graph, "x", "c")
    assert (other.name, other.neutral) == ("wide", 1.0)


def test_other_things_beside_the_votes_are_named() -> None:
    op = helper.make_node
    graph = graph_of(
        op("ReduceSum", ["x", "last"], ["b"], keepdims=0),
        op("Unsqueeze", ["m", "one"], ["wide"]),
        op("Pow", ["b", "wide"], ["logits"]),
        op("Softmax", ["logits"], ["c"]),
        op("Unsqueeze", ["c", "last"], ["cc"]),
        op("Mul", ["cc", "x"], ["y"]),
    )
    with pytest.raises(NoMatch, match="its logits depend on more than the votes"):
        list(find_other_inputs(graph, "x", "c"))
