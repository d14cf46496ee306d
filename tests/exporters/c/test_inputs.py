"""Networks with several inputs, of floats and integers, as C: results, names, memory, and what is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from capsedge.cli import app
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.exporters.c import measurement, naming, wasm
from capsedge.exporters.c.folder import origin_of, read_report
from capsedge.exporters.c.naming import RESERVED_WORDS
from capsedge.exporters.c.write_c import generate_c_folder, translate, write_c
from capsedge.graph.bodies import function_body
from capsedge.spec import limits
from capsedge.spec.operators import DOMAIN, OPERATORS
from tests.exporters.c.compiled import Compiled, compiler
from tests.exporters.c.sanitized import Case, extreme_inputs, run_sanitized
from tests.exporters.c.test_naming import OWN
from tests.tables import table

KINDS = {"float32": TensorProto.FLOAT, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
Inputs = dict[str, tuple[str, list[int | str]]]


def _graph(
    nodes: list[onnx.NodeProto], inputs: Inputs, constants: dict[str, Any], **other: Any
) -> onnx.ModelProto:
    given = [
        helper.make_tensor_value_info(
            name, KINDS.get(kind) or getattr(TensorProto, kind.upper()), shape
        )
        for name, (kind, shape) in inputs.items()
    ]
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", given, out, stored)
    versions = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9, **other)


def fusion(
    image: str, features: str, batch: int | str = "N", dequantize: bool = False
) -> onnx.ModelProto:
    """An image and features of these types, as the children of one layer of capsules."""
    rng = np.random.default_rng(5)
    nodes, names = [], {}
    for name, kind in (("image", image), ("features", features)):
        names[name] = name
        if kind != "float32" and dequantize:
            nodes.append(
                helper.make_node("DequantizeLinear", [name, "scale", f"zero_{kind}"], [f"{name}_f"])
            )
            names[name] = f"{name}_f"
        elif kind != "float32":
            nodes += [
                helper.make_node("Cast", [name], [f"{name}_c"], to=TensorProto.FLOAT),
                helper.make_node("Mul", [f"{name}_c", f"{name}_scale"], [f"{name}_f"]),
            ]
            names[name] = f"{name}_f"
    weight = rng.standard_normal((10, 3, 6, 4)).astype(np.float32) * 0.4
    constants = {
        "image_scale": np.float32(1 / 255), "features_scale": np.float32(1 / 127), "scale": np.float32(0.01),
        "zero_int8": np.int8(-3), "zero_uint8": np.uint8(128),
        "w": rng.standard_normal((4, 1, 3, 3)).astype(np.float32),
        "m": rng.standard_normal((5, 8)).astype(np.float32), "flat": np.array([0, -1]),
        "u": np.array([0, -1, 4]), "weight": weight, "prior": np.zeros((10, 3), np.float32),
        "bias": rng.standard_normal((3, 6)).astype(np.float32) * 0.1,
    }  # fmt: skip
    given = OPERATORS["DynamicRouting"].complete({})
    nodes += [
        helper.make_node("Conv", [names["image"], "w"], ["map"], strides=[2, 2]),
        helper.make_node("Reshape", ["map", "flat"], ["pixels"]),
        helper.make_node("MatMul", [names["features"], "m"], ["rest"]),
        helper.make_node("Concat", ["pixels", "rest"], ["both"], axis=1),
        helper.make_node("Reshape", ["both", "u"], ["children"]),
        helper.make_node(
            "Squash", ["children"], ["squashed"], domain=DOMAIN, axis=-1, epsilon=1e-8
        ),
        helper.make_node(
            "DynamicRouting", ["squashed", "weight", "prior", "bias"], ["y"], domain=DOMAIN, **given
        ),
    ]
    bodies = [
        function_body("Squash", [(None, 10, 4)], {"axis": -1, "epsilon": 1e-8}),
        function_body("DynamicRouting", [(None, 10, 4), (10, 3, 6, 4), (10, 3), (3, 6)], given),
    ]
    inputs: Inputs = {"image": (image, [batch, 1, 9, 5]), "features": (features, [batch, 5])}
    return _graph(nodes, inputs, constants, functions=bodies)


def _drawn(kind: str, shape: Sequence[int], seed: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    if kind == "float32":
        return rng.standard_normal(shape).astype(kind)
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max + 1, shape).astype(kind)


def _rows(description: dict[str, Any], seed: int) -> list[NDArray[Any]]:
    return [_drawn(i["type"], i["shape"], seed + k) for k, i in enumerate(description["inputs"])]


def _saved(folder: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


# --- Results ---

PAIRS = [("float32", "float32"), ("float32", "int8"), ("uint8", "float32"), ("uint8", "int8")]


@pytest.mark.thorough
@pytest.mark.parametrize(("image", "features"), PAIRS)
@pytest.mark.parametrize("dequantize", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_results_are_those_of_onnx_runtime(
    image: str, features: str, dequantize: bool, batch: int, tmp_path: Path
) -> None:
    model = fusion(image, features, dequantize=dequantize)
    net = Compiled(_saved(tmp_path, model), tmp_path / "net", batch=batch)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    known = []
    for seed in range(5):
        rows = _rows(net.description, seed)
        assert rows[0].shape[0] == batch
        (want,) = session.run(None, dict(zip(("image", "features"), rows, strict=True)))
        known.append((rows, net.run(*rows)["y"]))
        np.testing.assert_allclose(known[-1][1], want, rtol=1e-4, atol=1e-5)
    for flag in ("-DCAPS_PORTABLE", "-march=native"):
        net.again(flag)
        for rows, want in known:
            assert np.array_equal(net.run(*rows)["y"], want), flag


@pytest.mark.thorough
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Buffers of their exact sizes; extreme floats, and integers over their range."""
    cases = []
    for number, (image, features) in enumerate(PAIRS):
        files, description = generate_c_folder(
            fusion(image, features).SerializeToString(), Path("m.onnx"), f"n{number}", 2
        )
        shapes = [i["shape"] for i in description["inputs"]]
        extreme = [extreme_inputs(shape, k) for k, shape in enumerate(shapes)]
        inputs = []
        for run, floats in enumerate(zip(*extreme, strict=True)):
            rows = _rows(description, run)
            inputs.append(
                tuple(f if r.dtype == np.float32 else r for f, r in zip(floats, rows, strict=True))
            )
        cases.append(Case(files, description, inputs))
    for flags in (["-O0"], ["-O0", "-DCAPS_PORTABLE"]):
        assert run_sanitized(cases, tmp_path / flags[-1], flags) == ""


