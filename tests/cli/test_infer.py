"""``capsedge infer``: what it prints, refuses and returns."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsedge.datasets import typical_input_from
from capsedge.errors import UsageError
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.cli.running import capsedge
from tests.runtime.models import SIDE, capsule_model, metadata, save

LEFT = np.zeros((SIDE, SIDE), np.uint8)
LEFT[:, : SIDE // 2] = 255


def infer(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return capsedge("infer", *arguments, **{"CAPSEDGE_OPS_LIBRARY": ""} | environment)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models beside a folder of images."""
    folder = tmp_path_factory.mktemp("infer")
    save(capsule_model(reconstruction=True), folder / "full.onnx")
    save(capsule_model(), folder / "plain.onnx")
    save(capsule_model(properties={}), folder / "foreign.onnx")
    images = folder / "images"
    images.mkdir()
    Image.fromarray(LEFT).save(images / "b-left.png")
    Image.fromarray(LEFT[:, ::-1].copy()).save(images / "A-right.PNG")
    Image.fromarray(np.full((16, 16), 255, np.uint8)).save(images / "c-both.jpg")
    (images / "notes.txt").write_text("not an image")
    (folder / "empty.png").write_bytes(b"")
    return folder


def test_table(place: Path):
    run = infer(place / "images" / "b-left.png", "--model", place / "full.onnx")
    assert run.returncode == 0
    assert run.stderr == ""
    lines = [line.split() for line in run.stdout.splitlines() if line]
    assert lines[0][0] == "full.onnx,"
    assert lines[1] == ["image", "class", "length"]
    assert lines[2] == [str(place / "images" / "b-left.png"), "left", "0.9412"]


def test_folder_is_sorted_and_only_images(place: Path):
    run = infer(place / "images", "--model", place / "plain.onnx", "--json")
    assert run.returncode == 0
    document = json.loads(run.stdout)
    assert document["failed"] == 0
    assert [Path(i["image"]).name for i in document["images"]] == [
        "A-right.PNG",
        "b-left.png",
        "c-both.jpg",
    ]
    assert [i["labels"][0]["label"] for i in document["images"]] == ["right", "left", "left"]
    assert len(document["images"][0]["labels"][0]["pose"]) == 4


def test_top_and_threshold(place: Path):
    def labels(*options: object) -> list[str]:
        both = place / "images" / "c-both.jpg"
        run = infer(both, "--model", place / "plain.onnx", "--json", *options)
        return [label["label"] for label in json.loads(run.stdout)["images"][0]["labels"]]

    assert labels() == ["left"]
    assert labels("--top", 3) == ["left", "right", "none"]
    assert labels("--threshold", 0.5) == ["left", "right"]
    assert labels("--threshold", 0.99) == []


def test_invert(place: Path):
    left = place / "images" / "b-left.png"
    run = infer(left, "--invert", "--model", place / "plain.onnx", "--json")
    assert json.loads(run.stdout)["images"][0]["labels"][0]["label"] == "right"


@pytest.fixture(scope="module")
def judging(place: Path) -> Path:
    """A model with a criterion for nothing to see."""
    rng = np.random.default_rng(4)
    spots = np.zeros((200, SIDE, SIDE), np.uint8)
    for spot in spots:
        row, column = rng.integers(1, SIDE - 3, 2)
        spot[row : row + 2, column : column + rng.integers(1, 3)] = rng.integers(100, 256)
    criterion = typical_input_from(spots, Preprocessing(SIDE, SIDE, 1))
    properties = metadata(typical_input=criterion).to_properties()
    save(capsule_model(properties=properties, reconstruction=True), place / "judging.onnx")
    Image.fromarray(np.zeros((SIDE, SIDE), np.uint8)).save(place / "blank.png")
    Image.fromarray(spots[0]).save(place / "dark.png")
    Image.fromarray(255 - spots[0]).save(place / "light.png")
    return place


