"""The folder: strings of strangers, names, what is replaced, what does not fit."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.exporters.build_options import parse_fit
from capsedge.exporters.c import naming
from capsedge.exporters.c.write_c import write_c
from capsedge.runtime.metadata.metadata import ModelMetadata, Preprocessing
from tests.exporters.c.compiled import compiler
from tests.runtime.test_table_indices import table_file

HOSTILE = st.text(max_size=40) | st.sampled_from(
    [
        "*/ int x; /*",
        '"; system("x"); "',
        "\\",
        "??/",
        "a\nb",
        "\u202e",
        "${ENV{HOME}}",
        "\x00",
        "%s%n",
        "'",
        "]=]",
    ]
)


def tiny(
    folder: Path, name: str = "node", output: str = "lengths", labels: tuple[str, ...] = ("a", "b")
) -> Path:
    """A network of one product, with these strings."""
    p = Preprocessing(height=1, width=2, channels=1)
    properties = ModelMetadata("capsnet", {}, "dynamic", 3, labels, p).to_properties()
    graph = helper.make_graph(
        [
            helper.make_node("Reshape", ["images", "s"], ["flat"]),
            helper.make_node("MatMul", ["flat", "w"], [output], name=name),
        ],
        "g",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 1, 1, 2])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", 2])],
        [
            numpy_helper.from_array(np.array([-1, 2]), "s"),
            numpy_helper.from_array(np.eye(2, dtype=np.float32), "w"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    helper.set_model_props(model, properties)
    path = folder / "tiny.onnx"
    onnx.save(model, path)
    return path


@settings(max_examples=40)
@given(text=HOSTILE)
def test_a_string_of_c_stays_a_string(text: str) -> None:
    literal = naming.c_string(text)
    assert re.fullmatch(r'"(?:[ -!#->@-\[\]-~]|\\[0-3][0-7]{2})*"', literal)
    inner = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), literal[1:-1])
    assert inner.encode("latin-1") == text.encode("utf-8", "surrogateescape")


@settings(max_examples=40)
@given(text=HOSTILE)
def test_a_comment_and_a_field_are_harmless(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9 _.,:+()\[\]-]+", naming.in_comment(text))
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", naming.c_field_name(text, ["lengths"]))
    assert naming.check_prefix(naming.prefix_of(text))


@pytest.mark.thorough
@settings(max_examples=15, deadline=None)
@given(name=HOSTILE, labels=st.tuples(HOSTILE, HOSTILE))
def test_hostile_strings_compile_to_themselves(
    tmp_path_factory: pytest.TempPathFactory, name: str, labels: tuple[str, str]
) -> None:
    labels = (labels[0] + "1", labels[1] + "2")
    folder = tmp_path_factory.mktemp("hostile")
    try:
        source = tiny(folder, name.encode("utf-8", "ignore").decode(), "lengths", labels)
    except (ValueError, UnicodeEncodeError):
        return  # no metadata has such labels
    write_c(source, folder / "net", name="net")
    words = [compiler(), "-std=c99", "-Wall", "-Wextra", "-Werror", "-o", str(folder / "example")]
    subprocess.run([*words, str(folder / "net/main.c"), str(folder / "net/net.c")], check=True)
    printed = subprocess.run([folder / "example"], check=True, capture_output=True).stdout
    if not any("\x00" in label for label in labels):
        assert printed == b"".join(label.encode() + b" 0\n" for label in labels)
    for path in (folder / "net").rglob("*"):
        if path.is_file():
            assert path.read_bytes().isascii()
    json.loads((folder / "net/library.json").read_text())


@pytest.mark.parametrize("name", ["int", "2d", "a-b", "", "class", "caps_x", "é", "x" * 80, "a b"])
def test_a_name_that_is_no_identifier_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Invalid --name"):
        write_c(tiny(tmp_path), tmp_path / "net", name=name)


def test_only_our_own_folder_is_replaced(tmp_path: Path) -> None:
    source, folder = tiny(tmp_path), tmp_path / "net"
    write_c(source, folder)
    write_c(source, folder, name="other")
    assert not (folder / "tiny.c").exists()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"notes\.txt, which was not written by an earlier run"):
        write_c(source, folder)


def test_histories_of_ids_are_refused_with_their_types(tmp_path: Path) -> None:
    source = table_file(tmp_path / "m.onnx")
    with pytest.raises(UnsupportedModelError, match=r"the file has hist \(int64\), user \(int64\)"):
        write_c(source, tmp_path / "net")


def test_what_does_not_fit_is_refused_with_the_layer(tmp_path: Path) -> None:
    source, folder = tiny(tmp_path), tmp_path / "net"
    with pytest.raises(
        UsageError, match=r"flash: .* more than 100 B; most flash: node \(MatMul\)"
    ) as raised:
        write_c(source, folder, fit={"flash": 100})
    assert "capsedge quantize" in raised.value.fix
    assert not folder.exists()
    write_c(source, folder, fit={"flash": 100_000, "ram": 100_000})


def test_sizes_to_fit() -> None:
    assert parse_fit("flash=256K,ram=1M") == {"flash": 256 << 10, "ram": 1 << 20}
    for wrong in ("flash", "flash=", "rom=4K", "flash=1K,flash=2K", "flash=-1", "flash=4G"):
        with pytest.raises(UsageError, match="Invalid --fit"):
            parse_fit(wrong)


def test_batch_of_the_file_or_as_asked(tmp_path: Path) -> None:
    source = tiny(tmp_path)
    assert write_c(source, tmp_path / "one").description["inputs"][0]["shape"] == [1, 1, 1, 2]
    assert write_c(source, tmp_path / "three", batch=3).description["inputs"][0]["shape"] == [
        3,
        1,
        1,
        2,
    ]


def test_a_weight_of_four_bits_is_refused_by_the_name_of_its_node(tmp_path: Path) -> None:
    source = tiny(tmp_path, name="classes")
    model = onnx.load(source)
    tensor = helper.make_tensor("four", TensorProto.INT4, [2, 2], np.zeros(4, np.int8))
    scale = numpy_helper.from_array(np.float32(1), "scale")
    model.graph.initializer[1].CopyFrom(tensor)
    model.graph.initializer.append(scale)
    model.graph.node.insert(
        1, helper.make_node("DequantizeLinear", ["four", "scale"], ["w"], name="wide")
    )
    model.opset_import[0].version = 21
    model.ir_version = 10
    onnx.save(model, source)
    with pytest.raises(
        UnsupportedModelError, match=r"'wide' \(DequantizeLinear\) cannot be written as C"
    ):
        write_c(source, tmp_path / "net")