@pytest.mark.thorough
def test_one_integer_input(tmp_path: Path) -> None:
    """It is `input`, as an input of floats is."""
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["f"]),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    constants = {"s": np.float32(0.5), "z": np.uint8(7)}
    model = _graph(nodes, {"x": ("uint8", ["N", 2, 3, 4])}, constants)
    net = Compiled(_saved(tmp_path, model), tmp_path / "net")
    header = (tmp_path / "net/net.h").read_text()
    assert "void net_run(void *arena, const uint8_t *input, net_outputs *outputs);" in header
    assert "#define NET_INPUT_SIZE 24" in header
    assert "#define NET_INPUT_HEIGHT 3" in header
    x = _drawn("uint8", (1, 2, 3, 4), 0)
    want = np.maximum((x.astype(np.float32) - 7) * 0.5, 0)
    assert np.array_equal(net.run(x)["y"], want)
    assert net.description["memory"]["input_bytes"] == 24


@pytest.mark.thorough
def test_a_measurement_fills_every_input(tmp_path: Path) -> None:
    files, description = generate_c_folder(
        fusion("uint8", "int8").SerializeToString(), Path("m.onnx"), "net"
    )
    words = [compiler(), *measurement.FLAGS, "-Wall", "-Wextra", "-Werror"]
    found = measurement.hash_here(files, description, words)
    assert found == measurement.hash_here(files, description, [*words, "-DCAPS_PORTABLE"])
    zeroed = files["net.c"].replace(b"(float)input_features[", b"0.0f * (float)input_features[")
    assert zeroed != files["net.c"]
    assert found != measurement.hash_here({**files, "net.c": zeroed}, description, words)


# --- The folder ---


