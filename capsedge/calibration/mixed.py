"""Mixed precision: the smallest and the fastest assignment that passes the accuracy gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from capsedge.calibration.evaluate import Outcome, latency
from capsedge.calibration.judge import ERROR, LOST, Gate
from capsedge.calibration.source import MADE, Source, uniform
from capsedge.calibration.table import Table
from capsedge.datasets import ImageSet
from capsedge.runtime.charts import new_figure, save_figure
from capsedge.runtime.load import load_bytes

SEARCHED = 0.75  # of the errors that are allowed, on the images of a search


@dataclass(frozen=True)
class Candidate:
    """An assignment that was tried.

    Attributes:
        assignment: precision of every unit.
        bytes: size of the file.
        milliseconds: time per image, for ranking.
        outcome: comparison with FP32 on the search images.
        fits: whether the loss is allowed.
    """

    assignment: dict[str, str]
    bytes: int
    milliseconds: float
    outcome: Outcome
    fits: bool

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {
            "assignment": self.assignment,
            "bytes": self.bytes,
            "milliseconds": self.milliseconds,
            "fits": self.fits,
            **self.outcome.to_dict(),
        }


@dataclass(frozen=True)
class Search:
    """All candidates, in the order in which they were tried."""

    candidates: list[Candidate]

    @property
    def smallest(self) -> Candidate | None:
        """The smallest file within the allowed drop; None if nothing fits."""
        return min((c for c in self.candidates if c.fits), key=lambda c: c.bytes, default=None)

    @property
    def fastest(self) -> Candidate | None:
        """The fastest file within the allowed drop; None if nothing fits."""
        fitting = (c for c in self.candidates if c.fits)
        return min(fitting, key=lambda c: c.milliseconds, default=None)

    def pareto(self) -> list[Candidate]:
        """The candidates that no other beats in size, time and error at once, smallest first."""

        def beaten(c: Candidate) -> bool:
            mine = (c.bytes, c.milliseconds, c.outcome.error)
            others = ((o.bytes, o.milliseconds, o.outcome.error) for o in self.candidates)
            return any(
                o != mine and all(a <= b for a, b in zip(o, mine, strict=True)) for o in others
            )

        return sorted((c for c in self.candidates if not beaten(c)), key=lambda c: c.bytes)


def search(
    source: Source,
    table: Table,
    data: ImageSet,
    target: str,
    gate: Gate,
    threads: int = 2,
    tried: Callable[[Candidate], None] | None = None,
) -> Search:
    """Lower one unit after another, starting with those that save most for their damage.

    From all-INT8 the units go to 4 bits in the order of score error per byte saved; each step is kept only
    if it passes the gate (``_fits``). If INT8 itself does not fit, the units that do most
    damage first go back to FP32.

    Args:
        data: images to search on; accuracy is reported on other images.
        gate: what may be lost.
    """
    units = source.quantizable(target)
    candidates: list[Candidate] = []

    def candidate(assignment: dict[str, str]) -> Candidate:
        model, _ = source.emit(assignment, table, target)
        outcome = source.outcome(model, data)
        content = model.SerializeToString()
        time = latency(load_bytes(content, MADE, threads=threads), data)
        candidates.append(
            Candidate(dict(assignment), len(content), time, outcome, _fits(gate, outcome))
        )
        if tried is not None:
            tried(candidates[-1])
        return candidates[-1]

    candidate(uniform(units, "fp32"))
    current = candidate(uniform(units, "int8"))
    alone = {u.name: _alone(source, table, data, target, u.name, "int8") for u in units}
    for name in sorted(alone, key=lambda n: -alone[n].error):
        if current.fits:
            break
        current = candidate({**current.assignment, name: "fp32"})
    if "int4" in source.levels(target):
        lower = {u.name: _alone(source, table, data, target, u.name, "int4") for u in units}
        price = {u.name: lower[u.name].error / u.elements for u in units}
        for name in sorted(price, key=lambda n: price[n]):
            if current.assignment[name] != "int8":
                continue
            lowered = candidate({**current.assignment, name: "int4"})
            if lowered.fits:
                current = lowered
    return Search(candidates)


def _fits(gate: Gate, outcome: Outcome) -> bool:
    """Whether an outcome passes the gate with room to spare.

    No more decisions may change than points may be lost; errors may have `SEARCHED` of what is allowed, since
    they were the least of many candidates' on these images, and will be larger on others.

    The network may have been trained on the search images. It is more certain of those than of others, so
    that accuracy alone would be too optimistic.
    """
    limit = gate.limit(outcome.judged_by)
    if outcome.judged_by == ERROR:
        kept = SEARCHED * limit, SEARCHED * gate.max_error
        return replace(gate, max_drop=kept[0], max_error=kept[1]).passes(outcome)
    changed = 100.0 * (1.0 - outcome.agreement)
    return gate.passes(outcome) and changed <= limit


def _alone(
    source: Source, table: Table, data: ImageSet, target: str, name: str, level: str
) -> Outcome:
    model, _ = source.emit({name: level}, table, target)
    return source.outcome(model, data)


def plot(result: Search, gate: Gate, path: Path) -> None:
    """Plot drop against size, one point per candidate, with the Pareto front. Needs matplotlib."""
    whole = max(c.bytes for c in result.candidates)
    judged_by = result.candidates[0].outcome.judged_by
    label, max_drop = LOST[judged_by], gate.limit(judged_by)
    figure = new_figure(7, 4)
    axis = figure.subplots()
    for fits, colour, title in ((True, "#0b6e4f", "fits"), (False, "#c1121f", "drops too far")):
        some = [c for c in result.candidates if c.fits == fits]
        axis.scatter(
            [whole / c.bytes for c in some],
            [c.outcome.drop for c in some],
            [
                12 * c.milliseconds / min(x.milliseconds for x in result.candidates) + 12
                for c in some
            ],
            colour,
            label=title,
        )
    front = [c for c in result.pareto() if c.fits]
    axis.plot(
        [whole / c.bytes for c in front], [c.outcome.drop for c in front], "-", color="#9aa5b1"
    )
    axis.axhline(max_drop, color="#c1121f", linewidth=0.8, linestyle="--")
    axis.set_xlabel("times smaller than FP32 (area: time per image)")
    axis.set_ylabel(label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    save_figure(figure, path)


def levels(assignment: dict[str, str]) -> str:
    """An assignment in one line."""
    return ", ".join(f"{name} {level}" for name, level in assignment.items())
