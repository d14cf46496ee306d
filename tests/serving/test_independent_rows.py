"""Files whose inputs are all floats: requests run together if rows are stated to be independent, and are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import capsedge
from capsedge.cli.serve import _gathered
from capsedge.errors import CapsedgeError
from capsedge.runtime.metadata.table_indices import InputBounds, inputs_property
from capsedge.serving import served_models
from capsedge.serving.inference import Model
from capsedge.serving.request_bodies import InferRequest, RequestInput
from capsedge.serving.served_models import (
    SIZES,
    BatchSize,
    can_batch,
    contradiction,
    fixed_size,
    measure_size,
)
from tests.tables import table

ROWS = InputBounds(independent=True)
BOTH = {"sequence": ROWS, "features": ROWS}


def float_file(
    path: Path, stated: dict[str, InputBounds], more: Sequence[NodeProto] = (), last: str = "sum"
) -> Path:
    """The mean of a sequence ``[N, L, 3]`` and a product of features ``[N, 4]``, then ``more`` nodes."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("ReduceMean", ["sequence", "one"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["features", "w"], ["product"]),
        helper.make_node("Add", ["mean", "product"], ["sum"]),
        *more,
        helper.make_node("Identity", [last], ["y"]),
    ]
    shapes = {"sequence": ["N", "L", 3], "features": ["N", 4]}
    stored = {
        "one": np.array([1]), "zero": np.array([0]), "w": rng.standard_normal((4, 3)).astype(np.float32)
    }  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(v, k) for k, v in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    helper.set_model_props(model, inputs_property(stated))
    onnx.save(model, path)
    return path


def _arrays(rows: int, length: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {"sequence": (rows, length, 3), "features": (rows, 4)}
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _answers(
    path: Path, asked: Sequence[dict[str, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> tuple[list[np.ndarray], list[tuple[int, ...]]]:
    """What concurrent requests get, and the shapes of the sequences that ran."""
    with capsedge.load(path, threads=1) as session:
        model, run = (
            Model(session, "floats", "", 1, fixed_size(session, 8).images, 0.0),
            session.run,
        )
        ran: list[tuple[int, ...]] = []

        def counted(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            ran.append(arrays["sequence"].shape)
            time.sleep(0.05)  # while it runs, the others gather
            return run(arrays)

        monkeypatch.setattr(session, "run", counted)

        async def together() -> list[Any]:
            requests = (
                InferRequest(
                    [RequestInput(n, "FP32", list(x.shape), x) for n, x in each.items()], []
                )
                for each in asked
            )
            return await asyncio.gather(*map(model.infer, requests))

        found = [answer.outputs["y"] for answer in asyncio.run(together())]
        for each, answer in zip(asked, found, strict=True):
            np.testing.assert_allclose(answer, run(each)["y"], rtol=1e-5, atol=1e-6)
        return found, ran


def test_concurrent_requests_run_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal lengths, while every core is busy; each gets its own answer."""
    path = float_file(tmp_path / "m.onnx", BOTH)
    asked = [_arrays(1 + k % 2, 5 + 2 * (k == 3), k) for k in range(12)]
    _, ran = _answers(path, asked, monkeypatch)
    assert len(ran) < len(asked)
    assert sum(shape[0] for shape in ran) == sum(len(each["features"]) for each in asked)
    assert {shape[1] for shape in ran} == {5, 7}
    monkeypatch.setattr(served_models, "_SECONDS", 0.05)
    with capsedge.load(path, threads=1) as session:
        assert measure_size(session).images in SIZES


@pytest.mark.parametrize("stated", [{}, {"sequence": ROWS}])
def test_a_file_that_does_not_say_so_of_every_input_is_not_batched(
    stated: dict[str, InputBounds], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = float_file(tmp_path / "m.onnx", stated)
    with capsedge.load(path, threads=1) as session:
        assert not can_batch(session)
        assert fixed_size(session, 8) == measure_size(session) == BatchSize(1)
    asked = [_arrays(1, 5, k) for k in range(6)]
    _, ran = _answers(path, asked, monkeypatch)
    assert ran == [(1, 5, 3)] * len(asked)


# What depends on the other rows, though the file states otherwise.
LIES = {
    "their mean": (
        [
            helper.make_node("ReduceMean", ["sum", "zero"], ["all"]),
            helper.make_node("Sub", ["sum", "all"], ["z"]),
        ],
        "differs by",
    ),
    "their order": (
        [
            helper.make_node("CumSum", ["sum", "end"], ["z"], reverse=1),
        ],
        "differs by",
    ),
    "their number": (
        [
            helper.make_node("Shape", ["sum"], ["sizes"], end=1),
            helper.make_node("Cast", ["sizes"], ["n"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["sum", "n"], ["z"]),
        ],
        "differs by",
    ),
}


@table("name, nodes, told", [(name, *row) for name, row in LIES.items()])
def test_a_statement_that_is_not_so_is_not_believed(
    name: str, nodes: list[NodeProto], told: str, tmp_path: Path
) -> None:
    if name == "their order":
        nodes = [helper.make_node("Squeeze", ["zero"], ["end"]), *nodes]
    path = float_file(tmp_path / f"{name}.onnx", BOTH, nodes, "z")
    with capsedge.load(path, threads=1) as session:
        assert can_batch(session)  # as far as it says
        assert told in contradiction(session)
        found = fixed_size(session, 8)
        assert found == measure_size(session)
        assert found.images == 1
        assert (
            "states that its rows are independent, but output 'y' of a row differs" in found.alone
        )
        assert _gathered(found) == f", one request at a time: {found.alone}"
        assert fixed_size(session, 1) == BatchSize(1)


def test_rows_that_cannot_be_run_are_not_batched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_arrays: object) -> None:
        raise CapsedgeError("It fails.", "Too long.", "")

    with capsedge.load(float_file(tmp_path / "m.onnx", BOTH), threads=1) as session:
        assert contradiction(session) == ""
        monkeypatch.setattr(session, "run", fails)
        assert fixed_size(session, 8).alone.endswith("random rows cannot be run: Too long")
