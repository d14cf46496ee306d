"""The generators of the documentation site."""

from __future__ import annotations

import json
import re

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
    document = json.loads(speed.DOCUMENT.read_text())
    text = speed.README.read_text()
    assert speed.table(document) in text, "python -m tools.speed"
    assert speed.chart(document) == speed.CHART.read_text(), "python -m tools.speed"
    document["rows"][0]["median_ms"] = 9.87  # CapsNet, batch 1
    assert "9.87" in speed.readme(text, document)


def test_the_caption_of_the_chart_says_what_it_shows() -> None:
    document = json.loads(speed.DOCUMENT.read_text())
    times = [speed.milliseconds(document, model, 1) for model in speed.MODELS]
    gains = [found[speed.PLAIN] / found[speed.CAPSEDGE] for found in times]
    low, high = re.search(r"capsedge is (\S+) to (\S+) times", speed.README.read_text()).groups()  # type: ignore[union-attr]
    assert (low, high) == (f"{min(gains):.1f}", f"{max(gains):.0f}")


def test_the_readme_renders_outside_the_repository() -> None:
    renderer = pytest.importorskip("readme_renderer.markdown")
    shown = renderer.render((ROOT / "README.md").read_text())
    assert shown is not None
    assert "<table>" in shown
    assert "&lt;" not in shown  # no markup that the index would show as text
