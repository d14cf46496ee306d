"""Names of the values of every routing iteration inside a function body: ``iter2_couplings``.

A body writes them, prefixed with its operator (``DynamicRouting_iter2_couplings``); inlining keeps them and
adds a number. The ledger's probe, the sensitivity of iterations and the attribution of times look for them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from capsedge.schema.operators import ROUTING_OPERATORS

_INNER = re.compile(r"iter(?P<iteration>\d{1,6})_(?P<kind>[a-z]+)")


class Mark(NamedTuple):
    """A marked value.

    Attributes:
        operator: the operator whose body contains it.
        iteration: from 1.
        kind: one of the operator's ``marks``.
    """

    operator: str
    iteration: int
    kind: str


def name_of(iteration: int, kind: str) -> str:
    """The name of a value in a body, without the operator."""
    return f"iter{iteration}_{kind}"


def mark_in(operator: str, value: str) -> Mark | None:
    """The mark of a value of an operator's body, from its name without the operator; None if it has none."""
    spec, found = ROUTING_OPERATORS.get(operator), _INNER.match(value)
    if spec is None or found is None or found["kind"] not in spec.marks:
        return None
    return Mark(operator, int(found["iteration"]), found["kind"])


def mark_of(name: str) -> Mark | None:
    """The mark of a value of a graph of standard operators, from its full name; None if it has none.

    Bodies with INT8 weights are not examined: they are judged by their decisions, not by iterations.
    """
    operator, _, value = name.partition("_")
    mark = mark_in(operator, value)
    return None if mark is None or ROUTING_OPERATORS[operator].quantizes else mark
