"""Place the buffers of a program in one arena.

A buffer is live from the first step that writes it to the last step that reads it. Buffers that are live at
the same time do not overlap, except where a step allows it: an element-wise step writes over what it reads,
and the output of a convolution may start a little before its input and run over what no later position reads.
Such buffers form a group, in which their places are fixed. The bound is the most memory that the groups
occupy at one step, which no placement of them can undercut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from capsedge.exporters.c.program import Buffer, ProgramStep

ALIGNMENT = 16
_ROUNDS = 1000  # placement orders that are tried if the first ones miss the bound
_WORK = (
    3_000_000  # comparisons of buffers in all rounds; a program of a large batch has fewer rounds
)


@dataclass(frozen=True)
class Plan:
    """The layout of the arena.

    Attributes:
        offsets: offset of every buffer in the arena, by name.
        scratch: offset of each step's scratch memory.
        bytes: size of the arena.
        bound: lower bound on the size of any arena with these groups.
        live: bytes that are occupied at each step.
    """

    offsets: dict[str, int]
    scratch: list[int]
    bytes: int
    bound: int
    live: list[int]


@dataclass
class _StructMember:
    """A buffer in its group: its lifetime, and its position relative to the group's origin."""

    name: str
    first: int
    last: int
    start: int
    end: int


_Group = list[_StructMember]


def plan(steps: Sequence[ProgramStep]) -> Plan:
    """Place buffers by first fit in several orders, and return the smallest arena found."""
    groups = _groups(steps)
    live = _live(groups, len(steps))
    bound = max(live, default=0)
    offsets, size = _best(groups, bound, len(steps))
    scratch = [offsets.pop(f"#{t}", 0) for t in range(len(steps))]
    return Plan(offsets, scratch, size, bound, live)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _live(groups: Iterable[_Group], steps: int) -> list[int]:
    """Bytes that the groups occupy at each step; a group's change only where a member begins or ends."""
    changes = [0] * (steps + 1)
    for group in groups:
        times = sorted({t for m in group for t in (m.first, m.last + 1)})
        for start, end in pairwise(times):
            extent = _extent(group, start)
            changes[start] += extent
            changes[end] -= extent
    return list(accumulate(changes[:-1]))


def _extent(group: _Group, t: int) -> int:
    alive = [m for m in group if m.first <= t <= m.last]
    return max(m.end for m in alive) - min(m.start for m in alive) if alive else 0


def _groups(steps: Sequence[ProgramStep]) -> list[_Group]:
    members: dict[str, _StructMember] = {}
    for t, step in enumerate(steps):
        for buffer in (*step.reads, *step.writes):
            if not buffer.external:
                size = _aligned(buffer.bytes)
                members.setdefault(buffer.name, _StructMember(buffer.name, t, t, 0, size)).last = t
    group_of = {name: [member] for name, member in members.items()}
    for t, step in enumerate(steps):
        for buffer in step.reads:
            shift = _shift(step, buffer)
            if shift is None:
                continue
            source, result = members.get(buffer.name), members.get(step.writes[0].name)
            if source is None or result is None or source is result:
                continue
            if (
                source.last != t
                or result.first != t
                or group_of[result.name] is group_of[source.name]
            ):
                continue
            result.start, result.end = source.start - shift, source.start - shift + result.end
            group = group_of[source.name]
            group.append(result)
            group_of[result.name] = group
            break
    groups = list({id(group): group for group in group_of.values()}.values())
    for group in groups:
        least = min(member.start for member in group)
        for member in group:
            member.start, member.end = member.start - least, member.end - least
    for t, step in enumerate(steps):
        if step.scratch:
            groups.append([_StructMember(f"#{t}", t, t, 0, _aligned(step.scratch))])
    return groups


def _shift(step: ProgramStep, buffer: Buffer) -> int | None:
    """How far before a buffer that it reads a step's result may start; None if they must not overlap."""
    if len(step.writes) != 1 or step.writes[0].external:
        return None
    if buffer in step.overwrites:
        return 0 if step.writes[0].bytes == buffer.bytes else None
    if step.slide is None or _aligned(step.slide) >= buffer.bytes:
        return None
    return _aligned(step.slide)


def _best(groups: list[_Group], bound: int, steps: int) -> tuple[dict[str, int], int]:
    """Offsets and size: large groups first, then long-lived ones, then variations of the best order."""
    size = [max(m.end for m in group) for group in groups]
    life = [max(m.last for m in group) - min(m.first for m in group) for group in groups]
    start = [min(m.first for m in group) for group in groups]
    numbers = range(len(groups))
    orders = [
        sorted(numbers, key=lambda k: (-size[k], start[k])),
        sorted(numbers, key=lambda k: (-life[k], -size[k])),
        list(numbers),
    ]
    best: dict[str, int] = {}
    used, order, seed = -1, orders[0], 1
    at_once = _at_once(groups, steps)
    work = sum(at_once[t] for group in groups for m in group for t in range(m.first, m.last + 1))
    for k in range(min(_ROUNDS, max(len(orders), _WORK // max(work, 1)))):
        tried = orders[k] if k < len(orders) else list(order)
        if k >= len(orders):
            seed = (seed * 1103515245 + 12345) & 0x7FFFFFFF
            tried.insert(seed // 256 % len(tried), tried.pop(seed // 65536 % len(tried)))
        found, needed = _first_fit([groups[n] for n in tried], steps)
        if used < 0 or needed <= used:
            best, used, order = found, needed, tried
        if used == bound:
            break
    return best, max(used, 0)


def _at_once(groups: Iterable[_Group], steps: int) -> list[int]:
    """How many buffers are live at each step."""
    changes = [0] * (steps + 1)
    for group in groups:
        for m in group:
            changes[m.first] += 1
            changes[m.last + 1] -= 1
    return list(accumulate(changes[:-1]))


def _first_fit(groups: Iterable[_Group], steps: int) -> tuple[dict[str, int], int]:
    placed: list[_StructMember] = []
    occupied: list[list[tuple[int, int]]] = [[] for _ in range(steps)]  # starts and ends, by step
    for group in groups:
        taken = {  # origins that would let a member overlap what is placed
            (start - m.end + 1, end - m.start)
            for m in group
            for t in range(m.first, m.last + 1)
            for start, end in occupied[t]
        }
        at = 0
        for low, high in sorted(taken):
            if low <= at < high:
                at = high
        for m in group:
            placed.append(_StructMember(m.name, m.first, m.last, m.start + at, m.end + at))
            for t in range(m.first, m.last + 1):
                occupied[t].append((m.start + at, m.end + at))
    return {m.name: m.start for m in placed}, max((m.end for m in placed), default=0)
