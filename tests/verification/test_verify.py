"""``capsedge.verify``: passes what is equal, fails what is not, refuses what does not belong together."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

import capsedge
from capsedge.errors import ArtefactError, ParityError, UnsupportedModelError, UsageError
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.verification.reference import check_origin
from capsedge.verification.verify_options import VerifyOptions

ROUTINGS = ("dynamic", "em", "attention")


def _scaled_weight(path, target, name: str, factor: float):
    """A copy of a file with one initializer scaled."""
    model = onnx.load(path)
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    tensor.CopyFrom(
        numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(factor), name)
    )
    onnx.save(model, target)
    return target


@pytest.mark.sample(1)
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("ops", ["auto", "portable"])
def test_equal_models_pass(families, routing: str, ops: str) -> None:
    exported = families[routing]
    seen = []
    certificate = capsedge.verify(
        exported.checkpoint,
        exported.onnx(ops),
        limit=8,
        progress=lambda *step: seen.append(step),
    )
    assert certificate.passed, certificate.failures
    document = certificate.to_dict()
    assert document["samples"]["decisions"]["agreement"] == 1.0
    assert document["routing_errors"] is None
    stage, done, total = zip(*seen, strict=True)
    assert set(stage) == {"comparing"}
    assert set(total) == {8 + len(document["hard_cases"]["names"])}
    assert done[-1] == total[0]


def test_certificate_is_a_checked_chain(dynamic, tmp_path) -> None:
    path = dynamic.onnx(extra_outputs=("couplings",))
    certificate = capsedge.verify(dynamic.checkpoint, path, limit=4)
    certificate.save(tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    first, second = document["chain"]
    assert first["kind"] == "checkpoint"
    assert first["sha256"] == sha256(dynamic.checkpoint)
    assert second["kind"] == "onnx"
    assert second["sha256"] == sha256(path)
    assert second["checkpoint_sha256"] == first["sha256"]
    assert {"python", "torch", "onnxruntime", "capsedge"} <= document["versions"].keys()
    assert {"cpu", "cores", "architecture"} <= document["machine"].keys()
    assert [o["name"] for o in document["samples"]["outputs"]] == ["lengths", "poses", "couplings"]
    assert len(document["samples"]["sha256"]) == 64
    assert str(path.parent) not in json.dumps(document)  # no folders of this machine


def test_file_is_not_changed(dynamic) -> None:
    path = dynamic.onnx()
    before = sha256(path)
    capsedge.verify(
        dynamic.checkpoint, path, limit=2, tolerance=(0, 0)
    )  # fails, so the routing is probed
    assert sha256(path) == before


def test_another_weight_fails_and_names_the_outputs(dynamic, tmp_path) -> None:
    name = "model.classes.weight"
    wrong = _scaled_weight(dynamic.onnx(), tmp_path / "w.onnx", name, 1.01)
    certificate = capsedge.verify(dynamic.checkpoint, wrong, limit=4)
    assert certificate.verdict == "FAILED"
    assert any(f.startswith("lengths") for f in certificate.failures)
    with pytest.raises(ParityError, match="lengths"):
        certificate.check()


def test_flips_are_found_and_counted(dynamic, tmp_path) -> None:
    """Class capsules in another order: same lengths, other decisions."""
    model = onnx.load(dynamic.onnx())
    for tensor in model.graph.initializer:
        if tensor.name == "model.classes.weight":
            swapped = numpy_helper.to_array(tensor)[:, ::-1].copy()
            tensor.CopyFrom(numpy_helper.from_array(swapped, tensor.name))
    path = tmp_path / "flipped.onnx"
    onnx.save(model, path)
    certificate = capsedge.verify(dynamic.checkpoint, path, limit=20, tolerance=(1e9, 0))
    decisions = certificate.to_dict()["samples"]["decisions"]
    assert decisions["flips"] >= 15
    assert decisions["agreement"] <= 0.25
    margins = [f["margin"] for f in decisions["flips_by_margin"]]
    assert margins == sorted(margins, reverse=True)
    assert any("flipped" in f for f in certificate.failures)
    # The numbers were allowed to differ and so, when asked, are the decisions.
    assert capsedge.verify(
        dynamic.checkpoint,
        path,
        limit=4,
        min_agreement=0,
        tolerance=(1e9, 0),
    ).passed


def test_a_file_that_draws_is_refused_with_the_node(dynamic, tmp_path) -> None:
    model = onnx.load(dynamic.onnx())
    (lengths,) = [n for n in model.graph.node if "lengths" in n.output]
    lengths.output[list(lengths.output).index("lengths")] = "exact"
    model.graph.node.append(helper.make_node("RandomNormalLike", ["exact"], ["r"], name="jitter"))
    model.graph.node.append(helper.make_node("Add", ["exact", "r"], ["lengths"]))
    onnx.save(model, tmp_path / "drawn.onnx")
    with pytest.raises(UnsupportedModelError, match=r"'jitter' \(RandomNormalLike\)"):
        capsedge.verify(
            dynamic.checkpoint,
            tmp_path / "drawn.onnx",
            limit=2,
            tolerance=(1e9, 0),
        )


def test_nan_fails(dynamic, tmp_path) -> None:
    wrong = _scaled_weight(dynamic.onnx(), tmp_path / "n.onnx", "model.classes.weight", 1e37)
    certificate = capsedge.verify(dynamic.checkpoint, wrong, limit=4)
    assert any("NaN or infinite" in f for f in certificate.failures)
    json.dumps(certificate.to_dict(), allow_nan=False)


def test_nan_weights_are_named(dynamic, tmp_path) -> None:
    wrong = _scaled_weight(dynamic.onnx(), tmp_path / "n.onnx", "model.classes.weight", math.nan)
    with pytest.raises(
        ArtefactError, match=r"model\.classes\.weight \[.*: 46080 of 46080, the first"
    ):
        capsedge.verify(dynamic.checkpoint, wrong, limit=4)


def test_other_checkpoint_is_refused(families) -> None:
    with pytest.raises(ArtefactError, match="not exported from"):
        capsedge.verify(families["em"].checkpoint, families["dynamic"].onnx(), limit=2)


@pytest.mark.parametrize(
    ("configuration", "option"), [({"classes": 10}, "--checkpoint"), ({}, "--module CODE.py:Net")]
)
def test_other_weights_are_refused_with_the_options_of_the_file(configuration, option) -> None:
    metadata = ModelMetadata("Net", configuration, "", 0, (), None, checkpoint_sha256="a")
    check_origin(metadata, Path("my net.pt"), "a")
    with pytest.raises(ArtefactError, match="not exported from") as caught:
        check_origin(metadata, Path("my net.pt"), "b")
    assert option in caught.value.command
    assert caught.value.command.endswith(" 'my net.pt'")
    assert ("--weights" in caught.value.command) is not bool(configuration)


def test_file_without_a_known_checkpoint(dynamic) -> None:
    with pytest.raises(UsageError, match="Pass the checkpoint"):
        capsedge.verify(None, dynamic.onnx(), limit=2)


def test_reference_has_the_iterations_of_the_file(families) -> None:
    exported = families["em"]
    assert capsedge.verify(exported.checkpoint, exported.onnx(iterations=2), limit=4).passed


def test_module_in_memory_is_left_as_it_is(dynamic) -> None:
    module = dynamic.model.train()
    try:
        certificate = capsedge.verify(module, dynamic.onnx(), limit=2)
        assert certificate.passed
        assert module.training
        assert certificate.chain[0].kind == "module"
    finally:
        module.eval()


@pytest.mark.thorough
def test_module_of_ones_own(tmp_path) -> None:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(2, 3 * 4, 5, 4)

        def forward(self, images):
            poses = self.conv(images).flatten(2).mean(-1).unflatten(1, (3, 4))
            return capsedge_ops.squash(poses), poses.sum(-1)

    from capsedge.models import ops as capsedge_ops

    module = Own().eval()
    path = tmp_path / "own.onnx"
    capsedge.export(module, path, example=torch.rand(2, 2, 12, 12))
    certificate = capsedge.verify(module, path, limit=3)
    assert certificate.passed, certificate.failures
    assert certificate.to_dict()["samples"]["decisions"] is None
    with torch.no_grad():
        module.conv.weight.mul_(1.5)
    assert not capsedge.verify(module, path, limit=3).passed


def test_fixed_batch_and_a_rest(dynamic) -> None:
    path = dynamic.onnx(batch=3)
    certificate = capsedge.verify(dynamic.checkpoint, path, limit=4)
    assert certificate.passed, certificate.failures
    assert certificate.to_dict()["samples"]["images"] == 4


def test_accuracy_where_labels_are(dynamic, tmp_path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 28, 28), np.uint8)
    session = capsedge.load(dynamic.onnx())
    top = np.array([p.labels[0].index for p in session.predict(list(images))])
    labels = top.copy()
    labels[:3] = (labels[:3] + 1) % 10
    np.savez(tmp_path / "d.npz", images=images, labels=labels)
    decisions = capsedge.verify(
        dynamic.checkpoint, dynamic.onnx(), data=tmp_path / "d.npz"
    ).to_dict()["samples"]["decisions"]
    assert decisions["accuracy_reference"] == decisions["accuracy_artefact"] == 0.75


@pytest.mark.parametrize(
    "options",
    [
        {"min_agreement": 1.5},
        {"limit": 0},
        {"tolerance": (-1.0, 0.0)},
        {"tolerance": (0.0, math.nan)},
        {"tolerance": {"nothing": (1.0, 0.0)}},
        {"ops": "quick"},
    ],
    ids=str,
)
def test_bad_arguments(dynamic, options: dict) -> None:
    with pytest.raises(UsageError):
        capsedge.verify(dynamic.checkpoint, dynamic.onnx(), **options)


def test_data_that_does_not_exist(dynamic) -> None:
    with pytest.raises(UsageError, match="folder"):
        capsedge.verify(dynamic.checkpoint, dynamic.onnx(), data="/no/such/folder")


def test_a_tolerance_of_one_output_leaves_the_others(dynamic) -> None:
    options = VerifyOptions(limit=2, tolerance={"poses": (1e-3, 0.0)})
    stated = capsedge.verify(dynamic.checkpoint, dynamic.onnx(), options).limits["tolerances"]
    assert stated["poses"] == {"atol": 1e-3, "rtol": 0.0}
    assert stated["lengths"] == {"atol": 1e-5, "rtol": 0.0}


def test_truncated_file(dynamic, tmp_path) -> None:
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(dynamic.onnx().read_bytes()[:5000])
    with pytest.raises(ArtefactError):
        capsedge.verify(dynamic.checkpoint, cut)


def test_a_file_whose_inputs_the_checkpoint_does_not_take(dynamic, tmp_path) -> None:
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", 1, ["N", 3])],
        [value("y", 1, ["N", 3])],
    )
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10
    )
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"fails on inputs of \[3\]"):
        capsedge.verify(dynamic.checkpoint, tmp_path / "m.onnx")


class _Angles(torch.nn.Module):
    """Two values under names of its own, without classes and poses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 5, stride=2), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(144, 2),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"angles": 40 * self.layers(images)}


