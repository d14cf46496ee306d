"""Configurations: what builds a model, and what its checkpoint stores. No torch needed.

Each family's is in a module of its own; this one has them all.
"""

from __future__ import annotations

from typing import Any

from capsedge.errors import UsageError
from capsedge.models.attention_capsules_config import AttentionCapsulesConfig
from capsedge.models.capsnet_config import CapsNetConfig
from capsedge.models.capsule_stack_config import CapsuleStackConfig, RoutedLayer, StemLayer
from capsedge.models.config_base import CapsuleConv, Conv, ModelConfig, ResNet
from capsedge.models.deepcaps_config import DeepCapsConfig
from capsedge.models.efficient_capsnet_config import EfficientCapsNetConfig
from capsedge.models.fsanet_config import FSANetConfig, PooledFSANetConfig
from capsedge.models.matrix_capsules_config import MatrixCapsulesConfig
from capsedge.models.pscapsnet_config import PSCapsNetConfig
from capsedge.runtime.files.documents import Malformed, check, decode

__all__ = [
    "FAMILIES",
    "AttentionCapsulesConfig",
    "CapsNetConfig",
    "CapsuleConv",
    "CapsuleStackConfig",
    "Conv",
    "DeepCapsConfig",
    "EfficientCapsNetConfig",
    "FSANetConfig",
    "MatrixCapsulesConfig",
    "ModelConfig",
    "PSCapsNetConfig",
    "PooledFSANetConfig",
    "ResNet",
    "RoutedLayer",
    "StemLayer",
    "config_from_dict",
]

FAMILIES: dict[str, type[ModelConfig]] = {
    c.architecture: c
    for c in (
        CapsNetConfig,
        MatrixCapsulesConfig,
        AttentionCapsulesConfig,
        EfficientCapsNetConfig,
        FSANetConfig,
        PooledFSANetConfig,
        CapsuleStackConfig,
        DeepCapsConfig,
        PSCapsNetConfig,
    )
}


def config_from_dict(values: object) -> ModelConfig:
    """Build a configuration from what ``ModelConfig.to_dict`` gave.

    Raises:
        UsageError: an unknown architecture, or fields that do not fit it.
    """
    try:
        rest = dict(decode(dict[str, Any], check(values)))
        architecture = rest.pop("architecture", None)
        family = FAMILIES.get(str(architecture))
        if family is None:
            raise UsageError(
                f"Unknown architecture '{architecture}'.", f"Known: {', '.join(sorted(FAMILIES))}."
            )
        stem = rest.get("stem")
        if isinstance(stem, dict) and stem.keys() == {"resnet"}:
            rest["stem"] = {"stages": stem["resnet"]}
        return decode(family, rest)
    except Malformed as error:
        raise UsageError("The model configuration cannot be read.", f"{error}.") from error
