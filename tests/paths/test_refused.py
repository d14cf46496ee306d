"""Places that nothing is read from or written to: exit code 2 for every verb and option, and no change."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.paths.privileges import closed, unprivileged
from tests.paths.table import (
    READ,
    SAME_FILE,
    WRITTEN,
    bad_places,
    command,
    honest,
    parameters,
    run,
    same_file,
    snapshot,
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


@dataclass(frozen=True)
class Case:
    """A command line, and how it may end."""

    name: str
    words: list[str]
    codes: frozenset[int] = frozenset({2})
    says: tuple[str, ...] = ("",)  # one of them


def bad(verb: str, given: Given, folder: Path) -> Iterator[Case]:
    """Every bad place through every path of a verb."""
    places = bad_places(folder / "bad")
    for parameter in (p for p in parameters() if p.verb == verb):
        for name, place in places.items():
            yield Case(f"{parameter}: {name}", command(given[verb], {parameter: place}, verb))


def absent(verb: str, given: Given, folder: Path) -> Iterator[Case]:
    """Inputs that are missing or empty."""
    (folder / "empty").mkdir()
    for parameter in (p for p in READ if p.verb == verb):
        assert parameter.role is not None
        suffix = ".safetensors" if parameter.name in ("init", "checkpoint") else ".onnx"
        (folder / f"hollow{suffix}").write_text("")
        for name in (f"none{suffix}", "empty", f"hollow{suffix}"):
            place = folder / name
            words = command(given[verb], {parameter: place}, verb)
            if verb == "profile" and parameter.name in ("checkpoint", "peer_model"):
                words += ["--compare", "torch" if parameter.name == "checkpoint" else "ort"]
            codes = frozenset({2, 6} if place.exists() else {2})
            if parameter.role.written(place):
                # What is written in the end need not be there, and then TensorRT is what is missing.
                codes |= {0, 3}
            yield Case(f"{parameter}: {name}", words, codes)


def parts(verb: str, given: Given, folder: Path) -> Iterator[Case]:
    """Bad places of every file of an output: also a metadata file, a rejected file, the files of a run."""
    places = bad_places(folder / "parts")
    for parameter in (p for p in WRITTEN if p.verb == verb):
        assert parameter.role is not None
        for number in range(len(parameter.role.written(Path("x")))):
            for name in ("pipe", "socket", "device", "loop of links"):
                output = folder / f"{parameter.name}-{number}-{name}" / "output.png"
                place = parameter.role.written(output)[number]
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(places[name])
                words = command(given[verb], {parameter: output}, verb)
                yield Case(f"{parameter}: {place.name}: {name}", words)


def overwriting(verb: str, given: Given, folder: Path) -> Iterator[Case]:
    """Each file that an output makes, against each input of the verb, by every other name."""
    mine = [p for p in parameters() if p.verb == verb]
    for parameter, source in product(mine, mine):
        if parameter not in WRITTEN or source not in READ or parameter == source:
            continue
        assert parameter.role is not None
        suffix = ".png" if parameter.name in ("reconstruct", "png", "plot", "picture") else ".onnx"
        for number, kind in product(range(len(parameter.role.written(Path("x")))), SAME_FILE):
            place = folder / f"{parameter.name}-{source.name}-{number}-{kind}"
            output = place / f"output{suffix}"
            data = same_file(kind, parameter.role.written(output)[number])
            words = command(given[verb], {parameter: output, source: data}, verb)
            name = f"{parameter}: file {number}: {source}: {kind}"
            yield Case(name, words, says=("It is an input", "Another output"))


@pytest.mark.thorough
@pytest.mark.parametrize("verb", sorted({p.verb for p in parameters()}))
def test_every_place(
    verb: str, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Every path of a verb, by running it; `test_roles.py` judges the same places without the verbs."""
    failed = []
    for cases in (bad, absent, parts, overwriting):
        for case in list(cases(verb, given, tmp_path)):
            before = snapshot(tmp_path)
            code = run(case.words, monkeypatch)
            said = capsys.readouterr().err
            good = code in case.codes and any(words in said for words in case.says)
            if not good or "bug" in said or (case.codes == {2} and not said.startswith("error: ")):
                failed.append(f"{case.name}: exit code {code}: {said}")
            if code == 2 and snapshot(tmp_path) != before:
                failed.append(f"{case.name}: changed a file")
    assert failed == []


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
            ["infer", ROOT / "capsedge/zoo/samples/digit-7.png",
             "--reconstruct", zoo / "digits-dynamic.onnx"],
            ["profile", "--report", zoo / "digits-dynamic.onnx"],
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


BOUND = """
import sys
from capsedge.cli import _run
for line in sys.stdin.read().splitlines():
    sys.argv = ["capsedge", *line.split("\\t")]
    print(_run(), line)
"""


@pytest.mark.thorough
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


@pytest.mark.thorough
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
