"""Which function a file's tensors compute, where data decide; and what might be mistaken for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from capsedge.datasets import ImageSet, read_images, read_targets
from capsedge.errors import CapsedgeError, UsageError
from capsedge.families.family import Answers
from capsedge.families.recognition import Recognized, fitting, others
from capsedge.formats.stored import Weights
from capsedge.importing.converting import network
from capsedge.importing.measuring import clearly_best
from capsedge.models import CapsuleModel
from capsedge.models.config import ModelConfig
from capsedge.runtime.metadata import REGRESSION


def read_data(data: Path | str, config: ModelConfig, limit: int) -> ImageSet:
    """Images with classes, or with values for a regression.

    Raises:
        UsageError: they cannot be read, or have neither.
    """
    prep = config.preprocessing
    if config.task == REGRESSION and config.outputs is not None:
        return read_targets(data, prep, config.outputs.names, limit)
    images = read_images(data, prep, "test", limit)
    if images.labels is None:
        raise UsageError(
            f"{images.source} has no labels.",
            "Accuracy needs them.",
            "Leave out --data, or add them.",
        )
    return images


def chosen_by_data(
    weights: Weights,
    family: str | None,
    answers: Answers,
    data: Path | str,
    limit: int,
    notes: list[str],
) -> tuple[Recognized, Answers]:
    """Family and answers; where the file leaves several functions, the one that is clearly best on data.

    Raises:
        UsageError: none is.
    """
    choices: dict[str, tuple[Recognized, Answers]] = {}
    whole = fitting(weights, family)
    for found in whole:
        f = found.family
        name = f"family '{f.name}'" if len(whole) > 1 else ""
        if answers.variant or f.variant or not f.variants:
            choices[name] = found, answers
            continue
        for variant in f.variants:
            words = ", ".join(w for w in (name, f"variant '{variant.name}'") if w)
            choices[words] = found, replace(answers, variant=variant.name)
    if len(choices) == 1:
        return next(iter(choices.values()))
    models = {words: network(r.family, weights, a, []) for words, (r, a) in choices.items()}
    images = read_data(data, next(iter(models.values())).config, limit)
    best, achieved = clearly_best(models, images)
    said = "; ".join(f"{words}: {text}" for words, text in achieved.items())
    if best is None:
        raise UsageError(
            "The data does not tell which function the network computes.",
            f"On {len(images)} images: {said}.",
            "Give --as and --variant (family=, variant= in Python), or more images.",
        )
    notes.append(f"{best} by the data: {said}")
    return choices[best]


def alternatives(
    model: CapsuleModel, found: Recognized, weights: Weights, answers: Answers
) -> dict[str, CapsuleModel]:
    """Networks of the same tensors, by the option that makes them."""
    tries: dict[str, Callable[[], CapsuleModel]] = {}
    family = found.family
    stated = model.config.iterations - family.extra_iterations

    def with_answers(**changes: Any) -> Callable[[], CapsuleModel]:
        return lambda: network(family, weights, replace(answers, **changes), [])

    for count in (stated - 1, stated + 1):
        if count + family.extra_iterations >= 1:
            tries[f"--iters {count}"] = with_answers(iterations=count)
    chosen = answers.variant or family.variant
    for variant in family.variants:
        if variant.name != chosen:
            tries[f"--variant {variant.name}"] = with_answers(variant=variant.name)
    for other in others(weights, family):
        tries[f"--as {other.name}"] = lambda other=other: network(other, weights, answers, [])  # type: ignore[misc]
    made = {}
    for words, make in tries.items():
        try:
            made[words] = make()
        except CapsedgeError:  # it needs answers that were not given
            continue
    return made
