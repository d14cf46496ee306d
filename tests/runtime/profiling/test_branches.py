"""Operators inside of branches, and the two networks of a cascade in a profile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.runtime.backends.backend import OperatorEvent
from capsedge.runtime.onnx_file.structure import GraphStructure, Node
from capsedge.runtime.profiling import report_text
from capsedge.runtime.profiling.operator_times import (
    NETWORKS,
    exclusive_durations,
    executed_operators,
)
from tests.optimization.cascades import pair, pixels


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> capsedge.Session:
    folder: Path = tmp_path_factory.mktemp("branches")
    names = pair(folder)
    capsedge.cascade(
        *names,
        folder / "pair.onnx",
        min_agreement=0.98,
        data=pixels(400),
    )
    return capsedge.load(folder / "pair.onnx", threads=1)


@pytest.mark.thorough
@pytest.mark.parametrize("escalated", [True, False])
def test_a_profile_has_both_networks(session: capsedge.Session, escalated: bool):
    images = np.float32(pixels(400)[:, None] / 255)
    images = images[session.run(images)["escalated"] == escalated][:4]
    report = capsedge.profile(
        session,
        warmup=0,
        duration=0.05,
        startup=False,
        inputs={"images": images},
    )
    (run,) = report.runs
    assert run.escalated == float(escalated)
    wanted = NETWORKS if escalated else NETWORKS[:2]
    assert tuple(row.name for row in run.networks) == wanted
    assert sum(row.share for row in run.networks) == pytest.approx(1)
    labels = [row.name for row in run.layers]
    assert labels.count("cascade") == 1
    assert any(label.startswith("large network: ") for label in labels) == escalated
    table = report_text.networks(run)
    assert table is not None
    assert f"{run.escalated:.1%} of the images escalated" in table.title
    document = json.loads(json.dumps(run.to_dict()))
    assert document["escalated_share"] == run.escalated
    assert [row["name"] for row in document["networks"]] == list(wanted)


@pytest.mark.thorough
def test_other_files_have_no_networks():
    session = capsedge.load(threads=1)
    report = capsedge.profile(session, warmup=0, duration=0.05, startup=False)
    assert report.runs[0].networks == []
    assert "escalated_share" not in report.runs[0].to_dict()
    assert report_text.networks(report.runs[0]) is None


def _node(op: str, *bodies: GraphStructure) -> Node:
    return Node(op, "", "", "", (), (), {}, bodies)


def test_the_branch_that_ran_is_found():
    inner = GraphStructure("inner", nodes=[_node("Abs")])
    left, right = (
        GraphStructure("left", nodes=[_node("Neg")]),
        GraphStructure("right", nodes=[_node("If", inner)]),
    )
    whole = GraphStructure(nodes=[_node("Relu"), _node("If", left, right), _node("Exp")])
    for kinds, bodies in (
        (["Relu", "Neg", "If", "Exp"], ["", "left", "", ""]),
        (["Relu", "Abs", "If", "If", "Exp"], ["", "inner", "right", "", ""]),
    ):
        found = executed_operators(whole, kinds)
        assert found is not None
        assert [body.name for body in found.bodies] == bodies
        assert [node.op for node in found.graph.nodes] == kinds
    assert executed_operators(whole, ["Relu", "If", "Exp"]) is None


def test_a_branch_does_not_count_twice():
    times = [("Relu", 0, 5), ("Abs", 12, 3), ("If", 11, 5), ("If", 10, 20), ("Exp", 31, 2)]
    run = [OperatorEvent(kind, kind, start, taken) for kind, start, taken in times]
    assert exclusive_durations(run).tolist() == [5, 3, 2, 15, 2]
