"""Several models as one: their scores or values are averaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ShapeError, UsageError
from capsedge.runtime.averaging import average, check_members
from capsedge.runtime.hints import KEEP
from capsedge.runtime.inputs import stacked
from capsedge.runtime.metadata import REGRESSION, Preprocessing
from capsedge.runtime.predicting import Predictor
from capsedge.runtime.session import Session
from capsedge.runtime.summary import Row, Summarized, Summary, short
from capsedge.runtime.vision.given import Images, OneImage, Reading, on_host, read_for_all
from capsedge.runtime.vision.prediction import Prediction

if TYPE_CHECKING:
    from typing_extensions import Self

_NAMES = 3  # files in the name of an ensemble


class Ensemble(Summarized, Predictor):
    """Loaded models that answer as one. A context manager; safe to use from several threads at once.

    Lengths and activations of class capsules are averaged as they are, logits as probabilities (the softmax,
    for several labels the sigmoid, of each member), and the values of a regression as they are. Each member
    prepares images by its own preprocessing; where these differ, floats are pixels, and with
    ``prepared=True`` they are ``[N, M, C, H, W]`` of `prepare`. Poses of different networks have no common
    frame, so predictions have none. There is nothing to see in an image if all members that state a
    criterion say so.

    Args:
        members: two or more sessions; `close` closes them.
        together: whether members run at the same time; otherwise one after another.

    Attributes:
        members: the sessions, in order.

    Raises:
        UsageError: there are too few or too many, or they do not fit each other: in task, classes, kind of
            scores, values or size of the input.
        ArtefactError: one does not state its classes.

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

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all members; calls that still run are not disturbed. A second call does nothing."""
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        for member in self.members:
            member.close()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, here or on a member."""
        return any(member.closed for member in self.members)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The members' files."""
        return tuple(member.path for member in self.members)

    @property
    def ops(self) -> str:
        """As `Session.ops`, where it is the same for all members; otherwise ``mixed``."""
        found = {member.ops for member in self.members}
        return found.pop() if len(found) == 1 else "mixed"

    @property
    def score_kind(self) -> str:
        """What is averaged: ``length`` or ``probability``; empty for a regression."""
        kind = self.members[0].score_kind
        return "probability" if kind == "logits" else kind

    @property
    def multi_label(self) -> bool:
        """Whether an image may have any number of classes."""
        return self.members[0].multi_label

    @property
    def name(self) -> str:
        """The members' files, for a title."""
        names = [short(path.name) for path in self.paths]
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        return " + ".join(names[:_NAMES]) + more

    def class_name(self, index: int) -> str:
        """The name of a class; its number if the files do not name classes."""
        return self.members[0].class_name(index)

    def prepare(
        self, image: OneImage, invert: bool = False, *, layout: str | None = None
    ) -> NDArray[np.float32]:
        """The members' inputs for one image, ``[M, C, H, W]``, each by its own preprocessing.

        Args:
            image, invert, layout: as for `Session.prepare`.

        Raises:
            UsageError, ArtefactError: as `Session.prepare`.
        """
        readings = self._readings(invert, layout)
        found = list(islice(read_for_all(readings, image), 2))
        if len(found) != 1:
            raise UsageError(
                f"prepare takes one image, not {'several' if found else 'none'}.",
                "",
                "Prepare them one by one, or pass them all to predict.",
            )
        return found[0][self._which].astype(np.float32, copy=False)

    def _predictions(
        self,
        images: Images,
        top_k: int | None,
        threshold: float | None,
        invert: bool,
        batch_size: int | None,
        **reading: Any,
    ) -> Iterator[Prediction]:
        self._check_open()
        top_k, threshold = self.members[0]._choice(top_k, threshold)
        batches = self._inputs(images, batch_size, invert, **reading)

        def answered(batch: Sequence[NDArray[Any]]) -> Iterator[Prediction]:
            for found in zip(*self._answers(batch), strict=True):
                one = average(found, self._criteria, self.class_name, top_k, threshold)
                yield replace(one, hint=KEEP) if invert and one.hint else one

        return chain.from_iterable(answered(batch) for batch in batches)

    def _answers(self, batch: Sequence[NDArray[Any]]) -> list[list[Prediction]]:
        """The members' predictions for their inputs, each ``[n, C, H, W]``."""
        run = map if self._pool is None else self._pool.map
        return list(run(_predict, self.members, batch))

    def _inputs(
        self,
        images: Images,
        batch_size: int | None,
        invert: bool,
        layout: str | None = None,
        prepared: bool | None = None,
    ) -> Iterator[list[NDArray[Any]]]:
        """Prepared batches, one for each member, as large as a run of every member takes."""
        size = min(member._run_size(batch_size) for member in self.members)
        given = on_host(images)
        if prepared and isinstance(given, np.ndarray) and given.ndim == 5:
            return self._of_members(given, size, invert)
        if len(self._distinct) == 1:
            first = self.members[0]
            alike = first._batches(images, size, invert, layout, prepared)
            return ([batch] * len(self.members) for batch in alike)
        if prepared:
            raise UsageError(
                "The members of this ensemble prepare images differently.",
                "An array [N, C, H, W] is the input of one of them.",
                "Give pixels without prepared=True, or floats [N, M, C, H, W] of Ensemble.prepare.",
            )
        readings = self._readings(invert, layout)
        # One after another, so that an open file or a generator is read once for all.
        batches = stacked(read_for_all(readings, given), size)
        return ([batch[:, k] for k in self._which] for batch in batches)

    def _of_members(
        self, given: NDArray[Any], size: int, invert: bool
    ) -> Iterator[list[NDArray[Any]]]:
        count = len(self.members)
        if given.shape[1] != count:
            raise ShapeError(
                f"The array has the shape {list(given.shape)}.",
                f"Prepared for {count} members it is [N, {count}, C, H, W].",
                "Stack what Ensemble.prepare returns.",
            )
        if invert:
            raise UsageError(
                "Prepared arrays cannot be inverted.",
                "invert works on pixels, before the model's preprocessing.",
                "Give it to Ensemble.prepare.",
            )
        return ([part[:, k] for k in range(count)] for part in stacked(given, size))

    def _readings(self, invert: bool, layout: str | None) -> list[Reading]:
        if None in self._distinct:
            self.members[0]._preprocessing()
        known = [p for p in self._distinct if isinstance(p, Preprocessing)]
        return [Reading(p, invert, layout, prepared=False) for p in known]

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError(
                f"The ensemble of {self.name} is closed.",
                "It ended with its `with` block, or with close().",
                "Load the models again: capsedge.load([...]).",
            )

    def reconstruct(self, *_: object, **__: object) -> NoReturn:
        """Raise a UsageError: each member has pictures of its own."""
        raise UsageError(
            "An ensemble does not reconstruct images.",
            "A picture belongs to one network.",
            "Ask a member: ensemble.members[0].reconstruct(...).",
            command="Leave out --reconstruct, or name one model.",
        )

    def check_reconstruction(self) -> None:
        """Raise a UsageError: each member has pictures of its own."""
        self.reconstruct()

    def run(self, *_: object, **__: object) -> NoReturn:
        """Raise a UsageError: couplings, poses and other outputs belong to one network."""
        raise UsageError(
            "An ensemble does not run on arrays.",
            "Outputs such as couplings belong to one network.",
            "Ask a member: ensemble.members[0].run(...).",
        )

    if not TYPE_CHECKING:  # type checkers know what is missing

        def __getattr__(self, name: str) -> NoReturn:
            """Point to the members for what else a session can do."""
            why = f"An ensemble has no '{name}'"
            if hasattr(Session, name):
                why += f": it belongs to one network. Ask a member: ensemble.members[0].{name}"
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
