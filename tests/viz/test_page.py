"""The page of pictures: each stands above the command that makes it, and is small."""

from __future__ import annotations

import re

from capsedge.viz.figure_kinds import KINDS
from tests.conftest import ROOT

PAGE = ROOT / "docs/how-to/see.md"


def test_each_picture_has_its_command_beneath():
    text = PAGE.read_text()
    shown = list(re.finditer(r"!\[(?P<alt>[^\]]+)\]\(see/(?P<file>[\w-]+\.png)\)", text))
    assert shown
    for picture in shown:
        assert len(picture["alt"]) > 20, "a picture is described for who does not see it"
        beneath = text[picture.end() :].partition("\n## ")[0].partition("![")[0]
        assert re.search(rf"^\$ capsedge see .*?-o {picture['file']}$", beneath, re.M | re.S)
        assert (PAGE.parent / "see" / picture["file"]).stat().st_size < 300_000
    files = {picture["file"] for picture in shown}
    assert files == {path.name for path in (PAGE.parent / "see").iterdir()}


def test_every_kind_is_on_the_page():
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert rows == list(KINDS)
