"""Networks of matrix capsules, attention and self-attention as plain PyTorch, from their descriptions.

As `tests.importers.families.networks`: key names of the authors, nothing of the package, small sizes.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

# EM routing


class EmLayer(nn.Module):
    """Routing of yl-1993 over children ``[N, I, P]`` of a place."""

    def __init__(self, window: int, types_in: int, types: int, iterations: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(1, window * types_in, types, 4, 4))
        self.beta_u, self.beta_a = (
            nn.Parameter(torch.randn(types)),
            nn.Parameter(torch.randn(types)),
        )
        self.iterations = iterations

    def forward(
        self, pose: Tensor, a: Tensor, added: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        weight = self.weights[0].repeat(pose.shape[1] // self.weights.shape[1], 1, 1, 1)
        votes = torch.einsum("niab,ijbc->nijac", pose.unflatten(-1, (4, 4)), weight).flatten(3)
        if added is not None:
            votes = votes + added
        r = torch.full(votes.shape[:3], 1 / votes.shape[2])
        for k in range(self.iterations):
            r = r * a.unsqueeze(-1)
            r = r / (r.sum(2, keepdim=True) + 1e-8)
            total = r.sum(1)
            share = (r / (total.unsqueeze(1) + 1e-8)).unsqueeze(-1)
            mean = (share * votes).sum(1, keepdim=True)
            variance = (share * (votes - mean) ** 2).sum(1, keepdim=True) + 1e-8
            cost = (self.beta_u.unsqueeze(-1) + variance[:, 0].sqrt().log()) * total.unsqueeze(-1)
            out = torch.sigmoid(1e-3 * (self.beta_a - cost.sum(-1)))
            if k < self.iterations - 1:
                log_p = -((votes - mean) ** 2) / (2 * variance) - variance.sqrt().log()
                log_p = (log_p - 0.5 * math.log(2 * math.pi)).sum(-1)
                r = (log_p + out.log().unsqueeze(1)).softmax(2)
        return mean.squeeze(1), out


class Yl1993(nn.Module):
    """28x28 or any images; with the patches of before or after November 2018.

    ``sizes``: channels, three numbers of types, classes.
    """

    def __init__(
        self,
        iterations: int = 2,
        old: bool = False,
        norm: bool = True,
        sizes: tuple[int, ...] = (6, 3, 4, 4, 10),
    ) -> None:
        super().__init__()
        self.old = old
        a, b, c, d, e = sizes
        self.conv1 = nn.Conv2d(1, a, 5, 2, 2)
        if norm:
            self.bn1 = nn.BatchNorm2d(a, eps=1e-3)
            self.bn1.running_var.uniform_(0.001, 0.5)  # so that the epsilon counts
            self.bn1.running_mean.normal_()
        self.primary_caps = nn.Module()
        self.primary_caps.pose, self.primary_caps.a = nn.Conv2d(a, b * 16, 1), nn.Conv2d(a, b, 1)
        nn.init.normal_(self.primary_caps.a.bias, -15, 5)  # small activations do not cancel
        self.conv_caps1 = EmLayer(9, b, c, iterations)
        self.conv_caps2 = EmLayer(9, c, d, iterations)
        self.class_caps = EmLayer(1, d, e, iterations)

    def patches(self, x: Tensor, stride: int) -> Tensor:
        """``[N, H, W, C]`` to ``[N, H', W', 9, C]``."""
        n, side, _, c = x.shape
        places = (side - 3) // stride + 1
        seen = x.unfold(1, 3, stride).unfold(2, 3, stride)  # [N, H', W', C, K, K]
        if self.old:
            mixed = seen.permute(0, 4, 5, 1, 2, 3).contiguous()
            return mixed.view(n, places, places, 9, c)
        return seen.permute(0, 1, 2, 4, 5, 3).reshape(n, places, places, 9, c)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y = (self.bn1(y) if hasattr(self, "bn1") else y).relu()
        pose = self.primary_caps.pose(y).permute(0, 2, 3, 1)
        a = self.primary_caps.a(y).sigmoid().permute(0, 2, 3, 1)
        n = len(x)
        for layer, stride in (self.conv_caps1, 2), (self.conv_caps2, 1):
            seen, acting = self.patches(pose, stride), self.patches(a, stride)
            side = seen.shape[1]
            m, out = layer(
                seen.reshape(n * side * side, -1, 16), acting.reshape(n * side * side, -1)
            )
            pose, a = m.reshape(n, side, side, -1), out.reshape(n, side, side, -1)
        added = torch.zeros(side, side, self.conv_caps2.weights.shape[2], 1, 16)
        added[..., 0] += (torch.arange(side) / side).reshape(side, 1, 1, 1)
        added[..., 1] += (torch.arange(side) / side).reshape(1, side, 1, 1)
        found: Tensor = self.class_caps(
            pose.reshape(n, -1, 16), a.reshape(n, -1), added.reshape(-1, 1, 16)
        )[1]
        return found


# Inverted dot-product attention


class Routed(nn.Module):
    """One capsule layer: votes of ``[N, L, I, P]`` children at L places for the layer's parents."""

    def __init__(self, shape: tuple[int, ...], dim: int, matrix: bool) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(shape) * (shape[-1] / math.prod(shape[:-1])) ** 0.5)
        self.nonlinear_act = nn.LayerNorm(dim)
        nn.init.normal_(self.nonlinear_act.weight)
        nn.init.normal_(self.nonlinear_act.bias)
        self.matrix = matrix

    def forward(self, children: Tensor, parents: Tensor | None) -> Tensor:
        weight = self.w.flatten(0, -4)
        if self.matrix:
            side = weight.shape[1]
            poses = children.unflatten(-1, (side, side))
            votes = torch.einsum("nliax,ixdm->nlimad", poses, weight).flatten(4)
        else:
            votes = torch.einsum("nlia,iamd->nlimd", children, weight)
        if parents is None:
            coupling = torch.full(votes.shape[:4], 1 / votes.shape[3])
        else:
            agreement = (votes * parents.unsqueeze(2)).sum(-1) / votes.shape[-1] ** 0.5
            coupling = agreement.softmax(-1)
            coupling = coupling / (coupling.sum(-1, keepdim=True) + 1e-10)
        found: Tensor = self.nonlinear_act((coupling.unsqueeze(-1) * votes).sum(2))
        return found


