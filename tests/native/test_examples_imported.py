"""Imported networks in the C and C++ examples: what `capsedge infer` prints, for all sizes and tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import capsedge
from tests.cli.examples import needs_library, programs, run
from tests.importers.importing import import_with

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")

__all__ = ["programs"]  # a fixture

pytestmark = [needs_library, pytest.mark.slow]


def state_of(module: Any) -> dict[str, Any]:
    return dict(module.state_dict())


def deepcaps(hopeful: bool) -> Callable[[], tuple[dict[str, Any], dict[str, Any]]]:
    def make() -> tuple[dict[str, Any], dict[str, Any]]:
        from tests.importers.families.deepcaps import Port

        size = {"height": 28, "width": 28}
        return Port(hopeful).eval().authors(), {"preprocessing": size}

    return make


def matrix_capsules() -> tuple[dict[str, Any], dict[str, Any]]:
    from tests.importers.test_clamped_em import ANSWERS, network

    return state_of(network()), ANSWERS


def head_pose() -> tuple[dict[str, Any], dict[str, Any]]:
    from tests.importers.families.fsanet import FsaNet

    return state_of(FsaNet("variance", 99.0).eval()), {"variant": "vietlinhtspt-2020"}


def named_classes() -> tuple[dict[str, Any], dict[str, Any]]:
    """A network of dynamic routing whose classes have names."""
    from tests.importers.families.networks import XifengGuo

    answers = {"class_names": tuple(f"kind {k}" for k in range(5)), "iterations": 3}
    return state_of(XifengGuo().eval()), answers


NETWORKS = {
    "hopefulrational": deepcaps(True),
    "ugenteraan": deepcaps(False),
    "yuxianmeng": matrix_capsules,
    "fsanet": head_pose,
    "xifengguo": named_classes,
}


@pytest.fixture(scope="module", params=NETWORKS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An imported network with random weights, exported."""
    torch.manual_seed(5)
    state, answers = NETWORKS[request.param]()
    folder = tmp_path_factory.mktemp(request.param)
    torch.save(state, folder / "weights.pth")
    import_with(folder / "weights.pth", folder / "c.safetensors", **answers)
    capsedge.export(capsedge.load_checkpoint(folder / "c.safetensors"), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Grey, colours and alpha, smaller and larger than the inputs, neither square."""
    rng = np.random.default_rng(2)
    folder = tmp_path_factory.mktemp("pictures")
    shapes = [(28, 28), (19, 23), (90, 70, 3), (64, 64, 3), (120, 31, 4), (33, 47, 2)]
    for k, shape in enumerate(shapes):
        Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8)).save(folder / f"{k}.png")
    return sorted(folder.iterdir())


def infer(model: Path, *words: str | Path) -> str:
    return run(sys.executable, "-m", "capsedge", "infer", "--model", model, *words)


def test_the_example_in_cpp(model: Path, pictures: list[Path], programs: Path) -> None:
    regression = "fsanet" in str(model)
    for options in ([], ["--invert"], *([] if regression else [["--top", "3"]])):
        assert run(programs / "classify", *options, model, *pictures) == infer(
            model, *options, *pictures
        )


def test_the_example_in_c(model: Path, pictures: list[Path], programs: Path) -> None:
    found = run(programs / "classify_c", model, *pictures).splitlines()
    images = json.loads(infer(model, "--json", *pictures))["images"]
    assert found == [f"{image['image']}: {line(image)}" for image in images]


def line(image: dict[str, Any]) -> str:
    """What `classify.c` prints for an image of `infer --json`."""
    if "values" in image:
        texts = [f"{v['name']} {v['value']:.4g} {v['unit']}".rstrip() for v in image["values"]]
        return ", ".join(texts)
    (label,) = image["labels"]
    pose = label.get("pose") or []
    shown = "".join(f" {p:.4f}" for p in pose[:4]) + (" ..." if len(pose) > 4 else "")
    return f"{label['label']}, length {label['score']:.4f}" + (f", pose{shown}" if pose else "")


def test_wrong_options_are_refused_alike(model: Path, pictures: list[Path], programs: Path) -> None:
    words = ["--threshold", "2", str(model), str(pictures[0])]
    done = subprocess.run([programs / "classify", *words], capture_output=True, check=False)
    assert done.returncode == 2
