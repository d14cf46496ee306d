"""Whether two networks can form a cascade, and what their graphs have in common."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.graph.cascade import Pair
from capsedge.runtime.backends.backend import Port
from capsedge.runtime.metadata import REGRESSION, ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.session import Session

_SAME = {
    "height": "height", "width": "width", "channels": "number of channels", "resize": "resize rule",
    "per_image": "preparation by the image", "layout": "layout", "order": "order of channels",
}  # fmt: skip


@dataclass(frozen=True)
class Fit:
    """How two networks fit.

    Attributes:
        pair: for `capsedge.graph.cascade.join`.
        metadata: of the cascade, as far as it follows from the large network's.
        notes: the outputs that the cascade does not have, and why.
    """

    pair: Pair
    metadata: ModelMetadata
    notes: tuple[str, ...]


def fit(small: Session, large: Session) -> Fit:
    """How two networks fit, for a cascade.

    Raises:
        ArtefactError: one of them has no metadata.
        UsageError: they do not fit: another task, other classes, another input or other scores; or one of
            them is a cascade itself.
    """
    one, other = _described(small), _described(large)
    _check_tasks(small, large, one, other)
    _check_inputs(small, large)
    scale, shift = _preparation(one.preprocessing, other.preprocessing, small, large)
    scores = large.roles.scores
    named = {name: name for name in (p.name for p in large.outputs)}
    if scores is not None and small.roles.scores is not None:
        named[scores] = small.roles.scores
    if large.roles.poses is not None and small.roles.poses is not None:
        named[large.roles.poses] = small.roles.poses
    assert scores is not None  # a classification has them
    outputs, notes = _common(small, large, named)
    if scores not in outputs:
        raise _misfit(small, large, "give other scores", notes[0])
    poses = large.roles.poses if large.roles.poses in outputs else ""
    stated = other.outputs
    if stated is not None or not poses:
        stated = Outputs(scores=scores, kind=large.roles.kind, poses=poses or "")
    metadata = replace(
        other,
        outputs=stated,
        calibration={},
        precision=other.precision if one.precision == other.precision else "mixed",
    )
    return Fit(Pair(outputs, scores, scale, shift), metadata, tuple(notes))


def _described(session: Session) -> ModelMetadata:
    if session.metadata is None:
        raise ArtefactError(
            f"{session.path} states neither its classes nor its preprocessing.",
            "Without them nothing tells whether two networks fit.",
            f"Describe it first: `capsedge optimize {shlex.quote(str(session.path))} -o described.onnx "
            "--classes ... --size ...` (docs/reference/metadata.md).",
        )
    if session.metadata.cascade is not None:
        raise UsageError(
            f"{session.path} is a cascade already.",
            "A cascade is made of two single networks.",
            f"Name one of the files that it was made from: {session.metadata.cascade.small.file}, "
            f"{session.metadata.cascade.large.file}.",
        )
    return session.metadata


def _misfit(small: Session, large: Session, what: str, why: str) -> UsageError:
    return UsageError(
        f"{small.path} and {large.path} {what}.",
        why,
        "A cascade needs two networks for one task: the same classes, images and kind of scores.",
    )


def _check_tasks(small: Session, large: Session, one: ModelMetadata, other: ModelMetadata) -> None:
    for session, metadata in ((small, one), (large, other)):
        if metadata.task == REGRESSION:
            raise UsageError(
                f"{session.path} estimates values.",
                "Doubt is about classes: it is measured by the scores of a classification.",
                "Name two classifiers.",
            )
    if one.task != other.task:
        raise _misfit(small, large, "have different tasks", f"{one.task} and {other.task}.")
    if one.class_names != other.class_names:
        if sorted(one.class_names) == sorted(other.class_names):
            why = "The classes are the same, in another order."
        elif len(one.class_names) != len(other.class_names):
            why = f"{len(one.class_names)} and {len(other.class_names)} classes."
        else:
            pairs = zip(one.class_names, other.class_names, strict=True)
            k, (a, b) = next((k, (a, b)) for k, (a, b) in enumerate(pairs) if a != b)
            why = f"Class {k} is '{a}' and '{b}'."
        raise _misfit(small, large, "have different classes", why)
    if small.roles.kind != large.roles.kind:
        why = f"{small.roles.kind} and {large.roles.kind}."
        raise _misfit(small, large, "have different kinds of scores", why)
    count = _port(large, large.roles.scores).shape[-1:]
    if one.task == "single-label" and count == (1,):
        raise UsageError(
            f"{large.path} has one class.", "There is no second one to be in doubt about.", ""
        )


def _port(session: Session, name: str | None) -> Port:
    return next(port for port in session.outputs if port.name == name)


def _check_inputs(small: Session, large: Session) -> None:
    a, b = small.inputs[0], large.inputs[0]
    if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
        why = f"{a.dtype} {list(a.shape[1:])} and {b.dtype} {list(b.shape[1:])}."
        raise _misfit(small, large, "take different inputs", why)
    fixed = large.backend.batches.fixed
    if fixed is not None and not fixed == small.backend.batches.fixed == 1:
        raise UsageError(
            f"{large.path} has a fixed batch of {fixed}.",
            "It runs on as many images as are in doubt.",
            "Give a file with a free batch: `capsedge export` writes one; `capsedge optimize --batch free` "
            "makes one where that can be proven.",
        )


def _preparation(
    one: Preprocessing | None, other: Preprocessing | None, small: Session, large: Session
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Factor and summand from the large network's input to the small one's; None where they are equal.

    Raises:
        UsageError: no factor and summand of each channel leads from one to the other.
    """
    if one is None or other is None:
        if one is not other:
            lacking = small if one is None else large
            why = f"{lacking.path} does not state its preprocessing."
            raise _misfit(small, large, "do not both state how to prepare an image", why)
        return None, None
    for name, words in _SAME.items():
        a, b = getattr(one, name), getattr(other, name)
        if a != b:
            raise _misfit(
                small, large, "prepare images differently", f"Their {words}: {a} and {b}."
            )
    if one.per_image == "standardize" and one.scale != other.scale:
        why = f"Scale {one.scale:g} and {other.scale:g} before each image is standardized."
        raise _misfit(small, large, "prepare images differently", why)
    if (one.scale, *_by_channel(one)) == (other.scale, *_by_channel(other)):
        return None, None
    ratio = one.scale / other.scale
    (mean, std), (mean_large, std_large) = (map(np.array, _by_channel(p)) for p in (one, other))
    shape = (1, -1, 1, 1) if one.layout == "NCHW" else (1, 1, 1, -1)
    scale, shift = std_large * ratio / std, (mean_large * ratio - mean) / std
    return scale.astype(np.float32).reshape(shape), shift.astype(np.float32).reshape(shape)


def _by_channel(p: Preprocessing) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of every channel."""

    def each(values: tuple[float, ...]) -> tuple[float, ...]:
        return values * p.channels if len(values) == 1 else values

    return each(p.mean), each(p.std)


def _common(
    small: Session, large: Session, named: dict[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The outputs that both have in one form, the small one's by the large one's; and those left out."""
    theirs = {port.name: port for port in small.outputs}
    outputs: dict[str, str] = {}
    notes: list[str] = []
    for port in large.outputs:
        mine = theirs.get(named[port.name])
        if mine is None:
            notes.append(
                f"the output '{port.name}' is left out: the small network does not have it"
            )
        elif mine.shape[1:] != port.shape[1:] or mine.dtype != port.dtype:
            forms = [f"{p.dtype} {list(p.shape[1:])}" for p in (mine, port)]
            notes.append(
                f"the output '{port.name}' is left out: {forms[0]} of the small network, {forms[1]} of the "
                "large one"
            )
        else:
            outputs[port.name] = mine.name
    for name in theirs:
        if name not in outputs.values() and name not in named:
            notes.append(f"the output '{name}' is left out: the large network does not have it")
    return outputs, notes
