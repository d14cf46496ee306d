"""Find tensors besides the votes that change the couplings of individual images: masks, priors, logits.

Routing over a history has a mask. Recommenders apply it in three ways, which are not equivalent: after a
softmax over the children (the remaining couplings do not sum to one), before it (masked logits become -2³¹),
and after a softmax over the parents. A large negative number added to masked logits is a prior. Some networks
also start from logits given as an input. The graph's structure suggests which tensors these are and which
values make them neutral; a numerical test shows whether a tensor multiplies the couplings, is added to the
logits, or does both.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.equivalence import excess_of
from capsedge.graph.fusion.formulas import LOWEST, Dynamic
from capsedge.graph.fusion.layouts import Layout, layouts
from capsedge.graph.fusion.values import Array, Function, Values

MORE = "its logits depend on more than the votes"
LOW = -1e4  # logit of a masked child
_STEPS = 8  # maximum number of nodes between the last softmax and its weighted sum
_MOST = 2  # maximum number of tensors besides the votes
# Operators that only move elements, or test whether they are zero.
_VIEWS = frozenset((
    "Cast", "Concat", "Equal", "Expand", "Identity", "Not", "Reshape", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
))  # fmt: skip
# Operators that compute each element from one element of each input.
_ELEMENTWISE = _VIEWS | {
    "Add", "And", "Clip", "Div", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Log", "Max",
    "Min", "Mul", "Neg", "Or", "Sub", "Where",
}  # fmt: skip
# Operators between the first softmax and the first weighted sum: masks, divisions by a sum, and what
# replaces numbers that are not finite.
_AFTER_SOFTMAX = _ELEMENTWISE | {"IsInf", "IsNaN", "ReduceSum", "Softmax"}
_WEIGHED = ("Div", "Mul", "Where")  # operators whose constants may be equal couplings


# --- Finding the tensors, before their effect is known ---


@dataclass(frozen=True)
class OtherInput:
    """A tensor besides the votes.

    Attributes:
        name: of the graph.
        neutral: a value that, given to all its elements, leaves the routing unchanged.
    """

    name: str
    neutral: float


def find_other_inputs(
    graph: Values, votes: str, last: str
) -> Iterator[tuple[tuple[OtherInput, ...], ...]]:
    """Find the tensors besides its votes on which routing depends.

    First, tensors of which all that is read are views. Then, if these are others, tensors of which it is
    computed element by element, such as the mask in ``logits * mask - 1e9 * (1 - mask)``.

    Args:
        last: the last softmax.

    Yields:
        For each of them, the tensors that may stand for it, smallest first: a mask of the words, and the same
        mask repeated for the capsules of each word.

    Raises:
        NoMatch: no operator accepts it.
    """
    wanted = _other_reads(graph, votes, last)
    found: list[tuple[tuple[OtherInput, ...], ...]] = []
    for operators in (_VIEWS, _ELEMENTWISE):
        others = _grouped(graph, wanted, operators)
        if others is not None and others not in found:
            found.append(others)
            yield others
    if not found:
        raise NoMatch(MORE)


def _grouped(
    graph: Values, wanted: dict[str, float], operators: frozenset[str]
) -> tuple[tuple[OtherInput, ...], ...] | None:
    """The tensors from which each group of reads is computed by these operators; None if too many."""
    # Tensors from which a whole group is computed, and the group.
    groups: list[tuple[set[str], list[str]]] = []
    for name in wanted:
        chain = _chain(graph, name, operators)
        for k, (common, members) in enumerate(groups):
            if common & set(chain):
                groups[k] = (common & set(chain), [*members, name])
                break
        else:
            groups.append((set(chain), [name]))
    if len(groups) > _MOST:
        return None
    found = tuple(
        _alternatives(graph, common, {m: wanted[m] for m in members}) for common, members in groups
    )
    return found if all(found) else None


def _other_reads(graph: Values, votes: str, last: str) -> dict[str, float]:
    """The other tensors read by the nodes from the votes to the weighted sum, with their neutral values."""
    known = set(graph.with_twins([votes]))
    down = known.union(*(graph.after(v) for v in known))
    inside = {name for name in graph.distances(last) if name in down} - known
    end = last
    for _ in range(_STEPS):  # tensors that change the couplings after the last softmax
        users = graph.users(end)
        if len(users) != 1 or users[0].op_type in ("MatMul", "Einsum", "ReduceSum"):
            break
        if any(i in known for i in users[0].input):
            break
        end = users[0].output[0]
        inside.add(end)
    reads = _RoutingReads(graph, known, graph.sizes[last] // graph.batch)
    for name in sorted(inside, key=lambda n: graph.order[n]):
        node = graph.producer(name)
        if node is not None:
            reads.add_node(node, down)
    return reads.neutral


class _RoutingReads:
    """The tensors that routing reads besides its votes.

    Attributes:
        neutral: the value of each at which it changes nothing.
    """

    def __init__(self, graph: Values, votes: set[str], couplings: int) -> None:
        """Args:
        votes: the votes and the tensors that hold the same values.
        couplings: their number for an image.
        """
        self._graph = graph
        self._votes = votes
        self._couplings = couplings
        self.neutral: dict[str, float] = {}

    def add_node(self, node: onnx.NodeProto, within: set[str]) -> None:
        """Record what a node reads besides the tensors within.

        Raises:
            NoMatch: it is read in a way for which there is no neutral value.
        """
        for k, read in enumerate(node.input):
            if read in within or read in self._graph.constant or not read:
                continue
            if self._weighs_votes(node, k) and self._add_couplings(read):
                continue
            neutral = _neutral(node, k, within)
            if neutral is not None:
                self._add(read, neutral)
            elif not self._add_couplings(read):
                raise NoMatch(MORE)

    def _add(self, read: str, neutral: float) -> None:
        if self.neutral.setdefault(read, neutral) != neutral:
            raise NoMatch(MORE)

    def _weighs_votes(self, node: onnx.NodeProto, place: int) -> bool:
        """Whether an input is multiplied elementwise by the votes, as couplings are."""
        if node.op_type != "Mul":
            return False
        return bool(self._votes & set(_chain(self._graph, node.input[1 - place], _VIEWS)))

    def _add_couplings(self, name: str) -> bool:
        """Record what the first couplings, which do not depend on the votes, are computed from."""
        graph = self._graph
        node = graph.producer(name)
        if node is None or node.op_type not in _AFTER_SOFTMAX:
            return False
        if node.op_type == "Softmax":
            self._add_logits(node.input[0])
            return True
        behind = {i for i in node.input if i in graph.sources and self._add_couplings(i)}
        if not behind:  # equal couplings are a constant
            behind = {i for i in node.input if i in graph.constant and self._may_be_couplings(i)}
        if not behind or (node.op_type not in _WEIGHED and not behind & set(graph.sources)):
            return False
        self.add_node(node, behind)
        return True

    def _may_be_couplings(self, name: str) -> bool:
        """Whether a constant has a number for each coupling of an image, or one for all of them."""
        value = self._graph.value[name]
        return bool(np.any(value)) and (value.size == 1 or value.size >= self._couplings)

    def _add_logits(self, name: str) -> None:
        """Record what start logits are computed from."""
        graph = self._graph
        node = graph.producer(name)
        live = [i for i in node.input if i in graph.sources] if node is not None else []
        if node is None or node.op_type not in ("Add", "Mul", "Sub", "Where") or not live:
            return self._add(name, 0.0)
        if node.op_type == "Mul":  # zeros, whatever they are multiplied by
            zero = any(not np.any(graph.value.get(i, 1)) for i in node.input)
            return None if zero else self._add(name, 0.0)
        if node.op_type == "Sub" and node.input[1] in live:
            self._add(node.input[1], 0.0)
            live.remove(node.input[1])
        if node.op_type == "Where" and node.input[0] in graph.sources:
            if len(live) == 1 and any(user.op_type == "Add" for user in graph.users(name)):
                return self._add(
                    name, 0.0
                )  # a mask that is added to all logits, not only to the first
            out = [np.all(graph.value.get(i, 0.0) <= LOW) for i in node.input[1:]]
            if out[0] == out[1]:
                return self._add(name, 0.0)
            self._add(node.input[0], float(out[1]))
            live.remove(node.input[0])
        for each in live:
            self._add_logits(each)
        return None


def _neutral(node: onnx.NodeProto, place: int, within: set[str]) -> float | None:
    """The value of an input at which a node passes its other input through; None if unknown."""
    if node.op_type == "Where" and place == 0:
        return float(node.input[1] in within)
    return {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}.get(node.op_type)


def _chain(graph: Values, name: str, operators: frozenset[str]) -> list[str]:
    """A tensor and the tensors that it is computed from by these operators alone, nearest first."""
    found, read = [name], {name}
    while True:
        latest = max(read, key=lambda n: graph.order.get(n, -1))
        node = graph.producer(latest)
        if node is None or latest in graph.constant or node.op_type not in operators:
            return found
        read = read - {latest} | set(graph.sources[latest])
        if len(read) == 1:
            found += read


def _alternatives(
    graph: Values, common: set[str], wanted: dict[str, float]
) -> tuple[OtherInput, ...]:
    """The tensors that all are computed from, with their neutral values: the smallest first.

    Of those of one size and type, the nearest.
    """
    found: dict[tuple[int, np.dtype[Any]], OtherInput] = {}
    for name in sorted(common, key=lambda n: (graph.sizes[n], -graph.order[n])):
        neutral = _neutral_of_all(graph, name, wanted)
        if neutral is not None:
            found.setdefault((graph.sizes[name], graph.kind(name)), OtherInput(name, neutral))
    return tuple(found.values())


def _neutral_of_all(graph: Values, name: str, wanted: dict[str, float]) -> float | None:
    """The value of a tensor that makes what is computed from it neutral; None if there is none."""
    if list(wanted) == [name]:
        return wanted[name]
    ends = [w for w in wanted if w != name]
    function = graph.function([name], ends)
    for value in (1.0, 0.0):
        given = function(np.full(graph.shapes[name], value))
        own = wanted.get(name, value) == value
        if own and all((g == wanted[w]).all() for w, g in zip(ends, given, strict=True)):
            return value
    return None


class Region:
    """The part of the graph that the votes determine, with other tensors held neutral."""

    def __init__(self, graph: Values, votes: str, others: Sequence[OtherInput]) -> None:
        self.graph = graph
        self.others = tuple(others)
        self.cut = [votes, *(s.name for s in others)]

    def determined(self) -> list[str]:
        """The region's tensors."""
        return self.graph.determined(*self.cut)

    def numbers(self, ends: Sequence[str]) -> dict[str, Array]:
        """``Values.numbers`` of the region."""
        return self.graph.numbers(self.cut, ends)

    def function(self, ends: Sequence[str]) -> Function:
        """The ends as a function of the votes alone."""
        whole = self.graph.function(self.cut, ends)
        neutral = [np.full(self.graph.shapes[s.name], s.neutral) for s in self.others]
        return lambda x: whole(x, *neutral)


