"""What a quantized file is judged by, and the gate that it must pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from capsedge.errors import UsageError
from capsedge.runtime.session import DEFAULT_THRESHOLD, Session

if TYPE_CHECKING:
    from capsedge.calibration.evaluate import Outcome

ACCURACY, AGREEMENT, ERROR = "accuracy", "agreement", "error"
# Points: of accuracy lost; of answers changed, of which about half do no harm; per cent of the range.
DEFAULT_MAX_DROP = {ACCURACY: 0.1, AGREEMENT: 1.0, ERROR: 1.0}
DEFAULT_MAX_ERROR = 10.0
_ROUNDING = 1e-9  # one answer of a hundred is one point
LOST = {
    ACCURACY: "points of accuracy lost",
    AGREEMENT: "% of the answers changed",
    ERROR: "% of the range in mean error",
}


@dataclass(frozen=True)
class Judge:
    """The outputs that decide whether a file is as good as its source.

    Attributes:
        scores: the output whose largest value is the answer; None to compare numbers.
        numbers: outputs that are compared by number; none where there are scores.
        multi_label: whether an answer is the set of classes with a score of at least ``threshold``.
        threshold: of the scores.
        why: why these, for a person.
        batched: whether the first axis of ``numbers`` counts samples; otherwise each run is one sample.
    """

    scores: str | None
    numbers: tuple[str, ...] = ()
    multi_label: bool = False
    threshold: float = DEFAULT_THRESHOLD
    why: str = ""
    batched: bool = False

    @classmethod
    def of(cls, session: Session, scores: str | None = None, classes: int = 0) -> Judge:
        """The judge of a file.

        Args:
            scores: the output that decides the class, if the user names it.
            classes: the largest label and one, where there are labels.

        Raises:
            UsageError: there is no such output, or labels and several outputs that may decide.
        """
        names = tuple(port.name for port in session.outputs)
        if scores is not None:
            if scores not in names:
                raise UsageError(
                    f"The model has no output '{scores}'.", f"Its outputs: {', '.join(names)}."
                )
            return cls(scores, (), *_task(session, scores), "named as the scores")
        if session.value_outputs:
            why = "the file states a regression"
            return cls(None, session.value_outputs, why=why, batched=True)
        known = session.score_output
        if known is not None:
            return cls(known, (), *_task(session, known), "its name says that it decides")
        if classes:
            wide = [
                port.name
                for port in session.outputs
                if port.dtype.startswith("float")
                and port.shape
                and isinstance(port.shape[-1], int)
                and port.shape[-1] >= max(classes, 2)
                and len(port.shape) <= 2
            ]
            if len(wide) > 1:
                raise UsageError(
                    "The file does not say which output decides the class.",
                    f"The data has labels, and {', '.join(wide)} may be the scores.",
                    f"Name it: `scores={wide[0]!r}`.",
                    command=f"Name it: --scores {wide[0]}",
                )
            if wide:
                return cls(wide[0], (), why="the only output with a score for every label")
        why = "the file names no output that decides a class"
        return cls(None, names, why=why, batched=session.metadata is not None)


def _task(session: Session, scores: str) -> tuple[bool, float]:
    # A logit of 0 is a probability of one half.
    logits = session.score_kind == "logits" and scores == session.score_output
    return session.multi_label, 0.0 if logits else DEFAULT_THRESHOLD


@dataclass(frozen=True)
class Gate:
    """What a file may lose.

    Attributes:
        max_drop: points: of accuracy lost; without labels of answers changed; for numbers the mean error in
            per cent of the output's range. None for the default of each, `DEFAULT_MAX_DROP`.
        max_error: for numbers, the largest error in per cent of the output's range.
    """

    max_drop: float | None = None
    max_error: float = DEFAULT_MAX_ERROR

    def __post_init__(self) -> None:
        for name, value in (("max_drop", self.max_drop), ("max_error", self.max_error)):
            if value is not None and not value >= 0:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(
                    f"{name} is {value:g}.",
                    "It must be 0 points or more.",
                    f"Use for example {name}=1.",
                    command=f"Use for example {option} 1.",
                )

    def limit(self, judged_by: str) -> float:
        """The allowed ``Outcome.drop``."""
        return DEFAULT_MAX_DROP[judged_by] if self.max_drop is None else self.max_drop

    def failures(self, outcome: Outcome) -> list[str]:
        """A sentence for everything that is not met."""
        found = []
        most = self.limit(outcome.judged_by)
        if not outcome.drop <= most + _ROUNDING:
            found.append(f"{outcome.drop:.2f} {LOST[outcome.judged_by]}, {most:g} allowed.")
        if outcome.judged_by == AGREEMENT and outcome.surest > outcome.typical:
            found.append(
                f"An answer changed that FP32 gave with a margin of {outcome.surest:.3g}; half of the "
                f"answers have margins below {outcome.typical:.3g}."
            )
        found += [
            f"'{o.name}' is off by up to {100 * o.largest_share:.2f} % of its range, "
            f"{self.max_error:g} allowed."
            for o in outcome.outputs
            if not 100 * o.largest_share <= self.max_error
        ]
        return found

    def passes(self, outcome: Outcome) -> bool:
        """Whether an outcome meets everything."""
        return not self.failures(outcome)

    def to_dict(self, outcome: Outcome) -> dict[str, float | str]:
        """What was judged and allowed, for a file's metadata."""
        allowed: dict[str, float | str] = {
            "judged_by": outcome.judged_by,
            "max_drop": self.limit(outcome.judged_by),
        }
        return allowed | ({"max_error": self.max_error} if outcome.judged_by == ERROR else {})
