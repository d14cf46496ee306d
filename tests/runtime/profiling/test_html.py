"""The HTML report in headless Chromium: it needs no network, fits its window, and shows its charts."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsedge.runtime.profiling import ProfileReport, svg, tables
from capsedge.runtime.profiling.statistics import summarize

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium: apt-get install chromium"
)


def in_chromium(test: Callable[..., None]) -> Callable[..., None]:
    """Needs a browser, which takes seconds to start."""
    return pytest.mark.slow(needs_chromium(test))


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


@in_chromium
def test_layers_and_charts_are_rendered(page: Path, tmp_path: Path):
    dom = chromium(page, tmp_path, "--dump-dom")
    assert "classes, routing iteration 3" in dom
    assert dom.count("<svg") == 2 * 3  # roofline, histogram, series of two batch sizes
    assert "NaN" not in dom


@in_chromium
@pytest.mark.parametrize("width", [500, 1100])
def test_colours_follow_the_scheme(page: Path, tmp_path: Path, width: int):
    light, dark = (screenshot(page, tmp_path, width, dark) for dark in (False, True))
    assert light.getpixel((2, 2)) == (255, 255, 255)
    assert sum(dark.getpixel((2, 2))) < 100  # type: ignore[arg-type]
    for image in (light, dark):
        colours = {colour for _, colour in image.getcolors(1 << 24) or ()}
        assert (0, 114, 178) in colours  # the stem's bars
        assert (0, 158, 115) in colours  # routing's


@in_chromium
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(page: Path, tmp_path: Path, width: int):
    found = measured(
        page, tmp_path, width, "document.documentElement.scrollWidth + '/' + window.innerWidth"
    )
    wide, window = map(int, found.split("/"))
    assert wide <= window


def measured(page: Path, folder: Path, width: int, expression: str) -> str:
    """The value of a JavaScript expression in a copy of the page that has a script of the test's own."""
    probe = folder / "probe.html"
    script = f"<script>document.title = {expression}</script></body>"
    probe.write_text(page.read_text().replace("</body>", script))
    dom = chromium(probe, folder, "--dump-dom", f"--window-size={width},1000")
    found = re.search(r"<title>(.*?)</title>", dom, re.S)
    assert found
    return found[1]


@in_chromium
@pytest.mark.parametrize("width", [400, 1280])
def test_labels_stay_inside_and_tables_scroll(
    report: ProfileReport, tmp_path: Path, width: int
) -> None:
    """Long names: texts of the charts within their charts, tables within boxes that scroll."""
    named = replace(report.runs[0], model="a-network-with-a-very-long-name.int8.portable.2026.onnx")
    page = tmp_path / "long.html"
    ProfileReport(report.machine, report.peaks, [named]).save_html(page)
    page.write_text(page.read_text().replace("<details>", "<details open>"))
    outside = (
        "[...document.querySelectorAll('svg text')].filter(t => {"
        "const a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();"
        "return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1"
        "}).map(t => t.textContent).join()"
    )
    assert measured(page, tmp_path, width, outside) == ""
    loose = (
        "[...document.querySelectorAll('table')].filter(t => {"
        "const box = t.parentElement, style = getComputedStyle(box);"
        "return style.overflowX != 'auto' || box.clientWidth > innerWidth || box.tabIndex != 0"
        "}).length"
    )
    assert measured(page, tmp_path, width, loose) == "0"


def test_the_histogram_ends_at_p99_and_counts_the_rest(report: ProfileReport) -> None:
    samples = [0.001 + 1e-6 * k for k in range(198)] + [0.5, 0.9]
    run = replace(report.runs[0], samples=samples, latency=summarize(np.array(samples)))
    drawn = svg.histogram(run)
    counts = [int(n) for n in re.findall(r": (\d+) runs</title>", drawn)]
    assert sum(counts) == len(samples) - run.beyond_p99 == 198
    assert "900" not in drawn
    assert tables.beyond_p99(run, "not drawn") == (
        "2 runs beyond the 99th percentile, up to 900.0 ms: not drawn."
    )
    assert svg.series(run).count("<path") == 2  # at the top


def test_labels_of_median_and_p99_do_not_meet(report: ProfileReport) -> None:
    for far in (0.1, 0.5, 0.9, 1.0):
        samples = [0.001, *[0.001 + 0.009 * far] * 100, *[0.01] * 3]
        run = replace(report.runs[0], samples=samples, latency=summarize(np.array(samples)))
        places = re.findall(
            r'text-anchor="(\w+)" x="([\d.]+)" y="(\d+)">(?:median|p99)', svg.histogram(run)
        )
        (_, left, high), (anchor, right, low) = places
        assert anchor == "end"
        assert high != low or float(right) - float(left) > 200