def test_nothing_to_see(judging: Path) -> None:
    blank, model = judging / "blank.png", judging / "judging.onnx"
    run = infer(blank, "--model", model)
    assert run.returncode == 0
    assert run.stderr == f"{blank}: nothing to see: less contrast than in any training image\n"
    assert re.search(re.escape(str(blank)) + r" +(left|right) \(nothing to see\) +\d", run.stdout)
    for options in (["--top", "1"], ["--threshold", "0"], ["--reconstruct", judging / "o.png"]):
        run = infer(blank, "--model", model, *options)
        assert "nothing to see" in run.stdout
        assert "left" in run.stdout
    run = infer(blank, "--model", model, "--json")
    assert run.stderr.startswith(f"{blank}: nothing to see")
    (line,) = json.loads(run.stdout)["images"]
    assert line["atypical"] == "less contrast than in any training image"
    assert line["hint"] is None
    assert line["labels"]


def test_the_hint_to_invert(judging: Path) -> None:
    light, dark, model = judging / "light.png", judging / "dark.png", judging / "judging.onnx"
    run = infer(light, dark, "--model", model)
    hints = [line for line in run.stderr.splitlines() if line.startswith("hint:")]
    assert len(hints) == 1
    assert str(light) in hints[0]
    assert "try --invert" in hints[0]
    run = infer(light, dark, "--model", model, "--json")
    found = [line["hint"] for line in json.loads(run.stdout)["images"]]
    assert "try --invert" in found[0]
    assert found[1] is None
    run = infer(light, dark, "--model", model, "--invert")
    hints = [line for line in run.stderr.splitlines() if line.startswith("hint:")]
    assert len(hints) == 1
    assert str(dark) in hints[0]
    assert "without --invert" in hints[0]


def test_one_bad_image_among_many(place: Path):
    images = [place / "empty.png", place / "images" / "b-left.png", place / "none.png"]
    run = infer(*images, "--model", place / "plain.onnx")
    assert run.returncode == 2
    assert "left" in run.stdout
    assert "empty.png is empty" in run.stderr
    assert "2 of 3 images could not be read" in run.stderr
    run = infer(*images, "--model", place / "plain.onnx", "--json")
    assert run.returncode == 2
    document = json.loads(run.stdout)
    assert document["failed"] == 2
    assert "empty" in document["images"][0]["error"]
    assert document["images"][1]["labels"][0]["label"] == "left"
    assert "There is no file" in document["images"][2]["error"]


def test_reconstruct_draws_two_classes_in_two_colours(place: Path, tmp_path: Path):
    target = tmp_path / "out.png"
    both = place / "images" / "c-both.jpg"
    run = infer(both, "--model", place / "full.onnx", "--reconstruct", target, "--json")
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert document["reconstruction"] == str(target)
    assert document["images"][0]["drawn"] == {"left": "red", "right": "green"}
    sheet = np.asarray(Image.open(target)).astype(int)
    size = sheet.shape[0]
    assert sheet.shape == (size, 2 * size + 4, 3)
    np.testing.assert_allclose(sheet[5, 5], 255, atol=3)  # what the model saw
    left, right = sheet[5, size + 4 + 5], sheet[5, -5]
    assert left[0] > 200 and left[1] == left[2] == 0  # noqa: PT018
    assert right[1] > 200 and right[0] == right[2] == 0  # noqa: PT018


def test_reconstruct_draws_one_class_in_its_own_colours(place: Path, tmp_path: Path):
    left = place / "images" / "b-left.png"
    run = infer(left, "-m", place / "full.onnx", "--reconstruct", tmp_path / "o.png")
    assert run.returncode == 0, run.stderr
    assert "own" in run.stdout
    pixel = np.asarray(Image.open(tmp_path / "o.png"))[5, -220]
    assert pixel[0] == pixel[1] == pixel[2] > 200


def test_reconstruct_without_decoder(place: Path, tmp_path: Path):
    image = place / "images" / "b-left.png"
    run = infer(image, "-m", place / "plain.onnx", "--reconstruct", tmp_path / "o.png")
    assert run.returncode == 2
    assert "dict with 'reconstruction'" in run.stderr
    assert not (tmp_path / "o.png").exists()


