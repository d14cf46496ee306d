"""The operators in ATen operators, for compilers that know nothing of ``capsedge``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from capsedge.ops._common import DEFINITIONS


def decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A table that lowers the operators of an exported program to ATen operators.

    Their definitions, unrolled: an ``ExportedProgram`` after ``run_decompositions`` with this table holds no
    ``capsedge`` operator, and goes into ExecuTorch, AOTInductor or any other backend of ``torch.export``::

        program = torch.export.export(module, (images,))
        program = program.run_decompositions(capsedge.ops.decompositions())

    The table holds these operators alone: merge it with ``torch.export.default_decompositions()`` to
    lower others too.
    """
    return {
        getattr(torch.ops.capsedge, name).default: definition
        for name, definition in DEFINITIONS.items()
    }
