"""``export --with trace`` of networks of the user's own: whatever becomes capsule operators is traced."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import capsedge
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.models.ops import unrolled
from capsedge.runtime.session.session import Session
from capsedge.spec.operators import OPERATORS
from tests.exporters import own_nets as nets
from tests.exports import arguments
from tests.graph.fusion import attention_writings, em_writings

IMAGES = torch.rand(2, 1, 10, 10, generator=torch.Generator().manual_seed(1))
CLASSES = ("a", "b", "c")


class OfImages(nets.Own):
    """Routing as a loop, after convolutional capsules."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 5, stride=4)
        self.W = nn.Parameter(torch.randn(1, 16, nets.PARENTS, nets.POSE, nets.DEPTH))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        u = nets.squash(self.stem(x).permute(0, 2, 3, 1).reshape(-1, 16, nets.DEPTH))
        votes = torch.matmul(self.W, u[:, :, None, :, None]).squeeze(-1)
        poses = self.routed(votes, torch.zeros(x.size(0), 16, nets.PARENTS))
        return {"lengths": poses.norm(dim=-1), "poses": poses, "votes": votes}


def exported(model: nn.Module, path: Path, example: Tensor = IMAGES, **more: object) -> Session:
    given = arguments(extra_outputs=["trace"], **more)
    capsedge.export(model.eval(), path, example=example, **given)
    return capsedge.load(path, threads=1)


@pytest.mark.thorough
def test_written_with_the_operators(tmp_path: Path):
    """The values are those of the operator's definition, stopped after each iteration."""
    model = nets.Operators()
    session = exported(model, tmp_path / "own.onnx", class_names=CLASSES)
    (layer,) = session.trace(IMAGES.numpy(), prepared=True)
    assert (layer.name, layer.routing, layer.iterations) == ("classes", "dynamic", 2)
    assert layer.couplings.shape == (2, 2, 32, 3)
    with torch.no_grad():
        u = model.stem(IMAGES).permute(0, 2, 3, 1).reshape(-1, 32, 8)
        u = capsedge.ops.squash(u)
        zeros = torch.zeros(32, 3), torch.zeros(3, 8)
        settings = OPERATORS["DynamicRouting"].complete({"iterations": 2}).values()
        wanted = unrolled.unroll(
            "DynamicRouting", (u, model.weight, *zeros, None, None, None, *settings)
        )
        poses = model(IMAGES)["poses"]
    for kind in ("couplings", "poses", "agreement"):
        np.testing.assert_allclose(getattr(layer, kind), getattr(wanted, kind), atol=1e-5)
    np.testing.assert_allclose(layer.poses[:, -1], poses, atol=1e-6)


@pytest.mark.thorough
def test_verify_compares_the_outputs_that_the_module_has(tmp_path: Path):
    model = nets.Operators().eval()
    session = exported(model, tmp_path / "own.onnx", class_names=CLASSES)
    certificate = capsedge.verify(model, session, inputs={"images": IMAGES.numpy()})
    assert certificate.passed
    compared = {o["name"] for o in certificate.to_dict()["samples"]["outputs"]}
    assert compared == {"lengths", "poses"}


def test_other_outputs_are_the_modules_own(tmp_path: Path):
    with pytest.raises(UsageError, match="only the trace"):
        capsedge.export(
            nets.Operators(),
            tmp_path / "own.onnx",
            example=IMAGES,
            extra_outputs=["couplings"],
        )


@pytest.mark.slow
def test_a_loop_that_is_recognized(tmp_path: Path):
    model = OfImages().eval()
    session = exported(model, tmp_path / "own.onnx", class_names=CLASSES)
    images = torch.rand(3, 1, 10, 10)
    (layer,) = session.trace(images.numpy(), prepared=True)
    with torch.no_grad():
        found = model(images)
        votes = found["votes"]
        b = torch.zeros(votes.shape[:3])
        for t in range(3):
            c = torch.softmax(b, dim=2)
            pose = nets.squash((c[..., None] * votes).sum(1))
            agreement = (votes * pose[:, None]).sum(-1)
            b = b + agreement
            for kind, wanted in (("couplings", c), ("poses", pose), ("agreement", agreement)):
                np.testing.assert_allclose(getattr(layer, kind)[:, t], wanted, atol=1e-5)
    np.testing.assert_allclose(layer.poses[:, -1], found["poses"], atol=1e-6)
    assert (layer.child_grid, layer.kernel, layer.types_first) == ((2, 2), (2, 2), False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("writing", "layers"),
    [
        (attention_writings.Concurrent, [("routing1", 2, (2, 2)), ("classes", 3, (1, 1))]),
        (
            attention_writings.Deep,
            [("routing1", 1, (2, 2)), ("routing2", 2, (1, 1)), ("classes", 3, (1, 1))],
        ),
        (em_writings.OnesFirst, [("routing1", 3, (2, 2)), ("classes", 3, (1, 1))]),
    ],
)
def test_several_layers(
    writing: type[nn.Module], layers: list[tuple[str, int, tuple[int, int]]], tmp_path: Path
):
    """Passes of a layer are found together, uniform ones among them, but for those that reach no output."""
    model = writing()
    names = [str(k) for k in range(3 if writing is attention_writings.Deep else 6)]
    said = (
        {"outputs": capsedge.Outputs(scores="output_1")} if writing is em_writings.OnesFirst else {}
    )
    session = exported(model, tmp_path / "own.onnx", model.example(2), class_names=names, **said)
    trace = session.trace(model.example(3).numpy(), prepared=True)
    assert [(layer.name, layer.iterations, layer.grid) for layer in trace] == layers
    for layer in trace:
        if writing is not em_writings.OnesFirst:
            np.testing.assert_allclose(layer.couplings.sum(-1), 1, atol=1e-5)
            np.testing.assert_allclose(layer.couplings[:, 0].std(axis=-1), 0, atol=1e-6)
    with torch.no_grad():
        result = model.eval()(model.example(3))
    if writing is em_writings.OnesFirst:
        np.testing.assert_allclose(trace["classes"].activations[:, -1], result[1], atol=1e-5)
        np.testing.assert_allclose(trace["routing1"].couplings[:, 0], 1)
        assert trace["classes"].child_grid == trace["routing1"].grid


@pytest.mark.slow
def test_a_network_of_no_images_has_the_outputs_alone(tmp_path: Path):
    example = torch.rand(2, 4)
    model = nets.Plain().eval()
    report = capsedge.export(
        model,
        tmp_path / "own.onnx",
        example=example,
        extra_outputs=["trace"],
    )
    assert any("does not state its trace" in note for note in report.notes)
    session = capsedge.load(tmp_path / "own.onnx")
    assert session.metadata is None
    found = session.run(example.numpy())
    lengths = np.linalg.norm(found["trace/classes/poses"][:, -1], axis=-1)
    np.testing.assert_allclose(lengths, found["output"], atol=1e-5)


@pytest.mark.slow
def test_what_is_no_operator_is_refused_with_the_reason(tmp_path: Path):
    with pytest.raises(UnsupportedModelError, match="one logit for each element"):
        capsedge.export(
            nets.OverChildrenPerElement(), tmp_path / "own.onnx", example=torch.rand(2, 4),
            extra_outputs=["trace"],
        )  # fmt: skip
    assert not (tmp_path / "own.onnx").exists()
