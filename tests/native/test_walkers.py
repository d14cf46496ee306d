"""What a file says, to three readers: the walkers in Python and C, and protobuf itself."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")
from google.protobuf.message import DecodeError  # noqa: E402

from capsedge.errors import CapsedgeError  # noqa: E402
from capsedge.runtime.onnx_file import summary  # noqa: E402
from capsedge.spec.onnx_wire import DOMAINS, SCHEMA  # noqa: E402
from tests.runtime.models import capsule_model  # noqa: E402
from tests.runtime.walking import Facts, in_python  # noqa: E402
from tests.runtime.wire import Writer, field, messages, model, mutated, varint  # noqa: E402
from tests.vectors import file_cases  # noqa: E402

from .builds import ARM_COMPILER, NATIVE, ROOT  # noqa: E402

Walk = Callable[[bytes], "Facts | None"]


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    return built(tmp_path_factory.mktemp("walk"))


def built(folder: Path) -> Walk:
    """The walker in C++, with the headers of ``folder/generated`` in place of the package's, if any."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    walk = ctypes.CDLL(str(compiled(compiler, folder, "-shared", "-fPIC"))).walk
    walk.restype = ctypes.c_size_t
    room = ctypes.create_string_buffer(1 << 20)

    def run(data: bytes) -> Facts | None:
        size = walk(data, ctypes.c_size_t(len(data)), room, ctypes.c_size_t(len(room)))
        assert size <= len(room)
        return facts_of(room.raw[:size].decode())

    return run


def compiled(compiler: str, folder: Path, *options: str) -> Path:
    """The library, or the program."""
    source = NATIVE / "libcapsedge" / "src"
    made = folder / "walk.so"
    subprocess.run(
        [compiler, "-std=c++17", "-O0", *options, f"-I{folder}",
         f"-I{source}", f"-I{source.parent}/include", f"-I{NATIVE}/onnxruntime", f"-I{NATIVE}",
         str(ROOT / "tests" / "native" / "walk.cpp"),
         *(str(source / f"{name}.cpp") for name in ("onnx_file", "text", "values")), "-o", str(made)],
        check=True,
    )  # fmt: skip
    return made


def facts_of(text: str) -> Facts | None:
    facts = {tuple(line.split("\x1f")) for line in text.split("\x1e")[:-1]}
    return None if any(kind == "refused" for kind, _, _ in facts) else facts  # type: ignore[return-value, misc]


def in_protobuf(data: bytes) -> Any:
    """The message; None where protobuf refuses it."""
    try:
        return onnx.ModelProto.FromString(data)
    except DecodeError:
        return None


def check(data: bytes, in_c: Walk) -> bool:
    """Both walkers agree, and see all that protobuf sees. True if they take the file."""
    python, c = in_python(data), in_c(data)
    assert python == c, data.hex()
    if python is None:
        return False
    seen = in_protobuf(data)
    if (
        seen is None
    ):  # numbers packed in a way that nobody reads, for one: the runtime refuses it, too
        return True
    external = [
        t for t in messages(seen, "TensorProto")
        if t.data_location == onnx.TensorProto.EXTERNAL or t.external_data
    ]  # fmt: skip
    # A location that protobuf does not know is none to it, and external to us.
    assert {("external", t.name, "") for t in external} <= python
    operators = {("operator", n.domain, n.op_type) for n in messages(seen, "NodeProto")}
    operators = {(a, "" if b == "ai.onnx" else b, c) for a, b, c in operators}
    assert operators == {f for f in python if f[0] == "operator"}, data.hex()
    functions = {("function", f.domain, f.name) for f in seen.functions}
    assert functions == {f for f in python if f[0] == "function"}
    metadata = {
        ("metadata", k, v) for k, v in {p.key: p.value for p in seen.metadata_props}.items()
    }
    assert metadata == {f for f in python if f[0] == "metadata"}
    return True


def test_the_walkers_have_the_official_schema() -> None:
    lines = SCHEMA.replace(",\n   ", ",").strip().splitlines()
    ours = dict(line.split(" ", 1) for line in lines)
    kinds = {
        1: "double",
        2: "float",
        3: "int64",
        4: "int64",
        5: "int32",
        9: "string",
        12: "bytes",
        14: "int32",
    }
    waiting, seen = [onnx.ModelProto.DESCRIPTOR], set()
    while waiting:
        message = waiting.pop()
        if message.name in seen:
            continue
        seen.add(message.name)
        entries = []
        for one in sorted(message.fields, key=lambda f: f.number):
            kind = one.message_type.name if one.message_type else kinds[one.type]
            mark = "*" if one.is_repeated else "|" if one.containing_oneof else ""
            entries.append(f"{one.number} {kind}{mark}")
            waiting += [one.message_type] if one.message_type else []
        # An older onnx lacks the newest fields.
        assert set(entries) <= set(ours[message.name].split(", ")), message.name
    assert seen <= set(ours)


