"""Explain failures of other libraries on a user's module in terms of that module."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import onnx
import torch

from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.graph.ir import Graph
from capsedge.graph.passes import is_foreign
from capsedge.models.user_code import first_line, line_of, node_lines

_NODE = re.compile(r"while running (?P<kind>\w+) node\. Name:'(?P<name>[^']*)'")
_WAY_OUT = (
    "Fix the batch with batch=1 (--batch 1), rewrite that line with other operations, or pass "
    "inputs that the module accepts with inputs= (--inputs)."
)


@contextlib.contextmanager
def explain_module_errors(
    made: list[tuple[onnx.ModelProto, torch.export.ExportedProgram]],
) -> Iterator[None]:
    """Turn exceptions of other libraries and of the user's code into errors about the module.

    Args:
        made: the graph and its captured program, once they exist; they lead to the line.

    Raises:
        UnsupportedModelError: in place of the other error; errors of this package are left unchanged.
    """
    try:
        yield
    except CapsedgeError as error:
        if type(error) is not CapsedgeError:
            raise
        details = [*error.details, *_lines(error.why, made)]
        raise UnsupportedModelError(error.what, error.why, _WAY_OUT, details=details) from error
    except Exception as error:
        where = line_of(error)
        if not where and not is_foreign(error):
            raise
        why = first_line(error)
        if where:
            raise UnsupportedModelError(
                "The module fails on an input of the comparison.",
                f"{type(error).__name__}: {why}",
                "Pass inputs that it accepts with inputs= (--inputs).",
                details=[where],
            ) from error
        raise UnsupportedModelError(
            "The module's graph does not run in ONNX Runtime.",
            why,
            _WAY_OUT,
            details=_lines(why, made),
        ) from error


def _lines(why: str, made: list[tuple[onnx.ModelProto, torch.export.ExportedProgram]]) -> list[str]:
    """The user's line of the node that ONNX Runtime names."""
    failed = _NODE.search(why)
    if failed is None or not made:
        return []
    model, program = made[-1]
    outputs = Graph(n for n in model.graph.node if n.name == failed["name"]).produced
    found = (next(node_lines(n), "") for n in program.graph.nodes if n.name in outputs)
    return [line for line in found if line]
