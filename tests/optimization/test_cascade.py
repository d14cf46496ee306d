"""``capsedge.cascade``: the joined file computes what the two networks do, and is what was asked for."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import capsedge
from capsedge.cli import app
from capsedge.datasets import ImageSet
from capsedge.datasets.image_set import divided, holdout_rule
from capsedge.exporters.tensorrt.lowering import check
from capsedge.optimization.cascade import CascadeReport
from capsedge.optimization.cascade_graph import EscalationRule, GraphPair, join
from capsedge.optimization.cascade_options import CascadeOptions
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.load import load_bytes
from capsedge.runtime.metadata.cascade_metadata import CASCADE_KEY
from capsedge.runtime.metadata.metadata import ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.metadata.origin import TRAINING_SPLIT_KEY
from capsedge.runtime.onnx_file.forecast import forecast
from tests.optimization.cascades import noisy, pair, pixels, written
from tests.runtime.models import SIDE, capsule_model, metadata

IMAGES = pixels(400)
BOTH = {"lengths": "lengths", "poses": "poses"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cascade")
    pair(folder)
    (folder / "data").mkdir()
    np.savez(folder / "data" / "train.npz", images=IMAGES, labels=np.zeros(len(IMAGES), np.int64))
    return folder


@pytest.fixture(scope="module")
def report(place: Path) -> CascadeReport:
    return capsedge.cascade(
        place / "small.onnx",
        place / "large.onnx",
        place / "pair.onnx",
        min_agreement=0.98,
        data=place / "data",
    )


def _prepared(count: int, seed: int = 3) -> NDArray[np.float32]:
    return (pixels(count, seed)[:, None] / np.float32(255)).astype(np.float32)


def test_its_answers_are_those_of_the_network_that_decided(place: Path, report: CascadeReport):
    images = _prepared(50)
    small, both = (capsedge.load(place / f"{name}.onnx").run(images) for name in ("small", "pair"))
    escalated = both["escalated"]
    assert 0 < escalated.sum() < 50
    large = capsedge.load(place / "large.onnx").run(images[escalated])
    for name in ("lengths", "poses"):
        np.testing.assert_array_equal(both[name][escalated], large[name])
        np.testing.assert_array_equal(both[name][~escalated], small[name][~escalated])
    best = np.sort(small["lengths"], axis=1)
    expected = best[:, -1] - best[:, -2] < np.float32(report.cascade.margin)
    if report.cascade.score is not None:
        expected |= best[:, -1] < np.float32(report.cascade.score)
    np.testing.assert_array_equal(escalated, expected)


def test_the_held_out_agreement_is_that_of_the_file(place: Path, report: CascadeReport):
    found = report.cascade
    assert found.agreement >= 0.98
    assert found.agreement_at_least < found.agreement
    assert report.small_agreement < found.agreement
    assert 0 < found.share < 0.5
    assert found.worst == 1 + found.cost
    assert report.calibration_images + found.images <= len(IMAGES)
    session = capsedge.load(place / "pair.onnx")
    assert session.metadata is not None
    assert session.metadata.cascade == found
    assert (found.small.sha256, found.large.sha256) == tuple(
        sha256(place / f"{name}.onnx") for name in ("small", "large")
    )
    large = capsedge.load(place / "large.onnx")
    alike = [
        a.label == b.label
        for a, b in zip(session.predict(IMAGES), large.predict(IMAGES), strict=True)
    ]
    assert np.mean(alike) >= 0.97


@settings(deadline=None, max_examples=30)
@given(st.lists(st.booleans(), max_size=9))
def test_any_mask(mask: list[bool]):
    """None, all, some, and an empty batch: each image is answered as by itself."""
    alike, apart = np.full((8, 8), 100, np.uint8), np.zeros((8, 8), np.uint8)
    apart[:, :4] = 255
    images = np.array([alike if long else apart for long in mask], np.float32).reshape(-1, 1, 8, 8)
    found = _SESSION.run(images / np.float32(255))
    assert found["escalated"].tolist() == mask
    assert [len(v) for v in found.values()] == [len(mask)] * 3
    for k in range(len(mask)):
        alone = _SESSION.run(images[k : k + 1] / np.float32(255))
        for name, value in alone.items():
            # products of another number of rows may round differently
            np.testing.assert_allclose(found[name][k], value[0], atol=1e-6)


def _joined(rule: EscalationRule, **options: Any) -> onnx.ModelProto:
    small, large = noisy(capsule_model(**options)), capsule_model(**options)
    return join(small, large, GraphPair(BOTH, "lengths"), rule)


_SESSION = load_bytes(_joined(EscalationRule(0.3)).SerializeToString())


@pytest.mark.parametrize("ops", ["fused", "portable"])
def test_with_the_operator_library_and_without(ops: str):
    """Function bodies of one name are kept apart, and the kernels run in the branch too."""
    model = _joined(EscalationRule(0.3))
    assert [f.name for f in model.functions] == ["Squash", "Squash_2"]
    if ops == "fused" and _SESSION.backend.ops != "fused":
        pytest.skip("the operator library is not built here")
    images = _prepared(20)
    found = load_bytes(model.SerializeToString(), ops=ops).run(images)
    wanted = _SESSION.run(images)
    assert found["escalated"].any()
    for name in BOTH:
        np.testing.assert_allclose(found[name], wanted[name], atol=1e-6)


def test_bodies_with_the_same_name_may_differ():
    small, large = capsule_model(), capsule_model()
    for node in small.functions[0].node:
        if list(node.output) == ["one"]:
            node.attribute[0].f = 1.5  # another body under the same name
    alone = [load_bytes(m.SerializeToString(), ops="portable") for m in (small, large)]
    both = load_bytes(
        join(small, large, GraphPair(BOTH, "lengths"), EscalationRule(0.3)).SerializeToString(),
        ops="portable",
    )
    images = _prepared(20)
    found, (first, second) = both.run(images), (s.run(images) for s in alone)
    escalated = found["escalated"][:, None]
    assert escalated.any()
    assert not escalated.all()
    assert not np.allclose(first["lengths"], second["lengths"])
    wanted = np.where(escalated, second["lengths"], first["lengths"])
    np.testing.assert_allclose(found["lengths"], wanted, atol=1e-6)


def test_names_of_its_own_may_be_taken():
    small, large = capsule_model(), capsule_model()
    for model, name in (
        (small, "cascade_small_lengths"),
        (large, "escalated"),
        (small, "escalated"),
    ):
        for node in model.graph.node:
            for field in (node.input, node.output):
                for k, other in enumerate(field):
                    field[k] = (
                        name if other == ("pixels" if name == "escalated" else "votes") else other
                    )
    model = join(small, large, GraphPair(BOTH, "lengths"), EscalationRule(0.3))
    images = _prepared(20)
    wanted = load_bytes(capsule_model().SerializeToString()).run(images)
    found = load_bytes(model.SerializeToString()).run(images)
    np.testing.assert_allclose(found["lengths"], wanted["lengths"], atol=1e-6)


def test_nan_is_escalated():
    small = noisy(capsule_model(), noise=math.nan)
    model = join(small, capsule_model(), GraphPair(BOTH, "lengths"), EscalationRule(0.0, 0.0))
    assert load_bytes(model.SerializeToString()).run(_prepared(3))["escalated"].all()


def test_several_labels(tmp_path: Path):
    """In rule is a score near the threshold."""
    names = pair(tmp_path, noise=0.2, properties=metadata(task="multi-label").to_properties())
    made = capsedge.cascade(*names, min_agreement=0.9, max_share=1, data=IMAGES)
    assert made.cascade.score is None
    found = load_bytes(made.model).run(images := _prepared(60))
    assert made.cascade.margin > 0
    small = capsedge.load(names[0]).run(images)["lengths"]
    near = np.abs(small - np.float32(0.5)).min(axis=1) < np.float32(made.cascade.margin)
    np.testing.assert_array_equal(found["escalated"], near)
    assert near.any()
    assert not near.all()


def test_a_fixed_batch(tmp_path: Path):
    small = written(tmp_path, "small.onnx", noisy(capsule_model(batch=4)))
    large = written(tmp_path, "large.onnx", capsule_model())
    made = capsedge.cascade(small, large, min_agreement=0.98, data=IMAGES)
    session = load_bytes(made.model)
    assert session.backend.batches.fixed == 4
    assert len(session.predict(IMAGES[:6])) == 6
    for first, second in ((large, small), (small, small)):
        with pytest.raises(capsedge.UsageError, match="fixed batch of 4"):
            capsedge.cascade(first, second, data=IMAGES)


def test_another_preparation_becomes_part_of_the_graph(tmp_path: Path):
    """The file prepares images as for the large network, the graph brings them to the small one's form."""
    other = Preprocessing(SIDE, SIDE, 1, scale=1 / 128, mean=(0.5,), std=(0.25,))
    small = noisy(capsule_model(properties=metadata(preprocessing=other).to_properties()))
    names = written(tmp_path, "small.onnx", small), written(tmp_path, "l.onnx", capsule_model())
    made = capsedge.cascade(*names, min_agreement=0, max_share=1, data=IMAGES)
    session = load_bytes(made.model)
    assert session.metadata is not None
    assert session.metadata.preprocessing == metadata().preprocessing
    alone = capsedge.load(names[0]).predict(IMAGES)
    for found, wanted in zip(session.predict(IMAGES), alone, strict=True):
        if not found.escalated:
            np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-5)


