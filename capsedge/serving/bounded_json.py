"""Parse untrusted JSON; its content is counted before objects are created.

Long lists of numbers, the bulk of a request, become arrays piece by piece, so that they take 8 bytes a value
instead of 32 and no piece keeps other threads waiting for more than a few milliseconds. Everything else is
counted against one small limit.
"""

from __future__ import annotations

import math
import re
from itertools import accumulate
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from orjson import loads as _loads

from capsedge.serving.request_tensors import as_array
from capsedge.spec import limits

PIECE = 64 * limits.KIB  # bytes of text processed at a time
_SHORT = 4096  # size in bytes up to which a list stays a list
_LONG_TEXT = limits.MIB  # length of text beyond which escapes are not read
_SPACE = re.compile(rb"[ \t\r\n]{0,65536}")
_SCALAR = re.compile(rb"-?[0-9][0-9.eE+-]{0,999}|true|false|null")
_CONTROLS = bytes(range(32))
_SPACES = b" \t\r\n"
_VALUES = b"0123456789+-.eEtrufalsn"
_ONE_KIND = bytes.maketrans(_VALUES, b"0" * len(_VALUES))
_MISPLACED = (b"0[", b"]0", b"][", b"[,", b",]")
_NO_BRACKETS = bytes.maketrans(b"[]", b"  ")


class MalformedBody(ValueError):
    """It is not JSON, or exceeds a limit; the message says where."""


def parse(data: bytes) -> Any:
    """The plain values of a document; long lists of numbers, nested or not, become arrays.

    Args:
        data: UTF-8. Short lists of numbers stay lists; a list with texts or objects must not contain lists.

    Raises:
        MalformedBody: it is no JSON, names a key twice, or exceeds the limits.
    """
    reader = _Reader(data)
    value = reader.value(0)
    reader.space()
    if reader.at != len(data):
        reader.fail("there is data after the document")
    return value


