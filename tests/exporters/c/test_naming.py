"""Names that C, its headers or the generated source use already: outputs, files and prefixes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from hashlib import sha256
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from capsedge.errors import UsageError
from capsedge.exporters.c import naming
from capsedge.exporters.c.naming import RESERVED_FILES, RESERVED_WORDS
from capsedge.exporters.c.write_c import write_c
from tests.exporters.c.compiled import compiler

_OWN = """
input output outputs picture pixels arena memory index poses i k k0 v0 i0 d0 c x y run net NET net_run
INFINITY NAN NULL EOF BUFSIZ INT8_MAX CAPS_INLINE CAPS_VECTORS CAPSEDGE_STEP caps_exp printf stdin
NET_INPUT NET_ARENA_BYTES PRId8 SCNu64 I NET_H
"""
OWN = _OWN.split()
HEADERS = (
    "stdint",
    "math",
    "string",
    "stdio",
    "stddef",
    "inttypes",
    "complex",
    "errno",
    "emmintrin",
)


def _identifiers() -> list[str]:
    """Every macro and every other identifier of the headers that the source and its users include."""
    text = "".join(f"#include <{name}.h>\n" for name in HEADERS)
    words = [compiler(), "-std=gnu11", "-E", "-x", "c", "-"]
    found: set[str] = set()
    for extra in ([], ["-dM"]):
        done = subprocess.run(
            [*words, *extra], input=text, capture_output=True, text=True, check=True
        )
        lines = (line for line in done.stdout.splitlines() if not line.startswith("# "))
        if extra:
            found |= {line.split()[1].split("(")[0] for line in lines if line.strip()}
        else:
            found |= set(re.findall(r"\b[A-Za-z_]\w*\b", "\n".join(lines)))
    return sorted(found)


def _unusual() -> list[str]:
    rng = np.random.default_rng(0)
    letters = list("aZ_0 9.-/\\\"'?*%$#\n\té漢\u202e🙂")
    return ["".join(rng.choice(letters, rng.integers(0, 12))) + f"{k}" for k in range(500)]


def _network(path: Path, outputs: list[str]) -> Path:
    nodes = [helper.make_node("Relu", ["x"], ["first"])]
    nodes += [helper.make_node("Identity", ["first"], [name]) for name in outputs]
    shape = [1, 2]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
    )  # fmt: skip
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path
    )
    return path


@pytest.mark.thorough
def test_outputs_of_every_name_compile(tmp_path: Path) -> None:
    names = [
        n
        for n in dict.fromkeys([*RESERVED_WORDS, *OWN, *_identifiers(), *_unusual()])
        if n not in ("x", "first")
    ]
    assert len(names) > 2000
    fields: dict[str, str] = {}
    for name in names:
        fields[name] = naming.c_field_name(name, fields.values())
    sizes = [field.upper() for field in fields.values()]
    assert len(set(sizes)) == len(sizes)
    assert not {"INPUT", "PICTURE"} & set(sizes)
    lines = [f"#include <{name}.h>" for name in HEADERS]
    lines += [
        "typedef struct {",
        *(f"  float *{field};" for field in fields.values()),
        "} results;",
    ]
    (tmp_path / "all.c").write_text("\n".join([*lines, ""]))
    for words in (["-std=c99"], ["-std=gnu17"], ["-std=gnu2x"], ["-x", "c++", "-std=gnu++20"]):
        given = [compiler(), *words, "-fsyntax-only", "-fmax-errors=5"]
        if "c++" in words:
            (tmp_path / "all.c").write_text(
                "\n".join(["#include <cmath>", *[x for x in lines if "complex" not in x], ""])
            )
        subprocess.run([*given, str(tmp_path / "all.c")], check=True)


@pytest.mark.thorough
def test_a_network_with_such_outputs_compiles_with_its_example(tmp_path: Path) -> None:
    names = [
        n
        for n in dict.fromkeys([*sorted(RESERVED_WORDS), *OWN, *_unusual()[:40]])
        if n not in ("x", "first")
    ]
    names = [n.encode("utf-8", "ignore").decode() for n in names]
    write_c(_network(tmp_path / "m.onnx", names), tmp_path / "net", name="net")
    words = [compiler(), "-Wall", "-Wextra", "-Werror"]
    for standard in ("c99", "gnu17"):
        files = [str(tmp_path / "net" / name) for name in ("main.c", "net.c")]
        subprocess.run(
            [*words, f"-std={standard}", "-o", str(tmp_path / "example"), *files], check=True
        )
    printed = subprocess.run([tmp_path / "example"], check=True, capture_output=True).stdout
    assert printed.split() == [b"0", b"0"]
    (tmp_path / "user.cpp").write_text(
        '#include <cstdio>\n#include "net.h"\nint main() { return 0; }\n'
    )
    subprocess.run(
        [
            *words,
            "-x",
            "c++",
            "-fsyntax-only",
            "-I",
            str(tmp_path / "net"),
            str(tmp_path / "user.cpp"),
        ],
        check=True,
    )


@pytest.mark.parametrize(
    "name",
    [
        "string",
        "Math",
        "stdint",
        "library",
        "main",
        "test",
        "aux",
        "COM1",
        "caps_net",
        "zephyr",
        "emmintrin",
    ],
)
def test_a_name_of_another_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Invalid --name"):
        write_c(_network(tmp_path / "m.onnx", ["y"]), tmp_path / "net", name=name)


def test_every_file_gets_a_name_that_may_be_given() -> None:
    for stem in [
        *RESERVED_WORDS,
        *RESERVED_FILES,
        *OWN,
        *_unusual(),
        "caps_net",
        "2d",
        "",
        "com1",
        "x" * 300,
        "a\nb",
        "\udcff",
    ]:
        prefix = naming.prefix_of(stem)
        assert naming.check_prefix(prefix) == prefix
    assert [naming.prefix_of(stem) for stem in ("digits-em.int8", "input", "arena", "string")] == [
        "digits_em_int8", "input", "arena", "model_string",
    ]  # fmt: skip


@pytest.mark.parametrize("file", [b"caps_net.onnx", b"a\nb.onnx", b"\xff.onnx", b"string.onnx"])
def test_the_source_of_a_file_of_any_name_can_be_written_again(file: bytes, tmp_path: Path) -> None:
    """As `verify` does, from what the description records."""
    from capsedge.exporters.c.folder import origin_of
    from capsedge.exporters.c.write_c import generate_c_folder

    source = _network(tmp_path / "m.onnx", ["y"]).rename(
        os.fsdecode(os.fsencode(tmp_path) + b"/" + file)
    )
    written = write_c(source, tmp_path / "net")
    origin = origin_of(tmp_path / "net")
    files, _ = generate_c_folder(
        source.read_bytes(), Path(origin.file), naming.check_prefix(origin.name), 1
    )
    name = written.description["name"]
    for suffix in ("c", "h"):
        assert files[f"{name}.{suffix}"] == (tmp_path / f"net/{name}.{suffix}").read_bytes()


def test_a_planted_description_deletes_no_foreign_file(tmp_path: Path) -> None:
    source, folder = _network(tmp_path / "m.onnx", ["y"]), tmp_path / "net"
    written = write_c(source, folder, name="net").description
    (folder / "main.c").write_text("mine")
    with pytest.raises(UsageError, match=r"main\.c, which was not written by an earlier run"):
        write_c(source, folder, name="net")
    (folder / "thesis.txt").write_text("mine")
    for path in ("thesis.txt", "../m.onnx", "main.c"):
        content = (folder / path).read_bytes()
        planted = {**written, "files": {**written["files"], path: sha256(content).hexdigest()}}
        planted["files"]["main.c"] = sha256(b"mine").hexdigest()
        (folder / "net.json").write_text(json.dumps(planted))
        with pytest.raises(UsageError, match=r"thesis\.txt, which was not"):
            write_c(source, folder, name="net")
        (folder / "net.json").write_text(json.dumps({**planted, "files": list(planted["files"])}))
        with pytest.raises(UsageError, match="which was not written by an earlier run"):
            write_c(source, folder, name="net")
    assert (folder / "main.c").read_text() == (folder / "thesis.txt").read_text() == "mine"
