"""The examples of the docstrings are run, in a folder that has the files they name."""

from __future__ import annotations

import doctest
import inspect
import shutil
from pathlib import Path

import numpy as np
import pytest

import capsedge
from tests.conftest import ROOT
from tools import draw_samples

ELSEWHERE = {"build": "it needs a GPU"}
NAMES = [name for name in capsedge.__all__ if inspect.isfunction(getattr(capsedge, name))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    made = tmp_path_factory.mktemp("examples")
    zoo = ROOT / "capsedge/zoo"
    for suffix in ("onnx", "safetensors"):
        shutil.copy(zoo / f"digits-dynamic.{suffix}", made / f"digits.{suffix}")
    shutil.copy(made / "digits.onnx", made / "foreign.onnx")
    shutil.copy(made / "digits.onnx", made / "large.onnx")
    shutil.copy(zoo / "digits-em.onnx", made / "small.onnx")
    shutil.copy(ROOT / "capsedge/zoo/samples/digit-7.png", made / "image.png")
    (made / "mnist").mkdir()
    for name, seed in (("train", 1), ("test", 2)):
        pictures = draw_samples.many(each=2, seed=seed)
        labels = [int(key.split("-")[1]) for key in pictures]
        np.savez(
            made / f"mnist/{name}.npz", images=np.stack(list(pictures.values())), labels=labels
        )
    weights = {
        "conv1.weight": torch.randn(16, 1, 9, 9),
        "conv1.bias": torch.zeros(16),
        "primarycaps.conv2d.weight": torch.randn(32, 16, 9, 9),
        "primarycaps.conv2d.bias": torch.zeros(32),
        "digitcaps.weight": 0.1 * torch.randn(10, 144, 16, 8),
    }
    torch.save(weights, made / "epoch_30.pt")
    return made


@pytest.fixture
def inside(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a copy of the folder: examples replace its files."""
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def test_every_function_has_an_example() -> None:
    assert set(ELSEWHERE) < set(NAMES)
    for name in NAMES:
        assert lines(name), name


@pytest.mark.slow
@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("name", [name for name in NAMES if name not in ELSEWHERE])
def test_example_runs(name: str) -> None:
    scope = {"capsedge": capsedge}
    for line in lines(name):
        exec(compile(line, f"<example of {name}>", "single"), scope)


def lines(name: str) -> list[str]:
    text = inspect.getdoc(getattr(capsedge, name)) or ""
    return [example.source for example in doctest.DocTestParser().get_examples(text)]
