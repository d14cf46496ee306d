"""A model of a repository as Triton's ONNX Runtime backend opens it, without capsedge."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tests.deploy.schema import config

# ONNX Runtime's and numpy's names for Triton's types.
TYPES = {
    "TYPE_FP32": ("tensor(float)", np.float32), "TYPE_FP16": ("tensor(float16)", np.float16),
    "TYPE_INT64": ("tensor(int64)", np.int64), "TYPE_BOOL": ("tensor(bool)", np.bool_),
}  # fmt: skip
Arrays = dict[str, NDArray[Any]]


def open_model(folder: Path, name: str) -> onnxruntime.InferenceSession:
    """A session with what the configuration names: its operator library or none."""
    told = config(folder, name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    for library in told.get("model_operations", {}).get("op_library_filename", []):
        options.register_custom_ops_library(library)
    file = folder / name / "1" / told["default_model_filename"]
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def check_model(folder: Path, name: str) -> None:
    """The model has the inputs and outputs that its configuration states, and runs its warm-up."""
    told, session = config(folder, name), open_model(folder, name)
    batch = [-1] if told.get("max_batch_size") else []
    for declared, found in (
        (told["input"], session.get_inputs()),
        (told["output"], session.get_outputs()),
    ):
        assert [port["name"] for port in declared] == [port.name for port in found]
        for port, real in zip(declared, found, strict=True):
            assert TYPES[port["data_type"]][0] == real.type, port["name"]
            sizes = [d if isinstance(d, int) else -1 for d in real.shape]
            assert batch + _sizes(port) == sizes, port["name"]
    assert told["model_warmup"]
    for warm, inputs in _warmups(folder, name, told):
        outputs = session.run(None, inputs)
        for port, values in zip(told["output"], outputs, strict=True):
            wanted = (batch and [warm["batch_size"]]) + _sizes(port)
            assert len(wanted) == values.ndim
            assert all(w in (-1, f) for w, f in zip(wanted, values.shape, strict=True)), wanted


def _sizes(port: Mapping[str, Any]) -> list[int]:
    return [] if "reshape" in port else [int(d) for d in port["dims"]]


def _warmups(
    folder: Path, name: str, told: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Arrays]]:
    """Each warm-up and its inputs: one row from each file, as often as the batch has rows."""
    for warm in told["model_warmup"]:
        found: Arrays = {}
        for port in told["input"]:
            value = warm["inputs"][port["name"]]
            assert value["data_type"] == port["data_type"]
            data = (folder / name / "warmup" / value["input_data_file"]).read_bytes()
            row = np.frombuffer(data, TYPES[port["data_type"]][1])
            row = row.reshape([] if "reshape" in port else [int(d) for d in value["dims"]])
            batched = told.get("max_batch_size")
            found[port["name"]] = np.stack([row] * warm["batch_size"]) if batched else row
        yield warm, found


if __name__ == "__main__":  # for an ONNX Runtime that is first on PYTHONPATH
    print(onnxruntime.__version__)
    for given in Path(sys.argv[1]).glob("*/config.pbtxt"):
        check_model(given.parent.parent, given.parent.name)
