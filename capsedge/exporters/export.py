"""Export a PyTorch module to a verified ONNX file."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import torch
from torch import Tensor, nn

from capsedge.datasets.regression_targets import with_typical_images
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.exporters import parity as checks
from capsedge.exporters import subject as modules
from capsedge.exporters.arguments import (
    Inputs,
    batch_of,
    check_module,
    check_parameters,
    check_tolerance,
    user_inputs,
)
from capsedge.exporters.capture import capture
from capsedge.exporters.export_options import REWRITES, ExportOptions
from capsedge.exporters.export_report import CaseParity, ExportReport, required, scores_output
from capsedge.exporters.flat_module import sized
from capsedge.exporters.longest import longest_of_inputs
from capsedge.exporters.parity import accepted_inputs, diagnose
from capsedge.exporters.score_choice import with_scores
from capsedge.exporters.subject import Subject
from capsedge.exporters.traced_routing import RoutingCalls, Traced
from capsedge.exporters.user_errors import explain_module_errors
from capsedge.exporters.user_subject import Example, FreeAxes, NoFreeBatch, of_module
from capsedge.exporters.user_traced_routing import traced_graph
from capsedge.graph import Rewrites
from capsedge.graph.fusion import FusionReport
from capsedge.graph.passes import Lowered, lower
from capsedge.graph.target_runtimes import resolve
from capsedge.models import CapsuleModel, with_iterations
from capsedge.models.finite_weights import check_finite
from capsedge.models.looked_up_tables import TableBounds, table_bounds
from capsedge.models.unsaved_tensors import unregistered
from capsedge.options import takes
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.files.writing import OUTPUT, as_path, check_writable, write_bytes
from capsedge.runtime.metadata import ModelMetadata
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.routing_trace import TraceOutputs
from capsedge.runtime.table_indices import InputBounds, inputs_property
from capsedge.runtime.user_metadata import DescribedModel, Description, describe_model
from capsedge.spec import limits
from capsedge.spec.vocabularies import TRACE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import ExportKeywords


@takes(ExportOptions, Description)
def export(
    module: nn.Module,
    path: Path | str | None,
    options: ExportOptions = ExportOptions(),
    *,
    example: Example | None = None,
    free_axes: FreeAxes | None = None,
    check_inputs: Inputs | None = None,
    description: Description | None = None,
    progress: Progress = silent,
    **_keywords: Unpack[ExportKeywords],
) -> ExportReport:
    """Export a capsule network to one self-contained ONNX file and verify it.

    The file is checked (full check, strict shape inference), loaded and run in ONNX Runtime and
    compared with the module on random and hard inputs before anything is written.

    Without ``batch``, the batch is free, or, for your own module, the size that its code requires (a note
    says why).

    Args:
        module: one of the package's models, or any module. Routing that is written with ``capsedge.ops``, or
            as a loop of standard operations, becomes capsule operators.
        path: the file to write; None to do everything except write it.
        example: input of your own module: a tensor, a tuple of tensors, or tensors by name for a ``forward``
            that takes one dict; batch first.
        free_axes: of inputs by name, the axes besides the batch that stay free, such as the length of a
            history: ``{"hist": [1]}``. Axes that have the same size in the example share one length.
        check_inputs: your own inputs to compare as well (a file, arrays, or a mapping by input name).
            Differences on hard cases outside their range are then only warnings.
        description: classes, preprocessing, task, outputs and typical images, for the metadata.
        progress: called with a description of each step.

    Returns:
        The contents of the file, and every comparison.

    Raises:
        UsageError: an argument is wrong, or the file cannot be written.
        UnsupportedModelError: the module cannot be captured by ``torch.export`` or its shapes are not fixed.
        ParityError: the file would differ from the module; its ``report`` is the `ExportReport`, and nothing
            is written.
        EnvironmentProblem: ONNX Runtime is missing, or the disk is full.

    Example:
        >>> model = capsedge.load_checkpoint("digits.safetensors")
        >>> capsedge.export(model, "digits.onnx").max_abs
        >>> capsedge.export(model, "one-pass.onnx", iterations=1, opset=18)
    """
    check_module(module)
    ops, opset, batch = resolve(options.target, options.ops, options.opset, options.batch)
    atol, rtol = options.tolerance
    check_tolerance(atol, rtol)
    batch = batch_of(module, batch)
    stated = with_typical_images(description)
    import_onnxruntime()  # report missing packages before the work starts
    if path is not None:
        path = as_path(path, OUTPUT)
        check_writable(path)
    name = path or "the new file"
    check_parameters(module)
    check_finite(module)
    made: list[tuple[onnx.ModelProto, torch.export.ExportedProgram]] = []
    ours = isinstance(module, CapsuleModel)
    answering = contextlib.nullcontext() if ours else explain_module_errors(made)

    def prepared(batch: int | None) -> _Prepared:
        subject = _subject(module, example, free_axes, batch, options)
        said, declared = stated, subject.metadata
        if said and declared is None:
            declared = _no_metadata(module, options.checkpoint_sha256)
        if said and declared is not None and not ours:
            subject, said, declared = with_scores(subject, said, declared, batch)
        own = (
            ()
            if check_inputs is None
            else user_inputs(check_inputs, subject.inputs, subject.example, subject.free_axes)
        )
        traced = bool(subject.to_trace or subject.traced)
        # A trace has results for every iteration, so none can be left out.
        kept = Rewrites.none() if traced else _rewrites(options)
        lowered, program, trace = to_graph(subject, opset, batch, kept, ops, progress=progress)
        made.append((lowered.model, program))
        _check_ports(lowered.model)
        longest = longest_of_inputs(subject, program)
        subject = dataclasses.replace(subject, traced=trace, longest=longest)
        return _Prepared(subject, said, declared, own, kept, lowered)

    fixed = tuple[str, ...]()
    with _evaluating(module), answering:
        progress("running the module on the example")
        try:
            ready = prepared(batch)
        except NoFreeBatch as error:
            if batch is not None or ours:
                raise
            batch = error.batch
            progress(f"fixing the batch at {batch}, since it cannot be free")
            ready = prepared(batch)
            fixed = (error.note,)
        subject, stated, declared, own, rewrites, lowered = ready
        unsaved = () if ours else unregistered(module, subject.module, subject.example)
        cases, left_out = _cases(subject, batch, own)
        progress(f"comparing with PyTorch on {len(cases)} inputs")
        session = checks.session_of(lowered.runnable)
        parity = checks.compare(
            session, subject.reference, subject.compared, cases, atol, rtol, own
        )
    if declared is None and subject.traced:
        declared = _no_metadata(module, options.checkpoint_sha256)
    # A file with metadata takes images of one size, and its batch is known to be of images.
    independent = batch is None and declared is None
    checked_loosely = _state_inputs(lowered.model, subject, independent=independent)
    data, notes = lowered.model.SerializeToString(), tuple[str, ...]()
    warnings: tuple[str, ...] = ()
    if declared is not None and all(p.passed or p.outside for p in parity):
        declared = dataclasses.replace(declared, parity=_measured(parity, atol, rtol, fixed))
        # A fused file runs only with the kernels, so the version with function bodies is run here.
        runnable = data if ops != "fused" else lowered.runnable.SerializeToString()
        annotated, notes = _described(subject, data, runnable, stated, declared, name)
        if annotated is not None:
            data, declared, warnings = annotated.data, annotated.metadata, annotated.warnings
    report = ExportReport(
        path=path,
        size=len(data),
        opset=opset,
        ir_version=lowered.model.ir_version,
        ops=ops,
        inputs=_signature(lowered.model.graph.input),
        outputs=_signature(lowered.model.graph.output),
        operators=lowered.operators,
        functions=len(lowered.model.functions),
        rewrites=lowered.rewrites,
        fusion=lowered.fusion,
        notes=(
            *fixed,
            *lowered.notes,
            *left_out,
            *checked_loosely,
            *(subject.traced.notes if subject.traced else ()),
            *notes,
        ),
        atol=atol,
        rtol=rtol,
        parity=parity,
        scores=scores_output(declared, subject.outputs),
        score_warnings=warnings,
        unregistered=unsaved,
    )
    if not report.passed:
        progress("looking for the node that differs")
        with _evaluating(module):
            make = functools.partial(_again, subject, opset)
            ill = report.ill_conditioned
            report.check("" if ill else diagnose(subject, make, batch, rewrites, cases, report))
    if path is not None:
        write_bytes(path, data)
    return report


class _Prepared(NamedTuple):
    """A module captured at a batch size."""

    subject: Subject
    description: Description
    declared: ModelMetadata | None
    user_inputs: Sequence[Tensor]
    rewrites: Rewrites
    lowered: Lowered


def _check_ports(model: onnx.ModelProto) -> None:
    """Refuse inputs and outputs that one of the runtimes cannot pass on.

    Raises:
        UnsupportedModelError: one has too many dimensions, or there are too many inputs.
    """
    why = ""
    if len(model.graph.input) > limits.RUN_TENSORS:
        why = f"It has {len(model.graph.input)} inputs, and at most {limits.RUN_TENSORS} are possible."
    most = limits.limit_of("libcapsedge", "DIMENSIONS")
    for port in (*model.graph.input, *model.graph.output):
        found = len(port.type.tensor_type.shape.dim)
        if found > most:
            why = f"'{port.name}' has {found} dimensions; libcapsedge takes at most {most}."
    if why:
        raise UnsupportedModelError(
            "Not every runtime can pass on the inputs and outputs of this module.",
            why,
            "Reshape or join them in the module's forward.",
        )


def _state_inputs(
    model: onnx.ModelProto, subject: Subject, *, independent: bool
) -> tuple[str, ...]:
    """State in the file what its inputs may look up, how long they may be, and whether rows are independent.

    Args:
        model: changed in place.
        independent: whether the batch is free, which `user_subject` allows only for independent rows.

    Returns:
        Notes.
    """
    tables = [TableBounds()] * len(subject.inputs)
    if not all(x.dtype.is_floating_point for x in subject.example):
        tables = table_bounds(subject.module, subject.example)
    longest = subject.longest or [()] * len(subject.inputs)
    stated: dict[str, InputBounds] = {}
    notes: list[str] = []
    for name, table, most in zip(subject.inputs, tables, longest, strict=True):
        lengths = most if any(most) else ()
        if table.most or lengths or independent:
            stated[name] = InputBounds(table.most or None, lengths, independent)
        if table.most != table.least:
            notes.append(
                f"parts of '{name}' look up tables of {table.least} to {table.most} entries; runtimes refuse "
                f"indices below 0 and above {table.most - 1}, and ONNX Runtime those above a smaller table"
            )
    for key, value in inputs_property(stated).items():
        model.metadata_props.add(key=key, value=value)
    return tuple(notes)


def _no_metadata(model: nn.Module, checkpoint_sha256: str) -> ModelMetadata:
    """The metadata of a file before anything is known about its network."""
    name = type(model).__name__
    return ModelMetadata(name, {}, "", 0, (), None, checkpoint_sha256=checkpoint_sha256)


def _described(
    subject: Subject,
    data: bytes,
    runnable: bytes,
    description: Description,
    declared: ModelMetadata,
    name: Path | str,
) -> tuple[DescribedModel | None, tuple[str, ...]]:
    """The file with its metadata (None if unchanged), and notes.

    A traced user network without a description may not take images, and there is metadata only for images;
    its trace then consists of ordinary outputs.
    """
    if subject.traced is not None:
        declared = dataclasses.replace(declared, trace=TraceOutputs(subject.traced.layers))
    try:
        return describe_model(data, description, declared, name, runnable=runnable), ()
    except UsageError as error:
        if description or subject.metadata is not None:
            raise
        return None, (
            f"the file does not state its trace, which is outputs as any other: {error.why} `session.trace` "
            "and `see` need a network of images with class_names (docs/how-to/export.md#trace)",
        )


def _rewrites(options: ExportOptions) -> Rewrites:
    """The exact rewrites, except those switched off."""
    return Rewrites(**{REWRITES[name]: False for name in options.no_rewrite})


def _subject(
    module: nn.Module,
    example: Example | None,
    free_axes: FreeAxes | None,
    batch: int | None,
    options: ExportOptions,
) -> Subject:
    iterations, extra_outputs = options.iterations, options.extra_outputs
    if not isinstance(module, CapsuleModel):
        if iterations is not None or set(extra_outputs) - {TRACE}:
            raise UsageError(
                "The iterations and outputs of your own module are set in its code.",
                "Of the extra outputs, only the trace can be added.",
                "Set them in the module, and leave out 'iterations' and every entry of "
                "'extra_outputs' except trace.",
                command="Let forward return them, and use --with only for trace.",
            )
        subject = of_module(module, example, batch, options.output_names, free_axes)
        return dataclasses.replace(subject, to_trace=bool(extra_outputs))
    if iterations is not None and iterations != module.config.iterations:
        module = with_iterations(module, iterations)
    return modules.of_capsule_model(module, extra_outputs, batch, options.checkpoint_sha256)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put the module in evaluation mode; afterwards restore each submodule's mode, as some may be frozen."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class _Graph(NamedTuple):
    """A module's graph for the file, the program that torch captured, and the traced routing."""

    lowered: Lowered
    program: torch.export.ExportedProgram
    traced: Traced | None


