"""Capture a PyTorch module as an ONNX graph, with a free batch wherever that is possible.

The capsule operators become nodes of a domain of our own, ``TORCH_DOMAIN``, with the couplings as an output,
because the torch operators have it; ``graph.passes`` then turns these into ``capsedge`` nodes. A private
domain also keeps ONNX's global registry free of ``capsedge`` schemas, which would stop shape inference
through the function bodies.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import onnx
import torch
from onnx import defs
from onnxscript.values import Opset
from torch import nn

import capsedge.models.ops  # noqa: F401  (registers the torch operators)
from capsedge.errors import CapsedgeError, UnsupportedModelError
from capsedge.exporters.flat_module import Flat, ImageByImage, resize_free_axes
from capsedge.exporters.subject import Subject
from capsedge.exporters.user_batch import NoFreeBatch
from capsedge.exporters.user_errors import FIXED, capture_error, why_fixed
from capsedge.graph.merge import FreeAxis, merge
from capsedge.graph.passes import TORCH_DOMAIN
from capsedge.models.user.code import innermost_line, node_lines
from capsedge.spec.operators import OPERATORS, Operator

# --- Translating the capsule operators while ``torch.onnx.export`` runs ---

_ATTRIBUTE_TYPES = {
    "int": defs.OpSchema.AttrType.INT,
    "ints": defs.OpSchema.AttrType.INTS,
    "float": defs.OpSchema.AttrType.FLOAT,
    "floats": defs.OpSchema.AttrType.FLOATS,
}
_PYTHON_TYPES = {"int": int, "ints": list[int], "float": float, "floats": list[float]}
_TYPES = ["tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)"]


def _register(operator: Operator) -> None:
    if defs.has(operator.name, TORCH_DOMAIN):
        return
    outputs = [*operator.output_names, *(["couplings"] if operator.couplings else [])]
    parameter, option = defs.OpSchema.FormalParameter, defs.OpSchema.FormalParameterOption
    defs.register_schema(
        defs.OpSchema(
            operator.name,
            TORCH_DOMAIN,
            1,
            inputs=[
                parameter(
                    v.name, "T", param_option=option.Optional if v.optional else option.Single
                )
                for v in operator.inputs
            ],
            outputs=[parameter(n, "T") for n in outputs],
            type_constraints=[("T", _TYPES, "a floating-point type")],
            attributes=[
                defs.OpSchema.Attribute(a.name, _ATTRIBUTE_TYPES[a.type], required=True)
                for a in operator.attributes
            ],
        )
    )


def _translation(operator: Operator, opset: Opset) -> Callable[..., Any]:
    """A function of the PyTorch operator's arguments that makes the ONNX node."""
    inputs = dict.fromkeys(operator.input_names, Any)
    types = {**inputs, **{a.name: _PYTHON_TYPES[a.type] for a in operator.attributes}}
    kinds = {a.name: a.type for a in operator.attributes}

    def translate(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(types, args, strict=False)), **kwargs}
        tensors = [given.pop(name) for name in operator.input_names]
        for name, value in given.items():
            if kinds[name] == "int":  # PyTorch also has booleans
                given[name] = int(value)
            elif kinds[name] in ("ints", "floats"):
                given[name] = list(value)
        return getattr(opset, operator.name)(*tensors, **given)

    # torch distinguishes inputs from attributes by these.
    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    translate.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, either, annotation=kind) for name, kind in types.items()]
    )
    translate.__annotations__ = types
    translate.__name__ = operator.torch
    return translate


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """The table for ``torch.onnx.export(custom_translation_table=...)``; may be called repeatedly."""
    table: dict[Callable[..., Any], Callable[..., Any]] = {}
    opset = Opset(TORCH_DOMAIN, 1)
    for operator in OPERATORS.values():
        if operator.torch:
            _register(operator)
            function = getattr(torch.ops.capsedge, operator.torch).default
            table[function] = _translation(operator, opset)
    return table


# --- Capturing ---

BATCH = "N"
aten = torch.ops.aten
_TWO = (3, 5)  # batch sizes at which a module is captured if its code fixes the batch
_AT_MOST = re.compile(r"(\w+) = Dim\('\1',(?: min=\d+,)? max=(\d+)\)")
_NODE = re.compile(r"Error when translating node %(\w+)")


