"""DeepCaps written plainly from its descriptions: the ports in PyTorch, the original in NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.importers.families.keras_networks import softmax

Array = NDArray[Any]
TYPES, STEM, CLASSES, OUT = 3, 5, 4, 6
DIMS = (2, 4, 4, 4)


def squash(s: Tensor, dim: int, epsilon: float) -> Tensor:
    square = (s * s).sum(dim, keepdim=True)
    return square / (1 + square) * s / (square + epsilon).sqrt()


class Capsules(nn.Module):
    """``[N, C, P, H, W]``; ``epsilon`` 0 for a squash without a division."""

    def __init__(self, before: int, dim: int, stride: int, name: str, epsilon: float) -> None:
        super().__init__()
        self.add_module(name, nn.Conv2d(before, TYPES * dim, 3, stride, 1))
        self.name, self.epsilon = name, epsilon

    def forward(self, x: Tensor) -> Tensor:
        y = self.get_submodule(self.name)(x.flatten(1, 2))
        y = y.unflatten(1, (TYPES, -1))
        if self.epsilon:
            return squash(y, 2, self.epsilon)
        norm = y.norm(dim=2, keepdim=True)
        return y * norm / (1 + norm**2)


class Routed(nn.Module):
    """Routing over types and places; squash of single elements or of poses."""

    def __init__(self, dim: int, name: str, elements: bool) -> None:
        super().__init__()
        conv = nn.Conv3d(1, TYPES * dim, 3, (dim, 1, 1), (0, 1, 1))
        self.add_module(name, conv)
        self.name, self.elements, self.dim = name, elements, dim

    def forward(self, x: Tensor) -> Tensor:
        n, c, _, h, w = x.shape
        votes = self.get_submodule(self.name)(x.flatten(1, 2).unsqueeze(1))
        votes = votes.transpose(1, 2).reshape(n, c, TYPES, self.dim, h, w)
        logits = torch.zeros(n, c, TYPES, h, w)
        for _ in range(3):
            shares = logits.reshape(n, c, -1).softmax(-1).reshape(logits.shape)
            s = (shares.unsqueeze(3) * votes).sum(1)
            v = s * s.abs() / (1 + s**2) if self.elements else squash(s, 2, 1e-8)
            logits = logits + (votes * v.unsqueeze(1)).sum(3)
        return v


class Port(nn.Module):
    """Images of 28x28 or 32x32; ``hopeful``: of HopefulRational, else of Ugenteraan."""

    def __init__(self, hopeful: bool) -> None:
        super().__init__()
        self.hopeful = hopeful
        stem = ("conv2d", "batchNorm") if hopeful else ("conv1", "bn1")
        self.conv, self.norm = nn.Conv2d(1, STEM, 3, 1, 1), nn.BatchNorm2d(STEM, eps=1e-8)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.02, 0.2)
        self.layers, before = nn.ModuleList(), STEM
        self.names: list[str] = []
        inner = "conv1" if hopeful else "conv"
        for cell, dim in enumerate(DIMS):
            for at in range(4):
                args = (before if at == 0 else TYPES * dim, dim, 2 if at == 0 else 1)
                made = Capsules(*args, inner, 0.0 if hopeful else 1e-8)
                if (cell, at) == (3, 1):
                    made = Routed(dim, "conv1" if hopeful else "conv_3d", hopeful)
                self.layers.append(made)
                self.names.append(self.name(cell, at))
            before = TYPES * dim
        self.W = nn.Parameter(torch.randn(1, TYPES * 20, CLASSES, OUT, DIMS[-1]))
        self.b = nn.Parameter(torch.randn(1, 1, CLASSES, OUT) / 3)
        self.stem = stem
        with torch.no_grad():
            for layer in self.layers:
                for weight in layer.parameters():
                    weight.mul_(3)

    def name(self, cell: int, at: int) -> str:
        if (cell, at) == (3, 1):
            return "conv3dCaps4_nj_8" if self.hopeful else "conv3dcaps_31"
        if not self.hopeful:
            return f"conv2dcaps_{cell}{at}"
        number = ("strd_2", "strd_1_1", "strd_1_2", "strd_1_3")[at]
        if cell == 3 and at > 1:
            number = f"strd_1_{at - 1}"
        return f"conv2dCaps{cell + 1}_nj_{4 if cell == 0 else 8}_{number}"

    def authors(self) -> dict[str, Tensor]:
        """The state dict under the authors' names, with a part of a decoder."""
        classes = ("digCaps.W", "digCaps.bias") if self.hopeful else ("fc_caps.W", "fc_caps.b")
        found = {
            **{f"{self.stem[0]}.{k}": v for k, v in self.conv.state_dict().items()},
            **{f"{self.stem[1]}.{k}": v for k, v in self.norm.state_dict().items()},
            classes[0]: self.W.detach(),
            classes[1]: self.b.detach(),
            "decoder.fc.weight": torch.zeros(7, OUT),
        }
        for name, layer in zip(self.names, self.layers, strict=True):
            found |= {f"{name}.{k}": v for k, v in layer.state_dict().items()}
        return found

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x)).unsqueeze(2)
        x = x if self.hopeful else squash(x, 2, 1e-8)
        found = []
        for cell in range(4):
            first, skip, *rest = self.layers[4 * cell : 4 * cell + 4]
            x = first(x)
            x = rest[1](rest[0](x)) + skip(x)
            found.append(x.permute(0, 3, 4, 1, 2).flatten(1, 3))
        return self.routed(torch.cat(found[2:], 1))

    def routed(self, u: Tensor) -> Tensor:
        votes = torch.einsum("ijod,nid->nijo", self.W[0], u)
        logits = torch.zeros(votes.shape[:3])
        for k in range(3):
            s = (logits.softmax(2).unsqueeze(-1) * votes).sum(1)
            if self.hopeful or k == 2:
                s = s + self.b[0]
            v = squash(s, 2, 1e-30 if self.hopeful else 1e-8)
            logits = logits + (votes * v.unsqueeze(1)).sum(-1)
        return v


