"""Exact trainable parameter counts; the published figures they round to stand beside them."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from capsedge.models import MODELS, build
from capsedge.models.configs import CapsNetConfig

EXACT = {
    "capsnet-mnist": 8_215_728,  # 8.2M with decoder
    "capsnet-multimnist": 11_361_968,  # 11.36M
    "capsnet-cifar10": 22_476_448,
    "capsnet-smallnorb": 6_661_200,  # not published
    "capsnet-svhn": 1_004_976,  # not published
    "dynamic-cifar10-simple": 7_992_576,  # 7.99M
    "dynamic-cifar100-simple": 31_585_536,  # 31.59M
    "dynamic-cifar10-resnet": 12_451_136,  # 12.45M
    "dynamic-cifar100-resnet": 36_044_096,  # 36.04M
    "em-cifar10-simple": 453_044,  # 0.45M
    "em-cifar100-simple": 499_304,  # 0.50M
    "em-cifar10-resnet": 1_710_580,  # 1.71M
    "em-cifar100-resnet": 1_756_840,  # 1.76M
    "em-smallnorb": 317_194,  # 310K, which no reading reproduces
    "em-smallnorb-small": 68_754,  # 68K
    "attention-cifar10-simple": 561_297,  # 0.56M
    "attention-cifar100-simple": 1_462_989,  # 1.46M
    "photos": 1_082_353,
    "attention-cifar10-resnet": 1_828_817,  # 1.83M
    "attention-cifar100-resnet": 2_799_629,  # 2.80M
    "attention-diversemultimnist-vector": 42_478_017,  # 42.48M
    "attention-diversemultimnist-matrix": 9_963_969,  # 9.96M
    "dynamic-diversemultimnist": 42_478_657,  # 42.48M
    "segcaps": 1_416_112,  # 1.4M: SegCaps (R3)
}


def parameters(name: str, **changes: object) -> int:
    """Trainable parameters, counted without allocating them."""
    with torch.device("meta"):
        return sum(p.numel() for p in build(name, **changes).parameters() if p.requires_grad)


@pytest.mark.parametrize("name", EXACT)
def test_exact_count(name: str) -> None:
    assert parameters(name) == EXACT[name]


@pytest.mark.parametrize(
    ("name", "changes", "count"),
    [
        ("capsnet-mnist", {"decoder": ()}, 6_804_384),  # 6.8M encoder
        ("capsnet-mnist", {"decoder": (), "class_bias": False}, 6_804_224),
        ("capsnet-mnist", {"class_bias": False}, 8_215_568),
        ("capsnet-multimnist", {"class_bias": False}, 11_361_808),
    ],
)
def test_other_readings(name: str, changes: dict[str, object], count: int) -> None:
    assert parameters(name, **changes) == count


def test_every_published_model_has_a_count() -> None:
    assert {n for n in MODELS if not n.startswith("digits-")} == set(EXACT)


@pytest.mark.parametrize("name", [n for n in MODELS if n.startswith("digits-")])
def test_small_siblings_are_small(name: str) -> None:
    assert parameters(name) < 1_500_000


def test_learned_priors_are_parameters() -> None:
    assert parameters("digits-dynamic", learned_priors=True) - parameters("digits-dynamic") == 2880
    assert "learned_priors" in {f.name for f in dataclasses.fields(CapsNetConfig)}
