"""Files whose inputs have several free lengths, in Python, in C and by the server."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="makes the files: pip install 'capsedge[export]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import capsedge  # noqa: E402
from capsedge.errors import ShapeError  # noqa: E402
from capsedge.runtime.metadata.table_indices import InputBounds, inputs_property  # noqa: E402
from capsedge.serving.inference import Model  # noqa: E402
from capsedge.serving.request_bodies import InferRequest, RequestInput  # noqa: E402
from tests.native.libcapsedge import USAGE, Failed, Session, library_path  # noqa: E402

Arrays = dict[str, np.ndarray]

needs_library = pytest.mark.skipif(library_path() is None, reason="libcapsedge is not built")
LENGTHS = [(1, 1), (1, 9), (7, 2), (5, 5), (12, 3)]
STATED = {
    "clicks": InputBounds(9, (), independent=True),
    "weights": InputBounds(None, (), independent=True),
    "bought": InputBounds(9, (0, 10), independent=True),
}
TABLE = np.random.default_rng(0).random((9, 3), np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The sum of clicks ``[N, L]`` with weights and of purchases ``[N, L2]``, and all their indices."""
    op, info = helper.make_node, helper.make_tensor_value_info
    nodes = [
        op("Gather", ["table", "clicks"], ["clicked"]),
        op("Unsqueeze", ["weights", "two"], ["shares"]),
        op("Mul", ["clicked", "shares"], ["weighted"]),
        op("ReduceSum", ["weighted", "one"], ["of_clicks"], keepdims=0),
        op("Gather", ["table", "bought"], ["owned"]),
        op("ReduceSum", ["owned", "one"], ["of_bought"], keepdims=0),
        op("Add", ["of_clicks", "of_bought"], ["interests"]),
        op("Concat", ["clicks", "bought"], ["both"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            info("clicks", TensorProto.INT64, ["N", "L"]),
            info("weights", TensorProto.FLOAT, ["N", "L"]),
            info("bought", TensorProto.INT64, ["N", "L2"]),
        ],
        [
            info("interests", TensorProto.FLOAT, ["N", 3]),
            info("both", TensorProto.INT64, ["N", "L + L2"]),
        ],
        [
            numpy_helper.from_array(value, name)
            for name, value in (("table", TABLE), ("one", np.array([1])), ("two", np.array([2])))
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    helper.set_model_props(model, inputs_property(STATED))
    made = tmp_path / "m.onnx"
    onnx.save(model, made)
    return made


def given(clicked: int, owned: int, rows: int = 2, seed: int = 0) -> Arrays:
    rng = np.random.default_rng(seed)
    return {
        "clicks": rng.integers(9, size=(rows, clicked)),
        "weights": rng.random((rows, clicked), np.float32),
        "bought": rng.integers(9, size=(rows, owned)),
    }


def check(found: Any, inputs: Arrays) -> None:
    of_clicks = (TABLE[inputs["clicks"]] * inputs["weights"][..., None]).sum(1)
    wanted = of_clicks + TABLE[inputs["bought"]].sum(1)
    np.testing.assert_allclose(found["interests"], wanted, rtol=1e-5)
    both = np.concatenate([inputs["clicks"], inputs["bought"]], 1)
    np.testing.assert_array_equal(found["both"], both)


def wrong(**changed: np.ndarray) -> Arrays:
    return given(5, 4) | changed


def test_lengths_in_python(path: Path) -> None:
    with capsedge.load(path) as session:
        for lengths in LENGTHS:
            check(session.run(given(*lengths)), given(*lengths))
        with pytest.raises(ShapeError, match="Inputs 'clicks' and 'weights' do not fit together"):
            session.run(wrong(weights=np.ones((2, 4), np.float32)))
        with pytest.raises(ShapeError, match="'bought' is too long for the network"):
            session.run(given(5, 11))


@needs_library
def test_lengths_in_c(path: Path) -> None:
    session = Session(path)
    for lengths in LENGTHS:
        check(session.run(given(*lengths)), given(*lengths))
    with pytest.raises(Failed, match="'bought' is too long for the network") as refused:
        session.run(given(5, 11))
    assert refused.value.code == USAGE
    session.close()


def test_only_requests_of_the_same_lengths_run_together(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal in one length is not enough, nor is an equal sum of both."""
    lengths = [(4, 2), (5, 2), (4, 2), (4, 3), (3, 3), (2, 4), (4, 2), (4, 3)]
    asked = [given(*sizes, rows=1 + k % 2, seed=k) for k, sizes in enumerate(lengths)]
    kinds = {"clicks": "INT64", "weights": "FP32", "bought": "INT64"}
    ran: list[tuple[int, int]] = []

    def request(arrays: Arrays) -> InferRequest:
        inputs = [RequestInput(name, kinds[name], list(x.shape), x) for name, x in arrays.items()]
        return InferRequest(inputs, [])

    with capsedge.load(path, threads=1) as session:
        model, run = Model(session, "histories", "", 1, 8, 0.0), session.run

        def counted(arrays: Arrays) -> Any:
            ran.append((arrays["clicks"].shape[1], arrays["bought"].shape[1]))
            time.sleep(0.05)  # while it runs, the others gather
            return run(arrays)

        monkeypatch.setattr(session, "run", counted)

        async def together() -> list[Any]:
            return await asyncio.gather(*(model.infer(request(one)) for one in asked))

        for answer, inputs in zip(asyncio.run(together()), asked, strict=True):
            check(answer.outputs, inputs)
    assert {*ran} == {*lengths}
    assert len(ran) < len(lengths)
