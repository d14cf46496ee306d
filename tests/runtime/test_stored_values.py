"""Weights that are NaN or infinite are found in every form in which a file may hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

onnx = pytest.importorskip("onnx", reason="makes the files: pip install 'capsedge[export]'")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import capsedge  # noqa: E402
from capsedge.cli import app  # noqa: E402
from capsedge.errors import ArtefactError  # noqa: E402
from capsedge.runtime.files.safetensors import TYPES  # noqa: E402
from capsedge.runtime.onnx_file.stored_values import find_not_finite, stored_numbers  # noqa: E402
from tests.runtime.models import SIDE, capsule_model, save  # noqa: E402

NAN, INF = float("nan"), float("inf")
IMAGE = np.zeros((SIDE, SIDE), np.uint8)


def holding(*tensors: onnx.TensorProto, nodes: tuple[Any, ...] = ()) -> bytes:
    x, y = (helper.make_tensor_value_info(k, TensorProto.FLOAT, [1, 2]) for k in "xy")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"]), *nodes], "g", [x], [y], tensors
    )
    return helper.make_model(graph, ir_version=9).SerializeToString()


def raw(values: Any, name: str = "w") -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


def unpacked() -> bytes:
    """Floats one by one, as protobuf 2 writes them."""
    values = np.array([1, NAN], "<f4").tobytes()
    tensor = (
        b"\x08\x02\x10\x01" + b"".join(b"\x25" + values[k : k + 4] for k in (0, 4)) + b"\x42\x01w"
    )
    data = holding(raw([1, 2]))
    model = onnx.load_model_from_string(data)
    del model.graph.initializer[:]
    model.graph.ClearField("output")
    graph = model.graph.SerializeToString() + b"\x2a" + bytes([len(tensor)]) + tensor
    model.ClearField("graph")
    return model.SerializeToString() + b"\x3a" + bytes([len(graph)]) + graph


def sparse() -> bytes:
    model = onnx.load_model_from_string(holding(raw([[1, 2], [3, 4]])))
    places = numpy_helper.from_array(np.array([0, 3]), "places")
    tensor = helper.make_sparse_tensor(raw([1, INF], "w"), places, [2, 2])
    del model.graph.initializer[:]
    model.graph.sparse_initializer.append(tensor)
    return bytes(model.SerializeToString())


FORMS = {
    "bytes": holding(raw([[1, 2], [INF, 4]])),
    "floats": holding(helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, NAN])),
    "floats one by one": unpacked(),
    "halves": holding(helper.make_tensor("w", TensorProto.FLOAT16, [3], [1.0, -2.0, -INF])),
    "bfloats": holding(helper.make_tensor("w", TensorProto.BFLOAT16, [2], [1.0, NAN])),
    "doubles": holding(helper.make_tensor("w", TensorProto.DOUBLE, [2], [NAN, 1.0])),
    "doubles' bytes": holding(numpy_helper.from_array(np.array([1.0, NAN]), "w")),
    "sparse": sparse(),
    "constant": holding(nodes=(helper.make_node("Constant", [], ["w"], value=raw([1, INF], "")),)),
}  # fmt: skip
FINITE = {
    "mask": holding(raw([1, 2]), raw([0, -INF], "mask")),
    "integers": holding(raw([1, 2]), numpy_helper.from_array(np.array([2**31 - 1]), "k")),
    "numbers of many bytes": holding(helper.make_tensor("w", TensorProto.FLOAT16, [2], [-0.5, 2.0])),
    "none": holding(),
}  # fmt: skip


def test_every_form_is_found_and_the_finite_are_not() -> None:
    found = {form: [each.name for each in find_not_finite(data)] for form, data in FORMS.items()}
    assert found == {form: ["w"] for form in FORMS}
    assert [form for form, data in FINITE.items() if find_not_finite(data)] == []


def test_the_first_is_named() -> None:
    (found,) = find_not_finite(FORMS["halves"])
    assert str(found) == "w [3]: 1 of 3, the first is -inf at [2]"


def test_values_are_as_onnx_reads_them() -> None:
    values = [0.0, -0.5, 65504.0, 6e-8]
    for kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE):
        tensor = helper.make_tensor("w", kind, [2, 2], values)
        (stored,) = stored_numbers(holding(tensor))
        np.testing.assert_array_equal(
            stored.values, numpy_helper.to_array(tensor).astype(stored.values.dtype)
        )


def test_a_tensor_that_is_damaged_is_left_to_the_runtime() -> None:
    short = raw([1, NAN])
    short.raw_data = short.raw_data[:-1]
    lists = helper.make_tensor("h", TensorProto.FLOAT16, [3], [NAN, 1.0, 2.0])
    del lists.int32_data[1:]
    assert find_not_finite(holding(short, lists)) == []


# --- What users see ---


def test_inspect_warns(tmp_path: Path) -> None:
    path = save(capsule_model(gain=NAN), tmp_path / "m.onnx")
    (found,) = capsedge.inspect(path).not_finite
    assert (found.name, found.count, found.first, found.value) == ("weight", 64, (0, 0), "nan")
    run = CliRunner().invoke(app, ["inspect", str(path)])
    assert run.exit_code == 0
    assert (
        "warning: weights are NaN or infinite: weight [64, 12]: 64 of 768, the first is nan at [0, 0]"
        in run.output
    )
    assert (
        "warning"
        not in CliRunner().invoke(app, ["inspect", str(save(capsule_model(), path))]).output
    )


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "F64"])
def test_inspect_names_them_in_a_checkpoint(kind: str, tmp_path: Path) -> None:
    dtype = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<f4"}[kind]
    values = np.array([1, INF], dtype)
    held = values.view("<u2")[1::2] if kind == "BF16" else values
    size = 2 * TYPES[kind][1]
    entries = ",".join(
        f'"{name}":{{"dtype":"{kind}","shape":[2],"data_offsets":[{k * size},{k * size + size}]}}'
        for k, name in enumerate(("mask", "a.weight"))
    )
    header = f"{{{entries}}}".encode()
    path = tmp_path / "c.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + 2 * held.tobytes())
    assert [str(each) for each in capsedge.inspect(path).not_finite] == [
        "a.weight [2]: 1 of 2, the first is inf at [1]"
    ]


def test_a_prediction_names_the_weights(tmp_path: Path) -> None:
    path = save(capsule_model(gain=NAN), tmp_path / "m.onnx")
    with capsedge.load(path) as session, pytest.raises(ArtefactError, match="NaN") as caught:
        session.predict(IMAGE)
    assert "weight [64, 12]: 64 of 768, the first is nan at [0, 0]" in caught.value.why
    assert "Training diverged" in caught.value.fix


def test_scores_that_overflow_blame_no_weights(tmp_path: Path) -> None:
    model = capsule_model(gain=3e38, capsedge_node=False)
    next(n for n in model.graph.node if n.op_type == "Tanh").op_type = "Identity"
    session = capsedge.load(save(model, tmp_path / "m.onnx"))
    with session, pytest.raises(ArtefactError, match="NaN") as caught:
        session.predict(np.full((SIDE, SIDE), 255, np.uint8))
    assert "range too large" in caught.value.why


def test_outputs_for_arrays_come_with_a_warning(tmp_path: Path) -> None:
    path = save(capsule_model(gain=NAN), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", images=np.zeros((1, 1, SIDE, SIDE), np.float32))
    run = CliRunner().invoke(app, ["infer", "--inputs", str(tmp_path / "x.npz"), "-m", str(path)])
    assert run.exit_code == 0
    assert "warning: outputs are NaN, so are weights. NaN or infinite: weight" in run.output
