"""Choose the scores of a user's own module by the behavior of its outputs.

This happens before the slow part of an export.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsedge.errors import UsageError
from capsedge.exporters.flat_module import AddedScores, Flat
from capsedge.exporters.subject import Subject
from capsedge.runtime.metadata.map_scores import choose_maps
from capsedge.runtime.metadata.metadata import ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.metadata.scores import AS_IT_IS, CAPSULES, ChosenScores, choose_scores
from capsedge.runtime.score_checks import kind_of_scores, probes
from capsedge.runtime.user_metadata import (
    NAMED,
    Description,
    check_takes_images,
    preprocessing_for,
    task_of,
)
from capsedge.spec.vocabularies import LENGTHS, REGRESSION, SEGMENTATION


def with_scores(
    subject: Subject, description: Description, batch: int | None
) -> tuple[Subject, Description]:
    """A described image network with a scores output, which metadata and description name with the reason.

    Class capsules without scores get an output of their lengths. A regression, and scores that the user names
    and the module returns, stay as they are.

    Args:
        batch: the fixed batch size; None for a free one.

    Raises:
        UsageError: it takes no images, none of its outputs holds scores, or several may.
    """
    assert isinstance(subject.module, Flat)  # like every user's own module
    declared = subject.metadata
    assert declared is not None
    sizes = tuple(subject.example[0].shape[1:])
    preprocessing = _preprocessing(subject, description, declared)
    if preprocessing is None:
        return subject, description
    images = probes(sizes, preprocessing)
    outputs = _outputs(subject, images.images, batch)
    given = description.outputs or Outputs()
    named = given.scores or (declared.outputs.scores if declared.outputs else "")
    if named and named not in outputs:
        raise UsageError(
            f"There is no output {named}.",
            f"The network has {', '.join(outputs)}.",
            f"Choose one of them: outputs=Outputs(scores={next(iter(outputs))!r}).",
            command=f"Choose one of them: --describe scores={next(iter(outputs))}.",
        )
    names = description.class_names if description.class_names is not None else declared.class_names
    if task_of(description, declared) == SEGMENTATION:
        inside = {name: value[images.inside] for name, value in outputs.items()}
        maps = choose_maps(inside, sizes, len(names), named)
        roles = Outputs(scores=maps.output, kind=given.kind or maps.kind)
        return _with_roles(subject, description, roles, ChosenScores(maps.reason), SEGMENTATION)
    choice = choose_scores(
        {named: outputs[named]} if named else outputs,
        len(names),
        inside=images.inside,
        images=sizes,
    )
    chosen = ChosenScores(NAMED if named else choice.reason)
    if choice.form == AS_IT_IS:
        if named:
            return subject, description
        scores, values = choice.output, outputs[choice.output]
    else:
        made = AddedScores(
            subject.outputs.index(choice.output), choice.classes, choice.form == CAPSULES
        )
        values = AddedScores(0, made.classes, made.capsules)(
            [torch.from_numpy(outputs[choice.output])]
        ).numpy()
        subject, scores = _with_output(subject, made)
        what = "lengths of the capsules" if made.capsules else "values of"
        reason = f"{what} {choice.output}, which export adds: {choice.output} is {NAMED}"
        if not named:
            reason = f"{what} {choice.output}, which export adds, as {choice.reason}"
        chosen = ChosenScores(reason, choice.output, choice.classes, made.capsules)
    kind = given.kind or kind_of_scores(values[images.inside])
    sized = outputs[choice.poses].shape[1:2] if choice.poses else ()
    poses = choice.poses if sized == (choice.classes,) else ""
    roles = Outputs(scores=scores, kind=kind, poses=given.poses or poses)
    return _with_roles(subject, description, roles, chosen, declared.task)


def _with_roles(
    subject: Subject, description: Description, roles: Outputs, chosen: ChosenScores, task: str
) -> tuple[Subject, Description]:
    """Subject and description with the outputs that were chosen."""
    assert subject.metadata is not None  # a described network has it
    declared = dataclasses.replace(subject.metadata, task=task, outputs=roles, chosen_scores=chosen)
    subject = dataclasses.replace(subject, metadata=declared)
    return subject, dataclasses.replace(description, outputs=roles)


def _preprocessing(
    subject: Subject, description: Description, declared: ModelMetadata
) -> Preprocessing | None:
    """How images become the network's input; None for a regression.

    Raises:
        UsageError: it takes no images, or the description does not fit.
    """
    image = subject.example[0]
    shapes = {n: t.shape for n, t in zip(subject.inputs, subject.example, strict=True)}
    check_takes_images("The network", shapes)
    try:
        if task_of(description, declared) == REGRESSION:
            return None
        found = preprocessing_for(
            description, tuple(image.shape[1:]), declared.preprocessing, "The network"
        )
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError("The metadata options do not fit this network.", f"{error}.") from error
    if not image.dtype.is_floating_point:
        dtype = str(image.dtype).removeprefix("torch.")
        raise UsageError(
            "The metadata options do not fit this network.",
            f"Its input takes {dtype}, but images are floats.",
        )
    return found


def _outputs(
    subject: Subject, images: NDArray[np.float32], batch: int | None
) -> dict[str, NDArray[np.float32]]:
    """The module's outputs for images ``[n, ...]`` whose first axis is the batch."""
    size = batch or 8
    parts: dict[str, list[Tensor]] = {}
    for start in range(0, len(images), size):
        rows = torch.from_numpy(images[start : start + size])
        padded = torch.cat([rows, rows[-1:].expand(size - len(rows), *rows.shape[1:])])
        with torch.no_grad():
            found = subject.module(padded)
        for name, value in zip(subject.outputs, found, strict=True):
            if value.ndim and len(value) == size:
                parts.setdefault(name, []).append(value[: len(rows)])
    return {name: torch.cat(values).numpy() for name, values in parts.items()}


def _with_output(subject: Subject, made: AddedScores) -> tuple[Subject, str]:
    """The subject with one more output, and its name."""
    flat = subject.module
    assert isinstance(flat, Flat)
    name = LENGTHS if made.capsules else "scores"
    while name in subject.outputs:
        name = f"class_{name}"
    module = Flat(flat.module, flat.ranks, flat.each, made).eval()
    return dataclasses.replace(subject, module=module, outputs=(*subject.outputs, name)), name
