"""Export a PyTorch module to a verified ONNX file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import torch
from torch import Tensor, nn

from capsedge.datasets.regression_targets import with_typical_images
from capsedge.errors import UsageError
from capsedge.exporters import parity
from capsedge.exporters.export_options import REWRITES, ExportOptions
from capsedge.exporters.export_report import CaseParity, ExportReport, required_cases, scores_output
from capsedge.exporters.module_graph import (
    check_ports,
    declare_inputs,
    longest_of_inputs,
    to_graph,
)
from capsedge.exporters.score_choice import with_scores
from capsedge.exporters.subject import (
    Inputs,
    Subject,
    check_module,
    check_parameters,
    check_tolerance,
    comparison_inputs,
    fixed_batch_size,
    of_capsule_model,
    one_thread,
)
from capsedge.exporters.user_batch import NoFreeBatch
from capsedge.exporters.user_errors import explain_module_errors
from capsedge.exporters.user_inputs import Example, FreeAxes, of_module
from capsedge.graph import Rewrites
from capsedge.graph.passes import LoweredGraph
from capsedge.graph.target_runtimes import resolve
from capsedge.models import CapsuleModel, with_iterations
from capsedge.models.checkpoint import check_finite_weights
from capsedge.models.user.unsaved_tensors import unregistered
from capsedge.options import takes_options
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.files.writing import OUTPUT, as_path, check_writable, write_bytes
from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.session.routing_trace import TraceOutputs
from capsedge.runtime.user_metadata import Description, DescriptionLike, describe_model
from capsedge.spec.vocabularies import TRACE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import ExportKeywords


@takes_options(ExportOptions)
def export(
    module: nn.Module,
    path: Path | str | None,
    options: ExportOptions = ExportOptions(),
    *,
    example: Example | None = None,
    free_axes: FreeAxes | None = None,
    check_inputs: Inputs | None = None,
    description: DescriptionLike | None = None,
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
            history: ``{"hist": [1]}``. Axes that have the same size in the example share one length; routing
            is fused with up to three lengths.
        check_inputs: your own inputs to compare as well (a file, arrays, or a mapping by input name).
            Differences on hard cases outside their range are then only warnings.
        description: classes, preprocessing, task, outputs and typical images, for the metadata: a mapping, a
            TOML file with the same fields (docs/reference/metadata.md), or a `Description`.
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
    job = _checked(
        module, path, options, example, free_axes, check_inputs, Description.of(description)
    )
    progress = _numbered(progress, job)
    with _evaluating(module), one_thread():
        captured = _captured(job, progress)
        compared = _compared(job, captured, progress)
    file = _described(job, captured, compared)
    return _finished(job, captured, compared, file, progress)


# --- 1. The job: everything that can be refused before any work ---


@dataclass(frozen=True)
class _ExportJob:
    """What to export, and how; all checked.

    Attributes:
        module, example, free_axes, check_inputs, options: as for `export`.
        path: the file to write; None for a dry run.
        description: the caller's, with its typical images found.
        ops, opset, batch: those of the options or of their target; ``batch`` is None for a free one.
    """

    module: nn.Module
    path: Path | None
    options: ExportOptions
    example: Example | None
    free_axes: FreeAxes | None
    check_inputs: Inputs | None
    description: Description
    ops: str
    opset: int
    batch: int | None

    @property
    def is_user_module(self) -> bool:
        """Whether the module is none of the package's."""
        return not isinstance(self.module, CapsuleModel)

    @property
    def blank_metadata(self) -> ModelMetadata:
        """The metadata of a file before anything is known about its network."""
        checksum = self.options.checkpoint_sha256
        name = type(self.module).__name__
        return ModelMetadata(name, {}, "", 0, (), None, checkpoint_sha256=checksum)