class Block(nn.Module):
    """A residual block."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.shortcut(x)).relu()


class Attention(nn.Module):
    """32x32 colour images, 16x16, 7x7 and 5x5 capsules of 3 types, 10 classes."""

    def __init__(
        self,
        routing: int = 2,
        *,
        mixed: bool,
        sequential: bool = False,
        resnet: bool = False,
        matrix: bool = True,
        dense: int = 0,
    ) -> None:
        super().__init__()
        self.routing, self.mixed, self.sequential = routing, mixed, sequential
        self.pre_caps = nn.Module()
        stem = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU()]
        if resnet:
            stem = [
                nn.Conv2d(3, 4, 3, 1, 1, bias=False),
                nn.BatchNorm2d(4),
                nn.ReLU(),
                nn.Sequential(*(Block(4, 4, 1) for _ in range(2))),
                nn.Sequential(Block(4, 8, 2), Block(8, 8, 1), Block(8, 8, 1)),
            ]
        self.pre_caps.pre_caps = nn.Sequential(*stem)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 2)
        d, side, c = 16, 4, 3
        self.pc_layer = nn.Conv2d(8, c * d, 1, bias=False)
        self.nonlinear_act = nn.LayerNorm(d)
        nn.init.normal_(self.nonlinear_act.weight)
        pose = (side, side) if matrix else (d,)
        out = (lambda m: (*pose, m)) if matrix else (lambda m: (*pose, m, d))
        shapes = [(3, 3, c, *out(c)), (3, 3, c, *out(c))]
        children = 25 * c
        if dense:
            shapes.append((children, *out(dense)))
            children = dense
        shapes.append((children, *out(10)))
        self.capsule_layers = nn.ModuleList(Routed(s, d, matrix) for s in shapes)
        self.final_fc = nn.Linear(d, 1)

    def seen_by(self, x: Tensor, k: int) -> Tensor:
        """Children of each place of layer k, of a map ``[N, H, W, C, P]`` or of ``[N, 1, C, P]``."""
        n, p = len(x), x.shape[-1]
        if x.ndim == 4 or k > 1:
            flat = x.permute(0, 3, 1, 2, 4) if x.ndim == 5 else x
            return flat.reshape(n, 1, -1, p)
        stride = 2 if k == 0 else 1
        seen = x.unfold(1, 3, stride).unfold(2, 3, stride)  # [N, H', W', C, P, K, K]
        places = seen.shape[1] * seen.shape[2]
        if self.mixed:
            stacked = seen.permute(0, 5, 6, 3, 4, 1, 2).reshape(n, 9 * x.shape[3], p, places)
            return stacked.reshape(n, -1, places, p).transpose(1, 2)
        return seen.permute(0, 1, 2, 5, 6, 3, 4).reshape(n, places, -1, p)

    def layer(self, k: int, x: Tensor, before: Tensor | None) -> Tensor:
        parents = None if before is None else before.reshape(len(x), -1, *before.shape[-2:])
        made = self.capsule_layers[k](self.seen_by(x, k), parents)
        side = {0: 7, 1: 5}.get(k)
        return made.unflatten(1, (side, side)) if side else made

    def forward(self, x: Tensor) -> Tensor:
        first = self.pc_layer(self.pre_caps.pre_caps(x)).permute(0, 2, 3, 1)
        first = self.nonlinear_act(first.unflatten(-1, (3, 16)))
        depth = len(self.capsule_layers)
        poses = [first]
        for k in range(depth):
            pose = self.layer(k, poses[k], None)
            for _ in range(self.routing - 1 if self.sequential else 0):
                pose = self.layer(k, poses[k], pose)
            poses.append(pose)
        for _ in range(0 if self.sequential else self.routing - 1):
            poses = [first, *(self.layer(k, poses[k], poses[k + 1]) for k in range(depth))]
        found: Tensor = self.final_fc(poses[-1].squeeze(1)).squeeze(-1)
        return found


# Efficient-CapsNet


def exponential_squash(s: Tensor) -> Tensor:
    n = s.norm(dim=-1, keepdim=True)
    return (1 - 1 / (n.exp() + 1e-20)) * s / (n + 1e-20)


class Efficient(nn.Module):
    """28x28 images; four convolutions, one capsule of each type."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1, 4, 6, 6, 24)
        for k in range(4):
            conv = nn.Conv2d(widths[k], widths[k + 1], 5 if k == 0 else 3, 2 if k == 3 else 1)
            norm = nn.BatchNorm2d(widths[k + 1])
            norm.running_mean.normal_(std=0.2)
            norm.running_var.uniform_(0.002, 0.5)
            self.add_module(f"conv{k + 1}", conv)
            self.add_module(f"bn{k + 1}", norm)
        self.primary_caps = nn.Module()
        self.primary_caps.dw_conv2d = nn.Conv2d(24, 24, 9, groups=24)
        self.routing_caps = nn.Module()
        self.routing_caps.W = nn.Parameter(torch.randn(10, 6, 4, 5))
        self.routing_caps.b = nn.Parameter(0.3 * torch.randn(10, 6, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for k in range(4):
            x = self.get_submodule(f"bn{k + 1}")(self.get_submodule(f"conv{k + 1}")(x)).relu()
        u = exponential_squash(self.primary_caps.dw_conv2d(x).reshape(len(x), 6, 4))
        votes = torch.einsum("nid,jidz->njiz", u, self.routing_caps.W)
        agreement = torch.einsum("njiz,njkz->nji", votes, votes) / 5**0.5
        coupling = agreement.softmax(1) + self.routing_caps.b[..., 0]
        v = exponential_squash((coupling.unsqueeze(-1) * votes).sum(2))
        return v, ((v * v).sum(-1) + 1e-7).sqrt()


class WholeEfficient(nn.Module):
    """With its decoder, as the training script saves it."""

    def __init__(self) -> None:
        super().__init__()
        self.efficient_capsnet = Efficient()
        self.generator = nn.Module()
        self.generator.fc1, self.generator.fc2 = nn.Linear(50, 12), nn.Linear(12, 20)
        self.generator.fc3 = nn.Linear(20, 784)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.efficient_capsnet(x)
        return found