def test_the_header_names_every_input(tmp_path: Path) -> None:
    report = write_c(
        _saved(tmp_path, fusion("uint8", "int8")), tmp_path / "net", name="net", batch=2
    )
    header = (tmp_path / "net/net.h").read_text()
    declared = header[
        header.index("void net_run(") : header.index(");", header.index("void net_run("))
    ]
    assert declared.splitlines() == [
        "void net_run(void *arena,",
        "  const uint8_t *input_image, /* [2, 1, 9, 5]: image */",
        "  const int8_t *input_features, /* [2, 5]: features */",
        "  net_outputs *outputs",
    ]
    for line in ("INPUT_IMAGE_SIZE 90", "INPUT_FEATURES_SIZE 10", "BATCH 2"):
        assert f"#define NET_{line}\n" in header
    assert "NET_INPUT_SIZE" not in header
    assert report.description["inputs"] == [
        {"name": "image", "parameter": "input_image", "type": "uint8", "shape": [2, 1, 9, 5], "size": 90},
        {"name": "features", "parameter": "input_features", "type": "int8", "shape": [2, 5], "size": 10},
    ]  # fmt: skip
    assert report.description["memory"]["input_bytes"] == 100
    assert origin_of(tmp_path / "net").batch == 2
    assert (
        "| input_features, 10 int8 of the caller's (RAM) | 10 |"
        in (tmp_path / "net/README.md").read_text()
    )
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "net")], terminal_width=200).output
    assert "2 x 1 x 9 x 5, uint8" in shown
    assert [i.parameter for i in read_report(tmp_path / "net").inputs] == [
        "input_image",
        "input_features",
    ]


def test_fit_counts_integers_by_their_size(tmp_path: Path) -> None:
    def arena_and_inputs(kind: str) -> tuple[str, int]:
        source = _saved(tmp_path, fusion(kind, "float32"))
        with pytest.raises(UsageError) as refused:
            write_c(source, tmp_path / "a", fit={"ram": 16})
        memory = write_c(source, tmp_path / kind).description["memory"]
        return refused.value.why, memory["input_bytes"]

    assert "inputs 200 B" in arena_and_inputs("float32")[0]
    why, size = arena_and_inputs("uint8")
    assert "inputs 65 B" in why
    assert size == 9 * 5 + 4 * 5


@pytest.mark.thorough
def test_the_example_compiles_and_the_header_is_cpp_too(tmp_path: Path) -> None:
    """With inputs of the names of words, macros and of the source's own variables."""
    names = list(
        {naming.c_parameter_name(n).upper(): n for n in [*sorted(RESERVED_WORDS), *OWN]}.values()
    )
    for first in range(0, len(names), limits.C_INPUTS):
        folder = tmp_path / str(first)
        folder.mkdir()
        part = [n for n in names[first : first + limits.C_INPUTS] if n not in ("y", "sum")]
        model = _graph(
            [helper.make_node("Sum", part, ["sum"]), helper.make_node("Relu", ["sum"], ["y"])],
            {name: ("float32", [1, 2]) for name in part},
            {},
        )
        write_c(_saved(folder, model), folder / "net", name="net")
        words = [compiler(), "-Wall", "-Wextra", "-Werror"]
        files = [str(folder / "net" / name) for name in ("main.c", "net.c")]
        program = folder / "example"
        subprocess.run([*words, "-std=c99", "-o", str(program), *files], check=True)
        printed = subprocess.run([program], check=True, capture_output=True).stdout
        assert printed.split() == [b"0", b"0"]
        (folder / "user.cpp").write_text(
            '#include <cmath>\n#include "net.h"\nint main() { return 0; }\n'
        )
        given = ["-x", "c++", "-fsyntax-only", "-I", str(folder / "net"), str(folder / "user.cpp")]
        subprocess.run([*words, *given], check=True)