# --- Determining the effect of the tensors ---


_VALUES = ("value", "negative")


@dataclass(frozen=True)
class PerImage:
    """The effect of a tensor besides the votes.

    Attributes:
        name: of the graph.
        layout: layout ``[n, i]``; for priors also ``[n, i, j]``.
        prior: whether it is added to the logits instead of multiplying the couplings; a tensor that does
            both has two.
        form: ``value`` if used as it is; for priors, ``negative`` if subtracted, and ``log`` if its logarithm
            is added (couplings are multiplied by it, then divided by their sum); otherwise which elements are
            kept, ``nonzero`` or ``zero``. The others have the factor 0, or the prior `formulas.LOWEST`.
    """

    name: str
    layout: Layout
    prior: bool
    form: str

    def couplings(self, x: Array) -> Array:
        """Priors or factors ``[n, j or 1, i]``, given a value of the tensor."""
        values = self.layout.read(np.asarray(x, np.float64))
        if self.form == "negative":
            values = -values
        elif self.form == "log":
            values = np.where(values > 0, np.log(np.where(values > 0, values, 1)), LOWEST)
        elif self.form != "value":
            inside = (values != 0) == (self.form == "nonzero")
            values = np.where(inside, 0.0, LOWEST) if self.prior else inside.astype(float)
        return values.swapaxes(1, 2) if values.ndim == 3 else values[:, None]

    def __str__(self) -> str:
        if self.form == "log":
            return "factors of each image before the softmax"
        if self.form in _VALUES:
            return "priors of each image" if self.prior else "factors of each image"
        return "a mask before the softmax" if self.prior else "a mask after the softmax"


