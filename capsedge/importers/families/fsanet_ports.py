"""Import FSA-Net from PyTorch: head pose as yaw, pitch and roll in degrees, by one network or several.

Several networks estimate the mean of their angles.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from capsedge.errors import UsageError
from capsedge.importers.family import (
    Family,
    Floats,
    ImportChoices,
    Sizes,
    Tensors,
    Variant,
    variant_of,
    weighted_sums_of,
)
from capsedge.importers.key_patterns import Patterns, Shapes, fit
from capsedge.models.configs import FSANetConfig, ModelConfig
from capsedge.runtime.metadata.metadata import Preprocessing

# --- PyTorch ---

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
    """The configuration. Raises UsageError if a choice is missing or does not fit the file."""
    fields = dict(variant_of(family, choices, notes))
    scoring = "convolution" if "F1" in sizes else "variance"
    own = _TORCH_IMAGES[choices.variant or family.variant]
    return FSANetConfig(
        preprocessing=square_preprocessing(sizes["P"], own, choices, notes),
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
        **named_values(sizes["V"], choices, notes, fields),
    ).replace(**choices.fields)


def named_values(
    count: int, choices: ImportChoices, notes: list[str], fields: Mapping[str, object]
) -> dict[str, Any]:
    """Names, units and ranges of the values."""
    if choices.task not in (None, "regression"):
        raise UsageError("FSA-Net is a regression.", f"It has no task '{choices.task}'.", "")
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


def square_preprocessing(
    places: int, own: Mapping[str, object], choices: ImportChoices, notes: list[str]
) -> Preprocessing:
    """FSA-Net's preprocessing of square images that leave these positions after three poolings."""
    side = 8 * math.isqrt(places)
    size = choices.size or (side, side)
    if (size[0] // 8) * (size[1] // 8) != places:
        raise UsageError(
            f"The network does not take images of {size[0]}x{size[1]} pixels.",
            f"It has {places} positions, an eighth of the height times an eighth of the width.",
            f"Leave out --size to use {side}x{side}.",
        )
    if not choices.pixels:
        notes.append("pixels as in the author's code (change with --range, --mean, --std)")
    values = {**own, **choices.pixels}
    try:
        return Preprocessing(*size, 3, **values)
    except ValueError as error:
        raise UsageError("The input cannot be described.", f"{error}.") from error


def _convert_torch(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors; in the file, the routing weight is ``[J, I, O, D]``."""
    assert isinstance(config, FSANetConfig)
    tensors: Tensors = {}

    def take(theirs: str, ours: str, parts: tuple[str, ...] = ("weight", "bias")) -> None:
        tensors.update({f"parts.0.{ours}.{p}": weights[f"{theirs}.{p}"] for p in parts})

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
    tensors["parts.0.weight"] = weights["caps_layer.affine_w"].swapaxes(0, 1)
    for k in range(3):
        for theirs, ours in (("shift_fc", "shift"), ("scale_fc", "scale"), ("pred_fc", "share")):
            take(f"esp_s{k + 1}.{theirs}", f"stages.{k}.{ours}")
    return tensors


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


# --- Ensembles: the mean of several networks' angles, as in the authors' demos ---

_T = TypeVar("_T")
_MOST = 16  # members
_MEMBER = re.compile(r"(\d+)/(.+)")
# A network without mapping lacks these.
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
    """The patterns of all members, each with its own letters."""
    patterns: dict[str, str] = {}
    groups = _groups(shapes)
    if not 2 <= len(groups) <= _MOST:
        return {"the tensors of several networks": ""}
    for k, own in groups.items():
        for key, pattern in _nearest(members, own).items():
            letters = (w if w.isdigit() else f"{w}.{k}" for w in pattern.split())
            patterns[f"{k}/{key}"] = " ".join(letters)
    return patterns


def _nearest(members: tuple[Family, ...], shapes: Shapes) -> Patterns:
    """The patterns of the kind of network that a member is or most resembles."""
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
    """The parts of each member."""
    members: dict[int, dict[str, _T]] = {}
    for name, value in named.items():
        if match := _MEMBER.fullmatch(name):
            members.setdefault(int(match[1]), {})[match[2]] = value
    return members


def _configure_ensemble(
    family: Family, sizes: Sizes, choices: ImportChoices, notes: list[str], member: Family
) -> ModelConfig:
    """The configuration."""
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
                    "The networks do not form an ensemble.",
                    f"They differ in {field.name}: {getattr(joined, field.name)} and "
                    f"{getattr(alike, field.name)}.",
                    "Import each of them separately.",
                )
    notes.append(f"the mean of {len(configs)} networks: {', '.join(scorings)}")
    return joined


def _convert_ensemble(
    weights: Mapping[str, Floats], config: ModelConfig, member: Family
) -> Tensors:
    """The package's tensors: those of each member, as a separate part."""
    assert isinstance(config, FSANetConfig)
    parts: Tensors = {}
    for k, own in sorted(_groups(weights).items()):
        alone = config.replace(scorings=(config.scorings[k],))
        tensors = member.convert(own, alone)
        parts |= {f"parts.{k}.{name.removeprefix('parts.0.')}": t for name, t in tensors.items()}
    return parts


def ensemble_family(name: str, *members: Family) -> Family:
    """The family of files that hold several networks of one family or of the given ones."""
    first = members[0]

    def bound(function: Callable[..., object]) -> Callable[..., object]:
        return lambda *arguments: function(*arguments, first)

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


PYTORCH_ENSEMBLE = ensemble_family("fsanet-ensemble", PYTORCH)
