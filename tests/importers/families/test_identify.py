"""Files of no family, of several, of another than was said; layers whose code is not run; key maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.importers import key_map
from capsedge.importers.families import FAMILIES
from capsedge.importers.family import Family, Weights
from capsedge.importers.identify import UnknownNetwork, identify
from capsedge.importers.key_patterns import fit
from capsedge.importers.weights_file import read_weights
from tests.conftest import ROOT
from tests.importers.families import networks


def weights_of(module: torch.nn.Module) -> Weights:
    return Weights({k: v.detach().numpy() for k, v in module.state_dict().items()}, "PyTorch")


def test_names_are_one_each() -> None:
    assert len({f.name for f in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_family_says_all_that_a_user_needs(family: Family) -> None:
    assert family.source
    assert family.dialect
    assert family.iterations_at
    assert all(v.words for v in family.variants)
    assert family.variant in {"", *(v.name for v in family.variants)}


def test_letters_have_one_size_in_the_whole_file() -> None:
    patterns = {"a": "K K", "b.{D}": "K 3"}
    good = fit({"a": (2, 2), "b.0": (2, 3), "b.1": (2, 3)}, patterns)
    assert good.whole
    assert good.sizes == {"K": 2, "D": 2}
    assert fit({"a": (2, 3), "b.0": (2, 3)}, patterns).wrong == ["a is 2 x 3, not 2 x 2"]
    assert fit({"a": (2, 2), "b.0": (5, 3)}, patterns).wrong == ["b.0 is 5 x 3, not 2 x 3"]
    assert fit({"a": (2, 2)}, patterns).missing == ["b.{D}"]
    assert fit({"a": (2, 2), "b.0": (2, 3), "b.2": (2, 3)}, patterns).unknown == ["b.2"]


def test_an_optional_group_is_there_as_a_whole() -> None:
    group = {"x": "2", "y": "2"}
    assert fit({}, {}, (group,)).whole
    assert fit({"x": (2,), "y": (2,)}, {}, (group,)).whole
    assert fit({"x": (2,)}, {}, (group,)).missing == ["y"]


def test_an_unknown_file_is_described() -> None:
    tensors = dict(weights_of(networks.XifengGuo()).tensors)
    tensors["digitcaps.weight"] = tensors["digitcaps.weight"][0]
    with pytest.raises(UnknownNetwork, match="any known family") as caught:
        identify(Weights(tensors, "PyTorch"))
    assert any(
        "digitcaps.weight" in line and "144 x 6 x 8" in line for line in caught.value.details
    )
    nearest = next(line for line in caught.value.details if line.startswith("nearest: xifengguo"))
    assert "digitcaps.weight is 144 x 6 x 8, not J x I x O x D" in nearest
    assert "--module" in caught.value.fix


def test_weights_without_the_configuration_that_tells_the_network() -> None:
    """COVID-CAPS' pre-train.h5: its author saved the weights alone."""
    tensors = {
        "conv2d/kernel": np.zeros((3, 3, 3, 8), np.float32),
        "capsule/capsule_kernel": np.zeros((1, 8, 16), np.float32),
    }
    with pytest.raises(UnknownNetwork, match=r"family keras-capsule.*no configuration") as caught:
        identify(Weights(tensors, "Keras HDF5"))
    assert "pooling" in caught.value.why
    assert "model.save(" in caught.value.fix
    assert any("capsule_kernel" in line for line in caught.value.details)


def test_what_is_not_a_file_of_weights_is_named(tmp_path: Path) -> None:
    image, other = tmp_path / "x.png", tmp_path / "weights.xyz"
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    np.savez(tmp_path / "weights.npz", a=np.zeros(3))
    (tmp_path / "weights.npz").rename(other)
    with pytest.raises(UsageError, match=r"x\.png is an image, not weights"):
        read_weights(image)
    with pytest.raises(UsageError, match="Rename it"):
        read_weights(other)
    with pytest.raises(UsageError, match="no such file"):
        read_weights(tmp_path / "gone.xyz")


