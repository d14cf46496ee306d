"""Names of nodes that state their layer, for TensorRT, which keeps only the names of nodes.

TensorRT tells the names of ONNX nodes that a layer of an engine came from, and nothing else of them. So
`capsedge build` names nodes ``capsedge/classes/routing.2/MatMul_17``: layer, group, iteration, operator and
number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from capsedge.runtime.reading.attribution import GROUPS, ROUTING, Place

_NAME = re.compile(
    rf"capsedge/(?P<layer>[^/\x1e\[\]+]*)/(?P<group>{'|'.join(GROUPS)})"
    r"(?:\.(?P<iteration>\d{1,4})(?:-(?P<last>\d{1,4}))?)?/\w+_\d+"
)


def node_name(place: Place, op: str, number: int) -> str:
    """The name of a node that belongs to a layer."""
    group = place.group
    if place.iteration is not None:
        last = f"-{place.iterations}" if place.iterations > 1 else ""
        group = f"{group}.{place.iteration}{last}"
    layer = re.sub(r"[/\x1e\[\]+]", "_", place.layer)
    return f"capsedge/{layer}/{group}/{op}_{number}"


def places_in(words: str) -> list[Place]:
    """The places of all nodes that are named in what TensorRT says of a layer."""
    return [
        Place(
            found["layer"],
            found["group"],
            int(found["iteration"]) if found["iteration"] else None,
            int(found["last"] or 1),
        )
        for found in _NAME.finditer(words)
    ]


def merged(places: Sequence[Place]) -> Place:
    """One place for nodes that run as one: all of their layers, the group of most, and its iterations."""
    if not places:
        return Place()
    layers = [*dict.fromkeys(place.layer for place in places)]
    group = Counter(place.group for place in places).most_common(1)[0][0]
    first, last, iterations = None, None, 1
    if group == ROUTING:
        numbers = [place.iteration or 1 for place in places if place.group == ROUTING]
        ends = [max(p.iteration or 1, p.iterations) for p in places if p.group == ROUTING]
        first, last = min(numbers), max(ends)
        iterations = last if last > first else 1
    return Place(" + ".join(layers), group, first, iterations)
