"""Several models as one: their scores or values are averaged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, ShapeError, UsageError
from capsedge.runtime.files.writing import SESSION, path_error
from capsedge.runtime.images.inputs import (
    ImageReader,
    Images,
    OneImage,
    Size,
    on_host,
    only,
    read_for_members,
)
from capsedge.runtime.result_summary import Row, Summary, shortened_name
from capsedge.runtime.session.loaded_model import ImageOptions, LoadedModel
from capsedge.runtime.session.output_roles import choose_classes
from capsedge.runtime.session.predictions import KEEP, Label, Prediction
from capsedge.runtime.session.session import Session
from capsedge.runtime.session.tensors import stack_images
from capsedge.spec import limits
from capsedge.spec.fields import CONFIDENT
from capsedge.spec.vocabularies import REGRESSION, SEGMENTATION

_NAMES = 3  # files in the name of an ensemble
_KINDS = {"logits": "probability"}  # of a score, once it is averaged
_FIX = "Leave one of them out."


class Ensemble(LoadedModel[list[NDArray[Any]]]):
    """Several loaded models whose results are averaged. A context manager; safe to use from several threads
    at once.

    Lengths and activations of class capsules are averaged as they are, logits as probabilities (the softmax,
    for several labels the sigmoid, of each member), and the values of a regression as they are. Each member
    prepares images by its own preprocessing; where these differ, floats are pixels, and with
    ``prepared=True`` they are ``[N, M, C, H, W]`` of `prepare`. Poses of different networks have no common
    frame, so predictions have none. An image counts as atypical if every member that has a criterion says so.

    Args:
        members: two or more sessions; `close` closes them.
        together: whether members run in parallel; otherwise one after another.

    Attributes:
        members: the sessions, in order.

    Raises:
        UsageError: there are too few or too many members, or they differ in task, classes, kind of scores,
            values or input size.
        ArtefactError: a member does not state its classes.

    Example:
        >>> with capsedge.load(["a.onnx", "b.onnx"]) as ensemble:
        ...     ensemble.predict("image.png")[0].label
    """

    def __init__(self, members: Sequence[Session], *, together: bool = False) -> None:
        self.members = tuple(members)
        check_members(self.members)
        self.together = together
        self._pool = ThreadPoolExecutor(len(self.members)) if together else None
        of_members = [m.metadata.preprocessing if m.metadata else None for m in self.members]
        self._distinct = list(dict.fromkeys(of_members))
        self._which = [self._distinct.index(p) for p in of_members]
        self._criteria = [
            m.metadata is not None and bool(m.metadata.typical_input) for m in self.members
        ]

    def close(self) -> None:
        """Close all members; calls in progress are not affected. A second call does nothing."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        for member in self.members:
            member.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, here or on a member."""
        return any(member.closed for member in self.members)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The members."""
        return self.members

    @property
    def score_kind(self) -> str:
        """What is averaged: ``length`` or ``probability``; empty for a regression."""
        kind = self.members[0].roles.kind
        return _KINDS.get(kind, kind)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have any number of classes."""
        return self.members[0].roles.multi_label

    @property
    def name(self) -> str:
        """The names of the members' files, for titles."""
        names = [shortened_name(path.name) for path in self.paths]
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        return " + ".join(names[:_NAMES]) + more

    def _prepared(self, image: OneImage, options: ImageOptions) -> NDArray[np.float32]:
        image_of_all = only(read_for_members(self._readers(options), image))
        return image_of_all[self._which]

    def _predicted(
        self,
        batch: list[NDArray[Any]],
        top_k: int | None,
        threshold: float | None,
        invert: bool,
        sizes: deque[Size],
    ) -> Iterator[Prediction]:
        for each in zip(*self._predict_members(batch), strict=True):
            one = average(each, self._criteria, self.class_name, top_k, threshold)
            yield replace(one, hint=KEEP) if invert and one.hint else one

    def _predict_members(self, batch: Sequence[NDArray[Any]]) -> list[list[Prediction]]:
        """The members' predictions for their inputs, each ``[n, C, H, W]``."""
        run = map if self._pool is None else self._pool.map
        return list(run(_predict, self.members, batch))

    def _batches(
        self, images: Images, size: int, options: ImageOptions
    ) -> Iterator[list[NDArray[Any]]]:
        """Prepared batches, one for each member."""
        source = on_host(images)
        if options.prepared and isinstance(source, np.ndarray) and source.ndim == 5:
            return self._of_members(source, size, options.invert)
        if len(self._distinct) == 1:
            alike = self.members[0].image_input.batches(images, size, *options)
            return ([batch] * len(self.members) for batch in alike)
        if options.prepared:
            raise UsageError(
                "The members of this ensemble prepare images differently.",
                "An array [N, C, H, W] is the input of only one member.",
                "Pass pixels without prepared=True, or floats [N, M, C, H, W] from Ensemble.prepare.",
            )
        # One after another, so that an open file or a generator is read once for all.
        batches = stack_images(read_for_members(self._readers(options), source), size)
        return ([batch[:, k] for k in self._which] for batch in batches)

    def _of_members(
        self, images: NDArray[Any], size: int, invert: bool
    ) -> Iterator[list[NDArray[Any]]]:
        count = len(self.members)
        if images.shape[1] != count:
            raise ShapeError(
                f"The array has the shape {list(images.shape)}.",
                f"Prepared for {count} members it is [N, {count}, C, H, W].",
                "Stack what Ensemble.prepare returns.",
            )
        if invert:
            raise UsageError(
                "Prepared arrays cannot be inverted.",
                "invert works on pixels, before the model's preprocessing.",
                "Pass invert to Ensemble.prepare.",
            )
        return ([part[:, k] for k in range(count)] for part in stack_images(images, size))

    def _readers(self, options: ImageOptions) -> list[ImageReader]:
        """One reader for each way of preparing images."""
        members = [self.members[self._which.index(k)] for k in range(len(self._distinct))]
        return [
            m.image_input.reader(options.invert, options.layout, prepared=False) for m in members
        ]

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError(
                f"The ensemble of {self.name} is closed.",
                "It was closed by close(), or at the end of its `with` block.",
                "Load the models again: capsedge.load([...]).",
            )

    def reconstruct(self, *_: object, **__: object) -> NoReturn:
        """Raise a UsageError: each member has its own reconstructions."""
        raise UsageError(
            "An ensemble does not reconstruct images.",
            "A reconstruction belongs to one network.",
            "Use a member: ensemble.members[0].reconstruct(...).",
            command="Leave out --reconstruct, or pass a single model.",
        )

    def run(self, *_: object, **__: object) -> NoReturn:
        """Raise a UsageError: couplings, poses and other outputs belong to one network."""
        raise UsageError(
            "An ensemble does not run on arrays.",
            "Outputs such as couplings belong to one network.",
            "Use a member: ensemble.members[0].run(...).",
        )

    if not TYPE_CHECKING:  # type checkers know what is missing

        def __getattr__(self, name: str) -> NoReturn:
            """Refer to the members for everything else that a session can do."""
            why = f"An ensemble has no '{name}'"
            if any(hasattr(member, name) for member in self.__dict__.get("members", ())):
                why += f": it belongs to one network. Use a member: ensemble.members[0].{name}"
            raise AttributeError(why)

    def _summary(self) -> Summary:
        metadata = self.members[0].metadata
        assert metadata is not None  # check_members refuses files without
        averaged = "values" if metadata.task == REGRESSION else self.score_kind
        how = "side by side" if self.together else "one after another"
        state = "closed" if self.closed else f"mean {averaged}, run {how}"
        rows = [Row(f"member {k}", str(path)) for k, path in enumerate(self.paths)]
        lines = [f"of {len(self.members)}: {state}", self.name]
        return Summary("Ensemble", lines, [*rows, Row("runs", state)])


