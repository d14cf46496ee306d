"""``capsedge see``, run as a person runs it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from capsedge.cli import app
from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from tests.runtime.models import SIDE, capsule_model, metadata, save
from tests.viz.conftest import HOSTILE, SAMPLES

pytest.importorskip("matplotlib")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with models and an image."""
    save(capsule_model(reconstruction=True), tmp_path / "full.onnx")
    save(capsule_model(), tmp_path / "plain.onnx")
    hostile = metadata(class_names=HOSTILE).to_properties()
    save(capsule_model(reconstruction=True, properties=hostile), tmp_path / "hostile.onnx")
    left = np.zeros((SIDE, SIDE), np.uint8)
    left[:, : SIDE // 2] = 255
    Image.fromarray(left).save(tmp_path / "<b>$x$.png")
    return tmp_path


def see(*arguments: object) -> str:
    """The standard output; errors are raised."""
    found = CliRunner().invoke(app, ["see", *map(str, arguments)], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


def refused(*arguments: object) -> CapsedgeError:
    with pytest.raises(CapsedgeError) as error:
        see(*arguments)
    return error.value


@pytest.mark.parametrize(
    "suffix", [".png", ".svg", pytest.param(".html", marks=pytest.mark.thorough)]
)
def test_the_same_bytes_again(place: Path, suffix: str):
    image, output = place / "<b>$x$.png", place / f"out{suffix}"
    see(place / "full.onnx", image, "-o", output)
    first = output.read_bytes()
    see(place / "full.onnx", image, "-o", output)
    assert output.read_bytes() == first
    assert b"matplotlib v" not in first.lower()
    assert b"<dc:date>" not in first


@pytest.mark.thorough
def test_hostile_names_are_text(place: Path):
    image = place / "<b>$x$.png"
    for what in ("reconstructions", "segmentation", "capsules"):
        see(place / "hostile.onnx", image, "--what", what, "-o", place / "out.svg")
        drawing = ElementTree.parse(place / "out.svg")
        tags = {element.tag.rpartition("}")[2] for element in drawing.iter()}
        assert not tags & {"script", "b", "foreignObject"}
        words = " ".join(t for e in drawing.iter() for t in e.itertext())
        assert "<scr" in words, "a name is drawn as it is, as text"
        assert "\x1b" not in words
        see(place / "hostile.onnx", image, "--what", what, "-o", place / "out.png")


@pytest.mark.thorough
def test_a_page_holds_all_pictures_and_no_markup_of_names(place: Path):
    output = place / "out.html"
    said = see(place / "hostile.onnx", place / "<b>$x$.png", "-o", output, "--json")
    drawn = json.loads(said)["pictures"]
    assert list(drawn) == ["reconstructions", "segmentation", "dimensions", "capsules"]
    page = Tags(output)
    assert page.counts["figure"] == len(drawn)
    assert page.counts["svg"] == len(drawn)
    assert not {"script", "b", "iframe", "link"} & set(page.counts)
    assert len(page.names) == len(set(page.names)), "names in the drawings meet"
    assert "src=" not in output.read_text()


class Tags(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.names: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.names += [v or "" for k, v in attrs if k == "id" and tag == "clippath"]


@pytest.mark.thorough
def test_letters_without_a_picture_in_the_font(place: Path):
    names = metadata(class_names=("左", "右", "なし")).to_properties()
    save(capsule_model(properties=names), place / "names.onnx")
    for suffix, said in ((".png", True), (".svg", False), (".html", False)):
        arguments = [place / "names.onnx", place / "<b>$x$.png", "-o", place / f"out{suffix}"]
        found = CliRunner().invoke(app, ["see", *map(str, arguments)], catch_exceptions=False)
        assert ("Boxes stand for letters" in found.output) == said
    assert "左" in (place / "out.svg").read_text()
    assert "左" in (place / "out.html").read_text()


def test_numbers(place: Path):
    document = json.loads(see(place / "full.onnx", place / "<b>$x$.png", "--json"))
    assert document["output"] is None
    picture = document["pictures"]["reconstructions"]
    assert picture["classes"] == ["left", "right", "none"]
    (image,) = picture["images"]
    assert image["image"] == "<b>$x$.png"
    assert image["scores"][0] > 0.9
    assert np.shape(image["pictures"]) == (3, 1, SIDE, SIDE)


def test_the_default_is_what_the_file_has(place: Path):
    image = place / "<b>$x$.png"
    assert list(json.loads(see(place / "plain.onnx", image, "--json"))["pictures"]) == ["capsules"]
    pairs = json.loads(see(place / "full.onnx", image, "--label", "left,right", "--json"))
    assert list(pairs["pictures"]) == ["segmentation"]
    assert pairs["pictures"]["segmentation"]["images"][0]["labels"] == ["left", "right"]


def test_refusals(place: Path):
    image, model = place / "<b>$x$.png", place / "full.onnx"
    for arguments, says in [
        ((model, image), "No output file"),
        ((model, image, "-o", place / "x.jpg"), r"\*.png, \*.svg or \*.html"),
        ((model, "--json"), "no images to draw"),
        ((model, image, "--json", "--what", "nonsense"), "Choose one of: reconstructions"),
        ((model, image, "--json", "--what", "hardest"), "--data"),
        ((model, "--json", "--what", "capsules"), "needs images"),
        ((model, image, "-o", place / "x.png", "--what", "capsules,segmentation"), "holds one"),
        ((place / "plain.onnx", image, "--json", "--what", "segmentation"), "this file supports: capsules"),
    ]:  # fmt: skip
        error = refused(*arguments)
        assert isinstance(error, UsageError)
        assert re.search(says, str(error)), str(error)
    assert not list(place.glob("x.*"))


def test_without_matplotlib(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    error = refused(place / "full.onnx", place / "<b>$x$.png", "-o", place / "x.png")
    assert isinstance(error, EnvironmentProblem)
    assert error.fix == "pip install 'capsedge[viz]'"


@pytest.mark.thorough
def test_needs_no_torch():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['onnx'] = None\n"
        "from capsedge.__main__ import main; main()"
    )
    image = SAMPLES / "digit-5.png"
    done = subprocess.run(
        [sys.executable, "-c", code, "see", "digits-dynamic", str(image), "--json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["pictures"]
