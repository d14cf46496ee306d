"""Typical writings of routing come back as operators, or are left for the right reason."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch

from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.matcher import STANDARD
from capsedge.graph.fusion.optimize_graph import OptimizedGraph, optimize_model
from tests.graph.fusion import (
    attention_writings,
    dynamic_writings,
    em_writings,
    resembling,
    self_attention_writings,
)
from tests.graph.fusion.making import exported

BOTH = ("script", pytest.param("dynamo", marks=pytest.mark.slow))
D, E, A, S = dynamic_writings, em_writings, attention_writings, self_attention_writings
FEATURES = torch.randn(3, D.CHILDREN, D.SIZE_IN, generator=torch.Generator().manual_seed(0))

# What was read off, as far as it tells writings apart.
DYNAMIC = {
    D.ParentsFirst: {"iterations": "3", "epsilon": "1e-08"},
    D.HalfEpsilon: {"iterations": "3", "epsilon": "0.001"},
    D.Batched: {"iterations": "4", "epsilon": "1e-08"},
    D.LearnedPrior: {"iterations": "3", "epsilon": "0", "prior": "of the file"},
    D.InputsFirst: {"iterations": "3", "epsilon": "0"},
    D.Regressor: {"iterations": "2", "epsilon": "1e-08"},
    D.Windows: {"children": "6 of 4", "iterations": "3"},
    D.WithBias: {"iterations": "3", "bias": "of the file"},
    D.Einsums: {"iterations": "3", "bias": "of the file", "epsilon": "1e-16"},
    D.Leaky: {"iterations": "3", "leaky": "yes", "epsilon": "1e-08"},
}
VARIANTS = {
    D.OverChildren: {"softmax": "over the children", "iterations": "3", "epsilon": "0"},
    D.ElementWise: {"softmax": "over the children", "squash": "of each element"},
    D.Replaced: {"logits": "replaced", "iterations": "3", "epsilon": "1e-08"},
    D.VoteBias: {"vote bias": "of the file", "iterations": "3"},
    D.KerasExample: {
        "logits": "replaced", "weight": "shared by the children", "squash": "s·n/(½ + n²)",
    },
    D.KMeans: {
        "logits": "replaced", "agreements": "with normalized sums", "iterations": "4",
        "weight": "shared by the children",
    },
    D.SharedWeight: {"weight": "shared by the children", "iterations": "3"},
    D.MixedProducts: {"weight": "shared by the children", "iterations": "3"},
    D.ScaledAgreements: {"agreement scale": "0.4082", "iterations": "3"},
    D.Temperature: {"agreement scale": "2.5", "iterations": "3"},
}  # fmt: skip
GIVEN = {
    D.NonlinearVotes: {"children": "18, votes given", "iterations": "3", "epsilon": "1e-08"},
    D.ConvolvedVotes: {"children": "3, votes given", "bias": "of the file", "epsilon": "1e-16"},
}
REFUSED = {
    D.BatchMean: "averaged over the batch",
    D.OneMoreThanLength: "the squash s/(1 + n)",
    D.OverParents: "squash over the parents",
    D.PerElement: "one logit for each element",
}
RECOGNIZED = [
    *((writing, "DynamicRouting", said) for writing, said in DYNAMIC.items()),
    *((writing, "DynamicRouting", said) for writing, said in VARIANTS.items()),
    *((writing, "VoteRouting", said) for writing, said in GIVEN.items()),
]


def operators(improved: OptimizedGraph) -> Counter[str]:
    return Counter(f.operator for f in improved.fusion.fused)


def test_every_writing_is_judged() -> None:
    written = {v for v in vars(D).values() if isinstance(v, type) and issubclass(v, D.Writing)}
    assert written - {D.Writing} == {*DYNAMIC, *VARIANTS, *GIVEN, *REFUSED}


@pytest.mark.sample(3)
@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize(
    ("writing", "operator", "said"), RECOGNIZED, ids=[each[0].__name__ for each in RECOGNIZED]
)
def test_dynamic_routing_is_recognized(
    writing: type, operator: str, said: dict[str, str], exporter: str
) -> None:
    original = exported(writing(), FEATURES, exporter)
    improved = optimize_model(original.SerializeToString())
    assert operators(improved) == {operator: 1}
    assert not improved.fusion.not_fused
    found = improved.fusion.fused[0].parameters
    assert said.items() <= found.items()
    assert improved.batch == "free"
    assert "Softmax" not in {n.op_type for n in onnx.load_from_string(improved.model).graph.node}


@pytest.mark.sample(2)
@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize("writing", REFUSED, ids=lambda w: w.__name__)
def test_other_functions_are_left_with_their_reason(writing: type, exporter: str) -> None:
    improved = optimize_model(exported(writing(), FEATURES, exporter).SerializeToString())
    assert set(operators(improved)) <= {"Squash", STANDARD}
    # What is faster in another form of standard operators has the reason in its note.
    notes = [n for f in improved.fusion.fused if f.operator == STANDARD for n in f.notes]
    reasons = [each.reason for each in improved.fusion.not_fused] + notes
    assert reasons
    assert all(REFUSED[writing] in reason for reason in reasons)


@pytest.mark.thorough
def test_the_other_exporter() -> None:
    improved = optimize_model(exported(D.LearnedPrior(), FEATURES, "dynamo").SerializeToString())
    assert operators(improved) == {"DynamicRouting": 1}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "writing",
    [
        E.Paper,
        E.Densities,
        E.ElementBetas,
        pytest.param(E.WeightFirst, marks=pytest.mark.slow),
    ],
)
def test_em_routing_is_recognized(writing: type) -> None:
    improved = optimize_model(exported(writing(), E.Writing.example(3)).SerializeToString())
    assert operators(improved) == {"EMRouting": 2}
    first, second = (f.parameters for f in improved.fusion.fused)
    assert first["children"] == "5x5x3 of 4"
    assert (first["kernel"], first["strides"]) == ("3x3", "2x2")
    assert first["inverse temperatures"] == "0.0005, 0.000975, 0.001426"
    assert second["parents"] == "6 of 4"


OWN_EPSILONS = {
    E.SpreadFloor: {"epsilon": "1e-09", "variance epsilon": "1e-05"},
    E.SafeLogarithm: {"epsilon": "1e-08", "activation epsilon": "1e-06"},
    E.SafeSum: {
        "epsilon": "0.0001", "variance epsilon": "1e-06", "activation epsilon": "1e-05",
        "cost epsilon": "0.0001",
    },
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("writing", OWN_EPSILONS, ids=lambda w: w.__name__)
def test_epsilons_of_other_places_are_recognized(writing: type) -> None:
    improved = optimize_model(exported(writing(), E.Writing.example(3)).SerializeToString())
    assert operators(improved) == {"EMRouting": 2}
    wanted = OWN_EPSILONS[writing]
    for found in (f.parameters for f in improved.fusion.fused):
        assert {k: v for k, v in found.items() if k.endswith("epsilon")} == wanted


@pytest.mark.thorough
def test_an_epsilon_that_no_operator_has_leaves_the_routing() -> None:
    data = exported(E.LogarithmOfDeviation(), E.Writing.example(3)).SerializeToString()
    improved = optimize_model(data)
    assert not improved.fusion.fused
    assert all("EM routing" in each.reason for each in improved.fusion.not_fused)


@pytest.mark.thorough
def test_bounded_variances_are_named() -> None:
    data = exported(E.ClampedSpread(), E.Writing.example(3)).SerializeToString()
    improved = optimize_model(data)
    assert not improved.fusion.fused
    reasons = [each.reason for each in improved.fusion.not_fused]
    assert any("bounded variances, which no operator has" in each for each in reasons)


@pytest.mark.thorough
def test_normalized_activations_and_coordinates_are_recognized() -> None:
    improved = optimize_model(exported(E.Renormalized(), E.Writing.example(3)).SerializeToString())
    assert operators(improved) == {"EMRouting": 2}
    assert not improved.fusion.not_fused
    first, second = (f.parameters for f in improved.fusion.fused)
    for found in (first, second):
        assert found["activations"] == "a/(a + epsilon)"
        assert found["epsilon"] == "1e-08"
    assert "coordinates" not in first
    assert second["coordinates"] == "of the file"
    model = onnx.load_from_string(improved.model)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = [n for n in model.graph.node if n.domain == "capsedge"]
    (added,) = (stored[n.input[5]] for n in nodes if len(n.input) > 5)
    steps = np.array([(0, 0), (0, 0.5), (0.5, 0), (0.5, 0.5)])
    np.testing.assert_allclose(added.reshape(4, E.POSE)[:, :2], steps, atol=1e-7)
    assert not added[..., 2:].any()


@pytest.mark.slow  # small networks of the registry, whose EM routing has them, go round in the fast tests
@pytest.mark.parametrize(
    "writing", [E.PaperCoordinates, E.WeightFirstCoordinates], ids=lambda w: w.__name__
)
def test_coordinates_of_the_paper_need_no_input(writing: type) -> None:
    improved = optimize_model(exported(writing(), E.Writing.example(3)).SerializeToString())
    assert operators(improved) == {"EMRouting": 2}
    nodes = [n for n in onnx.load_from_string(improved.model).graph.node if n.domain == "capsedge"]
    given = [len(n.input) == 6 for n in nodes]
    assert given == [False, writing is not E.PaperCoordinates]
    assert improved.fusion.fused[1].parameters["coordinates"] == "of the file"


@pytest.mark.thorough
def test_a_constant_of_each_parent_is_left() -> None:
    improved = optimize_model(exported(E.VoteBias(), E.Writing.example(3)).SerializeToString())
    assert operators(improved) == {"EMRouting": 1}
    assert "differs between positions" in improved.fusion.not_fused[0].reason


@pytest.mark.thorough
def test_responsibilities_that_begin_at_one_are_recognized() -> None:
    improved = optimize_model(exported(E.OnesFirst(), E.Writing.example(3)).SerializeToString())
    assert operators(improved) == {"EMRouting": 2}
    for found in improved.fusion.fused:
        assert found.parameters["first responsibilities"] == "1"
        assert found.parameters["inverse temperatures"] == "0.05, 0.0975, 0.1426"


@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize(
    ("writing", "wanted"),
    [
        (S.Agreements, {"epsilon": "1e-20", "bias": "of the file"}),
        (S.Total, {"epsilon": "1e-06"}),
        (S.Unbiased, {"children": "16 of 4", "parents": "10 of 16", "epsilon": "1e-20"}),
    ],
    ids=["Agreements", "Total", "Unbiased"],
)
def test_self_attention_routing_is_recognized(
    writing: type, wanted: dict[str, str], exporter: str
) -> None:
    improved = optimize_model(exported(writing(), writing.example(3), exporter).SerializeToString())
    assert operators(improved) == {"SelfAttentionRouting": 1}
    assert not improved.fusion.not_fused
    found = improved.fusion.fused[0].parameters
    assert found == {"children": "7 of 4", "parents": "5 of 6"} | wanted
    assert improved.batch == "free"


@pytest.mark.parametrize(
    ("writing", "reason"),
    [
        (S.Unscaled, "agreements are scaled by 1:"),
        (S.OverChildren, "softmax over the children"),
        (S.OtherSquash, "another squash"),
        (S.BiasInside, ""),
    ],
    ids=["Unscaled", "OverChildren", "OtherSquash", "BiasInside"],
)
def test_what_only_resembles_self_attention_is_left(writing: type, reason: str) -> None:
    improved = optimize_model(exported(writing(), writing.example(3)).SerializeToString())
    assert set(operators(improved)) <= {"Squash"}
    assert improved.fusion.not_fused
    assert all(reason in each.reason for each in improved.fusion.not_fused)


@pytest.mark.thorough
@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize(
    ("writing", "wanted"),
    [
        (A.Concurrent, {"AttentionRouting": 3, "UniformRouting": 2}),
        (A.Sequential, {"AttentionRouting": 2, "UniformRouting": 2}),
    ],
    ids=["Concurrent", "Sequential"],
)
def test_attention_routing_is_recognized(
    writing: type, wanted: dict[str, int], exporter: str
) -> None:
    improved = optimize_model(
        exported(writing(), A.Writing.example(3), exporter).SerializeToString()
    )
    assert operators(improved) == wanted
    assert not improved.fusion.not_fused


@pytest.mark.slow
@pytest.mark.parametrize("exporter", ["script", "dynamo"])
@pytest.mark.parametrize(
    ("writing", "wanted"),
    [
        (A.ThreeSequential, {"AttentionRouting": 4, "UniformRouting": 2}),
        # The last pass of the lower layers never reaches the classes.
        (A.Deep, {"AttentionRouting": 3, "UniformRouting": 3}),
        (A.DeepSequential, {"AttentionRouting": 6, "UniformRouting": 3}),
    ],
    ids=["ThreeSequential", "Deep", "DeepSequential"],
)
def test_three_passes_and_three_layers(
    writing: type, wanted: dict[str, int], exporter: str
) -> None:
    original = exported(writing(), A.Writing.example(3), exporter)
    improved = optimize_model(original.SerializeToString())
    assert operators(improved) == wanted
    assert not improved.fusion.not_fused
    assert improved.batch == "free"
    x = A.Writing.example(4).numpy()
    models = (onnx.load_from_string(improved.model), original)
    found, expected = (session_of(m).run(None, {m.graph.input[0].name: x})[0] for m in models)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.sample(8)
@pytest.mark.parametrize("network", resembling.RESEMBLING, ids=lambda n: n.__name__)
def test_what_resembles_routing_is_left(network: type) -> None:
    x = torch.randn(3, resembling.CHILDREN, resembling.SIZE)
    original = exported(network(), x)
    improved = optimize_model(original.SerializeToString())
    assert not {"DynamicRouting", "EMRouting", "AttentionRouting"} & set(operators(improved))
    assert improved.fusion.not_fused
    found, wanted = (
        session_of(m).run(None, {"x": x.numpy()})[0]
        for m in (onnx.load_from_string(improved.model), original)
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_batch_that_is_fixed_stays_fixed() -> None:
    original = exported(D.BatchMean(), FEATURES[:1], free=False)
    improved = optimize_model(original.SerializeToString())
    assert operators(improved)["DynamicRouting"] == 1  # a mean over one image is none
    assert improved.batch == "1"
    model = onnx.load_from_string(improved.model)
    x = FEATURES[:1].numpy()
    wanted, found = (session_of(m).run(None, {"x": x})[0] for m in (original, model))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
