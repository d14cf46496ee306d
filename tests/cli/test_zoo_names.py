"""Wherever a verb reads a model, the name of a bundled one will do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import capsedge as capsedge_package
from capsedge.cli._paths import default_output
from capsedge.errors import CapsedgeError, UsageError
from capsedge.runtime.zoo import FILES, samples_folder, zoo_model
from capsedge.verification.artefact_kind import is_folder

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


@pytest.mark.parametrize("words", ["inspect MODEL", "infer --model MODEL {image}"])
def test_a_name_means_the_bundled_model_whatever_the_folder_holds(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits-em").mkdir()
    image = samples_folder() / "digit-7.png"
    said = capsedge(*words.replace("MODEL", "digits-em").format(image=image).split())
    assert said.returncode == 0, said.stderr


def test_a_folder_of_a_bundled_name_is_verified_with_its_reference_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits-em").mkdir()
    assert not is_folder("digits-em", None)
    assert is_folder("digits-em", "digits.onnx")
    with pytest.raises(UsageError, match="is a folder"):
        is_folder(Path("digits-em"), None)


@pytest.mark.parametrize("path", ["./digits-em", "{folder}/digits-em"])
@pytest.mark.parametrize("words", READERS[:-1], ids=" ".join)
def test_a_file_of_that_name_is_reached_by_a_path(
    words: list[str], path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits-em").write_bytes(b"not a model")
    shutil.copy(samples_folder() / "digit-7.png", ".")
    given = path.format(folder=tmp_path)
    said = capsedge(*(word.replace("MODEL", given) for word in words))
    assert said.returncode == 6, said.stderr
    assert "digits-em" in said.stderr


def test_a_folder_of_c_of_that_name_is_reached_by_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits-em").mkdir()
    said = capsedge("inspect", "digits-em/")
    assert said.returncode != 0
    assert str(tmp_path / "digits-em") in said.stderr


def test_functions_take_the_names_that_verbs_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("digits-em").mkdir()
    by_name, by_path = (capsedge_package.inspect(m) for m in ("digits-em", zoo_model("digits-em")))
    assert by_name == by_path
    with pytest.raises(CapsedgeError, match="It is a folder"):
        capsedge_package.inspect(Path("digits-em"))


def test_a_folder_does_not_hide_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="checkpoints: pip install 'capsedge[export]'")
    from capsedge.models.find import find_checkpoint_of
    from capsedge.runtime.zoo import zoo_checkpoint

    monkeypatch.chdir(tmp_path)
    Path("digits-em").mkdir()
    Path("mine").mkdir()
    assert find_checkpoint_of("digits-em") == zoo_checkpoint("digits-em")
    assert find_checkpoint_of("mine") == Path("mine")


def test_the_suffix_of_a_bundled_model_is_explained(tmp_path: Path) -> None:
    said = capsedge("infer", "--model", "digits-em.onnx", samples_folder() / "digit-7.png")
    assert said.returncode == 2
    assert "Pass digits-em for the bundled model" in said.stderr


def test_capitals_of_a_name_are_corrected() -> None:
    assert "Did you mean 'digits-em'?" in capsedge("inspect", "Digits-EM").stderr


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
