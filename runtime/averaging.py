"""What the members of an ensemble must have in common, and the average of their predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files import limits
from capsedge.runtime.files.given import SESSION, refusal
from capsedge.runtime.hints import CONFIDENT
from capsedge.runtime.preparing import undescribed
from capsedge.runtime.session import Session
from capsedge.runtime.vision.prediction import Label, Prediction, choose

_KINDS = {"logits": "probability"}  # of a score, once it is averaged
_FIX = "Leave one of them out."


def check_count(count: int) -> None:
    """Refuse too few or too many members.

    Raises:
        UsageError: there are fewer than two, or more than `limits.MEMBERS`.
    """
    if count < 2:
        raise UsageError(
            f"An ensemble of {count} model{'' if count == 1 else 's'} averages nothing.",
            "It has at least two members.",
            "Give a single model alone, not in a list." if count else "Name the files.",
        )
    if count > limits.MEMBERS:
        raise UsageError(
            f"An ensemble of {count} models is too large.",
            f"It has up to {limits.MEMBERS} members.",
            "Leave some of them out.",
        )


def check_members(members: Sequence[Session]) -> None:
    """Refuse sessions whose predictions cannot be averaged.

    Raises:
        UsageError: one is no session, or they differ in task, classes, kind of scores, values or size of the
            input.
        ArtefactError: one does not state its classes.
    """
    check_count(len(members))
    first = members[0]
    for other in members:
        if not isinstance(other, Session):
            raise refusal(other, SESSION)
        if other.metadata is None:
            raise undescribed(other, "no classes by which its scores could be averaged")
    for other in members[1:]:
        for what, of in _FACTS:
            mine, its = of(first), of(other)
            if mine != its:
                raise UsageError(
                    f"{first.path} and {other.path} do not fit each other.",
                    f"They differ in their {what}: {_difference(mine, its)}.",
                    _FIX,
                )


def _task(session: Session) -> object:
    assert session.metadata is not None  # checked before
    return session.metadata.task


def _classes(session: Session) -> object:
    """The names; where a file has none, how many there are."""
    assert session.metadata is not None  # checked before
    if session.metadata.class_names or session.score_output is None:
        return session.metadata.class_names
    return next(p.shape[1:] for p in session.outputs if p.name == session.score_output)


def _kind(session: Session) -> object:
    return _KINDS.get(session.score_kind, session.score_kind)


def _values(session: Session) -> object:
    outputs = None if session.metadata is None else session.metadata.outputs
    return () if outputs is None else tuple(zip(outputs.names, outputs.units, strict=True))


def _input(session: Session) -> object:
    return session.inputs[0].shape[1:]


def _prepared(session: Session) -> object:
    return session.metadata is not None and session.metadata.preprocessing is not None


_FACTS: tuple[tuple[str, Callable[[Session], object]], ...] = (
    ("task", _task),
    ("classes", _classes),
    ("kind of scores", _kind),
    ("values", _values),
    ("input", _input),
    ("preprocessing, which one of them does not state", _prepared),
)


def _difference(mine: object, its: object) -> str:
    """Two facts in words; of long lists the first entry that differs."""
    if isinstance(mine, tuple) and isinstance(its, tuple):
        if len(mine) != len(its):
            return f"{len(mine)} and {len(its)}"
        if mine and not isinstance(mine[0], int):
            number, pair = next(
                (k, p) for k, p in enumerate(zip(mine, its, strict=True)) if p[0] != p[1]
            )
            return f"number {number} is {pair[0]!r} in one and {pair[1]!r} in the other"
    return f"{_shown(mine)} and {_shown(its)}"


def _shown(fact: object) -> str:
    return str(list(fact)) if isinstance(fact, tuple) else str(fact)


def mean(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The mean of arrays of one shape: added in the order of the members, then divided by their number."""
    total: NDArray[np.float64] = np.add.accumulate(np.stack(rows), axis=0)[-1]
    return total / len(rows)


def average(
    found: Sequence[Prediction],
    criteria: Sequence[bool],
    class_name: Callable[[int], str],
    top_k: int | None,
    threshold: float | None,
) -> Prediction:
    """One prediction from those of all members for an image.

    Args:
        found: one prediction of each member.
        criteria: whether each member states when there is nothing to see.
        class_name: the name of a class.
        top_k, threshold: as for `Session.predict`.

    Raises:
        ArtefactError: the members computed different numbers of scores.
    """
    judged = [p.nothing for p, stated in zip(found, criteria, strict=True) if stated]
    nothing = judged[0] if judged and all(judged) else ""
    first = found[0]
    if first.values:
        values = mean([np.array([v.value for v in p.values], np.float64) for p in found])
        named = zip(first.values, values.tolist(), strict=True)
        averaged = tuple(replace(v, value=value) for v, value in named)
        return replace(first, values=averaged, nothing=nothing, hint="")
    if len({len(p.scores) for p in found}) > 1:
        raise ArtefactError(
            "The members of the ensemble computed different numbers of scores.",
            f"Found: {', '.join(str(len(p.scores)) for p in found)}.",
            _FIX,
        )
    scores = mean([p.scores for p in found])
    pose = np.zeros(0, np.float32)
    labels = tuple(
        Label(class_name(j), j, float(scores[j]), pose) for j in choose(scores, top_k, threshold)
    )
    unsure = bool(nothing) or float(scores.max(initial=0.0)) < CONFIDENT
    hint = next((p.hint for p in found if p.hint), "") if unsure else ""
    poses = np.zeros((len(scores), 0), np.float32)
    return Prediction(labels, scores, poses, first.score_kind, nothing=nothing, hint=hint)
