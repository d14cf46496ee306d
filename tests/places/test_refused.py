"""Places that nothing is read from or written to: exit code 2 for every verb and option, and no change."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.places.privileges import closed, unprivileged
from tests.places.table import (
    READ,
    WRITTEN,
    Parameter,
    bad_places,
    callbacks,
    command,
    honest,
    parameters,
    run,
    unchanged,
)

Given = dict[str, dict[str, list[str | Path]]]


@pytest.fixture(autouse=True)
def _heavy_packages() -> None:
    for name in ("torch", "onnxscript", "matplotlib"):
        pytest.importorskip(name, reason="the verbs run: pip install 'capsedge[export,viz]'")


@pytest.fixture
def given(tmp_path: Path) -> Given:
    return honest(tmp_path / "honest")


def assert_error(said: str) -> None:
    assert said.startswith("error: "), said
    assert "bug" not in said


def test_every_path_has_a_role() -> None:
    """A new parameter that is a path says what it is for, and is judged with all others."""
    assert [str(p) for p in parameters() if p.role is None] == []
    assert len(parameters()) >= 29
    assert {p.verb for p in parameters()} == set(callbacks()) - {"config", "doctor"}


def test_every_verb_is_run_honestly(given: Given) -> None:
    assert set(given) == {p.verb for p in parameters()}


@pytest.mark.sample(29)
@pytest.mark.parametrize("parameter", [*READ, *(p for p in WRITTEN if p not in READ)], ids=str)
def test_bad_places(
    parameter: Parameter, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for name, place in bad_places(tmp_path / "bad").items():
        words = command(given[parameter.verb], {parameter: place}, parameter.verb)
        with unchanged(tmp_path):
            assert run(words, monkeypatch) == 2, name
        assert_error(capsys.readouterr().err)


@pytest.mark.sample(46)
@pytest.mark.parametrize("parameter", READ, ids=str)
@pytest.mark.parametrize("kind", ["missing", "empty folder", "empty file"])
def test_inputs_that_are_not_there(
    parameter: Parameter,
    kind: str,
    given: Given,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    (tmp_path / "empty").mkdir()
    suffix = {"init": ".safetensors", "checkpoint": ".safetensors"}.get(parameter.name, ".onnx")
    place = {
        "missing": tmp_path / f"none{suffix}",
        "empty folder": tmp_path / "empty",
        "empty file": tmp_path / f"hollow{suffix}",
    }[kind]
    if kind == "empty file":
        place.write_text("")
    words = command(given[parameter.verb], {parameter: place}, parameter.verb)
    if parameter.verb == "profile" and parameter.name in ("checkpoint", "peer_model"):
        words += ["--compare", "torch" if parameter.name == "checkpoint" else "ort"]
    code = run(words, monkeypatch)
    said = capsys.readouterr().err
    # What is written in the end need not be there, and then TensorRT is what is missing.
    allowed = {2, 6} if kind in ("empty file", "empty folder") else {2}
    allowed |= {0, 3} if parameter.role is not None and parameter.role.written(place) else set()
    assert code in allowed, said
    assert "bug" not in said


@pytest.mark.parametrize("parameter", WRITTEN, ids=str)
def test_every_file_of_an_output(
    parameter: Parameter, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that are named after it: a passport, a rejected file, the files of a run."""
    assert parameter.role is not None
    bad = bad_places(tmp_path / "bad")
    for number in range(len(parameter.role.written(Path("x")))):
        for name in ("pipe", "socket", "device", "loop of links"):
            output = tmp_path / f"{number}-{name}" / "output.png"
            place = parameter.role.written(output)[number]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(bad[name])
            words = command(given[parameter.verb], {parameter: output}, parameter.verb)
            with unchanged(tmp_path):
                assert run(words, monkeypatch) == 2, f"{place.name}: {name}"


