"""The HTML report in headless Chromium: it needs no network, fits its window, and shows its charts."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium"
)


def chromium(page: Path, folder: Path, *options: str) -> str:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def screenshot(page: Path, folder: Path, width: int, dark: bool) -> Image.Image:
    target = folder / f"{width}-{dark}.png"
    options = [f"--screenshot={target}", f"--window-size={width},2400"]
    options += [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    chromium(page, folder, *options)
    with Image.open(target) as image:
        return image.convert("RGB")


def test_nothing_is_loaded_and_no_script_runs(page: Path):
    text = page.read_text()
    assert not re.search(r"<script|<link|<iframe|@import|url\(|\bsrc=|https?://", text)


@needs_chromium
def test_layers_and_charts_are_rendered(page: Path, tmp_path: Path):
    dom = chromium(page, tmp_path, "--dump-dom")
    assert "classes, routing iteration 3" in dom
    assert dom.count("<svg") == 2 * 3  # roofline, histogram, series of two batch sizes
    assert "NaN" not in dom


@needs_chromium
@pytest.mark.parametrize("width", [500, 1100])
def test_colours_follow_the_scheme(page: Path, tmp_path: Path, width: int):
    light, dark = (screenshot(page, tmp_path, width, dark) for dark in (False, True))
    assert light.getpixel((2, 2)) == (255, 255, 255)
    assert sum(dark.getpixel((2, 2))) < 100  # type: ignore[arg-type]
    for image in (light, dark):
        colours = {colour for _, colour in image.getcolors(1 << 24) or ()}
        assert (0, 114, 178) in colours  # the stem's bars
        assert (0, 158, 115) in colours  # routing's


@needs_chromium
@pytest.mark.parametrize("width", [500, 1100])
def test_nothing_is_wider_than_the_window(page: Path, tmp_path: Path, width: int):
    """A page with a script of the test's own, which the report has not, tells how wide it became."""
    probe = tmp_path / "probe.html"
    measure = "document.title = document.documentElement.scrollWidth + '/' + window.innerWidth"
    probe.write_text(page.read_text().replace("</body>", f"<script>{measure}</script></body>"))
    dom = chromium(probe, tmp_path, "--dump-dom", f"--window-size={width},1000")
    found = re.search(r"<title>(\d+)/(\d+)</title>", dom)
    assert found
    assert int(found[1]) <= int(found[2])
