"""Where routing may be: every softmax, and the tensors that look like the votes that it weighs."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from capsedge.graph.recognize.layouts import squeezed
from capsedge.graph.recognize.values import Values

_LOOKED_AT = 4  # candidates of one group
_NEAR = 60  # nodes between votes and their softmax at most
_VIEWS = ("Unsqueeze", "Reshape", "Expand", "Identity", "Squeeze")


@dataclass(frozen=True)
class Anchor:
    """A softmax that depends on the input.

    Attributes:
        name: its result.
        axis: size of the axis that it sums over.
    """

    name: str
    axis: int


@dataclass
class Group:
    """Softmaxes that seem to weigh the same votes.

    Attributes:
        votes: candidates, the likeliest first.
        anchors: in topological order.
    """

    votes: list[str]
    anchors: list[Anchor]


def anchors(graph: Values) -> list[Anchor]:
    """Every softmax: the node, or an exponential divided by its own sum."""
    found = []
    for node in graph.nodes:
        name = node.output[0] if node.output else ""
        if not name or name in graph.constant or node.domain or not graph.is_float(name):
            continue
        shape = graph.shape(name)
        if node.op_type == "Softmax" and shape:
            axis = graph.attribute(node, "axis", -1)
            found.append(Anchor(name, shape[axis]))
        elif node.op_type == "Div" and (summed := _sum_of(graph, node)) is not None:
            total = graph.size(summed)
            if total and graph.size(name) % total == 0:
                found.append(Anchor(name, graph.size(name) // total))
    return found


def _sum_of(graph: Values, node: onnx.NodeProto) -> str | None:
    """What divides an exponential, where that is its own sum."""
    above, below = node.input
    if getattr(graph.maker.get(above), "op_type", "") != "Exp":
        return None
    maker = graph.maker.get(below)
    while maker is not None and maker.op_type in _VIEWS:
        maker = graph.maker.get(maker.input[0])
    if maker is None or maker.op_type != "ReduceSum" or maker.input[0] != above:
        return None
    return str(maker.output[0])


def groups(graph: Values) -> list[Group]:
    """The anchors by the tensor that is likeliest to be their votes."""
    found: dict[str, Group] = {}
    for anchor in anchors(graph):
        votes = _candidates(graph, anchor)
        if not votes:
            found[anchor.name] = Group([], [anchor])
            continue
        for name in votes:
            graph.find_twins(name)
        same = next((k for k in found if k == votes[0] or k in graph.twins[votes[0]]), votes[0])
        found.setdefault(same, Group(votes, [])).anchors.append(anchor)
        if same == votes[0]:
            found[same].votes = votes
    return list(found.values())


def _candidates(graph: Values, anchor: Anchor) -> list[str]:
    """Ancestors with several elements for every coupling that two nodes or more read."""
    size = graph.size(anchor.name)
    leaky = size // anchor.axis * (anchor.axis - 1)
    ranked = []
    for name, distance in graph.distances(anchor.name).items():
        if not 0 < distance <= _NEAR or not graph.is_float(name):
            continue
        votes = graph.size(name)
        if len(squeezed(graph.shape(name))) < 3:
            continue
        fits = votes >= size and votes % size == 0
        if not fits and not (leaky and votes >= leaky and votes % leaky == 0):
            continue
        readers = len({id(n) for n in graph.users.get(name, ())})
        if readers >= 2:
            ranked.append((distance - 3 * readers, name))
    return [name for _, name in sorted(ranked)[:_LOOKED_AT]]
