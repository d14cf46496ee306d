"""The walk through machine code, by listings whose counts are known."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product

import numpy as np
import pytest

from benchmarks.sass import cubin, kinds, launches, measure, walk
from benchmarks.sass.flow import Flow
from benchmarks.sass.integers import evaluate, step_of
from benchmarks.sass.registers import EVERY, Registers
from capsedge.errors import CapsedgeError


def listing(
    text: str, architecture: int = 87, tables: dict[int, bytes] | None = None
) -> cubin.Kernel:
    """A kernel from lines as in ``@!P0 IADD3 R0, R1, 0x1, RZ``; a label is a line with a colon."""
    places: dict[str, int] = {}
    code: list[str] = []
    for line in (line.strip() for line in text.strip().splitlines()):
        if line.endswith(":"):
            places[line[:-1]] = len(code)
        else:
            code.append(line)
    made = []
    for line in code:
        guard, opcode, rest = re.fullmatch(r"(?:@(\S+) )?(\S+) ?(.*)", line).groups()  # type: ignore[union-attr]
        operands = [part.strip() for part in rest.split(",")] if rest else []
        operands = [hex(16 * places[o]) if o in places else o for o in operands]
        made.append(cubin.Instruction(guard or "", opcode, tuple(operands)))
    return cubin.Kernel("listed", architecture, tuple(made), {}, tables or {}, 32, 0, 0, 0)


def walked(kernel: cubin.Kernel, threads: int = 32, arguments: bytes = b"") -> walk.Trace:
    launch = launches.Launch("listed", (1, 1), threads, 1, 0, arguments)
    registers = Registers(measure.constants(kernel, launch), measure.special_registers(0))
    return walk.walk(walk.prepare(kernel, Flow(kernel), addresses=True), registers)


def test_loops_turn_as_often_as_the_arguments_say() -> None:
    kernel = listing("""
        S2R R0, SR_TID.X
        MOV R1, RZ
        again:
        FFMA R5, R5, R5, R5
        IADD3 R1, R1, 0x1, RZ
        ISETP.LT.AND P0, PT, R1, c[0x0][0x160], PT
        @P0 BRA again
        EXIT
    """)
    trace = walked(kernel, arguments=(37).to_bytes(4, "little"))
    assert trace.counts.tolist() == [1, 1, 37, 37, 37, 37, 1]
    assert not trace.undecided


def test_lanes_part_and_meet_again() -> None:
    """Eight lanes take one way, the others another; each way is issued once, what follows once for all."""
    kernel = listing("""
        S2R R0, SR_TID.X
        ISETP.LT.U32.AND P0, PT, R0, 0x8, PT
        BSSY B0, meet
        @P0 BRA few
        FADD R2, R2, R2
        FADD R2, R2, R2
        BRA meet
        few:
        STG.E [R4.64], R2
        meet:
        BSYNC B0
        FMUL R3, R3, R3
        EXIT
    """)
    trace = walked(kernel)
    names = Counter[str]()
    for instruction, times in zip(kernel.code, trace.counts, strict=True):
        names[instruction.opcode] += int(times)
    assert [names[name] for name in ("FADD", "STG.E", "FMUL")] == [2, 1, 1]
    ((moved),) = trace.traffic.values()
    assert moved.lanes == 8 * 4


def test_lanes_leave_a_loop_one_after_another() -> None:
    """A loop of as many turns as the lane's number plus one is issued 32 times, its end once."""
    kernel = listing("""
        S2R R0, SR_TID.X
        MOV R1, RZ
        BSSY B0, out
        again:
        ISETP.GE.AND P0, PT, R1, R0, PT
        IADD3 R1, R1, 0x1, RZ
        @!P0 BRA again
        out:
        BSYNC B0
        FADD R2, R2, R2
        EXIT
    """)
    assert walked(kernel).counts.tolist() == [1, 1, 1, 32, 32, 32, 1, 1, 1]


def test_branches_on_data_are_reported_and_slow_paths_skipped() -> None:
    kernel = listing("""
        LDG.E R2, [R4.64]
        FSETP.GT.AND P0, PT, R2, RZ, PT
        @P0 BRA fast
        MOV R8, 0x50
        CALL.REL.NOINC slow
        fast:
        FADD R2, R2, R2
        EXIT
        slow:
        FADD R3, R3, R3
        RET.REL.NODEC R8, listed
    """)
    trace = walked(kernel)
    assert trace.counts.tolist()[3:7] == [0, 0, 1, 1]
    assert trace.undecided == {2: 1}


