"""FSA-Net: head pose as yaw, pitch and roll in degrees, from PyTorch, from Keras, and the mean of several."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from capsedge.errors import UsageError
from capsedge.importers.family import (
    Family,
    Floats,
    ImportChoices,
    Patterns,
    Shapes,
    Sizes,
    Tensors,
    Variant,
    fit,
    variant_of,
    weighted_sums_of,
)
from capsedge.models.configs import FSANetConfig, ModelConfig, PooledFSANetConfig
from capsedge.runtime.metadata import Preprocessing

# In PyTorch.

_TORCH_BLOCKS = ("conv0", "conv1_0", "conv1_1", "conv2_0", "conv2_1", "conv3_0", "conv3_1")
_TORCH_MAPS = ("conv1_out", "conv2_out", "conv3_out")
_TORCH_STREAMS = {"s0": "average", "s1": "largest"}
_TORCH_NORM = ("weight", "bias", "running_mean", "running_var")
_SCORE = "fgsm.attention_maps.reduce_channel.conv"
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_VIETLINHTSPT = "github.com/vietlinhtspt/fsanet_pytorch, training_and_testing/models/fsanet.py"
# As the training scripts prepare images.
_TORCH_IMAGES: dict[str, dict[str, object]] = {
    "omasaht": {"scale": 1.0, "mean": (127.5,), "std": (128.0,), "order": "BGR"},
    "vietlinhtspt": {"scale": 1 / 256, **_IMAGENET},
    "vietlinhtspt-2020": {"scale": 1 / 256, **_IMAGENET},
}


def _configure_torch(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration.

    Raises:
        UsageError: an answer is missing or does not fit the file.
    """
    fields = dict(variant_of(family, choices, notes))
    scoring = "convolution" if "F1" in sizes else "variance"
    own = _TORCH_IMAGES[choices.variant or family.variant]
    return FSANetConfig(
        preprocessing=_preprocessing(sizes["P"], own, choices, notes),
        primary_types=sizes["I"] // 3,
        iterations=weighted_sums_of(family, choices, notes),
        scorings=(scoring,),
        rows="channels",
        mixtures=sizes["Q"] // (3 * sizes["P"]),
        capsule_dim=sizes["O"],
        bins=sizes["B"] // sizes["V"],
        second_stream="relu",
        depthwise_bias=True,
        norm_epsilon=1e-5,
        epsilon=1e-16,
        **_named(sizes["V"], choices, notes, fields),
    ).replace(**choices.fields)


def _named(
    count: int, choices: ImportChoices, notes: list[str], fields: Mapping[str, object]
) -> dict[str, Any]:
    """Names, units and ranges of the values.

    Raises:
        UsageError: there are not three, and they are not named.
    """
    if choices.task not in (None, "regression"):
        raise UsageError("FSA-Net estimates values.", f"It has no task '{choices.task}'.", "")
    if count != 3:
        raise UsageError(
            f"The network estimates {count} values.",
            "FSA-Net has three: yaw, pitch and roll.",
            "Export its module with capsedge export --module.",
        )
    declared = choices.outputs.names if choices.outputs is not None else ()
    names = declared or ("yaw", "pitch", "roll")
    if len(names) != count:
        raise UsageError(f"The network has {count} values.", f"{len(names)} are named.", "")
    notes.append("values are yaw, pitch and roll in degrees, as in the author's code")
    return {"value_names": names, "units": ("degrees",) * count, **fields}


