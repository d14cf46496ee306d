"""Checkpoints: round trip, and files that must stay harmless."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from capsedge.errors import ArtefactError, UsageError
from capsedge.models import build
from capsedge.models.checkpoint import (
    _shapes,
    load_checkpoint,
    load_safetensors,
    save_checkpoint,
)
from capsedge.models.configs import config_from_dict
from capsedge.models.registry import MODELS
from capsedge.spec import limits
from tests.fuzz import hostile


def test_round_trip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("digits-em", iterations=2).eval()
    path = tmp_path / "m.safetensors"
    save_checkpoint(model, path, {"note": "x"})
    again = load_checkpoint(path)
    assert again.config == model.config
    x = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(model(x).scores, again(x).scores)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_torch_file_with_weights_only(tmp_path: Path) -> None:
    model = build("digits-em").eval()
    path = tmp_path / "m.pt"
    torch.save({"config": model.config.to_dict(), "state_dict": model.state_dict()}, path)
    assert load_checkpoint(path).config == model.config


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch trapped",)


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_pickle_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.pt"
    if writer == "torch":
        torch.save({"config": {}, "state_dict": _Trap()}, path)
    else:
        path.write_bytes(pickle.dumps(_Trap()))
    with pytest.raises(ArtefactError, match="pickle"):
        load_checkpoint(path)
    assert not (tmp_path / "trapped").exists()


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = tmp_path / "m.safetensors"
    save_checkpoint(build("digits-em"), whole)
    data = whole.read_bytes()
    for name, content in {
        "empty.safetensors": b"",
        "cut.safetensors": data[: len(data) // 2],
        "huge_header.safetensors": (2**62).to_bytes(8, "little") + data[8:],
        "empty.pt": b"",
        "noise.pt": b"PK\x03\x04" + bytes(100),
    }.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(ArtefactError):
            load_checkpoint(path)


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    model = build("digits-em")
    path = tmp_path / "m.pt"
    config = build("digits-dynamic").config.to_dict()
    torch.save({"config": config, "state_dict": model.state_dict()}, path)
    with pytest.raises(ArtefactError, match="does not fit"):
        load_checkpoint(path)
    torch.save({"config": {"architecture": "x"}, "state_dict": {}}, path)
    with pytest.raises(ArtefactError, match="Unknown architecture"):
        load_checkpoint(path)
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ArtefactError, match="no configuration"):
        load_checkpoint(path)


def test_no_configuration_in_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "m.safetensors"
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ArtefactError, match="no configuration"):
        load_checkpoint(path)


def test_missing_and_misnamed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_checkpoint(tmp_path / "absent.safetensors")
    other = tmp_path / "m.onnx"
    other.write_bytes(b"x")
    with pytest.raises(ArtefactError, match="is not a checkpoint: it is a text file"):
        load_checkpoint(other)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "m\udcff.safetensors"
    save_checkpoint(build("digits-em"), path)
    assert load_checkpoint(path).state_dict()
    plain = shutil.copy(path, tmp_path / "m.safetensors")
    assert load_safetensors(path).keys() == load_file(plain).keys()


def test_metadata_is_strings(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "m.safetensors"
    save_checkpoint(build("digits-em"), path)
    with safe_open(path, framework="pt") as f:
        config = json.loads(f.metadata()["capsedge.config"])
    assert config["architecture"] == "matrix-capsules"


@pytest.mark.sample(1)
@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_impossible_configurations(ending: str, tmp_path: Path) -> None:
    """Refused by what they say, or by the tensors that the file does not have: no such model is built."""
    path = tmp_path / f"m.{ending}"
    files = hostile.safetensors() if ending == "safetensors" else hostile.torch()
    for name in list(hostile.CONFIGS)[:: 1 if ending == "safetensors" else 6]:
        path.write_bytes(files[name])
        with pytest.raises(ArtefactError, match=r"does not (describe a model|fit its own)"):
            load_checkpoint(path)


_LARGE = ("digits-dynamic", "digits-em", "digits-attention", "capsnet-mnist")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", _LARGE)
def test_the_work_of_one_image_is_bounded(name: str) -> None:
    """Whichever fields it follows from; nothing is allocated to find out."""
    declared = json.loads(json.dumps(MODELS[name].to_dict()))
    _shapes(config_from_dict(declared))
    refused = []
    sizes = {**declared["preprocessing"], "height": 6000, "width": 6000}
    for changes in (
        {"preprocessing": sizes},
        {"stem": [{"channels": 65_536, "kernel": 3, "stride": 1, "padding": 1}] * 2},
        {"stem": [{"channels": 4, "kernel": 1, "stride": 1}] * 512, "iterations": 100},
    ):
        try:
            _shapes(config_from_dict(declared | changes))
        except UsageError as error:
            refused.append(str(error))
    assert "too large for one image" in refused[0], refused
    assert len(refused) >= 2, refused


def test_long_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, said in (
        ("MODEL_STEPS", "operators"), ("MODEL_OPERATIONS", "operations"), ("MODEL_SUM", "values;"),
        ("MODEL_VALUES", "values in one layer"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(limits, limit, 10)
            with pytest.raises(UsageError, match=said):
                _shapes(MODELS["digits-em"])


def test_tensors_of_other_shapes_are_named(tmp_path: Path) -> None:
    model = build("digits-em")
    state = {k: v[:1] if k == "classes.beta_u" else v for k, v in model.state_dict().items()}
    torch.save({"config": model.config.to_dict(), "state_dict": state}, tmp_path / "m.pt")
    with pytest.raises(ArtefactError, match=r"'classes.beta_u' should be \[10\]; it is \[1\]"):
        load_checkpoint(tmp_path / "m.pt")


def test_torch_files_of_many_kinds(tmp_path: Path) -> None:
    """Shared storages, views, half precision, parameters and buffers: what a state dict may hold."""
    model = build("digits-em", iterations=2).eval()
    state = dict(model.state_dict())
    flat = torch.cat([state["classes.beta_u"], state["classes.beta_a"]])
    state["classes.beta_u"], state["classes.beta_a"] = flat[:10], torch.nn.Parameter(flat[10:])
    name = next(k for k, v in state.items() if v.ndim == 4)
    state[name] = state[name].contiguous(memory_format=torch.channels_last)
    torch.save({"config": model.config.to_dict(), "state_dict": state}, tmp_path / "m.pt")
    again = load_checkpoint(tmp_path / "m.pt")
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    torch.save(
        {"config": model.config.to_dict(), "state_dict": model.half().state_dict()},
        tmp_path / "h.pt",
    )
    assert load_checkpoint(tmp_path / "h.pt").state_dict()[name].dtype == torch.float32


@pytest.mark.parametrize("ending", ["safetensors", "pt"])
def test_weights_that_are_not_finite_are_named(ending: str, tmp_path: Path) -> None:
    model = build("digits-dynamic")
    name = next(k for k, v in model.named_parameters() if v.dim() == 1)
    dict(model.named_parameters())[name].data[1:3] = torch.tensor([torch.inf, torch.nan])
    path = tmp_path / f"m.{ending}"
    if ending == "pt":
        torch.save({"config": model.config.to_dict(), "state_dict": model.state_dict()}, path)
    else:
        save_checkpoint(model, path)
    with pytest.raises(ArtefactError, match=r"are not finite") as caught:
        load_checkpoint(path)
    (line,) = caught.value.details
    assert line.startswith(f"{name} [")
    assert ": 2 of " in line
    assert line.endswith("the first is inf at [1]")
