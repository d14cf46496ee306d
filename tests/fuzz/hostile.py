"""Inputs that once did harm, and their kin: too large or too many to be kept as files, so they are made."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz import option_values, papers_sets, readers, requests

DIGITS = "9" * 400
NESTED = "[" * 100_000
NPY = "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }"


def npy(header: str, data: bytes = b"") -> bytes:
    """An npy file of any header."""
    text = header.encode("latin-1") + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text) % 65536) + text + data


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as made:
        for name, data in members.items():
            made.writestr(name, data)
    return buffer.getvalue()


def images_npz(header: str, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive whose images have a header of this kind."""
    return archive({"images.npy": npy(header, bytes(1000))}, method)


def _spoiled(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes((value,)) + data[at + 1 :]


def npz() -> dict[str, bytes]:
    """Archives of arrays."""
    whole = images_npz(NPY % "10, 10, 10")
    plain = images_npz(NPY % "10, 10, 10", zipfile.ZIP_STORED)
    return {
        "claims 4.9 GiB": images_npz(NPY % "5261334937,"),
        "claims 2**63 images": images_npz(NPY % "9223372036854775808, 2, 2"),
        "no images, each of 2**60 bytes": images_npz(NPY % "0, 1152921504606846976, 64"),
        "a shape of 400 digits": images_npz(NPY % f"{DIGITS},"),
        "a shape that is nested": images_npz(NPY % ("(" * 5000)),
        "a header that is code": images_npz("__import__('os').system('true')"),
        "a header that is no token": images_npz("{'descr': '''"),
        "objects": images_npz(NPY.replace("|u1", "|O") % "1,"),
        "floats of one byte": images_npz(NPY.replace("|u1", "<f1") % "10, 10, 10"),
        "records": images_npz("{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (1,), }"),
        "unpacks 1,000 times": archive({"images.npy": npy(NPY % "540000000,", bytes(200 << 20))}),
        "lzma": images_npz(NPY % "10, 10, 10", zipfile.ZIP_LZMA),
        "bzip2": images_npz(NPY % "10, 10, 10", zipfile.ZIP_BZIP2),
        "an index of 3 MiB": archive({f"{k:>200}": b"" for k in range(12_000)}, zipfile.ZIP_STORED),
        "another checksum": plain.replace(bytes(20), bytes(19) + b"1"),
        "encrypted": plain.replace(
            b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01"
        ),
        "spoiled deflate": _spoiled(whole, 60, 255),
        "cut off": whole[: len(whole) // 2],
    }


def idx() -> dict[str, bytes]:
    """Idx files."""
    head = struct.pack(">HBB3I", 0, 8, 3, 5_000_000, 30, 30)
    packed = gzip.compress(struct.pack(">HBB3I", 0, 8, 3, 5, 4, 4) + bytes(range(80)))
    return {
        "claims 4.2 GiB": gzip.compress(head),
        "unpacks 1,000 times": gzip.compress(
            struct.pack(">HBBI", 0, 8, 1, 600 << 20) + bytes(100 << 20)
        ),
        "claims 2**93 bytes": struct.pack(">HBB3I", 0, 8, 3, 2**31, 2**31, 2**31),
        "no images, each of 2**96 bytes": struct.pack(">HBB4I", 0, 8, 4, 0, *[2**32 - 1] * 3),
        "a name that does not end": packed[:3] + b"\x08" + packed[4:10] + b"a" * (8 << 20),
        "100,000 empty members": gzip.compress(b"", mtime=0) * 100_000,
        "spoiled deflate": _spoiled(packed, 14, 255),
        "another checksum": _spoiled(packed, len(packed) - 6, 1),
        "cut off": packed[:-12],
    }


class _Call:
    """Pickled as the call of anything."""

    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        return self._call


def cifar() -> dict[str, bytes]:
    """Pickles."""
    names = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01(K\x01M\x00\x0ct"
    objects = b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    bytes_as_objects = objects.replace(b"O8", b"u1").replace(
        b"J\xff\xff\xff\xffK\x00t", b"J\x08\0\0\0K?t"
    )
    return {
        # Python objects of an array's bytes: numpy's dtype was told that there are none.
        "objects without the flag": b"\x80\x02}(U\x04data"
        + names
        + objects
        + b"\x89U\x08AAAAAAAAtbu.",
        "a type with a state of its own": b"\x80\x02}(U\x04data"
        + names
        + bytes_as_objects
        + b"\x89U\x01Atbu.",
        "a call": pickle.dumps(_Call(print, ("called",))),
        "a memo of 2**31 objects": b"\x80\x02Nr\xff\xff\xff\x7f.",
        "an array of 2**40 bytes": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        "a text of 2**62 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b".",
        "a number of 400 digits": b"L" + DIGITS.encode() + b"L\n.",
        "a number of 10,000 digits": b"L" + b"9" * 10_000 + b"L\n.",
        "nested 1,000,000 deep": b"(" * 500_000 + b"l" * 500_000 + b".",
        "2,000,000 opcodes": b"N0" * 1_000_000 + b".",
        "nothing on the stack": b"\x80\x020.",
        "no mark": b"\x80\x02u.",
        "a key that is a list": b"\x80\x02}]Ns.",
        "no end": b"\x80\x02}",
    }


def _config(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(json.dumps(readers.small_config().to_dict()))
    return values | changes


CONFIGS: dict[str, dict[str, Any]] = {
    "10**9 iterations": {"iterations": 10**9},
    "10**6 primary types": {"primary_types": 10**6},
    "65,536 types of 65,536": {"primary_types": 65536, "primary_dim": 65536, "capsule_dim": 65536},
    "a decoder of 60,000": {"decoder": [60_000, 60_000, 60_000]},
    "10,000 decoders": {"decoder": [1] * 10_000},
    "a stem of 20,000 channels": {"stem": [{"channels": 20_000, "kernel": 99}] * 2},
    "a window larger than the image": {"stem": [{"channels": 2, "kernel": 99}]},
    "a stride of 0": {"stem": [{"channels": 2, "kernel": 3, "stride": 0}]},
    "padding that is unknown": {"stem": [{"channels": 2, "kernel": 3, "padding": "x"}]},
    "100,000 blocks": {"stem": {"resnet": [[8, 100_000, 1]]}},
    "a stem of no stage": {"stem": {"resnet": []}},
    "no classes": {"class_names": []},
    "classes that are numbers": {"class_names": [1, 2]},
    "a million classes": {"class_names": ["a"] * 1_000_000},
    "a kernel that is true": {"primary_kernel": True},
    "an image of 2**40": {"preprocessing": {"height": 2**20, "width": 2**20, "channels": 1}},
    "another field": {"surprise": 1},
    "another architecture": {"architecture": ["capsnet"]},
}


def config() -> dict[str, bytes]:
    """Configurations."""
    found = {name: json.dumps(_config(**changes)).encode() for name, changes in CONFIGS.items()}
    return found | {"nested": NESTED.encode(), "a number": b"1"}


def safetensors() -> dict[str, bytes]:
    """Checkpoints with a header of their own."""

    def file(header: str, data: bytes = b"") -> bytes:
        return struct.pack("<Q", len(header.encode())) + header.encode() + data

    one = '"x": {"dtype": "F32", "shape": [%s], "data_offsets": [0, 64]}'
    many = ",".join(
        f'"{k}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for k in range(100_000)
    )
    found = {
        "a header of 40 MiB": file("{" + " " * (40 << 20) + "}"),
        "100,000 tensors": file("{" + many + "}"),
        "16,000,000 values": file('{"x": [' + "0," * 15_999_999 + "0]}"),
        "metadata that are numbers": file('{"__metadata__": {"capsedge.config": 1}}'),
        "metadata that are a list": file('{"__metadata__": []}'),
        "a configuration that is a list": file('{"__metadata__": {"capsedge.config": "[]"}}'),
        "a configuration that is nested": file(
            json.dumps({"__metadata__": {"capsedge.config": NESTED}})
        ),
        "a shape of 400 digits": file("{" + one % DIGITS + "}", bytes(64)),
        "a shape of 10,000 digits": file("{" + one % ("9" * 10_000) + "}", bytes(64)),
        "a shape of NaN": file("{" + one % "NaN" + "}", bytes(64)),
        "a shape of 1e999": file("{" + one % "1e999" + "}", bytes(64)),
        "a size below 0": file("{" + one % "-16" + "}", bytes(64)),
        "a name twice": file("{" + ", ".join([one % "16"] * 2) + "}", bytes(64)),
        "half a surrogate pair": file('{"\\ud800": {}}'),
        "nested": file(NESTED),
        "no header": struct.pack("<Q", 2**63) + b"{",
    }
    for name, changes in CONFIGS.items():
        metadata = {"capsedge.config": json.dumps(_config(**changes))}
        found[name] = file(json.dumps({"__metadata__": metadata}))
    return found


def torch() -> dict[str, bytes]:
    """Files of torch.save."""
    import torch

    def saved(value: Any) -> bytes:
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return buffer.getvalue()

    loop: list[Any] = []
    loop.append(loop)
    doubled: Any = "x"
    for _ in range(64):
        doubled = [doubled, doubled]
    whole = saved({"config": {}, "state_dict": {"a": torch.ones(4)}})
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(io.BytesIO(whole)) as old,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    wide = {"a": torch.zeros(1).expand(100_000, 100_000)}
    found = {
        "a call": saved({"config": {}, "state_dict": _Call(print, ("called",))}),
        "numbers of nowhere": saved(
            {"config": {}, "state_dict": {"a": _Call(torch.FloatTensor, (9,))}}
        ),
        "a tebibyte of zeros": saved({"config": _Call(bytearray, (1 << 40,)), "state_dict": {}}),
        "only a pickle": pickle.dumps({"config": {}, "state_dict": {}}),
        "packed": packed.getvalue(),
        "a list within itself": saved({"config": {"a": loop}, "state_dict": {}}),
        "a list doubled 64 times": saved({"config": {"a": doubled}, "state_dict": {}}),
        "a tensor of 40 GB in 4 bytes": saved({"config": _config(), "state_dict": wide}),
        "a sparse tensor": saved({"config": {}, "state_dict": {"a": torch.ones(2, 2).to_sparse()}}),
        "a number of 400 digits": saved({"config": {"a": int(DIGITS)}, "state_dict": {}}),
        "a list for tensors": saved({"config": _config(), "state_dict": []}),
        "numbers for tensors": saved({"config": _config(), "state_dict": {"a": 1, 2: 3}}),
        "a list for all": saved([1]),
        "no zip": b"PK\x03\x04" + bytes(100),
        "cut off": whole[: len(whole) // 2],
    }
    for name, changes in CONFIGS.items():
        found[name] = saved({"config": _config(**changes), "state_dict": {}})
    return found


def state() -> dict[str, bytes]:
    """States of runs."""
    import torch

    _, identity, whole = readers.run()
    good = torch.load(io.BytesIO(whole), weights_only=True)

    def saved(**changes: Any) -> bytes:
        buffer = io.BytesIO()
        torch.save({**good, **changes}, buffer)
        return buffer.getvalue()

    optimizer, scheduler = good["optimizer"], good["scheduler"]
    group = optimizer["param_groups"][0]
    steps = {k: {**v, "step": torch.tensor(-1.0)} for k, v in optimizer["state"].items()}
    return {
        "a list": pickle.dumps([]),
        "nothing": saved(identity=None),
        "an identity that is a list": saved(identity=[identity]),
        "a history that is nested": saved(history=NESTED),
        "a history of 400 digits": saved(
            history=f'[{{"epoch": {DIGITS}, "loss": 1.0, "seconds": 1.0}}]'
        ),
        "a history of texts": saved(history='["a"]'),
        "a history of a billion epochs": saved(history="[" + "{}," * 10_000 + "{}]"),
        "no model": saved(model={}),
        "a model of other shapes": saved(model={k: torch.ones(9) for k in good["model"]}),
        "no optimizer": saved(optimizer=[]),
        "steps below 0": saved(optimizer={**optimizer, "state": steps}),
        "a rate of NaN": saved(
            optimizer={**optimizer, "param_groups": [{**group, "lr": float("nan")}]}
        ),
        "parameters that are none": saved(
            optimizer={**optimizer, "param_groups": [{**group, "params": [7, 9]}]}
        ),
        "10**18 steps": saved(scheduler={**scheduler, "last_epoch": 10**18}),
        "a schedule of texts": saved(scheduler={**scheduler, "base_lrs": ["a"]}),
    }


def _metadata_of(changes: dict[str, str]) -> dict[str, str]:
    return {
        **readers.metadata().to_properties(),
        **{f"capsedge.{k}": v for k, v in changes.items()},
    }


METADATA: dict[str, dict[str, str]] = {
    "nested": {"parity": NESTED},
    "nested 40 deep": {"parity": '{"a":' * 40 + "1" + "}" * 40},
    "a number of 400 digits": {"iterations": DIGITS},
    "a scale of 400 digits": {
        "preprocessing": f'{{"height":8,"width":8,"channels":1,"scale":{DIGITS}}}'
    },
    "a scale of 1e999": {"preprocessing": '{"height":8,"width":8,"channels":1,"scale":1e999}'},
    "NaN": {"parity": '{"a": NaN}'},
    "a schema that is a text": {"schema": '"1"'},
    "a schema of true": {"schema": "true"},
    "iterations that are a list": {"iterations": "[]"},
    "an architecture that is a number": {"architecture": "5"},
    "classes that are nested": {"class_names": '[["a"]]'},
    "a size of true": {"preprocessing": '{"height":true,"width":8,"channels":1}'},
    "an unknown field": {"surprise": "1"},
    "a field that names itself": {"cls": "1"},
    "half a surrogate pair": {"class_names": '["\\ud800", "b"]'},
    "20 MiB": {"calibration": '{"a": "' + "x" * (20 << 20) + '"}'},
}


def metadata() -> dict[str, bytes]:
    """Properties of ONNX files."""
    return {
        name: "\n".join(
            f"{k.removeprefix('capsedge.')}={v}" for k, v in _metadata_of(c).items()
        ).encode()
        for name, c in METADATA.items()
    }


def onnx() -> dict[str, bytes]:
    """ONNX files."""
    from onnx import TensorProto, helper, numpy_helper

    from tests.runtime.models import capsule_model

    def made(nodes: list[Any], inputs: list[Any], constants: list[Any], shape: list[int]) -> bytes:
        ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs]
        output = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
        graph = helper.make_graph(nodes, "g", ports, [output], constants)
        opsets = [helper.make_opsetid("", 20)]
        return bytes(
            helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
        )

    numbers = [
        numpy_helper.from_array(np.array(v), n) for n, v in (("a", 0), ("b", 10**9), ("c", 1))
    ]
    found = {
        "a batch of 3,000,000": capsule_model(batch=3_000_000).SerializeToString(),
        "a batch of 2**62": capsule_model(batch=2**62).SerializeToString(),
        "an output of 2**60": made([helper.make_node("Expand", ["x", "b"], ["y"])], [("x", [1])],
                                   [numpy_helper.from_array(np.array([2**60]), "b")], [2**60]),
        "a constant of 8 GB": made(
            [helper.make_node("Range", ["a", "b", "c"], ["r"]),
             helper.make_node("ReduceSum", ["r"], ["s"], keepdims=0),
             helper.make_node("Cast", ["s"], ["f"], to=1), helper.make_node("Add", ["x", "f"], ["y"])],
            [("x", [1])], numbers, [1]),
        "nodes without inputs": made([helper.make_node(op, [], ["y"]) for op in
                                      ("Gather", "MatMul", "Reshape", "Conv", "Gemm")], [], [], [1]),
        "no nodes": made([], [], [], [1]),
        "a permutation that is none": made(
            [helper.make_node("Transpose", ["x"], ["t"], perm=[5, -9]),
             helper.make_node("Relu", ["t"], ["y"])], [("x", [2, 2])], [], [1]),
        "an axis of a scalar": made(
            [helper.make_node("Gather", ["x", "x"], ["y"], axis=3)], [("x", [])], [], [1]),
        "routing without shapes": made(
            [helper.make_node("DynamicRouting", ["x"], ["y"], domain="capsedge", iterations=2**62)],
            [("x", [2])], [], [1]),
    }  # fmt: skip
    for name, changes in METADATA.items():
        if "surrogate" not in name:
            found[name] = capsule_model(properties=_metadata_of(changes)).SerializeToString()
    return found


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found, value = found + bytes((value & 127 | 128,)), value >> 7
    return found + bytes((value,))


def _footer(thrift: bytes) -> bytes:
    """A parquet file of a footer alone."""
    return b"PAR1" + thrift + struct.pack("<I", len(thrift)) + b"PAR1"


def parquet() -> dict[str, bytes]:
    """Tables of images: of few bytes, which claim or unpack to many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def made(column: Any, **options: Any) -> bytes:
        buffer = io.BytesIO()
        options = {"compression": "zstd", "write_statistics": False, **options}
        pq.write_table(pa.table({"image": column}), buffer, store_schema=False, **options)
        return buffer.getvalue()

    large = bytes(100 << 20)
    delta = {"use_dictionary": False, "column_encoding": {"image": "DELTA_BYTE_ARRAY"}}
    repeated = pa.DictionaryArray.from_arrays(
        pa.array([0] * 16, pa.int8()), pa.array([large], pa.binary())
    )
    zeros, count = pa.array(np.zeros(80 << 20, np.uint8)), 80 << 20
    rows = pa.ListArray.from_arrays(pa.array(range(0, count + 1, 1 << 20), pa.int32()), zeros)
    one = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), zeros)
    good = made(pa.array([b"one", b"two"], pa.binary()), compression="none")
    # The fields of FileMetaData: version, schema, row groups; of the last, three of num_rows.
    schema = b"\x19\x2c" + b"\x48\x01r\x15\x02\x00" + b"\x15\x0c\x25\x00\x18\x05image\x00"
    return {
        "16 rows of one value of 100 MB": made(repeated, dictionary_pagesize_limit=1 << 30),
        "16 rows that share 20 MB": made(pa.array([large[: 20 << 20]] * 16, pa.binary()), **delta),
        "lists of 80 MB": made(rows, data_page_version="2.0"),
        "one list of 80 MB": made(one),
        "a list of 60,000,000 elements of the schema": _footer(b"\x15\x02\x19\xfc" + _varint(60_000_000)),
        "60,000,000 row groups": _footer(
            b"\x15\x02" + schema + b"\x16\x04\x19\xfc" + _varint(60_000_000) + bytes(1000)),
        "5,000,000 empty elements": _footer(b"\x15\x02\x19\xfc" + _varint(5_000_000) + bytes(5_000_000)),
        "nested structures": _footer(b"\x1c" * 100_000),
        "nested lists": _footer(b"\x19" * 100_000),
        "2**62 rows": _footer(b"\x15\x02" + schema + b"\x16" + _varint(2**63)
                              + b"\x19\x1c\x19\x0c\x16\x00\x16" + _varint(2**63) + b"\x00\x00"),
        "-2 rows": _footer(b"\x15\x02" + schema + b"\x16\x03"
                           + b"\x19\x1c\x19\x0c\x16\x00\x16\x03\x00\x00"),
        "a footer of 2**32 - 1 bytes": b"PAR1" + b"\xff" * 4 + b"PAR1",
        "a page of 2**31 - 1 bytes": good.replace(b"\x15\x16", b"\x15\xfe\xff\xff\xff\x0f", 1),
        "cut off": good[: len(good) // 2],
    }  # fmt: skip


def tar() -> dict[str, bytes]:
    """Archives whose headers claim what is not there."""

    def header(name: bytes, size: bytes, kind: bytes = b"0") -> bytes:
        fields = (
            name.ljust(100, b"\0") + b"0000644\0" * 3 + size + b"0" * 11 + b"\0" + bytes(8) + kind
        )
        return readers._summed(fields.ljust(257, b"\0") + b"ustar\x0000")

    def binary(size: int) -> bytes:
        return struct.pack(">BxxxQ", 0x80, size)

    end, found = bytes(1024), {}
    sizes = {
        "2**63 - 513": binary(2**63 - 513), "2**63 - 1": binary(2**63 - 1), "2**64 - 1": binary(2**64 - 1),
        "-1": b"\xff" * 12, "the least": b"\x80" + bytes(11), "of letters": b"abcdefghijk\0",
        "of 12 digits": b"7" * 12, "2**40": binary(2**40), "of spaces": b" " * 12,
    }  # fmt: skip
    for title, size in sizes.items():
        for kind in (b"0", b"L", b"K", b"x", b"g", b"S", b"1", b"7", b"V"):
            found[f"a size {title}, of the kind {kind.decode()}"] = (
                header(b"a.png", size, kind) + end
            )
            found[f"a size {title}, no image, of the kind {kind.decode()}"] = (
                header(b"a.txt", size, kind) + end
            )
    small = b"%011o\0" % 512
    records = {
        "a record of 10**9 bytes": b"999999999 path=a", "a size of 10**17": b"27 size=100000000000000000\n",
        "a size of 18 digits": b"28 size=999999999999999999\n", "a negative size": b"11 size=-5\n",
        "a record of no bytes": b"0 path=a\n", "no length": b"path=a\n", "a length alone": b"512",
        "a size of letters": b"10 size=a\n", "a length of 400 digits": DIGITS.encode() + b" path=a\n",
    }  # fmt: skip
    for title, record in records.items():
        found[f"pax: {title}"] = (
            header(b"x", small, b"x") + record.ljust(512, b"\0") + header(b"a.png", small) + end
        )
    whole = b"".join(b"5 a=\n" for _ in range(10_000))
    pax = header(b"x", b"%011o\0" % len(whole), b"x") + whole.ljust(
        -(-len(whole) // 512) * 512, b"\0"
    )
    found["pax: 100 headers of 10,000 records"] = pax * 100 + end
    # Python's tarfile takes 5 s for one of them before 3.10.15, 3.11.10 and 3.12.6 (CVE-2024-6232).
    digits = b"60011 comment=" + b"1" * 59_996 + b"\n"
    pax = header(b"x", b"%011o\0" % len(digits), b"x") + digits.ljust(
        -(-len(digits) // 512) * 512, b"\0"
    )
    found["pax: 20 headers of 60,000 digits"] = (
        pax + header(b"a.png", b"0" * 11 + b"\0")
    ) * 20 + end
    sparse = bytearray(header(b"a.png", small, b"S"))
    sparse[482] = 1
    found["a sparse map without an end"] = (
        readers._summed(bytes(sparse)) + (bytes(504) + b"\1" + bytes(7)) * 50
    )
    found["long names of 100,000 members"] = (header(b"n", small, b"L") + b"n" * 512) * 5000 + end
    found["100,000 members"] = b"\1" + header(b"a.png", b"0" * 11 + b"\0") * 100_000 + end
    found["a gzip bomb"] = gzip.compress(header(b"a.txt", binary(2**40)) + bytes(600 << 20), 1)
    found["members of one name"] = header(b"a.png", b"0" * 11 + b"\0") * 100 + end
    return found


def arrays() -> dict[str, bytes]:
    """Arrays, read part by part."""
    return {
        "2**60 images without pixels": npy(NPY % "1152921504606846976, 0, 64"),
        "2**32 - 1 images without pixels": struct.pack(">IIII", 0x803, 2**32 - 1, 0, 28),
        "2**32 - 1 images": struct.pack(">IIII", 0x803, 2**32 - 1, 28, 28) + bytes(1000),
        "255 sizes": bytes((0, 0, 8, 255)) + b"\0\0\0\1" * 255 + b"\0",
        "255 sizes of 2**32 - 1": bytes((0, 0, 8, 255)) + b"\xff" * 1020 + b"\0",
        "255 sizes, gzipped": gzip.compress(bytes((0, 0, 8, 255)) + b"\xff" * 1020),
        "no size": bytes((0, 0, 8, 0)),
        "three bytes": bytes((0, 0, 8)),
        "negative": npy(NPY % "-1, 28, 28", bytes(784)),
        "an image of 2**40 pixels": npy(NPY % "1, 1048576, 1048576"),
        "4,096 sizes": npy(NPY % ("1," * 4096), b"\0"),
        "Fortran's order of 2**40": npy((NPY % "2, 1048576, 1048576").replace("False", "True")),
        "objects": npy(NPY.replace("|u1", "|O") % "2, 8, 8", pickle.dumps(print)),
        "a bomb of gzip": gzip.compress(
            struct.pack(">IIII", 0x803, 900_000, 28, 28) + bytes(600 << 20), 1
        ),
        "floats of one byte": npy(NPY.replace("|u1", "<f1") % "2, 8, 8", bytes(128)),
        "a size of 400 digits": npy(NPY % f"{DIGITS}, 28, 28"),
        **{f"npz: {title}": data for title, data in npz().items()},
    }


def engine_metadata() -> dict[str, bytes]:
    """Metadata files."""
    good = json.loads(next(iter(readers.READERS["engine_metadata"].seeds())))

    def with_(**changes: Any) -> bytes:
        return json.dumps({**good, **changes}).encode()

    return {
        "nested": NESTED.encode(),
        "40 MiB": b" " * (40 << 20),
        "UTF-16": json.dumps(good).encode("utf-16"),
        "a command of another": with_(source="$(touch trapped).onnx", command="rm -rf /"),
        "a source with escapes": with_(source="\x1b[2Jm.onnx"),
        "a source that is an option": with_(source="--workspace"),
        "a plugin that is another": with_(plugin="; reboot"),
        "a precision that is another": with_(precision="fp16; reboot"),
        "a batch of 400 digits": json.dumps(good)
        .replace("[1, 1, 1]", f"[1, 1, {DIGITS}]")
        .encode(),
        "a batch of true": with_(batch=[True, 1, 1]),
        "a batch of five": with_(batch=[1, 1, 1, 1, 1]),
        "a version of digits that are none": with_(
            machine={**good["machine"], "cuda": "1²." + "9" * 5000}
        ),
        "a machine that names itself": with_(machine={**good["machine"], "self": "1"}),
        "metadata that are numbers": with_(metadata={"capsedge.schema": 1}),
        "layers that are texts": with_(layers={"FP16": "3"}),
        "a schema that is a list": with_(schema=[1]),
        "a list": b"[1]",
        "a key twice": json.dumps(good).replace("{", '{"schema": 1, ', 1).encode(),
    }


def table() -> dict[str, bytes]:
    """Calibration tables."""
    good = json.loads(next(iter(readers.READERS["table"].seeds())))

    def with_(**changes: Any) -> bytes:
        return json.dumps({**good, "tensors": {"x": {**good["tensors"]["x"], **changes}}}).encode()

    histogram = good["tensors"]["x"]["histogram"]
    return {
        "nested": NESTED.encode(),
        "a range of 400 digits": json.dumps(good).replace("2.0", DIGITS).encode(),
        "a range of 1e308": with_(low=-1e308, high=1e308),
        "a range upside down": with_(low=2.0, high=1.0),
        "counts of 400 digits": json.dumps(good).replace("[1, 2, 3]", f"[{DIGITS}]").encode(),
        "counts below 0": with_(histogram={**histogram, "counts": [-1]}),
        "counts whose sum is too large": with_(histogram={**histogram, "counts": [2**62] * 4}),
        "counts that are nested": with_(histogram={**histogram, "counts": [[1]]}),
        "means that are texts": with_(histogram={**histogram, "means": ["a"]}),
        "images that are a list": json.dumps({**good, "images": []}).encode(),
        "tensors that are a list": json.dumps({**good, "tensors": []}).encode(),
        "16,000,000 values": b"[" + b"0," * 15_999_999 + b"0]",
        "no UTF-8": b'{"schema": "\xff"}',
    }


def images() -> dict[str, bytes]:
    """Images."""
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    def png(width: int, height: int, *chunks: bytes, colour: int = 0) -> bytes:
        head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0))
        return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + chunk(b"IEND", b"")

    text = zlib.compress(bytes(200 << 20), 1)
    return {
        "65,535 x 65,535": png(65535, 65535, chunk(b"IDAT", bytes(100))),
        "8,192 x 8,192 and nothing": png(8192, 8192, chunk(b"IDAT", zlib.compress(b"")), colour=6),
        "8,192 x 8,192 of colour, turned": png(
            8192, 8192, chunk(b"eXIf", b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"),
            chunk(b"IDAT", zlib.compress(bytes((8192 * 4 + 1) * 8192), 1)), colour=6),
        "a text of 200 MiB": png(8, 8, chunk(b"zTXt", b"a\0\0" + text), chunk(b"IDAT", b"")),
        "a profile of 200 MiB": png(8, 8, chunk(b"iCCP", b"a\0\0" + text), chunk(b"IDAT", b"")),
        "a spoiled stream": png(8, 8, chunk(b"IDAT", b"\x78\x9c" + b"\xff" * 50)),
        "no size": png(0, 0, chunk(b"IDAT", b"")),
    }  # fmt: skip


def weights() -> dict[str, bytes]:
    """Files of weights to import."""
    found = {f"torch: {name}": data for name, data in torch().items() if data[:1] == b"\3"}
    header = '{"x":{"dtype":"%s","shape":[%s],"data_offsets":[0,64]}}'
    return found | {
        "complex numbers": (header % ("C64", 8)).encode(),
        "8-bit numbers": (header % ("F8_E4M3", 64)).encode(),
        "2**62 elements": (header % ("F32", 2**62)).encode(),
        "an array that claims 4.9 GiB": archive({"w.npy": npy(NPY % "5261334937,", b"")}),
        "objects": archive({"w.npy": npy(NPY.replace("|u1", "|O") % "1,")}),
        "100,000 arrays": archive({f"{k}.npy": b"" for k in range(9000)}, zipfile.ZIP_STORED),
    }


def keras() -> dict[str, bytes]:
    """Keras files; those that lead elsewhere are in tests/importers."""
    plain = next(iter(list(readers.READERS["keras"].seeds())[1:]))
    answer = '\4{"arrays": {"%s": ["%s", [%s]]}, "texts": {}}\n'
    return {
        "an empty file": b"",
        "half a file": plain[: len(plain) // 2],
        "a spoiled header": _spoiled(plain, 20, 255),
        "a spoiled heap": plain.replace(b"HEAP", b"HEAQ"),
        "a spoiled tree": plain.replace(b"TREE", b"\xff" * 4),
        "an archive of nothing": archive({"config.json": b"{}", "model.weights.h5": b""}),
        "an archive that unpacks 1,000 times": archive(
            {"config.json": b"{}", "model.weights.h5": bytes(1100 << 20)}
        ),
        "a configuration that is nested": archive(
            {"config.json": NESTED.encode(), "model.weights.h5": plain}
        ),
        "an answer of 2**62 bytes": (answer % ("a/vars/0", "<f4", 2**60)).encode(),
        "an answer of objects": (answer % ("a/vars/0", "|O", 1)).encode(),
        "an answer below 0": (answer % ("a/vars/0", "<f4", -1)).encode(),
        "an answer that is cut off": (answer % ("a/vars/0", "<f4", 3)).encode(),
        "an answer that goes on": (answer % ("a/vars/0", "<f4", 1)).encode() + bytes(9),
        "an answer that is nested": b"\4" + NESTED.encode() + b"\n",
    }


def key_maps() -> dict[str, bytes]:
    """Key maps."""
    return {
        "nested": b"a = " + NESTED.encode(),
        "tables in tables": b"[" + b".".join([b"a"] * 50_000) + b"]",
        "a number of 400 digits": b"[tensors]\na = " + DIGITS.encode(),
        "a step of 2**70": b"[tensors]\na = ['x', {reshape = [1180591620717411303424]}]",
        "2**40 sizes": b"[tensors]\na = ['x', {reshape = [1099511627776, 1099511627776]}]",
        "no list of axes": b"[tensors]\na = ['x', {reshape = 3}]",
        "text for axes": b"[tensors]\na = ['x', {transpose = 'abc'}]",
        "half a surrogate": b"[tensors]\na = '\xed\xa0\x80'",
        "a date": b"[model]\nday = 2026-01-01",
        "infinity": b"[tensors]\na = 'x'\n[model]\nepsilon = inf",
    }


def repository() -> dict[str, bytes]:
    """Manifests of model repositories."""
    good = json.loads(next(iter(readers.READERS["repository"].seeds())))
    own, twin = good["models"]

    def with_(**changes: Any) -> bytes:
        return json.dumps({**good, **changes}).encode()

    return {
        "nested": NESTED.encode(),
        "40 MiB": b" " * (40 << 20),
        "UTF-16": json.dumps(good).encode("utf-16"),
        "no models": with_(models=[]),
        "twins alone": with_(models=[twin]),
        "a twin of itself": with_(models=[own, {**twin, "twin_of": "a-portable"}]),
        "a model twice": with_(models=[own, own]),
        "a name with escapes": with_(models=[{**own, "name": "\x1b[2J"}]),
        "a name that is a list": with_(models=[{**own, "name": ["a"]}]),
        "a name of 1,000,000 letters": with_(models=[{**own, "name": "a" * 1_000_000}]),
        "a mount with escapes": with_(mount="/\x1b[2J"),
        "an architecture that is a number": with_(architecture=64),
        "a list": b"[1]",
    }


HOSTILE: dict[str, Callable[[], dict[str, bytes]]] = {
    "images": images, "npz": npz, "idx": idx, "cifar": cifar,
    "smallnorb": papers_sets.hostile_smallnorbs, "svhn": papers_sets.hostile_svhns,
    "torch": torch, "state": state,
    "safetensors": safetensors, "weights": weights, "module": torch,
    "keras": keras, "key map": key_maps, "config": config, "onnx": onnx, "engine_metadata": engine_metadata,
    "metadata": metadata, "table": table, "repository": repository, "parquet": parquet, "tar": tar,
    "arrays": arrays, "option values": option_values.hostile,
    "HTTP requests": requests.hostile_documents, "gRPC requests": requests.hostile_messages,
}  # fmt: skip
