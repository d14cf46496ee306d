"""What the instructions of a kernel are for."""

from __future__ import annotations

import re

from benchmarks.sass.cubin import Instruction, Kernel
from benchmarks.sass.flow import Flow
from benchmarks.sass.opcodes import ARITHMETIC, BARRIERS, LOADS, jump_target

KINDS = ("staging", "arithmetic", "load", "shuffle", "barrier", "division", "other")
FMA = frozenset(["FFMA", "FADD", "FMUL", "HFMA2", "HADD2", "HMUL2"])
_COPIES = frozenset(["MOV", "IMAD", "FMUL", "I2F", "I2FP", "HADD2", "PRMT", "FSEL", "SEL"])
_INTO_SHARED = frozenset(["STS", "LDGSTS", "UBLKCP"])


def is_division(code: tuple[Instruction, ...], at: int) -> bool:
    """Whether an instruction belongs to an integer division.

    The compiler divides by a float reciprocal that it turns into an integer (I2F.RP, MUFU.RCP,
    F2I.TRUNC.NTZ) and high products (IMAD.HI); corrections by compare and add look like any other code and
    are not counted.
    """
    instruction = code[at]
    opcode = instruction.opcode.removeprefix("U")
    if re.match(r"I2F\.(.*\.)?RP$|F2I\..*TRUNC\.NTZ$|F2I\.U64\.TRUNC$|IMAD\.HI\b", opcode):
        return True
    if opcode != "MUFU.RCP":
        return False
    for earlier in reversed(code[max(0, at - 48) : at]):
        if earlier.operands and earlier.operands[0] == instruction.operands[1]:
            return re.match(r"U?I2F\.(.*\.)?RP$", earlier.opcode) is not None
    return False


def _is_constant(instruction: Instruction) -> bool:
    """HFMA2 with -0 * 0, which writes a constant."""
    return instruction.base == "HFMA2" and "RZ" in instruction.operands[2:3]


def _opcode_kind(code: tuple[Instruction, ...], at: int) -> str:
    instruction = code[at]
    base = instruction.base
    if base == "SHFL":
        return "shuffle"
    if base in BARRIERS:
        return "barrier"
    if is_division(code, at):
        return "division"
    if base in ARITHMETIC and not _is_constant(instruction):
        return "arithmetic"
    return "load" if base in LOADS else "other"


def _stores_what_was_loaded(flow: Flow, at: int) -> bool:
    """Whether a store into shared memory writes what came from global memory, converted or not."""
    code = flow.kernel.code
    instruction = code[at]
    if instruction.base != "STS":
        return True
    left = [
        (at, name)
        for o in instruction.operands
        if "[" not in o
        for name in re.findall(r"\bR\d+", o)
    ]
    seen = set()
    while left:
        place, name = left.pop()
        for source in flow.definitions[place].get(name, ()):
            if source in seen:
                continue
            seen.add(source)
            if code[source].base in {"LDG", "LD"}:
                return True
            if code[source].base in _COPIES:
                left += [(source, each) for each in flow.definitions[source]]
    return False


def _loops(kernel: Kernel) -> list[tuple[int, int]]:
    """Ranges that branches go back over, smallest first."""
    found = []
    for at, instruction in enumerate(kernel.code):
        target = jump_target(kernel, instruction) if instruction.base == "BRA" else None
        if target is not None and target < at:
            found.append((target, at))
    return sorted(found, key=lambda pair: pair[1] - pair[0])


def _staging(flow: Flow, kinds: list[str]) -> set[int]:
    """Instructions that do nothing but bring data from global into shared memory.

    All of a loop that stores what it loaded and multiplies nothing with anything; elsewhere, what such
    stores need and nothing else does.
    """
    code = flow.kernel.code
    stores = {
        at
        for at, i in enumerate(code)
        if i.base in _INTO_SHARED and _stores_what_was_loaded(flow, at)
    }
    found: set[int] = set()
    for first, last in _loops(flow.kernel):
        inside = range(first, last + 1)
        if stores & set(inside) and not any(
            code[k].base in {"FFMA", "SHFL", "HMMA"} for k in inside
        ):
            found |= set(inside)
    computing = {at for at, kind in enumerate(kinds) if kind in {"arithmetic", "shuffle"}} - found
    ends = {"STG", "STS", "STL", "EXIT", "BRA", "RET"}
    others = {
        at
        for at, i in enumerate(code)
        if at not in stores | found and (at in computing or i.base in ends)
    }
    shared = flow.needed([(at, name) for at in others for name in flow.definitions[at]])
    own = flow.needed(
        [(at, name) for at in stores for name in flow.definitions[at]], through=frozenset(computing)
    )
    return found | stores | (own - shared - computing)


def classify(flow: Flow) -> tuple[list[str], list[bool]]:
    """The kind of every instruction, and whether it divides integers (also where it stages)."""
    code = flow.kernel.code
    kinds = [_opcode_kind(code, at) for at in range(len(code))]
    divides = [kind == "division" for kind in kinds]
    for at in _staging(flow, kinds):
        kinds[at] = "staging"
    return kinds, divides
