"""A segmentation on the page, in Chromium: its mask is Python's, and lies over the image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import capsedge
from capsedge.runtime.zoo import samples_folder
from tests.page import browser
from tests.page.browser import play
from tests.page.conftest import served
from tests.page.test_page import write_film
from tests.serving.models import segmentation

pytestmark = pytest.mark.slow

SIZE = (9, 14)  # of an image; the network's input has 8x12


@pytest.mark.parametrize("kind", ["maps of logits", "digits-clutter"])
def test_the_mask_lies_over_the_image(kind: str, tmp_path: Path) -> None:
    if reason := browser.missing():
        pytest.skip(reason)
    if kind == "digits-clutter":
        model, image = kind, samples_folder().with_name("clutter") / "digit-3.png"
        size = (32, 32)
    else:
        model, image, size = str(segmentation(tmp_path)), tmp_path / "photo.png", SIZE
        pixels = np.random.default_rng(1).integers(0, 256, (*SIZE, 3), np.uint8)
        Image.fromarray(pixels).save(image)
    capsedge.deploy_web([model], tmp_path / "page")
    with served(tmp_path / "page") as server:
        server.files["/photo.png"] = image
        seen = play("masks", server.url, image="photo.png", size=size)
    with capsedge.load(model) as session:
        (found,) = session.predict(image)
    assert found.mask is not None
    assert seen["drawn"] is None
    assert seen["size"] == list(size)
    assert np.array_equal(np.reshape(seen["mask"], size), found.mask)
    # Half the colours of the mask, but for the rounding of the canvas.
    np.testing.assert_allclose(seen["overlay"], found.overlay(image), atol=2)
    largest = sorted(found.areas, key=lambda area: -area.pixels)
    assert len({area.pixels for area in largest}) == len(largest)
    assert seen["rows"] == [
        f"{area.name}{100 * area.share:.1f} %" for area in largest if area.pixels
    ]
    assert seen["hidden"] == [True, True]


def test_the_mask_lies_over_the_pictures_of_a_camera(tmp_path: Path) -> None:
    """The pretended camera shows two pictures in turns; the mask is that of the picture beneath it."""
    if reason := browser.missing():
        pytest.skip(reason)
    model, pictures = segmentation(tmp_path), [tmp_path / "one.png", tmp_path / "two.png"]
    for seed, picture in enumerate(pictures):
        pixels = np.random.default_rng(seed).integers(0, 256, (8, 12), np.uint8)
        Image.fromarray(pixels).save(picture)
    write_film(tmp_path / "film.y4m", *pictures)
    capsedge.deploy_web([str(model)], tmp_path / "page")
    pretended = [
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-video-capture={tmp_path / 'film.y4m'}",
    ]
    with served(tmp_path / "page") as server:
        seen = play("filmed", server.url, arguments=pretended, pictures=len(pictures))
    assert seen["message"] == ""
    size = tuple(seen["frame"]["size"])
    frame = np.reshape(seen["frame"]["pixels"], (*size, 4)).astype(np.uint8)[..., :3]
    with capsedge.load(model) as session:
        (found,) = session.predict(frame)
    assert found.mask is not None
    assert len(np.unique(found.mask)) > 1
    assert seen["size"] == list(size)
    assert np.array_equal(np.reshape(seen["mask"], size), found.mask)
    # The canvas draws the picture larger and smooth, so edges are left out.
    wanted = found.overlay(frame).astype(int)
    blocks = np.lib.stride_tricks.sliding_window_view(wanted, (3, 3), (0, 1))
    inside = (np.ptp(blocks, (3, 4)) <= 2).all(axis=2)
    assert inside.mean() > 0.5
    np.testing.assert_allclose(
        np.array(seen["overlay"])[1:-1, 1:-1][inside], wanted[1:-1, 1:-1][inside], atol=3
    )
    assert np.abs(wanted - frame)[1:-1, 1:-1][inside].max() > 30  # the mask is seen
