"""Nested phases as one share that never goes back, with an estimate of what is left."""

from __future__ import annotations

from capsedge.exporters.tensorrt.engine_builder import BuildProgress


def test_nested_phases() -> None:
    time = [0.0]
    told: list[tuple[float, str, float | None]] = []
    progress = BuildProgress(lambda *row: told.append(row), clock=lambda: time[0])
    progress.start("Building", None, 4)
    assert told[-1] == (0.0, "Building", None)
    progress.start("Tactics", "Building", 2)
    time[0] = 10.0
    progress.step("Tactics", 0)
    assert told[-1][0] == 0.125
    assert abs((told[-1][2] or 0) - 70.0) < 1e-9
    progress.step("Tactics", 1)
    progress.finish("Tactics")
    assert told[-1][0] == 0.25
    assert progress.step("Building", 0)
    for step in (1, 2, 3):
        progress.step("Building", step)
    progress.finish("Building")
    assert told[-1][0] == 1.0
    shares = [row[0] for row in told]
    assert shares == sorted(shares)


def test_a_cancelled_build_is_told_to_stop() -> None:
    progress = BuildProgress(lambda *_: None)
    progress.start("Building", None, 2)
    progress.stopped_by = KeyboardInterrupt()
    assert progress.step("Building", 0) is False
    progress.finish("Building")
    progress.finish("never begun")
