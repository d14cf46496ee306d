"""Operators find their layers, groups and iterations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.profiling.operator_times import OperatorTimes, time_operators
from capsedge.runtime.profiling.profile import ProfileReport
from tests.conftest import ROOT


def times(path: Path, ops: str, batch: int = 1) -> OperatorTimes:
    session = capsedge.load(path, threads=1, ops=ops)
    shape = (batch, *(int(d) for d in session.inputs[0].shape[1:]))
    images = np.random.default_rng(0).random(shape, dtype=np.float32)
    return time_operators(session, {session.inputs[0].name: images}, seconds=0.1)


def labels(found: OperatorTimes) -> list[str]:
    return list(dict.fromkeys(o.label for o in found.operators))


def test_inlined_dynamic_routing(report: ProfileReport):
    run = report.runs[0]
    names = [row.name for row in run.layers]
    assert names == [
        "stem.0",
        "primary",
        "classes, votes",
        "classes, routing iteration 1",
        "classes, routing iteration 2",
        "classes, routing iteration 3",
        "classes",
        "decoder.0",
        "decoder.2",
        "decoder.4",
    ]
    assert [g.group for g in run.groups] == ["stem", "votes", "routing", "classifier", "decoder"]
    assert sum(row.share for row in run.layers) == pytest.approx(1.0)


@pytest.mark.thorough
@pytest.mark.skipif(find_library() is None, reason="the operator library is not installed")
def test_a_fused_node_says_that_it_holds_all_iterations():
    found = times(ROOT / "capsedge/zoo/digits-dynamic.onnx", "fused")
    routing = [o for o in found.operators if o.kind == "DynamicRouting"]
    assert [o.label for o in routing] == ["classes, routing iterations 1..3 (fused)"]
    assert [o.iteration for o in routing] == [1]


@pytest.mark.thorough
def test_em_and_attention_iterations():
    wanted = {
        "em": ["classes, votes", *(f"classes, routing iteration {t}" for t in (1, 2, 3))],
        "attention": [
            "capsules.0, routing iteration 1",
            "capsules.1, routing iteration 1",
            "capsules.1, votes",
            "capsules.1, routing iteration 2",
        ],
    }
    for routing, expected in wanted.items():
        found = labels(times(ROOT / f"capsedge/zoo/digits-{routing}.onnx", "portable"))
        assert sorted(n for n in found if "rout" in n or "votes" in n) == sorted(expected)
        assert [n for n in found if n.startswith(("stem", "primary"))]


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_quantized_files_keep_their_layers(precision: str, tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from capsedge.calibration.float_model import FloatModel, uniform_assignment
    from capsedge.datasets import ImageSet

    source = FloatModel(ROOT / "capsedge/zoo/digits-dynamic.onnx")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 28, 28, 1), dtype=np.uint8)
    images = ImageSet("random", pixels, None, source.preprocessing)
    if precision == "fp16":
        model, _ = source.to_fp16(images)
    else:
        table = source.calibrate(images, "minmax", None)
        model, _ = source.emit(uniform_assignment(source.layers, "int8"), table, "ort-cpu")
    path = tmp_path / "quantized.onnx"
    onnx.save(model, path)
    found = times(path, "auto").operators
    named = {o.layer for o in found if "Conv" in o.kind or "Gemm" in o.kind}
    assert (
        {"stem.0", "primary"}
        <= named
        <= {"stem.0", "primary", "decoder.0", "decoder.2", "decoder.4"}
    )


def test_operations_do_not_depend_on_the_way_they_run(report: ProfileReport):
    """Votes of a dense layer: 2 I J Pout Pin operations, fused or not; the batch multiplies them."""
    one, two = (
        sum(o.operations for o in run.operators.operators if o.group == "votes")
        for run in report.runs
        if run.operators
    )
    assert one == 2 * 288 * 10 * 16 * 8
    assert two == 2 * one
