"""``export --with trace``: the values of every routing iteration as outputs of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import capsedge
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.exporters import traced_routing
from capsedge.models import build, with_iterations
from capsedge.models.configs import CapsuleConv
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.session.routing_trace import Trace
from tests.exporters.nets import CONFIGS, network
from tests.exports import Exports, arguments

IMAGES = np.random.default_rng(0).random((5, 1, 10, 10), np.float32)
# Layers of each, with iterations, rows and columns of parents, children of a window, parents, pose.
LAYERS = {
    "dynamic": [("classes", "dynamic", 3, (1, 1), 18, 3, 5)],
    "em": [
        ("capsules.0", "em", 3, (3, 3), 18, 3, 4),
        ("classes", "em", 3, (1, 1), 27, 3, 4),
    ],
    "attention": [
        ("capsules.0", "attention", 2, (3, 3), 18, 3, 4),
        ("capsules.1", "attention", 2, (2, 2), 12, 4, 4),
        ("capsules.2", "attention", 2, (1, 1), 16, 3, 4),
    ],
    "attention-vector": [
        ("capsules.0", "attention", 2, (3, 3), 18, 3, 5),
        ("capsules.1", "attention", 2, (1, 1), 27, 3, 5),
    ],
    "self-attention": [("classes", "self-attention", 1, (1, 1), 4, 3, 5)],
}


class Traced:
    """A traced file of a small network, and what it computes."""

    def __init__(self, folder: Path, family: str, **options: object) -> None:
        self.path = folder / f"{family}.onnx"
        extras = ["trace", *options.pop("extras", ())]  # type: ignore[misc]
        self.model = options.pop("model", None) or network(family)
        given = arguments(extra_outputs=extras, **options)
        self.report = capsedge.export(self.model, self.path, **given)
        self.session = capsedge.load(self.path, threads=1)
        self.trace: Trace = self.session.trace(IMAGES, prepared=True)
        self.outputs = self.session.run(IMAGES[: self.session.backend.batches.fixed])


@pytest.fixture(scope="module", params=list(LAYERS))
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(family: str, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return Traced(tmp_path_factory.mktemp("traced"), family, extras=("couplings",))


def test_every_layer_and_iteration(family: str, made: Traced):
    found = []
    for layer in made.trace:
        grid = () if layer.grid == (1, 1) else layer.grid
        n, t, *place, i, j = layer.couplings.shape
        assert (n, t, tuple(place)) == (len(IMAGES), layer.iterations, grid)
        assert layer.agreement.shape == layer.couplings.shape
        assert layer.poses.shape[:-1] == (n, t, *grid, j)
        if layer.routing == "em":
            assert layer.distances is not None
            assert layer.activations is not None
            assert layer.distances.shape == layer.couplings.shape
            assert layer.children is not None
            assert layer.activations.shape == layer.poses.shape[:-1]
            assert layer.children.shape == layer.couplings.shape[:-1]
        else:
            assert layer.distances is layer.activations is layer.children is None
        found.append(
            (layer.name, layer.routing, t, layer.grid, i, j, layer.poses.shape[-1]),
        )
    assert found == LAYERS[family]


def test_couplings_sum_to_one(made: Traced):
    for layer in made.trace:
        if layer.routing == "self-attention":  # the bias is added behind the softmax
            bias = made.model.bias.detach().numpy()
            np.testing.assert_allclose((layer.couplings - bias).sum(-1), 1, atol=1e-5)
        else:
            np.testing.assert_allclose(layer.couplings.sum(-1), 1, atol=1e-5)


def test_the_last_iteration_is_the_usual_output(made: Traced):
    """Bit for bit, since both come from the same nodes."""
    last = made.trace.layers[-1]
    assert np.array_equal(last.poses[:, -1], made.outputs["poses"])
    assert np.array_equal(last.couplings[:, -1], made.outputs["couplings"])


def test_lengths_and_poses_are_those_of_a_file_without(made: Traced, exported: Exports):
    plain = exported(made.model).path
    wanted = capsedge.load(plain, threads=1).run(IMAGES)
    for name, value in wanted.items():
        np.testing.assert_allclose(made.outputs[name], value, rtol=1e-4, atol=1e-5)


def test_fewer_iterations_are_the_first_of_more(family: str, made: Traced):
    """Each iteration is what the network computes that stops there."""
    if family != "dynamic":  # layers before the last would stop there too
        pytest.skip("of a network with one routed layer")
    classes = made.trace["classes"]
    for t in range(1, classes.iterations):
        with torch.no_grad():
            wanted = with_iterations(made.model, t).eval()(torch.from_numpy(IMAGES))
        np.testing.assert_allclose(classes.poses[:, t - 1], wanted.poses, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(
            classes.couplings[:, t - 1], wanted.couplings, rtol=1e-4, atol=1e-5
        )


def test_children_are_as_active_as_the_layer_below_says(family: str, made: Traced):
    """EM: a place's activations come again in every window that it is part of, and in every iteration."""
    if family != "em":
        pytest.skip("of EM routing")
    below, above = made.trace.layers
    places = np.broadcast_to(below.activations[:, -1:], (*above.couplings.shape[:2], 3, 3, 3))
    np.testing.assert_allclose(above.children, places.reshape(above.children.shape), atol=1e-6)


