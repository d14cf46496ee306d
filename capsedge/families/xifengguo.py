"""CapsNet-Pytorch of Xifeng Guo: a primary capsule is eight consecutive pixels."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets
from capsedge.families.family import Answers, Family, Sizes, Tensors, Variant
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig

PIXELS = Variant(
    "pixels",
    "a primary capsule is consecutive pixels of one channel, as in the author's code",
    {"primary_grouping": "pixels"},
)
CHANNELS = Variant(
    "channels",
    "a primary capsule is channels of one position, as in forks that permute before the view",
    {"primary_grouping": "channels"},
)
GROUPED = (
    "a primary capsule is consecutive elements of the convolution's output [C, H, W], across rows and "
    "channels, not the channels of one position"
)


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration."""
    return capsnets.configure(family, sizes, answers, notes)


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; the routing weight is ``[J, I, O, D]`` there."""
    assert isinstance(config, CapsNetConfig)
    return {
        **capsnets.layer(found, "conv1", "stem.0"),
        **capsnets.layer(found, "primarycaps.conv2d", "primary.conv"),
        "classes.weight": found["digitcaps.weight"].swapaxes(0, 1),
        **capsnets.decoder(found, capsnets.SEQUENTIAL, config),
    }


FAMILY = Family(
    name="xifengguo",
    source="github.com/XifengGuo/CapsNet-Pytorch, capsulelayers.py",
    licence="MIT",
    dialect="dynamic routing; primary capsules of consecutive pixels",
    differences=(GROUPED, "class capsules without bias"),
    keys={
        "conv1.weight": "C A K K",
        "conv1.bias": "C",
        "primarycaps.conv2d.weight": "N C P P",
        "primarycaps.conv2d.bias": "N",
        "digitcaps.weight": "J I O D",
    },
    optional=(capsnets.decoder_keys(capsnets.SEQUENTIAL),),
    configure=configure,
    convert=convert,
    iterations_at="the option --routings of capsulenet.py (3 by default)",
    data_sets=(capsnets.MNIST,),
    variants=(PIXELS, CHANNELS),
    variant="pixels",
)