@pytest.mark.parametrize("tricks", [0.0, 0.0005, 0.003, 0.03])
def test_random_files(tricks: float, in_c: Walk) -> None:
    taken = sum(check(Writer(seed, tricks).model(), in_c) for seed in range(200))
    assert taken == 200 if tricks == 0 else taken < 200
    assert taken > 0 or tricks > 0.01


def test_mutated_files(in_c: Walk) -> None:
    seeds = [capsule_model().SerializeToString()] + [Writer(s, 0.0).model() for s in range(6)]
    for data in mutated(seeds, 1500):
        check(data, in_c)


NODE = field(1, b"x") + field(2, b"y") + field(4, b"Relu")


def test_vectors(in_c: Walk) -> None:
    """C++ finds in the files of ``spec/vectors`` what they state, and protobuf no more."""
    cases = list(file_cases())
    assert not [case.name for case in cases if in_c(case.data) != case.facts]
    for case in cases:
        check(case.data, in_c)


@pytest.mark.thorough
def test_vectors_on_arm(tmp_path: Path) -> None:
    if not all(shutil.which(name) for name in (ARM_COMPILER, "qemu-aarch64")):
        pytest.skip("apt-get install g++-aarch64-linux-gnu qemu-user")
    cases = list(file_cases())
    files = [tmp_path / f"{k}.onnx" for k, _ in enumerate(cases)]
    for path, case in zip(files, cases, strict=True):
        path.write_bytes(case.data)
    program = compiled(ARM_COMPILER, tmp_path, "-static")
    done = subprocess.run(
        ["qemu-aarch64", str(program), *map(str, files)], capture_output=True, check=True
    )
    found = [facts_of(line) for line in done.stdout.decode().split("\x1d")[:-1]]
    assert found == [case.facts for case in cases]


@pytest.mark.thorough
def test_the_generated_tables_are_what_is_read(tmp_path: Path) -> None:
    """With a limit, a field's number, a domain and a message changed in them, other files are taken."""
    tables = tmp_path / "generated"
    shutil.copytree(NATIVE / "generated", tables)
    for name, old, new in (
        ("limits.h", "kWireDepth = 100;", "kWireDepth = 3;"),
        ("onnx_wire.h", "kNodeType = 4;", "kNodeType = 3;"),
        ("onnx_wire.h", '"ai.onnx.ml", ', '"else.where", '),
        (
            "onnx_wire.h",
            "\nNodeProto 1 string*, 2 string*, 3 string,",
            "\nNodeProto 1 string*, 2 string*,",
        ),
    ):
        text = (tables / name).read_text()
        assert text.count(old) == 1, old
        (tables / name).write_text(text.replace(old, new))
    walk = built(tmp_path)
    node = field(1, b"x") + field(2, b"y")
    deep = field(5, field(1, b"a") + field(5, field(8, b"w")))
    other = field(7, b"ai.onnx.ml")
    assert walk(model(field(1, node))) == {("operator", "", "")}
    assert walk(model(field(1, node + field(3, b"Relu")))) is None
    assert walk(model(field(1, node + deep))) is None
    assert ("harmful", "5", "") in (walk(model(field(1, node + other))) or set())
    assert in_python(model(field(1, node + deep))) is not None


def test_what_is_honest_is_taken(in_c: Walk) -> None:
    """Functions in domains of their own, listed domains, and lengths in more bytes than needed."""
    graph = field(1, NODE) + field(1, NODE + field(7, b"pkg.tool"))
    function = field(1, b"Relu") + field(10, b"pkg.tool") + field(7, NODE)
    data = field(1, 10) + varint(7 << 3 | 2) + varint(len(graph), 5) + graph + field(25, function)
    for facts in (in_python(data), in_c(data)):
        assert facts is not None
        assert not any(f[0] == "harmful" for f in facts)
    check(data, in_c)
    for domain in DOMAINS:
        assert check(model(field(1, NODE + field(7, domain.encode()))), in_c)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (model(field(1, b"") * 100_001), "more than 100,000 nodes"),
        pytest.param(
            model(field(13, b"") * 500_001),
            "more than 500,000 messages",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            model(field(2, b"")[:0] + field(1, NODE), b"\x42\x00" * 4_000_001),
            "more than",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_bombs_are_refused(data: bytes, message: str, in_c: Walk) -> None:
    with pytest.raises(CapsedgeError, match=message):
        summary.summarize(data)
    assert in_c(data) is None


def test_zoo_is_taken(in_c: Walk) -> None:
    from capsedge.runtime.zoo import default_model

    assert check(Path(default_model()).read_bytes(), in_c)
