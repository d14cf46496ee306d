"""Families of Keras in the files of Keras 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

pytest.importorskip("h5py")

from tests.importers.families import fsanet, keras_efficient, keras_networks, keras_three
from tests.importers.importing import import_with

SUFFIXES = (".weights.h5", ".keras")


def scores(file: Path, x: NDArray[Any], **answers: Any) -> tuple[str, NDArray[Any]]:
    """Family, and scores of images ``[N, H, W, C]``."""
    report = import_with(file, **answers)
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2), np.float32))
    with torch.no_grad():
        return report.origin.family, report.model(images).scores.numpy()


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("named", [True, False])
def test_capsnet_keras(named: bool, suffix: str, tmp_path: Path) -> None:
    weights = keras_networks.capsnet_weights(np.random.default_rng(5), first=0)
    own = {name: list(w.values()) for name, w in weights.items()}
    decoder = own.pop("decoder")
    places = dict(zip(own, ("conv2d", "conv2d_1", "capsule_layer"), strict=True))
    layers = {places[name]: (name, values) for name, values in own.items()}
    layers |= {
        f"sequential/dense{f'_{k}' if k else ''}": (f"dense_{k + 4}", decoder[2 * k : 2 * k + 2])
        for k in range(3)
    }
    layers["sequential"] = ("decoder", [])
    file = keras_three.write(tmp_path / f"m{suffix}", layers, named)
    x = np.random.default_rng(8).random((4, 28, 28, 1))
    family, found = scores(file, x, iterations=3)
    assert family == "xifengguo-keras"
    assert np.abs(found - keras_networks.capsnet(x, weights)[0]).max() <= 1e-5


@pytest.mark.parametrize("named", [True, False])
def test_the_capsule_layer_of_the_examples(named: bool, tmp_path: Path) -> None:
    weights = keras_networks.example_weights(np.random.default_rng(5))
    kinds = ("conv2d", "batch_normalization", "conv2d_1", "capsule", "capsule_1")
    layers = {
        kind: (name, list(w.values()))
        for kind, (name, w) in zip(kinds, weights.items(), strict=True)
    }
    config = keras_networks.example_config()
    file = keras_three.write(tmp_path / "m.keras", layers, named, config)
    x = np.random.default_rng(6).random((6, 12, 12, 2))
    prep = {"height": 12, "width": 12, "scale": 1 / 255}
    family, found = scores(file, x, variant="replaced", preprocessing=prep)
    assert family == "keras-capsule"
    wanted = keras_networks.example(x, weights)
    assert np.abs(found - wanted).max() <= 1e-5 * wanted.max()


def test_efficient_capsnet(tmp_path: Path) -> None:
    weights = keras_efficient.weights("escvm")
    layers: dict[str, tuple[str, list[NDArray[Any]]]] = {}
    for name, value in weights.items():
        model, layer, _ = name.split("/")
        first = model != "Generator"
        place = f"functional/{layer}" if first else f"sequential/{layer}"
        if layer == f"conv2d_{keras_efficient.START + 4}":
            place = "functional/primary_caps/DW_Conv2D"
        layers.setdefault(place, (layer, []))[1].append(value)
        layers["functional" if first else "sequential"] = (model, [])
    file = keras_three.write(tmp_path / "m.weights.h5", layers)
    x = np.random.default_rng(8).random((2, 28, 28, 1)).astype(np.float32)
    family, found = scores(file, x)
    assert family == "escvm"
    _, lengths = keras_efficient.forward(weights, x)
    assert np.abs(found - lengths).max() <= 1e-5 * lengths.max()


LAYERS = {"caps": "capsule_layer"} | {
    f"{name}{k}": f"dense_{10 * at + k}"
    for at, name in enumerate(("delta_s", "local_delta_stage"), 1)
    for k in (1, 2, 3)
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("scoring", ["convolution", "none"])
def test_fsanet(scoring: str, tmp_path: Path) -> None:
    torch.manual_seed(13)
    weights = fsanet.keras_weights(scoring)
    models = ("ssr_G_model", "ssr_S_model", "ssr_Cap_model", "ssr_F_Cap_model")
    layers: dict[str, tuple[str, list[NDArray[Any]]]] = {}
    for name, value in weights.items():
        model, layer, _ = name.split("/")
        at = models.index(model)
        place = f"functional_{at}" if at else "functional"
        layers[place] = (model, [])
        if layer in ("conv2d_7", "dense_1") and model == "ssr_S_model":
            place = f"{place}/functional"  # the model within it, which scores the places of a map
            layers[place] = ("feat_S_model", [])
        kind = LAYERS.get(layer, layer)
        layers.setdefault(f"{place}/{kind}", (layer, []))[1].append(value.numpy())
    file = keras_three.write(tmp_path / "m.keras", layers)
    x = np.random.default_rng(8).random((2, 64, 64, 3))
    family, found = scores(file, x)
    assert family == "fsanet-keras" + ("-no-mapping" if scoring == "none" else "")
    with torch.no_grad():
        images = torch.from_numpy(x.astype(np.float32))
        wanted = fsanet.keras_fsanet(images, weights, scoring).numpy()
    assert np.abs(found - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_weights_of_other_layers_keep_their_numbers(tmp_path: Path) -> None:
    """A normalization without scale has three weights, which could be any three of four."""
    from capsedge.importers.weights_file import read_weights

    ones = [np.ones(4)]
    layers = {
        "batch_normalization": ("norm", 3 * ones),
        "conv2d": ("conv", ones),
        "conv2d_1": ("strange", 3 * ones),
        "digits": ("digits", ones),
    }
    found = read_weights(keras_three.write(tmp_path / "m.weights.h5", layers))
    assert sorted(found.tensors) == [
        "conv/kernel", "digits/0", "norm/0", "norm/1", "norm/2", "strange/0", "strange/1", "strange/2",
    ]  # fmt: skip
