"""Families of Keras: against the same networks in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import capsedge
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.importers.import_checkpoint import ImportReport

pytest.importorskip("h5py")

from tests.importers.families import keras_networks as k
from tests.importers.importing import import_with

VARIANTS = {
    "replaced": (True, 1.0), "replaced-half": (True, 0.5), "added": (False, 1.0), "added-half": (False, 0.5),
}  # fmt: skip


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def example_images() -> NDArray[Any]:
    """Some so dark that the epsilon of the squash matters."""
    x = np.random.default_rng(6).random((6, 12, 12, 2))
    x[3:] *= np.array([0.1, 0.01, 0.0]).reshape(3, 1, 1, 1)
    return x


def scores(report: ImportReport, x: NDArray[Any]) -> NDArray[Any]:
    with torch.no_grad():
        channels_first = torch.from_numpy(x.astype(np.float32).transpose(0, 3, 1, 2).copy())
        return np.asarray(report.model(channels_first).scores)


IMAGES = {"height": 12, "width": 12, "scale": 1 / 255}


def imported(path: Path, **answers: Any) -> ImportReport:
    return import_with(path, **{"preprocessing": IMAGES, **answers})


@pytest.mark.sample(2)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_capsule_layer_of_the_examples(variant: str, shared: bool, tmp_path: Path) -> None:
    weights = k.example_weights(rng(), shared)
    file = k.write(tmp_path / "m.h5", weights, k.example_config(shared))
    report = imported(file, variant=variant)
    assert report.origin.family == "keras-capsule"
    wanted = k.example(example_images(), weights, *VARIANTS[variant])
    assert np.abs(scores(report, example_images()) - wanted).max() <= 1e-5 * wanted.max()


@pytest.mark.thorough
def test_all_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    config = k.example_config()
    config["config"]["layers"][0]["config"]["batch_input_shape"][1:3] = [None, None]
    file = k.write(tmp_path / "m.h5", k.example_weights(rng()), config)
    asked = ("--size", "--variant replaced|", "--range")
    with pytest.raises(UsageError, match="3 questions") as caught:
        imported(file, variant=None, preprocessing=None)
    assert len(caught.value.details) == 3
    for option in asked:
        assert option in caught.value.command
        assert option in caught.value.fix
    with pytest.raises(UsageError, match="2 questions") as caught:
        imported(file, variant="added", preprocessing=None)
    assert "--variant" not in caught.value.command
    size = {"height": 20, "width": 20}
    with pytest.raises(UsageError, match="Which pixel values"):  # one is asked as it was
        imported(file, variant="added", preprocessing=size)
    assert imported(file, variant="added", preprocessing={**size, "scale": 1.0}).parameters


@pytest.mark.thorough
def test_variants_are_told_apart_and_asked_for(tmp_path: Path) -> None:
    weights = k.example_weights(rng())
    file = k.write(tmp_path / "m.h5", weights, k.example_config())
    with pytest.raises(UsageError, match="Which variant of keras-capsule"):
        imported(file)
    with pytest.raises(UsageError, match="--size"):
        imported(file, variant="added", preprocessing=None)
    found = [scores(imported(file, variant=v), example_images()) for v in VARIANTS]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert np.abs(one - other).max() > 1e-3 * np.abs(one).max()


@pytest.mark.thorough
def test_the_wrong_variant_is_named_by_data(tmp_path: Path) -> None:
    weights = k.example_weights(rng())
    file = k.write(tmp_path / "m.h5", weights, k.example_config())
    x = np.random.default_rng(7).random((300, 12, 12, 2))
    labels = k.example(x, weights).argmax(1)
    images = x.astype(np.float32).transpose(0, 3, 1, 2)
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    report = imported(file, variant="replaced", data=tmp_path / "data.npz")
    assert report.measured is not None
    assert report.measured.accuracy == 1.0
    assert not report.measured.better


@pytest.mark.thorough
def test_unknown_layers_are_refused_by_name(tmp_path: Path) -> None:
    weights = k.example_weights(rng())
    strange = [k.layer("LeakyReLU", "leaky", "conv_b")]
    file = k.write(tmp_path / "m.h5", weights, k.example_config(more=strange))
    with pytest.raises(UnsupportedModelError, match=r"'leaky'.*LeakyReLU"):
        imported(file, variant="replaced")
    code = [k.layer("Lambda", "inner", "conv_b", function=["code", None, None])]
    file = k.write(tmp_path / "n.h5", weights, k.example_config(more=code))
    with pytest.raises(UnsupportedModelError, match="'inner'"):
        imported(file, variant="replaced")


def test_weights_that_do_not_fit_their_configuration(tmp_path: Path) -> None:
    weights = k.example_weights(rng())
    weights["caps1"]["caps1/capsule_kernel"] = np.ones((1, 4, 14))
    file = k.write(tmp_path / "m.h5", weights, k.example_config())
    with pytest.raises(capsedge.errors.CapsedgeError):
        imported(file, variant="replaced")


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", [0, 1, 7])
def test_capsnet_keras(first: int, tmp_path: Path) -> None:
    """Its decoder's layers are counted from wherever the session began."""
    weights = k.capsnet_weights(rng(), first)
    report = capsedge.import_checkpoint(k.write(tmp_path / "m.h5", weights), iterations=3)
    assert report.origin.family == "xifengguo-keras"
    x = np.random.default_rng(8).random((4, 28, 28, 1))
    lengths, pictures = k.capsnet(x, weights)
    assert np.abs(scores(report, x) - lengths).max() <= 1e-5
    with torch.no_grad():
        images = torch.from_numpy(x.astype(np.float32).transpose(0, 3, 1, 2).copy())
        found = report.model.reconstruct(report.model(images).poses).numpy()
    assert np.abs(found.transpose(0, 1, 3, 4, 2) - pictures).max() <= 1e-5
    other = capsedge.import_checkpoint(tmp_path / "m.h5", iterations=2)
    assert np.abs(scores(other, x) - lengths).max() > 1e-4
