"""`import` reads the layouts that `export --weights` reads: prefixes, parts, wrappers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.importers.identify import identify, readable
from capsedge.importers.weights_file import read_weights
from tests.importers.families.matrix_and_attention import Efficient
from tests.importers.importing import import_with

torch.manual_seed(4)
STATE: dict[str, Tensor] = Efficient().state_dict()
FIRST = sorted({name.split(".")[0] for name in STATE})
PARTS = {
    first: {k.removeprefix(f"{first}."): v for k, v in STATE.items() if k.split(".")[0] == first}
    for first in FIRST
}
LARGER = {f"x{k}": torch.zeros(2) for k in range(3 * len(STATE))}


def prefixed(prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in STATE.items()}


LAYOUTS: dict[str, Any] = {
    "as it is": STATE,
    "a prefix": {"state_dict": prefixed("model.")},
    "two prefixes and a wrapper": prefixed("net.module.capsules."),
    "a metric beside a prefix": {**prefixed("model."), "metric.total": torch.zeros(1)},
    "a counter beside a prefix": {**prefixed("model."), "model.total_ops": torch.zeros(1)},
    "one dictionary for each part": PARTS,
    "the same with suffixes": {f"{k}_state_dict": v for k, v in PARTS.items()},
    "below a name that nobody else uses": {"best": {"weights": STATE}, "counts": LARGER},
    "an average beside it": {"model": STATE, "ema": {"shadow_params": list(STATE.values())}},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_family_is_found(layout: str, tmp_path: Path) -> None:
    torch.save(LAYOUTS[layout], tmp_path / "w.pt")
    weights = readable(read_weights(tmp_path / "w.pt"))
    assert identify(weights).family.name == "akhdanfadh"
    wanted = {k for k in STATE if "tracked" not in k}
    assert weights.tensors.keys() == wanted
    assert all((weights.tensors[k] == STATE[k].numpy()).all() for k in wanted)


def test_prefixes_in_safetensors(tmp_path: Path) -> None:
    save_file(prefixed("_orig_mod.model."), tmp_path / "w.safetensors")
    weights = readable(read_weights(tmp_path / "w.safetensors"))
    assert identify(weights).family.name == "akhdanfadh"
    assert weights.notes == ("'model.' is removed from all names",)


def test_the_report_says_what_was_removed(tmp_path: Path) -> None:
    torch.save(LAYOUTS["a metric beside a prefix"], tmp_path / "w.pt")
    report = import_with(tmp_path / "w.pt")
    assert "'model.' is removed from all names" in report.origin.notes
    assert "not part of the network, and left out: metric.total" in report.origin.notes


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (lambda: prefixed("student.") | prefixed("teacher."), UnsupportedModelError, "student."),
        (lambda: {"shadow_params": list(STATE.values())}, UsageError, "a list without names"),
    ],
)
def test_what_cannot_be_told_is_refused(
    content: Callable[[], Any], kind: type[Exception], words: str, tmp_path: Path
) -> None:
    torch.save(content(), tmp_path / "w.pt")
    with pytest.raises(kind, match=words):
        identify(readable(read_weights(tmp_path / "w.pt")))