class _Reader:
    """Reads one value after another from ``at``."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self._remaining = limits.REQUEST_ITEMS
        self._numbers = limits.REQUEST_VALUES
        self._found: dict[bytes, int] = {}  # position of the next character of each kind

    def value(self, depth: int) -> Any:
        self.space()
        first = self.data[self.at : self.at + 1]
        if first == b'"':
            return self._text().decode()
        if first in (b"{", b"["):
            if depth >= limits.JSON_DEPTH:
                self.fail(f"it is nested over {limits.JSON_DEPTH} deep")
            return self._object(depth) if first == b"{" else self._list(depth)
        return self._scalar()

    def space(self) -> None:
        while self.data[self.at : self.at + 1].isspace():
            end = _SPACE.match(self.data, self.at).end()  # type: ignore[union-attr]
            if end == self.at:
                return
            self.at = end

    def fail(self, why: str) -> NoReturn:
        raise MalformedBody(f"{why}, at byte {self.at:,}")

    def _count(self, items: int = 1) -> None:
        self._remaining -= items
        if self._remaining < 0:
            self.fail(f"it has over {limits.REQUEST_ITEMS:,} values besides long lists of numbers")

    def _take(self, character: bytes) -> bool:
        self.space()
        if self.data[self.at : self.at + 1] != character:
            return False
        self.at += 1
        return True

    def _expect(self, character: bytes) -> None:
        if not self._take(character):
            self.fail(f"it is not JSON: '{character.decode()}' is missing")

    def _next(self, character: bytes) -> int:
        """The position of the next such character; the length if there is none. Every byte is read once."""
        if self._found.get(character, -1) < self.at:
            found = self.data.find(character, self.at)
            self._found[character] = len(self.data) if found < 0 else found
        return self._found[character]

    def _object(self, depth: int) -> dict[str, Any]:
        self._count()
        self.at += 1
        found: dict[str, Any] = {}
        if self._take(b"}"):
            return found
        while True:
            self.space()
            if self.data[self.at : self.at + 1] != b'"':
                self.fail("it is not JSON: a name is missing")
            name = self._text().decode()
            if name in found:
                self.fail(f"it names {name[:80]!r} twice")
            self._expect(b":")
            found[name] = self.value(depth + 1)
            if self._take(b"}"):
                return found
            self._expect(b",")

    def _list(self, depth: int) -> Any:
        end = self.data.rfind(b"]", self.at, min(map(self._next, (b'"', b"{", b"}"))))
        if end >= 0:
            return self._plain(end + 1)
        self._count()
        self.at += 1
        found: list[Any] = []
        while True:
            self.space()
            first = self.data[self.at : self.at + 1]
            if first == b'"':
                found.append(self._text())
            elif first == b"[":
                self.fail("lists in a list may hold only numbers")
            else:
                found.append(self.value(depth + 1))
            if self._take(b"]"):
                return found
            self._expect(b",")

    def _scalar(self) -> Any:
        self._count()
        found = _SCALAR.match(self.data, self.at)
        if found is None:
            self.fail("it is not JSON: a value is missing")
        value = self._loads(found[0])
        self.at = found.end()
        return value

    def _loads(self, text: bytes) -> Any:
        try:
            return _loads(text)
        except (ValueError, RecursionError) as error:
            raise MalformedBody(f"it is not JSON, after byte {self.at:,}") from error

    def _text(self) -> bytes:
        """A text in UTF-8. In lists, texts stay bytes, from which base64 images are decoded."""
        self._count()
        start = end = self.at + 1
        while True:
            end = self.data.find(b'"', end)
            if end < 0:
                self.fail("it is not JSON: a text does not end")
            escapes = end
            while self.data[escapes - 1 : escapes] == b"\\":
                escapes -= 1
            if (end - escapes) % 2 == 0:
                break
            end += 1
            self._count()
        text = self.data[start:end]
        if len(text) > _LONG_TEXT:
            text = self._unescaped(text)
        else:
            try:
                text = self._loads(b'"%b"' % text).encode()
            except UnicodeEncodeError:
                self.fail("it has half a surrogate pair")
        self.at = end + 1
        return text

    def _unescaped(self, text: bytes) -> bytes:
        """A long ASCII text, piece by piece; the only escape allowed is that of the slash, for base64."""
        parts, at = [], 0
        while at < len(text):
            end = at + PIECE
            end += text[end - 1 : end] == b"\\"
            part = text[at:end].replace(b"\\/", b"/")
            if b"\\" in part or not part.isascii() or part.translate(None, _CONTROLS) != part:
                self.fail("a text of over 1 MiB is not plain ASCII")
            parts.append(part)
            at = end
        return b"".join(parts)

    def _plain(self, end: int) -> Any:
        """A list, or lists in lists, up to ``end``, without texts and objects."""
        if end - self.at <= _SHORT:
            text = self.data[self.at : end]
            lists = text.count(b"[")
            self._count(1 + text.count(b",") + lists)
            if lists > limits.JSON_DEPTH and _depth(text) > limits.JSON_DEPTH:
                self.fail(f"it is nested over {limits.JSON_DEPTH} deep")
            found = self._loads(text)
        else:
            found = self._array(end)
        self.at = end
        return found

    def _array(self, end: int) -> NDArray[Any]:
        data, last = self.data, end - 1
        parts: list[NDArray[Any]] = []
        shape: list[bytes] = []
        at = start = self.at
        while at <= last:
            cut = data.find(b",", at + PIECE, min(at + 2 * PIECE, end)) if end - at > PIECE else end
            if cut < 0:
                cut = end
            if cut - at > 2 * PIECE:
                self.at = at
                self.fail("a number in a list is too long")
            piece = data[at:cut]
            brackets = piece.translate(_ONE_KIND, _SPACES)
            commas = brackets.translate(None, b"0") + b"," * (cut < end)
            shape.append(commas)
            if b"[" in commas[1:] or b"]" in commas[:-1]:
                # Include the commas on both sides, so that a misplaced one is found. In a flat list, the
                # number parser and the count find it.
                brackets = b"," * (at > start) + brackets + b"," * (cut < end)
                if any(pair in brackets for pair in _MISPLACED):
                    self.at = at
                    self.fail("it is not JSON: a bracket or a comma is misplaced")
            self.at = at
            values = self._loads(b"[%b]" % piece.translate(_NO_BRACKETS))
            self._numbers -= len(values)
            if self._numbers < 0:
                self.fail(f"its lists have over {limits.REQUEST_VALUES:,} numbers")
            try:
                parts.append(as_array(values))
            except (ValueError, OverflowError) as error:
                raise MalformedBody("a list holds values that are not numbers") from error
            if parts[-1].dtype.kind not in "biuf":
                self.fail("a list holds values that are not numbers")
            at = cut + 1
        if {"b"} < {part.dtype.kind for part in parts}:
            self.fail("a list holds truth values next to numbers")
        sizes, found = self._sizes(b"".join(shape)), _joined(parts)
        if math.prod(sizes) != found.size:
            self.fail("a list is empty")
        return found.reshape(sizes)

    def _sizes(self, brackets: bytes) -> tuple[int, ...]:
        """The sizes of lists in lists, from their brackets and commas alone."""
        depth = len(brackets) - len(brackets.lstrip(b"["))
        if depth > limits.JSON_DEPTH:
            self.fail(f"it is nested over {limits.JSON_DEPTH} deep")
        sizes: list[int] = []
        unit = b""
        for level in range(1, depth + 1):
            end = brackets.find(b"]" * level, depth) + level
            length = end - (depth - level) - 1  # of its members, each with a comma
            size, rest = divmod(length, len(unit) + 1)
            if end < level or rest or size < 1:
                break
            unit = b"[" + ((unit + b",") * size)[:-1] + b"]"
            sizes.insert(0, size)
        if unit != brackets:
            self.fail("its lists have different lengths")
        return tuple(sizes)


def _depth(text: bytes) -> int:
    """How deep lists without texts are nested."""
    return max(accumulate((c == ord("[")) - (c == ord("]")) for c in text))


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    kinds = {part.dtype.kind for part in parts}
    if kinds == {"i", "u"} and all(part.min() >= 0 for part in parts if part.dtype.kind == "i"):
        parts[:] = [part.astype(np.uint64) for part in parts]  # otherwise they become floats
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
