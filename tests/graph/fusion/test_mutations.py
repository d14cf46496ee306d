"""A hypothesis with one parameter changed is never accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.inliner
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch

from capsedge.graph.cleanup import simplify
from capsedge.graph.fusion import formulas
from capsedge.graph.fusion.attention import check_attention, fit_attention
from capsedge.graph.fusion.candidates import find_candidates
from capsedge.graph.fusion.dynamic import DynamicMatch, fit_dynamic
from capsedge.graph.fusion.em import check_em, fit_em
from capsedge.graph.fusion.equivalence import STRICT, check_equivalence
from capsedge.graph.fusion.optimize_graph import optimize_model
from capsedge.graph.fusion.proof import Original, prove
from capsedge.graph.fusion.self_attention import fit_self_attention
from capsedge.graph.fusion.values import Values
from tests.graph.fusion import attention_writings as A  # noqa: N812
from tests.graph.fusion import dynamic_writings as D  # noqa: N812
from tests.graph.fusion import em_writings as E  # noqa: N812
from tests.graph.fusion import grouped_writings as G  # noqa: N812
from tests.graph.fusion import self_attention_writings as S  # noqa: N812
from tests.graph.fusion.making import exported

FEATURES = torch.randn(3, D.CHILDREN, D.SIZE_IN, generator=torch.Generator().manual_seed(0))


def graph_of(module: Any, example: Any) -> Values:
    return Values(simplify(onnx.inliner.inline_local_functions(exported(module, example))))


def excess(graph: Values, found: DynamicMatch, kind: Any) -> float:
    function = graph.function([found.votes], [found.result])
    return check_equivalence(
        lambda x: found.layout.read(function(x)[0]),
        lambda x: kind(found.roles.read(x)),
        graph.shapes[found.votes],
        STRICT,
    ).excess


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "writing",
    [
        *(D.ParentsFirst, D.LearnedPrior, D.Einsums, D.Leaky),
        *(D.OverChildren, D.ElementWise, D.Replaced, D.KerasExample, D.KMeans, D.VoteBias),
        *(D.NonlinearVotes, D.ConvolvedVotes),
    ],
)
def test_dynamic_routing(writing: type) -> None:
    graph = graph_of(writing(), FEATURES)
    (group,) = find_candidates(graph)
    found = fit_dynamic(graph, group.votes[0], group.softmaxes)
    kind = found.kind
    assert excess(graph, found, kind) <= 1
    _, j, i, p = found.roles.sizes
    change = np.zeros((j, i))
    change[0, ::2] = 1e-4
    shift = np.zeros((j, p))
    shift[:, 0] = 1e-4
    mutants = {
        "one iteration more": replace(kind, iterations=kind.iterations + 1),
        "one iteration less": replace(kind, iterations=kind.iterations - 1),
        "softmax over the other axis": replace(kind, over="i" if kind.over == "j" else "j"),
        "softmax over both": replace(kind, over="ji"),
        "squash over the parents": replace(kind, axis="j"),
        "prior": replace(kind, prior=kind.prior + change),
        "bias": replace(kind, bias=kind.bias + shift),
        "scale": replace(kind, scale=1.01 * kind.scale),
        "leaky": replace(kind, leaky=not kind.leaky),
        "other update": replace(kind, replace=not kind.replace),
        "other parents": replace(kind, normalize=not kind.normalize),
        "other squash": replace(kind, form="H" if kind.form != "H" else "B"),
        "each element squashed": replace(kind, axis="element" if kind.axis == "p" else "p"),
        "mean over the batch": replace(kind, batch_mean=True),
    }
    if kind.epsilon and not kind.bias.any():
        mutants["epsilon times 10"] = replace(kind, epsilon=10 * kind.epsilon)
        mutants["other form"] = replace(kind, form="B" if kind.form == "A" else "A")
    accepted = [name for name, mutant in mutants.items() if excess(graph, found, mutant) <= 1]
    assert not accepted


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "writing",
    [D.PerElement, G.Elements, G.ElementsOverParents, G.Joint, G.OverPositions, G.SquashedTogether],
)
def test_routing_in_groups(writing: type) -> None:
    example = writing.example(3) if issubclass(writing, G.Map) else FEATURES
    graph = graph_of(writing(), example)
    (group,) = find_candidates(graph)
    found = fit_dynamic(graph, group.votes[0], group.softmaxes)
    kind = found.kind
    assert excess(graph, found, kind) <= 1
    _, j, i, p = found.roles.sizes
    change, shift = np.zeros((j, i)), np.zeros((j, p))
    change[0, ::2] = 1e-4
    shift[0] = 1e-4
    axes = {"j", "i", "ji", "groups"} - {kind.over} - ({"groups"} if kind.group == 1 else set())
    mutants = {
        "one iteration more": replace(kind, iterations=kind.iterations + 1),
        "one iteration less": replace(kind, iterations=kind.iterations - 1),
        **{f"softmax over {axis}": replace(kind, over=axis) for axis in axes},
        "each pose squashed": replace(kind, axis="p" if kind.axis == "group" else "j"),
        "each element squashed": replace(kind, axis="element"),
        "prior": replace(kind, prior=kind.prior + change),
        "bias": replace(kind, bias=kind.bias + shift),
        "scale plus 1 %": replace(kind, scale=1.01 * kind.scale),
        "mean over the batch": replace(kind, batch_mean=True),
        "other squash": replace(kind, form="H" if kind.form != "H" else "B"),
    }
    if kind.iterations > 2:
        mutants["other update"] = replace(kind, replace=not kind.replace)
    if kind.epsilon and not kind.bias.any():
        mutants["epsilon times 10"] = replace(kind, epsilon=10 * kind.epsilon)
    accepted = [name for name, mutant in mutants.items() if excess(graph, found, mutant) <= 1]
    assert not accepted


@pytest.mark.thorough
@pytest.mark.parametrize(
    "writing",
    [E.Paper, *(pytest.param(w, marks=pytest.mark.slow) for w in (E.Renormalized, E.OnesFirst))],
)
def test_em_routing(writing: type, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of(writing(), E.Writing.example(3))
    group = find_candidates(graph)[0]
    found = fit_em(graph, group.votes[0], group.softmaxes)
    function = graph.function([found.votes, found.activations], [found.pose, found.result])

    def original(x: Any, a: Any) -> Any:
        pose, act = function(found.roles.write(x), found.children.write(a[:, None, :, None]))
        return found.pose_layout.read(pose), found.result_layout.read(act)

    kind, sizes = found.kind, found.roles.sizes
    assert check_em(original, kind, sizes).accepted
    warmer = [
        tuple(t * (1.01 if k == n else 1) for k, t in enumerate(kind.temperatures))
        for n in range(3)
    ]
    mutants = {
        **{f"lambda {n} plus 1 %": replace(kind, temperatures=t) for n, t in enumerate(warmer)},
        "one iteration less": replace(kind, temperatures=kind.temperatures[:-1]),
        "one iteration more": replace(
            kind, temperatures=(*kind.temperatures, kind.temperatures[-1])
        ),
        "epsilon times 10": replace(kind, epsilon=10 * kind.epsilon),
        "epsilon of the variance": replace(kind, variance_epsilon=2 * kind.epsilon),
        "epsilon of the activation": replace(kind, activation_epsilon=1e-2),
        "epsilon of the cost": replace(kind, cost_epsilon=1e-2),
        "beta_u plus 1 %": replace(kind, beta_u=1.01 * kind.beta_u),
        "betas swapped": replace(kind, beta_u=kind.beta_a, beta_a=kind.beta_u),
        "normalized": replace(kind, normalized=not kind.normalized),
        "ones first": replace(kind, ones_first=not kind.ones_first),
    }
    accepted = [
        name for name, mutant in mutants.items() if check_em(original, mutant, sizes).accepted
    ]
    assert not accepted
    offset = [check_em(lambda x, a: original(x + 1e-3, a), kind, sizes).accepted]
    assert offset == [False]
    with monkeypatch.context() as patch:
        patch.setattr(formulas, "responsibilities", over_children)
        assert not check_em(original, kind, sizes).accepted
    assert check_em(original, kind, sizes).accepted


def over_children(logit: Any, logs: Any, off: Any, variance: Any, _: float) -> Any:
    """The E-step with its softmax on the swapped axis."""
    b = -np.logaddexp(0, -logit) - logs
    return formulas.softmax(b[..., None] - 0.5 * (off / variance[:, :, None]).sum(-1), (2,))


@pytest.mark.slow
def test_coordinates() -> None:
    """The whole file with other coordinates differs from the original."""
    data = exported(E.Renormalized(), E.Writing.example(3)).SerializeToString()
    improved = optimize_model(data)
    graph = graph_of(E.Renormalized(), E.Writing.example(3))
    right = onnx.load_from_string(improved.model)
    nodes = [n for n in right.graph.node if n.domain == "capsedge"]
    stored = {t.name: t for t in right.graph.initializer}
    (name,) = (name for n in nodes for name in n.input[5:])  # the first layer has none
    assert len(nodes) == 2
    values = onnx.numpy_helper.to_array(stored[name])
    assert values.shape == (1, 4, E.POSE)
    assert values.any()
    mutants = {
        "none": 0 * values,
        "plus 1 %": 1.01 * values,
        "offset of one half": np.where(np.arange(E.POSE) < 2, values + 0.25, 0),
        "rows and columns swapped": values[..., [1, 0, 2, 3]],
        "other elements": values[..., [2, 3, 0, 1]],
    }
    accepted = []
    for what, mutant in mutants.items():
        changed = onnx.ModelProto()
        changed.CopyFrom(right)
        tensor = next(t for t in changed.graph.initializer if t.name == name)
        tensor.CopyFrom(onnx.numpy_helper.from_array(mutant.astype(np.float32), name))
        if all(c.excess <= 1 for c in prove(Original(data), changed, graph)):
            accepted.append(what)
    assert all(c.excess <= 1 for c in improved.comparisons)
    assert not accepted


def test_self_attention_routing() -> None:
    graph = graph_of(S.Total(), S.Total.example(3))
    group = find_candidates(graph)[0]
    found = fit_self_attention(graph, group.votes[0], group.softmaxes[0])
    function = graph.function([found.votes], [found.result])

    def excess_of(kind: Any) -> float:
        return check_equivalence(
            lambda x: found.layout.read(function(x)[0]),
            lambda x: kind(found.roles.read(x)),
            graph.shapes[found.votes],
            STRICT,
        ).excess

    kind = found.kind
    assert excess_of(kind) <= 1
    _, j, i, _ = found.roles.sizes
    bias = np.zeros((j, i))
    bias[0, 0] = 1e-4
    mutants = {
        "scale plus 1 %": replace(kind, scale=1.01 * kind.scale),
        "softmax over the children": replace(kind, over="i"),
        "bias": replace(kind, bias=bias),
        "epsilon times 10": replace(kind, epsilon=10 * kind.epsilon),
        "no epsilon": replace(kind, epsilon=0.0),
        "other squash": replace(kind, form="B"),
    }
    assert not [name for name, mutant in mutants.items() if excess_of(mutant) <= 1]


def test_attention_routing() -> None:
    graph = graph_of(A.Sequential(), A.Writing.example(3))
    group = find_candidates(graph)[0]
    found = fit_attention(graph, group.votes[0], group.softmaxes[0])
    function = graph.function([found.votes, found.parent], [found.result])
    parents = found.parent_layout
    assert parents is not None

    def original(x: Any, q: Any) -> Any:
        return found.layout.read(function(found.roles.write(x), parents.write(q))[0])

    kind, sizes = found.kind, found.roles.sizes
    assert check_attention(original, kind, sizes).accepted
    mutants: dict[str, Any] = {
        "scale plus 1 %": replace(kind, agreement_scale=1.01 * kind.agreement_scale),
        "softmax over the children": replace(kind, over="i"),
        "epsilon times 10": replace(kind, epsilon=10 * kind.epsilon),
        "bias": replace(kind, bias=kind.bias + 1e-4),
        "gain": replace(kind, scale=1.001 * kind.scale),
        "one iteration more": lambda x, q: kind(x, kind(x, q)),
        "one iteration less": lambda x, _: kind(x),
        "a prior": lambda x, q: kind(x, q + 1e-4),
    }
    accepted = [n for n, m in mutants.items() if check_attention(original, m, sizes).accepted]
    assert not accepted
