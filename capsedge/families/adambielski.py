"""CapsNet-pytorch of Adam Bielski: learned start logits, one weighted sum more than iterations."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets
from capsedge.families.family import Answers, Family, Sizes, Tensors
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig

_DECODER = ("reconstruction_net.fc1", "reconstruction_net.fc2", "reconstruction_net.fc3")


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration; the last axis of the routing weight is classes times elements."""
    elements = {"O": sizes["JO"] // sizes["J"]}
    return capsnets.configure(family, {**sizes, **elements}, answers, notes, learned_priors=True)


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; the routing weight is ``[I, D, J * O]`` there, the children types first."""
    assert isinstance(config, CapsNetConfig)
    types = config.primary_types
    weight = found["digitCaps.weights"]
    apart = weight.reshape(*weight.shape[:2], config.classes, config.capsule_dim)
    return {
        **capsnets.layer(found, "conv1", "stem.0"),
        **capsnets.layer(found, "primaryCaps.conv", "primary.conv"),
        "classes.weight": capsnets.by_position(apart.transpose(0, 2, 3, 1), types),
        "classes.log_prior": capsnets.by_position(found["digitCaps.routing_module.b"], types),
        **capsnets.decoder(found, _DECODER, config),
    }


FAMILY = Family(
    name="adambielski",
    source="github.com/adambielski/CapsNet-pytorch, net.py",
    licence="BSD-3-Clause",
    dialect="dynamic routing with learned start logits; n iterations make n + 1 weighted sums",
    differences=(
        "the start logits are learned",
        "n iterations run after a first weighted sum: n + 1 in all",
        capsnets.NAN,
        "class capsules without bias",
    ),
    keys={
        "conv1.weight": "C A K K",
        "conv1.bias": "C",
        "primaryCaps.conv.weight": "N C P P",
        "primaryCaps.conv.bias": "N",
        "digitCaps.weights": "I D JO",
        "digitCaps.routing_module.b": "I J",
    },
    optional=(capsnets.decoder_keys(_DECODER, "JO"),),
    renames=((r"capsnet\.(.*)", r"\1"),),
    configure=configure,
    convert=convert,
    iterations_at="the option --routing_iterations of net.py (3 by default), and in the file's name: "
    "..._model_dict_3routing_...",
    extra_iterations=1,
    data_sets=(capsnets.MNIST,),
)
