"""Typical writings of routing come back as operators, or are left for the right reason."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch

from capsedge.graph.recognize.improving import Improved, improve
from capsedge.graph.recognize.recognition import STANDARD
from capsedge.graph.recognize.values import session_of
from tests.graph.recognize import attention_writings, dynamic_writings, em_writings, resembling
from tests.graph.recognize.making import exported

BOTH = ("script", pytest.param("dynamo", marks=pytest.mark.slow))
D, E, A = dynamic_writings, em_writings, attention_writings
FEATURES = torch.randn(3, D.CHILDREN, D.SIZE_IN, generator=torch.Generator().manual_seed(0))

# What was read off, as far as it tells writings apart.
DYNAMIC = {
    D.ParentsFirst: {"iterations": "3", "epsilon": "1e-08"},
    D.Batched: {"iterations": "4", "epsilon": "1e-08"},
    D.LearnedPrior: {"iterations": "3", "epsilon": "0", "prior": "of the file"},
    D.InputsFirst: {"iterations": "3", "epsilon": "0"},
    D.Regressor: {"iterations": "2", "epsilon": "1e-08"},
    D.Windows: {"children": "6 of 4", "iterations": "3"},
    D.WithBias: {"iterations": "3", "bias": "of the file"},
    D.Einsums: {"iterations": "3", "bias": "of the file", "epsilon": "1e-16"},
    D.Leaky: {"iterations": "3", "leaky": "yes", "epsilon": "1e-08"},
}
REFUSED = {
    D.OverChildren: "softmax over the children",
    D.BatchMean: "averaged over the batch",
    D.ElementWise: "softmax over the children",
    D.OverParents: "squash over the parents",
    D.Replaced: "replace the logits",
    D.PerElement: "one logit for each element",
    D.VoteBias: "constant part",
}


def operators(improved: Improved) -> Counter[str]:
    return Counter(f.operator for f in improved.recognition.found)


def test_every_writing_is_judged() -> None:
    written = {v for v in vars(D).values() if isinstance(v, type) and issubclass(v, D.Writing)}
    assert written - {D.Writing} == {*DYNAMIC, *REFUSED}


@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize("writing", DYNAMIC, ids=lambda w: w.__name__)
def test_dynamic_routing_is_recognized(writing: type, exporter: str) -> None:
    original = exported(writing(), FEATURES, exporter)
    improved = improve(original.SerializeToString())
    assert operators(improved) == {"DynamicRouting": 1}
    assert not improved.recognition.left
    found = improved.recognition.found[0].parameters
    assert DYNAMIC[writing].items() <= found.items()
    assert improved.batch == "free"
    assert "Softmax" not in {n.op_type for n in onnx.load_from_string(improved.model).graph.node}


@pytest.mark.parametrize("exporter", BOTH)
@pytest.mark.parametrize("writing", REFUSED, ids=lambda w: w.__name__)
def test_other_functions_are_left_with_their_reason(writing: type, exporter: str) -> None:
    improved = improve(exported(writing(), FEATURES, exporter).SerializeToString())
    assert set(operators(improved)) <= {"Squash", STANDARD}
    # What is faster in another form of standard operators has the reason in its note.
    notes = [n for f in improved.recognition.found if f.operator == STANDARD for n in f.notes]
    reasons = [each.reason for each in improved.recognition.left] + notes
    assert reasons
    assert all(REFUSED[writing] in reason for reason in reasons)


def test_the_other_exporter() -> None:
    improved = improve(exported(D.LearnedPrior(), FEATURES, "dynamo").SerializeToString())
    assert operators(improved) == {"DynamicRouting": 1}


@pytest.mark.parametrize("writing", [E.Paper, E.WeightFirst], ids=lambda w: w.__name__)
def test_em_routing_is_recognized(writing: type) -> None:
    improved = improve(exported(writing(), E.Writing.example(3)).SerializeToString())
    assert operators(improved) == {"EMRouting": 2}
    first, second = (f.parameters for f in improved.recognition.found)
    assert first["children"] == "5x5x3 of 4"
    assert (first["kernel"], first["strides"]) == ("3x3", "2x2")
    assert first["inverse temperatures"] == "0.0005, 0.000975, 0.001426"
    assert second["parents"] == "6 of 4"


def test_normalized_activations_are_recognized_and_coordinates_named() -> None:
    improved = improve(exported(E.Renormalized(), E.Writing.example(3)).SerializeToString())
    (found,) = improved.recognition.found
    assert found.parameters["activations"] == "a/(a + epsilon)"
    assert found.parameters["epsilon"] == "1e-08"
    assert {"coordinates in another form" in e.reason for e in improved.recognition.left} == {True}


def test_em_that_begins_elsewhere_is_left() -> None:
    improved = improve(exported(E.OnesFirst(), E.Writing.example(3)).SerializeToString())
    assert not improved.recognition.found
    assert all("pass 1" in e.reason for e in improved.recognition.left)


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
    improved = improve(exported(writing(), A.Writing.example(3), exporter).SerializeToString())
    assert operators(improved) == wanted
    assert not improved.recognition.left


@pytest.mark.parametrize("network", resembling.RESEMBLING, ids=lambda n: n.__name__)
def test_what_resembles_routing_is_left(network: type) -> None:
    x = torch.randn(3, resembling.CHILDREN, resembling.SIZE)
    original = exported(network(), x)
    improved = improve(original.SerializeToString())
    assert not {"DynamicRouting", "EMRouting", "AttentionRouting"} & set(operators(improved))
    assert improved.recognition.left
    found, wanted = (
        session_of(m).run(None, {"x": x.numpy()})[0]
        for m in (onnx.load_from_string(improved.model), original)
    )
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_a_batch_that_is_fixed_stays_fixed() -> None:
    original = exported(D.BatchMean(), FEATURES[:1], free=False)
    improved = improve(original.SerializeToString())
    assert operators(improved)["DynamicRouting"] == 1  # a mean over one image is none
    assert improved.batch == "1"
    model = onnx.load_from_string(improved.model)
    x = FEATURES[:1].numpy()
    wanted, found = (session_of(m).run(None, {"x": x})[0] for m in (original, model))
    np.testing.assert_allclose(found, wanted, atol=1e-6)