def test_the_metadata_lists_the_outputs(made: Traced):
    model = onnx.load(made.path)
    names = [o.name for o in model.graph.output]
    declared = ModelMetadata.from_properties({p.key: p.value for p in model.metadata_props})
    assert declared is not None
    assert declared.trace is not None
    assert set(declared.trace.outputs) == {n for n in names if n.startswith("trace/")}
    assert all("off" in said for said in made.report.rewrites.values())


def test_verify_compares_the_trace(made: Traced, tmp_path: Path):
    np.savez(tmp_path / "data.npz", images=IMAGES)
    certificate = capsedge.verify(made.model, made.path, data=tmp_path / "data.npz")
    assert certificate.passed
    compared = {o["name"] for o in certificate.to_dict()["samples"]["outputs"]}
    assert {name for name in made.outputs if name.startswith("trace/")} <= compared


def test_a_file_without_a_trace_states_none(exported: Exports):
    path = exported(network("dynamic")).path
    model = onnx.load(path)
    assert [o.name for o in model.graph.output] == ["lengths", "poses"]
    assert "capsedge.trace" not in {p.key for p in model.metadata_props}
    session = capsedge.load(path)
    assert session.metadata.trace is None
    with pytest.raises(UsageError, match="capsedge export --checkpoint CHECKPOINT --with trace"):
        session.trace(IMAGES, prepared=True)


@pytest.mark.slow
def test_convolutional_dynamic_routing(tmp_path: Path):
    """Its operator has the places in the batch; the trace has them apart."""
    config = CONFIGS["dynamic"]
    torch.manual_seed(0)
    model = build(config, capsule_layers=(CapsuleConv(3, 2, 1),)).eval()
    found = Traced(tmp_path, "convolutional", model=model)
    layer = found.trace["capsules.0"]
    assert layer.couplings.shape == (5, 3, 2, 2, 8, 3)
    assert (layer.grid, layer.child_grid) == ((2, 2), (3, 3))
    assert (layer.kernel, layer.strides) == ((2, 2), (1, 1))
    with torch.no_grad():
        images = torch.from_numpy(IMAGES)
        children = model._squashed(model.primary(model.stem(images)))
        poses, couplings = model.capsules[0](children)
    np.testing.assert_allclose(layer.poses[:, -1], poses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.couplings[:, -1], couplings, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"ops": "portable"}, {"ops": "fused"}, {"batch": 2}])
def test_other_forms_of_the_file(tmp_path: Path, options: dict[str, object]):
    one = Traced(tmp_path, "dynamic")
    other = Traced(tmp_path, "dynamic", **options)
    for kind in ("couplings", "poses", "agreement"):
        wanted, found = (getattr(each.trace["classes"], kind) for each in (one, other))
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_couplings_sharpen_where_votes_agree(made: Traced):
    """Agreement raises the logits: from the first iteration to the second, couplings follow it."""
    layer = made.trace.layers[-1]
    if layer.routing not in ("dynamic",):
        pytest.skip("of accumulated logits")
    before, after, agreement = (
        layer.couplings[:, 0],
        layer.couplings[:, 1],
        layer.agreement[:, 0],
    )
    gained = np.log(after) - np.log(before)
    centred = gained - gained.mean(-1, keepdims=True)
    np.testing.assert_allclose(
        centred, agreement - agreement.mean(-1, keepdims=True), rtol=1e-3, atol=1e-5
    )


def test_responsibilities_after_an_iteration_are_the_couplings_of_the_next(made: Traced):
    layer = made.trace.layers[-1]
    if layer.routing != "em":
        pytest.skip("of EM routing")
    assert np.array_equal(layer.agreement[:, :-1], layer.couplings[:, 1:])


def test_a_trace_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(traced_routing, "_MOST_BYTES", 1000)
    with pytest.raises(UsageError, match="MiB for each image"):
        capsedge.export(network("em"), tmp_path / "m.onnx", extra_outputs=["trace"])
    assert not (tmp_path / "m.onnx").exists()


def test_routing_without_an_operator(tmp_path: Path):
    model = network("dynamic", class_squash="parents", class_bias=False)
    with pytest.raises(UnsupportedModelError, match="cannot be traced"):
        capsedge.export(model, tmp_path / "m.onnx", extra_outputs=["trace"])


def test_too_many_images(made: Traced, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("capsedge.spec.limits.TRACED_BYTES", 500)
    with pytest.raises(UsageError, match="Trace at most"):
        made.session.trace(IMAGES, prepared=True)
