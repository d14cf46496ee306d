"""Sort the nodes of a graph, which converters do not always do: those that compute a value come first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush


class Cyclic(ValueError):
    """Nodes wait for each other.

    Attributes:
        nodes: their numbers, and those of the nodes that wait for them.
    """

    def __init__(self, nodes: list[int]) -> None:
        super().__init__(f"{len(nodes)} nodes wait for each other")
        self.nodes = nodes


def sorted_nodes(reads: Sequence[Collection[str]], makes: Sequence[Collection[str]]) -> list[int]:
    """Numbers of the nodes in an order in which each comes after those whose values it reads.

    Nodes that are in order already keep their places. Values that no node makes are taken as given.

    Args:
        reads: the values that each node reads, also in the graphs inside it.
        makes: the values that each node makes.
    """
    maker: dict[str, int] = {}
    for number, names in enumerate(makes):
        for name in names:
            maker.setdefault(name, number)
    before = [{maker[name] for name in names if name in maker} for names in reads]
    if all(not earlier or max(earlier) < number for number, earlier in enumerate(before)):
        return list(range(len(reads)))
    waiting = [len(earlier) for earlier in before]
    users: list[list[int]] = [[] for _ in reads]
    for number, earlier in enumerate(before):
        for other in earlier:
            users[other].append(number)
    ready = [number for number, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        order.append(heappop(ready))
        for user in users[order[-1]]:
            waiting[user] -= 1
            if not waiting[user]:
                heappush(ready, user)
    if len(order) < len(reads):
        raise Cyclic(sorted(set(range(len(reads))) - set(order)))
    return order
