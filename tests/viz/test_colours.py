"""Colours are those that the captions name, and where a colour is a number there is a scale of it."""

from __future__ import annotations

import colorsys
import io
import json
from pathlib import Path

import matplotlib.colors
import numpy as np
import pytest
from PIL import Image

import capsedge
from benchmarks import affine
from capsedge.datasets import ImageSet
from capsedge.runtime.result_summary import DPI, new_figure, save_figure
from capsedge.viz import decoder_figures, evidence_figures
from capsedge.viz.figure import BAD, BEST, GOOD, rendered
from tests.conftest import ROOT
from tests.viz import traces
from tests.viz.conftest import SAMPLES

pytest.importorskip("matplotlib")
HUES = {
    "red": (345, 15),
    "orange": (20, 45),
    "green": (90, 170),
    "blue": (190, 250),
    "purple": (250, 300),
}


def named(colour: object) -> str:
    """The name of a colour's hue."""
    hue = 360 * colorsys.rgb_to_hsv(*matplotlib.colors.to_rgb(colour))[0]
    fits = [n for n, (a, b) in HUES.items() if (a <= hue < b if a < b else hue >= a or hue < b)]
    return fits[0] if fits else f"hue {hue:.0f}"


def test_frames_and_bars_have_the_colours_of_the_captions() -> None:
    assert (named(BAD), named(GOOD), named(BEST)) == ("red", "green", "blue")


def test_the_hardest_images_are_framed_in_red(dynamic: capsedge.Session) -> None:
    pixels = np.asarray(Image.open(SAMPLES / "digit-7.png").convert("L"))[None]
    assert dynamic.metadata is not None
    data = ImageSet("made", pixels, np.array([1]), dynamic.metadata.preprocessing)
    found = evidence_figures.compute_hardest(dynamic, data)
    assert "framed in red" in found.description
    (axis,) = found.draw().axes
    assert [named(patch.get_edgecolor()) for patch in axis.patches] == ["red"]


def test_poses_are_orange_below_zero_and_purple_above(dynamic: capsedge.Session) -> None:
    found = evidence_figures.compute_capsules(dynamic, SAMPLES / "digit-7.png")
    assert "from negative (orange) to positive (purple)" in found.description
    figure = found.draw()
    table = figure.axes[2].images[0]
    poses = table.get_array()
    assert np.array_equal(poses, found.poses[0])
    bound = table.norm.vmax
    assert [named(table.to_rgba(x * bound)[:3]) for x in (-0.6, 0.6)] == ["orange", "purple"]


@pytest.mark.parametrize("name", ["capsules", "responsibilities"])
def test_where_a_colour_is_a_number_there_is_a_scale(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with capsedge.load("digits-attention") as session:
        trace = traces.trace("attention", 2)
        monkeypatch.setattr(session, "trace", lambda images, prepared: trace)
        monkeypatch.setattr(session.can, "check_trace", lambda: None)
        images = [SAMPLES / "digit-7.png", SAMPLES / "digit-1.png"]
        figure = getattr(capsedge.viz, name)(session, images)
    maps = [i for a in figure.axes for i in a.images if np.asarray(i.get_array()).ndim == 2]
    scales = [a for a in figure.axes if a.get_label() == "<colorbar>"]
    assert maps
    assert len(scales) == 1
    assert scales[0].get_ylabel()
    low, high = scales[0].get_ylim()
    assert all((m.norm.vmin, m.norm.vmax) == pytest.approx((low, high)) for m in maps)


def test_the_score_of_em_routing_is_an_activation() -> None:
    for name, measure in (("digits-em", "activation"), ("digits-dynamic", "length")):
        with capsedge.load(name) as session:
            found = evidence_figures.compute_capsules(session, SAMPLES / "digit-7.png")
        assert found.measure == measure
        assert found.draw().axes[1].get_xlabel() == measure
    page = (ROOT / "capsedge/runtime/web/page/src/ui/classes.ts").read_text()
    assert 'description.routing === "em" ? "activation" : "length"' in page


def test_dimensions_are_counted_from_0_here_and_on_the_page(dynamic: capsedge.Session) -> None:
    found = decoder_figures.compute_dimensions(dynamic, SAMPLES / "digit-7.png")
    assert "counted from 0" in found.description
    (axis,) = found.draw().axes
    rows = [text.get_text() for text in axis.texts if text.get_ha() == "right"]
    assert rows == [str(d) for d in range(16)]
    page = (ROOT / "capsedge/runtime/web/page/src/ui/sliders.ts").read_text()
    assert "`Dimension ${k}`" in page
    assert 'make("span", {}, String(k))' in page


def test_every_png_has_300_dots_an_inch(tmp_path: Path, dynamic: capsedge.Session) -> None:
    figure = new_figure(2, 1)
    figure.subplots().plot([0, 1], [0, 1])
    save_figure(figure, tmp_path / "chart.png")
    drawn = rendered(figure, "png")
    for data in ((tmp_path / "chart.png").read_bytes(), drawn):
        with Image.open(io.BytesIO(data)) as image:
            assert image.size == (2 * DPI, DPI) == (600, 300)
            assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)
    shown = [*(ROOT / "docs/how-to/see").glob("*.png"), *(ROOT / "docs/benchmarks").rglob("*.png")]
    wrong = []
    for path in shown:
        with Image.open(path) as image:
            dpi = image.info.get("dpi", (0, 0))[0]
        if round(dpi) != 300 or path.stat().st_size >= 300_000:
            wrong.append(f"{path.name}: {dpi:.0f} dpi, {path.stat().st_size:,} bytes")
    assert wrong == []


def test_the_affine_chart_has_bars_and_one_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(affine, "save_figure", lambda figure, path: drawn.append(figure))
    document = json.loads((ROOT / "docs/benchmarks/affine.json").read_text())
    affine.draw(document, tmp_path / "affine.png")
    panels = drawn[0].axes
    assert len({panel.get_ylim() for panel in panels}) == 1
    assert all(len(panel.containers) == len(document["networks"]) for panel in panels)
    assert all(container.has_yerr for panel in panels for container in panel.containers)
    # Of Brown, Cai and DasGupta 2001, figure 5: 0 of n gives 0 to z^2 / (n + z^2).
    assert affine.wilson(0.0, 10) == pytest.approx((0.0, 1.96**2 / (10 + 1.96**2)))
    assert affine.wilson(0.5, 10_000) == pytest.approx((0.4902, 0.5098), abs=1e-4)
