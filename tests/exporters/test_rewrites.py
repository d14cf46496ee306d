"""Each exact rewrite changes the graph and does not change the numbers, in FP64 and in FP32."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from capsedge.graph import Rewrites
from capsedge.graph.bodies import function_body
from capsedge.graph.ir import operator_nodes
from capsedge.models import build
from capsedge.spec.operators import OPERATORS, operator_of
from tests import tiers

from .evaluate import captured, count, rewritten, run, run_double
from .nets import CONFIGS, network

IMAGES = np.random.default_rng(5).normal(size=(2, 1, 10, 10)).astype(np.float32)
# Two orders of the same FP64 sums; rounding is fed back through a few exponentials.
DOUBLE = {"rtol": 1e-11, "atol": 1e-12}
SINGLE = {"rtol": 2e-5, "atol": 2e-6}

EFFECTS = [
    ("dynamic", "dead_update"),
    ("dynamic", "logit_free"),
    ("em", "dead_update"),
    ("attention", "first_pass_uniform"),
    ("attention", "light_cone"),
    ("attention-vector", "first_pass_uniform"),
    ("attention-vector", "light_cone"),
]


@lru_cache
def _graph(family: str) -> onnx.ModelProto:
    with tiers.shared:
        return captured(network(family))


@pytest.mark.sample(1)
@pytest.mark.parametrize(("family", "name"), EFFECTS)
@pytest.mark.parametrize("others", [False, True], ids=["alone", "with the others"])
def test_a_rewrite_is_exact_in_fp64(family: str, name: str, others: bool) -> None:
    base = Rewrites() if others else Rewrites.none()
    without = rewritten(_graph(family), replace(base, **{name: False}), double=True)
    using = rewritten(_graph(family), replace(base, **{name: True}), double=True)
    assert without.SerializeToString() != using.SerializeToString()
    for f, w in zip(run_double(using, IMAGES), run_double(without, IMAGES), strict=True):
        np.testing.assert_allclose(f, w, **DOUBLE)


@pytest.mark.sample(2)
@pytest.mark.parametrize(("family", "name"), EFFECTS)
def test_a_rewrite_is_exact_in_fp32(family: str, name: str) -> None:
    without = rewritten(_graph(family), replace(Rewrites.none(), **{name: False}), double=False)
    using = rewritten(_graph(family), replace(Rewrites.none(), **{name: True}), double=False)
    wanted = run(without, {"images": IMAGES})
    for output, found in run(using, {"images": IMAGES}).items():
        np.testing.assert_allclose(found, wanted[output], **SINGLE)


@pytest.mark.parametrize("double", [True, False], ids=["fp64", "fp32"])
def test_one_dynamic_pass_is_one_gemm(double: bool) -> None:
    """With one iteration, priors folded into the weights, no vote is made."""
    rng = np.random.default_rng(0)
    dtype = np.float64 if double else np.float32
    shapes = {"u": (2, 6, 4), "weight": (6, 3, 5, 4), "log_prior": (6, 3), "bias": (3, 5)}
    feeds = {k: rng.normal(size=s).astype(dtype) for k, s in shapes.items()}
    results = []
    for uniform in (True, False):
        for leaky in (0, 1):
            function = function_body(
                "DynamicRouting",
                [(None, 6, 4), *list(shapes.values())[1:]],
                {"iterations": 1, "leaky": leaky, "epsilon": 1e-8},
                Rewrites(first_pass_uniform=uniform),
                compute=onnx.TensorProto.DOUBLE if double else onnx.TensorProto.FLOAT,
            )
            model = _one_node(function, feeds, {"iterations": 1, "leaky": leaky, "epsilon": 1e-8})
            # The squash sums its squares by a product too, and the leaky softmax its exponentials.
            assert count(model, "MatMul") == (2 if uniform else 3) + leaky
            if double:
                results.append(ReferenceEvaluator(model).run(None, feeds)[0])
            else:
                results.append(next(iter(run(model, feeds).values())))
    tolerance = DOUBLE if double else SINGLE
    np.testing.assert_allclose(results[0], results[2], **tolerance)
    np.testing.assert_allclose(results[1], results[3], **tolerance)
    assert np.abs(results[0] - results[1]).max() > 1e-3  # leaky is another function


def _one_node(
    function: onnx.FunctionProto, feeds: dict[str, np.ndarray], attributes: dict[str, object]
) -> onnx.ModelProto:
    helper = onnx.helper
    node = helper.make_node(
        function.name, list(feeds), ["v"], domain="capsedge",
        **OPERATORS[function.name].complete(attributes),
    )  # fmt: skip
    types = {k: helper.np_dtype_to_tensor_dtype(x.dtype) for k, x in feeds.items()}
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(k, types[k], x.shape) for k, x in feeds.items()],
        [helper.make_tensor_value_info("v", types["u"], [None, None, None])],
    )
    opsets = [*function.opset_import, helper.make_opsetid("capsedge", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)


@pytest.mark.thorough
def test_first_passes_are_convolutions_and_matrix_products() -> None:
    graph = rewritten(_graph("attention"), Rewrites(), double=False)
    plain = rewritten(_graph("attention"), Rewrites.none(), double=False)
    # Two convolutional layers, and a class layer whose window is its whole grid.
    assert count(graph, "Conv") == count(plain, "Conv") + 2
    assert count(graph, "Softmax") == 1
    assert count(plain, "Softmax") == 6


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("iterations", "passes", "needed"), [(1, 3, 3), (2, 6, 4), (3, 9, 6), (5, 15, 12)]
)
def test_light_cone_of_three_layers(iterations: int, passes: int, needed: int) -> None:
    """N = 3 layers: layer k matters up to pass T - (N - k), and the first pass of each always."""
    graph = captured(build(CONFIGS["attention"], iterations=iterations).eval())
    from capsedge.graph.cleanup import remove_dead_nodes

    def routings() -> int:
        return sum(operator_of(n.op_type) == "AttentionRouting" for n in operator_nodes(graph))

    assert routings() == passes
    remove_dead_nodes(graph)
    assert routings() == needed


def test_logit_free_keeps_no_logits() -> None:
    """Without the rewrite every agreement is added to the logits; with it parents are added up."""

    def adds(rewrites: Rewrites) -> list[tuple[int | None, ...]]:
        model = onnx.shape_inference.infer_shapes(
            rewritten(_graph("dynamic"), rewrites, double=False)
        )
        from capsedge.graph.ir import shapes_of

        shapes = shapes_of(model)
        return [shapes[n.output[0]] for n in model.graph.node if n.op_type == "Add"]

    children = (None, 3, 18)
    plain, free = adds(Rewrites(logit_free=False)), adds(Rewrites())
    assert (None, 3, 1, 5) in free
    assert plain.count(children) == free.count(children) == 2
    assert len(free) == len(plain) + 1
