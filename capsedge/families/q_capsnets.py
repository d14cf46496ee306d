"""Q-CapsNets of Beatrice Bussolino: its ShallowCapsNet in full precision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from capsedge.families import capsnets
from capsedge.families.family import Answers, DataSet, Family, Sizes, Tensors
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration."""
    notes.append(
        "taken for weights in full precision: the author's quantized networks have the same keys, and round "
        "what passes between their layers too"
    )
    return capsnets.configure(family, sizes, answers, notes, class_bias=True)


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; children have their types first there, the routing weight is ``[I, D, J O]``.

    The primary capsules are routed once there, from one parent's zero logits: their convolution is divided
    by the number of types, its bias is not.
    """
    assert isinstance(config, CapsNetConfig)
    weight, bias = found["digit.weight"], found["digit.bias"]
    by_type = weight.reshape(*weight.shape[:2], *bias.shape).transpose(0, 2, 3, 1)
    return {
        **capsnets.layer(found, "conv.conv", "stem.0"),
        "primary.conv.weight": found["primary.conv3d.weight"] / np.float32(config.primary_types),
        "primary.conv.bias": found["primary.bias"].reshape(-1),
        "classes.weight": capsnets.by_position(by_type, config.primary_types),
        "classes.bias": bias,
    }


FAMILY = Family(
    name="q-capsnets",
    source="github.com/bbussolino/Q-CapsNets, full_precision_models.py: ShallowCapsNet",
    licence="MIT",
    dialect="dynamic routing as in the paper; primary capsules routed once over their types",
    differences=(
        "the primary convolution is divided by the number of types, as routing once from zero logits does",
        "no epsilon in the squash, which is written without a quotient by the norm",
    ),
    keys={
        "conv.conv.weight": "C A K K",
        "conv.conv.bias": "C",
        "primary.conv3d.weight": "N C P P",
        "primary.bias": "T D 1 1",
        "digit.weight": "I D JO",
        "digit.bias": "J O",
    },
    configure=configure,
    convert=convert,
    iterations=3,
    iterations_at="iterations of Capsules in ShallowCapsNet",
    data_sets=(DataSet("MNIST and Fashion-MNIST", 1, 28, ()),),
)
