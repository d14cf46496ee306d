"""PyTorch module in, verified ONNX file out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import torch
from torch import Tensor, nn

from capsedge.datasets.typical import Typical, typical_images
from capsedge.errors import UnsupportedModelError, UsageError
from capsedge.exporters import checks, modules
from capsedge.exporters.answers import about_the_module
from capsedge.exporters.arguments import Inputs, check_module, own_inputs
from capsedge.exporters.capture import capture
from capsedge.exporters.diagnosis import diagnose
from capsedge.exporters.emit import lower
from capsedge.exporters.export_report import CaseParity, ExportReport, ScoresTaken, required
from capsedge.exporters.hard_inputs import taken
from capsedge.exporters.modules import Subject
from capsedge.exporters.own_modules import sized
from capsedge.exporters.own_subject import NoFreeBatch, of_module
from capsedge.exporters.recognizing import recognize_routing
from capsedge.exporters.routing_calls import RoutingCalls
from capsedge.exporters.scoring import with_scores
from capsedge.exporters.traced import Traced
from capsedge.exporters.traced_graph import traced_graph
from capsedge.exporters.translation import TORCH_DOMAIN
from capsedge.graph.cleaning import remove_dead_nodes
from capsedge.graph.exact_sigmoid import write_exact_sigmoids
from capsedge.graph.first_pass import replace_uniform_passes
from capsedge.graph.functions import attach_functions, inline_functions
from capsedge.graph.layer_norm import replace_layer_norms
from capsedge.graph.portable import use_portable_forms
from capsedge.graph.proto import copy_of, operator_counts, operator_nodes
from capsedge.graph.random_nodes import refuse_random
from capsedge.graph.recognize.report import Recognition
from capsedge.graph.rewrites import Rewrites
from capsedge.graph.shapes import UnknownShapeError
from capsedge.graph.simplify import simplify
from capsedge.graph.stated_shapes import state_shapes
from capsedge.graph.targets import resolve
from capsedge.models import CapsuleModel, with_iterations
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.description import Described, Description, described
from capsedge.runtime.files.given import OUTPUT, as_path
from capsedge.runtime.files.writing import check_writable, write_bytes
from capsedge.runtime.metadata import REGRESSION, ModelMetadata, Outputs, Preprocessing
from capsedge.runtime.routing_trace import TraceOutputs
from capsedge.runtime.scores import LENGTHS, LOGITS
from capsedge.schema.names import DOMAIN, operator_of
from capsedge.schema.operators import OPERATORS

IR_VERSION = 10
OPSETS = range(18, 22)
Progress = Callable[[str], None]
OPS = ("auto", "fused", "portable")
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
    """Export a capsule network to one self-contained ONNX file and prove it equal.

    The file is checked (full check, strict shape inference), loaded and run in ONNX Runtime and
    compared with the module on random and hard inputs before anything is written.

    Args:
        model: one of the package's models, or any module: routing that it writes with ``capsedge.ops``, or as
            a loop of standard operations, becomes capsule operators.
        path: the file to write.
        example: input of a module of your own: a tensor, or a tuple of them, batch first.
        iterations: routing iterations, instead of the model's own (the package's models).
        opset: of the standard operators, 18 to 21; 20 by default.
        ops: ``auto`` (the default): capsule operators with function bodies; ``fused``: without;
            ``portable``: standard operators only.
        batch: fixed batch; by default the batch is free, or the one that the code of a module of your own is
            bound to (a note says why).
        free_batch: refuse a module whose batch cannot be free, instead of fixing it.
        target: another runtime to write the file for, ``openvino``, ``litert`` or ``mnn``: sets the three
            arguments above if they are left out.
        extra_outputs: ``reconstruction``, ``couplings`` (the package's models), ``trace``.
        output_names: output names of a module of your own, instead of those of its dict or named tuple.
        rewrites: the exact rewrites to use; all by default.
        atol, rtol: tolerance of the comparison, ``atol + rtol·size of the pose``.
        inputs: inputs of the user's own that are compared too (a file, arrays, or a mapping by input name);
            hard cases outside their range then only warn.
        metadata: metadata for the file of a module of your own.
        class_names: what the file says of itself: one name per class.
        preprocessing: how an image becomes the input; a mapping changes some of the model's own.
        task: ``single-label``, ``multi-label`` or ``regression``.
        outputs: which outputs hold scores, poses or values, and the names and units of values.
        typical: images as in training (`capsedge.datasets.nothing_from`): for an image unlike all of them,
            predictions say that there is nothing to see.
        checkpoint_sha256: checksum of the checkpoint, for the metadata.
        dry_run: do everything except write the file.
        progress: told what is being done.

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
    _check_arguments(opset, ops, batch, iterations, atol, rtol)
    batch = _batch(model, batch)
    description = Description(class_names, preprocessing, task, outputs, typical_images(typical))
    check_module(model)
    import_onnxruntime()  # what is missing is said before the work
    path = as_path(path, OUTPUT)
    if not dry_run:
        check_writable(path)
    _check_parameters(model)
    made: list[tuple[onnx.ModelProto, torch.export.ExportedProgram]] = []
    ours = isinstance(model, CapsuleModel)
    answering = contextlib.nullcontext() if ours else about_the_module(made)

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
        said, stated = description, subject.metadata
        if said and stated is None:
            stated = _no_metadata(model, checkpoint_sha256)
        if said and stated is not None and not ours:
            subject, said, stated = with_scores(subject, said, stated, batch)
        own = () if inputs is None else own_inputs(inputs, subject.inputs, subject.example)
        traced = bool(subject.to_trace or subject.traced)
        # All iterations of a trace have results: none can be left out.
        kept = Rewrites.none() if traced else rewrites or Rewrites()
        found = to_proto(subject, opset, batch, kept, progress=progress)
        subject = dataclasses.replace(subject, traced=found.traced)
        return _Prepared(subject, said, stated, own, kept, found)

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
            fixed = (_why_fixed(error),)
        subject, description, stated, own, rewrites, found = ready
        made.append((found.model, found.program))
        lowered = _with_ops(found.model, ops, rewrites)
        checks.validate(lowered)
        cases, left_out = _cases(subject, batch, own)
        progress(f"comparing with PyTorch on {len(cases)} inputs")
        parity = _prove(lowered, ops, rewrites, subject, cases, own, atol, rtol)
    if stated is None and subject.traced:
        stated = _no_metadata(model, checkpoint_sha256)
    # A fused file runs only with the kernels, so it is read with its function bodies.
    whole = _with_ops(copy_of(lowered), "auto", rewrites) if ops == "fused" else lowered
    state_shapes(lowered, whole)
    data, notes = lowered.SerializeToString(), tuple[str, ...]()
    doubts: tuple[str, ...] = ()
    if stated is not None and all(p.passed or p.outside for p in parity):
        stated = dataclasses.replace(stated, parity=_measured(parity, atol, rtol, fixed))
        annotated, notes = _described(
            subject, data, whole.SerializeToString(), description, stated, path
        )
        if annotated is not None:
            data, stated, doubts = annotated.data, annotated.metadata, annotated.warnings
    report = ExportReport(
        path=path,
        size=len(data),
        opset=opset,
        ir_version=lowered.ir_version,
        ops=ops,
        inputs=_signature(lowered.graph.input),
        outputs=_signature(lowered.graph.output),
        operators=operator_counts(lowered),
        functions=len(lowered.functions),
        rewrites=found.rewrites,
        recognition=found.recognition,
        notes=(
            *fixed,
            *found.notes,
            *left_out,
            *(subject.traced.notes if subject.traced else ()),
            *notes,
        ),
        atol=atol,
        rtol=rtol,
        parity=parity,
        dry_run=dry_run,
        scores=_scores_taken(stated, subject),
        doubts=doubts,
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
    """What a module became at a batch."""

    subject: Subject
    description: Description
    stated: ModelMetadata | None
    own: Sequence[Tensor]
    rewrites: Rewrites
    found: Lowered


def _why_fixed(error: NoFreeBatch) -> str:
    """The fixed batch in a line, with its reason."""
    what = error.what[0].lower() + error.what[1:].rstrip(".")
    where = "; ".join((error.why.rstrip("."), *error.details[:1]))
    return f"the batch is fixed at {error.batch}: {what} ({where})"


def _no_metadata(model: nn.Module, checkpoint_sha256: str) -> ModelMetadata:
    """What a file states before anything is known of its network."""
    name = type(model).__name__
    return ModelMetadata(name, {}, "", 0, (), None, checkpoint_sha256=checkpoint_sha256)


def _scores_taken(stated: ModelMetadata | None, subject: Subject) -> ScoresTaken | None:
    """The output that decides the class, as the file states it."""
    if stated is None or stated.task == REGRESSION:
        return None
    reason = stated.chosen.reason if stated.chosen else "the name of scores in files of capsedge"
    if stated.outputs is not None:
        return ScoresTaken(stated.outputs.scores, stated.outputs.kind, reason)
    named = {LENGTHS: "length", LOGITS: "logits"}
    name = next((n for n in subject.outputs if n in named), None)
    return None if name is None else ScoresTaken(name, named[name], reason)


def _described(
    subject: Subject,
    data: bytes,
    runnable: bytes,
    description: Description,
    stated: ModelMetadata,
    path: Path,
) -> tuple[Described | None, tuple[str, ...]]:
    """The file with its metadata; None if it stays as it is; and notes.

    A traced network of the user's own that nobody described may be none of images, for which there is no
    metadata; its trace is then outputs as any other.
    """
    if subject.traced is not None:
        stated = dataclasses.replace(stated, trace=TraceOutputs(subject.traced.layers))
    try:
        return described(data, description, stated, path, runnable=runnable), ()
    except UsageError as error:
        if description or subject.metadata is not None:
            raise
        return None, (
            f"the file does not state its trace, which is outputs as any other: {error.why} `session.trace` "
            "and `see` need a network of images with class_names (docs/how-to/export.md#trace)",
        )


def _check_arguments(
    opset: int, ops: str, batch: int | None, iterations: int | None, atol: float, rtol: float
) -> None:
    if opset not in OPSETS:
        raise UsageError(
            f"Opset {opset} cannot be exported.",
            f"The function bodies are written for opsets {OPSETS[0]} to {OPSETS[-1]}.",
            "Use 20, the newest that every TensorRT from 10.0 on reads.",
        )
    if ops not in OPS:
        raise UsageError(f"Unknown ops '{ops}'.", "", f"Known: {', '.join(OPS)}.")
    for name, value in (("batch", batch), ("iterations", iterations)):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}.", "It must be at least 1.")
    if not (atol >= 0 and rtol >= 0 and atol + rtol > 0):
        raise UsageError(f"Tolerances atol {atol:g}, rtol {rtol:g} are not positive.")


def _batch(model: nn.Module, batch: int | None) -> int | None:
    """The batch to fix; a network whose author's code averages over the batch has only one.

    Raises:
        UsageError: another one is asked for.
    """
    fixed = model.config.fixed_batch if isinstance(model, CapsuleModel) else None
    if fixed is not None and batch not in (None, fixed):
        raise UsageError(
            f"This network is exported with batch {fixed} only, not {batch}.",
            "Its author's code averages agreements over the batch, so that other batches give other results.",
            f"Leave the batch out, or make it {fixed}.",
        )
    return batch if fixed is None else fixed


def _check_parameters(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu" or (
            tensor.dtype.is_floating_point and tensor.dtype != torch.float32
        ):
            raise UsageError(
                "Export starts from an FP32 module on the CPU.",
                f"'{name}' is {str(tensor.dtype).removeprefix('torch.')} on {tensor.device}.",
                "Call model.float().cpu() first; `capsedge quantize` makes FP16 and INT8 files.",
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
        if iterations is not None or set(extra_outputs) - {modules.TRACE}:
            raise UsageError(
                "A module of your own has its own iterations and outputs.",
                "Of the further outputs it can have the trace alone.",
                "Set them in the module; leave out 'iterations' and all 'extra_outputs' but trace.",
                command="Let its forward return them; of --with, only trace is possible.",
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


@dataclasses.dataclass(frozen=True)
class Lowered:
    """A graph of ``capsedge`` nodes without functions.

    Attributes:
        model: the graph.
        rewrites: the effect of each exact rewrite.
        recognition: what was found and left in the user's own routing.
        notes: on both, for a person.
        program: what torch captured.
        traced: the routing that is traced in it; None for none.
    """

    model: onnx.ModelProto
    rewrites: dict[str, str]
    recognition: Recognition
    notes: tuple[str, ...]
    program: torch.export.ExportedProgram
    traced: Traced | None = None


def to_proto(
    subject: Subject,
    opset: int,
    batch: int | None,
    rewrites: Rewrites,
    recognize: bool = True,
    progress: Progress = lambda _: None,
) -> Lowered:
    """Capture the module and lower it to ``capsedge`` nodes without functions.

    A module without capsule operators has its own routing recognized, unless ``recognize`` is False.

    Args:
        progress: told what is being done.

    Raises:
        UnsupportedModelError: torch cannot capture the module, or a shape depends on more than the batch.
    """
    module: nn.Module = subject.module
    if not rewrites.light_cone:
        # torch.export drops nodes that reach no output; all passes stay, because they are outputs.
        module = modules.KeepingAllPasses(module).eval()
    with torch.no_grad(), RoutingCalls() as calls:
        subject.module(*subject.example)
    progress("capturing it as a graph")
    raw, program = capture(module, subject, opset, batch)
    refuse_random(raw, "The captured graph")  # before constants are folded, and draws with them
    model = simplify(raw)
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "capsedge", _version()
    captured = sum(OPERATORS[n.op_type].couplings for n in operator_nodes(model, TORCH_DOMAIN))
    try:
        model = lower(model, rewrites, traced=subject.to_trace or subject.traced is not None)
    except UnknownShapeError as error:
        raise UnsupportedModelError(
            "A capsule operator has an input of unknown shape.",
            f"There is {error}.",
            "Give every operation before it fixed sizes; only the batch may be free.",
        ) from error
    # The passes kept alive as outputs go on as ordinary tensors.
    model.graph.value_info.extend(model.graph.output[len(subject.outputs) :])
    del model.graph.output[len(subject.outputs) :]
    recognition, notes = Recognition(), tuple[str, ...]()
    if recognize and not calls.outputs and not operator_nodes(model):
        model, recognition, notes = recognize_routing(model, progress)
    traced = subject.traced
    if subject.to_trace:
        traced, model = traced_graph(subject.module, model, subject.example, recognition)
    if traced is not None:
        model = traced.write(model)
    linear = replace_uniform_passes(model) if rewrites.first_pass_uniform else 0
    replace_layer_norms(model)
    write_exact_sigmoids(model)
    remove_dead_nodes(model, None if rewrites.light_cone else DOMAIN)
    use_portable_forms(model)
    said = _effects(rewrites, model, len(calls.outputs) - captured, linear)
    return Lowered(model, said, recognition, notes, program, traced)


def _effects(rewrites: Rewrites, model: onnx.ModelProto, dead: int, linear: int) -> dict[str, str]:
    """The effect of each rewrite; one without an operator to work on has none."""
    routing = any(OPERATORS[operator_of(n.op_type)].layout for n in operator_nodes(model))
    on = "on" if routing else "on, without effect: there is no capsule operator that routes"
    said = {k: on if v else "off" for k, v in dataclasses.asdict(rewrites).items()}
    if rewrites.light_cone and dead:
        said["light_cone"] = f"on: {dead} dead passes left out"
    if rewrites.first_pass_uniform and linear:
        said["first_pass_uniform"] = f"on: {linear} attention passes made linear layers"
    return said


def _version() -> str:
    from capsedge import __version__

    return __version__


def _with_ops(model: onnx.ModelProto, ops: str, rewrites: Rewrites) -> onnx.ModelProto:
    if ops == "fused":
        return model
    attach_functions(model, rewrites)
    if ops == "auto":
        return model
    inlined = inline_functions(model)
    use_portable_forms(inlined)
    return inlined


def _again(
    subject: Subject, opset: int, batch: int | None, rewrites: Rewrites, recognize: bool
) -> tuple[onnx.ModelProto, torch.export.ExportedProgram]:
    """The graph made anew in another way, for `diagnose`."""
    if batch is not None:
        subject = dataclasses.replace(subject, example=sized(subject.example, batch))
    made = to_proto(subject, opset, batch, rewrites, recognize)
    return made.model, made.program


def _cases(
    subject: Subject, batch: int | None, own: Sequence[Tensor]
) -> tuple[list[checks.Case], tuple[str, ...]]:
    """What is compared, and what to say of hard inputs that a module of the user's own does not take."""
    batches = subject.batches if batch is None else (batch,)
    given = checks.given_cases(own, batches) if own else []
    hard, notes = checks.input_cases(subject.example, batches), tuple[str, ...]()
    if not isinstance(getattr(subject.module, "model", None), CapsuleModel):
        hard, notes = taken(subject.module, hard, own or subject.example, batches)
    return [*given, *hard], notes


def _prove(
    model: onnx.ModelProto,
    ops: str,
    rewrites: Rewrites,
    subject: Subject,
    cases: Sequence[checks.Case],
    own: Sequence[Tensor],
    atol: float,
    rtol: float,
) -> tuple[CaseParity, ...]:
    runnable = model
    if ops == "fused":
        # A fused file runs only with the kernels; its graph is verified with the function bodies.
        runnable = copy_of(model)
        attach_functions(runnable, rewrites)
    session = checks.session_of(runnable)
    found = checks.compare(session, subject.reference, subject.compared, cases, atol, rtol)
    outside = checks.outside(cases, own) if own else set[str]()
    return tuple(dataclasses.replace(p, outside=p.case in outside) for p in found)


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
