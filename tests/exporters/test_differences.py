"""What one runtime allows less of is refused where the file for it is written."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

import capsedge
from capsedge.errors import UnsupportedModelError
from capsedge.exporters.module_graph import check_ports
from capsedge.exporters.tensorrt import write_engine
from capsedge.spec.limits import DIFFERENCES, RUN_TENSORS, runtime_limit
from tests.exporters.nets import network
from tests.exports import Exports

DIMENSIONS = runtime_limit("libcapsedge", "DIMENSIONS")


def test_every_difference_is_tested_here() -> None:
    tested = {("cuda", "ITERATIONS"), ("libcapsedge", "DIMENSIONS")}
    assert {(each.runtime, each.limit) for each in DIFFERENCES} == tested


@pytest.mark.parametrize("plugin", ["auto", "fused"])
def test_more_iterations_than_cuda_makes_are_refused_by_build(
    plugin: str, exported: Exports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.load(exported(network("dynamic")).path)
    (count,) = (a for n in model.graph.node for a in n.attribute if a.name == "iterations")
    library = tmp_path / "plugins.so"
    monkeypatch.setattr(write_engine, "find_plugin", lambda _: library)
    count.i = runtime_limit("cuda", "ITERATIONS")
    assert write_engine._plugin(plugin, model, 10) == library
    count.i += 1
    with pytest.raises(
        UnsupportedModelError, match="65 iterations; the plugins support at most 64"
    ):
        write_engine._plugin(plugin, model, 10)
    assert write_engine._plugin("native", model, 10) is None


def with_ports(inputs: int, rank: int) -> onnx.ModelProto:
    """A model with this many inputs, and one output of this rank."""
    port = helper.make_tensor_value_info
    given = [port(f"x{k}", TensorProto.FLOAT, ["N"]) for k in range(inputs)]
    output = port("y", TensorProto.FLOAT, ["N", *[1] * (rank - 1)])
    return helper.make_model(helper.make_graph([], "g", given, [output]))


@pytest.mark.parametrize(
    ("inputs", "rank", "why"),
    [
        (1, DIMENSIONS + 1, "'y' has 9 dimensions; libcapsedge takes at most 8"),
        (RUN_TENSORS + 1, 2, "65 inputs, and at most 64"),
    ],
)
def test_ports_that_libcapsedge_cannot_pass_on(inputs: int, rank: int, why: str) -> None:
    check_ports(with_ports(min(inputs, RUN_TENSORS), min(rank, DIMENSIONS)))
    with pytest.raises(UnsupportedModelError, match=why):
        check_ports(with_ports(inputs, rank))


class NineDimensions(nn.Module):
    """Its output has one dimension more than libcapsedge takes."""

    def forward(self, x: Tensor) -> Tensor:
        return (2 * x).reshape(x.shape[0], 3, *[1] * (DIMENSIONS - 1))


@pytest.mark.thorough
def test_more_dimensions_than_libcapsedge_takes_are_refused_by_export(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="9 dimensions; libcapsedge takes at most 8"):
        capsedge.export(NineDimensions(), tmp_path / "m.onnx", example=torch.zeros(1, 3))
    assert not (tmp_path / "m.onnx").exists()
