"""Wherever a verb reads a model, the name of a bundled one will do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capsedge.cli._paths import default_output
from capsedge.runtime.zoo import FILES, samples_folder, zoo_model

from .running import capsedge

READERS = [
    words.split()
    for words in (
        "build --target c MODEL", "cascade digits-dynamic MODEL --data .", "infer --model MODEL digit-7.png",
        "inspect MODEL", "optimize MODEL", "profile MODEL", "quantize MODEL --calib-data .",
        "see MODEL digit-7.png -o see.png", "verify MODEL", "verify x --reference MODEL",
    )
]  # fmt: skip


@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_a_misspelt_name_is_corrected(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(samples_folder())
    said = capsedge(*(word.replace("MODEL", "digit-em") for word in words))
    assert said.returncode == 2
    assert "Unknown model 'digit-em'" in said.stderr
    assert "digits-em" in said.stderr


def test_a_name_is_its_file() -> None:
    found, wanted = (
        json.loads(capsedge("inspect", each, "--json").stdout)
        for each in ("digits-em", zoo_model("digits-em"))
    )
    assert found == wanted


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits-em").write_bytes(b"not a model")
    said = capsedge("inspect", "digits-em")
    assert said.returncode == 6
    assert "digits-em" in said.stderr


@pytest.mark.parametrize("name", FILES)
def test_what_is_made_from_a_bundled_model_is_not_written_beside_it(name: str) -> None:
    model = zoo_model(name)
    assert model is not None
    assert default_output(model, "made.onnx") == Path("made.onnx")


def test_what_is_made_from_a_file_is_written_beside_it(tmp_path: Path) -> None:
    assert default_output(tmp_path / "net.onnx", "made.onnx") == tmp_path / "made.onnx"


@pytest.mark.thorough
def test_c_of_a_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert capsedge("build", "--target", "c", "digits-attention").returncode == 0
    assert Path("digits-attention_c/digits_attention.c").exists()