def _predict(member: Session, batch: NDArray[Any]) -> list[Prediction]:
    return member.predict(batch, prepared=True)


def check_count(count: int) -> None:
    """Refuse too few or too many members."""
    if count < 2:
        raise UsageError(
            f"An ensemble of {count} model{'' if count == 1 else 's'} has nothing to average.",
            "An ensemble has at least two members.",
            "Pass a single model by itself, not in a list." if count else "Pass the files.",
        )
    if count > limits.MEMBERS:
        raise UsageError(
            f"An ensemble of {count} models is too large.",
            f"It has up to {limits.MEMBERS} members.",
            "Leave some of them out.",
        )


def check_members(members: Sequence[Session]) -> None:
    """Refuse sessions whose predictions cannot be averaged."""
    check_count(len(members))
    first = members[0]
    for other in members:
        if not isinstance(other, Session):
            raise path_error(other, SESSION)
        if other.metadata is None:
            raise other.image_input.undescribed("no classes by which its scores could be averaged")
        if other.metadata.task == SEGMENTATION:
            raise UsageError(
                f"{other.path} cannot be a member of an ensemble.",
                "It segments images, and masks are not averaged.",
                "Load it by itself.",
            )
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
    """The class names, or their number if a file has no names."""
    assert session.metadata is not None  # checked before
    if session.metadata.class_names or session.roles.scores is None:
        return session.metadata.class_names
    return next(p.shape[1:] for p in session.outputs if p.name == session.roles.scores)


