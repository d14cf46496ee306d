"""``capsedge infer`` with a segmentation, and how a file becomes one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.running import capsedge
from tests.runtime.models import capsule_model, save, segmentation_model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masks")
    save(segmentation_model((3, 8, 12)), folder / "plain.onnx")
    save(capsule_model(), folder / "classes.onnx")
    rng = np.random.default_rng(1)
    for name in ("a", "b"):
        Image.fromarray(rng.integers(0, 256, (20, 9), np.uint8)).save(folder / f"{name}.png")
    done = capsedge(
        "optimize", folder / "plain.onnx", "-o", folder / "m.onnx", "--task", "segmentation",
        "--classes", "road,tree,sky", "--describe", "resize=crop",
    )  # fmt: skip
    assert done.returncode == 0
    assert "3 classes of pixels, scores (logits) in mask" in done.stdout
    return folder


def test_table_masks_and_pictures(place: Path):
    images = [place / "a.png", place / "b.png"]
    masks, pictures = place / "masks", place / "pictures"
    run = capsedge("infer", *images, "-m", place / "m.onnx", "-o", masks, "--overlay", pictures)
    assert run.returncode == 0
    lines = [line.split() for line in run.stdout.splitlines() if line]
    assert lines[1] == ["image", "pixels", "class", "share"]
    assert lines[2][:2] == [str(images[0]), "9x20"]
    assert f"wrote 2 masks to {masks}" in run.stderr
    assert f"wrote 2 pictures to {pictures}" in run.stderr
    mask = np.asarray(Image.open(masks / "a.png"))
    assert mask.shape == (20, 9)
    assert set(np.unique(mask)) <= {0, 1, 2, 255}
    unknown = [line for line in lines if line[:2] == ["not", "seen"]]
    assert unknown[0][2] == f"{(mask == 255).mean():.1%}"
    assert Image.open(pictures / "b.png").mode == "RGB"


def test_json(place: Path):
    run = capsedge("infer", place / "a.png", "-m", place / "m.onnx", "--json")
    (image,) = json.loads(run.stdout)["images"]
    mask = image["mask"]
    assert (mask["height"], mask["width"]) == (20, 9)
    assert [each["label"] for each in mask["classes"]] == ["road", "tree", "sky"]
    assert sum(each["pixels"] for each in mask["classes"]) + mask["unknown"] == 180
    for each in mask["classes"]:
        assert sum(each["rle"]["counts"][1::2]) == each["pixels"]
        assert sum(each["rle"]["counts"]) == 180


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["-o", "{place}"], "It is an input of the same command."),
        (["-o", "{place}/both", "--overlay", "{place}/both"], "Another output"),
        (["--top", "2"], "segments images"),
        (["--threshold", "0.2"], "the largest score decides"),
        (["--reconstruct", "{place}/sheet.png"], "It is a segmentation"),
    ],
)
def test_refused(place: Path, options: list[str], what: str):
    words = [word.format(place=place) for word in options]
    run = capsedge("infer", place / "a.png", "-m", place / "m.onnx", *words)
    assert run.returncode == 2
    assert what in run.stderr


def test_a_classification_writes_no_masks(place: Path):
    run = capsedge("infer", place / "a.png", "-m", place / "classes.onnx", "-o", place / "none")
    assert run.returncode == 2
    assert "does not segment images" in run.stderr
    assert not (place / "none").exists()


def test_a_mask_is_recognized_and_suggested(place: Path):
    run = capsedge("optimize", place / "plain.onnx", "-o", place / "x.onnx", "--classes", "a,b,c")
    assert run.returncode == 2
    assert "mask looks like a mask" in run.stderr
    assert "add --task segmentation" in run.stderr


def test_more_classes_than_maps(place: Path):
    words = ("-o", place / "x.onnx", "--task", "segmentation", "--classes", "a,b,c,d")
    run = capsedge("optimize", place / "plain.onnx", *words)
    assert run.returncode == 2
    assert "mask [3, 8, 12]; of 4 classes they are" in run.stderr


def test_a_cascade_is_of_classifiers(place: Path):
    model = place / "m.onnx"
    run = capsedge("cascade", model, model, "--data", place)
    assert run.returncode == 2
    assert "is a segmentation" in run.stderr
    assert "two classifiers" in run.stderr
