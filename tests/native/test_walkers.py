"""What a file says, to three readers: the walkers in Python and C, and protobuf itself."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx")
from google.protobuf.message import DecodeError  # noqa: E402

from capsedge.errors import CapsedgeError  # noqa: E402
from capsedge.runtime.reading import onnx_file  # noqa: E402
from capsedge.runtime.reading.wire import SCHEMA  # noqa: E402
from tests.runtime.models import capsule_model  # noqa: E402
from tests.runtime.wire import Writer, field, long_tag, messages, model, mutated, varint  # noqa: E402
from tests.tables import table  # noqa: E402

from .builds import NATIVE, ROOT  # noqa: E402

Facts = set[tuple[str, str, str]]
Walk = Callable[[bytes], "Facts | None"]


def in_python(data: bytes) -> Facts | None:
    """What is in the file; None where it is refused."""
    try:
        found = onnx_file.summarize(data)
    except CapsedgeError:
        return None
    facts: Facts = {("external", name, "") for name in found.external}
    facts |= {("operator", domain, kind) for domain, kind in found.operators}
    facts |= {("function", domain, name) for domain, name in found.functions}
    facts |= {("metadata", key, value) for key, value in found.metadata.items()}
    try:
        onnx_file.check_harmless(found, "the model")
    except CapsedgeError as error:
        facts.add(("harmful", str(error.exit_code), ""))
    return facts


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler: apt-get install g++")
    library = tmp_path_factory.mktemp("walk") / "walk.so"
    source = NATIVE / "libcapsedge" / "src"
    subprocess.run(
        [compiler, "-std=c++17", "-O0", "-shared", "-fPIC",
         f"-I{source}", f"-I{source.parent}/include", f"-I{NATIVE}/onnxruntime",
         str(ROOT / "tests" / "native" / "walk.cpp"),
         *(str(source / f"{name}.cpp") for name in ("onnx_file", "text", "values")), "-o", str(library)],
        check=True,
    )  # fmt: skip
    walk = ctypes.CDLL(str(library)).walk
    walk.restype = ctypes.c_size_t
    room = ctypes.create_string_buffer(1 << 20)

    def run(data: bytes) -> Facts | None:
        size = walk(data, ctypes.c_size_t(len(data)), room, ctypes.c_size_t(len(room)))
        assert size <= len(room)
        lines = room.raw[:size].decode().split("\x1e")[:-1]
        facts = {tuple(line.split("\x1f")) for line in lines}
        return None if any(kind == "refused" for kind, _, _ in facts) else facts  # type: ignore[return-value, misc]

    return run


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


def test_both_walkers_have_the_official_schema() -> None:
    header = (NATIVE / "libcapsedge" / "src" / "onnx_schema.h").read_text()
    assert re.search(r'R"\((.*)\)"', header, re.DOTALL).group(1) == SCHEMA  # type: ignore[union-attr]
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


EXTERNAL = (
    field(8, b"secret")
    + field(2, 1)
    + field(1, 4)
    + field(14, 1)
    + field(13, field(1, b"location") + field(2, b"w.bin"))
)
NODE = field(1, b"x") + field(2, b"y") + field(4, b"Relu")


def constant(tensor: bytes, place: int = 5) -> bytes:
    """A node with the tensor in an attribute."""
    return (
        field(2, b"c") + field(4, b"Constant") + field(5, field(1, b"value") + field(place, tensor))
    )


def short(*pieces: bytes) -> bytes:
    return b"".join(pieces)


# Files in which protobuf finds a tensor in another file, or a node that may not be, by every way in.
HIDDEN = {
    "initializer": model(field(5, EXTERNAL)),
    "sparse values": model(field(15, field(1, EXTERNAL))),
    "sparse indices": model(field(15, field(2, EXTERNAL))),
    "attribute": model(field(1, constant(EXTERNAL))),
    "attribute of many": model(field(1, constant(EXTERNAL, 10))),
    "sparse attribute": model(field(1, constant(field(1, EXTERNAL), 22))),
    "sparse attributes": model(field(1, constant(field(2, EXTERNAL), 23))),
    "subgraph": model(field(1, constant(field(1, constant(EXTERNAL)), 6))),
    "subgraphs": model(field(1, constant(field(5, EXTERNAL), 11))),
    "function": model(field(1, NODE), field(25, field(1, b"f") + field(7, constant(EXTERNAL)))),
    "function default": model(
        field(1, NODE), field(25, field(1, b"f") + field(11, field(1, b"a") + field(5, EXTERNAL)))
    ),
    "function default graph": model(
        field(1, NODE), field(25, field(11, field(1, b"a") + field(6, field(5, EXTERNAL))))
    ),
    "function default sparse": model(
        field(1, NODE), field(25, field(11, field(22, field(1, EXTERNAL))))
    ),
    "training": model(field(1, NODE), field(20, field(1, field(5, EXTERNAL)))),
    "training algorithm": model(field(1, NODE), field(20, field(2, field(1, constant(EXTERNAL))))),
    "no location": model(
        field(5, field(8, b"w") + field(13, field(1, b"location") + field(2, b"w.bin")))
    ),
    "only a location": model(field(5, field(8, b"w") + field(14, 1))),
    "location with high bits": model(field(5, field(8, b"w") + field(14, 1 << 32 | 1))),
    "location twice": model(field(5, field(8, b"w") + field(14, 0) + field(14, 1))),
    "location, taken back": model(field(5, EXTERNAL + field(14, 0))),
    "long tag of the location": model(field(5, field(8, b"w") + long_tag(14, 0) + b"\x01")),
    "long tag of the entries": model(field(5, field(8, b"w") + long_tag(13, 2) + b"\x00")),
    "long tag of the tensor": model(long_tag(5, 2, 8) + varint(len(EXTERNAL)) + EXTERNAL),
    "long tag of the graph": short(
        field(1, 10),
        field(7, field(1, NODE)),
        long_tag(7, 2),
        varint(len(field(5, EXTERNAL))),
        field(5, EXTERNAL),
    ),
    "padded tag": model(varint(5 << 3 | 2, 5) + varint(len(EXTERNAL)) + EXTERNAL),
    "padded length": model(varint(5 << 3 | 2) + varint(len(EXTERNAL), 5) + EXTERNAL),
    "second graph": model(field(1, NODE), field(7, field(5, EXTERNAL))),
    "second t": model(
        field(
            1,
            field(4, b"Constant")
            + field(5, field(1, b"value") + field(5, field(8, b"w")) + field(5, EXTERNAL)),
        )
    ),
    "split t": model(
        field(
            1,
            field(4, b"Constant")
            + field(5, field(5, field(14, 1)) + field(5, field(13, field(1, b"location")))),
        )
    ),
    "type of the attribute says otherwise": model(
        field(1, field(4, b"Constant") + field(5, field(20, 2) + field(3, 1) + field(5, EXTERNAL)))
    ),
    "group around": model(
        field(1, NODE), short(varint(9 << 3 | 3), field(5, EXTERNAL), varint(9 << 3 | 4))
    ),
    "group as the tensor": model(short(varint(5 << 3 | 3), EXTERNAL, varint(5 << 3 | 4))),
    "compiled node": model(field(1, field(4, b"EPContext") + field(7, b"com.microsoft"))),
    "compiled node in a function": model(
        field(1, NODE), field(25, field(7, field(4, b"EPContext")))
    ),
    "compiled node, name twice": model(field(1, field(4, b"Relu") + field(4, b"EPContext"))),
    "unknown domain": model(field(1, field(4, b"PyOp") + field(7, b"pyop"))),
    "unknown domain in a subgraph": model(
        field(1, constant(field(1, field(4, b"PyOp") + field(7, b"ai.onnx.contrib")), 6))
    ),
    "ONNX Runtime's other format": b"\x12\x06ABORTM" + model(field(1, NODE)),
    "unknown field": model(field(1, NODE), field(99, EXTERNAL)),
    "deep": model(field(1, NODE)),
}
for _ in range(60):
    HIDDEN["deep"] = model(field(1, constant(HIDDEN["deep"], 6)))
assert HIDDEN["ONNX Runtime's other format"][4:8] == b"ORTM"


@table("name", HIDDEN)
def test_nothing_hides(name: str, in_c: Walk) -> None:
    for facts in (in_python(HIDDEN[name]), in_c(HIDDEN[name])):
        assert facts is None or any(f[0] == "harmful" for f in facts)
    check(HIDDEN[name], in_c)


def test_what_is_honest_is_taken(in_c: Walk) -> None:
    """Functions in domains of their own, listed domains, and lengths in more bytes than needed."""
    graph = field(1, NODE) + field(1, NODE + field(7, b"pkg.tool"))
    function = field(1, b"Relu") + field(10, b"pkg.tool") + field(7, NODE)
    data = field(1, 10) + varint(7 << 3 | 2) + varint(len(graph), 5) + graph + field(25, function)
    for facts in (in_python(data), in_c(data)):
        assert facts is not None
        assert not any(f[0] == "harmful" for f in facts)
    check(data, in_c)
    for domain in onnx_file.DOMAINS:
        assert check(model(field(1, NODE + field(7, domain.encode()))), in_c)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (model(field(1, b"") * 100_001), "more than 100,000 nodes"),
        (model(field(13, b"") * 500_001), "more than 500,000 messages"),
        (model(field(2, b"")[:0] + field(1, NODE), b"\x42\x00" * 4_000_001), "more than"),
    ],
)
def test_bombs_are_refused(data: bytes, message: str, in_c: Walk) -> None:
    with pytest.raises(CapsedgeError, match=message):
        onnx_file.summarize(data)
    assert in_c(data) is None


def test_zoo_is_taken(in_c: Walk) -> None:
    from capsedge.zoo import default_model

    assert check(Path(default_model()).read_bytes(), in_c)
