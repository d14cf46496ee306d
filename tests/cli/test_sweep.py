"""``capsedge sweep``: the candidates, what they are compared on, the front, and going on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="a sweep exports: pip install 'capsedge[export]'")

import capsedge
from capsedge.calibration.float_model import FloatModel
from capsedge.cli import app
from capsedge.datasets import ImageSet
from capsedge.datasets.mask_folders import read_mask_split
from capsedge.errors import ArtefactError, UsageError
from capsedge.models.checkpoint import save_checkpoint
from capsedge.models.find import find_model
from capsedge.models.training.evaluate import predict_all
from capsedge.optimization import sweep as sweeps
from capsedge.optimization.sweep import SweepPoint
from capsedge.optimization.sweep_candidates import (
    STATE,
    CandidateKind,
    CandidateMaker,
    Quality,
    SweepCandidate,
    SweepState,
)
from capsedge.optimization.sweep_options import SweepOptions
from capsedge.runtime.session.masks import MaskOverlap
from capsedge.runtime.zoo import zoo_checkpoint
from tests.exporters.nets import network
from tests.models.test_segcaps import network as segcaps
from tests.models.training.test_mask_training import draw

ZOO = zoo_checkpoint("digits-dynamic")


def _run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["sweep", *map(str, arguments)])
    if isinstance(result.exception, capsedge.CapsedgeError):
        return int(result.exception.exit_code), result.stdout, str(result.exception)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A network, and images with the classes that it sees in them: it is better than chance."""
    model = network("dynamic")
    save_checkpoint(model, tmp_path / "m.safetensors")
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for name in ("train", "test"):
        images = rng.integers(0, 256, (40, 10, 10), dtype=np.uint8)
        read = ImageSet(name, images[..., None], preprocessing=model.config.preprocessing)
        labels = predict_all(model, read).numpy().argmax(axis=1)
        np.savez(tmp_path / "data" / f"{name}.npz", images=images, labels=labels)
    return tmp_path


@pytest.mark.slow
def test_sweeps(place: Path) -> None:
    out, svg, kept = place / "s.json", place / "s.svg", place / "kept"
    code, text, message = _run(
        "--checkpoint", place / "m.safetensors", "--data", place / "data", "--iters", "1..2",
        "--couplings", "routed,frozen", "--precision", "fp32,int8", "--threads", 1, "-o", out,
        "--picture", svg, "--keep", kept,
    )  # fmt: skip
    assert code == 0, message
    document = json.loads(out.read_text())
    points = document["points"]
    assert [(p["iterations"], p["couplings"], p["precision"]) for p in points] == [
        (n, c, p)
        for n, c in ((1, "routed"), (2, "routed"), (2, "frozen"))
        for p in ("fp32", "int8")
    ]
    assert "one iteration has no couplings" in message
    for point in points:
        assert point["front"] == (point["test_accuracy"] is not None)
        session = capsedge.load(kept / point["file"])
        assert session.metadata is not None
        assert session.metadata.precision == point["precision"]
        assert ("frozen_couplings" in session.metadata.calibration) == (
            point["couplings"] == "frozen"
        )
    assert document["searched"] == 13
    assert document["images"] == 40
    assert svg.read_bytes()[:5] == b"<?xml"
    assert f"search: accuracy on {document['searched_on']}" in text
    assert f"test: accuracy of the front on {document['data']}" in text
    assert text.count("kept") == sum(p["front"] for p in points)


