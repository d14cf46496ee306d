"""`deploy_triton` on every kind of file: what it writes opens in ONNX Runtime as Triton opens it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import capsedge
from capsedge.errors import UnsupportedModelError
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.runtime.zoo import MODELS, zoo_model
from tests.deploy.graphs import graph
from tests.deploy.schema import config
from tests.deploy.served import check_model
from tests.optimization.cascades import pair, pixels
from tests.runtime.models import SIDE, capsule_model, foreign_model, metadata, save


def _quantized(folder: Path, precision: str) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (8, 28, 28), dtype=np.uint8)
    path = folder / "net.onnx"
    capsedge.quantize(
        zoo_model("digits-em"),
        path,
        precision=precision,
        max_drop=100,
        calib_data=images,
    )
    return path


def _int8(folder: Path) -> Path:
    return _quantized(folder, "int8")


def _fp16(folder: Path) -> Path:
    return _quantized(folder, "fp16")


def _cascade(folder: Path) -> Path:
    """Two networks with a branch between them."""
    capsedge.cascade(
        *pair(folder),
        folder / "net.onnx",
        min_agreement=0.98,
        data=pixels(400),
    )
    nodes = onnx.load(folder / "net.onnx").graph.node
    assert any(node.op_type == "If" for node in nodes)
    return folder / "net.onnx"


def _fixed_batch(folder: Path) -> Path:
    return save(capsule_model(batch=4), folder / "net.onnx")


def _standard_operators(folder: Path) -> Path:
    return save(capsule_model(capsedge_node=False), folder / "net.onnx")


def _colour(folder: Path) -> Path:
    colour = metadata(preprocessing=Preprocessing(SIDE, SIDE, 3)).to_properties()
    made = capsule_model(reconstruction=True, channels=3, properties=colour)
    return save(made, folder / "net.onnx")


def _regression(folder: Path) -> Path:
    outputs = capsedge.Outputs(
        values=("pose",), names=("yaw", "pitch", "roll"), units=("degrees",) * 3
    )
    declared = metadata(class_names=(), task="regression", outputs=outputs).to_properties()
    return save(foreign_model({"pose": [3]}, properties=declared), folder / "net.onnx")


def _several_inputs(folder: Path) -> Path:
    return graph(
        folder / "net.onnx",
        {"a": (TensorProto.FLOAT16, ["N", 3]), "b": (TensorProto.INT64, ["N"])},
        {"c": (TensorProto.FLOAT16, ["N", 3]), "d": (TensorProto.BOOL, ["N"])},
        [
            helper.make_node("Abs", ["a"], ["c"]),
            helper.make_node("Cast", ["b"], ["d"], to=TensorProto.BOOL),
        ],
    )


def _tokens(folder: Path) -> Path:
    """A vocabulary of 20, which random whole numbers from 0 to 255 exceed."""
    table = np.random.default_rng(0).random((20, 4), dtype=np.float32)
    return graph(
        folder / "net.onnx",
        {"tokens": (TensorProto.INT64, ["N", 7])},
        {"embedded": (TensorProto.FLOAT, ["N", 7, 4])},
        [helper.make_node("Gather", ["table", "tokens"], ["embedded"])],
        [numpy_helper.from_array(table, "table")],
    )


KINDS = (
    _cascade, _fixed_batch, _standard_operators, _colour, _regression, _several_inputs, _tokens,
)  # fmt: skip


def _check(given: str | Path, folder: Path) -> None:
    """Deploy a file for the place where it is, and open every model of the repository."""
    made = capsedge.deploy_triton(given, folder / "r", mount=str(folder / "r"))
    for model in made.models:
        check_model(folder / "r", model.name)
    batched = [bool(config(folder / "r", m.name).get("max_batch_size")) for m in made.models]
    assert batched == [m.max_batch > 0 for m in made.models]


@pytest.mark.parametrize("kind", KINDS, ids=lambda f: f.__name__.strip("_"))
def test_each_kind_of_file(kind: Callable[[Path], Path], tmp_path: Path) -> None:
    _check(kind(tmp_path), tmp_path)


@pytest.mark.parametrize("name", MODELS)
def test_the_zoo(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [_int8, _fp16], ids=lambda f: f.__name__.strip("_"))
def test_other_precisions(kind: Callable[[Path], Path], tmp_path: Path) -> None:
    _check(kind(tmp_path), tmp_path)


@pytest.mark.slow
def test_a_file_with_its_trace(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the export needs torch")
    from capsedge.models.checkpoint import load_checkpoint
    from capsedge.runtime.zoo import zoo_checkpoint

    net = tmp_path / "net.onnx"
    model = load_checkpoint(zoo_checkpoint("digits-dynamic"))
    capsedge.export(model, net, extra_outputs=("reconstruction", "trace"))
    _check(net, tmp_path)
    assert len(config(tmp_path / "r", "net")["output"]) > 3


def test_an_output_of_no_fixed_rank(tmp_path: Path) -> None:
    """Triton would take it for a single number."""
    branches = {
        f"{case}_branch": helper.make_graph(
            [node], case, [], [helper.make_tensor_value_info(case, TensorProto.FLOAT, None)]
        )
        for case, node in (
            ("then", helper.make_node("Identity", ["x"], ["then"])),
            ("else", helper.make_node("Unsqueeze", ["x", "axis"], ["else"])),
        )
    }
    net = graph(
        tmp_path / "net.onnx",
        {"x": (TensorProto.FLOAT, ["N", 3]), "flag": (TensorProto.BOOL, [])},
        {"y": (TensorProto.FLOAT, None)},
        [helper.make_node("If", ["flag"], ["y"], **branches)],
        [numpy_helper.from_array(np.array([1]), "axis")],
    )
    with pytest.raises(UnsupportedModelError, match="'y' is declared as"):
        capsedge.deploy_triton(net, tmp_path / "r")
    assert not (tmp_path / "r").exists()
