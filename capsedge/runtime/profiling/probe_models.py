"""Two tiny ONNX files written byte by byte, since the device has no ``onnx`` package.

A chain of operators on one number shows what timing an operator costs; a matrix product shows what the
machine can do. The format: https://protobuf.dev/programming-guides/encoding, field numbers of onnx.proto3.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_FLOAT = 1
_IR_VERSION, _OPSET = 8, 13


def chain(length: int) -> bytes:
    """``length`` absolute values in a row, of a tensor ``x`` with one element."""
    names = ["x", *(f"v{k}" for k in range(1, length)), "y"]
    nodes = [_node("Abs", [a], [b]) for a, b in pairwise(names)]
    return _model(nodes, [_value("x", (1,))], [_value("y", (1,))])


def matrix_product(size: int) -> bytes:
    """``y = a b`` with square matrices."""
    shape = (size, size)
    node = _node("MatMul", ["a", "b"], ["y"])
    return _model([node], [_value("a", shape), _value("b", shape)], [_value("y", shape)])


def _model(nodes: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes]) -> bytes:
    graph = b"".join(_message(1, node) for node in nodes) + _message(2, b"probe")
    graph += b"".join(_message(11, value) for value in inputs)
    graph += b"".join(_message(12, value) for value in outputs)
    return _number(1, _IR_VERSION) + _message(7, graph) + _message(8, _number(2, _OPSET))


def _node(kind: str, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
    names = b"".join(_message(1, name.encode()) for name in inputs)
    names += b"".join(_message(2, name.encode()) for name in outputs)
    return names + _message(4, kind.encode())


def _value(name: str, shape: Sequence[int]) -> bytes:
    dimensions = b"".join(_message(1, _number(1, size)) for size in shape)
    tensor = _number(1, _FLOAT) + _message(2, dimensions)
    return _message(1, name.encode()) + _message(2, _message(1, tensor))


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
