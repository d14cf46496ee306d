"""Weights of networks written by others: wrappers, prefixes, what differs, and files that hold code."""

from __future__ import annotations

import argparse
import collections
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="weights are PyTorch's")

from safetensors.torch import save_file  # noqa: E402
from torch import nn  # noqa: E402

from capsedge.errors import ArtefactError, UsageError  # noqa: E402
from capsedge.models.user.weights import load_weights  # noqa: E402


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
        ([STATE, {"epoch": 7}], "[0]"),
        (({"epoch": 7}, {"model": STATE}, BESIDE), "[1]['model']"),
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


class Parts(nn.Module):
    """Two parts with attributes of their own; the second is wrapped in the code."""

    def __init__(self, norm: Any = lambda layer: layer) -> None:
        super().__init__()
        self.encoder = nn.Sequential(norm(nn.Linear(3, 4)), nn.BatchNorm1d(4))
        self.decoder = nn.Linear(4, 2)


def parts(norm: Any = lambda layer: layer) -> Parts:
    torch.manual_seed(3)
    module = Parts(norm)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            tensor.add_(1)
    return module


def named(change: Any) -> dict[str, Any]:
    return {change(k): v for k, v in parts().state_dict().items()}


def part(name: str, prefix: str = "") -> dict[str, Any]:
    return {prefix + k: v for k, v in getattr(parts(), name).state_dict().items()}


WRAPPED = {
    "an inner wrapper behind a prefix": {
        "state_dict": named(lambda k: "model." + k.replace("encoder.", "encoder.module.")),
        "pytorch-lightning_version": "2.6.0",
    },
    "both wrappers, and a prefix": named(
        lambda k: "model._orig_mod." + k.replace("encoder.", "encoder.module.")
    ),
    "a prefix of another tool": named(lambda k: f"network.backbone.{k}"),
    "a part for each attribute": {
        "epoch": 5,
        "encoder": part("encoder"),
        "decoder": part("decoder"),
        "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}},
    },
    "parts that were wrapped": {
        "encoder": part("encoder", "module."),
        "decoder": part("decoder", "_orig_mod."),
    },
    "parts under a name of a state dict": {
        "encoder_state_dict": part("encoder"),
        "decoder_state_dict": part("decoder"),
    },
    "parts inside a wrapper": {
        "model": {"encoder": part("encoder"), "decoder": part("decoder")},
        "config": {"lr": 1e-3},
    },
    "an averaged model": {"n_averaged": torch.tensor(3), **named(lambda k: f"module.{k}")},
}


@pytest.mark.thorough
def test_every_way_to_save_a_network_is_read(tmp_path: Path) -> None:
    wanted = parts().state_dict()
    for name, content in WRAPPED.items():
        torch.save(content, tmp_path / "w.pt")
        module = Parts()
        load_weights(module, tmp_path / "w.pt")
        for key, tensor in module.state_dict().items():
            assert torch.equal(tensor, wanted[key]), (name, key)


def test_a_wrapper_in_the_code_is_not_needed_in_the_file(tmp_path: Path) -> None:
    torch.save(named(lambda k: k), tmp_path / "w.pt")
    module = Parts()
    module.encoder = nn.DataParallel(module.encoder)
    holder = nn.ModuleDict({"net": module})
    load_weights(holder, tmp_path / "w.pt")
    assert torch.equal(module.decoder.weight, parts().decoder.weight)
    assert torch.equal(module.encoder.module[0].weight, parts().encoder[0].weight)


OLD_NORMS = [torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm]
NEW_NORMS = [
    torch.nn.utils.parametrizations.weight_norm,
    torch.nn.utils.parametrizations.spectral_norm,
]


