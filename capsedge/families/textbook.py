"""The paper's CapsNet under this package's names: where a key map (``--map``) leads to."""

from __future__ import annotations

from collections.abc import Mapping

from capsedge.families import capsnets
from capsedge.families.family import Answers, Family, Sizes, Tensors
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig

_OPTIONAL = ("classes.log_prior", "classes.bias", "classes.vote_bias")


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration; the fields of the key map say what differs from the paper."""
    return capsnets.configure(
        family, sizes, answers, notes,
        learned_priors="I1" in sizes, class_bias="J1" in sizes, vote_bias="J2" in sizes,
    )  # fmt: skip


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors: those of the file."""
    assert isinstance(config, CapsNetConfig)
    return {
        **capsnets.layer(found, "stem.0", "stem.0"),
        **capsnets.layer(found, "primary.conv", "primary.conv"),
        **{name: found[name] for name in ("classes.weight", *_OPTIONAL) if name in found},
        **capsnets.decoder(found, capsnets.SEQUENTIAL, config),
    }


FAMILY = Family(
    name="textbook",
    source="the paper; a key map (--map) names the tensors of any file",
    licence="",
    dialect="dynamic routing as in the paper, or as the key map's [model] says",
    differences=(),
    keys={
        "stem.0.weight": "C A K K",
        "stem.0.bias": "C",
        "primary.conv.weight": "N C P P",
        "primary.conv.bias": "N",
        "classes.weight": "I J O D",
    },
    optional=(
        capsnets.decoder_keys(capsnets.SEQUENTIAL),
        {"classes.log_prior": "I1 J"},
        {"classes.bias": "J1 O"},
        {"classes.vote_bias": "J2 O"},
    ),
    configure=configure,
    convert=convert,
    iterations_at="where the network is built, or the default of the routing layer",
)