def _preprocessing(
    places: int, own: Mapping[str, object], choices: ImportChoices, notes: list[str]
) -> Preprocessing:
    """Square images that leave this many places after three poolings; prepared as the author does.

    Raises:
        UsageError: the size does not fit.
    """
    side = 8 * math.isqrt(places)
    size = choices.size or (side, side)
    if (size[0] // 8) * (size[1] // 8) != places:
        raise UsageError(
            f"The network does not take images of {size[0]}x{size[1]} pixels.",
            f"It has {places} places, an eighth of the height times an eighth of the width.",
            f"Leave out --size for {side}x{side}.",
        )
    if not choices.pixels:
        notes.append("pixels as in the author's code (otherwise: --range, --mean, --std)")
    values = {**own, **choices.pixels}
    try:
        return Preprocessing(*size, 3, **values)
    except ValueError as error:
        raise UsageError("The input cannot be described.", f"{error}.") from error


def _convert_torch(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors. The routing weight is ``[J, I, O, D]`` there."""
    assert isinstance(config, FSANetConfig)
    made: Tensors = {}

    def take(theirs: str, ours: str, parts: tuple[str, ...] = ("weight", "bias")) -> None:
        made.update({f"parts.0.{ours}.{p}": found[f"{theirs}.{p}"] for p in parts})

    for stream, name in _TORCH_STREAMS.items():
        for k, block in enumerate(_TORCH_BLOCKS):
            theirs, ours = f"msms.{stream}_{block}", f"{name}.blocks.{k}"
            take(f"{theirs}.conv.depthwise", f"{ours}.depthwise")
            take(f"{theirs}.conv.pointwise", f"{ours}.pointwise")
            take(f"{theirs}.bn", f"{ours}.norm", _TORCH_NORM)
        for k, block in enumerate(_TORCH_MAPS):
            take(f"msms.{stream}_{block}.conv", f"{name}.maps.{k}")
    if config.scorings == ("convolution",):
        take(_SCORE, "mapping.score")
    take("fgsm.fm", "mapping.right")
    take("fgsm.fc", "mapping.left")
    made["parts.0.weight"] = found["caps_layer.affine_w"].swapaxes(0, 1)
    for k in range(3):
        for theirs, ours in (("shift_fc", "shift"), ("scale_fc", "scale"), ("pred_fc", "share")):
            take(f"esp_s{k + 1}.{theirs}", f"stages.{k}.{ours}")
    return made


def _torch_keys() -> dict[str, str]:
    keys: dict[str, str] = {}
    for stream in _TORCH_STREAMS:
        inputs = (3, 16, 32, 32, 64, 64, 128, 128)
        for a, b, block in zip(inputs, inputs[1:], _TORCH_BLOCKS, strict=False):
            name = f"msms.{stream}_{block}"
            keys |= {
                f"{name}.conv.depthwise.weight": f"{a} 1 3 3",
                f"{name}.conv.depthwise.bias": f"{a}",
                f"{name}.conv.pointwise.weight": f"{b} {a} 1 1",
                f"{name}.conv.pointwise.bias": f"{b}",
                **{f"{name}.bn.{part}": f"{b}" for part in _TORCH_NORM},
            }
        for width, block in zip((32, 64, 128), _TORCH_MAPS, strict=True):
            keys[f"msms.{stream}_{block}.conv.weight"] = f"64 {width} 1 1"
            keys[f"msms.{stream}_{block}.conv.bias"] = "64"
    keys |= {
        "fgsm.fm.weight": "Q P", "fgsm.fm.bias": "Q", "fgsm.fc.weight": "L R", "fgsm.fc.bias": "L",
        "caps_layer.affine_w": "3 I O 64",
    }  # fmt: skip
    for k in range(1, 4):
        keys |= {
            f"esp_s{k}.shift_fc.weight": "V 4", f"esp_s{k}.shift_fc.bias": "V",
            f"esp_s{k}.scale_fc.weight": "V 4", f"esp_s{k}.scale_fc.bias": "V",
            f"esp_s{k}.pred_fc.weight": "B E", f"esp_s{k}.pred_fc.bias": "B",
        }  # fmt: skip
    return keys


PYTORCH = Family(
    name="fsanet",
    source="github.com/omasaht/headpose-fsanet-pytorch, src/model.py; also vietlinhtspt/fsanet_pytorch",
    licence="MIT",
    dialect="FSA-Net: dynamic routing of stages, soft stagewise regression of yaw, pitch and roll",
    differences=(
        "maps [C, H, W] are read as [H·W, C], so that capsules mix channels instead of positions",
        "the first block of the second stream has a ReLU",
        "depthwise convolutions have a bias",
    ),
    keys=_torch_keys(),
    optional=({f"{_SCORE}.weight": "1 F1 1 1", f"{_SCORE}.bias": "1"},),
    configure=_configure_torch,
    convert=_convert_torch,
    iterations=2,
    iterations_at="routings in FSANet of model.py",
    variants=(
        Variant(
            "omasaht",
            "values up to 99 degrees; blue, green, red, (x - 127.5) / 128",
            {},
        ),
        Variant(
            "vietlinhtspt",
            "vietlinhtspt since January 2021: yaw up to 180 degrees; x / 256, ImageNet mean and std",
            {"ranges": (180.0, 99.0, 99.0)},
            _VIETLINHTSPT,
        ),
        Variant(
            "vietlinhtspt-2020",
            "the same before: values up to 99 degrees; x / 256, ImageNet mean and std",
            {},
            _VIETLINHTSPT,
        ),
    ),
    variant_at="It is the repository whose training script was used.",
)


# Of its first author, in Keras.

_G, _S, _F = "ssr_G_model", "ssr_S_model", "ssr_F_Cap_model"
_RENAMES = (  # Keras 3
    (rf"{_S}/feat_S_model/(.*)", rf"{_S}/\1"),
    (r"ssr_Cap_model/caps/0", "ssr_Cap_model/caps/W"),
    # Networks without capsules, whose layers of a kind are counted too.
    (r"(ssr_Metric_model|ssr_Agg_model)/(?:mat_mul_layer|net_vlad)(?:_\d+)?/(\w+)", r"\1/\2"),
    (r"ssr_F_model/(.*)", rf"{_F}/\1"),
)
_METRIC, _VLAD = "ssr_Metric_model", "ssr_Agg_model"
_POSITIONS = 64  # of a network that does not tell
_KERAS_BLOCKS = 7
_KERAS_STREAMS = {
    "average": 0,
    "largest": _KERAS_BLOCKS,
}  # separable convolutions of the one, then of the other
_KERAS_MAPS = {
    "average": (5, 3, 1),
    "largest": (4, 2, 0),
}  # 1x1 convolutions, the last stage's first
_KERAS_NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}
_KERAS_IMAGES = {"scale": 1.0, "order": "BGR"}


def _configure_keras(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str]
) -> ModelConfig:
    """The configuration."""
    parts: dict[str, Any]
    if "P" in sizes:
        scoring = "convolution" if "F1" in sizes else "variance"
        parts = {"primary_types": sizes["I"] // 3, "mixtures": sizes["Q"] // (3 * sizes["P"])}
    else:
        scoring, parts = "none", {}
    outputs = sizes.get("P", sizes["I"] // 3)
    notes.append("the author's demo also stretches each face to 0..255 (--per-image of export)")
    config = FSANetConfig(
        preprocessing=_preprocessing(outputs, _KERAS_IMAGES, choices, notes),
        iterations=weighted_sums_of(family, choices, notes),
        scorings=(scoring,),
        capsule_dim=sizes["O"],
        bins=sizes["B"] // sizes["V"],
        **parts,
        **_named(sizes["V"], choices, notes, {}),
    )
    return config.replace(**choices.fields)


def _convert_keras(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors.

    Shift is made of a capsule's elements 4 to 7 there, and scale of the first four; routing does not know
    their order, so they change places in its weight.
    """
    assert isinstance(config, FSANetConfig)
    made: Tensors = {}

    def convolution(theirs: str, ours: str, kernel: str = "kernel", bias: bool = True) -> None:
        axes = (2, 3, 0, 1) if kernel == "depthwise_kernel" else (3, 2, 0, 1)
        made[f"{ours}.weight"] = found[f"{theirs}/{kernel}"].transpose(axes)
        if bias:
            made[f"{ours}.bias"] = found[f"{theirs}/bias"]

    def dense(theirs: str, ours: str) -> None:
        made[f"{ours}.weight"] = found[f"{theirs}/kernel"].T
        made[f"{ours}.bias"] = found[f"{theirs}/bias"]

    for stream, first in _KERAS_STREAMS.items():
        for k in range(_KERAS_BLOCKS):
            block, ours = f"{_G}/separable_conv2d_{first + k}", f"{stream}.blocks.{k}"
            convolution(block, f"{ours}.depthwise", "depthwise_kernel", bias=False)
            convolution(block, f"{ours}.pointwise", "pointwise_kernel")
            for part, theirs in _KERAS_NORM.items():
                norm = f"{_G}/batch_normalization_{first + k}/{theirs}"
                made[f"{ours}.norm.{part}"] = found[norm]
        for k, at in enumerate(_KERAS_MAPS[stream]):
            convolution(f"{_G}/conv2d_{at}", f"{stream}.maps.{k}")
    if config.scorings == ("convolution",):
        convolution(f"{_S}/conv2d_0", "mapping.score")
    if config.scorings != ("none",):
        dense(f"{_S}/dense_0", "mapping.right")
        dense(f"{_S}/dense_1", "mapping.left")
    made |= _stages(found, config)
    for k in range(3):
        dense(f"{_F}/local_delta_stage{k + 1}", f"stages.{k}.shift")
        dense(f"{_F}/delta_s{k + 1}", f"stages.{k}.scale")
        dense(f"{_F}/dense_{k}", f"stages.{k}.share")
    return {f"parts.0.{name}": value for name, value in made.items()}


def _stages(weights: Mapping[str, Floats], config: FSANetConfig) -> Tensors:
    """What makes the stages' features."""
    order = [4, 5, 6, 7, 0, 1, 2, 3, *range(8, config.capsule_dim)]
    if not isinstance(config, PooledFSANetConfig):
        return {"weight": weights["ssr_Cap_model/caps/W"].swapaxes(0, 1)[:, :, order]}
    if config.pooling == "metric":
        elements, shares = (weights[f"{_METRIC}/kernel_type{k}"] for k in (1, 2))
        return {"pooling.elements": elements.T[order], "pooling.shares": shares}
    linear = weights[f"{_VLAD}/kernel_H1"].T
    return {
        "pooling.assignment.weight": weights[f"{_VLAD}/kernel_W1"].T,
        "pooling.assignment.bias": weights[f"{_VLAD}/kernel_B1"],
        "pooling.centers": weights[f"{_VLAD}/kernel_W2"][0],
        "pooling.map": linear.reshape(3, -1, linear.shape[1])[:, order].reshape(linear.shape),
    }


def _keras_keys() -> dict[str, str]:
    widths = (3, 16, 32, 32, 64, 64, 128, 128)
    keys: dict[str, str] = {}
    for k in range(2 * _KERAS_BLOCKS):
        a, b = widths[k % _KERAS_BLOCKS], widths[k % _KERAS_BLOCKS + 1]
        block = f"{_G}/separable_conv2d_{k}"
        keys |= {
            f"{block}/depthwise_kernel": f"3 3 {a} 1",
            f"{block}/pointwise_kernel": f"1 1 {a} {b}",
            f"{block}/bias": f"{b}",
            **{f"{_G}/batch_normalization_{k}/{part}": f"{b}" for part in _KERAS_NORM.values()},
        }
    for k, width in enumerate((128, 128, 64, 64, 32, 32)):
        keys |= {f"{_G}/conv2d_{k}/kernel": f"1 1 {width} 64", f"{_G}/conv2d_{k}/bias": "64"}
    for k in range(3):
        for name in (f"delta_s{k + 1}", f"local_delta_stage{k + 1}"):
            keys |= {f"{_F}/{name}/kernel": "4 V", f"{_F}/{name}/bias": "V"}
        keys |= {f"{_F}/dense_{k}/kernel": "E B", f"{_F}/dense_{k}/bias": "B"}
    return keys


_MAPPING = {
    f"{_S}/dense_0/kernel": "P Q",
    f"{_S}/dense_0/bias": "Q",
    f"{_S}/dense_1/kernel": "R L",
    f"{_S}/dense_1/bias": "L",
}

_CAPSULES = {"ssr_Cap_model/caps/W": "3 I O 64"}
_CONVOLUTION = {f"{_S}/conv2d_0/kernel": "1 1 64 F1", f"{_S}/conv2d_0/bias": "F1"}

KERAS = Family(
    name="fsanet-keras",
    source="github.com/shamangary/FSA-Net, lib/FSANET_model.py",
    licence="Apache-2.0",
    dialect="FSA-Net as in the paper: dynamic routing of stages, regression of yaw, pitch and roll",
    differences=(
        "epsilon 1e-7 under the root of the squash",
        "images are blue, green, red from 0 to 255",
    ),
    keys={**_keras_keys(), **_MAPPING, **_CAPSULES},
    optional=(_CONVOLUTION,),
    renames=_RENAMES,
    counted=rf"(?P<name>({_G}|{_S}|{_F})/(separable_conv2d|batch_normalization|conv2d|dense))"
    r"(_(?P<number>\d+))?(?=/)",
    configure=_configure_keras,
    convert=_convert_keras,
    iterations=2,
    iterations_at="the third number of the file's name",
)
KERAS_WITHOUT_MAPPING = dataclasses.replace(
    KERAS,
    name="fsanet-keras-no-mapping",
    dialect="FSA-Net without fine-grained mapping: every place of its maps is a capsule",
    keys={**_keras_keys(), **_CAPSULES},
    optional=(),
)


def _configure_pooled(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str], *, pooling: str
) -> ModelConfig:
    """The configuration of a network without capsules."""
    parts: dict[str, Any] = {"scorings": ("none",)}
    if "P" in sizes:
        mixtures = sizes["Q"] // (3 * sizes["P"])
        parts = {
            "scorings": ("convolution" if "F1" in sizes else "variance",),
            "mixtures": mixtures,
            "primary_types": sizes["L"] // mixtures,
        }
    elsewhere = sizes["I"] // 3 if "I" in sizes else _POSITIONS
    config = PooledFSANetConfig(
        preprocessing=_preprocessing(sizes.get("P", elsewhere), _KERAS_IMAGES, choices, notes),
        capsule_dim=sizes["E"] + 8,
        bins=sizes["B"] // sizes["V"],
        pooling=pooling,
        **parts,
        **_named(sizes["V"], choices, notes, {}),
    )
    return config.replace(**choices.fields)


def _pooled(pooling: str, dialect: str, keys: Mapping[str, str]) -> Family:
    return dataclasses.replace(
        KERAS,
        name=f"fsanet-keras-{pooling}",
        dialect=dialect,
        differences=(
            "no capsules: the authors' comparison",
            "images are blue, green, red, 0 to 255",
        ),
        keys={**_keras_keys(), **keys},
        optional=(_MAPPING, _CONVOLUTION),
        configure=partial(_configure_pooled, pooling=pooling),
        iterations=1,
        iterations_at="nothing is routed",
    )


KERAS_METRIC = _pooled(
    "metric",
    "FSA-Net without capsules: two linear maps make the features of its stages",
    {f"{_METRIC}/kernel_type1": "64 O", f"{_METRIC}/kernel_type2": "I 3"},
)
KERAS_NETVLAD = _pooled(
    "netvlad",
    "FSA-Net without capsules: NetVLAD makes the features of its stages",
    {
        f"{_VLAD}/kernel_W1": "64 3", f"{_VLAD}/kernel_B1": "3", f"{_VLAD}/kernel_W2": "1 64 3",
        f"{_VLAD}/kernel_H1": "192 SO",
    },
)  # fmt: skip


# Ensembles: the mean of the angles that several networks estimate, as the authors' demos show.

_T = TypeVar("_T")
_MOST = 16  # members
_MEMBER = re.compile(r"(\d+)/(.+)")
# What a network without mapping does not have.
_OF_MAPPING = ("primary_types", "mixtures")


def _names(member: Family, keys: Iterable[str]) -> Mapping[str, str]:
    """``2/conv.weight`` for the tensor ``conv.weight`` of the third member, whatever stands before it."""
    groups: dict[str, dict[str, str]] = {}
    for key in keys:
        first, mark, rest = re.fullmatch(r"([^./]*)([./]?)(.*)", key).groups()  # type: ignore[union-attr]
        groups.setdefault(first if mark else "", {})[rest if mark else first] = key
    named: dict[str, str] = {}
    for k, group in enumerate(groups.values()):
        named |= {group[rest]: f"{k}/{name}" for rest, name in member.names(group).items()}
    return named


def _patterns(members: tuple[Family, ...], shapes: Shapes) -> Patterns:
    """The patterns of every member, which has letters of its own."""
    found: dict[str, str] = {}
    groups = _groups(shapes)
    if not 2 <= len(groups) <= _MOST:
        return {"the tensors of several networks": ""}
    for k, own in groups.items():
        for key, pattern in _nearest(members, own).items():
            letters = (w if w.isdigit() else f"{w}.{k}" for w in pattern.split())
            found[f"{k}/{key}"] = " ".join(letters)
    return found


def _nearest(members: tuple[Family, ...], shapes: Shapes) -> Patterns:
    """Patterns of the kind of network that a member is, or is nearest to."""
    kinds = []
    for member in members:
        assert not callable(member.keys)
        there = {
            k: p for group in member.optional if group.keys() & shapes for k, p in group.items()
        }
        kinds.append({**member.keys, **there})
    fits = [fit(shapes, kind) for kind in kinds]
    wrong = [len(f.missing) + len(f.wrong) + len(f.unknown) for f in fits]
    return kinds[wrong.index(min(wrong))]


def _groups(named: Mapping[str, _T]) -> dict[int, dict[str, _T]]:
    """What belongs to each member."""
    found: dict[int, dict[str, _T]] = {}
    for name, value in named.items():
        if match := _MEMBER.fullmatch(name):
            found.setdefault(int(match[1]), {})[match[2]] = value
    return found


def _configure_ensemble(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str], member: Family
) -> ModelConfig:
    """The configuration.

    Raises:
        UsageError: an answer is missing, or the networks differ in more than their scoring.
    """
    own: dict[int, dict[str, int]] = {}
    for word, size in sizes.items():
        letter, _, k = word.rpartition(".")
        own.setdefault(int(k), {})[letter] = size
    configs = [
        member.configure(family, own[k], choices, notes if k == 0 else []) for k in sorted(own)
    ]
    assert all(isinstance(c, FSANetConfig) for c in configs)
    mapped = [c for c in configs if c.scorings != ("none",)]  # type: ignore[attr-defined]
    first = (mapped or configs)[0]
    scorings = tuple(s for c in configs for s in c.scorings)  # type: ignore[attr-defined]
    joined = first.replace(scorings=scorings)
    for config in configs:
        free = _OF_MAPPING if config not in mapped else ()
        alike = config.replace(scorings=scorings, **{n: getattr(first, n) for n in free})
        for field in dataclasses.fields(joined):
            if getattr(alike, field.name) != getattr(joined, field.name):
                raise UsageError(
                    "The networks do not make an ensemble.",
                    f"They differ in {field.name}: {getattr(joined, field.name)} and "
                    f"{getattr(alike, field.name)}.",
                    "Import each of them alone.",
                )
    notes.append(f"the mean of {len(configs)} networks: {', '.join(scorings)}")
    return joined


