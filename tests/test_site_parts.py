"""The generators of the documentation site."""

from __future__ import annotations

import copy
import json
import re
import statistics

import pytest

from tests.conftest import ROOT
from tools import speed
from tools.docs import commands, docstrings, links


def test_links_of_the_repository_become_links_of_the_site() -> None:
    source = (
        "[a](../reference/cli.md#exit-codes) [b](../../SECURITY.md) [c](../../Makefile) [d](#here)"
    )
    wanted = "[a](../reference/cli.md#exit-codes) [b](../project/security.md) c [d](#here)"
    assert links.rewritten(source, "how-to/page.md") == wanted
    assert links.rewritten("[a](docs/tutorial.md)", "project/security.md") == "[a](../tutorial.md)"


def test_an_option_says_what_it_takes() -> None:
    text = commands.markdown().partition("\n## quantize\n")[2]
    row = next(line for line in text.splitlines() if line.startswith("| `--calib-images`"))
    assert row == (
        "| `--calib-images` | integer ≥ 1 | Number of images drawn from `--calib-data`. Default: `512`. |"
    )


def test_names_that_share_an_explanation_get_one_each() -> None:
    text = "Size.\n\nArgs:\n    height, width: in pixels,\n        both.\n    scale: a factor."
    assert docstrings.rewritten(text) == (
        "Size.\n\nArgs:\n    height: in pixels,\n        both.\n    width: in pixels,\n        both.\n"
        "    scale: a factor."
    )


def test_an_example_is_code_whose_output_is_no_reference() -> None:
    text = "Names.\n\nExample:\n    >>> names()\n    ['a']\n"
    assert docstrings.rewritten(text) == text.replace("Example", "Examples")


def test_readme_and_chart_are_those_of_the_measurements() -> None:
    runs = speed.load_runs()
    text = speed.README.read_text()
    assert speed.table(runs) in text, "python -m tools.speed"
    assert speed.chart(runs) == speed.CHART.read_text(), "python -m tools.speed"
    runs[-1]["milliseconds"]["capsnet-mnist:3"]["1"][speed.CAPSEDGE] = 9.87
    assert "9.87" in speed.readme(text, runs)


def test_ratios_are_medians_and_ranges_of_the_runs() -> None:
    peers = json.loads((ROOT / "docs/benchmarks/peers.json").read_text())
    run = speed.kept(peers)
    runs = [run, copy.deepcopy(run), copy.deepcopy(run)]
    for factor, each in zip((2.0, 3.0, 7.0), runs, strict=True):
        times = each["milliseconds"]["em-smallnorb:3"]["16"]
        times[speed.PLAIN] = factor * times[speed.CAPSEDGE]
    assert speed.ratios(runs, "em-smallnorb:3", 16, speed.PLAIN) == pytest.approx([2, 3, 7])
    assert "3.0x (2.0x-7.0x)" in speed.table(runs)


def test_the_caption_of_the_chart_says_what_it_shows() -> None:
    runs = speed.load_runs()
    gains = [statistics.median(speed.ratios(runs, m, 1, speed.PLAIN)) for m in speed.MODELS]
    low, high = re.search(r"capsedge is (\S+) to (\S+) times", speed.README.read_text()).groups()  # type: ignore[union-attr]
    assert (low, high) == (f"{min(gains):.1f}", f"{max(gains):.0f}")


def test_the_readme_renders_outside_the_repository() -> None:
    renderer = pytest.importorskip("readme_renderer.markdown")
    shown = renderer.render((ROOT / "README.md").read_text())
    assert shown is not None
    assert "<table>" in shown
    assert "&lt;" not in shown  # no markup that the index would show as text