def to_graph(
    subject: Subject,
    opset: int,
    batch: int | None,
    rewrites: Rewrites,
    ops: str = "auto",
    fuse: bool = True,
    progress: Progress = silent,
) -> _Graph:
    """Capture the module and make the graph of the file.

    Args:
        ops, fuse, progress: as for `graph.passes.lower`.

    Raises:
        UnsupportedModelError: torch cannot capture the module, it draws random numbers, or a shape depends on
            more than the batch.
    """
    module: nn.Module = subject.module
    if not rewrites.light_cone:
        # torch.export drops nodes that do not affect an output; the passes stay, because they are outputs.
        module = modules.KeepingAllPasses(module).eval()
    with torch.no_grad(), RoutingCalls() as calls:
        subject.module(*subject.example)
    progress("capturing it as a graph")
    captured, program = capture(module, subject, opset, batch)
    traced = subject.traced

    def write_trace(model: onnx.ModelProto, found: FusionReport) -> onnx.ModelProto:
        nonlocal traced
        if subject.to_trace:
            traced, model = traced_graph(subject.module, model, subject.example, found)
        assert traced is not None
        return traced.write(model)

    lowered = lower(
        captured,
        rewrites,
        ops,
        outputs=len(subject.outputs),
        passes=len(calls.outputs),
        fuse=fuse,
        write_trace=write_trace if subject.to_trace or traced is not None else None,
        progress=progress,
    )
    return _Graph(lowered, program, traced)


