"""The network that a file's weights make. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.families.family import Answers, Family, Sizes
from capsedge.families.questions import MissingAnswer, together
from capsedge.formats.stored import Weights, without_counters
from capsedge.models import CapsuleModel, build
from capsedge.models.config import ModelConfig


def network(family: Family, weights: Weights, answers: Answers, notes: list[str]) -> CapsuleModel:
    """The network with its weights, in evaluation mode.

    Args:
        notes: what was assumed is added to them.

    Raises:
        UsageError: answers are missing, all of which it names; or one does not fit.
        ArtefactError: the weights are not those of the configuration, or not finite.
    """
    names = family.names(weights.tensors)
    tensors = {names[name]: tensor for name, tensor in weights.tensors.items()}
    answers = replace(answers, stored=weights.config)
    config = _configured(family, family.fit(weights).sizes, answers, notes)
    _check_inverse_temperature(family, config, answers.inverse_temperature)
    try:
        made = family.convert(tensors, config)
    except ValueError as error:  # shapes that no pattern speaks of
        raise ArtefactError(
            f"The weights do not make a network of the family {family.name}.",
            f"{str(error)[:1].upper()}{str(error)[1:]}.",
            "Check --size, --map and the file.",
        ) from error
    broken = [name for name, tensor in made.items() if not np.isfinite(tensor).all()]
    if broken:
        raise ArtefactError(
            "The weights are not all numbers.",
            f"'{broken[0]}' has NaN or infinite values: the training diverged.",
            "Use an earlier checkpoint.",
        )
    with torch.device("meta"):
        state = build(config).state_dict()
    wanted = {k: tuple(v.shape) for k, v in without_counters(state).items()}
    wrong = [k for k in {**wanted, **made} if wanted.get(k) != getattr(made.get(k), "shape", None)]
    if wrong:
        has = list(made[wrong[0]].shape) if wrong[0] in made else "missing"
        raise ArtefactError(
            f"The weights do not make a network of the family {family.name}.",
            f"'{wrong[0]}' is {has}, wanted {list(wanted.get(wrong[0], ()))}.",
            "Check --size, --map and the file.",
        )
    model = build(config)
    ready = {k: torch.from_numpy(np.array(v, order="C")) for k, v in made.items()}
    model.load_state_dict(ready, strict=False)  # all but counters of batches are there
    return model.eval()


def _configured(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration.

    Raises:
        UsageError: answers are missing, or one does not fit.
    """
    try:
        return family.configure(family, sizes, answers, notes)
    except MissingAnswer:
        raise together(questions(family, sizes, answers)) from None


def questions(family: Family, sizes: Sizes, answers: Answers) -> list[MissingAnswer]:
    """What the file leaves open, with stand-ins for the answers so far; until one does not fit."""
    found: list[MissingAnswer] = []
    while True:
        try:
            family.configure(family, sizes, answers, [])
        except MissingAnswer as missing:
            found.append(missing)
            if not missing.assumed:
                return found
            answers = _with(answers, missing.assumed)
        except CapsedgeError:
            return found
        else:
            return found


def _with(answers: Answers, assumed: Mapping[str, Any]) -> Answers:
    fields = dict(assumed)
    fields["preprocessing"] = {**answers.preprocessing, **fields.get("preprocessing", {})}
    return replace(answers, **fields)


def _check_inverse_temperature(family: Family, config: ModelConfig, given: float | None) -> None:
    if given is not None and getattr(config, "inverse_temperature", None) != given:
        raise UsageError(
            f"The family {family.name} has no inverse temperature to give.",
            "The author's code fixes it, or has none.",
            "Leave out inverse_temperature.",
            command="Leave out --inverse-temperature.",
        )
