"""Build the layers of capsule networks: convolutions, primary capsules, one layer per routing.

Some published code stacks shifted copies of a map and then views the stack with its axes in another order,
which mixes positions. The mixture is a fixed permutation: the patches are laid side by side, so that the
operators find them as windows that do not overlap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from capsedge.errors import UsageError
from capsedge.models import ops
from capsedge.models.ops.attention import EPSILON
from capsedge.models.ops.operator_inputs import cut_windows
from capsedge.models.ops.squash import EPSILON as EPSILON_OF_SQUASH

# --- Patches that are not plain windows (docs/how-to/import.md) ---


def patch_index(
    grid: tuple[int, int], kernel: int, stride: int, elements: int, order: str
) -> Tensor:
    """The source index of each element of the patches, laid side by side.

    Args:
        grid: rows and columns of the children.
        elements: elements of a pose; 1 if only positions are permuted.
        order: ``kernel``: patches ``[K, K, H', W']`` read as ``[H', W', K, K]``; ``elements``: patches
            ``[P, H'W']`` at every place of the kernel read as ``[H'W', P]``.

    Returns:
        Indices into ``[H W P]``, for ``[H'K, W'K, P]`` flattened.
    """
    source = torch.arange(grid[0] * grid[1] * elements).reshape(*grid, elements)
    patches = source.unfold(0, kernel, stride).unfold(1, kernel, stride)
    h, w = patches.shape[:2]  # [H', W', P, K, K]
    if order == "kernel":
        mixed = patches.permute(3, 4, 0, 1, 2).reshape(h, w, kernel, kernel, elements)
    else:
        mixed = patches.permute(3, 4, 2, 0, 1).reshape(kernel, kernel, h, w, elements)
        mixed = mixed.permute(2, 3, 0, 1, 4)
    return mixed.permute(0, 2, 1, 3, 4).flatten()


def patched(x: Tensor, index: Tensor, size: tuple[int, int]) -> Tensor:
    """A map of capsules ``[N, H, W, C, P]`` as patches side by side.

    Args:
        index: of ``patch_index``, of positions or of positions and elements.
        size: rows and columns of all patches together.
    """
    n, h, w, c, p = x.shape
    rows, columns = size
    if index.numel() == rows * columns:  # whole poses are moved
        return x.reshape(n, h * w, c, p).index_select(1, index).reshape(n, rows, columns, c, p)
    flat = x.permute(0, 3, 1, 2, 4).reshape(n, c, h * w * p)
    return flat.index_select(2, index).reshape(n, c, rows, columns, p).permute(0, 2, 3, 1, 4)


# --- Layers ---


class PaddedConv2d(nn.Conv2d):
    """A convolution that also supports ``same`` padding: output ``ceil(in / stride)``, with the odd pixel at
    the end.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | str = 0,
        bias: bool = True,
        groups: int = 1,
    ) -> None:
        if inputs % groups or outputs % groups:
            raise UsageError(
                f"A convolution of {inputs} to {outputs} channels cannot have {groups} groups.",
                "Both numbers of channels must be multiples of the groups.",
            )
        self.same = padding == "same"
        super().__init__(
            inputs,
            outputs,
            kernel,
            stride,
            0 if self.same else int(padding),
            groups=groups,
            bias=bias,
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, C', H', W']``."""
        if self.same:
            totals = [
                max((-(-size // s) - 1) * s + k - size, 0)
                for size, s, k in zip(x.shape[2:], self.stride, self.kernel_size, strict=True)
            ]
            (top, left) = (t // 2 for t in totals)
            x = nn.functional.pad(x, (left, totals[1] - left, top, totals[0] - top))
        return super().forward(x)


def output_size(
    grid: tuple[int, int], kernel: int, stride: int, padding: int | str
) -> tuple[int, int]:
    """Rows and columns of a square convolution's output for a grid."""
    if padding == "same":
        return -(-grid[0] // stride), -(-grid[1] // stride)
    p = 2 * int(padding)
    return window_positions((grid[0] + p, grid[1] + p), (kernel, kernel), stride)


def window_positions(
    grid: tuple[int, int], window: tuple[int, int], stride: int
) -> tuple[int, int]:
    """Rows and columns of the window positions on a grid.

    Raises:
        UsageError: the window is larger than the grid.
    """
    if grid[0] < window[0] or grid[1] < window[1]:
        raise UsageError(
            f"A window of {window[0]}x{window[1]} does not fit a map of {grid[0]}x{grid[1]}.",
            "",
            "Use a smaller window, or fewer layers and strides before it.",
        )
    return (grid[0] - window[0]) // stride + 1, (grid[1] - window[1]) // stride + 1


class PrimaryCapsules(nn.Module):
    """A convolution whose output is read as capsules.

    Args:
        grouping: a capsule consists of the ``channels`` at one position, types times pose elements; or of
            ``pixels``, consecutive elements of the output ``[C, H, W]``, which leaves the map without spatial
            meaning.
    """

    def __init__(
        self,
        inputs: int,
        types: int,
        dim: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | str = 0,
        bias: bool = True,
        grouping: str = "channels",
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.types, self.dim, self.grouping = types, dim, grouping
        self.conv = PaddedConv2d(inputs, types * dim, kernel, stride, padding, bias, groups)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to a map of capsules ``[N, H', W', types, dim]``."""
        y: Tensor = self.conv(x)
        ordered = y.permute(0, 2, 3, 1) if self.grouping == "channels" else y
        return ordered.reshape(-1, y.shape[2], y.shape[3], self.types, self.dim)


class ChosenPositions(nn.Module):
    """A layer that keeps some positions of a map of capsules, in one row.

    Args:
        grid: rows and columns of the map.
        positions: the positions to keep, counted row by row.

    Raises:
        UsageError: the map has fewer positions.
    """

    index: Tensor

    def __init__(self, grid: tuple[int, int], positions: Sequence[int]) -> None:
        super().__init__()
        if max(positions) >= grid[0] * grid[1]:
            raise UsageError(
                f"There is no position {max(positions)} in a map of {grid[0]}x{grid[1]}."
            )
        self.grid = 1, len(positions)
        self.register_buffer("index", torch.tensor(positions), persistent=False)

    def forward(self, pose: Tensor) -> Tensor:
        """``[N, H, W, C, P]`` to ``[N, 1, K, C, P]``."""
        return pose.flatten(1, 2).index_select(1, self.index).unsqueeze(1)


class DynamicCapsules(nn.Module):
    """Capsules routed by agreement (Sabour et al. 2017), dense or over a window.

    Args:
        grid: rows and columns of the children's map.
        kernel: side of the window; None for one window over the whole grid (dense).
        vote_bias: whether a learned constant is added to the votes.
        softmax: over the ``parents`` of a child or the ``children`` of a parent.
        squashed: the ``pose`` of a parent, its ``elements`` alone, or an element over all ``parents``.
        epsilon: epsilon of the squash.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        types_in: int,
        dim_in: int,
        types: int,
        dim: int,
        *,
        kernel: int | None = None,
        stride: int = 1,
        iterations: int,
        leaky: bool = False,
        bias: bool = False,
        learned_priors: bool = False,
        vote_bias: bool = False,
        softmax: str = "parents",
        squashed: str = "pose",
        epsilon: float = EPSILON_OF_SQUASH,
    ) -> None:
        super().__init__()
        self.softmax, self.squashed, self.epsilon = softmax, squashed, epsilon
        self.child_grid, self.kernel = grid, grid if kernel is None else (kernel, kernel)
        self.stride, self.iterations, self.leaky = stride, iterations, leaky
        self.grid = window_positions(grid, self.kernel, stride)
        children = self.kernel[0] * self.kernel[1] * types_in
        self.weight = nn.Parameter(0.1 * torch.randn(children, types, dim, dim_in))
        self.bias = nn.Parameter(torch.full((types, dim), 0.1)) if bias else None
        self.log_prior = nn.Parameter(torch.zeros(children, types)) if learned_priors else None
        self.vote_bias = nn.Parameter(torch.zeros(types, dim)) if vote_bias else None

    def forward(self, pose: Tensor) -> tuple[Tensor, Tensor]:
        """``[N, H, W, C, Pin]`` to ``[N, H', W', M, P]`` and couplings ``[N, H', W', I, M]``."""
        window = cut_windows(pose, self.kernel, (self.stride, self.stride))
        u = window.reshape(-1, self.weight.shape[0], self.weight.shape[3])
        v, c = self._over_parents(u) if self.squashed == "parents" else self._routed(u)
        h, w = self.grid
        return v.reshape(-1, h, w, *v.shape[1:]), c.reshape(-1, h, w, *c.shape[1:])

    def _routed(self, u: Tensor) -> tuple[Tensor, Tensor]:
        return ops.dynamic_routing(
            u,
            self.weight,
            self.log_prior,
            self.bias,
            vote_bias=None if self.vote_bias is None else self.vote_bias.unsqueeze(0),
            iterations=self.iterations,
            leaky=self.leaky,
            softmax="children" if self.softmax == "children" else "parents",
            elementwise=self.squashed == "elements",
            epsilon=self.epsilon,
        )

    def _over_parents(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Routing with a squash over the parents, for which there is no operator; poses and couplings."""
        i, j, out, p = self.weight.shape
        flat = self.weight.reshape(i, j * out, p).transpose(1, 2)
        votes = torch.bmm(u.transpose(0, 1), flat).reshape(i, -1, j, out).transpose(0, 1)
        logits = torch.zeros(votes.shape[:3], dtype=votes.dtype, device=votes.device)
        if self.log_prior is not None:
            logits = logits + self.log_prior
        for iteration in range(self.iterations):
            couplings = logits.softmax(1 if self.softmax == "children" else 2)
            v = ops.squash((couplings.unsqueeze(-1) * votes).sum(1), 1, self.epsilon)
            if iteration + 1 < self.iterations:
                logits = logits + (votes * v.unsqueeze(1)).sum(-1)
        return v, couplings


class SideBySide(nn.Module):
    """Patches that are not windows, laid side by side so that they become windows; otherwise the map
    unchanged.

    Attributes:
        stride: stride of the windows over the result.
    """

    index: Tensor | None

    def __init__(
        self, grid: tuple[int, int], kernel: int, stride: int, elements: int, order: str
    ) -> None:
        super().__init__()
        index = None
        if order != "windows":
            index = patch_index(grid, kernel, stride, elements, order)
            h, w = window_positions(grid, (kernel, kernel), stride)
            self.size = h * kernel, w * kernel
        self.stride = stride if index is None else kernel
        self.register_buffer("index", index, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, H, W, C, P]`` to ``[N, H'', W'', C, P]``."""
        return x if self.index is None else patched(x, self.index, self.size)


class AttentionLayer(nn.Module):
    """Capsules routed by inverted dot-product attention (Tsai et al. 2020); one call is one pass.

    Args:
        grid: rows and columns of the children's map.
        patches: as in ``AttentionCapsulesConfig``.
    """

    def __init__(
        self,
        grid: tuple[int, int],
        kernel: tuple[int, int],
        types_in: int,
        types: int,
        dim: int,
        *,
        stride: int = 1,
        matrix_pose: bool,
        patches: str = "windows",
    ) -> None:
        super().__init__()
        self.matrix_pose = matrix_pose
        self.side_by_side = SideBySide(grid, kernel[0], stride, dim, patches)
        self.stride = self.side_by_side.stride
        side = round(dim**0.5) if matrix_pose else dim
        children = kernel[0] * kernel[1] * types_in
        self.weight = nn.Parameter(
            torch.randn(*kernel, types_in, types, side, side) * (types / (side * children)) ** 0.5
        )
        self.scale = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, pose: Tensor, parent: Tensor | None) -> tuple[Tensor, Tensor]:
        """Poses ``[N, H, W, C, P]`` and the parents of the previous pass to parents and couplings."""
        pose = self.side_by_side(pose)
        if parent is None and self.training:
            return self._uniform(pose)
        return ops.attention_routing(
            pose,
            parent,
            self.weight,
            self.scale,
            self.bias,
            strides=(self.stride, self.stride),
            matrix_pose=self.matrix_pose,
        )

    def _uniform(self, pose: Tensor) -> tuple[Tensor, Tensor]:
        """The first pass in training; its couplings are equal, so it is a convolution.

        It computes the same as the operator up to rounding, but without keeping votes in memory for the
        gradients. Evaluation uses the operator's definition, which is the reference.
        """
        n, h, w, c, p = pose.shape
        kh, kw, _, m, k, q = self.weight.shape
        r = p // k  # rows of a pose matrix; a vector is one
        rows = pose.reshape(n, h, w, c, r, k).permute(0, 4, 3, 5, 1, 2).reshape(n * r, c * k, h, w)
        kernel = self.weight.permute(3, 5, 2, 4, 0, 1).reshape(m * q, c * k, kh, kw)
        s = nn.functional.conv2d(rows, kernel, stride=self.stride) / m
        height, width = s.shape[2:]
        s = s.reshape(n, r, m, q, height, width).permute(0, 4, 5, 2, 1, 3).flatten(-2)
        y = nn.functional.layer_norm(s, (r * q,), self.scale, self.bias, EPSILON)
        return y, pose.new_full((1,), 1 / m).expand(n, height, width, kh * kw * c, m)


def make_decoder(sizes: Sequence[int], picture: tuple[int, int, int]) -> nn.Sequential:
    """Fully connected layers that draw a picture ``[C H W]`` of all class capsules."""
    hidden = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(sizes[-1], math.prod(picture)), nn.Sigmoid())