def fit_per_image(
    graph: Values,
    votes: str,
    others: Sequence[Sequence[OtherInput]],
    end: str,
    layout: Layout,
    roles: Layout,
    kind: Dynamic,
    rtol: float,
) -> tuple[Region, tuple[PerImage, ...]]:
    """Determine the effect of each tensor besides the votes.

    Args:
        others: the result of `find_other_inputs`.
        end: the result, laid out as ``[n, j, p]``.
        roles: layout of the votes.
        kind: what the routing computes if all of them are neutral.
        rtol: relative tolerance of the comparison.

    Returns:
        The region from the tensors that fit, and their effects.

    Raises:
        NoMatch: nothing fits.
    """
    if not others:
        return Region(graph, votes, ()), ()
    if roles.sizes[0] != graph.batch or kind.over not in ("i", "j") or kind.group > 1:
        raise NoMatch(MORE)
    for names in itertools.product(*others):
        hypotheses = [list(_hypotheses(graph, each.name, roles)) for each in names]
        if not all(hypotheses):
            continue
        region = Region(graph, votes, names)
        function = graph.function(region.cut, [end])
        for chosen in itertools.product(*hypotheses):
            if _agrees(graph, function, chosen, layout, roles, kind, rtol):
                return region, tuple(itertools.chain.from_iterable(chosen))
    raise NoMatch(MORE)


