"""The models known by name. Exact parameter counts are tested in tests/models/test_counts.py."""

from __future__ import annotations

import difflib
from dataclasses import replace

from capsedge.errors import UsageError
from capsedge.models.configs import (
    AttentionCapsulesConfig,
    CapsNetConfig,
    CapsuleConv,
    CapsuleMap,
    Conv,
    MatrixCapsulesConfig,
    ModelConfig,
    ResNet,
    SegCapsConfig,
)
from capsedge.runtime.metadata.metadata import Preprocessing

DIGITS = tuple("0123456789")
CIFAR10 = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CIFAR100 = tuple(f"class {i}" for i in range(100))
SMALLNORB = ("animal", "human", "airplane", "truck", "car")

_MNIST = Preprocessing(height=28, width=28, channels=1)
_CIFAR = Preprocessing(
    height=32,
    width=32,
    channels=3,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
_SMALLNORB = Preprocessing(height=32, width=32, channels=2)
_DIVERSE = Preprocessing(height=36, width=36, channels=1)

_CAPSNET = CapsNetConfig(
    class_names=DIGITS,
    preprocessing=_MNIST,
    stem=(Conv(256, 9),),
    primary_types=32,
    primary_kernel=9,
    primary_stride=2,
    decoder=(512, 1024),
)
_DYNAMIC_SIMPLE = CapsNetConfig(
    class_names=CIFAR10,
    preprocessing=_CIFAR,
    stem=(Conv(256, 9),),
    primary_types=32,
    primary_kernel=9,
    primary_stride=2,
    class_bias=False,
)
_DYNAMIC_RESNET = replace(
    _DYNAMIC_SIMPLE, stem=ResNet(((64, 3, 1), (256, 4, 2))), primary_padding=4
)
_TWO_CAPSULE_LAYERS = (CapsuleConv(32, 3, 2), CapsuleConv(32, 3, 1))
_EM_SIMPLE = MatrixCapsulesConfig(
    class_names=CIFAR10,
    preprocessing=_CIFAR,
    stem=(Conv(256, 4, 2, 1, batch_norm=True),),
    primary_types=32,
    capsule_layers=_TWO_CAPSULE_LAYERS,
    iterations=2,
)
_EM_SMALLNORB = MatrixCapsulesConfig(
    class_names=SMALLNORB,
    preprocessing=_SMALLNORB,
    stem=(Conv(32, 5, 2),),
    primary_types=32,
    capsule_layers=_TWO_CAPSULE_LAYERS,
)
_ATTENTION_SIMPLE = AttentionCapsulesConfig(
    class_names=CIFAR10,
    preprocessing=_CIFAR,
    stem=(Conv(256, 3, 2, 1),),
    primary_types=32,
    capsule_layers=_TWO_CAPSULE_LAYERS,
)
_ATTENTION_SIMPLE_100 = replace(
    _ATTENTION_SIMPLE,
    class_names=CIFAR100,
    stem=(Conv(128, 3, 2, 1),),
    pose_dim=36,
    dense_layers=(20,),
)
_PHOTOS = replace(
    _ATTENTION_SIMPLE,
    stem=ResNet(((32, 2, 1), (64, 2, 2), (160, 2, 2))),
    primary_types=16,
    capsule_layers=(CapsuleConv(16, 3, 2), CapsuleConv(16, 3)),
)
_ATTENTION_DIVERSE = AttentionCapsulesConfig(
    class_names=DIGITS,
    preprocessing=_DIVERSE,
    stem=(Conv(1024, 3, 2, 1),),
    primary_types=16,
    primary_kernel=3,
    primary_stride=2,
    capsule_layers=(CapsuleConv(16, 3),),
    pose_dim=64,
    matrix_pose=False,
    task="multi-label",
)
_SEGCAPS = SegCapsConfig(
    class_names=("background", "foreground"),
    preprocessing=Preprocessing(height=512, width=512, channels=1),
)
_DIGITS_STEM = (
    Conv(32, 5, 2, 2, bias=False, batch_norm=True),
    Conv(64, 3, 1, 1, bias=False, batch_norm=True),
    Conv(64, 3, 2, bias=False, batch_norm=True),
)

MODELS: dict[str, ModelConfig] = {
    # Sabour et al. 2017.
    "capsnet-mnist": _CAPSNET,
    "capsnet-multimnist": replace(_CAPSNET, preprocessing=_DIVERSE, task="multi-label"),
    "capsnet-cifar10": replace(
        _CAPSNET,
        class_names=CIFAR10,
        preprocessing=replace(_CIFAR, height=24, width=24, resize="center"),
        stem=(Conv(256, 9, 1, "same"),),
        primary_types=64,
        primary_padding="same",
        leaky=True,
        decoder=(),
    ),
    "capsnet-smallnorb": replace(
        _CAPSNET, class_names=SMALLNORB, preprocessing=_SMALLNORB, decoder=()
    ),
    "capsnet-svhn": replace(
        _CAPSNET,
        preprocessing=replace(_MNIST, height=32, width=32, channels=3),
        stem=(Conv(64, 9),),
        primary_types=16,
        primary_dim=6,
        capsule_dim=8,
        decoder=(),
    ),
    # Tsai et al. 2020, tables 4 to 11.
    "dynamic-cifar10-simple": _DYNAMIC_SIMPLE,
    "dynamic-cifar100-simple": replace(_DYNAMIC_SIMPLE, class_names=CIFAR100),
    "dynamic-cifar10-resnet": _DYNAMIC_RESNET,
    "dynamic-cifar100-resnet": replace(_DYNAMIC_RESNET, class_names=CIFAR100),
    "em-cifar10-simple": _EM_SIMPLE,
    "em-cifar100-simple": replace(_EM_SIMPLE, class_names=CIFAR100),
    "em-cifar10-resnet": replace(_EM_SIMPLE, stem=ResNet()),
    "em-cifar100-resnet": replace(_EM_SIMPLE, stem=ResNet(), class_names=CIFAR100),
    "attention-cifar10-simple": _ATTENTION_SIMPLE,
    "attention-cifar100-simple": _ATTENTION_SIMPLE_100,
    "attention-cifar10-resnet": replace(_ATTENTION_SIMPLE, stem=ResNet()),
    "attention-cifar100-resnet": replace(_ATTENTION_SIMPLE_100, stem=ResNet()),
    "attention-diversemultimnist-vector": _ATTENTION_DIVERSE,
    "attention-diversemultimnist-matrix": replace(_ATTENTION_DIVERSE, matrix_pose=True),
    "dynamic-diversemultimnist": CapsNetConfig(
        class_names=DIGITS,
        preprocessing=_DIVERSE,
        stem=(Conv(1024, 3, 2, 1),),
        primary_types=16,
        primary_dim=64,
        primary_kernel=3,
        primary_stride=2,
        capsule_layers=(CapsuleConv(16, 3),),
        capsule_dim=64,
        class_bias=False,
        linear_classifier=True,
        task="multi-label",
    ),
    # Hinton et al. 2018: A=B=C=D=32, and A=64, B=8, C=D=16.
    "em-smallnorb": _EM_SMALLNORB,
    "em-smallnorb-small": replace(
        _EM_SMALLNORB,
        stem=(Conv(64, 5, 2),),
        primary_types=8,
        capsule_layers=(CapsuleConv(16, 3, 2), CapsuleConv(16, 3, 1)),
    ),
    # LaLonde and Bagci 2018, and a small sibling for digits in clutter.
    "segcaps": _SEGCAPS,
    "digits-clutter": replace(
        _SEGCAPS,
        preprocessing=replace(_MNIST, height=32, width=32),
        stem=(Conv(16, 3, padding="same", bias=False, batch_norm=True),) * 4,
        down=(
            *(CapsuleMap(1, 16, routed=False), CapsuleMap(1, 16, routed=False)),
            *(CapsuleMap(2, 12, routed=False), CapsuleMap(3, 12)),
        ),
        up=(CapsuleMap(1, 16, routed=False),) * 3,
        kernel=3,
        capsule_dim=8,
        iterations=2,
    ),
    # For 32x32 colour photographs, and small siblings for 28x28 digits. Their trained weights come with the
    # package.
    "photos": _PHOTOS,
    "digits-dynamic": replace(_CAPSNET, stem=(Conv(64, 9),), primary_types=8, decoder=(128, 256)),
    # capsnet-mnist after pruning, without its decoder.
    "digits-small": replace(_CAPSNET, stem=(Conv(56, 9),), primary_types=7, decoder=()),
    "digits-overlap": CapsNetConfig(
        class_names=DIGITS,
        preprocessing=_DIVERSE,
        stem=(
            Conv(32, 5, 2, 2, bias=False, batch_norm=True),
            Conv(64, 3, 1, 1, bias=False, batch_norm=True),
            Conv(128, 3, 2, bias=False, batch_norm=True),
            Conv(128, 3, 1, 1, bias=False, batch_norm=True),
        ),
        primary_types=16,
        primary_kernel=3,
        primary_stride=2,
        decoder=(128, 80),
        task="multi-label",
    ),
    "digits-em": MatrixCapsulesConfig(
        class_names=DIGITS,
        preprocessing=_MNIST,
        stem=(*_DIGITS_STEM, Conv(64, 3, bias=False, batch_norm=True)),
        primary_types=8,
        inverse_temperature=0.1,
        iterations=3,
    ),
    "digits-attention": AttentionCapsulesConfig(
        class_names=DIGITS,
        preprocessing=_MNIST,
        stem=_DIGITS_STEM,
        primary_types=8,
        capsule_layers=(CapsuleConv(16, 3, 2),),
        iterations=2,
    ),
}


def get_config(name: str) -> ModelConfig:
    """The configuration of a model known by name.

    Raises:
        UsageError: no model has this name; the message suggests the closest names.
    """
    if name in MODELS:
        return MODELS[name]
    close = difflib.get_close_matches(name, MODELS, n=3, cutoff=0.4)
    raise UsageError(
        f"Unknown model '{name}'.",
        f"Did you mean {' or '.join(close)}?" if close else "",
        f"Known models: {', '.join(MODELS)}.",
    )
