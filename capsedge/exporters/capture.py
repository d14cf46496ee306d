"""PyTorch module in, ONNX graph of the translation's nodes out; the batch free wherever that is possible."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.exporters.free_batch import merge
from capsedge.exporters.modules import Subject
from capsedge.exporters.own_modules import Flat, PerImage, sized
from capsedge.exporters.own_subject import NoFreeBatch
from capsedge.exporters.translation import translation_table
from capsedge.exporters.user_code import first_line, is_user_code, line_of, node_lines, place

BATCH = "N"
aten = torch.ops.aten
_TWO = (3, 5)  # batches that a module is captured at where its code fixes them
_FIXED = "Constraints violated"
_NODE = re.compile(r"Error when translating node %(\w+)")
_NO_ONNX = re.compile(r"Error when translating node.*?target=(torch\.ops\.[\w.]+?)\]", re.DOTALL)
_DECIDES = ("GuardOnDataDependentSymNode", "DataDependent", "unbacked", ".item()")


def capture(
    module: nn.Module, subject: Subject, opset: int, batch: int | None
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """The graph of a module, and the program that it was made of.

    With a free batch, a module whose code fixes the batch while it is captured (``[W] * x.size(0)``) is
    captured one image at a time (``torch.func.vmap``) at two batches, and the two are made one.

    Args:
        module: the subject's, or one that wraps it.

    Raises:
        NoFreeBatch: ``batch`` is None, and its code fixes the batch.
        UnsupportedModelError: torch cannot capture it; the error names the user's line.
    """
    if batch is not None:
        return _only(module, subject.example, subject, opset)
    flat = subject.module if isinstance(subject.module, Flat) else None
    if flat is None or not flat.each:
        try:
            with _specialized() as lines:
                return _captured(module, subject.example, subject, opset, free=True)
        except CapsedgeError:
            raise
        except Exception as error:  # torch raises many kinds of errors here, none of them ours
            if flat is None:
                raise _explained(error, lines) from error
            first: UnsupportedModelError = _explained(error, lines)
    else:
        first = NoFreeBatch(
            "The batch cannot be free: the module takes one image at a time.",
            "torch.func.vmap, which would take each image of a batch for itself, does not run its code.",
            "Use x.size(0) where the code says a batch of 1, or fix the batch with batch=1 (--batch 1).",
            batch=1,
        )
    try:
        found = [
            _captured(PerImage(flat).eval(), sized(subject.example, n), subject, opset, free=False)
            for n in _TWO
        ]
        return merge(found[0][0], found[1][0], _TWO, BATCH), found[0][1]
    except Exception as error:  # as above, and NotAlike
        raise first from error


def _only(
    module: nn.Module, example: Sequence[Tensor], subject: Subject, opset: int
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """Captured at the batch of the example."""
    try:
        return _captured(module, example, subject, opset, free=False)
    except CapsedgeError:
        raise
    except Exception as error:
        raise _explained(error) from error


class _Untranslated(Exception):
    """A captured program that could not be written as ONNX.

    Attributes:
        line: the user's, of the node that PyTorch names; empty where it names none.
    """

    def __init__(self, program: torch.export.ExportedProgram, error: Exception) -> None:
        super().__init__(str(error))
        named = _NODE.search(str(error))
        # Taking composite operators apart adds underscores to a name.
        nodes = [
            n for n in program.graph.nodes if named and n.name.strip("_") == named[1].strip("_")
        ]
        self.line = next((line for n in nodes for line in node_lines(n)), "")


def _captured(
    module: nn.Module, example: Sequence[Tensor], subject: Subject, opset: int, free: bool
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    dims = tuple({0: torch.export.Dim(BATCH)} for _ in example) if free else None
    variadic = isinstance(module, (Flat, PerImage)) or hasattr(module, "variadic")
    shapes: Any = {"inputs": dims} if variadic and dims is not None else dims
    with _quiet(), torch.no_grad():
        program = torch.export.export(module, tuple(example), dynamic_shapes=shapes, strict=False)
        _name_squeezed_axes(program)
        try:
            made = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                dynamic_shapes=shapes,
                input_names=list(subject.inputs),
                output_names=list(subject.outputs),
                custom_translation_table=translation_table(),
                optimize=False,  # it would delete small epsilons
                verbose=False,
            )
        except Exception as error:
            raise _Untranslated(program, error) from error
    assert made is not None
    return made.model_proto, made.exported_program or program


def _name_squeezed_axes(program: torch.export.ExportedProgram) -> None:
    """Let every ``squeeze`` name its axes, in place.

    ``squeeze()`` is captured at a batch of several images, and the rest of the graph counts on the axes that
    it left there. In a file without names, a batch of one image would lose its axis too.
    """
    squeezes = (aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            if node.op != "call_function" or node.target not in squeezes:
                continue
            source, *named = node.args
            before, after = source.meta["val"].shape, node.meta["val"].shape
            axes = named[0] if named else range(len(before))
            axes = [axes] if isinstance(axes, int) else axes
            axes = sorted({axis % len(before) for axis in axes}) if len(before) else []
            ones = [axis for axis in axes if isinstance(before[axis], int) and before[axis] == 1]
            if len(before) - len(ones) != len(after):
                continue
            if ones:
                node.target, node.args = aten.squeeze.dims, (source, ones)
            else:  # a view of itself, which ONNX has no form of
                node.target, node.args = aten.clone.default, (source,)
    program.graph_module.recompile()


def _explained(error: Exception, lines: list[str] | None = None) -> UnsupportedModelError:
    """What stopped torch, with the user's line and the way out.

    Args:
        lines: those that make a number of a free batch; None where the batch is fixed.
    """
    cause = error.__cause__ or error
    text = f"{type(cause).__name__} {cause}"
    where = line_of(error) or line_of(cause) or getattr(error, "line", "")
    if any(sign in text for sign in _DECIDES):
        return UnsupportedModelError(
            "PyTorch cannot capture this module as a graph: its code decides by the values of its input.",
            where or first_line(cause),
            "A graph has one way through. Compute both and choose with torch.where(condition, a, b), or "
            "leave the `if`, `.item()` or `.tolist()` out of what is exported.",
        )
    if _FIXED in text:
        return NoFreeBatch(
            "The batch cannot be free: the module's code fixes it.",
            "While it is captured, it makes a plain number of the batch."
            if lines
            else first_line(cause),
            "Let the tensors broadcast instead of repeating them for each image, or fix the batch with "
            "batch=1 (--batch 1).",
            batch=1,
            details=list(dict.fromkeys((lines or [])[:3])),
        )
    unknown = _NO_ONNX.search(text)
    if unknown is not None:
        return UnsupportedModelError(
            "The module cannot be written as ONNX.",
            f"ONNX has no form of {unknown[1]}.",
            "Write that line with other operations, or leave it out of what is exported.",
            details=[where] if where else [],
        )
    if ".numpy()" in text or "numpy" in where:
        return UnsupportedModelError(
            "PyTorch cannot capture this module as a graph: its code leaves PyTorch for numpy.",
            f"{type(cause).__name__}: {first_line(cause)}",
            "Use torch's functions (torch.clip, torch.linalg, ...) instead of numpy's.",
            details=[where] if where else [],
        )
    what = "PyTorch cannot capture this module as a graph"
    why = f"{type(cause).__name__}: {first_line(cause)}"
    details = [where] if where else []
    if lines is None:
        return UnsupportedModelError(
            f"{what}.", why, "Write that line with other operations.", details=details
        )
    return NoFreeBatch(
        f"{what} with a free batch.",
        why,
        "Write that line with other operations, or fix the batch with batch=1 (--batch 1).",
        batch=1,
        details=details,
    )


@contextlib.contextmanager
def _specialized() -> Iterator[list[str]]:
    """Collects the user's lines that make a plain number of the free batch."""
    lines: list[str] = []
    kept = {name: getattr(torch.SymInt, name, None) for name in ("__index__", "__int__")}

    def noting(inner: Any) -> Any:
        def convert(self: Any) -> int:
            frames = [f for f in traceback.extract_stack() if is_user_code(f.filename)]
            if frames and not self.node.is_constant():
                lines.append(place(frames[-1].filename, frames[-1].lineno or 0))
            return int(inner(self))

        return convert

    for name, inner in kept.items():
        if inner is not None:
            setattr(torch.SymInt, name, noting(inner))
    try:
        yield lines
    finally:
        for name, inner in kept.items():
            if inner is not None:
                setattr(torch.SymInt, name, inner)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch, which logs, warns, and prints whole graphs before it raises; errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
