"""Import FSA-Net in its first author's Keras code: with or without capsules, one network or several."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any

from capsedge.importers.families.fsanet_ports import (
    ensemble_family,
    named_values,
    square_preprocessing,
)
from capsedge.importers.family import (
    Family,
    Floats,
    ImportChoices,
    Sizes,
    Tensors,
    weighted_sums_of,
)
from capsedge.models.configs import FSANetConfig, ModelConfig, PooledFSANetConfig

_G, _S, _F = "ssr_G_model", "ssr_S_model", "ssr_F_Cap_model"
_RENAMES = (  # Keras 3
    (rf"{_S}/feat_S_model/(.*)", rf"{_S}/\1"),
    (r"ssr_Cap_model/caps/0", "ssr_Cap_model/caps/W"),
    # Networks without capsules, whose layers of a kind are counted too.
    (r"(ssr_Metric_model|ssr_Agg_model)/(?:mat_mul_layer|net_vlad)(?:_\d+)?/(\w+)", r"\1/\2"),
    (r"ssr_F_model/(.*)", rf"{_F}/\1"),
)
_METRIC, _VLAD = "ssr_Metric_model", "ssr_Agg_model"
_POSITIONS = 64  # for a network that does not state the number
_BLOCKS = 7
_STREAMS = {
    "average": 0,
    "largest": _BLOCKS,
}  # separable convolutions of the one, then of the other
_MAPS = {"average": (5, 3, 1), "largest": (4, 2, 0)}  # 1x1 convolutions, the last stage's first
_NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}
_IMAGES = {"scale": 1.0, "order": "BGR"}


def _configure(
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
    notes.append(
        "the author's demo also stretches each face to 0..255 (--describe per_image=min-max of export)"
    )
    config = FSANetConfig(
        preprocessing=square_preprocessing(outputs, _IMAGES, choices, notes),
        iterations=weighted_sums_of(family, choices, notes),
        scorings=(scoring,),
        capsule_dim=sizes["O"],
        bins=sizes["B"] // sizes["V"],
        **parts,
        **named_values(sizes["V"], choices, notes, {}),
    )
    return config.replace(**choices.fields)


def _convert(weights: Mapping[str, Floats], config: ModelConfig) -> Tensors:
    """The package's tensors.

    In the file, a capsule's elements 4 to 7 give the shift and the first four the scale. Routing does not
    depend on their order, so they are swapped in its weight.
    """
    assert isinstance(config, FSANetConfig)
    tensors: Tensors = {}

    def convolution(theirs: str, ours: str, kernel: str = "kernel", bias: bool = True) -> None:
        axes = (2, 3, 0, 1) if kernel == "depthwise_kernel" else (3, 2, 0, 1)
        tensors[f"{ours}.weight"] = weights[f"{theirs}/{kernel}"].transpose(axes)
        if bias:
            tensors[f"{ours}.bias"] = weights[f"{theirs}/bias"]

    def dense(theirs: str, ours: str) -> None:
        tensors[f"{ours}.weight"] = weights[f"{theirs}/kernel"].T
        tensors[f"{ours}.bias"] = weights[f"{theirs}/bias"]

    for stream, first in _STREAMS.items():
        for k in range(_BLOCKS):
            block, ours = f"{_G}/separable_conv2d_{first + k}", f"{stream}.blocks.{k}"
            convolution(block, f"{ours}.depthwise", "depthwise_kernel", bias=False)
            convolution(block, f"{ours}.pointwise", "pointwise_kernel")
            for part, theirs in _NORM.items():
                norm = f"{_G}/batch_normalization_{first + k}/{theirs}"
                tensors[f"{ours}.norm.{part}"] = weights[norm]
        for k, at in enumerate(_MAPS[stream]):
            convolution(f"{_G}/conv2d_{at}", f"{stream}.maps.{k}")
    if config.scorings == ("convolution",):
        convolution(f"{_S}/conv2d_0", "mapping.score")
    if config.scorings != ("none",):
        dense(f"{_S}/dense_0", "mapping.right")
        dense(f"{_S}/dense_1", "mapping.left")
    tensors |= _stages(weights, config)
    for k in range(3):
        dense(f"{_F}/local_delta_stage{k + 1}", f"stages.{k}.shift")
        dense(f"{_F}/delta_s{k + 1}", f"stages.{k}.scale")
        dense(f"{_F}/dense_{k}", f"stages.{k}.share")
    return {f"parts.0.{name}": value for name, value in tensors.items()}


def _stages(weights: Mapping[str, Floats], config: FSANetConfig) -> Tensors:
    """The computation of the stages' features."""
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


def _keys() -> dict[str, str]:
    widths = (3, 16, 32, 32, 64, 64, 128, 128)
    keys: dict[str, str] = {}
    for k in range(2 * _BLOCKS):
        a, b = widths[k % _BLOCKS], widths[k % _BLOCKS + 1]
        block = f"{_G}/separable_conv2d_{k}"
        keys |= {
            f"{block}/depthwise_kernel": f"3 3 {a} 1",
            f"{block}/pointwise_kernel": f"1 1 {a} {b}",
            f"{block}/bias": f"{b}",
            **{f"{_G}/batch_normalization_{k}/{part}": f"{b}" for part in _NORM.values()},
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
    keys={**_keys(), **_MAPPING, **_CAPSULES},
    optional=(_CONVOLUTION,),
    renames=_RENAMES,
    counted=rf"(?P<name>({_G}|{_S}|{_F})/(separable_conv2d|batch_normalization|conv2d|dense))"
    r"(_(?P<number>\d+))?(?=/)",
    configure=_configure,
    convert=_convert,
    iterations=2,
    iterations_at="the third number of the file's name",
)

KERAS_WITHOUT_MAPPING = dataclasses.replace(
    KERAS,
    name="fsanet-keras-no-mapping",
    dialect="FSA-Net without fine-grained mapping: every position of its maps is a capsule",
    keys={**_keys(), **_CAPSULES},
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
        preprocessing=square_preprocessing(sizes.get("P", elsewhere), _IMAGES, choices, notes),
        capsule_dim=sizes["E"] + 8,
        bins=sizes["B"] // sizes["V"],
        pooling=pooling,
        **parts,
        **named_values(sizes["V"], choices, notes, {}),
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
        keys={**_keys(), **keys},
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

KERAS_ENSEMBLE = ensemble_family("fsanet-keras-ensemble", KERAS, KERAS_WITHOUT_MAPPING)