_Effect = tuple[PerImage, ...]  # of one tensor: a prior, a factor, or both


def _hypotheses(graph: Values, name: str, roles: Layout) -> Iterator[_Effect]:
    """The effects that a tensor may have. A mask may be applied both before and after the softmax."""
    kind, shape = graph.kind(name), graph.shapes[name]
    batch, parents, children = roles.part(0), roles.part(1), roles.part(2)
    first = None if roles.batch is None else 0
    per_child = list(layouts(shape, [batch, children], first))
    masks = ["nonzero", "zero"]
    for prior in (False, True):
        values = []
        if np.issubdtype(kind, np.floating):
            values = list(_VALUES) if prior else ["value"]
        elif not prior and kind != np.bool_:
            values = ["value"]
        scales = ["log"] if prior and kind != np.bool_ else []
        for form, layout in itertools.product([*values, *masks, *scales], per_child):
            yield (PerImage(name, layout, prior, form),)
        if prior:
            for form in values:
                for layout in layouts(shape, [batch, children, parents], first):
                    yield (PerImage(name, layout, prior, form),)
    factors = masks if kind == np.bool_ else ["value", *masks]
    for form, factor, layout in itertools.product(masks, factors, per_child):
        yield PerImage(name, layout, True, form), PerImage(name, layout, False, factor)


def _agrees(
    graph: Values,
    function: Function,
    chosen: Sequence[_Effect],
    layout: Layout,
    roles: Layout,
    kind: Dynamic,
    rtol: float,
) -> bool:
    rng = np.random.default_rng(17)
    for size in (0.3, 2.0, 1e-2, 20.0):
        votes = size * rng.standard_normal(roles.shape)
        values = [_drawn(graph, effects[0], rng) for effects in chosen]
        prior, mask = np.zeros(()), np.ones(())
        for effects, x in zip(chosen, values, strict=True):
            for each in effects:
                if each.prior:
                    prior = prior + each.couplings(x)
                else:
                    mask = mask * each.couplings(x)
        wanted = layout.read(function(votes, *values)[0])
        found = kind(roles.read(votes), prior, mask)
        if not excess_of(found, wanted, rtol, 1e-9) <= 1:
            return False
    return True


def _drawn(graph: Values, term: PerImage, rng: np.random.Generator) -> Array:
    """Values of a tensor, zeros and ones among them, on which masks depend.

    If it has one for each child, one image keeps all children and another keeps none.
    """
    shape, kind = graph.shapes[term.name], graph.kind(term.name)
    x = rng.integers(2 if kind == np.bool_ else 3, size=shape).astype(np.float64)
    if np.issubdtype(kind, np.floating):
        x = np.where(rng.random(shape) < 0.5, x, 2 * rng.standard_normal(shape))
    if len(term.layout.groups) == 3:
        return x
    x = term.layout.read(x).copy()
    x[0], x[-1] = 1, 0
    return term.layout.write(x)
