"""Explain failures of other libraries on a user's module in terms of that module."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import onnx
import torch
from torch import nn

from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.exporters.subject import Subject
from capsedge.exporters.user_batch import NoFreeBatch
from capsedge.graph.ir import Graph
from capsedge.graph.passes import is_foreign
from capsedge.models.user.code import first_message_line, line_of, node_lines

FIXED = "Constraints violated"  # torch's words
_APART = re.compile(r"generated guard .* != (\d+)")
_LEAST = re.compile(r"generated guard (\d+) <= ")
_NO_ONNX = re.compile(r"Error when translating node.*?target=(torch\.ops\.[\w.]+?)\]", re.DOTALL)
_DECIDES = ("GuardOnDataDependentSymNode", "DataDependent", "unbacked", ".item()")
_NODE = re.compile(r"while running (?P<kind>\w+) node\. Name:'(?P<name>[^']*)'")
_WAY_OUT = (
    "Fix the batch with batch=1 (--batch 1), rewrite that line with other operations, or pass "
    "inputs that the module accepts with inputs= (--inputs)."
)


@contextlib.contextmanager
def explain_module_errors(
    model: onnx.ModelProto | None = None, program: torch.export.ExportedProgram | None = None
) -> Iterator[None]:
    """Turn exceptions of other libraries and of the user's code into errors about the module.

    Args:
        model, program: the graph and its captured program, which lead to the line; None before there are any.

    Raises:
        UnsupportedModelError: in place of the other error; errors of this package are left unchanged.
    """
    try:
        yield
    except CapsedgeError as error:
        if type(error) is not CapsedgeError:
            raise
        details = [*error.details, *_lines(error.why, model, program)]
        raise UnsupportedModelError(error.what, error.why, _WAY_OUT, details=details) from error
    except Exception as error:
        where = line_of(error)
        if not where and not is_foreign(error):
            raise
        why = first_message_line(error)
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
            details=_lines(why, model, program),
        ) from error


def _lines(
    why: str, model: onnx.ModelProto | None, program: torch.export.ExportedProgram | None
) -> list[str]:
    """The user's line of the node that ONNX Runtime names."""
    failed = _NODE.search(why)
    if failed is None or model is None or program is None:
        return []
    outputs = Graph(n for n in model.graph.node if n.name == failed["name"]).produced
    found = (next(node_lines(n), "") for n in program.graph.nodes if n.name in outputs)
    return [line for line in found if line]


# --- What torch could not capture ---


def capture_error(error: Exception, lines: list[str] | None = None) -> UnsupportedModelError:
    """Explain why torch could not capture a module, with the user's line and the fix.

    Args:
        lines: the lines that turn a free batch into a number; None if the batch is fixed.
    """
    cause = error.__cause__ or error
    text = f"{type(cause).__name__} {cause}"
    where = line_of(error) or line_of(cause) or getattr(error, "line", "")
    if any(sign in text for sign in _DECIDES):
        return UnsupportedModelError(
            "PyTorch cannot capture this module as a graph: its code branches on the values of its input.",
            where or first_message_line(cause),
            "Compute both branches and choose with torch.where(condition, a, b), or leave the "
            "`if`, `.item()` or `.tolist()` out of what is exported.",
        )
    if FIXED in text:
        return NoFreeBatch(
            "The batch cannot be free: the module's code fixes it.",
            "During capture, it turns the batch size into a plain number"
            + ("; x.shape[0] in place of len(x) does not." if "len(" in lines[0] else ".")
            if lines
            else first_message_line(cause),
            "Let the tensors broadcast instead of repeating them for each image, or fix the batch with "
            "batch=1 (--batch 1).",
            batch=1,
            details=list(dict.fromkeys((lines or [])[:3])),
        )
    unknown = _NO_ONNX.search(text)
    if unknown is not None:
        return UnsupportedModelError(
            "The module cannot be written as ONNX.",
            f"ONNX has no equivalent of {unknown[1]}.",
            "Rewrite that line with other operations, or leave it out of what is exported.",
            details=[where] if where else [],
        )
    if "pack_padded_sequence" in where:
        return UnsupportedModelError(
            "PyTorch cannot capture this module as a graph: its code packs sequences.",
            f"{type(cause).__name__}: {first_message_line(cause)}",
            "Give the recurrent layer the padded input, and mask what it returns. In a bidirectional "
            "layer, one direction then starts at the padding, so train the network that way.",
            details=[where],
        )
    if ".numpy()" in text or "numpy" in where:
        return UnsupportedModelError(
            "PyTorch cannot capture this module as a graph: its code calls numpy.",
            f"{type(cause).__name__}: {first_message_line(cause)}",
            "Use torch's functions (torch.clip, torch.linalg, ...) instead of numpy's.",
            details=[where] if where else [],
        )
    what = "PyTorch cannot capture this module as a graph"
    why = f"{type(cause).__name__}: {first_message_line(cause)}"
    details = [where] if where else []
    if lines is None:
        return UnsupportedModelError(
            f"{what}.", why, "Rewrite that line with other operations.", details=details
        )
    return NoFreeBatch(
        f"{what} with a free batch.",
        why,
        "Rewrite that line with other operations, or fix the batch with batch=1 (--batch 1).",
        batch=1,
        details=details,
    )


def why_fixed(module: nn.Module, subject: Subject, error: str) -> tuple[str, str]:
    """Why torch considers a length fixed, and what may free it."""
    free = subject.length_names
    if 1 in free:
        return (
            "PyTorch takes a size of 1 in the example for a fixed one.",
            " Or use a longer example.",
        )
    for name, x, axes in zip(subject.inputs, subject.example, subject.free_axes, strict=True):
        if any(size in free for k, size in enumerate(x.shape) if k and k not in axes):
            return (
                f"The code fixes it, or it is also that of {name} {list(x.shape[1:])}, where it is not free.",
                f" Or let that axis of {name} be free, too.",
            )
    recurrent = [type(part).__name__ for part in module.modules() if isinstance(part, nn.RNNBase)]
    if recurrent:
        return f"A recurrent layer ({recurrent[0]}) is unrolled to the length of the example.", ""
    if least := _LEAST.search(error):
        return f"Its code takes no length below {least[1]}; a free one starts at 1.", ""
    if special := _APART.search(error):
        return (
            f"Its code treats the length {special[1]} differently, as in a slice that is all of a table.",
            " Or look up rows by their index: table[torch.arange(x.shape[1])].",
        )
    return (
        "The module's code fixes it, as weights for each position do.",
        " If the code fixes it for no reason, take the length from the input: x.shape[1].",
    )
