"""Checkpoints: round trip, and files that must stay harmless."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch

from capsedge.checkpoint import load_checkpoint, save_checkpoint
from capsedge.errors import ArtefactError, UsageError
from capsedge.models import build


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
    with pytest.raises(UsageError, match="suffix"):
        load_checkpoint(other)


def test_metadata_is_strings(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = tmp_path / "m.safetensors"
    save_checkpoint(build("digits-em"), path)
    with safe_open(path, framework="pt") as f:
        config = json.loads(f.metadata()["capsedge.config"])
    assert config["architecture"] == "matrix-capsules"
