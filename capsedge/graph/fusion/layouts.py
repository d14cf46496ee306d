"""Assign the axes of a tensor to images, positions, children, parents and pose elements."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from capsedge.graph.fusion.values import Array

MOST_AXES = 8


@dataclass(frozen=True)
class Layout:
    """A tensor as a permutation of roles.

    Attributes:
        shape: shape of the tensor.
        view: the tensor's axes without those of size 1; an axis that counts two things is split.
        order: for each axis of the roles, the corresponding axis of the view.
        groups: number of axes of each role.
        batch: position in the view of the axis that counts images, or None.
        parents: number of parents that share the votes, which then have no axis for them; 0 if they have one.
    """

    shape: tuple[int, ...]
    view: tuple[int, ...]
    order: tuple[int, ...]
    groups: tuple[int, ...]
    batch: int | None = None
    parents: int = 0

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Sizes in the order of the roles."""
        return tuple(self.view[k] for k in self.order)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Size of each role."""
        found, at = [], 0
        for count in self.groups:
            found.append(math.prod(self.axes[at : at + count]))
            at += count
        if self.parents:
            found[1] = self.parents
        return tuple(found)

    @property
    def stored(self) -> Layout:
        """The layout of what is stored: of shared votes, those of one parent."""
        return replace(self, parents=0)

    def part(self, role: int) -> tuple[int, ...]:
        """Sizes of the axes of one role."""
        if role == 1 and self.parents:
            return (self.parents,)
        at = sum(self.groups[:role])
        return self.axes[at : at + self.groups[role]]

    def read(self, x: Array) -> Array:
        """The tensor with one axis per role."""
        found = x.reshape(self.view).transpose(self.order).reshape(self.stored.sizes)
        return np.broadcast_to(found, self.sizes) if self.parents else found

    def rows(self, x: Array, at: tuple[Array, Array] | None = None) -> Array:
        """Votes ``[n, j, i, p]`` as rows with the elements of all parents: ``[n·i, j·p]``.

        Args:
            at: n and i of the requested rows; None for all.
        """
        split = self._by_child(x)
        if at is None:
            return split.reshape(self.sizes[0] * self.sizes[2], -1)
        number = [np.zeros_like(at[0])]
        for role, which in zip((0, 2), at, strict=True):
            number += np.unravel_index(which, self.part(role)) if self.part(role) else ()
        return np.asarray(split[None][tuple(number)]).reshape(len(at[0]), -1)

    def pieces(self, x: Array, most: int) -> Iterator[Array]:
        """All ``rows`` in order, in pieces of at most ``most`` elements or of one row."""
        split = self._by_child(x)
        outer = 0
        while outer < self.groups[0] + self.groups[2] and math.prod(split.shape[outer:]) > most:
            outer += 1
        elements = self.sizes[1] * self.sizes[3]
        for at in np.ndindex(split.shape[:outer]):
            yield split[at].reshape(-1, elements)

    def _by_child(self, x: Array) -> Array:
        """Votes ``[n, j, i, p]`` with their axes in the order n, i, j, p."""
        n, j, i, _ = self.groups
        axes = (
            *range(n),
            *range(n + j, n + j + i),
            *range(n, n + j),
            *range(n + j + i, len(self.order)),
        )
        return x.reshape(self.view).transpose([self.order[k] for k in axes])

    def write(self, roles: Array) -> Array:
        """The tensor with the given roles; of shared votes, those of the first parent."""
        roles = roles[:, :1] if self.parents else roles
        back = np.argsort(self.order)
        return roles.reshape(self.axes).transpose(back).reshape(self.shape)

    def along(self, role: int, values: Array) -> Array:
        """Values of one role, shaped for multiplication with the tensor's view."""
        axes = [1] * len(self.order)
        start = sum(self.groups[:role])
        axes[start : start + self.groups[role]] = self.part(role)
        return values.reshape(axes).transpose(np.argsort(self.order))


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape without its axes of size 1."""
    return tuple(d for d in shape if d != 1)


def vote_layouts(
    shape: tuple[int, ...], batch: int, pose: int, parents: set[int], max_positions: int = 3
) -> Iterator[Layout]:
    """Every layout in which votes may be ``[n, j, i, p]``; ``n`` counts images, then positions.

    Args:
        pose: number of elements of a vote.
        parents: possible numbers of parents.
        max_positions: maximum number of position axes.
    """
    views = [squeezed(shape)]
    if batch > 1 and shape[0] % batch == 0 and shape[0] > batch:
        views.append((batch, shape[0] // batch, *squeezed(shape[1:])))
    for view in views:
        axes = range(len(view))
        if not 3 - (batch == 1) <= len(view) <= MOST_AXES:
            continue
        starts: list[int | None] = [k for k in axes if view[k] == batch] if batch > 1 else [None]
        poses: list[tuple[int, ...]] = [(k,) for k in axes if view[k] == pose]
        poses += [(k, k + 1) for k in axes[:-1] if view[k] * view[k + 1] == pose]
        found = []
        for start, p in itertools.product(starts, poses):
            left = [k for k in axes if k != start and k not in p]
            if start in p:
                continue
            for j in left:
                if view[j] not in parents:
                    continue
                rest = [k for k in left if k != j]
                for places in range(min(len(rest), max_positions + 1)):
                    for chosen in itertools.combinations(rest, places):
                        i = [k for k in rest if k not in chosen]
                        n = ([] if start is None else [start]) + list(chosen)
                        found.append(
                            Layout(shape, view, (*n, j, *i, *p), (len(n), 1, len(i), len(p)), start)
                        )
        found.sort(key=lambda f: f.groups[0])
        yield from found


def shared_layouts(
    shape: tuple[int, ...], batch: int, couplings: int, softmax: int
) -> Iterator[tuple[Layout, str]]:
    """Every layout in which votes ``[n, i, p]`` may be those of all parents, and what the softmax runs over.

    Args:
        couplings: their number; they have an axis for the parents.
        softmax: number of elements the softmax runs over.
    """
    view = squeezed(shape)
    if batch == 1 or len(view) != 3:
        return
    for start in (k for k in range(3) if view[k] == batch):
        for i, p in itertools.permutations([k for k in range(3) if k != start]):
            parents, rest = divmod(couplings, batch * view[i])
            if rest or parents < 2:
                continue
            layout = Layout(shape, view, (start, i, p), (1, 0, 1, 1), start, parents)
            sizes = {"j": parents, "i": view[i]}
            yield from ((layout, over) for over, count in sizes.items() if count == softmax)


def grouped_layouts(
    shape: tuple[int, ...], batch: int, softmax: int, pose: int, max_positions: int = 2
) -> Iterator[Layout]:
    """Every layout in which votes may be ``[n, j, i, p]`` with grouped parents: ``j`` is group, then member.

    Args:
        softmax: number of elements the softmax runs over: groups, children, parents, or parents and children.
        pose: number of elements of a vote; 1 if each has its own logits, in which case a group has one axis.
        max_positions: maximum number of position axes that route independently.
    """
    view = squeezed(shape)
    axes = range(len(view))
    if len(view) > MOST_AXES:
        return
    starts: list[int | None] = [k for k in axes if view[k] == batch] if batch > 1 else [None]
    poses: list[tuple[int, ...]] = [(k,) for k in axes if view[k] == pose] if pose > 1 else [()]
    found = []
    for start, p, groups in itertools.product(starts, poses, axes):
        left = [k for k in axes if k not in (start, groups, *p)]
        for members in _some(left, 1, 1 if pose == 1 else 3):
            rest = [k for k in left if k not in members]
            for places in _some(rest, 0, min(max_positions, len(rest) - 1)):
                i = [k for k in rest if k not in places]
                n = ([] if start is None else [start]) + list(places)
                count, parents, children = (
                    math.prod(view[k] for k in some) for some in ((groups,), (groups, *members), i)
                )
                distinct = start not in (groups, *p) and groups not in p
                if distinct and softmax in (count, children, parents, parents * children):
                    sizes = (len(n), 1 + len(members), len(i), len(p))
                    found.append(Layout(shape, view, (*n, groups, *members, *i, *p), sizes, start))
    yield from sorted(found, key=lambda f: f.groups[0])


def _some(axes: Sequence[int], least: int, most: int) -> Iterator[tuple[int, ...]]:
    for count in range(least, most + 1):
        yield from itertools.combinations(axes, count)


def layouts(
    shape: tuple[int, ...], roles: Sequence[Sequence[int]], batch: int | None = None
) -> Iterator[Layout]:
    """Every layout of a tensor with roles of given axes: permuted, and with neighbours merged.

    Args:
        roles: for each role, the sizes of its axes.
        batch: index of the role whose first axis counts images; None if there is none.
    """
    target = [d for role in roles for d in role if d != 1]
    groups = tuple(sum(d != 1 for d in role) for role in roles)
    dims = squeezed(shape)
    if math.prod(target) != math.prod(dims) or len(target) > MOST_AXES:
        return
    first = None
    if batch is not None and roles[batch] and roles[batch][0] != 1:
        first = sum(groups[:batch])
    for perm in _merging(target, dims):
        view = tuple(target[k] for k in perm)
        order = tuple(perm.index(k) for k in range(len(target)))
        yield Layout(shape, view, order, groups, None if first is None else order[first])


def _merging(target: list[int], dims: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Permutations of the target that produce the dims when neighbours are merged."""

    def extend(used: tuple[int, ...], at: int, filled: int) -> Iterator[tuple[int, ...]]:
        if len(used) == len(target):
            if at == len(dims):
                yield used
            return
        for k, size in enumerate(target):
            if k in used or at >= len(dims) or dims[at] % (filled * size):
                continue
            whole = filled * size == dims[at]
            yield from extend((*used, k), at + whole, 1 if whole else filled * size)

    yield from extend((), 0, 1)


def result_roles(roles: Layout) -> tuple[list[tuple[int, ...]], int | None]:
    """The roles ``[n, j, p]`` of the result of routing votes, and which of them counts images."""
    parts = [roles.part(0), roles.part(1), roles.part(3)]
    return parts, None if roles.batch is None else 0
