"""Masks: from scores to an image's own size, areas, run lengths, and the file that states them."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import capsedge
from capsedge import Preprocessing
from capsedge.errors import ArtefactError, ShapeError, UsageError
from capsedge.runtime.images.preprocessing import placement_of, resize
from capsedge.runtime.load import load_bytes
from capsedge.runtime.metadata.metadata import ModelMetadata, Outputs
from capsedge.runtime.session.masks import (
    CLASSES_KEY,
    class_areas,
    level_of,
    mask_names,
    mask_of_image,
    mask_png,
    overlaid,
    palette,
    run_lengths,
)
from capsedge.runtime.session.session import Session
from capsedge.spec.vocabularies import RESIZE_RULES, SEGMENTATION
from tests.runtime.models import segmentation_model

NAMES = ("road", "tree", "sky")
SIZE = Preprocessing(8, 12, 1)


def segmenter(
    maps: int = 3, p: Preprocessing = SIZE, shape: tuple[int, ...] = (), **changes: object
) -> Session:
    """A loaded segmentation whose scores are a linear map of the image."""
    said: dict[str, object] = {
        "architecture": "", "configuration": {}, "routing": "", "iterations": 0,
        "class_names": NAMES[: max(2, maps)], "preprocessing": p, "task": SEGMENTATION,
        "outputs": Outputs(scores="mask", kind="logits"), **changes,
    }  # fmt: skip
    properties = ModelMetadata(**said).to_properties()  # type: ignore[arg-type]
    model = segmentation_model(shape or (maps, p.height, p.width), properties=properties)
    return load_bytes(model.SerializeToString(), Path("segmenter.onnx"))


def plain_mask(
    maps: NDArray[np.float32], p: Preprocessing, size: tuple[int, int]
) -> NDArray[np.uint8]:
    """The rule of docs/reference/runtime.md with the image filter itself, step by step."""
    placed = placement_of(p, *size)

    def resized(x: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
        return resize(*x.shape[:2], height, width, lambda a, b: x[a:b])

    whole = resized(maps, p.height, p.width)
    down, right = placed.corner(p.height, p.width)
    inner = whole[down : down + placed.inner[0], right : right + placed.inner[1]]
    top, left, height, width = placed.part
    mask = np.full(size, 255, np.uint8)
    mask[top : top + height, left : left + width] = resized(inner, height, width).argmax(-1)
    return mask


@pytest.mark.parametrize("rule", RESIZE_RULES)
@pytest.mark.parametrize("size", [(8, 12), (5, 30), (31, 7), (90, 131), (1, 1)])
@pytest.mark.parametrize("grid", [(8, 12), (2, 3)])
def test_a_mask_follows_the_rule(rule: str, size: tuple[int, int], grid: tuple[int, int]):
    p = dataclasses.replace(SIZE, resize=rule)
    maps = np.random.default_rng(3).standard_normal((*grid, 3)).astype(np.float32)
    found = mask_of_image(maps, p, size, np.float32(0))
    assert found.dtype == np.uint8
    assert np.array_equal(found, plain_mask(maps, p, size))
    assert (255 in found) == (
        rule in ("crop", "center") and placement_of(p, *size).part[2:] != size
    )


def test_equal_scores_go_to_the_first_class():
    maps = np.zeros((2, 2, 3), np.float32)
    maps[0, :, 1:] = 1
    found = mask_of_image(maps, Preprocessing(2, 2, 1), (2, 2), np.float32(0))
    assert found.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize(
    ("kind", "threshold", "level"),
    [("length", 0.5, 0.5), ("logits", 0.5, 0), ("logits", 0, -np.inf), ("logits", 1, np.inf)],
)
def test_the_level_of_one_map_is_included(kind: str, threshold: float, level: float):
    found = level_of(threshold, kind)
    assert found == level
    maps = np.array([[[-9.0], [level], [9.0]]], np.float32)
    inside = mask_of_image(maps, Preprocessing(1, 3, 1), (1, 3), found)[0].tolist()
    assert inside[1] == 1
    assert inside[0] == (threshold == 0)


def test_predictions_have_masks_of_the_images_own_sizes():
    with segmenter() as session:
        rng = np.random.default_rng(1)
        images = [rng.integers(0, 256, size, np.uint8) for size in ((8, 12), (20, 9), (5, 5))]
        one, two, three = session.predict(images, batch_size=2)
        for image, found in zip(images, (one, two, three), strict=True):
            assert found.mask is not None
            assert found.mask.shape == image.shape
            assert found.mask_classes == NAMES
            assert (found.labels, found.scores.size, found.label) == ((), 0, None)
            assert np.array_equal(session.predict(image)[0].mask, found.mask)
        maps = session.run(session.prepare(images[1])[None])["mask"][0].transpose(1, 2, 0)
        assert np.array_equal(two.mask, plain_mask(maps, SIZE, (20, 9)))
        prepared = np.stack([session.prepare(image) for image in images])
        own = session.predict(prepared, prepared=True)[1].mask
        sized = session.predict(prepared, prepared=True, sizes=[i.shape for i in images])  # type: ignore[misc]
        assert own is not None
        assert own.shape == (8, 12)
        assert np.array_equal(sized[1].mask, two.mask)
        with pytest.raises(UsageError, match="2 sizes for 3 images"):
            session.predict(prepared, prepared=True, sizes=[(1, 1), (2, 2)])


@pytest.mark.parametrize("shape", [(8, 12), (1, 8, 12), (8, 12, 1)])
def test_one_map_is_background_and_foreground(shape: tuple[int, ...]):
    p = dataclasses.replace(SIZE, layout="NHWC" if shape[-1] == 1 else "NCHW")
    with segmenter(1, p, shape) as session:
        image = np.random.default_rng(2).integers(0, 256, (8, 12), np.uint8)
        (found,) = session.predict(image)
        scores = session.run(session.prepare(image)[None])["mask"].reshape(8, 12)
        assert np.array_equal(found.mask, scores >= 0)
        strict = session.predict(image, threshold=0.75)[0].mask
        assert np.array_equal(strict, scores >= np.float32(np.log(3)))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"class_names": ("a", "b")}, r"names 2 classes, mask has \[3, 8, 12\]"),
        ({"shape": (1, 1, 8, 12)}, r"needs scores \[H, W\] or \[maps, H, W\]"),
        ({"shape": (256, 8, 12), "class_names": ()}, "at most 255 classes"),
    ],
)
def test_metadata_that_does_not_fit(changes: dict[str, object], why: str):
    with pytest.raises(ArtefactError, match="does not fit its graph") as failed:
        segmenter(**changes)  # type: ignore[arg-type]
    assert failed.match(why)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"class_names": ("a",)}, "a segmentation has 2 to 255 classes"),
        ({"outputs": None}, "a segmentation has an output for scores"),
        ({"outputs": Outputs(scores="mask", kind="height")}, "kind of scores"),
        ({"outputs": Outputs(scores="m", kind="logits", poses="p")}, "no output for poses"),
    ],
)
def test_metadata_that_contradicts_itself(changes: dict[str, object], why: str):
    with pytest.raises(ValueError, match=why):
        segmenter(**changes)  # type: ignore[arg-type]


def test_a_segmentation_has_no_best_classes_and_no_ensemble():
    with segmenter() as session:
        with pytest.raises(UsageError, match="segments images"):
            session.predict(np.zeros((8, 12), np.uint8), top_k=1)
        with pytest.raises(UsageError, match="not averaged"):
            capsedge.Ensemble([session, session])


def test_scores_that_are_not_finite():
    with segmenter() as session, pytest.raises(ArtefactError, match="NaN or infinite"):
        session.roles.masks({"mask": np.full((1, 3, 8, 12), np.nan, np.float32)}, [(8, 12)])


def test_maps_of_another_number():
    with segmenter() as session, pytest.raises(ArtefactError, match="computed 2 maps"):
        session.roles.masks({"mask": np.zeros((1, 2, 8, 12), np.float32)}, [(8, 12)])


def test_areas_and_run_lengths():
    mask = np.array([[0, 1, 1], [0, 1, 255]], np.uint8)
    areas = class_areas(mask, NAMES)
    assert [(a.name, a.pixels, a.share) for a in areas] == [
        ("road", 2, 0.4), ("tree", 3, 0.6), ("sky", 0, 0.0),
    ]  # fmt: skip
    assert run_lengths(mask == 0) == {"size": [2, 3], "counts": [0, 2, 4]}
    assert run_lengths(mask == 1) == {"size": [2, 3], "counts": [2, 3, 1]}
    assert run_lengths(mask == 2) == {"size": [2, 3], "counts": [6]}


def test_run_lengths_are_read_back():
    chosen = np.random.default_rng(5).random((17, 11)) < 0.4
    written = run_lengths(chosen)
    bits = np.repeat(np.arange(len(written["counts"])) % 2, written["counts"])
    assert np.array_equal(bits.reshape(11, 17).T, chosen)


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of pycocotools
def test_pycocotools_reads_the_run_lengths():
    coco = pytest.importorskip(
        "pycocotools.mask", reason="pip install pycocotools (a dev dependency)"
    )
    chosen = np.random.default_rng(6).random((17, 11)) < 0.4
    assert np.array_equal(coco.decode(coco.frPyObjects(run_lengths(chosen), 17, 11)), chosen)


def test_the_colours_are_those_of_pascal_voc():
    colours = palette()
    assert colours[[0, 1, 2, 15, 255]].tolist() == [
        [0, 0, 0], [128, 0, 0], [0, 128, 0], [192, 128, 128], [224, 224, 192],
    ]  # fmt: skip


def test_overlay():
    pixels = np.full((1, 3, 3), 200, np.uint8)
    mask = np.array([[0, 1, 255]], np.uint8)
    assert overlaid(pixels, mask).tolist() == [[[200] * 3, [164, 100, 100], [100] * 3]]
    with pytest.raises(ShapeError, match="The mask has 1x3"):
        overlaid(pixels[:, :2], mask)
    with segmenter() as session:
        image = np.zeros((20, 9), np.uint8)
        assert session.predict(image)[0].overlay(image).shape == (20, 9, 3)


def test_a_mask_file_is_indexed_and_names_its_classes():
    mask = np.array([[0, 2], [255, 1]], np.uint8)
    image = Image.open(io.BytesIO(mask_png(mask, NAMES)))
    assert image.mode == "P"
    assert np.array_equal(np.asarray(image), mask)
    assert json.loads(image.info[CLASSES_KEY]) == list(NAMES)
    assert image.convert("RGB").getpixel((0, 1)) == (224, 224, 192)


def test_images_of_one_name_have_one_mask():
    with pytest.raises(UsageError, match=r"a/x\.png and b/x\.jpg would have the same mask"):
        mask_names([Path("a/x.png"), Path("b/x.jpg")], Path("masks"))
