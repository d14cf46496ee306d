"""Import the paper's CapsNet in PyTorch: how public networks name its layers, and how they differ.

The letters of the shapes are those of `capsedge.importers.families.capsnet_base`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from capsedge.importers.families import capsnet_base
from capsedge.importers.families.capsnet_base import (
    BATCH,
    CIFAR_NORMALIZED,
    MNIST,
    MNIST_NORMALIZED,
    NAN,
)
from capsedge.importers.family import (
    DataSet,
    Family,
    Floats,
    ImportChoices,
    Sizes,
    Tensors,
    Variant,
)
from capsedge.importers.key_patterns import Patterns
from capsedge.models.configs import CapsNetConfig, ModelConfig

_NO_BIAS = "class capsules without bias"
_GROUPED = (
    "a primary capsule is consecutive elements of the convolution's output [C, H, W], across rows and "
    "channels, not the channels of one position"
)
_CHILDREN_SQUASHED = (
    "the primary capsules are squashed over all children, element by element of the pose"
)
_CHILDREN_COUPLED = (
    "the couplings of a class sum to one over the children, not those of a child over the classes"
)


def _port(
    stem: str,
    primary: str,
    weight: tuple[str, str],
    arranged: Callable[[Floats, CapsNetConfig], Floats],
    *,
    dims_apart: bool = True,
    decoder: Sequence[str] = capsnet_base.SEQUENTIAL,
    decoder_takes: str = "M",
    more: Patterns | None = None,
    optional: Sequence[Patterns] = (),
    rest: Callable[[Mapping[str, Floats], CapsNetConfig], Tensors] = lambda weights, config: {},
    configure: Callable[..., ModelConfig] = capsnet_base.configure,
    **about: Any,
) -> Family:
    """A family whose layers are the paper's.

    Args:
        primary: name of the primary convolution; with ``{D}`` or ``{T}`` in it, of one for each element or
            type.
        weight: name and axes of the routing weight.
        arranged: turns it into ``[I, J, O, D]``, positions first.
        more, optional: further tensors, which are always or sometimes present.
        rest: converts them to the package's tensors.
        about: the other fields of the family.
    """
    channels = "T" if "{D}" in primary else "D" if "{T}" in primary else "N"
    numbered = primary.replace("{D}", "{}").replace("{T}", "{}")

    def convert(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
        assert isinstance(config, CapsNetConfig)
        count = config.primary_dim if "{D}" in primary else config.primary_types
        return {
            **capsnet_base.layer(weights, stem, "stem.0"),
            **(
                capsnet_base.layer(weights, primary, "primary.conv")
                if numbered == primary
                else capsnet_base.joined(weights, numbered, count, dims_apart)
            ),
            "classes.weight": arranged(weights[weight[0]], config),
            **rest(weights, config),
            **capsnet_base.decoder_tensors(weights, decoder, config),
        }

    return Family(
        keys={
            f"{stem}.weight": "C A K K",
            f"{stem}.bias": "C",
            f"{primary}.weight": f"{channels} C P P",
            f"{primary}.bias": channels,
            weight[0]: weight[1],
            **(more or {}),
        },
        optional=(capsnet_base.decoder_keys(decoder, decoder_takes), *optional),
        configure=configure,
        convert=convert,
        **about,
    )


def _types_first(weight: Floats, config: CapsNetConfig) -> Floats:
    """The routing weight from ``[1, I, J, O, D]``."""
    return capsnet_base.positions_first(weight[0], config.primary_types)


def _parents_first(weight: Floats, _: CapsNetConfig) -> Floats:
    """The routing weight from ``[J, I, O, D]``."""
    return weight.swapaxes(0, 1)


def _elements_first(weight: Floats, config: CapsNetConfig) -> Floats:
    """The routing weight from ``[I, D, J * O]``, types first."""
    apart = weight.reshape(*weight.shape[:2], config.classes, config.capsule_dim)
    return capsnet_base.positions_first(apart.transpose(0, 2, 3, 1), config.primary_types)


# CapsNet-Pytorch of Xifeng Guo: a primary capsule is eight consecutive pixels.
XIFENGGUO = _port(
    "conv1",
    "primarycaps.conv2d",
    ("digitcaps.weight", "J I O D"),
    _parents_first,
    name="xifengguo",
    source="github.com/XifengGuo/CapsNet-Pytorch, capsulelayers.py",
    licence="MIT",
    dialect="dynamic routing; primary capsules of consecutive pixels",
    differences=(_GROUPED, _NO_BIAS),
    iterations_at="the option --routings of capsulenet.py (3 by default)",
    data_sets=(MNIST,),
    variants=(
        Variant(
            "pixels",
            "a primary capsule is consecutive pixels of one channel, as in the author's code",
            {"primary_grouping": "pixels"},
        ),
        Variant(
            "channels",
            "a primary capsule is channels of one position, as in forks that permute before the view",
            {"primary_grouping": "channels"},
        ),
    ),
    variant="pixels",
)

# capsule-network of Daniel Havir, and NIPS2017 of lidq92, which is the same.
DANIELHAVIR = _port(
    "conv1",
    "primary.conv",
    ("digits.W", "1 J I O D"),
    lambda weight, config: _parents_first(weight[0], config),
    name="danielhavir",
    source="github.com/danielhavir/capsule-network, capsules.py",
    licence="MIT",
    dialect=XIFENGGUO.dialect,
    differences=XIFENGGUO.differences,
    iterations_at="the option --num_routing of main.py (3 by default)",
    data_sets=(MNIST_NORMALIZED, CIFAR_NORMALIZED),
    variants=XIFENGGUO.variants,
    variant=XIFENGGUO.variant,
)


def _with_learned_priors(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The last axis of the routing weight is classes times elements."""
    elements = {"O": sizes["JO"] // sizes["J"]}
    return capsnet_base.configure(
        family, {**sizes, **elements}, choices, notes, learned_priors=True
    )


# CapsNet-pytorch of Adam Bielski: learned start logits, and one more weighted sum than iterations.
ADAMBIELSKI = _port(
    "conv1",
    "primaryCaps.conv",
    ("digitCaps.weights", "I D JO"),
    _elements_first,
    decoder=("reconstruction_net.fc1", "reconstruction_net.fc2", "reconstruction_net.fc3"),
    decoder_takes="JO",
    more={"digitCaps.routing_module.b": "I J"},
    rest=lambda weights, config: {
        "classes.log_prior": capsnet_base.positions_first(
            weights["digitCaps.routing_module.b"], config.primary_types
        )
    },
    configure=_with_learned_priors,
    name="adambielski",
    source="github.com/adambielski/CapsNet-pytorch, net.py",
    licence="BSD-3-Clause",
    dialect="dynamic routing with learned start logits; n iterations make n + 1 weighted sums",
    differences=(
        "the start logits are learned",
        "n iterations run after a first weighted sum: n + 1 in all",
        NAN,
        _NO_BIAS,
    ),
    renames=((r"capsnet\.(.*)", r"\1"),),
    iterations_at="the option --routing_iterations of net.py (3 by default), and in the file's name: "
    "..._model_dict_3routing_...",
    extra_iterations=1,
    data_sets=(MNIST,),
)

_PRIOR = "digit_capsules.route_logits"


def _with_priors_found(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    return capsnet_base.configure(
        family, sizes, choices, notes,
        softmax="children", softmax_scores=True, learned_priors="JP" in sizes,
    )  # fmt: skip


def _prior(weights: Mapping[str, Floats], config: CapsNetConfig) -> Tensors:
    if _PRIOR not in weights:
        return {}
    prior = weights[_PRIOR].reshape(config.classes, -1).swapaxes(0, 1)
    return {"classes.log_prior": capsnet_base.positions_first(prior, config.primary_types)}


# capsule-networks of Gram.AI: the softmax runs over the children.
GRAM_AI = _port(
    "conv1",
    "primary_capsules.capsules.{D}",
    ("digit_capsules.route_weights", "J I D O"),
    lambda weight, config: _types_first(weight.transpose(1, 0, 3, 2)[None], config),
    optional=({_PRIOR: "J JP I 1 1"},),
    rest=_prior,
    configure=_with_priors_found,
    name="gram-ai",
    source="github.com/gram-ai/capsule-networks, capsule_network.py",
    licence="",
    dialect="dynamic routing; softmax over the children, softmax of the lengths",
    differences=(_CHILDREN_COUPLED, "the scores are the softmax of the lengths", NAN, _NO_BIAS),
    iterations=3,
    iterations_at="NUM_ROUTING_ITERATIONS in capsule_network.py",
    data_sets=(MNIST,),
)

# CapsNet_guide_PyTorch of laubonghaudoi: the paper's routing, in two layouts of the weight.
_LAUBONGHAUDOI = partial(
    _port,
    "Conv1",
    "PrimaryCaps.capsules.{T}",
    dims_apart=False,
    decoder=("Decoder.fc1", "Decoder.fc2", "Decoder.fc3"),
    licence="Apache-2.0",
    iterations_at="the option -r of main.py",
    data_sets=(MNIST,),
)
LAUBONGHAUDOI = _LAUBONGHAUDOI(
    ("DigitCaps.W", "1 I J D O"),
    lambda weight, _: weight[0].swapaxes(2, 3),
    name="laubonghaudoi",
    source="github.com/laubonghaudoi/CapsNet_guide_PyTorch, DigitCaps.py",
    dialect="dynamic routing as in the paper",
    differences=(NAN, _NO_BIAS),
)
LAUBONGHAUDOI_2017 = _LAUBONGHAUDOI(
    ("DigitCaps.W", "I J O D"),
    lambda weight, _: weight,
    configure=partial(capsnet_base.configure, batch_average=True),
    name="laubonghaudoi-2017",
    source="github.com/laubonghaudoi/CapsNet_guide_PyTorch, DigitCaps.py before 2018",
    dialect="dynamic routing; agreements summed over the batch",
    differences=(BATCH.replace("averaged", "summed"), NAN, _NO_BIAS),
)

# capsule-net-pytorch of Cedric Chee: agreements averaged over the batch, a squash over the children.
CEDRICKCHEE = _port(
    "conv1.conv0",
    "primary.conv_units.{D}",
    ("digits.weight", "1 I J O D"),
    _types_first,
    decoder=("decoder.fc1", "decoder.fc2", "decoder.fc3"),
    configure=partial(capsnet_base.configure, primary_squash="children", batch_average=True),
    name="cedrickchee",
    source="github.com/cedrickchee/capsule-net-pytorch, capsule_layer.py",
    licence="MIT",
    dialect="dynamic routing; agreements averaged over the batch, primary squash over the children",
    differences=(_CHILDREN_SQUASHED, BATCH, NAN, _NO_BIAS),
    iterations_at="the option --num-routing of main.py (3 by default)",
    data_sets=(MNIST_NORMALIZED, CIFAR_NORMALIZED),
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

# Pytorch-CapsuleNet of Jindong Wang, and the notebook of higgsfield that it comes from.
JINDONGWANG = _port(
    "conv_layer.conv",
    "primary_capsules.capsules.{D}",
    ("digit_capsules.W", "1 I J O D"),
    lambda weight, _: weight[0],
    dims_apart=False,
    decoder=tuple(f"decoder.reconstraction_layers.{k}" for k in (0, 2, 4)),  # sic
    configure=partial(
        capsnet_base.configure,
        primary_grouping="pixels",
        softmax="children",
        class_squash="elements",
        batch_average=True,
    ),
    name="jindongwang",
    source="github.com/jindongwang/Pytorch-CapsuleNet, capsnet.py; also "
    "github.com/higgsfield/Capsule-Network-Tutorial",
    licence="MIT",
    dialect="dynamic routing; softmax over the children, elements squashed one by one",
    differences=(
        _GROUPED,
        _CHILDREN_COUPLED,
        "the class capsules' squash runs over an axis of one element: x|x| / (1 + x²)",
        BATCH,
        NAN,
        _NO_BIAS,
    ),
    iterations=3,
    iterations_at="num_iterations in DigitCaps.forward",
    data_sets=(MNIST_NORMALIZED, CIFAR_NORMALIZED),
)

# pytorch-capsule of Timo Mernick: softmax over the children, squash over the classes.
TIMOMERNICK = _port(
    "conv1.conv0",
    "primary.unit_{D}.conv0",
    ("digits.W", "1 I J O D"),
    _types_first,
    decoder=("reconstruct0", "reconstruct1", "reconstruct2"),
    configure=partial(
        capsnet_base.configure,
        primary_squash="children",
        softmax="children",
        class_squash="parents",
        batch_average=True,
    ),
    name="timomernick",
    source="github.com/timomernick/pytorch-capsule, capsule_layer.py; also sangjunpark97/CapsNet, and "
    "cedrickchee/capsule-net-pytorch in November 2017",
    licence="",
    dialect="dynamic routing; softmax over the children, squash over the classes",
    differences=(
        _CHILDREN_SQUASHED,
        _CHILDREN_COUPLED,
        "the class capsules are squashed over the classes, element by element of the pose",
        BATCH,
        NAN,
        _NO_BIAS,
    ),
    renames=((r"primary\.(?:unit_|conv_unit)(\d+)\.(weight|bias)", r"primary.unit_\1.conv0.\2"),),
    iterations=3,
    iterations_at="num_iterations in CapsuleLayer.routing",
    data_sets=(MNIST_NORMALIZED,),
)


def _full_precision(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    notes.append(
        "read as full-precision weights; the author's quantized networks have the same keys, but "
        "also round the activations between layers"
    )
    return capsnet_base.configure(family, sizes, choices, notes, class_bias=True)


def _routed_once(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The primary capsules are routed once there, from one parent's zero logits.

    Their convolution is divided by the number of types, its bias is not.
    """
    assert isinstance(config, CapsNetConfig)
    return {
        **capsnet_base.layer(weights, "conv.conv", "stem.0"),
        "primary.conv.weight": weights["primary.conv3d.weight"] / np.float32(config.primary_types),
        "primary.conv.bias": weights["primary.bias"].reshape(-1),
        "classes.weight": _elements_first(weights["digit.weight"], config),
        "classes.bias": weights["digit.bias"],
    }


# Q-CapsNets of Beatrice Bussolino: its ShallowCapsNet in full precision.
Q_CAPSNETS = Family(
    name="q-capsnets",
    source="github.com/bbussolino/Q-CapsNets, full_precision_models.py: ShallowCapsNet",
    licence="MIT",
    dialect="dynamic routing as in the paper; primary capsules routed once over their types",
    differences=(
        "the primary convolution is divided by the number of types, as routing once from zero logits does",
        "no epsilon in the squash, which is written without a quotient by the norm",
    ),
    keys={
        "conv.conv.weight": "C A K K",
        "conv.conv.bias": "C",
        "primary.conv3d.weight": "N C P P",
        "primary.bias": "T D 1 1",
        "digit.weight": "I D JO",
        "digit.bias": "J O",
    },
    configure=_full_precision,
    convert=_routed_once,
    iterations=3,
    iterations_at="iterations of Capsules in ShallowCapsNet",
    data_sets=(DataSet("MNIST and Fashion-MNIST", 1, 28, ()),),
)

_OPTIONAL = {"classes.log_prior": "I1 J", "classes.bias": "J1 O", "classes.vote_bias": "J2 O"}


def _as_found(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    return capsnet_base.configure(
        family, sizes, choices, notes,
        learned_priors="I1" in sizes, class_bias="J1" in sizes, vote_bias="J2" in sizes,
    )  # fmt: skip


# The paper's CapsNet under this package's names. A key map (--map) maps to these names; its fields state what
# differs from the paper.
TEXTBOOK = _port(
    "stem.0",
    "primary.conv",
    ("classes.weight", "I J O D"),
    lambda weight, _: weight,
    optional=tuple({name: axes} for name, axes in _OPTIONAL.items()),
    rest=lambda weights, _: {name: weights[name] for name in _OPTIONAL if name in weights},
    configure=_as_found,
    name="textbook",
    source="the paper; a key map (--map) names the tensors of any file",
    licence="",
    dialect="dynamic routing as in the paper, or as the key map's [model] says",
    differences=(),
    iterations_at="where the network is built, or the default of the routing layer",
)
