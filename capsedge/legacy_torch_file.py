"""The layout of ``torch.save`` before PyTorch 1.6: pickles, then the storages. Needs torch.

A magic number, a protocol version, facts of the machine, the value, the keys of the storages; then for each
key the number of its elements in 8 bytes, and its elements.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from typing import Any

from capsedge.runtime.files import limits, pickles
from capsedge.runtime.files.archives import BadArchive
from capsedge.runtime.files.opening import size
from capsedge.runtime.files.pickles import BadPickle, NotPlain

_PROTOCOL = 1001
_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickle of a number of 77 bits


def is_legacy(file: BufferedReader) -> bool:
    """Whether a file begins as such files do."""
    file.seek(0)
    found = file.read(len(_MAGIC)) == _MAGIC
    file.seek(0)
    return found


@dataclass
class LegacyFile:
    """An open file.

    Args:
        file: its content.
        form: how its value is built; ``stored`` is called with what refers to a storage.
        sizes: bytes of each storage that the value refers to, by its key, known once the value is built.

    Attributes:
        value: what was saved.

    Raises:
        BadArchive, BadPickle: it is damaged, exceeds the limits, or holds more than values and tensors.
    """

    file: BufferedReader
    form: pickles.Format
    sizes: Callable[[str], int]

    def __post_init__(self) -> None:
        self.file.seek(len(_MAGIC))
        data = io.BytesIO(self.file.read(limits.PICKLE_BYTES))
        plain = pickles.Format(_no_call, _no_call, None)
        protocol, machine = pickles.read(data, plain), pickles.read(data, plain)
        if protocol != _PROTOCOL or type(machine) is not dict:
            raise BadArchive("it has another version of PyTorch's format")
        if machine.get("little_endian") is not True:
            raise BadArchive("it was written on a big-endian machine")
        self.value = pickles.read(data, self.form)
        keys = pickles.read(data, plain)
        if type(keys) is not list or not all(type(key) is str for key in keys):
            raise BadPickle("it has no list of its storages")
        self._places = self._found(keys, len(_MAGIC) + data.tell())

    def _found(self, keys: list[str], at: int) -> dict[str, tuple[int, int]]:
        """First byte and number of bytes of each storage."""
        places, whole = {}, size(self.file)
        for key in keys:
            length = self.sizes(key)
            if key in places or at + 8 + length > whole:
                raise BadArchive(f"it does not have the storage '{key}' whole")
            places[key] = (at + 8, length)
            at += 8 + length
        return places

    def stored(self, key: str, elements: int) -> bytearray:
        """The bytes of a storage.

        Raises:
            BadArchive: it is missing, truncated or of another size.
        """
        if key not in self._places:
            raise BadArchive(f"it has no storage '{key}'")
        at, length = self._places[key]
        self.file.seek(at - 8)
        if int.from_bytes(self.file.read(8), "little") != elements:
            raise BadArchive(f"the storage '{key}' does not have the size that it claims")
        data = bytearray(self.file.read(length))
        if len(data) != length:
            raise BadArchive(f"the storage '{key}' is truncated")
        return data


def _no_call(name: Any, _: Any) -> Any:
    raise NotPlain(f"it names {name}")
