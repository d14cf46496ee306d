"""What `capsedge.load` takes as a name: files, models of the zoo, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import capsedge
from capsedge.errors import UsageError
from capsedge.runtime import zoo
from capsedge.runtime.backends.onnxruntime_session import SessionSettings
from capsedge.runtime.machine import available_cores
from tests.conftest import ROOT
from tests.runtime.models import capsule_model, save

SEVEN = ROOT / "capsedge/zoo/samples/digit-7.png"


@pytest.mark.parametrize("name", zoo.DIGITS)
def test_a_name_of_the_zoo(name: str) -> None:
    session = capsedge.load(name)
    assert session.path == zoo.zoo_model(name)
    assert session.predict(SEVEN)[0].label == "7"


@pytest.mark.parametrize("kind", ["airplane", "automobile", "cat", "ship"])
def test_photographs(kind: str) -> None:
    with capsedge.load("photos") as session:
        assert session.predict(ROOT / f"capsedge/zoo/photographs/{kind}.jpg")[0].label == kind


@pytest.mark.parametrize("name", ["digits-clutter", "digits-clutter-int8"])
def test_a_digit_in_clutter(name: str) -> None:
    with capsedge.load(name) as session:
        assert session.path == zoo.zoo_model(name)
        (found,) = session.predict(zoo.samples_folder().with_name("clutter") / "digit-8.png")
    assert found.mask is not None
    assert found.mask.shape == (32, 32)
    assert [area.name for area in found.areas] == ["background", "digit"]
    assert 0.1 < found.areas[1].share < 0.17


def test_no_name_is_the_default_model() -> None:
    assert capsedge.load().path == zoo.default_model()


@pytest.mark.parametrize("name", ["digits-em", Path("digits-em")])
@pytest.mark.parametrize("made", [Path.mkdir, lambda p: save(capsule_model(), p), lambda p: None])
def test_a_string_means_the_zoo_and_a_path_the_file(name, made, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "digits-em")
    if isinstance(name, str):
        assert capsedge.load(name).path == zoo.zoo_model("digits-em")
    elif (tmp_path / "digits-em").is_file():
        for given in (name, "./digits-em"):
            assert capsedge.load(given).path == Path("digits-em")
    else:
        with pytest.raises(UsageError, match=r"There is no file|is a folder"):
            capsedge.load(name)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("digits-emm", "Did you mean 'digits-em'"),
        ("digit-attention", "Did you mean 'digits-attention'"),
        ("resnet50", "Pass an ONNX file or one of these"),
        ("", "is a folder|one of these"),
    ],
)
def test_an_unknown_name_says_which_there_are(name: str, advice: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=advice) as caught:
        capsedge.load(name)
    if name:
        assert all(known in str(caught.value) for known in zoo.FILES)


def test_what_looks_like_a_file_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.onnx", "digits-em.onnx", "nets/digits-em"):
        with pytest.raises(UsageError, match="There is no file"):
            capsedge.load(name)
    shutil.copy(zoo.zoo_model("digits-em"), tmp_path / "mine")  # type: ignore[arg-type]
    assert capsedge.load("mine").path == Path("mine")


def test_threads_beyond_the_processors_do_not_wait_in_a_loop() -> None:
    """They would keep the processors busy: 1,024 threads on two took over a minute for one image."""
    import onnxruntime

    key = "session.intra_op.allow_spinning"
    many = SessionSettings(threads=available_cores() + 1).session_options(onnxruntime)
    assert many.get_session_config_entry(key) == "0"
    few = SessionSettings(threads=available_cores()).session_options(onnxruntime)
    with pytest.raises(RuntimeError, match=key):
        few.get_session_config_entry(key)
