"""A warp's registers, and the operands that read them.

Registers hold 32 bits each. Values that come from memory or from floating-point arithmetic are unknown, and
so is what is made of them: each register has the lanes for which its value is known.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import CapsedgeError

Lanes = NDArray[Any]
MASK = np.uint64(0xFFFFFFFF)
EVERY = 0xFFFFFFFF
U64 = np.uint64
ZEROS: Lanes = np.zeros(32, np.uint64)


class Unknown(Exception):
    """A value that the walk cannot know."""


class Unreadable(CapsedgeError):
    """An operand or an instruction of a form that is not known here."""


def signed(values: Lanes, bits: int = 32) -> Lanes:
    """Two's complement of unsigned values."""
    if bits == 64:
        return values.astype(np.uint64).view(np.int64)
    return (values & MASK).astype(np.uint32).view(np.int32).astype(np.int64)


@cache
def parsed(text: str) -> tuple[str, str, int, str]:
    """An operand without its sign: what it is, a register, a bank or number, a second register or place."""
    if text in {"RZ", "URZ", "SRZ"}:
        return "zero", "", 0, ""
    match = re.fullmatch(r"(U?R)(\d+)(\.64|\.U32|\.X\d+)?", text)
    if match:
        pair = "" if match[3] == ".U32" else f"{match[1]}{int(match[2]) + 1}"
        return "register", f"{match[1]}{match[2]}", 0, pair
    match = re.fullmatch(r"c\[(0x[0-9a-f]+)\]\[(?:(U?R(?:\d+|Z))\+?)?(0x[0-9a-f]+)?\]", text)
    if match:
        index = "" if match[2] in {None, "RZ", "URZ"} else match[2]
        return "constant", index, int(match[1], 16), match[3] or "0x0"
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+)", text):
        return "number", "", int(text, 0), ""
    return "other", text, 0, ""


@cache
def terms(operand: str) -> list[tuple[str, bool, int]]:
    """Addends of an address in brackets: operand, whether it is a pair, and what it is multiplied by."""
    found = []
    for text in operand[operand.rindex("[") + 1 : operand.rindex("]")].split("+"):
        scale = re.search(r"\.X(\d+)$", text)
        found.append((text, ".64" in text or "R" not in text, int(scale[1]) if scale else 1))
    return found


class Registers:
    """A warp's registers, predicates and constants.

    Attributes:
        sure: lanes whose operands were known since it was last set.
    """

    def __init__(self, constants: dict[int, bytes], special: dict[str, Lanes]) -> None:
        self.values: dict[str, Lanes] = {}
        self.known: dict[str, int] = {}
        self.constants, self.special = constants, special
        self._read: dict[tuple[int, int, int], Lanes] = {}
        self.sure = EVERY

    def register(self, name: str) -> Lanes:
        """32 bits of a register, zero before it is written."""
        self.sure &= self.known.get(name, EVERY)
        value = self.values.get(name)
        return ZEROS if value is None else value

    def constant(self, bank: int, at: int, count: int = 1) -> int:
        """Words of a constant bank, as one number."""
        data = self.constants.get(bank, b"")
        return int.from_bytes(data[at : at + 4 * count].ljust(4 * count, b"\0"), "little")

    def word(self, operand: str, wide: bool = False, carry: bool = False) -> Lanes:
        """An operand: a register (pair), a constant or a number.

        Args:
            carry: a negated number keeps its 33rd bit, which a carry is made of.
        """
        bits = 64 if wide else 32
        negative, inverted = operand.startswith("-"), operand.startswith("~")
        bare = operand.lstrip("-~").strip("|")
        value = self._bare(bare, wide)
        if inverted:
            return ~value if wide else ~value & MASK
        if negative:
            return (
                -value if wide else (U64(1 << bits) - value) & (U64(2**33 - 1) if carry else MASK)
            )
        return value

    def _bare(self, text: str, wide: bool) -> Lanes:
        kind, name, number, extra = parsed(text)
        if kind == "zero":
            return ZEROS
        if kind == "register":
            low = self.register(name)
            return low | self.register(extra) << U64(32) if wide and extra else low
        if kind == "constant":
            words = 2 if wide else 1
            if not name:
                return self._constants(number, int(extra, 16), words)
            places = self.register(name)
            return np.array(
                [self.constant(number, int(extra, 16) + int(p), words) for p in places], np.uint64
            )
        if kind == "number":
            return np.full(32, number & (2**64 - 1 if wide else EVERY), np.uint64)
        raise Unreadable(f"nvdisasm's operand {text} is not known here")

    def _constants(self, bank: int, at: int, words: int) -> Lanes:
        key = (bank, at, words)
        found = self._read.get(key)
        if found is None:
            found = self._read[key] = np.full(32, self.constant(bank, at, words), np.uint64)
        return found

    def predicate(self, operand: str) -> Lanes:
        """A predicate, possibly negated."""
        bare = operand.lstrip("!")
        if bare in {"PT", "UPT"}:
            value = np.ones(32, bool)
        else:
            self.sure &= self.known.get(bare, EVERY)
            stored = self.values.get(bare)
            value = np.zeros(32, bool) if stored is None else stored.astype(bool)
        return ~value if operand.startswith("!") else value

    def address(self, operand: str) -> Lanes:
        """What stands in brackets."""
        total = ZEROS
        for text, wide, scale in terms(operand):
            value = self.word(text, wide=wide)
            total = total + (value * U64(scale) if scale > 1 else value)
        return total

    def forget(self, name: str, active: int) -> None:
        """A register's value is not known to some lanes."""
        gone = EVERY if name.startswith("U") else active
        self.known[name] = self.known.get(name, EVERY) & ~gone

    def write(self, names: tuple[str, ...], value: Lanes, active: int, sure: int) -> None:
        """Store a result of one or more words; uniform registers belong to the whole warp."""
        for k, name in enumerate(names):
            part = (
                value
                if value.dtype == bool
                else (value >> U64(32 * k)) & MASK
                if len(names) > 1
                else value
            )
            if name.startswith("U"):
                first = (active & -active).bit_length() - 1
                self.values[name] = np.full(32, part[first], part.dtype)
                self.known[name] = EVERY if sure >> first & 1 else 0
                continue
            old = self.values.get(name)
            if active != EVERY and old is not None:
                part = np.where(lanes(active), part.astype(np.uint64), old.astype(np.uint64))
            self.values[name] = part
            self.known[name] = (self.known.get(name, EVERY) & ~active) | (sure & active)


_LANES: dict[int, Lanes] = {}


def lanes(mask: int) -> Lanes:
    """A mask's bits as 32 truth values."""
    found = _LANES.get(mask)
    if found is None:
        found = _LANES[mask] = np.array([bool(mask >> k & 1) for k in range(32)])
    return found


def mask_of(values: Lanes) -> int:
    """32 truth values as bits."""
    return int(np.packbits(values.astype(bool), bitorder="little").view(np.uint32)[0])
