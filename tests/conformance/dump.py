"""Cases as files for programs in any language.

``DIR/cases.tsv`` has one line a file: name, storage type, ``1`` if heavy, printed form.
A ``.case`` file is, all little-endian:

    bytes 0-7     "CAPSCASE"
    bytes 8-11    uint32 version of this format, 1
    bytes 12-15   uint32 length H of the header
    16 .. 16+H    header, JSON in ASCII on one line, padded with spaces so that 16+H divides by 64
    16+H ..       the arrays, raw, C order, each beginning at a multiple of 64

The header:

    {"case": "Squash(...)", "operator": "Squash", "dtype": "float32",
     "attributes": {"axis": [-1], "epsilon": [1e-08]},            every value a list of numbers
     "inputs":  [{"name", "dtype", "shape", "offset", "bytes"}],   in the order of the specification
     "outputs": [{"name", "dtype", "shape", "offset", "bytes", "atol", "rtol", "node"}]}

``offset`` counts from the start of the file. Inputs have the storage type; outputs are the oracle's
in float64, with the tolerance of that storage type. ``node`` is 1 for outputs that the ONNX node has
and 0 for couplings.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cases import OUTPUTS, Case, make

MAGIC = b"CAPSCASE"
VERSION = 1
_ALIGN = 64


def _numbers(value: Any) -> list[float]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _entry(name: str, array: NDArray[Any]) -> dict[str, Any]:
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "bytes": array.nbytes,
    }


def encode(case: Case, dtype: str) -> bytes:
    """One case in one storage type as the bytes of a ``.case`` file."""
    example = make(case, dtype)
    outputs = []
    for name, array in example.wanted.items():
        limit = example.tolerances[name]
        node = int(name in OUTPUTS[case.operator])
        outputs.append(_entry(name, array) | {"atol": limit.atol, "rtol": limit.rtol, "node": node})
    header: dict[str, Any] = {
        "case": str(case),
        "operator": case.operator,
        "dtype": dtype,
        "attributes": {key: _numbers(value) for key, value in case.attributes.items()},
        "inputs": [_entry(name, array) for name, array in example.inputs.items()],
        "outputs": outputs,
    }
    entries = [*header["inputs"], *header["outputs"]]
    arrays = [*example.inputs.values(), *example.wanted.values()]
    # Room for the offsets, which are known only when the header's length is.
    size = -(-(16 + len(json.dumps(header)) + 32 * len(entries)) // _ALIGN) * _ALIGN
    body = bytearray()
    for entry, array in zip(entries, arrays, strict=True):
        entry["offset"] = size + len(body)
        raw = array.astype(array.dtype.newbyteorder("<"), order="C").tobytes()
        body += raw + b"\0" * (-len(raw) % _ALIGN)
    text = json.dumps(header).encode("ascii").ljust(size - 16)
    return MAGIC + struct.pack("<II", VERSION, len(text)) + text + bytes(body)


def decode(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, NDArray[Any]]]:
    """Header, inputs and outputs of a ``.case`` file."""
    version, length = struct.unpack_from("<II", data, 8)
    if data[:8] != MAGIC or version != VERSION:
        raise ValueError(f"not a case file of version {VERSION}")
    header = json.loads(data[16 : 16 + length])

    def arrays(entries: list[dict[str, Any]]) -> dict[str, NDArray[Any]]:
        return {
            e["name"]: np.frombuffer(
                data, np.dtype(e["dtype"]).newbyteorder("<"), int(np.prod(e["shape"])), e["offset"]
            ).reshape(e["shape"])
            for e in entries
        }

    return header, arrays(header["inputs"]), arrays(header["outputs"])


def dump(folder: Path, cases: Iterable[Case], dtypes: Iterable[str]) -> int:
    """Write every case in every type; returns the number of files."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for index, case in enumerate(cases):
        for dtype in [d for d in dtypes if d in case.dtypes]:
            name = f"{index:04d}.{dtype}.case"
            (folder / name).write_bytes(encode(case, dtype))
            lines.append(f"{name}\t{dtype}\t{int(case.heavy)}\t{case}\n")
    (folder / "cases.tsv").write_text("".join(lines), encoding="ascii")
    return len(lines)
