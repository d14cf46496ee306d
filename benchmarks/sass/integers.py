"""What the integer instructions do, for the 32 lanes of a warp at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.sass.cubin import Instruction
from benchmarks.sass.opcodes import is_predicate, local_words, target_count, targets, width_of
from benchmarks.sass.registers import EVERY, MASK, U64, ZEROS, Lanes, Registers, Unknown, signed

Handler = Callable[[Registers, Instruction, tuple[str, ...]], list[Lanes]]


def _sum(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """IADD3, VIADD, IADD.64."""
    numbers = [x for x in o if not is_predicate(x)]
    if ".64" in i.opcode:
        return [sum((r.word(x, wide=True) for x in numbers), ZEROS)]
    extended = ".X" in i.opcode
    total = sum((r.word(x, carry=not extended) for x in numbers), ZEROS)
    if extended:
        for x in o[len(numbers) :]:
            total = total + r.predicate(x)
    over = total >> U64(32)
    return [total & MASK, over >= 1, over >= 2]


def _multiply(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """IMAD in all its forms."""
    carry = r.predicate(o[3]).astype(np.uint64) if ".X" in i.opcode else U64(0)
    if ".WIDE" in i.opcode or ".HI" in i.opcode:
        a, b = r.word(o[0]), r.word(o[1])
        if ".U32" not in i.opcode:
            a, b = signed(a).view(np.uint64), signed(b).view(np.uint64)
        product = a * b
        if ".WIDE" in i.opcode:
            return [product + r.word(o[2], wide=True) + carry]
        return [(product + r.word(o[2], wide=True)) >> U64(32)]  # HI too adds a pair
    return [(r.word(o[0]) * r.word(o[1]) + r.word(o[2]) + carry) & MASK]


def _lea(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    numbers = [x for x in o if not is_predicate(x)]
    carry = (
        r.predicate(o[-1]).astype(np.uint64) if is_predicate(o[-1]) and ".X" in i.opcode else U64(0)
    )
    if ".HI" not in i.opcode:
        shift = r.word(numbers[2]) if len(numbers) > 2 else ZEROS
        total = ((r.word(numbers[0]) << shift) & MASK) + r.word(numbers[1], carry=True) + carry
        return [total & MASK, total >> U64(32) >= 1]
    pair: Lanes
    if ".SX32" in i.opcode:
        pair = signed(r.word(numbers[0])).view(np.uint64)
        shift = r.word(numbers[2])
    else:
        pair = r.word(numbers[0]) | r.word(numbers[2]) << U64(32)
        shift = r.word(numbers[3])
    total = ((pair << shift) >> U64(32)) + r.word(numbers[1]) + carry
    return [total & MASK, total >> U64(32) >= 1]


def _shift(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    low, amount, high = r.word(o[0]), r.word(o[1]), r.word(o[2])
    limit = U64(63 if "64" in i.opcode else 32)
    amount = np.minimum(amount, limit)
    if ".L" in i.opcode:
        pair = (low | high << U64(32)) << amount if ".HI" in i.opcode else low << amount
        return [(pair >> U64(32) if ".HI" in i.opcode else pair) & MASK]
    if ".HI" in i.opcode:
        values = signed(high) if ".S32" in i.opcode or ".S64" in i.opcode else high.astype(np.int64)
        return [(values >> amount.astype(np.int64)).view(np.uint64) & MASK]
    pair = low | high << U64(32)
    moved = (
        (pair.view(np.int64) >> amount.astype(np.int64)).view(np.uint64)
        if ".S" in i.opcode
        else pair >> amount
    )
    return [moved & MASK]


def _lookup(table: int, a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """LOP3's truth table, bit by bit."""
    result = np.zeros(32, np.uint64)
    for k in range(8):
        if table >> k & 1:
            term = (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
            result |= term
    return result & MASK


def _logic(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    value = _lookup(int(o[3], 16), r.word(o[0]), r.word(o[1]), r.word(o[2]))
    if is_predicate(i.operands[0]):
        return [value != 0, value]
    return [value, value != 0]


def _predicate_logic(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    del i
    wide = [np.where(r.predicate(x), MASK, U64(0)) for x in o[:3]]
    return [_lookup(int(table, 16), *wide) != 0 for table in o[3:5]]


_COMPARE: dict[str, Callable[[Lanes, Lanes], Lanes]] = {
    "LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal,
    "EQ": np.equal, "NE": np.not_equal,
}  # fmt: skip


def _compare(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    parts = i.opcode.split(".")
    wide = "64" in i.opcode
    a, b = r.word(o[0], wide=wide), r.word(o[1], wide=wide)
    equal = a == b
    if not any(x in parts for x in ("U32", "U64")):
        a, b = signed(a, 64 if wide else 32), signed(b, 64 if wide else 32)
    answer = _COMPARE[parts[1]](a, b)
    if "EX" in parts:
        answer = np.where(equal, r.predicate(o[3]), answer)
    other = r.predicate(o[2])
    if "OR" in parts:
        return [answer | other, ~answer | other]
    if "XOR" in parts:
        return [answer ^ other, ~answer ^ other]
    return [answer & other, ~answer & other]


def _select(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    wide = ".64" in i.opcode
    return [np.where(r.predicate(o[2]), r.word(o[0], wide=wide), r.word(o[1], wide=wide))]


def _extreme(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """IMNMX, VIMNMX, VIMNMX3, VIADDMNMX: the least one where the last predicate holds, else the greatest."""
    numbers = [x for x in o if not is_predicate(x)]
    values = [r.word(x) for x in numbers]
    if i.base == "VIADDMNMX":
        values = [(values[0] + values[1]) & MASK, values[2]]
    low = high = values[0]
    for other in values[1:]:
        unsigned = ".U32" in i.opcode
        low = np.where((low <= other) if unsigned else (signed(low) <= signed(other)), low, other)
        high = np.where(
            (high >= other) if unsigned else (signed(high) >= signed(other)), high, other
        )
    return [np.where(r.predicate(o[-1]), low, high)]


def _move(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    return [r.word(o[0], wide=width_of(i) == 2)]


def _constant(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """LDC, ULDC, LDCU, up to two words in a number; four words as two results are made by the caller."""
    return [r.word(o[0], wide=width_of(i) >= 2)]


def _halves(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """HFMA2 with -0 * 0: the compiler's way to write a constant."""
    del i
    if o[0] != "-RZ" or o[1] != "RZ" or len(o) != 4:
        raise Unknown("arithmetic")
    try:
        high, low = (int(np.array(float(x), np.float16).view(np.uint16)) for x in o[2:])
    except ValueError:
        raise Unknown("a constant that is no number") from None
    del r
    return [np.full(32, high << 16 | low, np.uint64)]


def _floats(bits: Lanes) -> NDArray[np.float32]:
    return bits.astype(np.uint32).view(np.float32)


def _to_float(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    if re.search(r"\.[SU](8|16|64)", i.opcode):
        raise Unknown("a conversion of data")
    value = r.word(o[0])
    exact = (value if ".U32" in i.opcode else signed(value)).astype(np.float64)
    single = exact.astype(np.float32)
    if ".RP" in i.opcode:
        single = np.where(
            single.astype(np.float64) < exact, np.nextafter(single, np.float32(np.inf)), single
        )
    return [single.astype(np.float32).view(np.uint32).astype(np.uint64)]


def _reciprocal(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    if i.opcode != "MUFU.RCP":
        raise Unknown("arithmetic")
    with np.errstate(all="ignore"):
        return [(np.float32(1) / _floats(r.word(o[0]))).view(np.uint32).astype(np.uint64)]


def _to_integer(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    if ".U64" in i.opcode or ".U32" not in i.opcode:
        raise Unknown("arithmetic")
    value = np.nan_to_num(
        _floats(r.word(o[0])).astype(np.float64), nan=0.0, posinf=2.0**32 - 1, neginf=0.0
    )
    return [np.clip(np.trunc(value), 0, 2.0**32 - 1).astype(np.uint64)]


def _special(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    del i
    if o[0] not in r.special:
        raise Unknown(o[0])
    return [r.special[o[0]]]


def _absolute(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    del i
    return [np.abs(signed(r.word(o[0]))).astype(np.uint64) & MASK]


def _permute(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """PRMT: four bytes of two words, chosen by nibbles."""
    if i.opcode not in {"PRMT", "UPRMT"}:
        raise Unknown("a mode of PRMT")
    pair = r.word(o[0]) | r.word(o[2]) << U64(32)
    chosen, result = r.word(o[1]), np.zeros(32, np.uint64)
    for k in range(4):
        nibble = chosen >> U64(4 * k) & U64(15)
        byte = pair >> ((nibble & U64(7)) * U64(8)) & U64(255)
        byte = np.where(nibble & U64(8), np.where(byte & U64(128), U64(255), U64(0)), byte)
        result |= byte << U64(8 * k)
    return [result]


def _gather_predicates(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """P2R: predicates as bits."""
    del i
    mask = int(o[-1], 16)
    bits = np.zeros(32, np.uint64)
    for k in range(7):
        if mask >> k & 1:
            bits |= r.predicate(f"P{k}").astype(np.uint64) << U64(k)
    return [(r.word(o[1]) & U64(EVERY & ~mask)) | bits]


def _spill(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """STL: into local memory, whose words are registers of their own here."""
    if width_of(i) > 2:
        raise Unknown("four words")
    return [r.word(o[1], wide=width_of(i) == 2)]


def _reload(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """LDL: from local memory."""
    del o
    words = [r.register(name) for name in local_words(i)]
    if not 1 <= len(words) <= 2:
        raise Unknown("other than one or two words")
    return [words[0] | words[1] << U64(32) if len(words) == 2 else words[0]]


def _no_slow_path(r: Registers, i: Instruction, o: tuple[str, ...]) -> list[Lanes]:
    """FCHK: divisors are taken to be normal numbers."""
    del r, i, o
    return [np.zeros(32, bool)]


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("IADD3", "IADD", "VIADD"), _sum),
    **dict.fromkeys(("IMNMX", "VIMNMX", "VIMNMX3", "VIADDMNMX"), _extreme),
    **dict.fromkeys(("MOV", "R2UR"), _move),
    **dict.fromkeys(("LDC", "LDCU"), _constant),
    **dict.fromkeys(("I2F", "I2FP"), _to_float),
    **dict.fromkeys(("S2R", "S2UR", "CS2R"), _special),
    "IMAD": _multiply,
    "LEA": _lea,
    "SHF": _shift,
    "LOP3": _logic,
    "PLOP3": _predicate_logic,
    "ISETP": _compare,
    "SEL": _select,
    "HFMA2": _halves,
    "F2I": _to_integer,
    "MUFU": _reciprocal,
    "IABS": _absolute,
    "PRMT": _permute,
    "P2R": _gather_predicates,
    "FCHK": _no_slow_path,
    "STL": _spill,
    "LDL": _reload,
}


def handler_of(instruction: Instruction) -> Handler | None:
    """What evaluates an instruction, or None if its result is unknown."""
    base = instruction.base
    found = HANDLERS.get(base)
    return found if found or not base.startswith("U") else HANDLERS.get(base[1:])


@dataclass(frozen=True)
class Step:
    """An instruction made ready for :func:`evaluate`.

    Attributes:
        handler: None if the result is unknown.
        operands: those that are read.
        results: registers of each result; none for one that is thrown away.
        written: all registers of the results.
    """

    instruction: Instruction
    handler: Handler | None
    operands: tuple[str, ...]
    results: tuple[tuple[str, ...], ...]
    written: tuple[str, ...]


def step_of(instruction: Instruction) -> Step:
    """Decode an instruction."""
    count, width = target_count(instruction), width_of(instruction)
    results: list[tuple[str, ...]] = []
    for operand in instruction.operands[:count]:
        match = re.fullmatch(r"(U?R)(\d+)", operand)
        if match:
            results.append(tuple(f"{match[1]}{int(match[2]) + k}" for k in range(width)))
        else:
            results.append((operand,) if re.fullmatch(r"U?P\d", operand) else ())
    if instruction.base == "STL":
        results.append(tuple(local_words(instruction)))
    return Step(
        instruction,
        handler_of(instruction),
        instruction.operands[count:],
        tuple(results),
        tuple(targets(instruction)),
    )


def evaluate(r: Registers, step: Step, active: int) -> None:
    """Execute an instruction for some lanes; what it cannot know is marked so."""
    r.sure = EVERY
    if step.handler is not None:
        try:
            made = step.handler(r, step.instruction, step.operands)
        except Unknown:
            made = None
        if made is not None:
            sure = r.sure
            for names, value in zip(step.results, made, strict=False):
                if names:
                    r.write(names, value, active, sure)
            return
    for name in step.written:
        r.forget(name, active)