@pytest.mark.thorough
def test_a_long_list_is_cut() -> None:
    tensors = {f"layer{k}": np.zeros(1, np.float32) for k in range(5000)}
    with pytest.raises(UnknownNetwork) as caught:
        identify(Weights(tensors, "PyTorch"))
    assert len(caught.value.details) < 60
    assert any("4,960 more" in line for line in caught.value.details)


def test_the_family_that_was_named_does_not_fit() -> None:
    with pytest.raises(
        UsageError, match=r"(?s)not of the family gram-ai.*digit_capsules"
    ) as caught:
        identify(weights_of(networks.XifengGuo()), "gram-ai")
    assert "--map" in caught.value.fix


def test_a_family_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="xifengguo"):
        identify(weights_of(networks.XifengGuo()), "xifenguo")


def test_two_families_with_equal_keys_and_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    twin = replace(FAMILIES[0], name="twin", dialect="another function")
    monkeypatch.setattr("capsedge.importers.identify.FAMILIES", (*FAMILIES, twin))
    with pytest.raises(UsageError, match="another function") as caught:
        identify(weights_of(networks.XifengGuo()))
    assert "--family xifengguo|twin" in caught.value.fix
    assert identify(weights_of(networks.XifengGuo()), "twin").family is twin


def test_a_lambda_layer_that_the_family_does_not_know() -> None:
    from dataclasses import replace

    given = replace(weights_of(networks.XifengGuo()), lambdas=("scale",))
    with pytest.raises(UnsupportedModelError, match="Lambda layer, 'scale'"):
        identify(given)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".tar", ".chkpt", ".safetensors", ".npz"])
def test_every_wrapper_and_format(suffix: str, tmp_path: Path) -> None:
    module = networks.XifengGuo()
    state = module.state_dict()
    path = tmp_path / f"m{suffix}"
    if suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({k: v.contiguous() for k, v in state.items()}, path)
    elif suffix == ".npz":
        np.savez(path, **{k: v.numpy() for k, v in state.items()})
    else:
        wrapped = {f"module.{k}": v for k, v in state.items()}
        best = np.float64(0.5)
        torch.save({"epoch": 3, "best": best, "optimizer": {"state": {}}, "model": wrapped}, path)
    found = read_weights(path)
    assert identify(found).family.name == "xifengguo"
    for name, value in state.items():
        assert np.array_equal(found.tensors[name], value.numpy()), name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tensors = 3", "tensors"),
        ("[tensors]\n'nowhere' = 'x'", "does not have"),
        ("[tensors]\n'a' = 3", "names no key"),
        ("[tensors]\n'a' = ['x', {flip = [0]}]", "unknown step"),
        ("[tensors]\n'a' = ['x', {reshape = [5]}]", "cannot be transformed"),
        ("[tensors]\n'a' = ['x', {transpose = [0, 0]}]", "cannot be transformed"),
        ("[tensors]\n'a' = 'b'", "twice"),
        ("x = " + "[" * 3000, "not a key map"),
        ("\xff", "not a key map"),
    ],
)
def test_key_maps_that_are_wrong(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_bytes(text.encode("latin-1"))
    given = Weights({"a": np.zeros((2, 3), np.float32), "b": np.zeros(1, np.float32)}, "PyTorch")
    with pytest.raises(UsageError, match=says):
        key_map.apply(key_map.read_key_map(tmp_path / "keys.toml"), given)


def test_steps_of_a_key_map_are_taken_in_their_order() -> None:
    steps = [{"reshape": [3, 2]}, {"transpose": [1, 0]}, {"reshape": [6]}]
    keys = key_map.KeyMap({"a": ["x", *steps]}, ignore=("aux.*",))
    given = Weights(
        {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "aux.b": np.zeros(1, np.float32)}, ""
    )
    made = key_map.apply(keys, given)
    assert made.tensors.keys() == {"x"}
    assert made.tensors["x"].tolist() == [0, 2, 4, 1, 3, 5]


def test_the_page_lists_the_families() -> None:
    page = (ROOT / "docs" / "how-to" / "import.md").read_text()
    for family in FAMILIES:
        row = f"| `{family.name}` | {family.source} | {family.licence or 'not stated'} | {family.dialect} |"
        assert row in page