def _again(
    subject: Subject, opset: int, batch: int | None, rewrites: Rewrites, fuse: bool
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """The graph captured again in another way, for `diagnose`."""
    if batch is not None:
        subject = dataclasses.replace(subject, example=sized(subject.example, batch))
    made = to_graph(subject, opset, batch, rewrites, fuse=fuse)
    return made.lowered.runnable, made.program


def _cases(
    subject: Subject, batch: int | None, user_inputs: Sequence[Tensor]
) -> tuple[list[checks.Case], tuple[str, ...]]:
    """The comparisons, and notes on hard inputs that a user's module does not accept."""
    batches = subject.batches if batch is None else (batch,)
    given = checks.user_cases(user_inputs, batches) if user_inputs else []
    hard, notes = checks.input_cases(subject.example, batches), tuple[str, ...]()
    if subject.free_axes:
        hard += checks.length_cases(
            subject.example, subject.free_axes, batches[-1:], subject.longest
        )
    if not isinstance(getattr(subject.module, "model", None), CapsuleModel):
        hard, notes = accepted_inputs(subject.module, hard, user_inputs or subject.example, batches)
    return [*given, *hard], notes


def _measured(
    parity: tuple[CaseParity, ...], atol: float, rtol: float, fixed: Sequence[str]
) -> dict[str, Any]:
    """The comparison, for the metadata, and why its batch is fixed."""
    compared = required(parity)
    batch = {"batch": fixed[0]} if fixed else {}
    return batch | {
        "against": "PyTorch eager FP32",
        "torch": torch.__version__,
        "comparisons": len(compared),
        "max_abs": max(p.max_abs for p in compared),
        "worst": dataclasses.asdict(max(compared, key=lambda p: p.excess)),
        "atol": atol,
        "rtol": rtol,
    }


def _signature(values: Sequence[onnx.ValueInfoProto]) -> dict[str, list[int | str]]:
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values
    }
