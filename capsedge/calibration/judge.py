"""What a quantized file is judged by, and the gate that it must pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capsedge.errors import UsageError
from capsedge.runtime.predictions import DEFAULT_THRESHOLD
from capsedge.runtime.score_checks import check_computed
from capsedge.runtime.scores import (
    CAPSULES,
    ONE_LINE,
    Arrays,
    Choice,
    choose,
    has_candidates,
    shape_fault,
)
from capsedge.runtime.session import Session

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
    def of(
        cls,
        session: Session,
        scores: str | None = None,
        classes: int = 0,
        outputs: Callable[[], Arrays] | None = None,
    ) -> Judge:
        """The judge of a file.

        Args:
            scores: the output that decides the class, if the user names it.
            classes: the largest label and one, where there are labels.
            outputs: runs the file on samples, for the outputs by name, first axis the samples.

        Raises:
            UsageError: there is no such output, it does not hold scores, or there are labels and several
                outputs that may decide.
        """
        names = tuple(port.name for port in session.outputs)
        if scores is not None:
            if scores not in names:
                raise UsageError(
                    f"The model has no output '{scores}'.", f"Its outputs: {', '.join(names)}."
                )
            _check_shape(session, scores)
            return cls(scores, (), *_task(session, scores), "named as the scores")
        if session.roles.values:
            why = "the file states a regression"
            return cls(None, session.roles.values, why=why, batched=True)
        known = session.roles.scores
        if known is not None:
            return cls(known, (), *_task(session, known), _reason(session, known))
        if classes and outputs is not None:
            choice = _chosen(session, classes, outputs())
            if choice is not None:
                return cls(choice.output, (), why=choice.reason)
        why = "the file names no output that decides a class"
        return cls(None, names, why=why, batched=session.metadata is not None)


def _check_shape(session: Session, scores: str) -> None:
    """Refuse a named output that does not have the shape of scores; axes of 1 do not count.

    Raises:
        UsageError: it says what to name or return instead.
    """
    port = next(p for p in session.outputs if p.name == scores)
    sizes = (
        [size for size in port.shape[1:] if size != 1] if len(port.shape) > 2 else port.shape[1:]
    )
    named = 0 if session.metadata is None else len(session.metadata.class_names)
    fault = "" if len(port.shape) == 1 else shape_fault(scores, tuple(sizes) or (1,), named)
    if not port.dtype.startswith("float"):
        fault = f"'{scores}' holds {port.dtype}, and scores are floats"
    if not fault:
        return
    known = session.roles.scores
    other = f"--scores {known}" if known and known != scores else "another output with --scores"
    python = f"scores={known!r}" if known and known != scores else "another output as scores="
    line = f"or let forward return scores [N, classes], of class capsules v `{ONE_LINE}`, and export again."
    raise UsageError(
        f"'{scores}' does not hold the scores of classes.",
        f"{fault}.",
        f"Name {python}, {line}",
        command=f"Name {other}, {line}",
    )


def _reason(session: Session, scores: str) -> str:
    """Why the output of scores that a file states is that, or one called as in files of the package."""
    if session.metadata is None:
        return f"it is called {scores}, as scores are in files of capsedge"
    chosen = session.metadata.chosen_scores
    return "the file states it" if chosen is None else chosen.reason


def _chosen(session: Session, classes: int, outputs: Arrays) -> Choice | None:
    """The scores of a file that states none, by its outputs' values; None where no output has their shape.

    Raises:
        UsageError: several may be meant, or the file would have to compute them of one.
    """
    inputs = {port.name for port in session.inputs}
    found = {name: value for name, value in outputs.items() if name not in inputs}
    others = {name: value for name, value in outputs.items() if name in inputs}
    shape = next(iter(others.values())).shape[1:] if others else ()
    wide = max(classes, 2)
    if not has_candidates(found, wide, shape):
        return None
    choice = choose(found, wide, at_least=True, images=shape, others=others, adds=False)
    if choice.form == CAPSULES:
        check_computed(choice)
    return choice


def _task(session: Session, scores: str) -> tuple[bool, float]:
    # A logit of 0 is a probability of one half.
    logits = session.roles.kind == "logits" and scores == session.roles.scores
    return session.roles.multi_label, 0.0 if logits else DEFAULT_THRESHOLD


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