def _checked(
    module: nn.Module,
    path: Path | str | None,
    options: ExportOptions,
    example: Example | None,
    free_axes: FreeAxes | None,
    check_inputs: Inputs | None,
    description: Description,
) -> _ExportJob:
    """Check the arguments of `export`, which has the errors."""
    check_module(module)
    ops: str = options.ops
    opset, batch = options.opset, options.batch
    if options.target is not None:
        ops, opset, batch = resolve(options.target, ops, opset, batch)
    check_tolerance(*options.tolerance)
    batch = fixed_batch_size(module, batch)
    description = with_typical_images(description) if description else Description()
    import_onnxruntime()  # report missing packages before the work starts
    file = None if path is None else as_path(path, OUTPUT)
    if file is not None:
        check_writable(file)
    check_parameters(module)
    check_finite_weights(module)
    return _ExportJob(
        module, file, options, example, free_axes, check_inputs, description, ops, opset, batch
    )


# How the stages begin; routing is looked for in the user's own modules only.
_STAGES = ("running", "capturing", "looking for routing", "proving", "comparing")


def _numbered(progress: Progress, job: _ExportJob) -> Progress:
    """Say with each stage how many there are."""
    stages = _STAGES if job.is_user_module else (*_STAGES[:2], _STAGES[-1])

    def tell(stage: str, _done: int = 0, _total: int | None = None, /) -> None:
        step = next((k for k, begin in enumerate(stages, 1) if stage.startswith(begin)), None)
        progress(stage if step is None else f"step {step} of {len(stages)}: {stage}")

    return tell


# --- 2. Capturing: from the module to a graph ---


@dataclass(frozen=True)
class _Captured:
    """A module captured as the graph of the file.

    Attributes:
        subject: the module as it was captured, with the file's metadata as far as they are known.
        description: the caller's, with the scores that were chosen.
        check_inputs: the caller's own inputs; empty without any.
        rewrites: those that were tried.
        lowered: the graph, which declares the bounds of its inputs.
        program: the program that torch captured.
        batch: the fixed batch; None for a free one.
        fixed: why the batch is fixed though none was requested; empty if it is not.
        notes: on the bounds of the inputs.
    """

    subject: Subject
    description: Description
    check_inputs: tuple[Tensor, ...]
    rewrites: Rewrites
    lowered: LoweredGraph
    program: torch.export.ExportedProgram
    batch: int | None
    fixed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _captured(job: _ExportJob, progress: Progress) -> _Captured:
    """Capture the module; one that allows no free batch, at a batch that it works with.

    Raises:
        UnsupportedModelError: it cannot be captured.
        UsageError: the example, the inputs or the description do not fit it.
    """
    with _explaining(job):
        progress("running the module on the example")
        try:
            return _captured_at(job, job.batch, progress)
        except NoFreeBatch as error:
            if job.batch is not None or not job.is_user_module:
                raise
            progress(f"fixing the batch at {error.batch}, since it cannot be free")
            return replace(_captured_at(job, error.batch, progress), fixed=(error.note,))


def _captured_at(job: _ExportJob, batch: int | None, progress: Progress) -> _Captured:
    subject, description = _subject(job, batch), job.description
    if description and job.is_user_module:
        subject, description = with_scores(
            replace(subject, metadata=job.blank_metadata), description, batch
        )
    inputs: tuple[Tensor, ...] = ()
    if job.check_inputs is not None:
        inputs = comparison_inputs(
            job.check_inputs, subject.inputs, subject.example, subject.free_axes
        )
    rewrites = Rewrites(**{REWRITES[name]: False for name in job.options.no_rewrite})
    if subject.to_trace or subject.traced:
        # A trace has results for every iteration, so none can be left out.
        rewrites = Rewrites.none()
    graph = to_graph(subject, job.opset, batch, rewrites, job.ops, progress=progress)
    check_ports(graph.lowered.model)
    longest = longest_of_inputs(subject, graph.program)
    subject = replace(subject, traced=graph.traced, longest=longest)
    if subject.metadata is None and subject.traced is not None:
        subject = replace(subject, metadata=job.blank_metadata)
    # A file with metadata takes images of one size, and its batch is known to be of images.
    independent = batch is None and subject.metadata is None
    notes = declare_inputs(graph.lowered.model, subject, independent=independent)
    return _Captured(
        subject, description, inputs, rewrites, graph.lowered, graph.program, batch, notes=notes
    )