@pytest.fixture(scope="module")
def angles(tmp_path_factory):
    module = _Angles().eval()
    path = tmp_path_factory.mktemp("angles") / "angles.onnx"
    capsedge.export(
        module,
        path,
        example=torch.zeros(2, 1, 16, 16),
        description=capsedge.Description(
            preprocessing=capsedge.Preprocessing(16, 16, 1, per_image="standardize"),
            task="regression",
            outputs=capsedge.Outputs(names=("yaw", "pitch"), units=("degrees",)),
        ),
    )
    return module, path


def test_a_regression_has_errors_in_its_units(angles) -> None:
    module, path = angles
    certificate = capsedge.verify(module, path, limit=12)
    assert certificate.passed, certificate.failures
    document = certificate.to_dict()
    assert document["samples"]["decisions"] is None
    yaw, pitch = document["samples"]["estimates"]["values"]
    assert (yaw["name"], yaw["unit"], pitch["name"]) == ("yaw", "degrees", "pitch")
    assert 0 <= yaw["mean_error"] <= yaw["largest_error"] < 1e-3 * yaw["range"]
    prediction = capsedge.load(path).predict("capsedge/zoo/samples/digit-3.png")[0]
    assert [value.unit for value in prediction.values] == ["degrees", "degrees"]


@pytest.mark.parametrize(("off", "passed"), [(0.01, True), (0.2, False)])
def test_a_regression_of_another_precision_is_judged_by_its_mean_error(
    angles, tmp_path, off: float, passed: bool
) -> None:
    """The error is a share of the range that the value takes, added to every value."""
    module, path = angles
    model = onnx.load(path)
    properties = {p.key: p.value for p in model.metadata_props} | {"capsedge.precision": '"int8"'}
    onnx.helper.set_model_props(model, properties)
    document = capsedge.verify(module, path).to_dict()
    yaw = document["samples"]["estimates"]["values"][0]
    last = model.graph.node[-1]
    shift = np.array([off * yaw["range"], 0], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(shift, "shift"))
    last.output[0] = "unshifted"
    model.graph.node.append(onnx.helper.make_node("Add", ["unshifted", "shift"], ["angles"]))
    onnx.save(model, tmp_path / "shifted.onnx")
    certificate = capsedge.verify(module, tmp_path / "shifted.onnx")
    assert certificate.passed == passed
    if not passed:
        assert any(text.startswith("yaw: a mean error of") for text in certificate.failures)
        assert not any(text.startswith("pitch") for text in certificate.failures)


