"""Public functions that take files refuse anything else in words, with the call that leads there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the files are exported: pip install 'capsedge[export]'")

import torch

import capsedge
from capsedge.runtime.zoo import default_model
from tests.exporters.nets import network
from tests.exports import Exports
from tests.tables import table

NET = torch.nn.Linear(2, 2)
PIXELS = np.zeros((4, 10, 10), np.uint8)
STRANGE = {
    "a state dict": NET.state_dict(),
    "the class Linear": torch.nn.Linear,
    "a module": NET,
    "an array": PIXELS,
    "an ONNX model in memory": onnx.ModelProto(),
    "None": None,
    "a value of type dict": {},
    "a value of type int": 3,
    "a value of type list": ["model.onnx"],
}
CALLS: dict[str, Callable[[Any], object]] = {
    "load": capsedge.load,
    "inspect": capsedge.inspect,
    "optimize": capsedge.optimize,
    "quantize": lambda v: capsedge.quantize(v, calib_data=PIXELS),
    "cascade": lambda v: capsedge.cascade(v, default_model(), data=PIXELS),
    "build": lambda v: capsedge.build(v, "m.engine"),
    "verify": lambda v: capsedge.verify(NET, v),
    "profile": capsedge.profile,
    "load_checkpoint": capsedge.load_checkpoint,
    "import_checkpoint": capsedge.import_checkpoint,
    "where export writes": lambda v: capsedge.export(network("dynamic"), v),
}


@table(
    "call, kind",
    # Several files make an ensemble.
    [
        (c, k)
        for c in CALLS
        for k in STRANGE
        if k != "a value of type list" or c not in ("import_checkpoint", "load", "verify")
        if k != "None" or c != "where export writes"  # a dry run
    ],
)
def test_what_is_not_a_file_is_named(call: str, kind: str) -> None:
    with pytest.raises(capsedge.UsageError) as caught:
        CALLS[call](STRANGE[kind])
    assert caught.value.what.startswith(f"{kind[0].upper()}{kind[1:]} is not ")
    assert caught.value.fix


@pytest.mark.parametrize(
    ("call", "kind", "way"),
    [
        ("load", "a module", "capsedge.export(module, 'model.onnx', example=...)"),
        ("load", "an ONNX model in memory", "onnx.save(model, 'model.onnx')"),
        ("quantize", "an ONNX model in memory", "model.SerializeToString()"),
        ("quantize", "a state dict", "load_state_dict"),
        ("load", "an array", "capsedge.load('model.onnx').run(array)"),
        ("load_checkpoint", "a state dict", "torch.save"),
        ("profile", "a module", "capsedge.load('model.onnx')"),
    ],
)
def test_the_error_gives_the_way_there(call: str, kind: str, way: str) -> None:
    with pytest.raises(capsedge.UsageError) as caught:
        CALLS[call](STRANGE[kind])
    assert way in caught.value.fix


def test_the_reference_and_the_data_of_a_comparison(exported: Exports) -> None:
    model = exported(network("dynamic")).path
    with pytest.raises(capsedge.UsageError, match="A state dict is not the path of a file of wei"):
        capsedge.verify(NET.state_dict(), model)
    with pytest.raises(capsedge.UsageError, match=r"numpy\.savez"):
        capsedge.verify(network("dynamic"), model, data=PIXELS)  # type: ignore[arg-type]
    with pytest.raises(capsedge.UsageError, match=r"fails on inputs of \[1, 10, 10\]"):
        capsedge.verify(NET, model)
    with pytest.raises(capsedge.UsageError, match="takes images"):
        capsedge.profile(capsedge.load(model), inputs=PIXELS)  # type: ignore[arg-type]