def test_the_test_images_are_read_once_after_the_search(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even images of the test split that are training images too are not reported on."""
    with np.load(place / "data/train.npz") as train, np.load(place / "data/test.npz") as test:
        images = np.concatenate([train["images"], test["images"]])
        labels = np.concatenate([train["labels"], test["labels"]])
    np.savez(place / "data/test.npz", images=images, labels=labels)
    events: list[str] = []
    lines: list[str] = []
    searched: list[ImageSet] = []
    reader = sweeps.read_images

    def read(source: Path, prep: Any, split: str, **_: object) -> ImageSet:
        events.append(split)
        return reader(source, prep, split)

    def make(maker: CandidateMaker, count: int, *_: object) -> Iterator[SweepCandidate]:
        searched.extend([maker.calibration, maker.search])
        yield SweepCandidate(
            CandidateKind("m", count, "routed", "fp32"),
            place / f"{count}.onnx",
            Quality(0.9 / count),
        )

    def time(made: list[SweepCandidate], *_: object) -> list[SweepPoint]:
        """The second is slower, larger and less accurate, so no test figure is computed for it."""
        events.append("timed")
        return [
            SweepPoint(
                "m",
                c.kind.iterations,
                "routed",
                "fp32",
                c.measured.accuracy,
                k + 1,
                k + 1,
                c.path.name,
            )
            for k, c in enumerate(made)
        ]

    def tested(point: SweepPoint, folder: Path, data: ImageSet, _: object) -> SweepPoint:
        events.append(f"tested {point.iterations}")
        assert not any(data.occurs_in(seen).any() for seen in searched)
        return point

    monkeypatch.setattr(sweeps, "read_images", read)
    monkeypatch.setattr(CandidateMaker, "candidates", make)
    monkeypatch.setattr(sweeps, "_timed", time)
    monkeypatch.setattr(sweeps, "_tested", tested)
    swept = sweeps.sweep(
        place / "m.safetensors",
        place / "data",
        SweepOptions(iterations=(1, 2), precision=("fp32",)),
        progress=lines.append,
    )
    assert events == ["train", "timed", "test", "tested 1"]
    assert swept.images == 80 - swept.searched - len(searched[0])
    assert swept.data == f"test.npz, test split, {swept.images} images"
    text = f"train.npz, train split, {swept.searched} images; cannot tell whether they trained the model"
    assert swept.searched_on == text
    assert lines[0] == f"accuracy of the search on {text}"
    assert any("are training images too" in warning for warning in swept.warnings)


@pytest.mark.slow
def test_an_interrupted_sweep_goes_on(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = SweepOptions(iterations=(1,), precision=("fp32", "int8"), keep=place / "kept")
    given = (place / "m.safetensors", place / "data", options)
    measured: list[str] = []
    outcome = FloatModel.outcome

    def count(self: FloatModel, made: object, data: ImageSet) -> object:
        measured.append(self.path.name)
        if len(measured) == 2:
            raise KeyboardInterrupt
        return outcome(self, made, data)  # type: ignore[arg-type]

    def fake(made: list[SweepCandidate], *_: object) -> list[SweepPoint]:
        return [
            SweepPoint("m", 1, "routed", "fp32", c.measured.accuracy, 1, 1, c.path.name)
            for c in made
        ]

    monkeypatch.setattr(FloatModel, "outcome", count)
    monkeypatch.setattr(sweeps, "_timed", fake)
    with pytest.raises(KeyboardInterrupt):
        sweeps.sweep(*given)
    first = sweeps.sweep(*given)
    assert len(measured) == 3  # the first file is not measured again
    assert sweeps.sweep(*given).points == first.points
    assert len(measured) == 3
    int8 = next((place / "kept").glob("*-int8.onnx"))
    int8.write_bytes(b"other")  # a file that was changed is made again
    assert sweeps.sweep(*given).points == first.points
    assert len(measured) == 4
    with np.load(place / "data/train.npz") as train:
        np.savez(place / "data/train.npz", images=train["images"][::-1], labels=train["labels"] * 0)
    with pytest.raises(UsageError, match="other images"):
        sweeps.sweep(*given)
    (place / "kept" / STATE).write_text("{}")
    with pytest.raises(ArtefactError, match="cannot be read"):
        sweeps.sweep(*given)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=12
    )
)
def test_the_front_is_what_no_other_beats(costs: list[tuple[int, int, int]]) -> None:
    points = sweeps.pareto([SweepPoint("m", 1, "routed", "fp32", *c, "f") for c in costs])
    front = [p for p in points if p.front]
    assert front

    def beats(a: SweepPoint, b: SweepPoint) -> bool:
        better = (a.accuracy >= b.accuracy, a.milliseconds <= b.milliseconds, a.bytes <= b.bytes)
        same = (a.accuracy, a.milliseconds, a.bytes) == (b.accuracy, b.milliseconds, b.bytes)
        return all(better) and not same

    for point in points:
        assert point.front == (not any(beats(other, point) for other in points))


def test_labels_beyond_the_classes(place: Path) -> None:
    with np.load(place / "data/train.npz") as train:
        np.savez(place / "data/train.npz", images=train["images"], labels=np.arange(40) % 30)
    code, _, message = _run("--checkpoint", place / "m.safetensors", "--data", place / "data")
    assert code == 2
    assert "30 classes" in message


def test_checkpoints_of_other_tasks(place: Path) -> None:
    code, _, message = _run(
        "--checkpoint", place / "m.safetensors", "--checkpoint", ZOO, "--data", place / "data",
        "--iters", 1, "--precision", "fp32",
    )  # fmt: skip
    assert code == 2
    assert "do not fit each other" in message


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--iters", "0..3"), "--iters 0..3"),
        (("--iters", "x"), "--iters x"),
        (("--precision", "int4"), "one of: fp32"),
        (("--checkpoint", "capsnet-svhn"), "no trained weights"),
        (("-o", "/nonexistent/s.json"), "There is no folder"),
        (("--picture", "/nonexistent/s.png"), "There is no folder"),
        (("--picture", "s.pdf"), "neither a .png nor an .svg"),
        (("--couplings", "thawed"), "one of: routed, frozen"),
        (("--iters", "1..30"), "90 candidates"),
    ],
)
def test_wrong_options(place: Path, arguments: tuple[str, str], word: str) -> None:
    more = () if "--checkpoint" in arguments else ("--checkpoint", place / "m.safetensors")
    code, _, message = _run("--data", place / "data", *more, *arguments)
    assert code == 2
    assert word in message


def test_checkpoints_of_one_name_are_told_apart(place: Path) -> None:
    """``train`` calls every checkpoint ``model.safetensors``."""
    for folder in ("a", "b"):
        (place / folder).mkdir()
        save_checkpoint(network("dynamic"), place / folder / "model.safetensors")
    found = [find_model(place / f"{name}.safetensors") for name in ("a/model", "b/model", "m")]
    named = sweeps._named_apart(found)
    assert [each.name for each in named] == ["a/model", "b/model", "m"]


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    """A SegCaps, and images with masks of both splits."""
    save_checkpoint(segcaps(), tmp_path / "s.safetensors")
    for split, seed in (("train", 4), ("test", 5)):
        draw(tmp_path / "masks" / split, 40, seed=seed)
    return tmp_path


@pytest.mark.slow
def test_masks_are_compared_by_dice(masks: Path) -> None:
    start = str(masks / "s.safetensors")
    capsedge.train(
        masks / "masks",
        masks / "run",
        model=start,
        epochs=30,
        batch=10,
        learning_rate=3e-3,
        shift=0,
    )
    code, text, message = _run(
        "--checkpoint", masks / "run/model.safetensors", "--data", masks / "masks", "--iters", 2,
        "--precision", "fp32,int8", "--threads", 1, "-o", masks / "o.json", "--keep", masks / "kept",
        "--couplings", "routed,frozen",
    )  # fmt: skip
    assert code == 0, message
    document = json.loads((masks / "o.json").read_text())
    assert document["measure"] == "mean Dice"
    assert f"search: mean Dice on {document['searched_on']}" in text
    points = document["points"]
    assert len(points) == 4
    for point in points:
        assert 0 < point["iou"] < point["accuracy"] < 1
        assert (
            point["front"]
            == (point["test_accuracy"] is not None)
            == (point["test_iou"] is not None)
        )
    best = next(point for point in points if point["front"])
    with capsedge.load(masks / "kept" / best["file"]) as session:
        data = read_mask_split(masks / "masks", "test", session.metadata.preprocessing, ("a", "b"))
        overlap = MaskOverlap(session.roles.mask_classes, background=True)
        overlap.update(data.masks, [p.mask for p in session.predict(data.images)])
    assert best["test_accuracy"] == pytest.approx(overlap.mean_dice)
    assert best["test_iou"] == pytest.approx(overlap.mean_iou)
    assert f"Dice {overlap.mean_dice:.4f}, IoU {overlap.mean_iou:.4f}" in text


def test_masks_and_labels_are_not_compared(masks: Path, place: Path) -> None:
    data = masks / "masks"
    code, _, message = _run("--checkpoint", masks / "s.safetensors", "--data", place / "data")
    assert code == 2
    assert "has no folder 'images'" in message
    both = ("--checkpoint", masks / "s.safetensors", "--checkpoint", place / "m.safetensors")
    code, _, message = _run(*both, "--data", data, "--iters", 1)
    assert code == 2
    assert "Their tasks differ" in message


def test_what_was_measured_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(b"a")
    state, measured = SweepState(tmp_path, "images"), Quality(0.75, 0.5)
    state.add(tmp_path / "a.onnx")
    assert state.measured(tmp_path / "a.onnx") is None
    state.add(tmp_path / "a.onnx", measured)
    assert SweepState(tmp_path, "images").measured(tmp_path / "a.onnx") == measured
    assert str(measured) == "Dice 0.7500, IoU 0.5000"
    assert str(Quality(0.75)) == "75.00 %"
