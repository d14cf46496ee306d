"""capsule-network of Daniel Havir, and NIPS2017 of lidq92, which is the same."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets, xifengguo
from capsedge.families.family import Family, Tensors
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; the routing weight is ``[1, J, I, O, D]`` there."""
    assert isinstance(config, CapsNetConfig)
    return {
        **capsnets.layer(found, "conv1", "stem.0"),
        **capsnets.layer(found, "primary.conv", "primary.conv"),
        "classes.weight": found["digits.W"][0].swapaxes(0, 1),
        **capsnets.decoder(found, capsnets.SEQUENTIAL, config),
    }


FAMILY = Family(
    name="danielhavir",
    source="github.com/danielhavir/capsule-network, capsules.py",
    licence="MIT",
    dialect="dynamic routing; primary capsules of consecutive pixels",
    differences=xifengguo.FAMILY.differences,
    keys={
        "conv1.weight": "C A K K",
        "conv1.bias": "C",
        "primary.conv.weight": "N C P P",
        "primary.conv.bias": "N",
        "digits.W": "1 J I O D",
    },
    optional=xifengguo.FAMILY.optional,
    configure=xifengguo.configure,
    convert=convert,
    iterations_at="the option --num_routing of main.py (3 by default)",
    data_sets=(capsnets.MNIST_NORMALIZED, capsnets.CIFAR_NORMALIZED),
    variants=xifengguo.FAMILY.variants,
    variant=xifengguo.FAMILY.variant,
)