def test_reconstruct_into_nowhere(place: Path, tmp_path: Path):
    image = place / "images" / "b-left.png"
    for target in (tmp_path / "none" / "o.png", tmp_path / "o.gif"):
        run = infer(image, "-m", place / "full.onnx", "--reconstruct", target)
        assert run.returncode == 2
        assert "Cannot write" in run.stderr
        assert "Traceback" not in run.stderr
    assert list(tmp_path.iterdir()) == []


def test_full_disk_leaves_nothing(place: Path, tmp_path: Path):
    """A file size limit makes the system refuse the write half way, as a full disk does."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "from capsedge.cli import main; main()"
    )
    target = tmp_path / "o.png"
    target.write_bytes(b"old")
    image, model = place / "images" / "b-left.png", place / "full.onnx"
    run = subprocess.run(
        [sys.executable, "-B", "-c", code, "infer", image, "-m", model, "--reconstruct", target],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 3, run.stderr
    assert "failed" in run.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["o.png"]
    assert target.read_bytes() == b"old"


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux only")
def test_file_name_that_is_no_text(place: Path, tmp_path: Path):
    folder = os.fsencode(tmp_path)
    with open(folder + b"/\xff.png", "wb") as f:
        f.write((place / "images" / "b-left.png").read_bytes())
    run = infer(tmp_path, "-m", place / "plain.onnx")
    assert run.returncode == 0, run.stderr
    assert "left" in run.stdout


def test_many_images_report_progress(place: Path, tmp_path: Path):
    for number in range(120):
        Image.fromarray(LEFT).save(tmp_path / f"{number:03}.png")
    run = infer(tmp_path, "-m", place / "plain.onnx", "--json")
    assert run.returncode == 0
    assert len(json.loads(run.stdout)["images"]) == 120
    assert "120 of 120 images" in run.stderr


@pytest.mark.parametrize(
    ("model", "code", "said"),
    [
        ("none.onnx", 2, "There is no file"),
        ("empty.png", 6, "0 bytes"),
        ("images/b-left.png", 6, "not an ONNX file: it is an image"),
        ("foreign.onnx", 6, "capsedge optimize"),
    ],
)
def test_bad_models(place: Path, model: str, code: int, said: str):
    run = infer(place / "images" / "b-left.png", "--model", place / model)
    assert (run.returncode, run.stdout) == (code, "")
    assert said in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--top", "0"], 2, "--top"),
        (["--threshold", "2"], 2, "--threshold"),
        (["--threads", "0"], 2, "--threads"),
        (["--ops", "fast"], 2, "fast"),
        ([], 2, "no images"),
    ],
)
def test_bad_options(place: Path, tmp_path: Path, options: list[str], code: int, said: str):
    image = place / "images" / "b-left.png" if options else tmp_path
    run = infer(image, "--model", place / "plain.onnx", *options)
    assert run.returncode == code
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_named_library_that_is_not_there(place: Path):
    run = infer(
        place / "images" / "b-left.png",
        "--model",
        place / "plain.onnx",
        CAPSEDGE_OPS_LIBRARY="/nonexistent/lib.so",
    )
    assert run.returncode == 3
    assert "CAPSEDGE_OPS_LIBRARY" in run.stderr


BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "onnx", "onnxscript", "safetensors"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocker())
from capsedge.cli import main
main()
"""


