"""The C example with the libcapsedge of the Windows wheel: what it finds and refuses; UTF-8 names."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from capsedge.runtime.zoo import MODELS
from capsedge.spec.exit_codes import C_CODES
from tests.release.environments import SAMPLE
from tests.wine.conftest import MODEL, compiled
from tools import wheels, wine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
ZOO = wheels.ROOT / "capsedge" / "zoo"
PHOTOGRAPH, CLUTTER = ZOO / "photographs" / "airplane.jpg", ZOO / "clutter" / "digit-8.png"
_, _, USAGE, ENVIRONMENT, _, ARTEFACT = C_CODES
VARIABLE = "CAPSEDGE_ONNXRUNTIME"
RUNTIME = wine.SITE / "onnxruntime" / "capi"
# Letters that no single code page of Windows has together.
FOREIGN = "bücher-книги-本"


@pytest.fixture(scope="module")
def program(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """classify.c in a folder that has nothing else."""
    example = libraries / "share" / "capsedge" / "examples" / "classify.c"
    return compiled(
        tmp_path_factory.mktemp("example") / "classify.exe", "-std=c99",
        example, f"-I{libraries / 'include'}", libraries / "lib" / "libcapsedge.dll.a",
    )  # fmt: skip


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample in a format that the example reads without libpng."""
    made = tmp_path_factory.mktemp("picture") / "7.pgm"
    Image.open(SAMPLE).convert("L").save(made)
    return made


@pytest.fixture
def classify(program: Path, libraries: Path):  # type: ignore[no-untyped-def]
    """Runs the example, with ONNX Runtime where a variable says, or without one."""

    def run(
        *words: str | Path, runtime: str | None = wine.path_of(RUNTIME)
    ) -> subprocess.CompletedProcess[str]:
        named = {} if runtime is None else {VARIABLE: runtime}
        shown = (wine.path_of(w) if isinstance(w, Path) else w for w in words)
        return wine.run(
            program, *shown, added={"WINEPATH": wine.path_of(libraries / "lib"), **named}
        )

    return run


@pytest.mark.parametrize("model", MODELS)
def test_bundled_models(classify, model: str, picture: Path) -> None:  # type: ignore[no-untyped-def]
    wanted = "7, "
    if model == "photos":
        wanted, picture = "airplane, ", picture.with_suffix(".ppm")
        Image.open(PHOTOGRAPH).convert("RGB").save(picture)
    if model == "digits-clutter":
        wanted, picture = "background 0.86", picture.with_name("8.pgm")
        Image.open(CLUTTER).convert("L").save(picture)
    done = classify(MODEL.with_name(f"{model}.onnx"), picture)
    assert done.returncode == 0, done.stderr
    assert f"{picture.name}: {wanted}" in done.stdout


def test_onnxruntime_is_named_by_its_file(classify, picture: Path) -> None:  # type: ignore[no-untyped-def]
    done = classify(MODEL, picture, runtime=wine.path_of(RUNTIME / "onnxruntime.dll"))
    assert done.returncode == 0, done.stderr


def test_without_onnxruntime_none_of_the_system_is_opened(  # type: ignore[no-untyped-def]
    classify, picture: Path
) -> None:
    """Windows has an old one in System32, which a bare name would find."""
    system = Path(
        wine.variables()["WINEPREFIX"], "drive_c", "windows", "system32", "onnxruntime.dll"
    )
    shutil.copyfile(RUNTIME / "onnxruntime.dll", system)
    try:
        for runtime in (None, "onnxruntime.dll"):
            done = classify(MODEL, picture, runtime=runtime)
            assert done.returncode == ENVIRONMENT, done.stdout
            assert "error: ONNX Runtime " in done.stderr
            assert "pip install onnxruntime" in done.stderr
            assert "Visual C++ Redistributable" in done.stderr
    finally:
        system.unlink()


def test_names_in_utf8(classify, picture: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder = tmp_path / FOREIGN
    folder.mkdir()
    model = shutil.copyfile(MODEL, folder / f"{FOREIGN}.onnx")
    image = shutil.copyfile(picture, folder / f"{FOREIGN}.pgm")
    runtime = shutil.copytree(
        RUNTIME, folder / "capi", ignore=shutil.ignore_patterns("*.py", "*.pyd")
    )
    folder.chmod(0o555)  # nothing is written beside a model
    try:
        done = classify(model, image, runtime=wine.path_of(runtime))
        assert done.returncode == 0, done.stderr
        assert f"{FOREIGN}.pgm: 7, " in done.stdout
        done = classify(folder / "none.onnx", image)
        assert done.returncode == USAGE
        assert f"{FOREIGN}\\none.onnx cannot be read." in done.stderr
    finally:
        folder.chmod(0o755)


def test_what_it_refuses(classify, picture: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(os.urandom(64))
    text = tmp_path / "text.dll"
    text.write_text("not a library")
    other = Path(wine.variables()["WINEPREFIX"], "drive_c", "windows", "system32", "version.dll")
    for words, runtime, code, said in (
        ((), None, USAGE, "usage: classify"),
        ((tmp_path, picture), None, USAGE, "is not a regular file"),
        (("NUL", picture), None, USAGE, "is not a regular file"),
        ((damaged, picture), None, ARTEFACT, "damaged.onnx"),
        ((MODEL, tmp_path / "none.pgm"), wine.path_of(RUNTIME), USAGE, "cannot be read"),
        (
            (MODEL, picture),
            wine.path_of(tmp_path),
            ENVIRONMENT,
            "no onnxruntime.dll in this folder",
        ),
        ((MODEL, picture), wine.path_of(text), ENVIRONMENT, "text.dll: "),
        ((MODEL, picture), wine.path_of(other), ENVIRONMENT, "no function OrtGetApiBase"),
    ):
        done = classify(*words, runtime=runtime)
        assert done.returncode == code, (words, done)
        assert said in done.stderr, (words, done)
