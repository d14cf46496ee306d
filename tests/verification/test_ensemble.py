"""``capsedge.verify_ensemble``: every member against its source, the average against the sources' average."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

import capsedge
from capsedge.cli._output import print_report
from capsedge.datasets import ImageSet
from capsedge.datasets.image_set import divided, holdout_rule
from capsedge.errors import ArtefactError, ParityError, UsageError
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.metadata.origin import TRAINING_SPLIT_KEY
from capsedge.verification.verify_options import VerifyOptions


@pytest.fixture(scope="module")
def pair(families) -> tuple[list[Path], list[Path]]:
    """The checkpoints and the files of two members."""
    both = [families["dynamic"], families["em"]]
    return [each.checkpoint for each in both], [each.onnx() for each in both]


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    rng = np.random.default_rng(4)
    images = rng.integers(0, 256, (6, 28, 28), np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=np.arange(6) % 3)
    return tmp_path / "data.npz"


def damaged(path: Path, target: Path) -> Path:
    """A copy with other weights and the same metadata."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.dtype == np.float32 and values.ndim > 1:
            tensor.CopyFrom(numpy_helper.from_array(-values, tensor.name))
    onnx.save(model, target)
    return target


def test_members_and_their_average_pass(pair, labelled: Path, tmp_path: Path) -> None:
    checkpoints, files = pair
    seen = []
    certificate = capsedge.verify_ensemble(
        checkpoints[::-1], files, data=labelled, progress=lambda *step: seen.append(step)
    )
    certificate.check()
    certificate.save(tmp_path / "c.json")
    document = json.loads((tmp_path / "c.json").read_text())
    for member, checkpoint, file in zip(document["members"], checkpoints, files, strict=True):
        sums = [link["sha256"] for link in member["chain"]]
        assert sums == [sha256(checkpoint), sha256(file)]
    assert document["averaged"] == "length"
    assert seen[-1][1] == seen[-1][2]
    # The figures are those of the ensemble itself.
    with np.load(labelled) as data, capsedge.load(files) as ensemble:
        averaged = ensemble.predict(data["images"])
        decided = np.array([p.labels[0].index for p in averaged])
        assert document["decisions"]["accuracy_artefact"] == (decided == data["labels"]).mean()
        for row, member in zip(document["alone"], ensemble.members, strict=True):
            own = np.array([p.labels[0].index for p in member.predict(data["images"])])
            assert row["agreement_with_ensemble"] == pytest.approx((own == decided).mean())
            assert row["accuracy"] == (own == data["labels"]).mean()


@pytest.mark.thorough
def test_a_damaged_member_fails_and_is_named(pair, labelled: Path, tmp_path: Path) -> None:
    checkpoints, files = pair
    wrong = damaged(files[1], tmp_path / "damaged.onnx")
    certificate = capsedge.verify_ensemble(checkpoints, [files[0], wrong], data=labelled)
    assert certificate.verdict == "FAILED"
    assert certificate.failures[0].startswith("damaged.onnx: ")
    assert [m.passed for m in certificate.members] == [True, False]
    with pytest.raises(ParityError):
        certificate.check()


def test_the_average_is_judged(pair, labelled: Path, tmp_path: Path) -> None:
    """Members whose numbers are not judged at all can still fail together."""
    checkpoints, files = pair
    wrong = [damaged(f, tmp_path / f.name) for f in files]
    loose = VerifyOptions(tolerance=(1e9, 1e9))
    certificate = capsedge.verify_ensemble(checkpoints, wrong, loose, data=labelled)
    assert any(failure.startswith("The ensemble: ") for failure in certificate.failures)
    assert "<EnsembleCertificate FAILED" in repr(certificate)


@pytest.mark.thorough
def test_flips_name_the_image_and_the_classes(pair, tmp_path: Path, capsys) -> None:
    checkpoints, files = pair
    wrong = [damaged(f, tmp_path / f.name) for f in files]
    rng = np.random.default_rng(4)
    folder = tmp_path / "letters"
    for label in range(10):
        (folder / str(label)).mkdir(parents=True)
        pixels = rng.integers(0, 256, (28, 28), np.uint8)
        Image.fromarray(pixels).save(folder / str(label) / "a.png")
    loose = VerifyOptions(tolerance=(1e9, 1e9))
    certificate = capsedge.verify_ensemble(checkpoints, wrong, loose, data=folder)
    assert certificate.decisions is not None
    flips = certificate.decisions["flips_by_margin"]
    assert flips
    assert {flip["name"] for flip in flips} <= {f"{label}/a.png" for label in range(10)}
    print_report(certificate, as_json=False)
    shown = capsys.readouterr().out
    first = flips[0]
    change = f"{first['reference'][0]} -> {first['artefact'][0]}, margin {first['margin']:.3g}"
    assert any(first["name"] in line and change in line for line in shown.splitlines())
    assert "letters, all 10 images; cannot tell whether they trained the model" in shown


def test_members_are_compared_on_what_none_was_trained_on(pair, tmp_path: Path) -> None:
    """Members that held out other images would be averaged over images that do not correspond."""
    checkpoints, files = pair
    images = np.random.default_rng(3).integers(0, 256, (48, 28, 28), np.uint8)
    source = tmp_path / "one.npz"
    np.savez(source, images=images, labels=np.arange(48) % 3)
    data = ImageSet("one.npz", images[..., None], np.arange(48) % 3)
    rules = [holdout_rule(data, 3, {"test": 0.5}, seed) for seed in (1, 2)]
    ruled = []
    for file, rule in zip(files, rules, strict=True):
        model = onnx.load(file)
        entry = model.metadata_props.add()
        entry.key, entry.value = TRAINING_SPLIT_KEY, json.dumps(rule.to_dict())
        ruled.append(tmp_path / file.name)
        onnx.save(model, ruled[-1])
    held = [divided(data, rule)["test"] for rule in rules]
    common = int(held[0].occurs_in(held[1]).sum())
    assert common < len(held[0])
    certificate = capsedge.verify_ensemble(checkpoints, ruled, data=source)
    assert certificate.measured_on == f"one.npz, {common} of 48 images, held out from training"
    assert certificate.images == common


@pytest.mark.thorough
def test_what_does_not_belong_together(pair, families) -> None:
    checkpoints, files = pair
    other = families["attention"]
    with pytest.raises(UsageError, match="No member"):
        capsedge.verify_ensemble([*checkpoints, other.checkpoint], files, limit=2)
    with pytest.raises(UsageError, match="not in the zoo"):
        capsedge.verify_ensemble(checkpoints[:1], files, limit=2)
    with pytest.raises(UsageError, match="1 references for 2 members"):
        capsedge.verify_ensemble([families["em"].model], files, limit=2)
    with pytest.raises(ArtefactError, match="not exported from"):
        capsedge.verify_ensemble([checkpoints[1], families["em"].model], files, limit=2)
    with pytest.raises(UsageError, match="kind of scores"):
        capsedge.verify_ensemble(None, [files[0], other.onnx()], limit=2)
    with pytest.raises(UsageError, match="single file"):
        capsedge.verify_ensemble(None, files[0])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="verify_ensemble"):
        capsedge.verify(None, files)  # type: ignore[arg-type]


def test_modules_in_order(pair, families) -> None:
    modules = [families["dynamic"].model, families["em"].model]
    assert capsedge.verify_ensemble(modules, pair[1], limit=2).passed
