"""CapsNet-Keras of Xifeng Guo: capsules of channels, as in the paper."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets
from capsedge.families.family import Answers, Family, Sizes, Tensors
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig

EPSILON = 1e-7  # of Keras


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration."""
    return capsnets.configure(
        family, sizes, answers, notes, epsilon=EPSILON, length_epsilon=EPSILON
    )


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors.

    Convolutions are ``[height, width, in, out]`` there, the routing weight ``[J, I, O, D]``, and the decoder
    makes ``[height, width, channels]``.
    """
    assert isinstance(config, CapsNetConfig)
    made = {"classes.weight": found["digitcaps/W"].swapaxes(0, 1)}
    for theirs, ours in (("conv1", "stem.0"), ("primarycap_conv2d", "primary.conv")):
        made[f"{ours}.weight"] = found[f"{theirs}/kernel"].transpose(3, 2, 0, 1)
        made[f"{ours}.bias"] = found[f"{theirs}/bias"]
    if config.decoder:
        for k in range(3):
            made[f"decoder.{2 * k}.weight"] = found[f"decoder/dense_{k}/kernel"].T
            made[f"decoder.{2 * k}.bias"] = found[f"decoder/dense_{k}/bias"]
        shape = config.preprocessing.shape
        last = made["decoder.4.weight"]
        pixels = last.reshape(*shape[1:], shape[0], -1).transpose(2, 0, 1, 3)
        made["decoder.4.weight"] = pixels.reshape(last.shape)
        made["decoder.4.bias"] = (
            made["decoder.4.bias"].reshape(*shape[1:], shape[0]).transpose(2, 0, 1).reshape(-1)
        )
    return made


FAMILY = Family(
    name="xifengguo-keras",
    source="github.com/XifengGuo/CapsNet-Keras, capsulelayers.py",
    licence="MIT",
    dialect="dynamic routing as in the paper",
    differences=(
        "class capsules without bias",
        "epsilon 1e-7 under the root of the squash and of the length",
    ),
    keys={
        "conv1/kernel": "K K A C",
        "conv1/bias": "C",
        "primarycap_conv2d/kernel": "P P C N",
        "primarycap_conv2d/bias": "N",
        "digitcaps/W": "J I O D",
    },
    optional=(
        {
            "decoder/dense_0/kernel": "M H1",
            "decoder/dense_0/bias": "H1",
            "decoder/dense_1/kernel": "H1 H2",
            "decoder/dense_1/bias": "H2",
            "decoder/dense_2/kernel": "H2 X",
            "decoder/dense_2/bias": "X",
        },
    ),
    renames=(  # Keras 3
        (r"conv2d/(kernel|bias)", r"conv1/\1"),
        (r"conv2d_1/(kernel|bias)", r"primarycap_conv2d/\1"),
        (r"(?:digitcaps|capsule_layer)/0", "digitcaps/W"),
        (r"sequential/(dense.*)", r"decoder/\1"),
    ),
    counted=r"(?P<name>decoder/dense)(_(?P<number>\d+))?(?=/)",
    configure=configure,
    convert=convert,
    iterations_at="the option --routings of capsulenet.py (3 by default)",
    data_sets=(capsnets.MNIST,),
    lambdas="primarycap_squash",
)