def test_outputs_that_both_have(tmp_path: Path):
    """A decoder that one of them lacks is left out, with all that only it needs."""
    small = written(tmp_path, "s.onnx", noisy(capsule_model(reconstruction=True)))
    large = written(tmp_path, "l.onnx", capsule_model())
    made = capsedge.cascade(small, large, min_agreement=0.98, data=IMAGES)
    assert any("'reconstruction' is left out" in w for w in made.warnings)
    assert b"halves" not in made.model
    with_it = written(tmp_path, "l2.onnx", capsule_model(reconstruction=True))
    both = load_bytes(capsedge.cascade(small, with_it, min_agreement=0.98, data=IMAGES).model)
    assert both.reconstruct(IMAGES[:5]).shape == (5, 3, 1, SIDE, SIDE)


def test_poses_of_other_sizes_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr("tests.runtime.models.POSE", 6)
        small = noisy(capsule_model())
    names = written(tmp_path, "s.onnx", small), written(tmp_path, "l.onnx", capsule_model())
    made = capsedge.cascade(*names, min_agreement=0.98, data=IMAGES)
    session = load_bytes(made.model)
    assert session.roles.poses is None
    assert session.metadata is not None
    assert session.metadata.outputs == Outputs(scores="lengths", kind="length")
    assert session.predict(IMAGES[:1])[0].poses.shape == (3, 0)


