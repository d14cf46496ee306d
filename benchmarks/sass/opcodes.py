"""What an instruction reads and writes.

Opcodes and operands are those that nvdisasm prints. NVIDIA documents what opcodes do (CUDA Binary Utilities,
"Instruction Set Reference"), not their operands, which are read off the compiler's output.
"""

from __future__ import annotations

import re

from benchmarks.sass.cubin import Instruction, Kernel

REGISTER = re.compile(r"\b(U?R\d+|U?P\d+|B\d+)\b")
_WIDE = re.compile(r"(U?R)(\d+)")
ARITHMETIC = frozenset([
    "FADD", "FCHK", "FFMA", "FMNMX", "FMUL", "FRND", "FSEL", "FSET", "FSETP", "HADD2", "HFMA2", "HMMA",
    "HMNMX2", "HMUL2", "HSET2", "HSETP2", "IMMA", "MUFU", "F2F", "F2FP", "F2I", "I2F", "I2FP", "UFADD",
    "UFFMA", "UFMUL", "UFSEL", "UFSETP", "UI2FP", "UI2F", "UF2I",
])  # fmt: skip
BARRIERS = frozenset([
    "BAR", "WARPSYNC", "MEMBAR", "ERRBAR", "CGAERRBAR", "UCGABAR_ARV", "UCGABAR_WAIT", "DEPBAR",
    "LDGDEPBAR", "SYNCS", "CCTL",
])  # fmt: skip
JUMPS = frozenset(
    ["BRA", "BRX", "BRXU", "EXIT", "CALL", "RET", "BSSY", "BSYNC", "BREAK", "WARPSYNC"]
)
NO_RESULT = JUMPS | BARRIERS | frozenset([
    "STG", "STS", "STL", "ST", "RED", "NOP", "BPT", "LDGSTS", "BMOV", "UBLKCP", "YIELD",
])  # fmt: skip
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
