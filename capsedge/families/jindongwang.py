"""Pytorch-CapsuleNet of Jindong Wang, and the notebook of higgsfield that it comes from."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets
from capsedge.families.family import Answers, Family, Sizes, Tensors
from capsedge.families.xifengguo import GROUPED
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig

_DECODER = tuple(f"decoder.reconstraction_layers.{k}" for k in (0, 2, 4))  # sic


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration."""
    return capsnets.configure(
        family, sizes, answers, notes,
        primary_grouping="pixels", softmax="children", class_squash="elements", batch_average=True,
    )  # fmt: skip


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; the routing weight is ``[1, I, J, O, D]`` there."""
    assert isinstance(config, CapsNetConfig)
    return {
        **capsnets.layer(found, "conv_layer.conv", "stem.0"),
        **capsnets.joined(
            found, "primary_capsules.capsules.{}", config.primary_dim, dims_apart=False
        ),
        "classes.weight": found["digit_capsules.W"][0],
        **capsnets.decoder(found, _DECODER, config),
    }


FAMILY = Family(
    name="jindongwang",
    source="github.com/jindongwang/Pytorch-CapsuleNet, capsnet.py; also "
    "github.com/higgsfield/Capsule-Network-Tutorial",
    licence="MIT",
    dialect="dynamic routing; softmax over the children, elements squashed one by one",
    differences=(
        GROUPED,
        "the couplings of a class sum to one over the children, not those of a child over the classes",
        "the class capsules' squash runs over an axis of one element: x|x| / (1 + x²)",
        capsnets.BATCH,
        capsnets.NAN,
        "class capsules without bias",
    ),
    keys={
        "conv_layer.conv.weight": "C A K K",
        "conv_layer.conv.bias": "C",
        "primary_capsules.capsules.{D}.weight": "T C P P",
        "primary_capsules.capsules.{D}.bias": "T",
        "digit_capsules.W": "1 I J O D",
    },
    optional=(capsnets.decoder_keys(_DECODER),),
    configure=configure,
    convert=convert,
    iterations=3,
    iterations_at="num_iterations in DigitCaps.forward",
    data_sets=(capsnets.MNIST_NORMALIZED, capsnets.CIFAR_NORMALIZED),
)
