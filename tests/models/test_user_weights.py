"""Weights of networks written by others: wrappers, prefixes, what differs, and files that hold code."""

from __future__ import annotations

import argparse
import collections
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="weights are PyTorch's")

from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

from capsedge.errors import ArtefactError, UsageError  # noqa: E402
from capsedge.models.user_weights import load_weights  # noqa: E402


def network(width: int = 4) -> nn.Sequential:
    torch.manual_seed(width)
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))


TRAINED = network()
STATE = {k: v + 1 for k, v in TRAINED.state_dict().items()}
_OPTIMIZER = torch.optim.Adam(TRAINED.parameters())
TRAINED(torch.rand(5, 3)).sum().backward()
_OPTIMIZER.step()
BESIDE = {
    "optimizer": _OPTIMIZER.state_dict(),
    "accuracy": np.float64(0.5),
    "history": np.arange(3.0),
    "args": argparse.Namespace(lr=1e-3, sizes=[1, 2]),
    "counts": collections.defaultdict(list),
    "epoch": 7,
    "name": "caps",
}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (STATE, ""),
        ({"state_dict": STATE, **BESIDE}, "['state_dict']"),
        ({"model": STATE, **BESIDE}, "['model']"),
        ({"model_state_dict": STATE, **BESIDE}, "['model_state_dict']"),
        ({"net": STATE}, "['net']"),
        ({"best_states": STATE, "loss": np.float32(1)}, "['best_states']"),
        ({"run": {"generator": STATE}, **BESIDE}, "['run']['generator']"),
        ({f"module.{k}": v for k, v in STATE.items()}, ""),
        ({"state_dict": {f"model.net.{k}": v for k, v in STATE.items()}}, "['state_dict']"),
        ({k.replace(".", ".module.", 1): v for k, v in STATE.items()}, ""),
        ({**STATE, "0.total_ops": torch.zeros(1)}, ""),
        ({k: v for k, v in STATE.items() if "tracked" not in k}, ""),
        ({k: v.half() if v.is_floating_point() else v for k, v in STATE.items()}, ""),
    ],
)
@pytest.mark.parametrize("suffix", [".pth", ".chkpt"])
def test_unwrapped(content: Any, place: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    torch.save(content, path)
    module = network()
    assert load_weights(module, path).location == place
    torch.testing.assert_close(module[0].weight.detach(), STATE["0.weight"], atol=1e-3, rtol=0)
    assert module[0].weight.dtype == torch.float32


def test_safetensors(tmp_path: Path) -> None:
    save_file({f"module.{k}": v for k, v in STATE.items()}, tmp_path / "w.safetensors")
    module = network()
    load_weights(module, tmp_path / "w.safetensors")
    assert torch.equal(module[1].weight, STATE["1.weight"])


def test_two_that_fit_are_said(tmp_path: Path) -> None:
    torch.save({"ema": TRAINED.state_dict(), "model": STATE}, tmp_path / "w.pt")
    loaded = load_weights(network(), tmp_path / "w.pt")
    assert loaded.location == "['model']"
    assert loaded.notes == ("['ema'] would fit as well",)


def test_what_differs_is_named(tmp_path: Path) -> None:
    renamed = {k.replace("0.", "linear."): v for k, v in STATE.items()}
    torch.save(renamed, tmp_path / "w.pt")
    with pytest.raises(UsageError, match="do not fit the module") as caught:
        load_weights(network(), tmp_path / "w.pt")
    assert "missing: 0.weight [4, 3] (perhaps linear.weight [4, 3])" in caught.value.details
    assert "unexpected: linear.bias [4]" in caught.value.details
    torch.save(STATE, tmp_path / "w.pt")
    before = network(5)
    with pytest.raises(UsageError, match=r"of another shape: 0\.weight is") as caught:
        load_weights(before, tmp_path / "w.pt")
    assert "--args" in caught.value.fix
    assert torch.equal(before[0].weight, network(5)[0].weight)  # nothing was loaded


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/capsedge-trap",)


@pytest.mark.parametrize("content", [{"state_dict": STATE, "x": _Trap()}, network(), [1, 2]])
def test_code_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ArtefactError):
        load_weights(network(), tmp_path / "w.pt")
    assert not os.path.exists("/tmp/capsedge-trap")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x02}q\x00.", b"\x93NUMPY"])
@pytest.mark.parametrize("suffix", [".pt", ".tar", ".safetensors"])
def test_damaged(data: bytes, suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"w{suffix}").write_bytes(data)
    with pytest.raises(ArtefactError):
        load_weights(network(), tmp_path / f"w{suffix}")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        load_weights(network(), tmp_path / "w.pt")
    with pytest.raises(UsageError, match="suffix"):
        load_weights(network(), tmp_path / "w.txt")


def test_many_keys_and_many_references_take_no_time(tmp_path: Path) -> None:
    one = torch.zeros(1)
    inner: dict[str, Any] = {f"{k}.{k}.{k}.x": one for k in range(8000)}
    for _ in range(3):
        inner = {f"k{k}": inner for k in range(900)}
    torch.save(inner, tmp_path / "w.pt")
    with pytest.raises(UsageError, match="do not fit the module"):
        load_weights(network(), tmp_path / "w.pt")