# The original

Weights = Mapping[str, Mapping[str, Array]]


def keras_weights(rng: np.random.Generator, start: int = 1) -> dict[str, dict[str, Array]]:
    """By layer, as Keras 2 names them, counted from ``start``."""
    made: dict[str, dict[str, Array]] = {}

    def put(layer: str, **values: Array) -> None:
        made[layer] = {f"{layer}/{key}": value for key, value in values.items()}

    put(
        f"conv2d_{start}", kernel=rng.normal(0, 0.5, (3, 3, 1, STEM)), bias=rng.normal(0, 0.2, STEM)
    )
    put(
        f"batch_normalization_{start}", gamma=rng.uniform(0.5, 2, STEM), beta=rng.normal(0, 0.3, STEM),
        moving_mean=rng.normal(0, 0.3, STEM), moving_variance=rng.uniform(0.01, 0.5, STEM),
    )  # fmt: skip
    before, number = (STEM, 1), start
    for cell, dim in enumerate(DIMS):
        for at in range(4):
            if (cell, at) != (3, 1):
                shape = (3, 3, *(before if at == 0 else (TYPES, dim)), TYPES, dim)
                put(f"conv2d_caps_{number}", kernel=rng.normal(0, 0.6, shape))
                number += 1
        before = TYPES, dim
    put(
        f"conv_capsule_layer3d_{start}", W=rng.normal(0, 1, (dim, 3, 3, 1, TYPES * dim)),
        b=rng.normal(0, 0.3, (TYPES, dim, 1, 1)),
    )  # fmt: skip
    shape = (CLASSES, 20 * TYPES, OUT, dim)
    put("digit_caps", W=rng.normal(0, 0.15, shape), B=rng.normal(0, 0.3, (CLASSES, OUT)))
    made["decoder"] = {f"dense_{start}/kernel": rng.normal(size=(OUT, 8))}
    return made


def convolved(x: Array, kernel: Array, stride: int) -> Array:
    """``[N, H, W, C]``, padding ``same``."""
    side = x.shape[1]
    total = max((-(-side // stride) - 1) * stride + 3 - side, 0)
    pads = (total // 2, total - total // 2)
    x = np.pad(x, ((0, 0), pads, pads, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return np.einsum("nhwcij,ijco->nhwo", windows[:, ::stride, ::stride], kernel, optimize=True)


def keras(x: Array, weights: Weights, variant: str = "2019-11") -> Array:
    """Lengths of images ``[N, 28, 28, 1]``."""
    w = [v.astype(np.float32).astype(float) for layer in weights.values() for v in layer.values()]
    (kernel, bias, gamma, beta, mean, variance), rest = w[:6], w[6:]
    x = np.maximum(convolved(x, kernel, 1) + bias, 0)
    x = ((x - mean) / np.sqrt(variance + 1e-3) * gamma + beta)[..., None]
    kernels, (vote, added, digit, offset) = rest[:15], rest[15:19]

    def capsules(x: Array, k: int, stride: int = 1) -> Array:
        flat = kernels[k].reshape(3, 3, x.shape[3] * x.shape[4], -1)
        y = convolved(x.reshape(*x.shape[:3], -1), flat, stride)
        y = y.reshape(*y.shape[:3], TYPES, -1)
        square = (y * y).sum(-1, keepdims=True)
        return square / (1 + square) * y / np.sqrt(square + 1e-7)

    found = []
    for cell in range(4):
        k = 4 * cell
        x = capsules(x, k, 2)
        last = cell == 3
        skip = map_routed(x, vote, added, variant) if last else capsules(x, k + 1)
        x = capsules(capsules(x, k + 2 - last), k + 3 - last) + skip
        found.append(x.reshape(len(x), -1, x.shape[-1]))
    votes = np.einsum("jiod,nid->nijo", digit, np.concatenate([found[3], found[2]], 1))
    logits = np.zeros(votes.shape[:3])
    for _ in range(3):
        v = plain_squash((softmax(logits, 2)[..., None] * votes).sum(1) + offset, -1)
        logits = logits + np.einsum("nijo,njo->nij", votes, v)
    return np.sqrt(((v + 1e-7) ** 2).sum(-1))


def map_routed(x: Array, kernel: Array, bias: Array, variant: str) -> Array:
    n, h, w, c, p = x.shape
    mixed = x.reshape(n, 1, c * p, h, w)[:, 0].reshape(n * c, p, h, w).transpose(0, 2, 3, 1)
    votes = convolved(mixed, kernel[..., 0, :].transpose(1, 2, 0, 3), 1).reshape(
        n, c, h, w, TYPES, p
    )
    logits = np.zeros(votes.shape[:5])  # [N, C, H, W, J]
    axes = (1, 2, 4) if variant == "2019-11" else 2  # of [N, H, W, J, A]
    for _ in range(3):
        if variant == "2019-03":
            shares = softmax(logits, 4)
        else:
            shares = softmax(logits.reshape(n, c, -1), 2).reshape(logits.shape)
        v = plain_squash((shares[..., None] * votes).sum(1) + bias[..., 0, 0], axes)
        logits = logits + (votes * v[:, None]).sum(-1)
    return v


def plain_squash(s: Array, axes: Any) -> Array:
    square = (s * s).sum(axes, keepdims=True)
    return square / (1 + square) / np.sqrt(square) * s
