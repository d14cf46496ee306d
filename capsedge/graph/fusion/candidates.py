"""Find where routing may be: every softmax, and the tensors that may be the votes it weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass
from itertools import combinations

import onnx

from capsedge.graph.fusion.layouts import squeezed
from capsedge.graph.fusion.values import Values

_LOOKED_AT = 4  # maximum number of candidates per group
_NEAR = 60  # maximum number of nodes between votes and their softmax
_LOG_SUM_NEAR = 6  # maximum number of nodes between a difference and the logarithm in it
_MASKED_NEAR = 4  # maximum number of nodes between a softmax and a sum of its couplings
_EPSILON = 1e-4  # largest number that is added to a sum so that it is not zero
_PRODUCTS = ("Mul", "Div")
_BOUNDS = ("Clip", "Max")
_SUMS = ("ReduceSum", "ReduceL1")
_VIEWS = ("Unsqueeze", "Reshape", "Expand", "Identity", "Squeeze")


@dataclass(frozen=True)
class Softmax:
    """A softmax that depends on the input.

    Attributes:
        name: name of its output.
        axis: size of the axis over which it normalizes.
    """

    name: str
    axis: int


@dataclass
class Candidate:
    """Softmaxes that appear to weight the same votes.

    Attributes:
        votes: tensors that may be the votes, most likely first.
        softmaxes: the softmaxes, in topological order.
    """

    votes: list[str]
    softmaxes: list[Softmax]


def find_softmaxes(graph: Values) -> list[Softmax]:
    """Every softmax, whether a single node or decomposed."""
    found: dict[str, Softmax] = {}
    for node in graph.nodes:
        name = node.output[0] if node.output else ""
        if not name or name in graph.constant or node.domain or name not in graph.floats:
            continue
        axis = _axis(graph, node, found)
        if axis:
            found[name] = Softmax(name, axis)
    return list(found.values())


def _axis(graph: Values, node: onnx.NodeProto, softmaxes: Container[str]) -> int | None:
    """Size of the axis that a softmax sums over; None for any other node.

    Args:
        softmaxes: softmaxes found before the node; their outputs are not normalized again.
    """
    shape = graph.shapes[node.output[0]]
    if node.op_type == "Softmax" and shape:
        return shape[int(graph.attribute(node, "axis", -1))]
    total = None
    if node.op_type == "Exp":
        log = _before_views(graph, node.input[0])
        if log is not None and log.op_type == "LogSoftmax":
            return graph.shapes[log.output[0]][int(graph.attribute(log, "axis", -1))]
        total = _log_sum(graph, log, softmaxes)
    elif node.op_type == "Div":
        above, summed = node.input[0], _before_views(graph, node.input[1])
        total = _sum_of(graph, above, summed, softmaxes)
    elif node.op_type == "Mul":
        for above, below in (node.input, reversed(node.input)):
            inverse = _before_views(graph, below)
            if inverse is not None and inverse.op_type == "Reciprocal":
                summed = _before_views(graph, inverse.input[0])
                total = _sum_of(graph, above, summed, softmaxes)
    size = graph.sizes[node.output[0]]
    parts = graph.sizes[total] if total else 0
    return size // parts if parts and size % parts == 0 else None


def _before_views(graph: Values, name: str) -> onnx.NodeProto | None:
    """The node that computes a tensor, looking through reshapes, repeats, and what avoids zero."""
    maker = graph.producer(name)
    while maker is not None:
        if maker.op_type == "Add" and _is_tiny(graph, maker.input[1]):
            maker = graph.producer(maker.input[0])
        elif maker.op_type == "Add" and _is_tiny(graph, maker.input[0]):
            maker = graph.producer(maker.input[1])
        elif maker.op_type in (*_VIEWS, *_BOUNDS):
            maker = graph.producer(maker.input[0])
        else:
            break
    return maker


def _is_tiny(graph: Values, name: str) -> bool:
    """Whether a tensor is an epsilon."""
    value = graph.value.get(name) if name in graph.constant else None
    return value is not None and value.size == 1 and 0 < value.reshape(-1)[0] <= _EPSILON


def is_divided_again(graph: Values, softmax: Softmax) -> bool:
    """Whether the couplings, perhaps masked, are divided by their sum after the softmax."""
    end = softmax.name
    for _ in range(_MASKED_NEAR):
        users = graph.users(end)
        for node in users:
            summed = _before_views(graph, node.input[1]) if node.op_type == "Div" else None
            if summed is not None and summed.op_type in _SUMS and summed.input[0] == end:
                return True
        after = [n for n in users if n.op_type in (*_VIEWS, *_PRODUCTS, "Where")]
        if not after:
            break
        end = after[0].output[0]
    return False


def _sum_of(
    graph: Values, terms: str, maker: onnx.NodeProto | None, softmaxes: Container[str]
) -> str | None:
    """The output of a node that sums these exponentials, or products with them."""
    if maker is None or maker.op_type not in _SUMS or maker.input[0] != terms:
        return None
    near, read = [terms], set[str]()
    while near:
        name = near.pop()
        factor = graph.producer(name)
        if factor is None or name in softmaxes or name in read:
            continue
        read.add(name)
        if factor.op_type == "Exp":
            return str(maker.output[0])
        if factor.op_type in (*_PRODUCTS, *_VIEWS, *_BOUNDS):
            near += [i for i in factor.input if i in graph.sources]
    return None


def _log_sum(graph: Values, minus: onnx.NodeProto | None, softmaxes: Container[str]) -> str | None:
    """The sum whose logarithm is subtracted in ``x - log(sum(exp x))``, with a maximum taken out or not."""
    if minus is None or minus.op_type != "Sub":
        return None
    near = graph.distances(minus.input[1])
    for name, distance in near.items():
        maker = graph.producer(name)
        if maker is None or distance > _LOG_SUM_NEAR:
            continue
        if maker.op_type == "ReduceLogSumExp":
            return name
        if maker.op_type == "Log":
            summed = _before_views(graph, maker.input[0])
            if summed is None:
                return None
            return _sum_of(graph, summed.input[0], summed, softmaxes)
    return None


def find_candidates(graph: Values) -> list[Candidate]:
    """The softmaxes, grouped by the tensor most likely to be their votes and by their own size."""
    found: dict[tuple[str, int], Candidate] = {}
    for softmax in find_softmaxes(graph):
        votes, size = _vote_candidates(graph, softmax), graph.sizes[softmax.name]
        if not votes:
            found[softmax.name, size] = Candidate([], [softmax])
            continue
        for name in votes:
            graph.find_twins(name)
        twins = graph.twins[votes[0]]
        same = next((k for k, n in found if n == size and (k == votes[0] or k in twins)), votes[0])
        group = found.setdefault((same, size), Candidate(votes, []))
        group.softmaxes.append(softmax)
        if same == votes[0]:
            group.votes = votes
    return list(found.values())


def _vote_candidates(graph: Values, softmax: Softmax) -> list[str]:
    """Ancestors that have elements for each coupling and are read by at least two nodes around the softmax.

    Those with only one element for each come later: they are more likely to be logits. Last are those that
    may be votes of all parents.
    """
    size = graph.sizes[softmax.name]
    leaky = size // softmax.axis * (softmax.axis - 1)
    ahead, ranked = graph.distances(softmax.name), []
    around = graph.after(softmax.name).union(ahead)
    for name, distance in ahead.items():
        if not 0 < distance <= _NEAR or name not in graph.floats:
            continue
        votes = graph.sizes[name]
        if len(squeezed(graph.shapes[name])) < 3:
            continue
        fits = votes >= size and votes % size == 0
        fits |= leaky > 0 and votes >= leaky and votes % leaky == 0
        if not fits and not _may_be_of_all(graph.shapes[name], graph.shapes[softmax.name]):
            continue
        # What reads it for other softmaxes, as other streams read their parts of a layer, does not count.
        readers = sum(not around.isdisjoint(node.output) for node in graph.users(name))
        if readers >= 2:
            ranked.append((not fits, votes <= size, distance - 3 * readers, name))
    return [name for *_, name in sorted(ranked)[:_LOOKED_AT]]


def _may_be_of_all(votes: tuple[int, ...], couplings: tuple[int, ...]) -> bool:
    """Whether votes ``[n, i, p]`` may be those of all parents of couplings ``[n, j, i]``, in any order."""
    votes, couplings = squeezed(votes), squeezed(couplings)
    if len(votes) != 3 or len(couplings) != 3:
        return False
    return any(not Counter(pair) - Counter(votes) for pair in combinations(couplings, 2))