def _convert_ensemble(found: Mapping[str, Floats], config: ModelConfig, member: Family) -> Tensors:
    """The package's tensors: those of each member, as a part of its own."""
    assert isinstance(config, FSANetConfig)
    made: Tensors = {}
    for k, own in sorted(_groups(found).items()):
        alone = config.replace(scorings=(config.scorings[k],))
        tensors = member.convert(own, alone)
        made |= {f"parts.{k}.{name.removeprefix('parts.0.')}": t for name, t in tensors.items()}
    return made


def _ensemble(name: str, *members: Family) -> Family:
    first = members[0]

    def bound(function: Callable[..., object]) -> Callable[..., object]:
        return lambda *given: function(*given, first)

    return dataclasses.replace(
        first,
        name=name,
        dialect=f"the mean of several networks of the family {' or '.join(m.name for m in members)}",
        keys=lambda shapes: _patterns(members, shapes),
        optional=(),
        renames=lambda keys: _names(first, keys),
        counted="",
        configure=bound(_configure_ensemble),  # type: ignore[arg-type]
        convert=bound(_convert_ensemble),  # type: ignore[arg-type]
    )


PYTORCH_ENSEMBLE = _ensemble("fsanet-ensemble", PYTORCH)
KERAS_ENSEMBLE = _ensemble("fsanet-keras-ensemble", KERAS, KERAS_WITHOUT_MAPPING)
