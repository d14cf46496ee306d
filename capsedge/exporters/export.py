"""PyTorch module in, verified ONNX file out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import torch
from torch import Tensor, nn

from capsedge.datasets.regression_targets import Typical, typical_images
from capsedge.errors import UsageError
from capsedge.exporters import parity as checks
from capsedge.exporters import subject as modules
from capsedge.exporters.capture import capture
from capsedge.exporters.export_report import CaseParity, ExportReport, required, scores_output
from capsedge.exporters.flat_module import sized
from capsedge.exporters.options import (
    Inputs,
    batch_of,
    check_module,
    check_options,
    check_parameters,
    user_inputs,
)
from capsedge.exporters.parity import accepted_inputs, diagnose
from capsedge.exporters.score_choice import with_scores
from capsedge.exporters.subject import Subject
from capsedge.exporters.traced_routing import RoutingCalls, Traced
from capsedge.exporters.user_errors import explain_module_errors
from capsedge.exporters.user_subject import NoFreeBatch, of_module
from capsedge.exporters.user_traced_routing import traced_graph
from capsedge.graph import Rewrites
from capsedge.graph.fusion import FusionReport
from capsedge.graph.passes import Lowered, Progress, lower
from capsedge.graph.target_runtimes import resolve
from capsedge.models import CapsuleModel, with_iterations
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.files.writing import OUTPUT, as_path, check_writable, write_bytes
from capsedge.runtime.metadata import ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.routing_trace import TraceOutputs
from capsedge.runtime.user_metadata import DescribedModel, Description, describe_model
from capsedge.spec.vocabularies import TRACE

ATOL, RTOL = 1e-5, 1e-4


def export(
    model: nn.Module,
    path: Path | str,
    *,
    example: Tensor | Sequence[Tensor] | None = None,
    iterations: int | None = None,
    opset: int | None = None,
    ops: str | None = None,
    batch: int | None = None,
    free_batch: bool = False,
    target: str | None = None,
    extra_outputs: Sequence[str] = (),
    output_names: Sequence[str] | None = None,
    rewrites: Rewrites | None = None,
    atol: float = ATOL,
    rtol: float = RTOL,
    inputs: Inputs | None = None,
    metadata: ModelMetadata | None = None,
    class_names: Sequence[str] | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    task: str | None = None,
    outputs: Outputs | None = None,
    typical: Typical | None = None,
    checkpoint_sha256: str = "",
    dry_run: bool = False,
    progress: Progress = lambda _: None,
) -> ExportReport:
    """Export a capsule network to one self-contained ONNX file and verify it.

    The file is checked (full check, strict shape inference), loaded and run in ONNX Runtime and
    compared with the module on random and hard inputs before anything is written.

    Args:
        model: one of the package's models, or any module. Routing that is written with ``capsedge.ops``, or
            as a loop of standard operations, becomes capsule operators.
        path: the file to write.
        example: input of your own module: a tensor, or a tuple of tensors, batch first.
        iterations: routing iterations, instead of the model's own (the package's models).
        opset: of the standard operators, 18 to 21; 20 by default.
        ops: ``auto`` (the default): capsule operators with function bodies; ``fused``: without;
            ``portable``: standard operators only.
        batch: fixed batch; by default the batch is free, or, for your own module, the size that its code
            requires (a note says why).
        free_batch: refuse a module whose batch cannot be free, instead of fixing it.
        target: another runtime to write the file for, ``openvino``, ``litert`` or ``mnn``: sets the three
            arguments above if they are left out.
        extra_outputs: ``reconstruction``, ``couplings`` (the package's models), ``trace``.
        output_names: output names of your own module, instead of those of its dict or named tuple.
        rewrites: the exact rewrites to use; all by default.
        atol, rtol: tolerance of the comparison, ``atol + rtol·size of the pose``.
        inputs: your own inputs, which are compared too (a file, arrays, or a mapping by input name). For hard
            cases outside their range, differences are then only warnings.
        metadata: metadata for the file of your own module.
        class_names: one name per class, for the metadata.
        preprocessing: how an image becomes the input; a mapping changes some of the model's own.
        task: ``single-label``, ``multi-label`` or ``regression``.
        outputs: which outputs hold scores, poses or values, and the names and units of values.
        typical: images as in training (`capsedge.datasets.typical_input_from`): predictions then report
            images that are unlike all of them.
        checkpoint_sha256: checksum of the checkpoint, for the metadata.
        dry_run: do everything except write the file.
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
    """
    ops, opset, batch = resolve(target, ops, opset, batch)
    check_options(opset, ops, batch, iterations, atol, rtol)
    batch = batch_of(model, batch)
    description = Description(class_names, preprocessing, task, outputs, typical_images(typical))
    check_module(model)
    import_onnxruntime()  # what is missing is said before the work
    path = as_path(path, OUTPUT)
    if not dry_run:
        check_writable(path)
    check_parameters(model)
    made: list[tuple[onnx.ModelProto, torch.export.ExportedProgram]] = []
    ours = isinstance(model, CapsuleModel)
    answering = contextlib.nullcontext() if ours else explain_module_errors(made)

    def prepared(batch: int | None) -> _Prepared:
        subject = _subject(
            model,
            example,
            iterations,
            batch,
            extra_outputs,
            output_names,
            metadata,
            checkpoint_sha256,
        )
        said, declared = description, subject.metadata
        if said and declared is None:
            declared = _no_metadata(model, checkpoint_sha256)
        if said and declared is not None and not ours:
            subject, said, declared = with_scores(subject, said, declared, batch)
        own = () if inputs is None else user_inputs(inputs, subject.inputs, subject.example)
        traced = bool(subject.to_trace or subject.traced)
        # All iterations of a trace have results: none can be left out.
        kept = Rewrites.none() if traced else rewrites or Rewrites()
        lowered, program, trace = to_graph(subject, opset, batch, kept, ops, progress=progress)
        made.append((lowered.model, program))
        subject = dataclasses.replace(subject, traced=trace)
        return _Prepared(subject, said, declared, own, kept, lowered)

    fixed = tuple[str, ...]()
    with _evaluating(model), answering:
        progress("running the module on the example")
        try:
            ready = prepared(batch)
        except NoFreeBatch as error:
            if batch is not None or free_batch or ours:
                raise
            batch = error.batch
            progress(f"fixing the batch at {batch}, since it cannot be free")
            ready = prepared(batch)
            fixed = (error.note,)
        subject, description, declared, own, rewrites, lowered = ready
        cases, left_out = _cases(subject, batch, own)
        progress(f"comparing with PyTorch on {len(cases)} inputs")
        session = checks.session_of(lowered.runnable)
        parity = checks.compare(
            session, subject.reference, subject.compared, cases, atol, rtol, own
        )
    if declared is None and subject.traced:
        declared = _no_metadata(model, checkpoint_sha256)
    data, notes = lowered.model.SerializeToString(), tuple[str, ...]()
    warnings: tuple[str, ...] = ()
    if declared is not None and all(p.passed or p.outside for p in parity):
        declared = dataclasses.replace(declared, parity=_measured(parity, atol, rtol, fixed))
        # A fused file runs only with the kernels, so it is read with its function bodies.
        runnable = data if ops != "fused" else lowered.runnable.SerializeToString()
        annotated, notes = _described(subject, data, runnable, description, declared, path)
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
            *(subject.traced.notes if subject.traced else ()),
            *notes,
        ),
        atol=atol,
        rtol=rtol,
        parity=parity,
        dry_run=dry_run,
        scores=scores_output(declared, subject.outputs),
        score_warnings=warnings,
    )
    if not report.passed:
        progress("looking for the node that differs")
        with _evaluating(model):
            make = functools.partial(_again, subject, opset)
            ill = report.ill_conditioned
            report.check("" if ill else diagnose(subject, make, batch, rewrites, cases, report))
    if not dry_run:
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


def _no_metadata(model: nn.Module, checkpoint_sha256: str) -> ModelMetadata:
    """The metadata of a file before anything is known of its network."""
    name = type(model).__name__
    return ModelMetadata(name, {}, "", 0, (), None, checkpoint_sha256=checkpoint_sha256)


def _described(
    subject: Subject,
    data: bytes,
    runnable: bytes,
    description: Description,
    declared: ModelMetadata,
    path: Path,
) -> tuple[DescribedModel | None, tuple[str, ...]]:
    """The file with its metadata, None if it is unchanged; and notes.

    A traced network of the user's own that nobody described may be none of images, for which there is no
    metadata; its trace is then outputs as any other.
    """
    if subject.traced is not None:
        declared = dataclasses.replace(declared, trace=TraceOutputs(subject.traced.layers))
    try:
        return describe_model(data, description, declared, path, runnable=runnable), ()
    except UsageError as error:
        if description or subject.metadata is not None:
            raise
        return None, (
            f"the file does not state its trace, which is outputs as any other: {error.why} `session.trace` "
            "and `see` need a network of images with class_names (docs/how-to/export.md#trace)",
        )


def _subject(
    model: nn.Module,
    example: Tensor | Sequence[Tensor] | None,
    iterations: int | None,
    batch: int | None,
    extra_outputs: Sequence[str],
    output_names: Sequence[str] | None,
    metadata: ModelMetadata | None,
    checkpoint_sha256: str,
) -> Subject:
    if not isinstance(model, CapsuleModel):
        if iterations is not None or set(extra_outputs) - {TRACE}:
            raise UsageError(
                "The iterations and outputs of your own module are set in its code.",
                "Of the extra outputs, only the trace can be added.",
                "Set them in the module, and leave out 'iterations' and every entry of "
                "'extra_outputs' except trace.",
                command="Let forward return them, and use --with only for trace.",
            )
        subject = of_module(model, example, batch, output_names, metadata)
        return dataclasses.replace(subject, to_trace=bool(extra_outputs))
    if iterations is not None and iterations != model.config.iterations:
        model = with_iterations(model, iterations)
    return modules.of_capsule_model(model, extra_outputs, batch, checkpoint_sha256)


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
    """A module as the graph of a file, the program that torch captured, and the routing that is traced."""

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
    progress: Progress = lambda _: None,
) -> _Graph:
    """Capture the module, and make the graph of a file of it.

    Args:
        ops, fuse, progress: as for `graph.passes.lower`.

    Raises:
        UnsupportedModelError: torch cannot capture the module, it draws random numbers, or a shape depends on
            more than the batch.
    """
    module: nn.Module = subject.module
    if not rewrites.light_cone:
        # torch.export drops nodes that reach no output; all passes stay, because they are outputs.
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
