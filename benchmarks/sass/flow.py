"""A kernel's control flow, and which definitions reach an instruction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from benchmarks.sass.cubin import Kernel
from benchmarks.sass.opcodes import jump_target, sources, targets


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
        effects = {
            first: self._effects(range(first, end), written, of_register)
            for first, end in self.blocks
        }
        before: dict[int, list[int]] = {first: [] for first, _ in self.blocks}
        for first, end in self.blocks:
            for after in self.following(end - 1):
                before[after].append(first)
        reaching = dict.fromkeys(before, 0)
        changed = True
        while changed:
            changed = False
            for first, _ in self.blocks:
                now = 0
                for source in before[first]:
                    made, killed = effects[source]
                    now |= made | (reaching[source] & ~killed)
                if now != reaching[first]:
                    reaching[first], changed = now, True
        return reaching

    def _effects(
        self, block: range, written: list[list[str]], of_register: dict[str, int]
    ) -> tuple[int, int]:
        """Definitions that a block makes, and those that do not outlive it, as bits."""
        made = killed = 0
        for at in block:
            for name in written[at]:
                if not self.kernel.code[at].guard:
                    made &= ~of_register[name]
                    killed |= of_register[name]
                made |= 1 << at
        return made, killed

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
