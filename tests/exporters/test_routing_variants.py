"""EM routing is written with what it needs; Efficient-CapsNet exports and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="pip install 'capsedge[export]'")

import torch
from torch import Tensor

import capsedge
from capsedge.graph.ir import attributes_of, operator_nodes
from capsedge.models import ops
from capsedge.runtime.backends.native_library import find_library

POSE = (2, 3, 3, 2, 4)


class EM(torch.nn.Module):
    """One layer with any of the options."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.weight = torch.nn.Parameter(torch.randn(1, 1, 2, 3, 2, 2))
        self.beta = torch.nn.Parameter(torch.randn(2, 3))
        self.options = options

    def forward(self, pose: Tensor, a: Tensor) -> dict[str, Tensor]:
        poses, activations, _ = ops.em_routing(
            pose, torch.sigmoid(a), self.weight, *self.beta, inverse_temperatures=(0.1, 0.2), shared=True,
            **self.options,
        )  # fmt: skip
        return {"poses": poses, "activations": activations}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"coordinate_addition": True},
        {"normalize_activations": True, "coordinate_addition": True},
        {"ones_first": True},
        {"variance_epsilon": 1e-5, "activation_epsilon": 1e-6, "cost_epsilon": 1e-4},
        {"coordinates": torch.arange(36.0).reshape(3, 3, 4) / 36},
    ],
    ids=["plain", "paper", "normalized", "ones", "epsilons", "coordinates"],
)
def test_em_routing_and_what_is_left_out(options: dict[str, Any], tmp_path: Path) -> None:
    example = (torch.randn(POSE), torch.rand(POSE[:4]))
    report = capsedge.export(EM(**options), tmp_path / "em.onnx", example=example)
    assert report.operators["capsedge::EMRouting"] == 1
    (node,) = operator_nodes(onnx.load(tmp_path / "em.onnx"))
    assert len(node.input) == (6 if "coordinates" in options else 5)
    flags = {k for k, v in attributes_of(node).items() if v == 1 and k not in ("shared", "strides")}
    assert flags == {name for name, value in options.items() if value is True}


def test_the_coordinates_of_the_paper_by_either_way() -> None:
    pose, a = torch.randn(POSE), torch.rand(POSE[:4])
    grid = torch.zeros(3, 3, 4)
    grid[:, :, 1] = ((torch.arange(3) + 0.5) / 3)[:, None]
    grid[:, :, 3] = (torch.arange(3) + 0.5) / 3
    one, other = EM(coordinate_addition=True)(pose, a), EM(coordinates=grid)(pose, a)
    torch.testing.assert_close(one, other)


class Efficient(torch.nn.Module):
    """Primary capsules with the exponential squash, zero where the image is, and self-attention routing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.primary = torch.nn.Conv2d(1, 64, 9, bias=False)
        self.weight = torch.nn.Parameter(0.3 * torch.randn(8, 5, 16, 8))
        self.bias = torch.nn.Parameter(0.1 * torch.randn(8, 5))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        u = ops.exponential_squash(self.primary(images).reshape(-1, 8, 8))
        v, _ = ops.self_attention_routing(u, self.weight, self.bias)
        return {"poses": v, "lengths": v.norm(dim=-1)}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["auto", "portable"])
def test_efficient_capsnet(kind: str, tmp_path: Path) -> None:
    import onnxruntime

    path = tmp_path / "efficient.onnx"
    report = capsedge.export(Efficient(), path, example=torch.rand(2, 1, 9, 9), ops=kind)
    assert ("capsedge::SelfAttentionRouting" in report.operators) == (kind == "auto")
    options = onnxruntime.SessionOptions()
    library = find_library()
    if kind == "auto" and library is not None:
        options.register_custom_ops_library(str(library))
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    images = torch.rand(3, 1, 9, 9)
    images[1] = 0
    with torch.no_grad():
        wanted = Efficient()(images)
    found = dict(
        zip(
            [o.name for o in session.get_outputs()],
            session.run(None, {"images": images.numpy()}),
            strict=True,
        )
    )
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name].numpy(), atol=1e-6)
    assert not found["poses"][1].any()
    assert onnx.load(path).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "N"
