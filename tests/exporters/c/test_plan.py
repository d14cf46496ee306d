"""Buffers that are live together lie apart, and a plan takes no more work than its program is long."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from capsedge.exporters.c import plan as planner
from capsedge.exporters.c.plan import plan
from capsedge.exporters.c.program import (
    Buffer,
    Constants,
    Program,
    ProgramStep,
    ProgramValue,
    constant,
)


def _program(seed: int) -> list[ProgramStep]:
    rng = random.Random(seed)
    buffers = [Buffer(f"v{k}", 16 * rng.randint(1, 40)) for k in range(rng.randint(2, 20))]
    return [
        ProgramStep(
            "",
            rng.sample(buffers, rng.randint(0, 2)),
            rng.sample(buffers, 1),
            scratch=rng.choice((0, 100)),
        )
        for _ in range(rng.randint(2, 40))
    ]


def _images(count: int) -> list[ProgramStep]:
    """Two layers that compute one image after the other, as `build --target c --batch` writes them."""
    values = [Buffer(f"v{k}", 16 * count) for k in range(3)]
    return [
        ProgramStep("", [values[k]], [values[k + 1]], scratch=64)
        for k in range(2)
        for _ in range(count)
    ]


def test_what_is_live_together_lies_apart() -> None:
    for seed in range(40):
        steps = _program(seed)
        made = plan(steps)
        life: dict[str, list[int]] = {}
        size = {b.name: b.bytes for step in steps for b in (*step.reads, *step.writes)}
        for t, step in enumerate(steps):
            for buffer in (*step.reads, *step.writes):
                life.setdefault(buffer.name, []).append(t)
        for t, step in enumerate(steps):
            places = [
                (made.offsets[name], made.offsets[name] + size[name])
                for name, times in life.items()
                if times[0] <= t <= times[-1]
            ]
            places += [(made.scratch[t], made.scratch[t] + 112)] if step.scratch else []
            places.sort()
            assert all(a[1] <= b[0] for a, b in pairwise(places))
            assert made.live[t] == sum(end - start for start, end in places)
            assert max((end for _, end in places), default=0) <= made.bytes


@pytest.mark.parametrize("count", [50, 800])
def test_the_work_grows_with_the_program(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    extent = planner._extent

    def counted(*arguments: object) -> int:
        nonlocal asked
        asked += 1
        return extent(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(planner, "_extent", counted)
    made = plan(_images(count))
    assert asked <= 3 * len(_images(count))
    assert made.bytes == made.bound == 2 * 16 * count + 64


def _program_of(*shape: int) -> tuple[Program, ProgramValue, ProgramValue]:
    program = Program(Constants())
    return program, program.new(shape), program.new(shape)


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (1, 4, 1, 3), (1,), (2, 3)])
def test_an_element_wise_step_takes_the_place_of_what_it_reads(shape: tuple[int, ...]) -> None:
    program, x, y = _program_of(*shape)
    program.loops(x, [constant(np.float32(1))], "{0}")
    program.loops(y, [x, constant(np.ones(shape[-1], np.float32))], "{0} + {1}")
    made = plan(program.steps)
    assert made.offsets["v0"] == made.offsets["v1"]
    assert made.bytes == -(-x.size * 4 // 16) * 16


def test_an_operand_that_is_repeated_or_turned_keeps_its_place() -> None:
    program, x, y = _program_of(1, 3, 3)
    row = program.new((1, 1, 3))
    turned = x.transposed((0, 2, 1))
    program.loops(y, [x, row], "{0} * {1}")
    program.loops(program.new(x.shape), [x, turned], "{0} + {1}")
    assert program.steps[0].overwrites == [x.buffer]
    assert program.steps[1].overwrites == []


def test_elements_of_another_size_keep_their_place() -> None:
    """Eight bytes of int8 are not those of two floats, though both buffers are as large."""
    program = Program(Constants())
    numbers, y = program.new((4, 2), "int8"), program.new((1, 2))
    program.loops(y, [numbers.sliced(0, 0, 1)], "(float){0}")
    assert program.steps[0].overwrites == []