def test_spilled_numbers_are_known_when_they_come_back() -> None:
    kernel = listing("""
        MOV R2, c[0x0][0x160]
        MOV R1, RZ
        STL [R1+0x8], R2
        LDG.E R2, [R4.64]
        LDL R3, [R1+0x8]
        MOV R5, RZ
        again:
        IADD3 R5, R5, 0x1, RZ
        ISETP.LT.AND P0, PT, R5, R3, PT
        @P0 BRA again
        EXIT
    """)
    trace = walked(kernel, arguments=(9).to_bytes(4, "little"))
    assert trace.counts[6] == 9
    assert not trace.undecided


def test_operands_of_a_form_unknown_here_are_refused() -> None:
    kernel = listing("""
        MOV R0, x[0x4]
        ISETP.LT.AND P0, PT, R0, 0x8, PT
        @P0 EXIT
        EXIT
    """)
    with pytest.raises(CapsedgeError, match="operand x"):
        walked(kernel)


def test_jumps_by_a_table() -> None:
    """BRX goes to what the kernel's constant bank names, relative to the next instruction."""
    table = b"".join(place.to_bytes(4, "little") for place in (0x60, 0x40))
    kernel = listing(
        """
        MOV R0, 0x4
        LDC R2, c[0x2][R0]
        BRX R2, -0x30
        FMUL R3, R3, R3
        FADD R3, R3, R3
        EXIT
        FFMA R3, R3, R3, R3
        EXIT
        """,
        tables={2: table},
    )
    assert walked(kernel).counts.tolist() == [1, 1, 1, 0, 1, 1, 0, 0]


def test_jumps_to_nowhere_are_refused() -> None:
    kernel = listing("""
        LDG.E R2, [R4.64]
        BRX R2, -0x20
        EXIT
    """)
    with pytest.raises(walk.Lost, match="depends on data"):
        walked(kernel)


def division(numerator: str, denominator: str) -> cubin.Kernel:
    """Unsigned division as the compiler writes it for compute capability 8.7; the quotient is in R4."""
    return listing(f"""
        I2F.U32.RP R0, {denominator}
        ISETP.NE.U32.AND P4, PT, RZ, {denominator}, PT
        MUFU.RCP R0, R0
        IADD3 R4, R0, 0xffffffe, RZ
        F2I.FTZ.U32.TRUNC.NTZ R5, R4
        IMAD.MOV.U32 R4, RZ, RZ, RZ
        IADD3 R3, RZ, -R5, RZ
        IMAD R3, R3, {denominator}, RZ
        IMAD.HI.U32 R5, R5, R3, R4
        IMAD.HI.U32 R4, R5, {numerator}, RZ
        IADD3 R3, -R4, RZ, RZ
        IMAD R3, R3, {denominator}, {numerator}
        ISETP.GE.U32.AND P1, PT, R3, {denominator}, PT
        @P1 IADD3 R3, R3, -{denominator}, RZ
        @P1 IADD3 R4, R4, 0x1, RZ
        ISETP.GE.U32.AND P3, PT, R3, {denominator}, PT
        @P3 IADD3 R4, R4, 0x1, RZ
    """)


@pytest.mark.parametrize(
    ("numerator", "denominator"),
    [*product((0, 7, 288, 123456789, 2**32 - 1), (1, 3, 10, 4097, 2**31 + 1))],
)
def test_integer_division_divides(numerator: int, denominator: int) -> None:
    kernel = division(hex(numerator), hex(denominator))
    registers = Registers({}, {})
    for instruction in kernel.code:
        mask = EVERY
        if instruction.guard:
            mask = EVERY if registers.predicate(instruction.guard).all() else 0
        if mask:
            evaluate(registers, step_of(instruction), mask)
    assert registers.register("R4").tolist() == [numerator // denominator] * 32


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("IADD3 R0, R8, -R9, 0x1", 10 - 3 + 1),
        ("IMAD.WIDE R0, R10, 0x8, R8", (-5 * 8 + (3 << 32) + 10) & (2**64 - 1)),
        ("IMAD.WIDE.U32 R0, R10, 0x8, RZ", (2**32 - 5) * 8),
        ("IMAD.HI R0, R10, 0x8, RZ", 0xFFFFFFFF),
        ("LEA R0, R8, R9, 0x4", 163),
        ("LEA.HI.SX32 R0, R10, R9, 0x4", 3 - 1),
        ("SHF.R.S32.HI R0, RZ, 0x1f, R10", 0xFFFFFFFF),
        ("SHF.R.U32.HI R0, RZ, 0x1f, R10", 1),
        ("SHF.L.U64.HI R0, R10, 0x4, RZ", 15),
        ("SHF.L.U32 R0, R8, 0x3, RZ", 80),
        ("LOP3.LUT R0, R8, R9, RZ, 0x3c, !PT", 10 ^ 3),
        ("LOP3.LUT R0, R8, R9, RZ, 0xc0, !PT", 10 & 3),
        ("SEL R0, R8, R9, !PT", 3),
        ("IMNMX R0, R8, R10, PT", 2**32 - 5),
        ("VIMNMX.U32 R0, R8, R10, PT", 10),
        ("VIMNMX3 R0, R8, R9, R10, PT", 2**32 - 5),
        ("VIMNMX3.U32 R0, R8, R9, R10, !PT", 2**32 - 5),
        ("VIMNMX3 R0, R9, R8, R10, !PT", 10),
        ("IABS R0, R10", 5),
        ("PRMT R0, R8, 0x7610, R10", 0xFFFF000A),
        ("HFMA2.MMA R0, -RZ, RZ, 0, 5.9604644775390625e-08", 1),
        ("IADD.64 R0, R8, 0x2", (3 << 32) + 12),
        ("CS2R R0, SRZ", 0),
    ],
)
def test_instructions(line: str, expected: int) -> None:
    """R8 is 10, R9 is 3, R10 is -5."""
    registers = Registers({}, {"SRZ": np.zeros(32, np.uint64)})
    for name, value in (("R8", 10), ("R9", 3), ("R10", 2**32 - 5)):
        registers.write((name,), np.full(32, value, np.uint64), EVERY, EVERY)
    (instruction,) = listing(line).code
    step = step_of(instruction)
    evaluate(registers, step, EVERY)
    words = [int(registers.register(name)[5]) for name in step.written]
    assert all(registers.known[name] == EVERY for name in step.written)
    assert sum(word << 32 * k for k, word in enumerate(words)) == expected