def test_no_output_has_the_name_of_an_input(tmp_path: Path) -> None:
    """Their sizes are macros of one form."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["y"]),
        helper.make_node("Relu", ["y"], ["input.a"]),
    ]
    model = _graph(nodes, {"a": ("float32", [1, 2]), "b": ("float32", [1, 2])}, {})
    model.graph.output.append(helper.make_tensor_value_info("input.a", TensorProto.FLOAT, [1, 2]))
    description = write_c(_saved(tmp_path, model), tmp_path / "net", name="net").description
    assert [o["field"] for o in description["outputs"]] == ["y", "input_a_2"]
    defined = [
        line for line in (tmp_path / "net/net.h").read_text().splitlines() if "#define" in line
    ]
    assert len({line.split()[1] for line in defined}) == len(defined)


# --- Refused ---

TWO: Inputs = {"a": ("float32", ["N", 2]), "b": ("float32", ["N", 2])}
ADD = helper.make_node("Add", ["a", "b"], ["y"])
RELU = helper.make_node("Relu", ["a"], ["y"])


def _add_of(*names: str) -> onnx.ModelProto:
    return _graph(
        [helper.make_node("Sum", list(names), ["y"])], {n: ("float32", ["N", 2]) for n in names}, {}
    )


def _cast_of(kind: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["a", "c"], ["y"]),
    ]
    return _graph(nodes, {"a": ("float32", ["N", 2]), "b": (kind, ["N", 2])}, {})


def _shape_of() -> onnx.ModelProto:
    """The second input gives nothing but its shape."""
    nodes = [
        helper.make_node("Shape", ["b"], ["s"]),
        helper.make_node("Reshape", ["a", "s"], ["y"]),
    ]
    return _graph(nodes, TWO, {})


def _index_of() -> onnx.ModelProto:
    """Integers that index a table: no C is written, so none reads beyond it."""
    nodes = [
        helper.make_node("Cast", ["b"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["t", "i"], ["rows"]),
        helper.make_node("Add", ["a", "rows"], ["y"]),
    ]
    inputs: Inputs = {"a": ("float32", ["N", 2]), "b": ("uint8", ["N", 2])}
    return _graph(nodes, inputs, {"t": np.zeros(9, np.float32)})


REFUSED: dict[str, tuple[onnx.ModelProto, str]] = {
    "int64": (_cast_of("int64"), r"float32, int8 and uint8, but the file has a \(float32\), b \(int64\)"),
    "float16": (_cast_of("float16"), r"b \(float16\)"),
    "bool": (_cast_of("bool"), r"b \(bool\)"),
    "many": (_add_of(*(f"x{k}" for k in range(126))), r"It has 126 inputs; the C source takes 1 to 125\."),
    "one name": (_add_of("a.b", "a-b"), r"'a\.b' and 'a-b' would both be input_a_b in C"),
    "one macro": (_add_of("Table", "table"), r"'Table' and 'table' would both be input_table in C"),
    "unused": (_graph([RELU], TWO, {}), r"No result depends on the values of its input 'b'"),
    "a shape": (_shape_of(), r"No result depends on the values of its input 'b'"),
    "batches": (
        _graph([ADD], {"a": ("float32", [4, 2]), "b": ("float32", [1, 2])}, {}),
        r"Its inputs have different batches: a 4, b 1\.",
    ),
    "a free axis": (
        _graph([ADD], {**TWO, "b": ("float32", ["N", "M"])}, {}),
        r"Its input 'b' has a free dimension other than the batch",
    ),
    "no axis": (
        _graph([ADD], {**TWO, "b": ("float32", [])}, {}), r"input 'b' is a single number, without a batch",
    ),
    "an index": (_index_of(), r"an index that is computed"),
}  # fmt: skip


@table("name, model, why", [(name, *row) for name, row in REFUSED.items()])
def test_what_c_does_not_take_is_refused(name: str, model: onnx.ModelProto, why: str) -> None:
    with pytest.raises(UnsupportedModelError, match=why) as raised:
        translate(model.SerializeToString(), model, "net", None, name)
    assert raised.value.fix


@pytest.mark.thorough
@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_written_of_what_is_refused(name: str, tmp_path: Path) -> None:
    model, why = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=why):
        write_c(_saved(tmp_path, model), tmp_path / "net")
    assert not (tmp_path / "net").exists()


def test_a_batch_that_one_input_fixes_is_that_of_all(tmp_path: Path) -> None:
    model = _graph([ADD], {"a": ("float32", [4, 2]), "b": ("float32", ["N", 2])}, {})
    with pytest.raises(UsageError, match="fixed at batch 4, not 1"):
        write_c(_saved(tmp_path, model), tmp_path / "net", batch=1)
    shapes = write_c(_saved(tmp_path, model), tmp_path / "net", batch=4).description["inputs"]
    assert [i["shape"] for i in shapes] == [[4, 2], [4, 2]]


def test_webassembly_takes_one_input_of_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wasm, "_compiler", lambda: Path("zig"))
    with pytest.raises(
        UnsupportedModelError, match="one float32 input, but the file has image"
    ) as raised:
        wasm.write_wasm(_saved(tmp_path, fusion("uint8", "int8")), tmp_path / "net")
    assert "--target c" in raised.value.fix
