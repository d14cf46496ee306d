"""``capsedge inspect``: what it shows, what it refuses."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from capsedge.cli import app
from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.exporters.c.write_c import write_c
from capsedge.runtime.inspection import inspect_file as inspect
from capsedge.runtime.metadata.metadata import ModelMetadata, Preprocessing
from capsedge.runtime.metadata.table_indices import InputBounds, inputs_property
from capsedge.runtime.zoo import zoo_model
from capsedge.spec.fields import WASM_KIND
from tests.tensorrt.fixtures import ANY_AMOUNT, cudart, gpu  # noqa: F401

onnx = pytest.importorskip("onnx", reason="makes the files: pip install 'capsedge[export]'")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


def _zeros(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(np.zeros(shape, np.float32), name)


def _save(path: Path, nodes, inputs, outputs, initializers=(), values=(), metadata=None) -> Path:
    def info(name, shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes,
        "g",
        [info(*v) for v in inputs],
        [info(*v) for v in outputs],
        list(initializers),
        value_info=[info(*v) for v in values],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("capsedge", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    onnx.save(model, path)
    return path


@pytest.fixture
def routed(tmp_path: Path) -> Path:
    """All three routing operators, with shapes as an exported file states them."""
    nodes = [
        helper.make_node(
            "EMRouting", ["p", "a", "We", "bu", "ba"], ["pe", "ae"], name="conv", domain="capsedge",
            strides=[2, 2], inverse_temperatures=[0.1, 0.2], iterations=2,
        ),
        helper.make_node(
            "AttentionRouting", ["pe", "par", "Wa", "s", "b"], ["pa"], name="fc", domain="capsedge",
            strides=[1, 1], matrix_pose=1,
        ),
        helper.make_node("Reshape", ["pa", "to"], ["u"]),
        helper.make_node(
            "DynamicRouting", ["u", "W", "z", "bias"], ["v"], name="digits", domain="capsedge", iterations=3,
        ),
    ]  # fmt: skip
    meta = ModelMetadata(
        architecture="capsnet",
        configuration={"name": "x"},
        routing="dynamic",
        iterations=3,
        class_names=("zero", "one"),
        preprocessing=Preprocessing(7, 7, 1),
    )
    return _save(
        tmp_path / "m.onnx",
        nodes,
        [("p", ["N", 7, 7, 2, 4]), ("a", ["N", 7, 7, 2]), ("par", ["N", 1, 1, 5, 4])],
        [("v", ["N", 2, 3])],
        [
            _zeros("We", 3, 3, 2, 6, 2, 2), _zeros("bu", 6), _zeros("ba", 6),
            _zeros("Wa", 3, 3, 6, 5, 2, 2), _zeros("s", 4), _zeros("b", 4),
            _zeros("W", 5, 2, 3, 4), _zeros("z", 5, 2), _zeros("bias", 2, 3),
            numpy_helper.from_array(np.array([-1, 5, 4]), "to"),
        ],
        [("pe", ["N", 3, 3, 6, 4]), ("ae", ["N", 3, 3, 6]), ("pa", ["N", 1, 1, 5, 4]), ("u", ["N", 5, 4])],
        meta.to_properties(),
    )  # fmt: skip


def test_votes_memory_of_every_operator(routed: Path) -> None:
    conv, fc, digits = inspect(routed, [1, 8]).routing
    assert (conv.positions, conv.children, conv.parents, conv.pose) == (9, 18, 6, 4)
    assert conv.votes == {1: 9 * 18 * 6 * 4 * 4, 8: 8 * 9 * 18 * 6 * 4 * 4}
    # pose and activation in, weights and betas, pose and activation out
    per_image, weights = 7 * 7 * 2 * 5 + 9 * 6 * 5, 9 * 2 * 6 * 4 + 12
    assert conv.fused == {1: 4 * (per_image + weights), 8: 4 * (8 * per_image + weights)}
    assert (fc.positions, fc.children, fc.parents, fc.pose) == (1, 54, 5, 4)
    assert (digits.positions, digits.children, digits.parents, digits.pose) == (1, 5, 2, 3)


def test_largest_intermediate_values(routed: Path) -> None:
    names = [v.name for v in inspect(routed, [2]).largest]
    assert names == ["pe", "ae", "pa", "u"]
    assert inspect(routed, [2]).largest[0].bytes == {2: 2 * 3 * 3 * 6 * 4 * 4}


def test_layers_are_named_by_their_weights(routed: Path, tmp_path: Path) -> None:
    model = onnx.load(routed)
    for tensor in model.graph.initializer:
        if tensor.name == "W":
            tensor.name = "model.classes.weight"
    model.graph.node[-1].input[1] = "model.classes.weight"
    onnx.save(model, tmp_path / "n.onnx")
    assert [layer.name for layer in inspect(tmp_path / "n.onnx").routing] == [
        "conv",
        "fc",
        "classes",
    ]


def test_facts_operators_and_parameters(routed: Path) -> None:
    found = inspect(routed)
    assert found.operators["capsedge"] == {
        "AttentionRouting": 1,
        "DynamicRouting": 1,
        "EMRouting": 1,
    }
    assert found.operators["standard"] == {"Reshape": 1}
    wanted = sum(
        numpy_helper.to_array(t).size
        for t in onnx.load(routed).graph.initializer
        if t.data_type == TensorProto.FLOAT
    )
    assert found.parameters == wanted
    assert found.opsets == {"": 20, "capsedge": 1}
    assert found.ir_version == 10
    assert found.metadata is not None
    assert found.metadata.class_names == ("zero", "one")
    assert found.inputs[0].shape == ("N", 7, 7, 2, 4)


def test_command_prints_text_and_json(routed: Path) -> None:
    text = CliRunner().invoke(app, ["inspect", str(routed), "--batch", "4"])
    assert text.exit_code == 0
    assert "votes, batch 4" in text.stdout
    assert "EMRouting" in text.stdout
    result = CliRunner().invoke(app, ["inspect", str(routed), "--json", "--batch", "4"])
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert document["metadata"]["iterations"] == 3
    assert document["routing"][0]["votes"]["4"] == 4 * 9 * 18 * 6 * 4 * 4


def test_a_shape_that_the_file_does_not_state(tmp_path: Path) -> None:
    node = helper.make_node("DynamicRouting", ["u", "W", "z", "b"], ["v"], domain="capsedge")
    path = _save(
        tmp_path / "m.onnx",
        [node],
        [("u", ["N", None, 4]), ("W", [None, 2, 3, 4]), ("z", [None, 2]), ("b", [2, 3])],
        [("v", ["N", 2, 3])],
    )
    assert inspect(path).routing[0].votes == {}
    assert "not stated" in CliRunner().invoke(app, ["inspect", str(path)]).stdout


def test_file_of_another_tool(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"])],
        "then",
        [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, ["N"])],
    )
    nodes = [
        helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
        helper.make_node("Foreign", ["y"], ["q"], domain="com.example", numbers=[1, 2]),
        helper.make_node("Constant", [], ["k"], value=_zeros("", 3, 5)),
    ]
    path = _save(tmp_path / "m.onnx", nodes, [("x", ["N"]), ("c", [])], [("y", ["N"])])
    found = inspect(path)
    assert found.metadata is None
    assert found.operators["com.example"] == {"Foreign": 1}
    assert found.operators["standard"] == {"Constant": 1, "If": 1, "Relu": 2}
    assert found.parameters == 15
    assert "another tool" in CliRunner().invoke(app, ["inspect", str(path)]).stdout


def test_every_truncation_is_refused_or_read(routed: Path, tmp_path: Path) -> None:
    """No cut makes anything but our own error; a cut between top-level fields leaves a whole file."""
    data = routed.read_bytes()
    cut = tmp_path / "cut.onnx"
    refused = 0
    for end in range(0, len(data), 7):
        cut.write_bytes(data[:end])
        try:
            inspect(cut)
        except ArtefactError:
            refused += 1
    assert refused > len(data) // 7 // 2


@pytest.mark.thorough
def test_flipped_bytes_raise_nothing_else(routed: Path, tmp_path: Path) -> None:
    data = bytearray(routed.read_bytes())
    rng = np.random.default_rng(0)
    bad = tmp_path / "bad.onnx"
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), 4):
            damaged[at] = rng.integers(0, 256)
        bad.write_bytes(damaged)
        try:
            inspect(bad)
        except ArtefactError:
            continue


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x0a" * 50, b"\xff" * 64], ids=str)
def test_not_an_onnx_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.onnx"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["inspect", str(path)])
    assert isinstance(result.exception, ArtefactError)


def _safetensors(path: Path, header: dict, payload: bytes = b"", length: int | None = None) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + payload)
    return path


def test_checkpoint_without_torch_or_safetensors(tmp_path: Path) -> None:
    path = _safetensors(
        tmp_path / "c.safetensors",
        {
            "__metadata__": {"capsedge.config": '{"routing": "em"}'},
            "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "n": {"dtype": "I64", "shape": [], "data_offsets": [24, 32]},
            "norm.running_mean": {"dtype": "F32", "shape": [2], "data_offsets": [32, 40]},
        },
        bytes(40),
    )
    found = inspect(path)
    assert found.kind == "checkpoint"
    assert found.parameters == 6
    assert found.configuration == {"routing": "em"}
    assert "config routing" in CliRunner().invoke(app, ["inspect", str(path)]).stdout


@pytest.mark.parametrize(
    ("header", "length"),
    [
        ({"w": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, None),
        ({"w": {"dtype": "F32", "shape": [9], "data_offsets": [-4, 0]}}, None),
        ({"w": {"shape": [9]}}, None),
        ({"w": 3}, None),
        ({"__metadata__": {"capsedge.config": "{"}}, None),
        ({}, 2**63),
    ],
)
def test_damaged_checkpoint(tmp_path: Path, header: dict, length: int | None) -> None:
    path = _safetensors(tmp_path / "c.safetensors", header, b"", length)
    with pytest.raises(ArtefactError):
        inspect(path)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    path.write_bytes(b"PK\x03\x04" + bytes(64))
    with pytest.raises(ArtefactError, match="a zip archive"):
        inspect(path)


def test_exit_codes_of_the_command(tmp_path: Path, routed: Path) -> None:
    cut = tmp_path / "cut.onnx"
    cut.write_bytes(routed.read_bytes()[:200])
    for arguments, code in (
        ([str(routed)], 0),
        ([str(cut)], 6),
        ([str(tmp_path / "none.onnx")], 2),
        ([str(tmp_path)], 2),
        ([str(routed), "--batch", "0"], 2),
        ([str(routed), "--batch", "many"], 2),
    ):
        result = CliRunner().invoke(app, ["inspect", *arguments])
        error = result.exception
        found = int(error.exit_code) if isinstance(error, CapsedgeError) else result.exit_code
        assert found == code, result.output


def test_damaged_file_ends_the_program_with_6(tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(b"\x08\x0a")
    program = [sys.executable, "-c", "from capsedge.cli import main; main()", "inspect"]
    done = subprocess.run([*program, str(tmp_path / "cut.onnx")], capture_output=True, text=True)
    assert done.returncode == 6
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_needs_neither_torch_nor_onnx(routed: Path) -> None:
    code = (
        "import sys; from capsedge.runtime.inspection import inspect_file as inspect; inspect(sys.argv[1]);"
        "assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(routed)], check=True)


# Engines


@pytest.fixture
def engine(gpu, tmp_path: Path) -> Path:  # noqa: F811
    """Built by a stand-in for TensorRT, as tests/tensorrt does."""
    from capsedge.exporters.build_options import BuildOptions
    from capsedge.exporters.tensorrt.write_engine import write_engine as build
    from capsedge.runtime.zoo import default_model

    options = BuildOptions(plugin="native", batch=(1, 2, 8))
    return build(default_model(), tmp_path / "digits.engine", options, lambda *row: None).path


def test_engine(engine: Path, gpu) -> None:  # noqa: F811
    shown = CliRunner().invoke(app, ["inspect", str(engine)])
    assert shown.exit_code == 0, shown.output
    for words in ("runs here", "yes", "Orin", "10.3.0", "1 to 8, best 2", "fp32", "capsnet"):
        assert words in shown.stdout
    found = json.loads(CliRunner().invoke(app, ["inspect", str(engine), "--json"]).stdout)
    assert (found["kind"], found["runs_here"], found["because"]) == ("engine", True, "")
    assert found["engine_metadata"]["machine"]["gpu"] == "Orin"
    assert found["engine_metadata"]["batch"] == [1, 2, 8]
    gpu.fake_set(1, 90, 0, ANY_AMOUNT)
    found = json.loads(CliRunner().invoke(app, ["inspect", str(engine), "--json"]).stdout)
    assert found["runs_here"] is False
    assert "compute capability is 9.0, the engine needs 8.7" in found["because"]


def test_engine_where_tensorrt_is_not(engine: Path) -> None:
    """What is known is shown; whether it runs is not."""
    code = "import sys; sys.modules['tensorrt'] = None; import capsedge.__main__ as m; m.main()"
    command = [sys.executable, "-c", code, "inspect", str(engine)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not known: TensorRT is not installed." in done.stdout
    assert "capsnet" in done.stdout


def test_what_is_no_engine(engine: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    with pytest.raises(UsageError, match="needs the shapes that an ONNX file holds"):
        runner.invoke(app, ["inspect", str(engine), "--forecast"], catch_exceptions=False)
    with pytest.raises(UsageError, match="no such file"):
        runner.invoke(app, ["inspect", str(tmp_path / "x.engine")], catch_exceptions=False)
    engine.write_bytes(engine.read_bytes() + b"x")
    with pytest.raises(ArtefactError, match="not the engine that its metadata file describes"):
        runner.invoke(app, ["inspect", str(engine)], catch_exceptions=False)
    (tmp_path / "digits.engine.json").unlink()
    with pytest.raises(ArtefactError, match="has no metadata file"):
        runner.invoke(app, ["inspect", str(engine)], catch_exceptions=False)


def test_a_folder_of_webassembly_is_named(tmp_path: Path) -> None:
    (tmp_path / "net.json").write_text(json.dumps({"kind": WASM_KIND}))
    with pytest.raises(UsageError, match="It holds WebAssembly") as raised:
        CliRunner().invoke(app, ["inspect", str(tmp_path)], catch_exceptions=False)
    assert "build --target c" in raised.value.fix


def test_a_folder_of_c(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    write_c(Path(str(zoo_model("digits-attention"))), folder)

    def shown(*options: str) -> str:
        result = CliRunner().invoke(app, ["inspect", str(folder), *options], catch_exceptions=False)
        return result.stdout

    assert "digits-attention.onnx" in shown()
    assert "AttentionRouting" in shown()
    document = json.loads(shown("--json"))
    assert document["kind"] == "capsedge-c"
    assert sum(layer["products"] for layer in document["layers"]) == document["products"]
    with pytest.raises(UsageError, match="--layers does not apply"):
        shown("--layers")
    path = folder / "digits_attention.json"
    text = path.read_text()
    for name in ('"layers"', '"arena_bytes"', '"operator"', '"memory"', '"shape"'):
        path.write_text(text.replace(name, '"other"'))
        with pytest.raises(ArtefactError, match="is damaged"):
            shown()
    path.unlink()
    with pytest.raises(UsageError, match="is not a folder of C"):
        shown()


def test_the_indices_and_lengths_that_inputs_allow(tmp_path: Path) -> None:
    stated = {
        "ids": InputBounds(entries=2000, longest=(0, 50)),
        "age": InputBounds(longest=(0, 7)),
    }
    file = _save(
        tmp_path / "m.onnx",
        [helper.make_node("Concat", ["ids", "age", "x"], ["y"], axis=1)],
        [("ids", ["N", "L"]), ("age", ["N", "L"]), ("x", ["N", 3])],
        [("y", ["N", "M"])],
        metadata=inputs_property(stated),
    )
    assert inspect(file).to_dict()["bounds"]["ids"] == {
        "entries": 2000, "longest": (0, 50), "independent": False
    }  # fmt: skip
    lines = CliRunner().invoke(app, ["inspect", str(file)]).stdout.splitlines()
    (ids,) = [line for line in lines if line.split()[:1] == ["ids"]]
    (age,) = [line for line in lines if line.split()[:1] == ["age"]]
    (x,) = [line for line in lines if line.split()[:1] == ["x"]]
    assert ids.endswith("0 to 1,999, at most 50 along axis 1")
    assert age.endswith("at most 7 along axis 1")
    assert x.split() == ["x", "float32", "Nx3"]