def _subject(job: _ExportJob, batch: int | None) -> Subject:
    """The module with its inputs and outputs.

    Raises:
        UsageError: the options are for the package's own models; or as `of_module`, `of_capsule_model`.
    """
    module, options = job.module, job.options
    if not isinstance(module, CapsuleModel):
        if options.iterations is not None or set(options.extra_outputs) - {TRACE}:
            raise UsageError(
                "The iterations and outputs of your own module are set in its code.",
                "Of the extra outputs, only the trace can be added.",
                "Set them in the module, and leave out 'iterations' and every entry of "
                "'extra_outputs' except trace.",
                command="Let forward return them, and use --with only for trace.",
            )
        subject = of_module(module, job.example, batch, options.output_names, job.free_axes)
        return replace(subject, to_trace=bool(options.extra_outputs))
    if options.iterations is not None and options.iterations != module.config.iterations:
        module = with_iterations(module, options.iterations)
    return of_capsule_model(module, options.extra_outputs, batch, options.checkpoint_sha256)


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


# --- 3. Comparing: the graph in ONNX Runtime with the module ---


@dataclass(frozen=True)
class _Compared:
    """The comparisons with PyTorch.

    Attributes:
        cases: the inputs.
        parity: the results.
        notes: on hard inputs that the module does not accept.
        unregistered: tensors that a user's module computes with and its state dict lacks.
    """

    cases: list[parity.Case]
    parity: tuple[CaseParity, ...]
    notes: tuple[str, ...]
    unregistered: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every required comparison is within its tolerance."""
        return all(p.passed or p.outside for p in self.parity)


def _compared(job: _ExportJob, captured: _Captured, progress: Progress) -> _Compared:
    """Run the graph and the module on random, hard and the caller's own inputs.

    Raises:
        UnsupportedModelError: the module fails, or ONNX Runtime cannot run its graph.
    """
    subject, lowered = captured.subject, captured.lowered
    with _explaining(job, captured):
        unsaved: tuple[str, ...] = ()
        if job.is_user_module:
            unsaved = unregistered(job.module, subject.module, subject.example)
        cases, notes = _cases(job, captured)
        progress(f"comparing with PyTorch on {len(cases)} inputs")
        results = parity.compare(
            parity.session_of(lowered.runnable, torch.get_num_threads()),
            subject.reference,
            subject.compared,
            cases,
            *job.options.tolerance,
            captured.check_inputs,
        )
    return _Compared(cases, results, notes, unsaved)


def _cases(job: _ExportJob, captured: _Captured) -> tuple[list[parity.Case], tuple[str, ...]]:
    """The inputs to compare on, and notes on hard ones that a user's module does not accept."""
    subject, own = captured.subject, captured.check_inputs
    batches = subject.batches if captured.batch is None else (captured.batch,)
    hard, notes = parity.input_cases(subject.example, batches), tuple[str, ...]()
    if subject.free_axes:
        hard += parity.length_cases(
            subject.example, subject.free_axes, batches[-1:], subject.longest
        )
    if job.is_user_module:
        hard, notes = parity.accepted_inputs(subject.module, hard, own or subject.example, batches)
    return [*(parity.user_cases(own, batches) if own else ()), *hard], notes


@contextlib.contextmanager
def _explaining(job: _ExportJob, captured: _Captured | None = None) -> Iterator[None]:
    """Explain failures of a user's module; those of the package's own models are left as they are."""
    if not job.is_user_module:
        yield
        return
    model, program = (captured.lowered.model, captured.program) if captured else (None, None)
    with explain_module_errors(model, program):
        yield


# --- 4. The file: bytes with metadata ---


