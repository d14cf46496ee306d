"""The operators in ATen operators, for compilers that know nothing of ``capsedge``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from capsedge.ops.attention_routing import _define as _attention_routing
from capsedge.ops.dynamic_routing import _define as _dynamic_routing
from capsedge.ops.em_routing import _define as _em_routing
from capsedge.ops.squash import _define as _squash


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A table that lowers the operators of an exported program to ATen operators.

    Their definitions, unrolled: an ``ExportedProgram`` after ``run_decompositions`` with this table holds no
    ``capsedge`` operator, and goes into ExecuTorch, AOTInductor or any other backend of ``torch.export``::

        program = torch.export.export(module, (images,))
        program = program.run_decompositions(capsedge.ops.decompositions())

    The table holds these operators alone: merge it with ``torch.export.default_decompositions()`` to
    lower others too.
    """
    ops = torch.ops.capsedge
    return {
        ops.squash.default: _squash,
        ops.dynamic_routing.default: _dynamic_routing,
        ops.em_routing.default: _em_routing,
        ops.attention_routing.default: _attention_routing,
    }
