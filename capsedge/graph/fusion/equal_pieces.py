"""Fit equal pieces of a graph once: the same nodes and constants, cut at tensors of the same shapes.

Equal layers, streams and iterations have such pieces. Only names differ, so whatever holds for the function
of one holds for all.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import onnx

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.values import Values

Result = TypeVar("Result")


def fit_once(
    graph: Values,
    boundary: Sequence[str],
    ends: Sequence[str],
    question: tuple[Hashable, ...],
    answer: Callable[[], Result],
) -> Result:
    """The answer to a question about a piece's function; for an equal piece, the earlier answer.

    Args:
        boundary, ends: as for `Values.function`.
        question: what the answer depends on besides the function.
        answer: computes it, in terms that hold no names.

    Raises:
        NoMatch: the answer raises it, or did so for an equal piece.
    """
    piece = piece_key(graph, boundary, ends)
    if piece is None:
        return answer()
    key = (piece, *question)
    if key not in graph.answers:
        try:
            graph.answers[key] = answer()
        except NoMatch as error:
            graph.answers[key] = NoMatch(
                str(error)
            )  # without its traceback, which keeps arrays alive
    found = graph.answers[key]
    if isinstance(found, NoMatch):
        raise NoMatch(str(found))
    return found  # type: ignore[no-any-return]


def piece_key(graph: Values, boundary: Sequence[str], ends: Sequence[str]) -> str | None:
    """The same for pieces that differ in names only; None if a node holds a graph of its own."""
    nodes, constants = graph.between(graph.with_twins(boundary), ends)
    number, fresh = {"": -1}, itertools.count(len(boundary))
    for k, name in enumerate(boundary):
        number |= dict.fromkeys((name, *graph.twins.get(name, ())), k)
    parts: list[Any] = [[(graph.shapes[name], graph.kind(name)) for name in boundary]]
    for node in nodes:
        if any(
            a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
            for a in node.attribute
        ):
            return None
        for name in node.input:
            if name in constants and name not in number:
                number[name] = next(fresh)
                parts.append(_contents(np.asarray(graph.value[name])))
        number |= {name: next(fresh) for name in node.output if name}
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        read = [number[name] for name in node.input]
        parts.append(
            (node.domain, node.op_type, read, [number[o] for o in node.output], attributes)
        )
    if not all(name in number for name in ends):
        return None
    parts.append([number[name] for name in ends])
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def hypothesis_key(kind: Any) -> tuple[Hashable, ...]:
    """The parameters of a hypothesis, a dataclass with numbers, words and arrays, as part of a question."""
    values = [getattr(kind, each.name) for each in fields(kind)]
    return tuple(_contents(v) if isinstance(v, np.ndarray) else v for v in values)


def _contents(value: np.ndarray[Any, Any]) -> tuple[tuple[int, ...], str, str]:
    stored = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    return value.shape, str(value.dtype), stored