REFUSED = {
    "different classes": metadata(class_names=("left", "right", "nothing")),
    "another order": metadata(class_names=("right", "left", "none")),
    "different tasks": metadata(task="multi-label"),
    "kinds of scores": metadata(
        outputs=Outputs(scores="lengths", kind="probability", poses="poses")
    ),
    "resize rule": metadata(preprocessing=Preprocessing(SIDE, SIDE, 1, resize="pad")),
    "not both state": metadata(preprocessing=None),
}


@pytest.mark.parametrize("why", REFUSED)
def test_networks_that_do_not_fit(why: str, tmp_path: Path):
    small = capsule_model(properties=REFUSED[why].to_properties())
    names = written(tmp_path, "s.onnx", small), written(tmp_path, "l.onnx", capsule_model())
    with pytest.raises(capsedge.UsageError, match=why):
        capsedge.cascade(*names, data=IMAGES)


def test_what_cannot_be_in_a_cascade(tmp_path: Path, place: Path, report: CascadeReport):
    bare = written(tmp_path, "bare.onnx", capsule_model(properties={}))
    large, both = place / "large.onnx", place / "pair.onnx"
    with pytest.raises(capsedge.ArtefactError, match="capsedge optimize"):
        capsedge.cascade(bare, large, data=IMAGES)
    for names in ((both, large), (large, both)):
        with pytest.raises(capsedge.UsageError, match="is already a cascade"):
            capsedge.cascade(*names, data=IMAGES)
    with pytest.raises(capsedge.UsageError, match="is a cascade of two networks"):
        capsedge.quantize(both, calib_data=IMAGES)
    with pytest.raises(capsedge.UnsupportedModelError, match="cannot run a cascade"):
        check(onnx.load(both))


