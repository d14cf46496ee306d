"""Walking through values in Thrift's compact protocol, within limits, before another library parses them.

https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md. A list states its length
before its elements, and a parser that believes it allocates memory for elements that are not there.
"""

from __future__ import annotations

from capsedge.runtime.files import limits

_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(
    13
)
_NUMBERS = (_I16, _I32, _I64)
Fields = dict[int, object]


class BadThrift(Exception):
    """The bytes are damaged or exceed a limit; the message says why."""


class Truncated(BadThrift):
    """The bytes end before the value does."""


def read_struct(data: bytes) -> tuple[Fields, int]:
    """The fields of the structure that bytes begin with, and its length.

    Returns:
        Numbers, structures and lists of structures by field number, other values as None; the bytes that the
        structure takes.

    Raises:
        BadThrift: the bytes are damaged, or hold more values or deeper ones than the limits allow.
    """
    walk = _Walk(data)
    fields = walk.struct(0)
    return fields, walk.at


class _Walk:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0
        self._left = limits.PARQUET_VALUES

    def struct(self, depth: int) -> Fields:
        if depth > limits.PARQUET_DEPTH:
            raise BadThrift(f"it is nested over {limits.PARQUET_DEPTH} deep")
        fields: Fields = {}
        number = 0
        while (head := self._byte()) & 15:
            kind, step = head & 15, head >> 4
            number = number + step if step else self._signed()
            # The value of a boolean field is its kind.
            fields[number] = None if kind in (_TRUE, _FALSE) else self._value(kind, depth)
            self._count(1)
        return fields

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise BadThrift(f"it has over {limits.PARQUET_VALUES:,} values")

    def _value(self, kind: int, depth: int) -> object:
        if kind in _NUMBERS:
            return self._signed()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_TRUE, _FALSE, _BYTE):  # in a list, a boolean takes a byte
            self._skip(1)
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind == _BINARY:
            self._skip(self._varint())
        elif kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._varint()
            found = self._elements(count, (head & 15,), depth)
            return found if head & 15 == _STRUCT else None
        elif kind == _MAP:
            if count := self._varint():
                kinds = self._byte()
                self._elements(count, (kinds >> 4, kinds & 15), depth)
        else:
            raise BadThrift(f"it has a value of the unknown type {kind}")
        return None

    def _elements(self, count: int, kinds: tuple[int, ...], depth: int) -> list[object]:
        if depth > limits.PARQUET_DEPTH:
            raise BadThrift(f"it is nested over {limits.PARQUET_DEPTH} deep")
        if count > len(self._data) - self.at:  # an element has at least a byte
            raise Truncated("it ends within a list")
        self._count(count)
        return [self._value(kind, depth + 1) for _ in range(count) for kind in kinds]

    def _byte(self) -> int:
        if self.at >= len(self._data):
            raise Truncated("it ends within a value")
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise Truncated("it ends within a value")

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise BadThrift("it has a number of over 64 bits")

    def _signed(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
