"""The network that a file's weights make. Needs torch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from capsedge.errors import ArtefactError, UsageError
from capsedge.families.family import Answers, Family
from capsedge.formats.stored import Weights, without_counters
from capsedge.models import CapsuleModel, build
from capsedge.models.config import ModelConfig


def network(family: Family, weights: Weights, answers: Answers, notes: list[str]) -> CapsuleModel:
    """The network with its weights, in evaluation mode.

    Args:
        notes: what was assumed is added to them.

    Raises:
        UsageError: an answer is missing or does not fit.
        ArtefactError: the weights are not those of the configuration, or not finite.
    """
    names = family.names(weights.tensors)
    tensors = {names[name]: tensor for name, tensor in weights.tensors.items()}
    answers = replace(answers, stored=weights.config)
    config = family.configure(family, family.fit(weights).sizes, answers, notes)
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


def _check_inverse_temperature(family: Family, config: ModelConfig, given: float | None) -> None:
    if given is not None and getattr(config, "inverse_temperature", None) != given:
        raise UsageError(
            f"The family {family.name} has no inverse temperature to give.",
            "The author's code fixes it, or has none.",
            "Leave out inverse_temperature.",
            command="Leave out --inverse-temperature.",
        )