@pytest.mark.sample(62)
@pytest.mark.parametrize("parameter", WRITTEN, ids=str)
@pytest.mark.parametrize("kind", ["itself", "link", "hard link", "other spelling", "link to it"])
def test_outputs_that_are_inputs(
    parameter: Parameter,
    kind: str,
    given: Given,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """Each file that an output makes, against each input of the verb, by every other name."""
    assert parameter.role is not None
    pairs = 0
    for source in (p for p in READ if p.verb == parameter.verb and p != parameter):
        for number in range(len(parameter.role.written(Path("x")))):
            pairs += 1
            folder = tmp_path / f"{source.name}-{number}"
            folder.mkdir()
            suffix = (
                ".png" if parameter.name in ("reconstruct", "png", "plot", "picture") else ".onnx"
            )
            output = folder / f"output{suffix}"
            place = parameter.role.written(output)[number]
            place.parent.mkdir(exist_ok=True)
            data, real = place, folder / "real"
            if kind == "itself":
                place.write_text("precious")
            elif kind == "link":
                real.write_text("precious")
                place.symlink_to(real)
            elif kind == "hard link":
                place.write_text("precious")
                os.link(place, folder / "hard")
                data = folder / "hard"
            elif kind == "other spelling":
                place.write_text("precious")
                data = place.parent / ".." / place.parent.name / place.name
            else:
                place.write_text("precious")
                (folder / "link").symlink_to(place)
                data = folder / "link"
            words = command(
                given[parameter.verb], {parameter: output, source: data}, parameter.verb
            )
            with unchanged(tmp_path):
                assert run(words, monkeypatch) == 2, f"{source}: {place.name}"
            said = capsys.readouterr().err
            assert "It is an input" in said or "Another output" in said, said
    assert pairs


def test_outputs_that_are_inputs_by_default(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output named after the model; and the files of the package."""
    engine = tmp_path / "model.engine"
    (tmp_path / "honest/model.onnx").rename(engine)
    with unchanged(tmp_path):
        assert run(["build", str(engine)], monkeypatch) == 2
    zoo = ROOT / "capsedge/zoo"
    with unchanged(zoo):
        for words in (
            ["export", "-o", zoo / "digits-dynamic.safetensors"],
            ["infer", ROOT / "capsedge/samples/digit-7.png", "--reconstruct", zoo / "digits-dynamic.onnx"],
            ["profile", "--html", zoo / "digits-dynamic.onnx"],
        ):  # fmt: skip
            assert run([str(w) for w in words], monkeypatch) == 2


def test_outputs_among_the_images(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """A picture in a folder of images that are classified."""
    folder = tmp_path / "images"
    folder.mkdir()
    (folder / "a.png").write_bytes((tmp_path / "honest/image.png").read_bytes())
    with unchanged(tmp_path):
        assert run(["infer", str(folder), "--reconstruct", str(folder / "a.png")], monkeypatch) == 2
    assert "It is an input" in capsys.readouterr().err
    (folder / "out").mkdir()
    for _ in range(2):  # what lies in folders inside is no image to classify
        words = ["infer", str(folder), "--reconstruct", str(folder / "out/b.png")]
        assert run(words, monkeypatch) == 0


def test_two_outputs_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["profile", "--html", str(tmp_path / "a"), "--markdown", str(tmp_path / "a")]
    assert run(words, monkeypatch) == 2


BOUND = """
import sys
from capsedge.cli import _run
for line in sys.stdin.read().splitlines():
    sys.argv = ["capsedge", *line.split("\\t")]
    print(_run(), line)
"""


def test_below_a_folder_that_may_not_be_searched(given: Given, tmp_path: Path) -> None:
    """Every path of every verb, in one process without the superuser's rights."""
    with closed(tmp_path / "closed") as folder:
        lines = [
            command(given[p.verb], {p: folder / name}, p.verb)
            for p in parameters()
            for name in ("a.png", "inner/a.onnx")
        ]
        done = unprivileged(
            [sys.executable, "-c", BOUND], input="\n".join("\t".join(x) for x in lines), cwd=ROOT
        )
    codes = [line.split()[0] for line in done.stdout.splitlines()]
    assert codes == ["2"] * len(lines), done.stdout + done.stderr


def test_a_folder_that_may_not_be_listed_or_written(given: Given, tmp_path: Path) -> None:
    lines = []
    for p in parameters():
        assert p.role is not None
        folder = tmp_path / "readable"
        (folder / "out").mkdir(parents=True, exist_ok=True)
        if p.role.written(Path("x")) and not p.role.reads:
            lines.append(command(given[p.verb], {p: folder / "out.png"}, p.verb))
        elif p.name in ("images", "calib_data", "data"):
            lines.append(command(given[p.verb], {p: folder}, p.verb))
    (folder / "out").rmdir()
    with closed(folder, 0o111):
        done = unprivileged(
            [sys.executable, "-c", BOUND], input="\n".join("\t".join(x) for x in lines), cwd=ROOT
        )
    codes = [line.split()[0] for line in done.stdout.splitlines()]
    assert codes == ["2"] * len(lines), done.stdout + done.stderr
