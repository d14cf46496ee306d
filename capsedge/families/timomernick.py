"""pytorch-capsule of Timo Mernick: softmax over the children, squash over the classes."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets
from capsedge.families.family import Answers, Family, Sizes, Tensors
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig

_DECODER = ("reconstruct0", "reconstruct1", "reconstruct2")
DIFFERENCES = (
    "the primary capsules are squashed over all children, element by element of the pose",
    "the couplings of a class sum to one over the children, not those of a child over the classes",
    "the class capsules are squashed over the classes, element by element of the pose",
    capsnets.BATCH,
    capsnets.NAN,
    "class capsules without bias",
)


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration."""
    return capsnets.configure(
        family, sizes, answers, notes,
        primary_squash="children", softmax="children", class_squash="parents", batch_average=True,
    )  # fmt: skip


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; as in the family of Cedric Chee, under other names."""
    assert isinstance(config, CapsNetConfig)
    return {
        **capsnets.layer(found, "conv1.conv0", "stem.0"),
        **capsnets.joined(found, "primary.unit_{}.conv0", config.primary_dim, dims_apart=True),
        "classes.weight": capsnets.by_position(found["digits.W"][0], config.primary_types),
        **capsnets.decoder(found, _DECODER, config),
    }


FAMILY = Family(
    name="timomernick",
    source="github.com/timomernick/pytorch-capsule, capsule_layer.py; also sangjunpark97/CapsNet, and "
    "cedrickchee/capsule-net-pytorch in November 2017",
    licence="",
    dialect="dynamic routing; softmax over the children, squash over the classes",
    differences=DIFFERENCES,
    keys={
        "conv1.conv0.weight": "C A K K",
        "conv1.conv0.bias": "C",
        "primary.unit_{D}.conv0.weight": "T C P P",
        "primary.unit_{D}.conv0.bias": "T",
        "digits.W": "1 I J O D",
    },
    optional=(capsnets.decoder_keys(_DECODER),),
    renames=((r"primary\.(?:unit_|conv_unit)(\d+)\.(weight|bias)", r"primary.unit_\1.conv0.\2"),),
    configure=configure,
    convert=convert,
    iterations=3,
    iterations_at="num_iterations in CapsuleLayer.routing",
    data_sets=(capsnets.MNIST_NORMALIZED,),
)
