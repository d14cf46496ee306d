"""What is spared on equal pieces and in choosing hypotheses: only what cannot matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from capsedge.graph.fusion import NoMatch, dynamic, squash, values
from capsedge.graph.fusion.equal_pieces import fit_once, hypothesis_key, piece_key
from capsedge.graph.fusion.equivalence import check_equivalence, poses_alone
from capsedge.graph.fusion.formulas import Dynamic, least_difference, relative_difference
from capsedge.graph.fusion.formulas import squash as squashed
from capsedge.graph.fusion.values import Values

RNG = np.random.default_rng(0)


def chain(
    k: int, scale: float, last: str = "Tanh", shape: int = 4, axis: int = 1
) -> list[onnx.NodeProto]:
    """A slice of x, times a constant, summed, then a function."""
    ends = helper.make_tensor("", TensorProto.INT64, [1], [shape])
    return [
        helper.make_node("Constant", [], [f"end{k}"], value=ends),
        helper.make_node("Slice", ["x", "start", f"end{k}", "two"], [f"part{k}"]),
        helper.make_node("Constant", [], [f"scale{k}"], value_float=scale),
        helper.make_node("Mul", [f"part{k}", f"scale{k}"], [f"times{k}"]),
        helper.make_node("ReduceSum", [f"times{k}", f"axis{axis}"], [f"sum{k}"]),
        helper.make_node(last, [f"sum{k}"], [f"end_of{k}"]),
    ]


PIECES: list[tuple[float, str, int, int]] = [
    (0.5, "Tanh", 4, 1),
    (0.5, "Tanh", 4, 1),
    (0.25, "Tanh", 4, 1),
    (0.5, "Sigmoid", 4, 1),
    (0.5, "Tanh", 3, 1),
    (0.5, "Tanh", 4, 2),
]


def graph_of(nodes: list[onnx.NodeProto], shape: list[int | str], outputs: list[str]) -> Values:
    stored = [
        numpy_helper.from_array(np.array([value]), name)
        for name, value in (("start", 0), ("axis1", 1), ("axis2", 2), ("two", 2))
    ]
    graph = helper.make_graph(
        nodes,
        "pieces",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        stored,
    )
    return Values(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    )


@pytest.fixture(scope="module")
def pieces() -> Values:
    nodes = [node for k, given in enumerate(PIECES) for node in chain(k, *given)]
    return graph_of(nodes, ["N", 5, 6], [f"end_of{k}" for k in range(len(PIECES))])


def key(graph: Values, k: int, end: str = "end_of") -> str | None:
    return piece_key(graph, [f"part{k}"], [f"{end}{k}"])


def test_only_pieces_with_other_names_are_equal(pieces: Values) -> None:
    """A constant, an operator, a shape, an axis: each makes another piece."""
    keys = [key(pieces, k) for k in range(len(PIECES))]
    assert keys[0] == keys[1]
    assert len(set(keys[1:])) == len(keys) - 1
    assert key(pieces, 0, "sum") != keys[0]


def test_a_question_is_answered_once_for_equal_pieces(pieces: Values) -> None:
    asked: list[int] = []

    def answer(k: int, question: str = "") -> int:
        def found() -> int:
            asked.append(k)
            return k

        return fit_once(pieces, [f"part{k}"], [f"end_of{k}"], ("number", question), found)

    assert [answer(0), answer(1), answer(2), answer(1, "another")] == [0, 0, 2, 1]
    assert asked == [0, 2, 1]


def test_that_nothing_matches_is_an_answer_too(pieces: Values) -> None:
    asked: list[int] = []

    def refuse() -> int:
        asked.append(0)
        raise NoMatch("not this")

    for k in (0, 1):
        with pytest.raises(NoMatch, match="not this"):
            fit_once(pieces, [f"part{k}"], [f"end_of{k}"], ("refused",), refuse)
    assert len(asked) == 1


def test_hypotheses_differ_by_their_arrays() -> None:
    kind = Dynamic(3, prior=RNG.standard_normal((3, 5)))
    assert hypothesis_key(kind) == hypothesis_key(replace(kind, prior=kind.prior.copy()))
    others = [
        replace(kind, prior=kind.prior + 1e-9),
        replace(kind, prior=kind.prior.T),
        replace(kind, iterations=2),
    ]
    assert len({hypothesis_key(kind), *map(hypothesis_key, others)}) == 4


def test_no_order_is_nearer_than_the_sorted_one() -> None:
    for size in (1e-3, 1.0):
        x = RNG.standard_normal((4, 6))
        y = RNG.permutation(x.reshape(-1)).reshape(6, 4) + size * RNG.standard_normal((6, 4))
        least = least_difference(y, x)
        orders = (RNG.permutation(24) for _ in range(500))
        assert least <= min(
            relative_difference(y.reshape(-1)[order], x.reshape(-1)) for order in orders
        )
    assert least_difference(x[::-1], x) == 0
    assert least_difference(np.full(3, np.inf), np.ones(3)) == 0


def test_squashes_in_shared_tensors_are_told_apart() -> None:
    """Many poses: all cases in one tensor, in which a wrong epsilon or a norm over other axes shows."""
    shape = (3, 1 << 12, 16)
    roles = poses_alone(shape)
    assert roles.sizes == (3 << 12, 1, 1, 16)

    def accepts(original: Callable[[np.ndarray], np.ndarray]) -> bool:
        return check_equivalence(
            original, lambda x: squashed(x, "B", 1e-8), shape, 1e-6, roles=roles
        ).accepted

    assert accepts(lambda x: squashed(x, "B", 1e-8))
    assert not accepts(lambda x: squashed(x, "B", 1e-7))
    assert not accepts(lambda x: squashed(x, "A", 1e-4))
    assert not accepts(lambda x: squashed(x, "B", 1e-8, "j"))
    assert not accepts(lambda x: squashed(x, "B", 1e-8) * (1 + 1e-5 * (np.arange(16) == 3)))


def squash_nodes(k: int) -> list[onnx.NodeProto]:
    return [
        helper.make_node("ReduceL2", [f"in{k}", "axis2"], [f"norm{k}"]),
        helper.make_node("Mul", [f"norm{k}", f"norm{k}"], [f"square{k}"]),
        helper.make_node("Add", [f"square{k}", "one"], [f"more{k}"]),
        helper.make_node("Div", [f"norm{k}", f"more{k}"], [f"factor{k}"]),
        helper.make_node("Mul", [f"in{k}", f"factor{k}"], [f"pose{k}"]),
    ]


def test_equal_squashes_are_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one = helper.make_tensor("one", TensorProto.FLOAT, [], [1.0])
    nodes = [helper.make_node("Constant", [], ["one"], value=one)]
    for k in range(3):
        nodes += [helper.make_node(("Relu", "Neg", "Sin")[k], ["x"], [f"in{k}"]), *squash_nodes(k)]
    graph = graph_of(nodes, ["N", 5, 6], [f"pose{k}" for k in range(3)])
    fits: list[str] = []
    real = squash._of_source

    def counted(graph: Values, source: str, ends: list[str], axes: list[int]) -> object:
        fits.append(source)
        return real(graph, source, ends, axes)

    monkeypatch.setattr(squash, "_of_source", counted)
    found = squash.match_squashes(graph)
    assert [(each.source, each.result, each.axis) for each in found] == [
        (f"in{k}", f"pose{k}", 2) for k in range(3)
    ]
    assert fits == ["in0"]


def test_a_large_file_is_run_with_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 3, unless an axis has that size, then with 5."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    assert graph_of(nodes, ["N", 4, 6], ["y"]).batch == 7
    monkeypatch.setattr(values, "LARGE_BYTES", 0)
    assert graph_of(nodes, ["N", 4, 6], ["y"]).batch == 3
    assert graph_of(nodes, ["N", 3, 6], ["y"]).batch == 5
    assert graph_of(nodes, ["N", 3, 5], ["y"]).batch == 7


def test_a_mean_over_the_batch_is_tried_only_where_images_mix(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip(
        "torch", reason="the files are exported: pip install 'capsedge[export]'"
    )
    from capsedge.graph.cleanup import simplify
    from capsedge.graph.fusion.candidates import find_candidates
    from tests.graph.fusion.dynamic_writings import CHILDREN, SIZE_IN, BatchMean
    from tests.graph.fusion.making import exported

    model = exported(BatchMean(), torch.randn(3, CHILDREN, SIZE_IN))
    graph = Values(simplify(onnx.inliner.inline_local_functions(model)))
    (group,) = find_candidates(graph)
    assert dynamic.fit_dynamic(graph, group.votes[0], group.softmaxes).kind.batch_mean
    graph.answers.clear()
    monkeypatch.setattr(dynamic._AfterSoftmax, "_mixes", lambda *_: False)
    with pytest.raises(NoMatch, match="number of iterations"):
        dynamic.fit_dynamic(graph, group.votes[0], group.softmaxes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "operators"),
    [
        ("streams", {"DynamicRouting": 13, "Squash": 13}),
        ("segcaps", {"VoteRouting": 2, "Squash": 1}),
        # Eight types of eight elements: each axis could be the other.
        ("deepcaps", {"VoteRouting": 1, "DynamicRouting": 1, "Squash": 8}),
    ],
)
def test_networks_of_the_benchmark(name: str, operators: dict[str, int]) -> None:
    torch = pytest.importorskip(
        "torch", reason="the files are exported: pip install 'capsedge[export]'"
    )
    from benchmarks.export_networks import NETWORKS
    from capsedge.graph.fusion.optimize_graph import optimize_model
    from tests.graph.fusion.making import exported

    torch.manual_seed(0)
    network = NETWORKS[name]
    model = exported(network.make(), network.input(), opset=18)
    improved = optimize_model(model.SerializeToString())
    assert Counter(f.operator for f in improved.fusion.fused) == operators
    assert not improved.fusion.not_fused