@dataclass(frozen=True)
class _ExportedFile:
    """The bytes of the file, its metadata (None without any), notes, and warnings about its scores."""

    data: bytes
    metadata: ModelMetadata | None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def _described(job: _ExportJob, captured: _Captured, compared: _Compared) -> _ExportedFile:
    """The file with its metadata, if there are any and every comparison passed.

    A traced user network without a description may not take images, and there is metadata only for images;
    its trace then consists of ordinary outputs.
    """
    subject, lowered = captured.subject, captured.lowered
    data, metadata = lowered.model.SerializeToString(), subject.metadata
    if metadata is None or not compared.passed:
        return _ExportedFile(data, metadata)
    metadata = replace(metadata, parity=_measured(job, captured, compared))
    if subject.traced is not None:
        metadata = replace(metadata, trace=TraceOutputs(subject.traced.layers))
    # A fused file runs only with the kernels, so the version with function bodies is run here.
    runnable = data if job.ops != "fused" else lowered.runnable.SerializeToString()
    name = job.path or "the new file"
    try:
        described = describe_model(data, captured.description, metadata, name, runnable=runnable)
    except UsageError as error:
        if job.description or not job.is_user_module:
            raise
        note = (
            f"the file does not state its trace, which is outputs as any other: {error.why} `session.trace` "
            "and `see` need a network of images with class_names (docs/how-to/export.md#trace)"
        )
        return _ExportedFile(data, metadata, (note,))
    return _ExportedFile(described.data, described.metadata, (), described.warnings)


def _measured(job: _ExportJob, captured: _Captured, compared: _Compared) -> dict[str, Any]:
    """The comparison, for the metadata, and why its batch is fixed."""
    counted = required_cases(compared.parity)
    atol, rtol = job.options.tolerance
    batch = {"batch": captured.fixed[0]} if captured.fixed else {}
    return batch | {
        "against": "PyTorch eager FP32",
        "torch": torch.__version__,
        "comparisons": len(counted),
        "max_abs": max(p.max_abs for p in counted),
        "worst": asdict(max(counted, key=lambda p: p.excess)),
        "atol": atol,
        "rtol": rtol,
    }


# --- 5. The end: the report, what differs, and writing ---


def _finished(
    job: _ExportJob,
    captured: _Captured,
    compared: _Compared,
    file: _ExportedFile,
    progress: Progress,
) -> ExportReport:
    """Write the file, unless a comparison failed.

    Raises:
        ParityError: one did; the error names the node that differs.
    """
    report = _report(job, captured, compared, file)
    if not report.passed:
        progress("looking for the node that differs")
        with _evaluating(job.module), one_thread():
            report.check("" if report.ill_conditioned else _cause(job, captured, compared, report))
    if job.path is not None:
        write_bytes(job.path, file.data)
    return report


def _report(
    job: _ExportJob, captured: _Captured, compared: _Compared, file: _ExportedFile
) -> ExportReport:
    subject, lowered = captured.subject, captured.lowered
    trace = subject.traced.notes if subject.traced else ()
    atol, rtol = job.options.tolerance
    return ExportReport(
        path=job.path,
        size=len(file.data),
        opset=job.opset,
        ir_version=lowered.model.ir_version,
        ops=job.ops,
        inputs=_signature(lowered.model.graph.input),
        outputs=_signature(lowered.model.graph.output),
        operators=lowered.operators,
        functions=len(lowered.model.functions),
        rewrites=lowered.rewrites,
        fusion=lowered.fusion,
        notes=(
            *captured.fixed,
            *lowered.notes,
            *compared.notes,
            *captured.notes,
            *trace,
            *file.notes,
        ),
        atol=atol,
        rtol=rtol,
        parity=compared.parity,
        scores=scores_output(file.metadata, subject.outputs),
        score_warnings=file.warnings,
        unregistered=compared.unregistered,
    )


def _cause(job: _ExportJob, captured: _Captured, compared: _Compared, report: ExportReport) -> str:
    """The origin of a difference: what is captured again, in other ways, agrees or not."""

    def again(
        batch: int | None, rewrites: Rewrites, fuse: bool
    ) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
        subject = captured.subject if batch is None else captured.subject.sized(batch)
        graph = to_graph(subject, job.opset, batch, rewrites, fuse=fuse)
        return graph.lowered.runnable, graph.program

    return parity.diagnose(
        captured.subject, again, captured.batch, captured.rewrites, compared.cases, report
    )


def _signature(values: Sequence[onnx.ValueInfoProto]) -> dict[str, list[int | str]]:
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values
    }
