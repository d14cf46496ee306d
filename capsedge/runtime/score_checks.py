"""A loaded file run on check images, and what its scores are found to be worth."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.metadata import CLASSIFICATION, Preprocessing
from capsedge.runtime.predictions import scores_of
from capsedge.runtime.probing import Probes, probes
from capsedge.runtime.scores import AS_IT_IS, ONE_LINE, Choice, doubts, mask_of
from capsedge.runtime.session import Session

Arrays = dict[str, NDArray[Any]]


def score_warnings(session: Session) -> tuple[str, ...]:
    """Why the scores of a loaded file may say nothing, by a run on check images; nothing where all is well.

    A file without scores has nothing to warn of, and of one without metadata it is not known what it takes.
    """
    name, metadata = session.roles.scores, session.metadata
    if name is None or metadata is None or not session.inputs[0].dtype.startswith("float"):
        return ()
    images, probed = run_probes(session, metadata.preprocessing)
    task = CLASSIFICATION[1] if session.roles.multi_label else CLASSIFICATION[0]
    return warnings_on(name, session.roles.kind, task, probed, images)


def run_probes(session: Session, preprocessing: Preprocessing | None) -> tuple[Probes, Arrays]:
    """Check images, and the outputs on them; sizes that the file leaves open are 32.

    Raises:
        ValueError: the input takes other images, or no floats.
    """
    port = session.inputs[0]
    shape = [size if isinstance(size, int) else 32 for size in port.shape[1:]]
    if preprocessing is not None:
        shape = list(preprocessing.shape)
    declared = [
        f for f, d in zip(shape, port.shape[1:], strict=True) if isinstance(d, int) and f != d
    ]
    if declared:
        raise ValueError(f"the input takes {list(port.shape[1:])}, not {shape}")
    if not port.dtype.startswith("float"):
        raise ValueError(f"the input takes {port.dtype}, and images become floats")
    images = probes(shape, preprocessing)
    parts: dict[str, list[NDArray[Any]]] = {}
    for _, found in session.run_batches(images.images):
        for name, value in found.items():
            parts.setdefault(name, []).append(np.atleast_1d(value))
    return images, {name: np.concatenate(values) for name, values in parts.items()}


def warnings_on(name: str, kind: str, task: str, probed: Arrays, images: Probes) -> tuple[str, ...]:
    """Scores that say nothing, or that are a mask.

    Args:
        name, kind: of the output of scores.
        task: single-label or multi-label.
        probed: all outputs on the check images.
    """
    values = probed[name][images.inside]
    mask = mask_of(name, probed)
    if mask:
        return (f"{name} is {mask}; scores show how sure an answer is, a mask does not",)
    shown, _ = scores_of(values, kind, task == CLASSIFICATION[1])
    return tuple(doubts(name, values, shown, images.noise[images.inside]))


def check_computed(choice: Choice) -> None:
    """Refuse scores that a file does not hold as an output.

    Raises:
        UsageError: they would have to be computed of one.
    """
    if choice.form == AS_IT_IS:
        return
    line = ONE_LINE if choice.poses else f"return {choice.output}.flatten(1)"
    what = "are the lengths of its capsules" if choice.poses else "have further axes in"
    raise UsageError(
        "The file computes no score [N, classes].",
        f"The scores of its {choice.classes} classes {what} {choice.output}: {choice.reason}.",
        f"Export the network with `capsedge export`, which adds them; or let forward return them: `{line}`.",
    )


def kind_of(scores: NDArray[Any]) -> str:
    """What scores are, by their values: probabilities add up to one, lengths lie between 0 and 1."""
    if (scores < 0).any() or (scores > 1).any():
        return "logits"
    whole = scores.shape[1] > 1 and np.allclose(scores.sum(axis=1), 1, atol=1e-3)
    return "probability" if whole else "length"
