"""INT8 tables of embeddings, with a scale for each row, and the gate on outputs of vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import capsedge
from capsedge.calibration.accuracy import Gate, Outcome
from capsedge.calibration.quantizable_layers import LayerGraph, find_layers, quantize_rows
from capsedge.calibration.quantization_report import QuantizationRejected
from capsedge.errors import ArtefactError
from capsedge.metrics import ErrorCount, OutputError

ROWS, SIZE, LENGTH = 60, 8, 5


def table_model(*, tied: bool = False, ids: str = "hist") -> onnx.ModelProto:
    """Rows of a table for ids ``[N, 5]``; with ``tied``, scores of all its rows too."""
    rng = np.random.default_rng(0)
    # Rows of very different sizes, of which one scale for all would lose the small ones.
    table = rng.standard_normal((ROWS, SIZE)) * np.logspace(-3, 2, ROWS)[:, None]
    stored = [numpy_helper.from_array(table.astype(np.float32), "item.weight")]
    nodes = [helper.make_node("Gather", ["item.weight", ids], ["rows"])]
    outputs = [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["N", LENGTH, SIZE])]
    if ids != "hist":
        stored.append(numpy_helper.from_array(np.arange(LENGTH)[None], ids))
    if tied:
        nodes += [
            helper.make_node("Transpose", ["item.weight"], ["columns"]),
            helper.make_node("MatMul", ["rows", "columns"], ["scores"]),
        ]
        outputs.append(
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", LENGTH, ROWS])
        )
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("hist", TensorProto.INT64, ["N", LENGTH])],
        outputs,
        stored,
    )
    opset = [helper.make_opsetid("", 20)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opset, ir_version=10)
    )


def histories(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, ROWS, (count, LENGTH))


def quantized(tmp_path: Path, **options: Any) -> Path:
    onnx.save(table_model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", hist=histories(300))
    capsedge.quantize(
        tmp_path / "m.onnx",
        tmp_path / "q.onnx",
        **options,
        calib_data=tmp_path / "x.npz",
    )
    return tmp_path / "q.onnx"


def test_every_row_has_a_scale_of_its_own(tmp_path: Path) -> None:
    path = quantized(tmp_path)
    stored = {t.name: t for t in onnx.load(path).graph.initializer}
    assert {(t.data_type, tuple(t.dims)) for t in stored.values()} == {
        (TensorProto.INT8, (ROWS, SIZE)), (TensorProto.FLOAT, (ROWS, 1))
    }  # fmt: skip
    ids = histories(20)
    wanted = capsedge.load(tmp_path / "m.onnx").run(ids)["rows"]
    found = capsedge.load(path).run(ids)["rows"]
    half = np.abs(wanted).max(-1, keepdims=True) / 127 / 2
    assert (np.abs(found - wanted) <= 1.001 * half).all()


@pytest.mark.parametrize("options", [{"tied": True}, {"ids": "fixed"}])
def test_a_table_with_another_use_is_left_alone(options: dict[str, Any]) -> None:
    layers, _ = find_layers(LayerGraph(table_model(**options)))
    assert "table" not in [layer.kind for layer in layers]


def test_rows_of_zeros_stay_zeros() -> None:
    table = np.random.default_rng(2).standard_normal((100, 4)).astype(np.float32)
    table[7] = 0
    integers, scale = quantize_rows(table)
    assert not integers[7].any()
    np.testing.assert_allclose(integers * scale, table, atol=float(scale.max()) / 1.99)


def test_a_gate_on_cosines(tmp_path: Path) -> None:
    with pytest.raises(
        QuantizationRejected, match=r"'rows' have a mean cosine of 0\.99.*1 required"
    ) as caught:
        quantized(tmp_path, min_cosine=1.0)
    (output,) = caught.value.report.outcome.outputs
    assert output.cosine is not None
    assert 0.999 < output.cosine < 1
    assert not (tmp_path / "q.onnx").exists()


def test_cosines_of_vectors() -> None:
    count = ErrorCount("poses", False)
    a = np.array([[[1.0, 0], [0, 0], [0, 2], [np.nan, 1]]])
    b = np.array([[[2.0, 0], [0, 0], [2, 0], [1, 1]]])
    count.update(a, b)
    assert count.result().cosine == pytest.approx(2 / 3)  # same, both zero, at right angles
    flat = ErrorCount("scores", False)
    flat.update(a[0], b[0])
    assert flat.result().cosine is None


def test_the_gate_looks_at_vectors_only() -> None:
    good = OutputError("a", 0.0, 0.0, 0.0, 0.0, 0.0, cosine=0.995)
    bad = OutputError("b", 0.0, 0.0, 0.0, 0.0, 0.0, cosine=0.98)
    none = OutputError("c", 0.0, 0.0, 0.0, 0.0, 0.0)
    found = Gate().failures(Outcome(5, None, None, 1.0, 0.0, outputs=(good, bad, none)))
    assert [line.split("'")[1] for line in found] == ["b"]


def test_verify_judges_by_what_the_quantization_allowed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the reference: pip install 'capsedge[export]'")
    path = quantized(tmp_path)
    (table,) = onnx.load(tmp_path / "m.onnx").graph.initializer
    module = torch.nn.Embedding.from_pretrained(
        torch.from_numpy(numpy_helper.to_array(table).copy())
    )
    made = capsedge.verify(module, path, inputs={"hist": histories(30)})
    assert made.passed, made.failures
    assert made.limits["criterion"] == "errors by range"
    other = torch.nn.Embedding.from_pretrained(module.weight.flip(0))
    assert not capsedge.verify(other, path, inputs={"hist": histories(30)}).passed
    damaged = onnx.load(path)
    entry = next(e for e in damaged.metadata_props if e.key == "capsedge_quantization")
    for text in ("{", "[]"):
        entry.value = text
        onnx.save(damaged, tmp_path / "damaged.onnx")
        with pytest.raises(ArtefactError, match="property capsedge_quantization"):
            capsedge.verify(module, tmp_path / "damaged.onnx", inputs={"hist": histories(3)})
