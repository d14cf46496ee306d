"""Names of the capsule operators in a file: one name for one function body.

ONNX tells functions of one name apart by ``overload``, which ONNX Runtime ignores before 1.27. So distinct
bodies of an operator have distinct names: ``DynamicRouting``, ``DynamicRouting_2``, ``DynamicRouting_3``. The
operator library has kernels for a family of such names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from capsedge.schema.operators import OPERATORS

DOMAIN = "capsedge"
VERSION = 1  # of the domain
MOST = 256  # names per operator that have a kernel; further ones run as function bodies
FAMILIES_KEY = "capsedge.families"  # session option that the operator library reads

_NUMBERED = re.compile(r"([A-Za-z][A-Za-z0-9]*)_([2-9]|[1-9][0-9]{1,5})")


def numbered(operator: str, number: int) -> str:
    """The name of an operator's body, counted from 1."""
    return operator if number == 1 else f"{operator}_{number}"


def split(name: str) -> tuple[str, int]:
    """Operator and number of a node's type; the type itself and 1 if it is not a numbered operator."""
    match = _NUMBERED.fullmatch(name)
    if match is None or match[1] not in OPERATORS:
        return name, 1
    return match[1], int(match[2])


def operator_of(name: str) -> str:
    """The operator that a node's type names."""
    return split(name)[0]


def families(names: Iterable[str]) -> str:
    """The names that the operator library must have kernels for: ``DynamicRouting:2,Squash:1``.

    Args:
        names: types of the ``capsedge`` nodes of a file.
    """
    most: dict[str, int] = {}
    for name in names:
        operator, number = split(name)
        if operator in OPERATORS:
            most[operator] = max(most.get(operator, 1), min(number, MOST))
    return ",".join(f"{operator}:{most[operator]}" for operator in sorted(most))
