"""Where the answer of a model is: the outputs that hold scores, poses and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from capsedge.errors import UsageError
from capsedge.runtime.backends.onnxruntime_backend import Port
from capsedge.runtime.cascade import LONG_WAY
from capsedge.runtime.inputs import fits
from capsedge.runtime.metadata import REGRESSION, ModelMetadata, Outputs
from capsedge.runtime.scores import POSES, SCORES, shape_fault

_KINDS = {"lengths": "length", "logits": "logits"}


class Unfit(ValueError):
    """The metadata of a file does not fit its graph; the message says why."""


@dataclass(frozen=True)
class Answers:
    """The outputs that hold the answer.

    Attributes:
        scores: the output that decides the class; None if there is none.
        kind: of the scores: ``length``, ``logits`` or ``probability``.
        poses: the output with a pose for each class; None if there is none.
        values: the outputs of a regression.
        long_way: of a cascade, the output that states which images the large network decided; else None.
    """

    scores: str | None = None
    kind: str = ""
    poses: str | None = None
    values: tuple[str, ...] = ()
    long_way: str | None = None

    @property
    def all(self) -> list[str]:
        """The outputs that a prediction computes."""
        return [name for name in (self.scores, self.poses, *self.values, self.long_way) if name]


def answers_of(
    metadata: ModelMetadata | None, inputs: Sequence[Port], outputs: Sequence[Port]
) -> Answers:
    """The answers of a file.

    Raises:
        Unfit: the metadata names what the graph does not have, or has another size.
    """
    ports = {port.name: port for port in outputs}
    if metadata is None:
        return _by_name(ports)
    _check_input(metadata, inputs)
    names = ", ".join(ports)
    stated = metadata.outputs
    if stated is None:
        found = _by_name(ports)
        if len(set(SCORES) & set(ports)) != 1 or found.poses is None:
            raise Unfit(f"It needs the outputs lengths or logits, and poses; it has {names}.")
    else:
        found = Answers(stated.scores or None, stated.kind, stated.poses or None, stated.values)
        missing = [name for name in found.all if name not in ports]
        if missing:
            raise Unfit(f"It names the output {missing[0]}; the graph has {names}.")
    if metadata.task == REGRESSION:
        _check_values(metadata, [ports[name] for name in found.values])
    else:
        assert found.scores is not None  # both kinds of metadata have one
        poses = None if found.poses is None or stated is None else ports[found.poses]
        _check_classes(metadata, ports[found.scores], poses)
    return found if metadata.cascade is None else _of_cascade(found, ports)


def _of_cascade(found: Answers, ports: dict[str, Port]) -> Answers:
    port = ports.get(LONG_WAY)
    if port is None or port.dtype != "bool" or len(port.shape) != 1:
        raise Unfit(f"It states a cascade; the graph has no output {LONG_WAY} [N] of type bool.")
    return replace(found, long_way=LONG_WAY)


def _by_name(ports: dict[str, Port]) -> Answers:
    scores = next(
        (n for n, port in ports.items() if n in SCORES and not shape_fault(n, port.shape[1:])), None
    )
    poses = POSES if POSES in ports else None
    return Answers(scores, _KINDS.get(scores or "", ""), poses)


def _check_input(metadata: ModelMetadata, inputs: Sequence[Port]) -> None:
    if len(inputs) != 1 or len(inputs[0].shape) != 4:
        raise Unfit(f"It has {len(inputs)} inputs, not one, images [N, C, H, W].")
    p, found = metadata.preprocessing, inputs[0].shape[1:]
    if p is not None and not fits(p.shape, found):
        raise Unfit(f"It prepares images {list(p.shape)} for an input {list(found)}.")


def _check_classes(metadata: ModelMetadata, scores: Port, poses: Port | None) -> None:
    count, sizes = len(metadata.class_names), scores.shape[1:]
    if shape_fault(scores.name, sizes, count) and (count or metadata.outputs is not None):
        raise Unfit(f"It names {count} classes, {scores.name} has {list(sizes)}.")
    if poses is None:
        return
    classes = count or sizes[0]
    if len(poses.shape) < 3 or (
        isinstance(classes, int) and not fits((classes,), poses.shape[1:2])
    ):
        raise Unfit(f"{poses.name} has {list(poses.shape[1:])}, not a pose for each class.")


def elements(port: Port) -> int | None:
    """Values of one image in an output; None if the file leaves it open."""
    sizes = port.shape[1:]
    return math.prod(s for s in sizes if isinstance(s, int)) if _fixed(sizes) else None


def _fixed(sizes: Sequence[int | str | None]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _check_values(metadata: ModelMetadata, ports: Sequence[Port]) -> None:
    assert metadata.outputs is not None  # ModelMetadata refuses a regression without
    named = len(metadata.outputs.names)
    counts = [elements(port) for port in ports]
    known = sum(count for count in counts if count is not None)
    wrong = known > named if None in counts else known != named
    if wrong or not all(port.shape for port in ports):
        of = ", ".join(f"{port.name} {list(port.shape[1:])}" for port in ports)
        raise Unfit(f"It names {named} values, the outputs have {of}.")


def check_no_choice(
    path: Path, outputs: Outputs, top_k: int | None, threshold: float | None
) -> None:
    """Refuse a choice among classes for a regression."""
    if top_k is not None or threshold is not None:
        raise UsageError(
            f"{path} estimates {', '.join(outputs.names[:8])}.",
            "top_k and threshold choose among classes, and it has none.",
            "Leave them out.",
        )
