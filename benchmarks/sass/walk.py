"""A warp's way through a kernel, instruction by instruction, with the arguments of its launch.

Only integers are calculated (:mod:`benchmarks.sass.integers`): identities, arguments and what follows from
them decide loops, branches and addresses; what is loaded or computed in floating point is unknown. A branch
that depends on it takes the way around a subroutine (the slow paths of division and square root) and else
is not taken; `undecided` counts such branches. Lanes that part meet again where BSSY and BSYNC say so.
Warps do not wait for one another.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from benchmarks.sass.cubin import Instruction, Kernel
from benchmarks.sass.flow import Flow
from benchmarks.sass.integers import Step, evaluate, handler_of, step_of
from benchmarks.sass.opcodes import GLOBAL, JUMPS, REGISTER, SHARED, bytes_of, jump_target, sources
from benchmarks.sass.registers import EVERY, Lanes, Registers, lanes, mask_of
from capsedge.errors import CapsedgeError

_JUMPING = JUMPS | {"BMOV", "VOTE", "VOTEU", "R2P"}
SECTOR, BANKS = 32, 32
LIMIT = 20_000_000  # instructions of a warp


class Lost(CapsedgeError):
    """The walk cannot go on: a jump to an unknown place."""


@dataclass
class Traffic:
    """What a memory instruction moved.

    Attributes:
        lanes: bytes that the lanes asked for.
        units: bytes of the 32-byte sectors touched (global), or of the wavefronts of 32 banks (shared).
    """

    lanes: int = 0
    units: int = 0


@dataclass
class Trace:
    """What was issued.

    Attributes:
        counts: of each instruction, how often a warp issued it.
        traffic: of each memory instruction, what it moved.
        undecided: branches that depended on data, by instruction.
        unplaced: memory accesses whose addresses were unknown; they count as contiguous.
    """

    counts: Lanes
    traffic: dict[int, Traffic] = field(default_factory=dict)
    undecided: Counter[int] = field(default_factory=Counter)
    unplaced: int = 0


@dataclass(frozen=True)
class Prepared:
    """A kernel with what its walks share.

    Attributes:
        stops: instructions that must be executed, in order of their places; the others are only counted.
        next_stop: for every place, the first stop from there on.
        steps: the stops, decoded.
    """

    kernel: Kernel
    flow: Flow
    stops: frozenset[int]
    next_stop: tuple[int, ...]
    steps: dict[int, Step]


def prepare(kernel: Kernel, flow: Flow, *, addresses: bool) -> Prepared:
    """Find what control flow, predicates of memory accesses and, if asked for, addresses are made by."""
    wanted: list[tuple[int, str]] = []
    stops = set()
    for at, instruction in enumerate(kernel.code):
        base = instruction.base
        if base in _JUMPING or base in GLOBAL | SHARED | {"LDGSTS"}:
            stops.add(at)
            names = REGISTER.findall(instruction.guard)
            if base in _JUMPING:
                names = list(flow.definitions[at])
            elif addresses:
                names = sources(instruction, addresses=True)
            wanted += [(at, name) for name in names]
    opaque = frozenset(at for at, i in enumerate(kernel.code) if handler_of(i) is None)
    stops |= flow.needed(wanted, through=opaque)
    following = [len(kernel.code)] * (len(kernel.code) + 1)
    for at in range(len(kernel.code) - 1, -1, -1):
        following[at] = at if at in stops else following[at + 1]
    steps = {at: step_of(kernel.code[at]) for at in stops}
    return Prepared(kernel, flow, frozenset(stops), tuple(following), steps)


def walk(prepared: Prepared, registers: Registers, most: int | None = None) -> Trace:
    """One warp from its first instruction to its exit, or for `most` instructions.

    Raises:
        Lost: a jump leads to a place that the walk cannot know, or there is no end.
    """
    return _Walk(prepared, registers, most).run()


class _Walk:
    def __init__(self, prepared: Prepared, registers: Registers, most: int | None) -> None:
        self.most = most
        self.code, self.flow = prepared.kernel.code, prepared.flow
        self.prepared, self.registers = prepared, registers
        self.steps = np.zeros(len(self.code) + 1, np.int64)  # differences of the counts
        self.trace = Trace(self.steps)
        self.ready: dict[int, int] = {0: EVERY}  # lanes by the place they are at
        self.waiting: dict[
            tuple[str, int, int], int
        ] = {}  # barrier, its lanes, place: lanes that are there
        self.alive, self.issued = EVERY, 0

    def run(self) -> Trace:
        while (self.ready or self.waiting) and not self._enough():
            if not self.ready:  # lanes wait for others that took another way: go on with the first
                key = min(self.waiting, key=lambda k: k[2])
                self._go(key[2] + 1, self.waiting.pop(key))
                continue
            place = min(self.ready)
            self._follow(place, self.ready.pop(place))
        self.trace.counts = np.cumsum(self.steps)[:-1]
        return self.trace

    def _enough(self) -> bool:
        if self.issued > LIMIT:
            raise Lost(f"{self.prepared.kernel.name}: no end after {LIMIT} instructions")
        return self.most is not None and self.issued >= self.most

    def _go(self, place: int, mask: int) -> None:
        if mask:
            self.ready[place] = self.ready.get(place, 0) | mask

    def _follow(self, at: int, mask: int) -> None:
        """Straight ahead, up to a jump or to where other lanes are."""
        others = min(self.ready, default=len(self.code))
        while True:
            stop = min(self.prepared.next_stop[at], others)
            self.steps[at] += 1
            if stop == others and stop != at:
                self.steps[stop] -= 1
                self._go(stop, mask)
                return
            self.steps[stop + 1] -= 1
            self.issued += stop + 1 - at
            instruction = self.code[stop]
            if instruction.base in _JUMPING:
                after = self._jump(stop, instruction, mask)
            else:
                self._execute(stop, instruction, mask)
                after = {stop + 1: mask}
            if len(after) == 1 and not (set(after) & set(self.ready)):
                ((at, mask),) = after.items()
                if at < others and not self._enough():
                    continue
            for place, part in after.items():
                self._go(place, part)
            return

    def _guarded(self, at: int, operand: str, mask: int) -> int:
        """Lanes of the mask for which a predicate holds; those that cannot know are decided by the way."""
        if not operand:
            return mask
        self.registers.sure = EVERY
        holds = mask_of(self.registers.predicate(operand)) & mask
        doubtful = mask & ~self.registers.sure
        if doubtful and self.code[at].base in {"BRA", "EXIT", "RET"}:
            self.trace.undecided[at] += 1
            return holds & ~doubtful | (doubtful if self._around_a_call(at) else 0)
        return holds | doubtful

    def _around_a_call(self, at: int) -> bool:
        """Whether a forward branch skips a call of a subroutine."""
        target = jump_target(self.prepared.kernel, self.code[at])
        if target is None or not at < target < at + 64:
            return False
        return any(i.base == "CALL" for i in self.code[at + 1 : target])

    def _execute(self, at: int, instruction: Instruction, mask: int) -> None:
        active = self._guarded(at, instruction.guard, mask) if instruction.guard else mask
        if not active:
            return
        if instruction.base in GLOBAL | SHARED or instruction.base == "LDGSTS":
            self._move(at, instruction, active)
        step = self.prepared.steps[at]
        if step.written:
            evaluate(self.registers, step, active)

    def _move(self, at: int, instruction: Instruction, active: int) -> None:
        """Count what a memory instruction moves."""
        size, count = bytes_of(instruction), active.bit_count()
        moved = self.trace.traffic.setdefault(at, Traffic())
        moved.lanes += size * count
        self.registers.sure = EVERY
        operand = [o for o in instruction.operands if "[" in o][-1]
        places = self.registers.address(operand)
        if active & ~self.registers.sure:
            self.trace.unplaced += 1
            moved.units += -(-size * count // SECTOR) * SECTOR
            return
        own = places[lanes(active)]
        if instruction.base in SHARED:
            moved.units += wavefronts(own, size) * 4 * BANKS
        else:
            moved.units += (
                len(
                    np.unique(np.concatenate([own, own + np.uint64(size - 1)]) // np.uint64(SECTOR))
                )
                * SECTOR
            )

    def _jump(self, at: int, instruction: Instruction, mask: int) -> dict[int, int]:
        """Lanes by the place they go to."""
        base = instruction.base
        active = self._guarded(at, instruction.guard, mask)
        rest = mask & ~active
        if base == "EXIT":
            self.alive &= ~active
            self._release()
            return {at + 1: rest} if rest else {}
        if base in {"BSYNC", "WARPSYNC"}:
            return self._meet(at, instruction, active, rest)
        if base in {"BRA", "CALL", "RET", "BRX", "BRXU"}:
            return self._leave(at, instruction, active, rest)
        self._bookkeeping(instruction, active)
        return {at + 1: mask}

    def _leave(self, at: int, instruction: Instruction, active: int, rest: int) -> dict[int, int]:
        after = {at + 1: rest} if rest else {}
        if instruction.base == "BRA":
            if ".DIV" in instruction.opcode:  # taken where lanes are apart
                apart = bool(self.alive & ~(active | rest))
                active, rest = (active, rest) if apart else (0, active | rest)
            else:
                for operand in instruction.operands[:-1]:
                    kept = self._guarded(at, operand, active) if "P" in operand else active
                    active, rest = kept, rest | (active & ~kept)
            after = {at + 1: rest} if rest else {}
        if not active:
            return after
        target = jump_target(self.prepared.kernel, instruction)
        if target is not None:
            after[target] = after.get(target, 0) | active
            return after
        return self._indirect(at, instruction, active, after)

    def _indirect(
        self, at: int, instruction: Instruction, active: int, after: dict[int, int]
    ) -> dict[int, int]:
        """Returns and jump tables: a register holds the place."""
        self.registers.sure = EVERY
        places = self.registers.word(instruction.operands[0])
        if active & ~self.registers.sure:
            raise Lost(f"{self.prepared.kernel.name}: a jump at {16 * at:#x} depends on data")
        offset = 0
        if instruction.base != "RET":
            offset = int(instruction.operands[1], 16) + 16 * (at + 1)
        for lane in np.flatnonzero(lanes(active)):
            place = (int(places[lane]) + offset & EVERY) // 16
            after[place] = after.get(place, 0) | 1 << int(lane)
        return after

    def _meet(self, at: int, instruction: Instruction, active: int, rest: int) -> dict[int, int]:
        if not active:
            return {at + 1: rest}
        if instruction.base == "WARPSYNC":
            name, members = "warp", EVERY
        else:
            name = instruction.operands[0]
            stored = self.registers.values.get(name)
            members = EVERY if stored is None else int(stored[(active & -active).bit_length() - 1])
        key = (name, members, at)
        self.waiting[key] = self.waiting.get(key, 0) | active
        self._release()
        return {at + 1: rest} if rest else {}

    def _release(self) -> None:
        """Let those go on who are all there."""
        for key, here in list(self.waiting.items()):
            if not key[1] & self.alive & ~here:
                del self.waiting[key]
                self._go(key[2] + 1, here & self.alive)

    def _bookkeeping(self, instruction: Instruction, active: int) -> None:
        registers, operands = self.registers, instruction.operands
        if instruction.base == "BSSY":
            registers.write((operands[0],), np.full(32, active, np.uint64), active, EVERY)
        elif instruction.base == "BMOV":
            number = re.fullmatch(r"0x[0-9a-f]+", operands[1])
            value = (
                np.full(32, int(operands[1], 16), np.uint64)
                if number
                else registers.register(operands[1])
            )
            registers.write((operands[0],), value, active, EVERY)
        elif instruction.base == "BREAK":
            self._forsake(operands[-1], active)
        elif instruction.base in {"VOTEU", "VOTE"}:
            self._vote(instruction, active)
        else:
            raise Lost(f"{self.prepared.kernel.name}: {instruction.opcode} is not known here")

    def _forsake(self, name: str, active: int) -> None:
        """BREAK: lanes that will not come to a barrier."""
        stored = self.registers.values[name]
        members = int(stored[(active & -active).bit_length() - 1])
        self.registers.write((name,), np.full(32, members & ~active, np.uint64), members, EVERY)
        for key in [k for k in self.waiting if k[:2] == (name, members)]:
            self.waiting[(name, members & ~active, key[2])] = self.waiting.pop(key)
        self._release()

    def _vote(self, instruction: Instruction, active: int) -> None:
        self.registers.sure = EVERY
        holds = mask_of(self.registers.predicate(instruction.operands[-1])) & active
        answer = {"ANY": bool(holds), "ALL": holds == active}.get(instruction.opcode.split(".")[1])
        if answer is None:
            raise Lost(f"{self.prepared.kernel.name}: {instruction.opcode} is not known here")
        known = EVERY if not active & ~self.registers.sure else 0
        for operand in instruction.operands[:-1]:
            if re.fullmatch(r"U?R\d+", operand):
                self.registers.forget(operand, active)
            elif re.fullmatch(r"U?P\d", operand):
                self.registers.write((operand,), np.full(32, answer), active, known)


def wavefronts(places: Lanes, size: int) -> int:
    """Turns of 32 banks that a warp's access of shared memory takes: the most different words in one bank.

    Args:
        places: byte addresses of the active lanes.
        size: bytes of each access.
    """
    words = np.unique(
        np.concatenate([places // np.uint64(4) + np.uint64(k) for k in range(-(-size // 4))])
    )
    return int(np.bincount((words % np.uint64(BANKS)).astype(np.int64)).max())