@pytest.mark.sample(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_both_spellings_of_a_norm(kind: int, prefix: str, tmp_path: Path) -> None:
    x = torch.rand(5, 3)
    for saved in (OLD_NORMS[kind], NEW_NORMS[kind]):
        trained = parts(saved).eval()
        trained.encoder(x)
        torch.save({prefix + k: v for k, v in trained.state_dict().items()}, tmp_path / "w.pt")
        for built in (OLD_NORMS[kind], NEW_NORMS[kind]):
            module = Parts(built).eval()
            load_weights(module, tmp_path / "w.pt")
            torch.testing.assert_close(module.encoder(x), trained.encoder(x))


def test_a_tensor_beside_the_network_is_left_out_and_said(tmp_path: Path) -> None:
    metric = {"valid_acc.confmat": torch.zeros(4, 4)}
    torch.save({**named(lambda k: f"model.{k}"), **metric}, tmp_path / "w.pt")
    loaded = load_weights(Parts(), tmp_path / "w.pt")
    assert loaded.notes == ("not part of the module, and left out: valid_acc.confmat",)
    torch.save({**named(lambda k: k), **metric}, tmp_path / "w.pt")
    with pytest.raises(UsageError) as caught:
        load_weights(Parts(), tmp_path / "w.pt")
    assert caught.value.details == ("unexpected: valid_acc.confmat [4, 4]",)


def test_two_networks_under_two_prefixes_are_not_chosen_from(tmp_path: Path) -> None:
    both = {**named(lambda k: f"student.{k}"), **named(lambda k: f"teacher.{k}")}
    torch.save({"state_dict": both}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match="fit the module in 2 ways") as caught:
        load_weights(Parts(), tmp_path / "w.pt")
    assert "'student.', 'teacher.'" in caught.value.why


NOT_FINITE = {
    "0.weight": (torch.nan, (2, 1), "0.weight [4, 3]: 1 of 12, the first is nan at [2, 1]"),
    "0.bias": (torch.inf, (3,), "0.bias [4]: 1 of 4, the first is inf at [3]"),
    "1.running_var": (torch.inf, (0,), "1.running_var [4]: 1 of 4, the first is inf at [0]"),
}


@pytest.mark.parametrize("name", NOT_FINITE)
def test_weights_that_are_not_finite_are_named(name: str, tmp_path: Path) -> None:
    value, place, line = NOT_FINITE[name]
    state = {k: v.clone() for k, v in STATE.items()}
    state[name][place] = value
    torch.save(state, tmp_path / "w.pt")
    module = network()
    with pytest.raises(ArtefactError, match="are not finite") as caught:
        load_weights(module, tmp_path / "w.pt")
    assert caught.value.details == (line,)
    assert torch.equal(module[0].weight, network()[0].weight)


def test_a_mask_may_be_infinite_but_not_nan(tmp_path: Path) -> None:
    def masked(value: float) -> nn.Module:
        module = network()
        module.register_buffer("mask", torch.full((3, 3), value).triu(1))
        module.frozen = nn.Parameter(torch.full((2,), -torch.inf), requires_grad=False)
        return module

    torch.save(masked(-torch.inf).state_dict(), tmp_path / "w.pt")
    module = masked(1.0)
    load_weights(module, tmp_path / "w.pt")
    assert module.get_buffer("mask")[0, 1] == -torch.inf
    torch.save(masked(torch.nan).state_dict(), tmp_path / "w.pt")
    with pytest.raises(ArtefactError, match="are not finite"):
        load_weights(module, tmp_path / "w.pt")


# --- An average of the parameters as a list, as torch-ema and diffusers save it ---


def plain() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, bias=False))


def average(module: nn.Module) -> dict[str, Any]:
    shadow = [p.detach() + 1 for p in module.parameters()]
    return {"decay": 0.9, "num_updates": 3, "shadow_params": shadow, "collected_params": None}


@pytest.mark.parametrize("around", ["", "ema"])
def test_a_list_of_parameters_is_taken_in_order(around: str, tmp_path: Path) -> None:
    module, state = plain(), average(plain())
    statistics = {"mean": torch.zeros(3)} if around else None
    torch.save({around: state, "pixels": statistics} if around else state, tmp_path / "w.pt")
    loaded = load_weights(module, tmp_path / "w.pt")
    assert loaded.location == ("['ema']" if around else "") + "['shadow_params']"
    assert "no names" in loaded.notes[0]
    assert all(map(torch.equal, module.parameters(), state["shadow_params"]))


def test_parameters_that_are_shared_are_counted_once(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    module[1].weight = module[0].weight
    torch.save(average(module), tmp_path / "w.pt")
    wanted = module[0].weight.detach() + 1
    load_weights(module, tmp_path / "w.pt")
    assert torch.equal(module[1].weight, wanted)


def test_named_weights_come_before_a_list(tmp_path: Path) -> None:
    module = network()
    torch.save({"model": STATE, "ema": average(network())}, tmp_path / "w.pt")
    loaded = load_weights(module, tmp_path / "w.pt")
    assert torch.equal(module[0].weight, STATE["0.weight"])
    assert loaded.notes == (
        "['ema']['shadow_params'], a list in the module's order, fits its parameters as well",
    )


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (network(), r"lacks 1\.running_mean, 1\.running_var"),
        (network(5), r"number 0 is \[4, 3\], the module's 0\.weight \[5, 3\]"),
        (plain(), "It has 4 tensors, the module 3 parameters"),
    ],
)
def test_a_list_that_is_not_enough_is_named(module: nn.Module, reason: str, tmp_path: Path) -> None:
    torch.save({"ema": average(network())}, tmp_path / "w.pt")
    with pytest.raises(UsageError, match=r"\['ema'\]\['shadow_params'\]") as caught:
        load_weights(module, tmp_path / "w.pt")
    assert re.search(reason, caught.value.why)
    assert "ema.copy_to(model.parameters())" in caught.value.fix