@pytest.fixture(scope="module")
def quantized_angles(angles, tmp_path_factory):
    """The INT8 file and the images that its gate was held on."""
    _, path = angles
    folder = tmp_path_factory.mktemp("int8")
    pixels = np.random.default_rng(0).integers(0, 256, (96, 16, 16), dtype=np.uint8)
    values = np.linspace(-1, 1, 48 * 2).reshape(48, 2)
    for name, part in (("train", pixels[:48]), ("test", pixels[48:])):
        np.savez(folder / f"{name}.npz", images=part, labels=values)
    train, test, made = (folder / name for name in ("train.npz", "test.npz", "angles.int8.onnx"))
    report = capsedge.quantize(path, made, calib_data=train, data=test)
    assert report.outcome.metric == "error"
    assert any("labels are not used" in text for text in report.warnings)
    return made, test


@pytest.mark.parametrize(
    ("off", "max_error", "failure"),
    [(0.0, None, ""), (0.03, None, "mean error"), (0.0, 1e-3, "largest")],
)
def test_a_quantized_regression_is_held_to_the_limits_of_its_gate(
    angles, quantized_angles, tmp_path, off: float, max_error: float | None, failure: str
) -> None:
    """``off`` is added to the first value, as a share of its range; ``max_error`` replaces that recorded."""
    module, _ = angles
    path, data = quantized_angles
    model = onnx.load(path)
    properties = {p.key: p.value for p in model.metadata_props}
    calibration = json.loads(properties["capsedge.calibration"])
    assert (calibration["evaluation"]["max_drop"], calibration["evaluation"]["max_error"]) == (
        1.0,
        10.0,
    )
    if max_error is not None:
        calibration["evaluation"]["max_error"] = max_error
    properties["capsedge.calibration"] = json.dumps(calibration)
    onnx.helper.set_model_props(model, properties)
    document = capsedge.verify(module, path, data=data).to_dict()
    assert document["samples"]["ignored"] == "labels"
    yaw = document["samples"]["estimates"]["values"][0]
    (last,) = [n for n in model.graph.node if "angles" in n.output]
    last.output[list(last.output).index("angles")] = "unshifted"
    shift = np.array([off * yaw["range"], 0], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(shift, "shift"))
    model.graph.node.append(onnx.helper.make_node("Add", ["unshifted", "shift"], ["angles"]))
    onnx.save(model, tmp_path / "shifted.onnx")
    certificate = capsedge.verify(module, tmp_path / "shifted.onnx", data=data)
    assert certificate.limits["criterion"] == "errors by range"
    assert certificate.passed == (not failure), certificate.failures
    assert all(failure in text for text in certificate.failures)