def test_inspect_counts_both_networks(place: Path, report: CascadeReport):
    small, large, both = (
        capsedge.inspect(place / f"{name}.onnx") for name in ("small", "large", "pair")
    )
    assert isinstance(both, capsedge.Inspection)
    weights = small.parameters + large.parameters
    assert weights < both.parameters < weights + 5  # and thresholds
    assert both.operators["capsedge"] == {"Squash": 2}
    with pytest.raises(capsedge.UsageError, match="is a cascade of two networks"):
        forecast(place / "pair.onnx")


@pytest.mark.thorough
def test_the_gate(place: Path, tmp_path: Path):
    """No file where too many images take the long way, or too few decisions agree."""
    useless = written(tmp_path, "useless.onnx", noisy(capsule_model(), noise=5.0))
    with pytest.raises(
        capsedge.ParityError, match=r"decided differently.* augmented copies"
    ) as error:
        capsedge.cascade(useless, place / "large.onnx", tmp_path / "p.onnx", data=IMAGES)
    assert 0.3 < error.value.report.cascade.share < 0.5
    assert not error.value.report.passed
    assert not (tmp_path / "p.onnx").exists()
    both = capsedge.cascade(useless, place / "large.onnx", max_share=1, data=IMAGES)
    assert both.cascade.share > 0.9
    assert both.passed
    same = capsedge.cascade(place / "large.onnx", place / "large.onnx", data=IMAGES)
    assert same.cascade.share < 0.05
    assert any("may be all that is needed" in w for w in same.warnings)


