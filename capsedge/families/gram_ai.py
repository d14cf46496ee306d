"""capsule-networks of Gram.AI: the softmax runs over the children."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets, xifengguo
from capsedge.families.family import Answers, Family, Sizes, Tensors
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig

_PRIOR = "digit_capsules.route_logits"


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration."""
    return capsnets.configure(
        family, sizes, answers, notes,
        softmax="children", softmax_scores=True, learned_priors="JP" in sizes,
    )  # fmt: skip


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors.

    The routing weight is ``[J, I, D, O]`` there, the children types first; each convolution makes one
    element of all types.
    """
    assert isinstance(config, CapsNetConfig)
    types, dim = config.primary_types, config.primary_dim
    weight = found["digit_capsules.route_weights"].transpose(1, 0, 3, 2)
    made = {
        **capsnets.layer(found, "conv1", "stem.0"),
        **capsnets.joined(found, "primary_capsules.capsules.{}", dim, dims_apart=True),
        "classes.weight": capsnets.by_position(weight, types),
        **capsnets.decoder(found, capsnets.SEQUENTIAL, config),
    }
    if _PRIOR in found:
        prior = found[_PRIOR].reshape(config.classes, -1).swapaxes(0, 1)
        made["classes.log_prior"] = capsnets.by_position(prior, types)
    return made


FAMILY = Family(
    name="gram-ai",
    source="github.com/gram-ai/capsule-networks, capsule_network.py",
    licence="",
    dialect="dynamic routing; softmax over the children, softmax of the lengths",
    differences=(
        "the couplings of a class sum to one over the children, not those of a child over the classes",
        "the scores are the softmax of the lengths",
        capsnets.NAN,
        "class capsules without bias",
    ),
    keys={
        "conv1.weight": "C A K K",
        "conv1.bias": "C",
        "primary_capsules.capsules.{D}.weight": "T C P P",
        "primary_capsules.capsules.{D}.bias": "T",
        "digit_capsules.route_weights": "J I D O",
    },
    optional=(*xifengguo.FAMILY.optional, {_PRIOR: "J JP I 1 1"}),
    configure=configure,
    convert=convert,
    iterations=3,
    iterations_at="NUM_ROUTING_ITERATIONS in capsule_network.py",
    data_sets=(capsnets.MNIST,),
)
