"""Configurations that need nothing new are written as the first version wrote them; both forms are read."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from capsedge.models import MODELS, get_config
from capsedge.models.config import (
    CapsNetConfig,
    Conv,
    ModelConfig,
    ResNet,
    config_from_dict,
)

CONV = ("channels", "kernel", "stride", "padding", "bias", "batch_norm")
PREPROCESSING = ("height", "width", "channels", "scale", "mean", "std", "resize")
COMMON = (
    "architecture",
    "class_names",
    "preprocessing",
    "stem",
    "primary_types",
    "primary_kernel",
    "primary_stride",
    "primary_padding",
    "capsule_layers",
    "iterations",
    "task",
)
FIRST_VERSION = {
    "capsnet": (
        "primary_dim",
        "capsule_dim",
        "leaky",
        "class_bias",
        "learned_priors",
        "decoder",
        "linear_classifier",
    ),
    "matrix-capsules": ("pose_side", "inverse_temperature", "epsilon"),
    "attention-capsules": ("pose_dim", "matrix_pose", "dense_layers", "concurrent"),
}


def complete(config: ModelConfig) -> dict[str, Any]:
    """All fields, later ones at their defaults too."""
    values = dataclasses.asdict(config)
    if isinstance(config.stem, ResNet):
        values["stem"] = {"resnet": config.stem.stages}
    return {"architecture": config.architecture, **values}


@pytest.mark.parametrize("name", MODELS)
def test_the_first_version_reads_what_is_written(name: str) -> None:
    config = MODELS[name]
    written, everything = config.to_dict(), complete(config)
    assert tuple(written) == COMMON + FIRST_VERSION[config.architecture]
    assert tuple(written["preprocessing"]) == PREPROCESSING
    if not isinstance(config.stem, ResNet):
        assert {tuple(conv) for conv in written["stem"]} <= {CONV}
    for field in set(written) - {"stem", "preprocessing"}:
        assert written[field] == everything[field]


@pytest.mark.parametrize("name", MODELS)
def test_both_forms_give_the_same_configuration(name: str) -> None:
    config = MODELS[name]
    for values in (config.to_dict(), complete(config)):
        assert config_from_dict(json.loads(json.dumps(values))) == config


def test_a_later_field_is_written_where_it_is_used() -> None:
    config = get_config("digits-dynamic").replace(
        softmax="children", epsilon=1e-7, stem=(Conv(8, 3, leak=0.1),)
    )
    written = json.loads(json.dumps(config.to_dict()))
    later = tuple(written)[len(COMMON + FIRST_VERSION["capsnet"]) :]
    assert isinstance(config, CapsNetConfig)
    assert (written["softmax"], written["epsilon"], written["stem"][0]["leak"]) == (
        "children",
        1e-7,
        0.1,
    )
    assert later == ("softmax", "epsilon")
    assert tuple(written["stem"][0]) == (*CONV, "leak")
    assert config_from_dict(written) == config