def test_the_test_split_is_not_read(place: Path, report: CascadeReport, tmp_path: Path):
    """Its files may be damaged or missing: nothing changes."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.npz").write_bytes((place / "data" / "train.npz").read_bytes())
    (tmp_path / "data" / "test.npz").write_bytes(b"no archive")
    made = capsedge.cascade(
        place / "small.onnx",
        place / "large.onnx",
        min_agreement=0.98,
        data=tmp_path / "data",
    )
    same = dataclasses.replace(made.cascade, cost=report.cascade.cost)
    assert same == report.cascade


def test_augmented_copies_make_it_more_cautious(report: CascadeReport):
    """What they demand is measured on copies of other images."""
    assert report.augmentation > 0
    assert report.augmented_agreement >= report.cascade.min_agreement
    assert report.cascade.agreement >= report.augmented_agreement


def test_no_more_is_spent_than_allowed(tmp_path: Path):
    """Where copies demand more than the limit allows, the limit holds, and a warning says so."""
    names = pair(tmp_path, noise=0.1)
    free = capsedge.cascade(*names, min_agreement=0.92, data=IMAGES)
    limited = capsedge.cascade(*names, min_agreement=0.92, max_share=0.1, data=IMAGES)
    assert limited.cascade.share < free.cascade.share
    assert limited.cascade.margin <= free.cascade.margin
    assert not any("demand" in w for w in free.warnings)
    (warning,) = (w for w in limited.warnings if "copies demand" in w)
    wanted, allowed = (float(share) for share in re.findall(r"([\d.]+)% of", warning))
    assert wanted > allowed
    assert allowed < 10, "less than the limit, because it is to be kept with confidence"


@pytest.mark.parametrize(
    "changes", [{"agreement": 1.5}, {"images": 0}, {"margin": "1"}, {"small": {}}, {"cost": -1}]
)
def test_hostile_statements(report: CascadeReport, changes: dict[str, Any]):
    model = onnx.load_model_from_string(report.model)
    declared = {**report.cascade.to_dict(), **changes}
    for entry in model.metadata_props:
        if entry.key == CASCADE_KEY:
            entry.value = json.dumps(declared)
    with pytest.raises(capsedge.ArtefactError, match="metadata cannot be read"):
        load_bytes(model.SerializeToString())


def test_a_cascade_needs_its_output(report: CascadeReport):
    properties = {p.key: p.value for p in onnx.load_model_from_string(report.model).metadata_props}
    with pytest.raises(capsedge.ArtefactError, match="no output escalated"):
        load_bytes(capsule_model(properties=properties).SerializeToString())


def test_the_verb(place: Path, tmp_path: Path):
    out = tmp_path / "pair.onnx"
    base = ["cascade", str(place / "small.onnx"), str(place / "large.onnx"), "--data"]
    base += [str(place / "data"), "-o", str(out), "--min-agreement", "0.98"]
    done = CliRunner().invoke(app, [*base, "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == 0
    assert document["passed"]
    assert document["cascade"]["share"] > 0
    found = ModelMetadata.from_properties({p.key: p.value for p in onnx.load(out).metadata_props})
    assert found is not None
    assert found.cascade is not None
    text = CliRunner().invoke(app, base)
    assert "at worst" in text.stdout
    measured = f"train.npz, train split, {document['cascade']['images']} images; cannot tell"
    assert document["data"].startswith(measured)
    assert measured in re.sub(r"\s+", " ", text.stdout)
    # Its large network is not of a checkpoint of ours.
    assert f"capsedge verify {out} --module CODE.py:" in text.stderr
    assert text.stdout.endswith("PASSED\n")
    shown = CliRunner().invoke(app, ["inspect", str(out)])
    assert "small.onnx, then large.onnx for escalated images" in shown.stdout
    failed = CliRunner().invoke(app, [*base, "--max-share", "0"])
    assert isinstance(failed.exception, capsedge.ParityError)
    assert "FAILED" in failed.stdout


def test_it_is_measured_on_what_neither_network_was_trained_on(tmp_path: Path):
    """Each network held out other images of the same file."""
    labels = np.arange(len(IMAGES)) % 2
    data = ImageSet("one.npz", IMAGES[..., None], labels)
    np.savez(tmp_path / "one.npz", images=IMAGES, labels=labels)
    held: list[ImageSet] = []
    for path, seed in zip(pair(tmp_path), (1, 2), strict=True):
        rule = holdout_rule(data, 2, {"test": 0.7}, seed)
        held.append(divided(data, rule)["test"])
        model = onnx.load(path)
        entry = model.metadata_props.add()
        entry.key, entry.value = TRAINING_SPLIT_KEY, json.dumps(rule.to_dict())
        onnx.save(model, path)
    both = int(held[0].occurs_in(held[1]).sum())
    files = tmp_path / "small.onnx", tmp_path / "large.onnx"
    options = CascadeOptions(min_agreement=0.5)
    made = capsedge.cascade(*files, None, options, data=tmp_path / "one.npz")
    measured = made.cascade.images
    assert made.calibration_images + measured == both < len(held[0])
    assert made.data == f"one.npz, {measured} of 400 images, held out from training"


def test_infer_states_the_share(place: Path, report: CascadeReport, tmp_path: Path):
    from PIL import Image

    files = []
    predictions = capsedge.load(place / "pair.onnx").predict(IMAGES)
    expected = [image for image, p in zip(IMAGES, predictions, strict=True) if p.escalated]
    for number, image in enumerate([*expected[:2], *pixels(18, seed=9)]):
        files.append(tmp_path / f"{number}.png")
        Image.fromarray(image).save(files[-1])
    base = ["infer", "--model", str(place / "pair.onnx"), *map(str, files)]
    document = json.loads(CliRunner().invoke(app, [*base, "--json"]).stdout)
    taken = [line["escalated"] for line in document["images"]]
    assert document["escalated_share"] == np.mean(taken)
    assert 0 < sum(taken) < 20
    said = f"escalated: {sum(taken)} of 20 images, {np.mean(taken):.1%}"
    assert said in CliRunner().invoke(app, base).stdout
    single = ["infer", "--model", str(place / "large.onnx"), str(files[0]), "--json"]
    assert "escalated" not in CliRunner().invoke(app, single).stdout
