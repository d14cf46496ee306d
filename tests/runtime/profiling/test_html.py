"""The HTML report: safe, the same for the same numbers; in headless Chromium it fits and shows its charts."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsedge.runtime.profiling import report_html, report_text
from capsedge.runtime.profiling.compare import Entry, SpeedComparison
from capsedge.runtime.profiling.profile import ProfileReport
from capsedge.runtime.profiling.report_data import Run
from capsedge.runtime.profiling.timing import summarize
from capsedge.runtime.result_summary import TIP, new_figure

pytest.importorskip("matplotlib", reason="pip install 'capsedge[profile]'")

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


class Elements(HTMLParser):
    """The elements of a page, their attributes, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.thorough
def test_hostile_names_stay_text(report: ProfileReport, tmp_path: Path) -> None:
    hostile = (
        "</title></svg><script>alert(1)</script><a href='javascript:x' onload=\"x\">\x1b$x_$&amp;"
    )
    run = report.runs[0]
    assert run.operators is not None
    operators = [replace(o, label=hostile, kind=hostile) for o in run.operators.operators]
    named = replace(
        run,
        model=hostile,
        operators=replace(run.operators, operators=operators),
        warnings=[hostile],
    )
    path = tmp_path / "hostile.html"
    ProfileReport(report.machine, report.peaks, [named]).save_html(path)
    found = Elements(path.read_text())
    assert not found.tags & {"script", "a", "image", "img", "iframe", "foreignobject", "object"}
    for name, value in found.attributes:
        assert not name.startswith("on")
        assert "href" not in name or str(value).startswith("#")
    assert hostile in found.texts  # in the title
    assert any("alert(1)</script>" in text and r"\x1b$x_$&amp;" in text for text in found.texts)


@pytest.mark.thorough
def test_the_same_numbers_give_the_same_page(report: ProfileReport, page: Path) -> None:
    assert report_html._run(report.runs[0], report.peaks) in page.read_text()


@in_chromium
def test_layers_and_charts_are_rendered(page: Path, tmp_path: Path):
    dom = chromium(page, tmp_path, "--dump-dom")
    assert "classes, routing iteration 3" in dom
    assert dom.count("<svg") == 2 * 4  # layers, histogram, roofline, series of two batch sizes
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
    others = [comparison(report, 1.0, 0.9, 2.0)]
    ProfileReport(report.machine, report.peaks, [named], others).save_html(page)
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


def drawn(chart: str, run: Run, report: ProfileReport):
    """A chart's axis, laid out."""
    figure = new_figure(report_html.WIDTH, 3.0)
    axis = figure.subplots()
    getattr(report_html, chart)(run, axis)
    figure.draw_without_rendering()
    return axis


def test_charts_end_at_p99_and_count_the_rest(report: ProfileReport) -> None:
    samples = [0.001 + 1e-6 * k for k in range(198)] + [0.5, 0.9]
    run = replace(report.runs[0], samples=samples, latency=summarize(np.array(samples)))
    bars = drawn("_histogram", run, report).patches
    counts = [int(re.findall(r": (\d+) runs$", bar.get_gid())[0]) for bar in bars]
    assert sum(counts) == len(samples) - run.beyond_p99 == 198
    assert all(bar.get_gid().startswith(TIP) for bar in bars)
    axis = drawn("_series", run, report)
    assert [len(line.get_xdata()) for line in axis.lines] == [198, 2]
    assert axis.get_ylim()[1] < 10  # p99, between the two
    assert report_text.beyond_p99(run, "not drawn") == (
        "2 runs beyond the 99th percentile, up to 900.0 ms: not drawn."
    )


def test_long_series_keep_their_extremes(report: ProfileReport) -> None:
    values = np.ones(10_000)
    values[::25] = 2.0
    kept = report_html._thinned(values)
    assert len(kept) == report_html.MOST_POINTS
    assert np.all(np.diff(kept) > 0)
    assert (values[kept] == 2.0).sum() >= len(kept) // 4


def comparison(report: ProfileReport, *medians: float) -> SpeedComparison:
    """Entrants with long names, of medians in milliseconds."""
    entries = [
        Entry(f"a-network-with-a-very-long-name.int8.portable.{k}.onnx", "", "", 0.0, 0.0, "", (), s, 1.0, 1)
        for k, s in enumerate(replace(report.runs[0].latency, median=ms) for ms in medians)
    ]  # fmt: skip
    return SpeedComparison(1, 1, 5, tuple(entries))


def test_names_and_times_side_by_side_stay_inside(report: ProfileReport) -> None:
    for medians in ((1.0, 1.004), (1.0, 1.0, 0.01), (0.001, 123.4, 123.3), (1.0,)):
        chart = report_html._side_by_side(comparison(report, *medians))
        figure = new_figure(report_html.WIDTH, chart.height)
        axis = figure.subplots()
        chart.draw(axis)
        figure.draw_without_rendering()
        labels = axis.get_yticklabels()
        for text in (*labels, *axis.texts):
            box = text.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1
        boxes = [label.get_window_extent() for label in labels]
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))


@pytest.mark.thorough
def test_labels_of_median_and_p99_do_not_meet(report: ProfileReport) -> None:
    for far in (0.0, 0.1, 0.49, 0.51, 0.9, 1.0):
        samples = [0.001, *[0.001 + 0.009 * far] * 100, *[0.01] * 3]
        run = replace(report.runs[0], samples=samples, latency=summarize(np.array(samples)))
        axis = drawn("_histogram", run, report)
        median, p99 = (text.get_window_extent() for text in axis.texts)
        assert not median.overlaps(p99)
        for box in (median, p99):
            assert axis.bbox.x0 <= box.x0
            assert box.x1 <= axis.bbox.x1 + 1
