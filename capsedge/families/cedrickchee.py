"""capsule-net-pytorch of Cedric Chee: agreements averaged over the batch, a squash over the children."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets
from capsedge.families.family import Answers, Family, Sizes, Tensors, Variant
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig

UNITS = "primary.conv_units.{}"

_DECODER = ("decoder.fc1", "decoder.fc2", "decoder.fc3")


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration."""
    return capsnets.configure(
        family, sizes, answers, notes, primary_squash="children", batch_average=True
    )


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors.

    The routing weight is ``[1, I, J, O, D]`` there, the children types first; each convolution makes one
    element of all types.
    """
    assert isinstance(config, CapsNetConfig)
    return {
        **capsnets.layer(found, "conv1.conv0", "stem.0"),
        **capsnets.joined(found, UNITS, config.primary_dim, dims_apart=True),
        "classes.weight": capsnets.by_position(found["digits.weight"][0], config.primary_types),
        **capsnets.decoder(found, _DECODER, config),
    }


FAMILY = Family(
    name="cedrickchee",
    source="github.com/cedrickchee/capsule-net-pytorch, capsule_layer.py",
    licence="MIT",
    dialect="dynamic routing; agreements averaged over the batch, primary squash over the children",
    differences=(
        "the primary capsules are squashed over all children, element by element of the pose",
        capsnets.BATCH,
        capsnets.NAN,
        "class capsules without bias",
    ),
    keys={
        "conv1.conv0.weight": "C A K K",
        "conv1.conv0.bias": "C",
        "primary.conv_units.{D}.weight": "T C P P",
        "primary.conv_units.{D}.bias": "T",
        "digits.weight": "1 I J O D",
    },
    optional=(capsnets.decoder_keys(_DECODER),),
    configure=configure,
    convert=convert,
    iterations_at="the option --num-routing of main.py (3 by default)",
    data_sets=(capsnets.MNIST_NORMALIZED, capsnets.CIFAR_NORMALIZED),
    variants=(
        Variant("poses", "squash of each class capsule's pose, as since December 2017", {}),
        Variant(
            "parents",
            "squash of the class capsules over all classes, as for a few days before",
            {"class_squash": "parents"},
        ),
        Variant(
            "children",
            "the same and a softmax over the children, as in November 2017",
            {"class_squash": "parents", "softmax": "children"},
        ),
    ),
    variant="poses",
)