def _kind(session: Session) -> object:
    return _KINDS.get(session.roles.kind, session.roles.kind)


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


def _difference(first: object, its: object) -> str:
    """Two facts in words; for long lists, only the first entry that differs."""
    if isinstance(first, tuple) and isinstance(its, tuple):
        if len(first) != len(its):
            return f"{len(first)} and {len(its)}"
        if first and not isinstance(first[0], int):
            number, pair = next(
                (k, p) for k, p in enumerate(zip(first, its, strict=True)) if p[0] != p[1]
            )
            return f"number {number} is {pair[0]!r} in one and {pair[1]!r} in the other"
    return f"{_shown(first)} and {_shown(its)}"


def _shown(fact: object) -> str:
    return str(list(fact)) if isinstance(fact, tuple) else str(fact)


def mean(rows: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The mean of arrays of one shape: added in the order of the members, then divided by their number."""
    total: NDArray[np.float64] = np.add.accumulate(np.stack(rows), axis=0)[-1]
    return total / len(rows)


def average(
    outputs: Sequence[Prediction],
    criteria: Sequence[bool],
    class_name: Callable[[int], str],
    top_k: int | None,
    threshold: float | None,
) -> Prediction:
    """One prediction from those of all members for an image.

    Args:
        outputs: one prediction of each member.
        criteria: whether each member states when there is nothing to see.
    """
    judged = [p.atypical for p, declared in zip(outputs, criteria, strict=True) if declared]
    typical = judged[0] if judged and all(judged) else ""
    first = outputs[0]
    if first.values:
        values = mean([np.array([v.value for v in p.values], np.float64) for p in outputs])
        named = zip(first.values, values.tolist(), strict=True)
        averaged = tuple(replace(v, value=value) for v, value in named)
        return replace(first, values=averaged, atypical=typical, hint="")
    if len({len(p.scores) for p in outputs}) > 1:
        raise ArtefactError(
            "The members of the ensemble computed different numbers of scores.",
            f"Found: {', '.join(str(len(p.scores)) for p in outputs)}.",
            _FIX,
        )
    scores = mean([p.scores for p in outputs])
    pose = np.zeros(0, np.float32)
    labels = tuple(
        Label(class_name(j), j, float(scores[j]), pose)
        for j in choose_classes(scores, top_k, threshold)
    )
    unsure = bool(typical) or float(scores.max(initial=0.0)) < CONFIDENT
    hint = next((p.hint for p in outputs if p.hint), "") if unsure else ""
    poses = np.zeros((len(scores), 0), np.float32)
    return Prediction(labels, scores, poses, first.score_kind, atypical=typical, hint=hint)
