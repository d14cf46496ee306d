"""The Rust example: it builds without crates, and its answers are Python's to the last digit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsedge.runtime.load import load
from capsedge.runtime.zoo import default_model
from tests.cli.examples import config, needs_library, run, tool

pytestmark = [needs_library, pytest.mark.thorough]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example of the installation, built by cargo without a network."""
    cargo, target = tool("cargo", "cargo"), tmp_path_factory.mktemp("rust")
    tool("rustc", "rustc")
    manifest = Path(config("examples")) / "rust" / "Cargo.toml"
    done = subprocess.run(
        [cargo, "build", "--offline", "--locked", "--manifest-path", str(manifest)],
        env={**os.environ, "CARGO_TARGET_DIR": str(target), "CAPSEDGE_LIBDIR": config("libdir"),
             "RUSTFLAGS": "-D warnings"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target / "debug" / "classify"


def pictures(folder: Path) -> list[Path]:
    """Random pictures of two sizes, grey and colour, with a comment in one header."""
    rng = np.random.default_rng(3)
    files = []
    for k, shape in enumerate([(28, 28), (40, 61), (64, 50, 3)]):
        files.append(folder / f"{k}.pnm")
        Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8)).save(files[-1], "PPM")
    head, _, rest = files[1].read_bytes().partition(b"\n")
    files[1].write_bytes(head + b"\n# a comment\n" + rest)
    return files


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image)


def test_labels_and_scores_are_those_of_python(program: Path, tmp_path: Path) -> None:
    files, session = pictures(tmp_path), load(default_model())
    wanted = []
    for path in files:
        best = session.predict(pixels(path))[0].labels[0]
        wanted.append((str(path), best.name, session.roles.kind, best.score))
    lines = run(program, default_model(), *files).splitlines()
    assert [parsed(line) for line in lines] == wanted


def parsed(line: str) -> tuple[str, str, str, float]:
    path, _, answer = line.partition(": ")
    name, _, rest = answer.rpartition(", ")
    kind, score = rest.split()
    return path, name, kind, float(score)


def test_values_of_a_regression(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from capsedge.runtime.metadata.metadata import Outputs, Preprocessing
    from capsedge.runtime.user_metadata import Description, describe_model
    from tests.runtime.models import foreign_model

    outputs = Outputs(names=("yaw", "age", "depth"), units=("degrees", "", "mm"))
    declared = Description(None, Preprocessing(8, 8, 1), "regression", outputs)
    model = tmp_path / "pose.onnx"
    model.write_bytes(describe_model(foreign_model({"o": [3]}).SerializeToString(), declared).data)
    files = pictures(tmp_path)
    for path, line in zip(files, run(program, model, *files).splitlines(), strict=True):
        values = load(model).predict(pixels(path))[0].values
        texts = [part.split() for part in line.partition(": ")[2].split("; ")]
        assert [(t[0], float(t[1]), " ".join(t[2:])) for t in texts] == [
            (v.name, v.value, v.unit) for v in values
        ]


def test_the_shares_of_a_mask(program: Path, tmp_path: Path) -> None:
    model = default_model().with_name("digits-clutter.onnx")
    image = default_model().with_name("clutter") / "digit-8.png"
    picture, mask = pixels(image), load(model).predict(image)[0].mask
    assert mask is not None
    path = tmp_path / "digit.ppm"
    Image.fromarray(picture).save(path, "PPM")
    shares = [f"{name} {(mask == k).mean()}" for k, name in enumerate(("background", "digit"))]
    assert run(program, model, path) == f"{path}: {'; '.join(shares)}\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"P5 28 28 255\n" + bytes(27 * 28), "only binary PGM and PPM"),
        (b"P6 40000 40000 255\n", "only binary PGM and PPM"),
        (b"P5 28 28 65535\n" + bytes(2 * 28 * 28), "only binary PGM and PPM"),
        (b"P5" + b"#\n" * 500_000, "only binary PGM and PPM"),
        (b"", "only binary PGM and PPM"),
    ],
)
def test_wrong_pictures(program: Path, tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "picture.pgm").write_bytes(data)
    found = outcome(program, default_model(), tmp_path / "picture.pgm")
    assert found == (2, message)


def test_errors_of_the_library(program: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(default_model().read_bytes()[:-100])
    assert outcome(program, tmp_path / "cut.onnx", "x") == (6, "not a complete ONNX file")
    assert outcome(program, tmp_path / "none.onnx", "x") == (2, "No such file")


MESSAGES = ("only binary PGM and PPM", "not a complete ONNX file", "No such file")


def outcome(program: Path, *arguments: str | Path) -> tuple[int, str]:
    """The exit code, and which of the messages was printed."""
    words = [str(program), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.returncode, next((m for m in MESSAGES if m in done.stderr), done.stderr)
