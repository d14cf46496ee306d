"""Every role of a path, judged as before a verb starts; every path of every verb has one.

`test_refused.py` runs the verbs themselves: each with every place that is refused here.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from capsedge.cli._paths import READS_IMAGES, UPDATES, WRITES, PathRole, _check_paths, check_model
from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from tests.paths.table import (
    IMAGE,
    SAME_FILE,
    ZOO,
    bad_places,
    callbacks,
    command,
    honest,
    parameters,
    run,
    same_file,
    unchanged,
)

# Each role with the name of a parameter that has it.
ROLES: dict[PathRole, str] = {p.role: str(p) for p in parameters() if p.role is not None}
READING = {role: name for role, name in ROLES.items() if role.reads}
WRITING = {role: name for role, name in ROLES.items() if role.written(Path("x"))}


def refusal(*places: tuple[PathRole, Path]) -> CapsedgeError | None:
    """How a verb with these paths refuses them, if it does."""
    roles = {str(number): role for number, (role, _) in enumerate(places)}
    # A text, where the role is of one.
    values: dict[str, Any] = {
        str(number): path if role.named in (Path, READS_IMAGES.named) else str(path)
        for number, (role, path) in enumerate(places)
    }
    try:
        _check_paths(roles, values, dry=False)
    except CapsedgeError as error:
        return error
    return None


def test_every_path_has_a_role() -> None:
    """A new parameter that is a path says what it is for, and is judged with all others."""
    assert [str(p) for p in parameters() if p.role is None] == []
    assert len(parameters()) >= 75
    assert {p.verb for p in parameters()} == set(callbacks()) - {"config", "doctor"}


def test_every_path_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """One place through every parameter: the verbs, run in this process, judge what their roles say."""
    pytest.importorskip("torch", reason="writes weights: pip install 'capsedge[export]'")
    given = honest(tmp_path / "honest")
    assert set(given) == {p.verb for p in parameters()}
    place = bad_places(tmp_path / "bad")["socket"]
    failed = []
    for parameter in parameters():
        code = run(command(given[parameter.verb], {parameter: place}, parameter.verb), monkeypatch)
        said = capsys.readouterr().err
        if code != 2 or not said.startswith(("error: Cannot read", "error: Cannot write")):
            failed.append(f"{parameter}: exit code {code}: {said}")
    assert failed == []


VERBS = {  # role of the place, and a command with it
    "model": lambda place: ["inspect", place],
    "image": lambda place: ["infer", place],
    "data": lambda place: ["quantize", ZOO / "digits-em.onnx", "--calib-data", place],
    "output": lambda place: ["infer", IMAGE, "--reconstruct", place],
    "folder": lambda place: ["deploy", "web", "digits-em", "-o", place],
}


@pytest.mark.parametrize("role", VERBS)
def test_a_verb_refuses_every_bad_place(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    failed = []
    places = bad_places(tmp_path / "bad")
    with unchanged(tmp_path):
        for name, place in places.items():
            code = run([str(word) for word in VERBS[role](place)], monkeypatch)
            said = capsys.readouterr().err
            if code != 2 or not said.startswith("error: ") or "bug" in said:
                failed.append(f"{name}: exit code {code}: {said}")
    assert failed == []


def test_bad_places(tmp_path: Path) -> None:
    places = bad_places(tmp_path / "bad")
    with unchanged(tmp_path):
        accepted = [
            f"{parameter}: {name}"
            for (role, parameter), (name, place) in product(ROLES.items(), places.items())
            if not isinstance(refusal((role, place)), UsageError)
        ]
    assert accepted == []


def test_good_places(tmp_path: Path) -> None:
    """What is refused is not everything."""
    model = Path(shutil.copy(ZOO / "digits-em.onnx", tmp_path))
    refused = [
        f"{parameter}: {error}"
        for role, parameter in ROLES.items()
        if (error := refusal((role, model if role.reads else tmp_path / "new"))) is not None
    ]
    assert refused == []


def test_inputs_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow.onnx").write_bytes(b"")
    (tmp_path / "dangling").symlink_to("nowhere.onnx")
    wanted = {
        "missing": UsageError,
        "dangling": UsageError,
        "hollow.onnx/below": UsageError,
        "empty": UsageError,
        "hollow.onnx": ArtefactError,
    }
    failed = []
    for (role, parameter), (name, error) in product(READING.items(), wanted.items()):
        if name in ("empty", "hollow.onnx") and role.check != check_model:
            continue  # left to the reader
        if role == UPDATES and name in ("missing", "dangling"):
            continue  # made by the verb
        found = refusal((role, tmp_path / name))
        if type(found) is not error:
            failed.append(f"{parameter}: {name}: {found!r}")
    assert failed == []


def test_images_of_which_some_are_there(tmp_path: Path) -> None:
    """The verb reports those that are missing, unless all are."""
    roles, missing = {"images": READS_IMAGES}, tmp_path / "missing.png"
    _check_paths(roles, {"images": [missing, IMAGE]}, dry=False)
    with pytest.raises(UsageError, match="There is no file"):
        _check_paths(roles, {"images": [missing, missing]}, dry=False)


def parts() -> Iterator[tuple[str, PathRole, int]]:
    """Every file that is written for a path: also a metadata file, a rejected file, the files of a run."""
    for role, parameter in WRITING.items():
        for number in range(len(role.written(Path("x")))):
            yield f"{parameter}: file {number}", role, number


def test_every_file_of_an_output(tmp_path: Path) -> None:
    bad = bad_places(tmp_path / "bad")
    accepted = []
    for (what, role, number), name in product(
        parts(), ("pipe", "socket", "device", "loop of links")
    ):
        output = tmp_path / f"{len(accepted)}-{what}-{name}".replace(" ", "-") / "output.onnx"
        place = role.written(output)[number]
        place.parent.mkdir(parents=True)
        place.symlink_to(bad[name])
        if not isinstance(refusal((role, output)), UsageError):
            accepted.append(f"{what}: {name}")
    assert accepted == []


def test_outputs_in_no_folder(tmp_path: Path) -> None:
    """Unless the verb makes the folder."""
    for role, parameter in WRITING.items():
        found = refusal((role, tmp_path / "none/x"))
        assert (found is None) == role.creates, parameter


@pytest.mark.thorough
def test_outputs_that_are_inputs(tmp_path: Path) -> None:
    """Each file that an output makes, against each input, by every other name."""
    accepted = []
    for number, (kind, (what, role, part), source) in enumerate(
        product(SAME_FILE, list(parts()), READING)
    ):
        output = tmp_path / str(number) / "output.onnx"
        data = same_file(kind, role.written(output)[part])
        found = refusal((role, output), (source, data))
        if found is None or not any(s in str(found) for s in ("It is an input", "Another output")):
            accepted.append(f"{what}, {kind}, {READING[source]}: {found}")
    assert accepted == []


def test_outputs_that_are_inputs_by_default() -> None:
    """The files of the package."""
    for name in ("digits-dynamic.onnx", "digits-dynamic.safetensors"):
        assert "It is an input" in str(refusal((WRITES, ZOO / name)))


def test_two_outputs_in_one_file(tmp_path: Path) -> None:
    files = [role for role in WRITING if not role.creates]
    for first, second in product(files, files):
        found = refusal((first, tmp_path / "a.onnx"), (second, tmp_path / "a.onnx"))
        assert found is not None, f"{WRITING[first]}, {WRITING[second]}"
        assert refusal((first, tmp_path / "a.onnx"), (second, tmp_path / "b.onnx")) is None


def test_outputs_among_the_images(tmp_path: Path) -> None:
    """A folder of images is read without the folders inside."""
    (tmp_path / "out").mkdir()
    for place in ("a.png", "out/b.png"):
        shutil.copy(IMAGE, tmp_path / place)
    images = (READS_IMAGES, tmp_path)
    assert "It is an input" in str(refusal(images, (WRITES, tmp_path / "a.png")))
    assert refusal(images, (WRITES, tmp_path / "out/b.png")) is None


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    _check_paths({"output": WRITES}, {"output": tmp_path / "none/x"}, dry=True)
    with pytest.raises(UsageError):
        _check_paths({"output": WRITES}, {"output": tmp_path / "none/x"}, dry=False)
