"""FSA-Net in PyTorch: head pose as yaw, pitch and roll in degrees."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from capsedge.errors import UsageError
from capsedge.families.family import Answers, Family, Sizes, Tensors, Variant, variant_of
from capsedge.families.family import sums_of as sums
from capsedge.formats.stored import Floats
from capsedge.models.config import FSANetConfig, ModelConfig
from capsedge.runtime.metadata import Preprocessing

_BLOCKS = ("conv0", "conv1_0", "conv1_1", "conv2_0", "conv2_1", "conv3_0", "conv3_1")
_MAPS = ("conv1_out", "conv2_out", "conv3_out")
_STREAMS = {"s0": "average", "s1": "largest"}
_NORM = ("weight", "bias", "running_mean", "running_var")
_SCORE = "fgsm.attention_maps.reduce_channel.conv"
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_VIETLINHTSPT = "github.com/vietlinhtspt/fsanet_pytorch, training_and_testing/models/fsanet.py"
# As the training scripts prepare images.
_IMAGES: dict[str, dict[str, object]] = {
    "omasaht": {"scale": 1.0, "mean": (127.5,), "std": (128.0,), "order": "BGR"},
    "vietlinhtspt": {"scale": 1 / 256, **IMAGENET},
    "vietlinhtspt-2020": {"scale": 1 / 256, **IMAGENET},
}


def configure(family: Family, sizes: Sizes, answers: Answers, notes: list[str]) -> ModelConfig:
    """The configuration.

    Raises:
        UsageError: an answer is missing or does not fit the file.
    """
    fields = dict(variant_of(family, answers, notes))
    scoring = "convolution" if "F1" in sizes else "variance"
    own = _IMAGES[answers.variant or family.variant]
    return FSANetConfig(
        preprocessing=preprocessing(sizes["P"], own, answers, notes),
        primary_types=sizes["I"] // 3,
        iterations=sums(family, answers, notes),
        scorings=(scoring,),
        rows="channels",
        mixtures=sizes["Q"] // (3 * sizes["P"]),
        capsule_dim=sizes["O"],
        bins=sizes["B"] // sizes["V"],
        second_stream="relu",
        depthwise_bias=True,
        norm_epsilon=1e-5,
        epsilon=1e-16,
        **named(sizes["V"], answers, notes, fields),
    ).replace(**answers.fields)


def named(
    count: int, answers: Answers, notes: list[str], fields: Mapping[str, object]
) -> dict[str, Any]:
    """Names, units and ranges of the values.

    Raises:
        UsageError: there are not three, and they are not named.
    """
    if answers.task not in (None, "regression"):
        raise UsageError("FSA-Net estimates values.", f"It has no task '{answers.task}'.", "")
    if count != 3:
        raise UsageError(
            f"The network estimates {count} values.",
            "FSA-Net has three: yaw, pitch and roll.",
            "Export its module with capsedge export --module.",
        )
    stated = answers.outputs.names if answers.outputs is not None else ()
    names = stated or ("yaw", "pitch", "roll")
    if len(names) != count:
        raise UsageError(f"The network has {count} values.", f"{len(names)} are named.", "")
    notes.append("values are yaw, pitch and roll in degrees, as in the author's code")
    return {"value_names": names, "units": ("degrees",) * count, **fields}


def preprocessing(
    places: int, own: Mapping[str, object], answers: Answers, notes: list[str]
) -> Preprocessing:
    """Square images that leave this many places after three poolings; prepared as the author does.

    Raises:
        UsageError: the size does not fit.
    """
    side = 8 * math.isqrt(places)
    size = answers.size or (side, side)
    if (size[0] // 8) * (size[1] // 8) != places:
        raise UsageError(
            f"The network does not take images of {size[0]}x{size[1]} pixels.",
            f"It has {places} places, an eighth of the height times an eighth of the width.",
            f"Leave out --size for {side}x{side}.",
        )
    if not answers.pixels:
        notes.append("pixels as in the author's code (otherwise: --range, --mean, --std)")
    values = {**own, **answers.pixels}
    try:
        return Preprocessing(*size, 3, **values)
    except ValueError as error:
        raise UsageError("The input cannot be described.", f"{error}.") from error


def convert(found: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors. The routing weight is ``[J, I, O, D]`` there."""
    assert isinstance(config, FSANetConfig)
    made: Tensors = {}

    def take(theirs: str, ours: str, parts: tuple[str, ...] = ("weight", "bias")) -> None:
        made.update({f"parts.0.{ours}.{p}": found[f"{theirs}.{p}"] for p in parts})

    for stream, name in _STREAMS.items():
        for k, block in enumerate(_BLOCKS):
            theirs, ours = f"msms.{stream}_{block}", f"{name}.blocks.{k}"
            take(f"{theirs}.conv.depthwise", f"{ours}.depthwise")
            take(f"{theirs}.conv.pointwise", f"{ours}.pointwise")
            take(f"{theirs}.bn", f"{ours}.norm", _NORM)
        for k, block in enumerate(_MAPS):
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


def _keys() -> dict[str, str]:
    keys: dict[str, str] = {}
    for stream in _STREAMS:
        inputs = (3, 16, 32, 32, 64, 64, 128, 128)
        for a, b, block in zip(inputs, inputs[1:], _BLOCKS, strict=False):
            name = f"msms.{stream}_{block}"
            keys |= {
                f"{name}.conv.depthwise.weight": f"{a} 1 3 3",
                f"{name}.conv.depthwise.bias": f"{a}",
                f"{name}.conv.pointwise.weight": f"{b} {a} 1 1",
                f"{name}.conv.pointwise.bias": f"{b}",
                **{f"{name}.bn.{part}": f"{b}" for part in _NORM},
            }
        for width, block in zip((32, 64, 128), _MAPS, strict=True):
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


FAMILY = Family(
    name="fsanet",
    source="github.com/omasaht/headpose-fsanet-pytorch, src/model.py; also vietlinhtspt/fsanet_pytorch",
    licence="MIT",
    dialect="FSA-Net: dynamic routing of stages, soft stagewise regression of yaw, pitch and roll",
    differences=(
        "maps [C, H, W] are read as [H·W, C], so that capsules mix channels instead of positions",
        "the first block of the second stream has a ReLU",
        "depthwise convolutions have a bias",
    ),
    keys=_keys(),
    optional=({f"{_SCORE}.weight": "1 F1 1 1", f"{_SCORE}.bias": "1"},),
    configure=configure,
    convert=convert,
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
