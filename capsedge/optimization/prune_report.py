"""The report of a pruning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from capsedge.calibration.accuracy import ACCURACY, MEASURES, Gate, Outcome
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.result_summary import Report, outcome_word, shortened_name


@dataclass(frozen=True)
class Size:
    """The size of a network.

    Attributes:
        parameters: trainable ones, including the decoder's.
        multiply_adds: per image, without the decoder.
        bytes: size of the checkpoint.
    """

    parameters: int
    multiply_adds: int
    bytes: int


@dataclass(frozen=True)
class Round:
    """One round of pruning and fine-tuning.

    Attributes:
        multiply_adds: after pruning, per image.
        units: units kept in each group, such as ``40 of 256``.
        held_out: share of correct decisions on the images held out for the search, after fine-tuning; of a
            segmentation the mean Dice of its masks.
        drop: points lost on these relative to the parent.
        metric: what ``held_out`` is: ``accuracy`` or ``dice``.
    """

    multiply_adds: int
    units: Mapping[str, str]
    held_out: float
    drop: float
    metric: str = ACCURACY

    def __str__(self) -> str:
        if self.metric == ACCURACY:
            return f"{100 * self.held_out:.2f} % of the images of the search"
        return f"{MEASURES[self.metric]} {self.held_out:.4f} on the images of the search"

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "multiply_adds": self.multiply_adds,
            "units": dict(self.units),
            f"held_out_{self.metric}": self.held_out,
            "held_out_drop_points": self.drop,
        }


@dataclass(frozen=True, repr=False)
class PruningReport(Report):
    """The units that pruning removed, and the loss of accuracy.

    Attributes:
        output: the checkpoint; if it was rejected, the name under which it was kept.
        parent: the checkpoint that was pruned.
        criterion: ``exact``, ``taylor`` or ``look-ahead``.
        before, after: the sizes.
        units: units kept and units before, by group.
        rounds: rounds of pruning and fine-tuning; empty for exact removal only.
        outcome: comparison with the parent on the evaluation images; None without data.
        gate: the loss of accuracy that was allowed.
        images: numbers of images for fine-tuning, held out for the search and for evaluation, with a
            description of the last two (``searched_on``, ``evaluated_on``).
        warnings: warnings for the user.
    """

    output: Path
    parent: Path
    criterion: str
    before: Size
    after: Size
    units: Mapping[str, str]
    rounds: tuple[Round, ...]
    outcome: Outcome | None
    gate: Gate
    images: Mapping[str, Any]
    warnings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the gate was met; exact removal always meets it."""
        return self.outcome is None or self.gate.passes(self.outcome)

    @property
    def speedup(self) -> float:
        """Factor by which the multiply-adds were reduced."""
        return self.before.multiply_adds / self.after.multiply_adds

    heading: ClassVar[str] = "Pruned"

    def _lines(self) -> list[str]:
        first = f"{shortened_name(self.output.name)}: {self.speedup:.2f} times fewer multiply-adds"
        if self.outcome is None:
            return [first, "no output changed"]
        return [
            first,
            f"{outcome_word(self.passed)}: {self.outcome}, on {self.images['evaluated_on']}",
        ]

    def rows(self) -> list[tuple[str, str]]:
        """The file, its size, the units kept, and the loss."""
        before, after = self.before, self.after
        return [
            ("file", str(self.output)),
            ("criterion", self.criterion),
            (
                "multiply-adds",
                f"{after.multiply_adds:,} per image, before {before.multiply_adds:,} "
                f"({self.speedup:.2f} times fewer)",
            ),
            ("parameters", f"{after.parameters:,}, before {before.parameters:,}"),
            ("size", f"{format_bytes(after.bytes)}, before {format_bytes(before.bytes)}"),
            *self.units.items(),
            *self._verdict(),
        ]

    def _verdict(self) -> list[tuple[str, str]]:
        o = self.outcome
        if o is None:
            return [("outputs", "the same: nothing was removed that an output depends on")]
        text = f"agreement {100 * o.agreement:.2f} % of {o.images} images"
        if o.accuracy is not None and o.reference is not None:
            after, before = f"{100 * o.accuracy:.2f} %", f"{100 * o.reference:.2f} %"
            if o.masks is not None:
                after, before = f"{MEASURES[o.metric]} {o.accuracy:.4f}", f"{o.reference:.4f}"
            text = (
                f"{after}, before {before}: {o.change} (allowed {self.gate.limit(o.metric):g}); "
                f"{o.images} images"
            )
        return [
            ("against the parent", text),
            ("judged on", self.images["evaluated_on"]),
            ("searched on", self.images["searched_on"]),
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "schema": 1,
            "file": str(self.output),
            "parent": str(self.parent),
            "criterion": self.criterion,
            "speedup": self.speedup,
            **{
                name: {
                    "parameters": size.parameters,
                    "multiply_adds": size.multiply_adds,
                    "bytes": size.bytes,
                }
                for name, size in (("before", self.before), ("after", self.after))
            },
            "units": dict(self.units),
            "rounds": [each.to_dict() for each in self.rounds],
            "outcome": None if self.outcome is None else self.outcome.to_dict(),
            "gate": None if self.outcome is None else self.gate.to_dict(self.outcome),
            "passed": self.passed,
            "images": dict(self.images),
            "warnings": list(self.warnings),
        }