def capture(
    module: nn.Module, subject: Subject, opset: int, batch: int | None
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """Capture a module: its graph, and the exported program behind it.

    With a free batch, a module whose code fixes the batch while it is captured (``[W] * x.size(0)``) is
    captured one image at a time (``torch.func.vmap``) at two batches, and the two graphs are merged.

    Args:
        module: the subject's, or one that wraps it.

    Raises:
        NoFreeBatch: ``batch`` is None, and its code fixes the batch.
        UnsupportedModelError: torch cannot capture it; the error names the user's line.
    """
    if subject.free_axes:
        return _of_any_length(module, subject, opset, batch)
    if batch is not None:
        return _only(module, subject, opset)
    flat = subject.module if isinstance(subject.module, Flat) else None
    if flat is None or not flat.each:
        try:
            with _specialized(stop=flat is not None) as lines:
                program, shapes = _exported(module, subject, free=True)
            return _translated(program, subject, opset, shapes)
        except CapsedgeError:
            raise
        except Exception as error:  # torch raises many kinds of errors here, none of them ours
            if flat is None:
                raise capture_error(error, lines) from error
            first: UnsupportedModelError = capture_error(lines.stopped or error, lines)
    else:
        first = NoFreeBatch(
            "The batch cannot be free: the module takes one image at a time.",
            "torch.func.vmap, which would process each image of a batch separately, cannot run its code.",
            "Use x.size(0) where the code assumes a batch of 1, or fix the batch with batch=1 (--batch 1).",
            batch=1,
        )
    try:
        found = [
            _captured(ImageByImage(flat).eval(), subject.sized(n), opset, free=False) for n in _TWO
        ]
        return merge(found[0][0], found[1][0], FreeAxis(BATCH, _TWO)), found[0][1]
    except Exception as error:  # as above, and GraphsDiffer
        raise first from error


def _of_any_length(
    module: nn.Module, subject: Subject, opset: int, batch: int | None
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """Capture with free axes besides the batch.

    Raises:
        UnsupportedModelError: the module's code fixes one of them; the error names the user's line.
    """
    limits = longest_lengths(subject)
    try:
        with _specialized() as lines:
            try:
                return _captured(module, subject, opset, batch is None, limits)
            except Exception as error:  # torch raises many kinds of errors here, none of them ours
                found = _within_tables(error, limits)
                if found is None:
                    raise
                limits = found
            return _captured(module, subject, opset, batch is None, limits)
    except CapsedgeError:
        raise
    except Exception as error:  # as above
        explained = capture_error(error, lines)
        fixed = [line for line in (*lines, *explained.details) if line]
        free = [
            f"{name} ({', '.join(str(x.shape[k]) for k in axes)} in the example)"
            for name, x, axes in zip(
                subject.inputs, subject.example, subject.free_axes, strict=True
            )
            if axes
        ]
        fixes = FIXED in str(error)
        why, otherwise = why_fixed(module, subject, str(error)) if fixes else (explained.why, "")
        raise UnsupportedModelError(
            f"The length of {', '.join(free)} cannot be free.",
            why,
            f"Leave out free_axes, and pad shorter inputs.{otherwise}",
            command=f"Leave out the asterisk, and pad shorter inputs.{otherwise}",
            details=list(dict.fromkeys(fixed))[:3],
        ) from error


def _within_tables(error: Exception, limits: Mapping[str, int]) -> dict[str, int] | None:
    """The limits that torch found where the code cuts a table of positions to the length; None for none."""
    told = {name: int(most) for name, most in _AT_MOST.findall(str(error))}
    if FIXED not in str(error) or not told:
        return None
    return {**limits, **told}


def _only(
    module: nn.Module, subject: Subject, opset: int
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """Capture at the batch size of the example."""
    try:
        return _captured(module, subject, opset, free=False)
    except CapsedgeError:
        raise
    except Exception as error:
        raise capture_error(error) from error


class _Untranslated(Exception):
    """A captured program that could not be written as ONNX.

    Attributes:
        line: the user's, of the node that PyTorch names; empty if it names none.
    """

    def __init__(self, program: torch.export.ExportedProgram, error: Exception) -> None:
        super().__init__(str(error))
        named = _NODE.search(str(error))
        # Decomposing composite operators adds underscores to a name.
        nodes = [
            n for n in program.graph.nodes if named and n.name.strip("_") == named[1].strip("_")
        ]
        self.line = next((line for n in nodes for line in node_lines(n)), "")


def _captured(
    module: nn.Module,
    subject: Subject,
    opset: int,
    free: bool,
    limits: Mapping[str, int] | None = None,
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """Args: limits: the largest sizes of free dimensions beside the batch, by their names."""
    program, shapes = _exported(module, subject, free, limits)
    return _translated(program, subject, opset, shapes)


def _exported(
    module: nn.Module, subject: Subject, free: bool, limits: Mapping[str, int] | None = None
) -> tuple[torch.export.ExportedProgram, Any]:
    """The program that torch captures, and its dynamic shapes."""
    dims = _free_dims(subject, free, limits or {})
    variadic = isinstance(module, (Flat, ImageByImage)) or hasattr(module, "variadic")
    shapes: Any = {"inputs": dims} if variadic and dims is not None else dims
    with _quiet(), torch.no_grad():
        program = torch.export.export(module, subject.example, dynamic_shapes=shapes, strict=False)
    _name_squeezed_axes(program)
    return program, shapes


def _translated(
    program: torch.export.ExportedProgram, subject: Subject, opset: int, shapes: Any
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """A captured program as ONNX, and the program behind it."""
    with _quiet(), torch.no_grad():
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


def _free_dims(
    subject: Subject, batch: bool, limits: Mapping[str, int]
) -> tuple[dict[int, Any], ...] | None:
    """The free dimensions of each input, as ``torch.export`` takes them; None for none.

    Axes of one size are one dimension: L, L2, ...
    """
    if not batch and not subject.free_axes:
        return None
    lengths = {
        size: torch.export.Dim(name, min=1, max=limits.get(name))
        for size, name in subject.length_names.items()
    }
    of_batch = {0: torch.export.Dim(BATCH)} if batch else {}
    return tuple(
        {**of_batch, **{axis: lengths[int(x.shape[axis])] for axis in axes}}
        for x, axes in zip(
            subject.example, subject.free_axes or [()] * len(subject.example), strict=True
        )
    )


def _name_squeezed_axes(program: torch.export.ExportedProgram) -> None:
    """Let every ``squeeze`` name its axes, in place.

    ``squeeze()`` is captured at a batch of several images, and the rest of the graph relies on the axes that
    remained. In a file without names, a batch of one image would lose its axis too.
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


class _BatchFixed(Exception):
    """The batch is a plain number now, so torch would refuse the capture at its end."""


class _Lines(list[str]):
    """The user's lines that make a plain number of a free dimension.

    Attributes:
        stopped: what ended the capture at the first of them; None if nothing did.
    """

    stopped: _BatchFixed | None = None


@contextlib.contextmanager
def _specialized(stop: bool = False) -> Iterator[_Lines]:
    """Collects the user's lines that make a plain number of a free dimension.

    Args:
        stop: whether the first ends the capture, whose failure is certain then.
    """
    lines = _Lines()
    kept = {name: getattr(torch.SymInt, name, None) for name in ("__index__", "__int__")}

    def noting(inner: Any) -> Any:
        def convert(self: Any) -> int:
            free = not self.node.is_constant()
            line = innermost_line() if free else ""
            if line:
                lines.append(line)
            number = int(inner(self))
            if stop and line and not self.node.expr.free_symbols:
                lines.stopped = _BatchFixed(FIXED)
                raise lines.stopped
            return number

        return convert

    for name, inner in kept.items():
        if inner is not None:
            setattr(torch.SymInt, name, noting(inner))
    try:
        yield lines
        if lines.stopped is not None:  # the user's code caught it
            raise lines.stopped
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


# --- The longest history that a network takes, such as the size of its table of positions ---
# A free axis is captured with that limit, and the file declares it: runtimes refuse a longer input.

_TRIED = (2, 4, 8)  # times the length of the example
_MOST = 4096  # largest size tried of the module's tensors; beyond it, one row may be slow


def longest_lengths(subject: Subject) -> dict[str, int]:
    """The largest size of each free dimension at which the module runs, by name; unlimited ones are omitted.

    Lengths up to eight times the example's are tried on one row, and those above the sizes of the module's
    tensors, since a table of positions may be longer.
    """
    limits = {}
    tensors = (*subject.module.parameters(), *subject.module.buffers())
    tables = sorted({n for x in tensors for n in x.shape if n <= _MOST})
    for size, name in subject.length_names.items():
        tried = [times * size for times in _TRIED]
        good, bad = size, 0
        for length in (*tried, *(n + 1 for n in tables if n >= tried[-1])):
            if not _runs(subject, size, length):
                bad = length
                break
            good = length
        if not bad:
            continue
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if _runs(subject, size, middle) else (good, middle)
        limits[name] = good
    return limits


def _runs(subject: Subject, size: int, length: int) -> bool:
    """Whether the module runs with axes of the example's size at another length."""
    try:
        with torch.no_grad():
            subject.module(
                *resize_free_axes(
                    [x[:1] for x in subject.example], subject.free_axes, {size: length}
                )
            )
    except Exception:  # the author's code may raise anything
        return False
    return True