def test_needs_neither_torch_nor_onnx(place: Path):
    image, model = place / "images" / "b-left.png", place / "plain.onnx"
    run = subprocess.run(
        [sys.executable, "-c", BLOCKED, "infer", image, "--model", model],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert "left" in run.stdout


def test_imports_stay_few(place: Path):
    """Cold start: a plain run in a pipe loads no rich, no http, no archives, no image filters."""
    code = (
        "import sys; from capsedge.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "names = {'rich', 'torch', 'onnx', 'multiprocessing', 'asyncio', 'PIL.ImageFilter',\n"
        "         'capsedge.runtime.files.archives'}\n"
        "print('loaded', sorted(names & set(sys.modules)))"
    )
    image, model = place / "images" / "b-left.png", place / "plain.onnx"
    run = subprocess.run(
        [sys.executable, "-c", code, "infer", image, "--model", model],
        capture_output=True,
        text=True,
    )
    assert run.stdout.splitlines()[-1] == "loaded []"


# The standard input


def piped(content: bytes | None, *words: object) -> subprocess.CompletedProcess[str]:
    """`infer` with bytes on its standard input; with None it is closed."""
    command = [sys.executable, "-m", "capsedge", "infer", *map(str, words)]
    if content is None:
        shell = ["sh", "-c", '"$@" <&-', "sh", *command]
        return subprocess.run(shell, capture_output=True, text=True)
    done = subprocess.run(command, input=content, capture_output=True)
    return subprocess.CompletedProcess(
        command, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


@pytest.mark.thorough
def test_an_image_from_the_standard_input(place: Path):
    image, model = place / "images" / "b-left.png", place / "plain.onnx"
    found = json.loads(piped(image.read_bytes(), "-", image, "--json", "-m", model).stdout)
    assert [line.pop("image") for line in found["images"]] == ["-", str(image)]
    assert found["images"][0] == found["images"][1]
    both = ["-m", model, "-m", place / "full.onnx"]
    run = piped(b"\x89PNG\r\n\x1a\n" + bytes(9), "-", image, *both)
    assert run.returncode == 2
    assert run.stderr.startswith("error: Standard input is damaged.")
    assert "1 of 2 images could not be read" in run.stderr
    assert "left" in run.stdout


@pytest.mark.parametrize(
    ("content", "words", "error"),
    [
        (b"", ["-"], "is empty"),
        (None, ["-"], "is closed"),
        (b"x", ["-", "-"], "used twice"),
        (b"no image", ["-"], "Standard input is not a readable image: it is a text file"),
    ],
)
def test_refused_standard_input(place: Path, content: bytes | None, words: list[str], error: str):
    run = piped(content, *words, "-m", place / "plain.onnx")
    assert run.returncode == 2
    assert run.stderr.startswith("error: ")
    assert error in run.stderr


def test_a_terminal_is_not_waited_for(place: Path):
    """It would wait for an image to be typed."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "capsedge", "infer", "-", "--json"]
    run = subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=60)
    os.close(ours)
    os.close(theirs)
    assert run.returncode == 2
    assert json.loads(run.stdout)["error"] == "Standard input is a terminal."


def test_the_standard_input_has_a_limit(monkeypatch: pytest.MonkeyPatch):
    from capsedge.cli._process import read_standard_input
    from capsedge.runtime.images.decoding import read_stream
    from capsedge.spec import limits

    monkeypatch.setattr(limits, "IMAGE_FILE_BYTES", 10)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x89PNG" * 100)))
    (content,) = read_standard_input([Path("-")]).values()
    with pytest.raises(UsageError, match="has 11 bytes, the limit is 10"):
        read_stream(content, "x")


# Ensembles


def test_an_ensemble(place: Path):
    image, files = place / "images" / "b-left.png", [place / "full.onnx", place / "other.onnx"]
    save(capsule_model(gain=1.0), files[1])
    options = [word for file in files for word in ("--model", file)]
    run = infer(image, *options)
    assert run.returncode == 0, run.stderr
    assert "full.onnx + other.onnx" in run.stdout
    answers = [json.loads(infer(image, "--json", "-m", each).stdout) for each in files]
    found = json.loads(infer(image, "--json", *options).stdout)
    assert found["models"] == [each["model"] for each in answers]
    alone = [each["images"][0]["scores"] for each in answers]
    averaged = [(a + b) / 2 for a, b in zip(*alone, strict=True)]
    assert found["images"][0]["scores"] == averaged
    run = infer(image, *options, "--reconstruct", place / "sheet.png")
    assert run.returncode == 2
    assert "pass a single model" in run.stderr
    run = infer(image, "-m", files[0], "-m", files[0])
    assert run.returncode == 2
    assert "twice" in run.stderr
