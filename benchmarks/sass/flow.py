"""What an instruction reads and writes, which definitions reach it, and what it is for.

Opcodes and operands are those that nvdisasm prints (CUDA Binary Utilities, "Instruction Set Reference");
NVIDIA documents their names, not their operands, which are read off the compiler's output.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from benchmarks.sass.cubin import Instruction, Kernel

REGISTER = re.compile(r"\b(U?R\d+|U?P\d+|B\d+)\b")
_WIDE = re.compile(r"(U?R)(\d+)")
ARITHMETIC = frozenset(
    [
        "FADD",
        "FCHK",
        "FFMA",
        "FMNMX",
        "FMUL",
        "FRND",
        "FSEL",
        "FSET",
        "FSETP",
        "HADD2",
        "HFMA2",
        "HMMA",
        "HMNMX2",
        "HMUL2",
        "HSET2",
        "HSETP2",
        "IMMA",
        "MUFU",
        "F2F",
        "F2FP",
        "F2I",
        "I2F",
        "I2FP",
        "UFADD",
        "UFFMA",
        "UFMUL",
        "UFSEL",
        "UFSETP",
        "UI2FP",
        "UI2F",
        "UF2I",
    ]
)
BARRIERS = frozenset(
    [
        "BAR",
        "WARPSYNC",
        "MEMBAR",
        "ERRBAR",
        "CGAERRBAR",
        "UCGABAR_ARV",
        "UCGABAR_WAIT",
        "DEPBAR",
        "LDGDEPBAR",
        "SYNCS",
        "CCTL",
    ]
)
JUMPS = frozenset(
    ["BRA", "BRX", "BRXU", "EXIT", "CALL", "RET", "BSSY", "BSYNC", "BREAK", "WARPSYNC"]
)
NO_RESULT = (
    JUMPS
    | BARRIERS
    | frozenset(
        ["STG", "STS", "STL", "ST", "RED", "NOP", "BPT", "LDGSTS", "BMOV", "UBLKCP", "YIELD"]
    )
)
PREDICATES_ONLY = frozenset(
    ["ISETP", "FSETP", "UISETP", "UFSETP", "PLOP3", "UPLOP3", "HSETP2", "FCHK"]
)
LOADS = frozenset(["LDG", "LDS", "LDC", "LD", "LDL", "LDSM", "ULDC", "LDCU"])
GLOBAL = frozenset(["LDG", "STG", "LD", "ST", "RED", "ATOMG"])
SHARED = frozenset(["LDS", "STS", "LDSM", "ATOMS"])


def is_predicate(operand: str) -> bool:
    """Whether an operand is a predicate register, possibly negated."""
    return re.fullmatch(r"!?U?P(\d+|T)", operand) is not None


def width_of(instruction: Instruction) -> int:
    """Registers of the result, and of a stored value."""
    opcode = instruction.opcode
    if instruction.base == "CS2R":
        return 1 if ".32" in opcode else 2
    if ".128" in opcode:
        return 4
    wide = re.search(r"\.(64|WIDE|U64)(\.|$)", opcode)
    return 2 if wide and ".HI" not in opcode and "SETP" not in opcode else 1


def bytes_of(instruction: Instruction) -> int:
    """Bytes that a lane reads or writes."""
    if re.search(r"\.[US]8\b", instruction.opcode):
        return 1
    return 2 if re.search(r"\.[US]16\b", instruction.opcode) else 4 * width_of(instruction)


def _spread(name: str, count: int) -> list[str]:
    match = _WIDE.fullmatch(name)
    if match is None or count == 1:
        return [name]
    return [f"{match[1]}{int(match[2]) + k}" for k in range(count)]


def target_count(instruction: Instruction) -> int:
    """How many of the first operands are results."""
    operands, base = instruction.operands, instruction.base
    if base in NO_RESULT:
        return 0
    if base in PREDICATES_ONLY:
        return 1 if base == "FCHK" else 2
    at = 0
    while at < len(operands) and is_predicate(operands[at]):
        at += 1
    if base == "VOTEU" and at:
        return 1
    at += 1
    while at < len(operands) and is_predicate(operands[at]) and not operands[at].startswith("!"):
        if base in {"SEL", "FSEL", "USEL", "UFSEL", "P2R"} or base.endswith("MNMX"):
            break
        at += 1
    return min(at, len(operands))


def local_words(instruction: Instruction) -> list[str]:
    """Names for the words of local memory that a spill or its reload is about."""
    if instruction.base not in {"LDL", "STL"}:
        return []
    place = re.search(r"\[R1(?:\+(0x[0-9a-f]+))?\]", ",".join(instruction.operands))
    if place is None:
        return []
    start = int(place[1] or "0", 16)
    return [f"L{start + 4 * k}" for k in range(width_of(instruction))]


def targets(instruction: Instruction) -> list[str]:
    """Registers that an instruction writes, and words of local memory."""
    if instruction.base == "STL":
        return local_words(instruction)
    if instruction.base in {"BSSY", "BMOV"}:
        return REGISTER.findall(instruction.operands[0])
    if instruction.base == "R2P":
        return [f"P{k}" for k in range(7)]
    found = []
    for operand in instruction.operands[: target_count(instruction)]:
        for name in REGISTER.findall(operand):
            found += _spread(name, width_of(instruction) if name.lstrip("U")[0] == "R" else 1)
    return found


def sources(instruction: Instruction, *, addresses: bool = False) -> list[str]:
    """Registers that an instruction reads, its predicate included; or the predicate and addresses alone."""
    found = REGISTER.findall(instruction.guard)
    for number, operand in enumerate(instruction.operands[target_count(instruction) :]):
        if addresses and "[" not in operand:
            continue
        count = _operand_width(instruction, number, operand)
        for name in REGISTER.findall(operand):
            found += _spread(name, count if name.lstrip("U")[0] == "R" else 1)
    if instruction.base == "BMOV":
        return found[1:]
    if "PR" in instruction.operands:
        found += [f"P{k}" for k in range(7)]
    return found + (local_words(instruction) if instruction.base == "LDL" else [])


def _operand_width(instruction: Instruction, number: int, operand: str) -> int:
    """Registers of the operand with this number among those that are read."""
    opcode = instruction.opcode
    if "[" in operand:
        return 2 if ".64" in operand or "UR" in operand else 1
    if instruction.base in {"STG", "STS", "STL", "ST"}:
        return width_of(instruction)
    if ".WIDE" in opcode or "IMAD.HI" in opcode:
        return 2 if number == 2 else 1
    return 2 if re.search(r"\.[SU]?64\b", opcode) and instruction.base.lstrip("U") != "LDC" else 1


def jump_target(kernel: Kernel, instruction: Instruction) -> int | None:
    """Index of the instruction that a branch or a call leads to."""
    if instruction.base not in {"BRA", "CALL", "BSSY"} or not instruction.operands:
        return None
    last = instruction.operands[-1].strip("`()")
    if last in kernel.entries:
        return kernel.entries[last]
    return int(last, 16) // 16 if re.fullmatch(r"0x[0-9a-f]+", last) else None


@dataclass
class Flow:
    """A kernel's control flow and definitions."""

    kernel: Kernel
    returns: list[int] = field(default_factory=list)
    indirect: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        code = self.kernel.code
        self.returns = [k + 1 for k, i in enumerate(code) if i.base == "CALL"]
        words = (int.from_bytes(t[k : k + 4], "little") for t in self.kernel.tables.values()
                 for k in range(0, len(t) - 3, 4))  # fmt: skip
        places = {
            word // 16 for word in words if word and word % 16 == 0 and word // 16 < len(code)
        }
        if any(i.base in {"BRX", "BRXU"} for i in code):
            self.indirect = sorted(places)

    def following(self, at: int) -> list[int]:
        """Instructions that may come next."""
        instruction = self.kernel.code[at]
        base, guarded = instruction.base, bool(instruction.guard)
        after = [at + 1] if at + 1 < len(self.kernel.code) else []
        target = jump_target(self.kernel, instruction)
        if base == "BRA" and target is not None:
            conditional = guarded or len(instruction.operands) > 1
            return [target, *(after if conditional else [])]
        if base == "CALL" and target is not None:
            return [target]
        if base == "RET":
            return [*self.returns, *(after if guarded else [])]
        if base in {"BRX", "BRXU"}:
            return [*self.indirect, *(after if guarded else [])]
        if base == "EXIT":
            return after if guarded else []
        return after

    @cached_property
    def blocks(self) -> list[tuple[int, int]]:
        """Basic blocks as [first, end)."""
        code = self.kernel.code
        starts = {0, *self.kernel.entries.values(), *self.returns, *self.indirect}
        for at, instruction in enumerate(code):
            if instruction.base in {"BRA", "BRX", "BRXU", "EXIT", "CALL", "RET"}:
                starts |= {at + 1, *self.following(at)}
        edges = sorted(s for s in starts if s < len(code))
        return list(zip(edges, [*edges[1:], len(code)], strict=True))

    @cached_property
    def definitions(self) -> list[dict[str, tuple[int, ...]]]:
        """For every instruction and register that it reads: the instructions that may have written it."""
        code = self.kernel.code
        written = [targets(i) for i in code]
        of_register: dict[str, int] = {}
        for at, names in enumerate(written):
            for name in names:
                of_register[name] = of_register.get(name, 0) | 1 << at
        reaching = self._reaching(written, of_register)
        found: list[dict[str, tuple[int, ...]]] = []
        for first, end in self.blocks:
            now = {name: mask & reaching[first] for name, mask in of_register.items()}
            for at in range(first, end):
                found.append({name: _bits(now.get(name, 0)) for name in sources(code[at])})
                for name in written[at]:
                    now[name] = (now[name] if code[at].guard else 0) | 1 << at
        return found

    def _reaching(self, written: list[list[str]], of_register: dict[str, int]) -> dict[int, int]:
        """Definitions, as bits, that reach the start of every block."""
        made: dict[int, int] = {}
        killed: dict[int, int] = {}
        before: dict[int, list[int]] = {first: [] for first, _ in self.blocks}
        for first, end in self.blocks:
            gen = kill = 0
            for at in range(first, end):
                for name in written[at]:
                    if not self.kernel.code[at].guard:
                        gen &= ~of_register[name]
                        kill |= of_register[name]
                    gen |= 1 << at
            made[first], killed[first] = gen, kill
            for after in self.following(end - 1):
                before[after].append(first)
        reaching = dict.fromkeys(before, 0)
        changed = True
        while changed:
            changed = False
            for first, _ in self.blocks:
                now = 0
                for source in before[first]:
                    now |= made[source] | (reaching[source] & ~killed[source])
                if now != reaching[first]:
                    reaching[first], changed = now, True
        return reaching

    def needed(
        self, wanted: Iterable[tuple[int, str]], through: frozenset[int] = frozenset()
    ) -> set[int]:
        """Instructions that the registers wanted by some instructions are made by, all the way back.

        Args:
            wanted: an instruction and a register that it reads.
            through: instructions that are not followed further back.
        """
        left, found = list(wanted), set()
        while left:
            at, name = left.pop()
            for source in self.definitions[at].get(name, ()):
                if source in found:
                    continue
                found.add(source)
                if source not in through:
                    left += [(source, each) for each in self.definitions[source]]
        return found


def _bits(mask: int) -> tuple[int, ...]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return tuple(found)
