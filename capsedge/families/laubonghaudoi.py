"""CapsNet_guide_PyTorch of laubonghaudoi: the paper's routing, in two layouts of the weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from capsedge.families import capsnets
from capsedge.families.family import Answers, Family, Sizes, Tensors
from capsedge.formats.stored import Floats
from capsedge.models.config import CapsNetConfig, ModelConfig

_DECODER = ("Decoder.fc1", "Decoder.fc2", "Decoder.fc3")


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration."""
    return capsnets.configure(family, sizes, answers, notes)


def configure_first(
    family: Family, sizes: Sizes, answers: Answers, notes: list[str]
) -> ModelConfig:
    """The configuration of the first commits."""
    return capsnets.configure(family, sizes, answers, notes, batch_average=True)


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; the routing weight is ``[1, I, J, D, O]``, at first ``[I, J, O, D]``."""
    assert isinstance(config, CapsNetConfig)
    weight = found["DigitCaps.W"]
    return {
        **capsnets.layer(found, "Conv1", "stem.0"),
        **capsnets.joined(found, "PrimaryCaps.capsules.{}", config.primary_types, dims_apart=False),
        "classes.weight": weight[0].swapaxes(2, 3) if weight.ndim == 5 else weight,
        **capsnets.decoder(found, _DECODER, config),
    }


_KEYS = {
    "Conv1.weight": "C A K K",
    "Conv1.bias": "C",
    "PrimaryCaps.capsules.{T}.weight": "D C P P",
    "PrimaryCaps.capsules.{T}.bias": "D",
    "DigitCaps.W": "1 I J D O",
}
FAMILY = Family(
    name="laubonghaudoi",
    source="github.com/laubonghaudoi/CapsNet_guide_PyTorch, DigitCaps.py",
    licence="Apache-2.0",
    dialect="dynamic routing as in the paper",
    differences=(capsnets.NAN, "class capsules without bias"),
    keys=_KEYS,
    optional=(capsnets.decoder_keys(_DECODER),),
    configure=configure,
    convert=convert,
    iterations_at="the option -r of main.py",
    data_sets=(capsnets.MNIST,),
)
FIRST = replace(
    FAMILY,
    name="laubonghaudoi-2017",
    source="github.com/laubonghaudoi/CapsNet_guide_PyTorch, DigitCaps.py before 2018",
    dialect="dynamic routing; agreements summed over the batch",
    differences=(capsnets.BATCH.replace("averaged", "summed"), *FAMILY.differences),
    keys={**_KEYS, "DigitCaps.W": "I J O D"},
    configure=configure_first,
)
