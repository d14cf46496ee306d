"""Build the network for a file's weights, from the user's choices or, if these are not enough, from data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsedge.datasets import ImageSet, read_images, read_targets
from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.importers.family import (
    Family,
    ImportChoices,
    MissingChoice,
    Sizes,
    Weights,
    combine_missing_choices,
)
from capsedge.importers.identify import Identified, fitting, others
from capsedge.importers.measure import clearly_best
from capsedge.importers.weights_file import without_counters
from capsedge.models import CapsuleModel, build
from capsedge.models.configs import ModelConfig
from capsedge.spec.vocabularies import REGRESSION


def network(
    family: Family, weights: Weights, choices: ImportChoices, notes: list[str]
) -> CapsuleModel:
    """The network with its weights, in evaluation mode; ``notes`` receives what was assumed."""
    names = family.names(weights.tensors)
    tensors = {names[name]: tensor for name, tensor in weights.tensors.items()}
    choices = replace(choices, stored=weights.config)
    config = _configured(family, family.fit(weights).sizes, choices, notes)
    _check_inverse_temperature(family, config, choices.inverse_temperature)
    try:
        arrays = family.convert(tensors, config)
    except ValueError as error:  # shapes not covered by any pattern
        raise ArtefactError(
            f"The weights do not form a network of the family {family.name}.",
            f"{str(error)[:1].upper()}{str(error)[1:]}.",
            "Check --size, --map and the file.",
        ) from error
    broken = [name for name, tensor in arrays.items() if not np.isfinite(tensor).all()]
    if broken:
        raise ArtefactError(
            "The weights are not all numbers.",
            f"'{broken[0]}' has NaN or infinite values: the training diverged.",
            "Use an earlier checkpoint.",
        )
    with torch.device("meta"):
        state = build(config).state_dict()
    wanted = {k: tuple(v.shape) for k, v in without_counters(state).items()}
    wrong = [
        k for k in {**wanted, **arrays} if wanted.get(k) != getattr(arrays.get(k), "shape", None)
    ]
    if wrong:
        has = list(arrays[wrong[0]].shape) if wrong[0] in arrays else "missing"
        raise ArtefactError(
            f"The weights do not form a network of the family {family.name}.",
            f"'{wrong[0]}' is {has}, wanted {list(wanted.get(wrong[0], ()))}.",
            "Check --size, --map and the file.",
        )
    model = build(config)
    ready = {k: torch.from_numpy(np.array(v, order="C")) for k, v in arrays.items()}
    model.load_state_dict(ready, strict=False)  # everything except batch counters is present
    return model.eval()


def _configured(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration. Raises UsageError if choices are missing, or one does not fit."""
    try:
        return family.configure(family, sizes, choices, notes)
    except MissingChoice:
        raise combine_missing_choices(questions(family, sizes, choices)) from None


def questions(family: Family, sizes: Sizes, choices: ImportChoices) -> list[MissingChoice]:
    """The choices that the file leaves open, up to the first misfit; stand-ins replace open ones."""
    questions: list[MissingChoice] = []
    while True:
        try:
            family.configure(family, sizes, choices, [])
        except MissingChoice as missing:
            questions.append(missing)
            if not missing.assumed:
                return questions
            choices = _with(choices, missing.assumed)
        except CapsedgeError:
            return questions
        else:
            return questions


def _with(choices: ImportChoices, assumed: Mapping[str, Any]) -> ImportChoices:
    fields = dict(assumed)
    fields["preprocessing"] = {**choices.preprocessing, **fields.get("preprocessing", {})}
    return replace(choices, **fields)


def _check_inverse_temperature(family: Family, config: ModelConfig, choice: float | None) -> None:
    if choice is not None and getattr(config, "inverse_temperature", None) != choice:
        raise UsageError(
            f"The family {family.name} has no inverse temperature to set.",
            "The author's code fixes it, or does not use one.",
            "Leave out inverse_temperature.",
            command="Leave out --inverse-temperature.",
        )


# --- Deciding by data: which of several possible functions the tensors compute ---


def read_data(data: Path | str, config: ModelConfig, limit: int) -> ImageSet:
    """Images with classes, or with values for a regression."""
    prep = config.preprocessing
    if config.task == REGRESSION and config.outputs is not None:
        return read_targets(data, prep, config.outputs.names, limit)
    images = read_images(data, prep, "test", limit, named=config.class_names)
    if images.labels is None:
        raise UsageError(
            f"{images.source} has no labels.",
            "Accuracy needs them.",
            "Add labels, or leave out --data.",
        )
    return images


def chosen_by_data(
    weights: Weights,
    family: str | None,
    choices: ImportChoices,
    data: Path | str,
    limit: int,
    notes: list[str],
) -> tuple[Identified, ImportChoices]:
    """The family and the choices; of several possible functions, the one that is clearly best on the data."""
    possible: dict[str, tuple[Identified, ImportChoices]] = {}
    whole = fitting(weights, family)
    for reading in whole:
        f = reading.family
        name = f"family '{f.name}'" if len(whole) > 1 else ""
        if choices.variant or f.variant or not f.variants:
            possible[name] = reading, choices
            continue
        for variant in f.variants:
            words = ", ".join(w for w in (name, f"variant '{variant.name}'") if w)
            possible[words] = reading, replace(choices, variant=variant.name)
    if len(possible) == 1:
        return next(iter(possible.values()))
    models = {words: network(r.family, weights, a, []) for words, (r, a) in possible.items()}
    images = read_data(data, next(iter(models.values())).config, limit)
    best, achieved = clearly_best(models, images)
    achievements = "; ".join(f"{words}: {text}" for words, text in achieved.items())
    if best is None:
        raise UsageError(
            "The data does not determine which function the network computes.",
            f"On {len(images)} images: {achievements}.",
            "Set --family and --variant (family=, variant= in Python), or pass more images.",
        )
    notes.append(f"{best} by the data: {achievements}")
    return possible[best]


def alternatives(
    model: CapsuleModel, reading: Identified, weights: Weights, choices: ImportChoices
) -> dict[str, CapsuleModel]:
    """Networks with the same tensors, by the option that selects them."""
    tries: dict[str, Callable[[], CapsuleModel]] = {}
    family = reading.family
    declared = model.config.iterations - family.extra_iterations

    def with_choices(**changes: Any) -> Callable[[], CapsuleModel]:
        return lambda: network(family, weights, replace(choices, **changes), [])

    for count in (declared - 1, declared + 1):
        if count + family.extra_iterations >= 1:
            tries[f"--iters {count}"] = with_choices(iterations=count)
    chosen = choices.variant or family.variant
    for variant in family.variants:
        if variant.name != chosen:
            tries[f"--variant {variant.name}"] = with_choices(variant=variant.name)
    for other in others(weights, family):
        tries[f"--family {other.name}"] = lambda other=other: network(other, weights, choices, [])  # type: ignore[misc]
    networks = {}
    for words, make in tries.items():
        try:
            networks[words] = make()
        except CapsedgeError:  # it needs choices that were not made
            continue
    return networks
