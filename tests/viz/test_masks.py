"""Pictures of a segmentation: masks, what differs from the data's, and the couplings of a routed layer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import capsedge
from capsedge.datasets import ImageSet
from capsedge.errors import UsageError
from capsedge.runtime.session.masks import MaskOverlap, overlaid
from capsedge.runtime.session.routing_trace import Trace
from capsedge.viz import mask_figures
from capsedge.viz.figure_kinds import FigureOptions, chosen, possible
from tests.cli.test_see import refused, see
from tests.runtime.test_masks import NAMES, SIZE, segmenter
from tests.serving.models import segmentation
from tests.viz import traces

pytest.importorskip("matplotlib")


@pytest.fixture
def session() -> Iterator[capsedge.Session]:
    with segmenter() as opened:
        yield opened


def images(count: int = 2) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, SIZE.height, SIZE.width, 1), np.uint8)


def with_trace(session: capsedge.Session, types: int = 6) -> Trace:
    """A made trace of a layer on a 2 x 3 map."""
    layer = traces.layer("dynamic", (2, 3), (1, 1), 1, 5, types, images=2, name="down.1")
    session.trace = lambda given, prepared: Trace((layer,))
    session.can.check_trace = lambda: None
    return Trace((layer,))


def test_the_mask_lies_over_the_input(session: capsedge.Session):
    (axis,) = capsedge.viz.masks(session, images()).axes
    assert len(axis.images) == 4
    for n, prediction in enumerate(session.predict(images())):
        pixels = np.repeat(images()[n], 3, axis=2)
        assert np.array_equal(axis.images[2 * n].get_array(), pixels)
        assert np.array_equal(axis.images[2 * n + 1].get_array(), overlaid(pixels, prediction.mask))
    assert [text.get_text() for text in axis.texts] == ["input", "mask", "image 1", "image 2"]


def test_couplings_of_a_routed_layer(session: capsedge.Session):
    (layer,) = with_trace(session)
    found = mask_figures.compute_masks(session, images())
    assert found.couplings is not None
    means = layer.couplings[:, -1].astype(np.float64).mean(axis=3)  # [N, H', W', J]
    strongest = np.argsort(-means.mean(axis=(0, 1, 2)), kind="stable")[:4]
    assert found.couplings.types == tuple(strongest)
    np.testing.assert_allclose(found.couplings.shares, np.moveaxis(means[..., strongest], 3, 1))
    assert found.notes == ("Only the 4 of 6 types with the largest couplings are shown.",)
    (axis,) = found.draw().axes
    assert [each.get_array().shape for each in axis.images[2:6]] == [(2, 3, 3)] * 4
    numbers = json.loads(json.dumps(found.to_dict()))
    assert numbers["layer"] == "down.1"
    assert np.shape(numbers["images"][1]["couplings"]) == (4, 2, 3)
    with pytest.raises(UsageError, match=r"Choose one of: down\.1"):
        mask_figures.compute_masks(session, images(), layer="classes")


def test_other_pictures_of_its_routing(session: capsedge.Session):
    with_trace(session)
    assert len(capsedge.viz.couplings(session, images()).axes) == 2 * 3
    assert len(capsedge.viz.agreement(session, images()).axes) == 2 * 2
    options = FigureOptions(images=[Path("a.png")], data=Path("data"))
    assert possible(session, options) == ["masks", "couplings", "agreement", "hardest"]


def test_a_dense_layer_is_one_place():
    layer = traces.layer("dynamic", (1, 1), (3, 3), 1, 5, 3)
    found = mask_figures.coupling_maps(layer)
    np.testing.assert_allclose(found.shares.sum(axis=1), 1, rtol=1e-6)
    assert found.shares.shape == (1, 3, 1, 1)


def test_the_least_overlap_comes_first(session: capsedge.Session):
    pixels = images(4)
    masks = np.stack([p.mask for p in session.predict(pixels)])
    masks[2] = 255 - 255 * (masks[2] > 0)  # unknown where it is the road; the road elsewhere
    masks[1, :3] = (masks[1, :3] + 1) % 3
    data = ImageSet("made", pixels, None, SIZE, masks=masks)
    found = mask_figures.compute_hardest_masks(session, data, count=2)
    assert [each.name for each in found.images] == ["image 3", "image 2"]
    overlap = MaskOverlap(NAMES)
    overlap.update(masks, [p.mask for p in session.predict(pixels)])
    assert found.overall == overlap.mean_dice
    assert f"{overlap.mean_dice:.4f}" in found.title
    assert found.images[0].dice < found.images[1].dice < 1
    (axis,) = capsedge.viz.hardest(session, data, count=2).axes
    assert len(axis.images) == 2 * 4
    drawn = mask_figures.difference(
        *(getattr(found.images[1], n) for n in ("pixels", "truth", "mask"))
    )
    assert np.array_equal(axis.images[7].get_array(), drawn)


def test_what_differs_has_its_colour():
    pixels = np.zeros((1, 6, 3), np.uint8)
    truth = np.array([[1, 0, 1, 1, 255, 0]], np.uint8)
    mask = np.array([[0, 1, 2, 1, 1, 0]], np.uint8)
    drawn = mask_figures.difference(pixels, truth, mask)[0]
    wanted = [mask_figures.MISSED, mask_figures.EXTRA, mask_figures.CONFUSED]
    assert [tuple(each) for each in drawn[:3]] == wanted
    assert drawn[3:].tolist() == [[160] * 3, [0] * 3, [160] * 3]


def test_data_without_masks_and_models_without(session: capsedge.Session, plain: capsedge.Session):
    with pytest.raises(UsageError, match="made has no masks"):
        mask_figures.compute_hardest_masks(session, ImageSet("made", images()), count=1)
    for picture in (capsedge.viz.capsules, capsedge.viz.iterations, capsedge.viz.responsibilities):
        with pytest.raises(UsageError, match="is a segmentation"):
            picture(session, images())
    with pytest.raises(UsageError, match="makes no masks"):
        capsedge.viz.masks(plain, images())


@pytest.fixture
def place(tmp_path: Path) -> Path:
    segmentation(tmp_path)
    rng = np.random.default_rng(1)
    for folder in ("images", "masks"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for name in ("a", "b"):
        pixels, mask = (
            rng.integers(0, 256, (9, 14), np.uint8),
            rng.integers(0, 3, (9, 14), np.uint8),
        )
        Image.fromarray(pixels).save(tmp_path / "data" / "images" / f"{name}.png")
        Image.fromarray(mask).save(tmp_path / "data" / "masks" / f"{name}.png")
    return tmp_path


def test_the_command(place: Path):
    model, image = place / "maps.onnx", place / "data/images/a.png"
    found = json.loads(see(model, image, "--json"))["pictures"]
    assert list(found) == ["masks"]
    (drawn,) = found["masks"]["images"]
    assert [each["label"] for each in drawn["mask"]["classes"]] == list(NAMES)
    hardest = json.loads(see(model, "--data", place / "data", "--json"))["pictures"]["hardest"]
    assert {each["image"] for each in hardest["images"]} == {"a.png", "b.png"}
    assert 0 < hardest["mean_dice"] < 1
    see(model, image, "--data", place / "data", "-o", place / "out.html")
    assert (place / "out.html").read_text().count("<figure") == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--what", "capsules"), "Pictures that this file supports: masks"),
        (("--what", "couplings"), "--with trace"),
        (("--layer", "down.1"), "does not expose its routing"),
        (("--label", "road,tree"), "--label does not apply to masks"),
        (("--class", "road"), "--class does not apply to masks"),
        (("--limit", "3"), "--limit does not apply to masks"),
    ],
)
def test_refused(place: Path, arguments: tuple[str, ...], says: str):
    error = refused(place / "maps.onnx", place / "data/images/a.png", "--json", *arguments)
    assert isinstance(error, UsageError)
    assert says in f"{error} {error.command}"
    folder = refused(place / "maps.onnx", "--data", place / "data/images", "--json")
    assert "has no folder 'images'" in str(folder)


def test_options_of_no_picture(plain: capsedge.Session):
    options = FigureOptions(images=[Path("a.png")], of="left")
    with pytest.raises(UsageError, match="--class does not apply to capsules"):
        chosen(plain, options, [])
    with pytest.raises(UsageError, match="--class does not apply to capsules"):
        chosen(plain, options, ["capsules"])
