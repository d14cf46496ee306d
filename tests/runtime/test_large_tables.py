"""Large tables are lent to ONNX Runtime: what is taken out of a file, and that it computes the same."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="makes the files: pip install 'capsedge[export]'")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import capsedge  # noqa: E402
from capsedge.runtime.backends import onnxruntime_backend  # noqa: E402
from capsedge.runtime.onnx_file.large_tables import split_tables  # noqa: E402
from tests.runtime.test_table_indices import given, table_file  # noqa: E402


def stored(data: bytes) -> dict[str, onnx.TensorProto]:
    return {t.name: t for t in onnx.load_model_from_string(data).graph.initializer}


def test_tables_are_taken_out_and_nothing_else(tmp_path: Path) -> None:
    data = table_file(tmp_path / "m.onnx").read_bytes()
    split = split_tables(data, 60)
    assert set(split.tables) == {"hist_table", "user_table"}
    before, after = stored(data), stored(split.data)
    for name, table in split.tables.items():
        np.testing.assert_array_equal(table, numpy_helper.to_array(before[name]))
        assert after[name].data_location == TensorProto.EXTERNAL
        assert (after[name].dims, after[name].data_type) == (
            before[name].dims,
            before[name].data_type,
        )
    whole, rest = (onnx.load_model_from_string(d) for d in (data, split.data))
    for model in (whole, rest):
        del model.graph.initializer[:2]
    assert whole == rest


def test_small_files_stay_as_they_are(tmp_path: Path) -> None:
    data = table_file(tmp_path / "m.onnx").read_bytes()
    split = split_tables(data)
    assert split.data is data
    assert not split.tables


@pytest.mark.parametrize("reason", ["another use", "an output", "a subgraph", "numbers in a list"])
def test_tables_with_another_use_stay(tmp_path: Path, reason: str) -> None:
    model = onnx.load(table_file(tmp_path / "m.onnx"))
    graph = model.graph
    if reason == "another use":
        graph.node.append(helper.make_node("Neg", ["user_table"], ["other"]))
    elif reason == "an output":
        graph.output.append(helper.make_tensor_value_info("user_table", TensorProto.FLOAT, [4, 3]))
    elif reason == "a subgraph":
        inner = helper.make_graph(
            [helper.make_node("Neg", ["user_table"], ["inside"])],
            "inner",
            [],
            [helper.make_tensor_value_info("inside", TensorProto.FLOAT, [4, 3])],
        )
        graph.node.append(
            helper.make_node("If", ["yes"], ["chosen"], then_branch=inner, else_branch=inner)
        )
    else:
        tensor = next(t for t in graph.initializer if t.name == "user_table")
        values = numpy_helper.to_array(tensor)
        tensor.ClearField("raw_data")
        tensor.float_data.extend(values.reshape(-1).tolist())
    assert set(split_tables(model.SerializeToString(), 40).tables) == {"hist_table"}


def test_a_session_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = table_file(tmp_path / "m.onnx")
    wanted = capsedge.load(path).run(given())["interests"]
    monkeypatch.setattr(onnxruntime_backend, "split_tables", partial(split_tables, least=40))
    session = capsedge.load(path)
    path.unlink()
    for _ in range(3):
        np.testing.assert_array_equal(session.run(given())["interests"], wanted)
    assert capfd.readouterr().err == ""
