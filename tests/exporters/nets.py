"""Networks small enough to export in a test, and a module of a user's own."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

import capsedge.models.ops as ops
from capsedge.models import CapsuleModel, build, get_config
from capsedge.models.configs import (
    AttentionCapsulesConfig,
    CapsNetConfig,
    CapsuleConv,
    Conv,
    EfficientCapsNetConfig,
    MatrixCapsulesConfig,
    ModelConfig,
)
from capsedge.runtime.metadata.metadata import Preprocessing

_COMMON = {
    "class_names": ("a", "b", "c"),
    "preprocessing": Preprocessing(height=10, width=10, channels=1),
    "stem": (Conv(6, 3, 1),),
}

CONFIGS: dict[str, ModelConfig] = {
    "dynamic": CapsNetConfig(
        **_COMMON,
        primary_types=2,
        primary_kernel=3,
        primary_stride=2,
        primary_dim=4,
        capsule_dim=5,
        learned_priors=True,
        decoder=(8,),
        iterations=3,
    ),
    "em": MatrixCapsulesConfig(
        **_COMMON,
        primary_types=2,
        capsule_layers=(CapsuleConv(3, 3, 2),),
        pose_side=2,
        inverse_temperature=0.5,
        iterations=3,
    ),
    "attention": AttentionCapsulesConfig(
        **_COMMON,
        primary_types=2,
        capsule_layers=(CapsuleConv(3, 3, 2), CapsuleConv(4, 2, 1)),
        pose_dim=4,
        iterations=2,
    ),
    "attention-vector": AttentionCapsulesConfig(
        **_COMMON,
        primary_types=2,
        capsule_layers=(CapsuleConv(3, 3, 2),),
        pose_dim=5,
        matrix_pose=False,
        iterations=2,
    ),
    "self-attention": EfficientCapsNetConfig(
        **_COMMON,
        primary_types=4,
        primary_kernel=8,
        primary_dim=3,
        capsule_dim=5,
    ),
}


def network(family: str, seed: int = 0, **changes: object) -> CapsuleModel:
    """A tiny network with random weights; priors and biases are random too, not zero."""
    torch.manual_seed(seed)
    model = build(CONFIGS[family], **changes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "prior" in name or "bias" in name or "beta" in name:
                parameter.normal_(0.0, 0.3)
    return model.eval()


# All outputs that a family can have beside the usual ones.
EXTRAS = {
    "dynamic": ("reconstruction", "couplings"),
    "em": ("couplings",),
    "attention": ("couplings",),
}


def wide(family: str) -> CapsuleModel:
    """A tiny network whose stem is wide enough for convolutions in INT8."""
    return network(family, stem=(Conv(16, 3, 1), Conv(16, 3, 1, 1)))


def digits(routing: str) -> CapsuleModel:
    """A network with the images and classes of the zoo, a fraction of the size, and random weights."""
    config = get_config(f"digits-{routing}")
    if routing == "dynamic":
        config = replace(
            config, stem=(Conv(8, 9, 2),), primary_types=4, primary_kernel=5, decoder=()
        )  # type: ignore[call-arg]
    else:
        config = replace(
            config,
            stem=(Conv(8, 5, 2), Conv(8, 3, 1)),
            primary_types=4,
            capsule_layers=(CapsuleConv(4, 3, 2), CapsuleConv(3, 3, 1)),
            iterations=3,
        )  # type: ignore[call-arg]
    torch.manual_seed(7)
    model = build(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim == 1:  # biases and betas that nothing has trained would hide a lost one
                p.add_(0.1 * torch.randn_like(p))
    return model


class Answer(NamedTuple):
    """A user's outputs."""

    pose: Tensor
    share: Tensor


class OwnModule(nn.Module):
    """Two inputs, a named tuple out, two routing operators with different shapes and attributes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Parameter(0.3 * torch.randn(6, 4, 5, 3))
        self.second = nn.Parameter(0.3 * torch.randn(4, 2, 6, 5))

    def forward(self, children: Tensor, scale: Tensor) -> Answer:
        u = ops.squash(children * scale.unsqueeze(-1), axis=1)
        u, _ = ops.dynamic_routing(u, self.first, iterations=2)
        v, c = ops.dynamic_routing(u, self.second, iterations=3, leaky=True)
        return Answer(ops.squash(v), c)