def test_comparisons_of_pairs() -> None:
    """The high words decide, the low ones where those are equal."""
    for a, b in product((-(2**40), -1, 0, 5, 2**33, 2**33 + 1), repeat=2):
        registers = Registers({}, {})
        for name, value in (("R8", a), ("R9", a >> 32), ("R10", b), ("R11", b >> 32)):
            registers.write((name,), np.full(32, value & EVERY, np.uint64), EVERY, EVERY)
        for line in (
            "ISETP.LT.U32.AND P0, PT, R8, R10, PT",
            "ISETP.LT.AND.EX P1, PT, R9, R11, PT, P0",
        ):
            evaluate(registers, step_of(listing(line).code[0]), EVERY)
        assert registers.predicate("P1").all() == (a < b), (a, b)


def test_turns_of_shared_memory() -> None:
    lane = np.arange(32, dtype=np.uint64)
    assert walk.wavefronts(4 * lane, 4) == 1
    assert walk.wavefronts(8 * lane, 4) == 2
    assert walk.wavefronts(128 * lane, 4) == 32
    assert walk.wavefronts(0 * lane, 16) == 1  # one address for all
    assert walk.wavefronts(16 * lane, 16) == 4
    assert walk.wavefronts(64 * (lane % np.uint64(8)) + 4 * (lane // np.uint64(8)), 4) == 4


def test_sectors_of_global_memory() -> None:
    """Lanes 512 bytes apart touch a sector each; neighbours share theirs."""
    kernel = listing("""
        S2R R0, SR_TID.X
        MOV R3, RZ
        IMAD.SHL.U32 R2, R0, 0x200, RZ
        LDG.E R6, [R2.64]
        IMAD.SHL.U32 R2, R0, 0x4, RZ
        LDG.E R6, [R2.64+0x40]
        EXIT
    """)
    traffic = walked(kernel).traffic
    assert (traffic[3].units, traffic[5].units) == (32 * 32, 4 * 32)


def test_kinds() -> None:
    """A loop that copies is staging with its divisions; the others are what they do."""
    kernel = listing("""
        I2F.U32.RP R20, R21
        MUFU.RCP R20, R20
        again:
        IMAD.HI.U32 R5, R5, R3, R4
        LDG.E R2, [R4.64]
        STS [R6], R2
        ISETP.LT.AND P0, PT, R1, c[0x0][0x160], PT
        @P0 BRA again
        BAR.SYNC.DEFER_BLOCKING 0x0
        LDS R7, [R6]
        FFMA R8, R7, R7, R8
        MUFU.RCP R9, R8
        SHFL.BFLY PT, R10, R8, 0x10, 0x1f
        STS [R6], R8
        STG.E [R4.64], R8
        EXIT
    """)
    found, divides = kinds.classify(Flow(kernel))
    assert found == [
        *("division", "division", "staging", "staging", "staging", "staging", "staging"),
        *("barrier", "load", "arithmetic", "arithmetic", "shuffle", "other", "other", "other"),
    ]
    assert [at for at, divided in enumerate(divides) if divided] == [0, 1, 2]
