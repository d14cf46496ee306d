"""The package's networks, exported as plain nodes, come back with the operators of the direct export."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch

from capsedge.graph.fusion.execution import session_of
from capsedge.graph.fusion.optimize_graph import optimize_model
from capsedge.graph.ir import operator_nodes
from capsedge.models import CapsuleModel, build, get_config
from capsedge.models.configs import CapsuleConv
from capsedge.models.registry import MODELS
from capsedge.spec.operators import operator_of
from tests.exporters.nets import CONFIGS, network
from tests.exports import Exports
from tests.graph.fusion.making import exported
from tests.graph.fusion.plain import Scores, plain_operators


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(operator_of(n.op_type) for n in operator_nodes(model))


def repeated(model: onnx.ModelProto) -> int:
    """How many of the weights are there more than once."""
    weights = [(tuple(t.dims), t.raw_data) for t in model.graph.initializer if len(t.raw_data) > 16]
    return len(weights) - len(set(weights))


def round_trip(model: CapsuleModel, exports: Exports, exporter: str) -> None:
    p = model.config.preprocessing
    x = torch.rand(3, p.channels, p.height, p.width, generator=torch.Generator().manual_seed(1))
    with plain_operators():
        plain = exported(Scores(model), x, exporter)
    assert not operator_nodes(plain)
    direct = onnx.load(exports(model).path)
    improved = optimize_model(plain.SerializeToString())
    again = onnx.load_from_string(improved.model)
    assert operators(again) == operators(direct), improved.fusion
    assert not improved.fusion.not_fused
    assert repeated(again) <= repeated(direct)  # the passes of a layer share its weight
    wanted = session_of(direct).run(None, {direct.graph.input[0].name: x.numpy()})
    found = session_of(again).run(None, {again.graph.input[0].name: x.numpy()})
    np.testing.assert_allclose(found[0], wanted[0], atol=2e-5)
    assert (found[0].argmax(-1) == wanted[0].argmax(-1)).all()


@pytest.mark.parametrize(
    "family",
    [
        "dynamic",
        pytest.param("em", marks=pytest.mark.thorough),
        pytest.param("attention", marks=pytest.mark.thorough),
        pytest.param("attention-vector", marks=pytest.mark.slow),
        "self-attention",
    ],
)
def test_small_networks(family: str, exported: Exports) -> None:
    round_trip(network(family), exported, "script")


@pytest.mark.thorough
def test_several_layers_of_dynamic_routing(exported: Exports) -> None:
    config = replace(CONFIGS["dynamic"], capsule_layers=(CapsuleConv(3, 2, 1),))  # type: ignore[call-arg]
    torch.manual_seed(0)
    round_trip(build(config).eval(), exported, "script")


@pytest.mark.slow
@pytest.mark.parametrize("family", CONFIGS)
def test_the_other_exporter(family: str, exported: Exports) -> None:
    round_trip(network(family), exported, "dynamo")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_full_sizes(name: str, exported: Exports) -> None:
    torch.manual_seed(0)
    round_trip(build(get_config(name)).eval(), exported, "script")
