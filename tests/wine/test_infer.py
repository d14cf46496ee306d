"""`capsedge infer` of the Windows wheel gives the bits that it gives on Linux with the same compiler."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from capsedge.runtime.backends import native_library
from capsedge.runtime.zoo import MODELS
from tests.release.environments import SAMPLE, without_variables
from tests.wine.conftest import MODEL, answer
from tests.wine.test_libcapsedge import FOREIGN, PHOTOGRAPH
from tools import wheels, wine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
LEVELS = ("plain", "avx2", "avx512", "avx512vnni")
# Every model in one process, because a start of Wine takes seconds.
CODE = """
import sys
from capsedge.cli import app
for model, image in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        app.main(["infer", image, "--json", "--model", model])
    except SystemExit as end:
        if end.code:
            raise
"""


def documents(text: str) -> list[dict[str, Any]]:
    """Of what `CODE` prints: a JSON document for each model, without names of files."""
    found, decoder = [], json.JSONDecoder()
    while text := text.strip():
        document, end = decoder.raw_decode(text)
        del document["model"]
        for image in document["images"]:
            del image["image"]
        found.append(document)
        text = text[end:]
    return found


def image_for(model: str) -> Path:
    return PHOTOGRAPH if model == "photos" else SAMPLE


def on_windows(level: str) -> list[dict[str, Any]]:
    words = [w for model in MODELS for w in (model, wine.path_of(image_for(model)))]
    return documents(answer(wine.PYTHON, "-c", CODE, *words, added={"CAPSEDGE_SIMD": level}))


def on_linux(level: str, library: Path) -> list[dict[str, Any]]:
    words = [str(w) for model in MODELS for w in (model, image_for(model))]
    environment = without_variables(**{native_library.VARIABLE: library, "CAPSEDGE_SIMD": level})
    done = subprocess.run(
        [sys.executable, "-c", CODE, *words],
        capture_output=True, text=True, check=True, env=environment, cwd=wheels.ROOT,
    )  # fmt: skip
    return documents(done.stdout)


@pytest.mark.parametrize("level", LEVELS)
def test_every_bundled_model_at_every_level(level: str, levels: list[str], linux: Path) -> None:
    """FP32 and INT8: the operators of both wheels, and the same version of ONNX Runtime."""
    if level not in levels:
        assert level not in native_library.levels_of(linux)
        return
    there, here = on_windows(level), on_linux(level, linux)
    assert [document["ops"] for document in there] == ["fused"] * len(MODELS)
    for model, windows, other in zip(MODELS, there, here, strict=True):
        assert windows == other, model


@pytest.mark.usefixtures("package")
def test_names_in_utf8_and_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / FOREIGN
    folder.mkdir()
    model = shutil.copyfile(MODEL, folder / f"{FOREIGN}.onnx")
    image = shutil.copyfile(SAMPLE, folder / f"{FOREIGN}.png")
    folder.chmod(0o555)
    try:
        said = answer(
            wine.PYTHON, "-X", "utf8", "-m", "capsedge", "infer", wine.path_of(image), "--json",
            "--model", wine.path_of(model),
        )  # fmt: skip
        document = json.loads(said)
        assert document["images"][0]["labels"][0]["label"] == "7"
        assert f"{FOREIGN}.png" in document["images"][0]["image"]
    finally:
        folder.chmod(0o755)


@pytest.mark.usefixtures("package")
def test_an_output_file_that_a_program_has_open(tmp_path: Path) -> None:
    """Windows replaces no file that is open."""
    target, inputs = tmp_path / "answer.npz", tmp_path / "inputs.npz"
    (port,) = onnxruntime.InferenceSession(str(MODEL)).get_inputs()
    shape = [size if isinstance(size, int) else 2 for size in port.shape]
    np.savez(inputs, **{port.name: np.zeros(shape, np.float32)})
    target.write_text("before")
    code = """
import json, subprocess, sys
words = [sys.executable, "-m", "capsedge", "infer", "--inputs", sys.argv[1], "-o", sys.argv[2]]
words += ["--model", "digits-dynamic"]
def run():
    done = subprocess.run(words, input="", capture_output=True, text=True)
    return [done.returncode, done.stderr]
with open(sys.argv[2]):
    refused = run()
print(json.dumps([refused, run()]))
"""
    said = answer(wine.PYTHON, "-c", code, wine.path_of(inputs), wine.path_of(target))
    (code_then, words_then), (code_later, words_later) = json.loads(said)
    assert (code_then, code_later) == (2, 0), said
    assert words_then.startswith("error: Cannot write "), words_then
    assert "answer.npz" in words_then
    assert "Traceback" not in words_then + words_later
    assert np.load(target).files
    assert sorted(tmp_path.iterdir()) == [target, inputs]
