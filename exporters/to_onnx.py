"""PyTorch module in, verified ONNX file out."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from capsedge.errors import CapsedgeError, UnsupportedModelError, UsageError
from capsedge.exporters import checks, modules
from capsedge.exporters.emit import lower
from capsedge.exporters.export_report import CaseParity, ExportReport
from capsedge.exporters.modules import Subject
from capsedge.exporters.translation import TORCH_DOMAIN, translation_table
from capsedge.graph.cleaning import remove_dead_nodes
from capsedge.graph.first_pass import replace_uniform_passes
from capsedge.graph.functions import attach_functions, inline_functions
from capsedge.graph.layer_norm import replace_layer_norms
from capsedge.graph.portable import use_portable_forms
from capsedge.graph.proto import copy_of, operator_counts, operator_nodes
from capsedge.graph.rewrites import Rewrites
from capsedge.graph.shapes import UnknownShapeError
from capsedge.graph.simplify import simplify
from capsedge.graph.targets import resolve
from capsedge.models import CapsuleModel, build
from capsedge.runtime.description import Description, described
from capsedge.runtime.files.writing import check_writable, write_bytes
from capsedge.runtime.metadata import ModelMetadata, Outputs, Preprocessing
from capsedge.schema.names import DOMAIN
from capsedge.schema.operators import OPERATORS

IR_VERSION = 10
OPSETS = range(18, 22)
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
    target: str | None = None,
    extra_outputs: Sequence[str] = (),
    output_names: Sequence[str] | None = None,
    rewrites: Rewrites | None = None,
    atol: float = ATOL,
    rtol: float = RTOL,
    metadata: ModelMetadata | None = None,
    class_names: Sequence[str] | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    task: str | None = None,
    outputs: Outputs | None = None,
    checkpoint_sha256: str = "",
    dry_run: bool = False,
) -> ExportReport:
    """Export a capsule network to one self-contained ONNX file and prove it equal.

    The file is checked (full check, strict shape inference), loaded and run in ONNX Runtime and
    compared with the module on random and hard inputs before anything is written.

    Args:
        model: one of the package's models, or any module that uses ``capsedge.ops``.
        path: the file to write.
        example: input of a module of your own: a tensor, or a tuple of them, batch first.
        iterations: routing iterations, instead of the model's own (the package's models).
        opset: of the standard operators, 18 to 21; 20 by default.
        ops: ``auto`` (the default): capsule operators with function bodies; ``fused``: without;
            ``portable``: standard operators only.
        batch: fixed batch; by default the batch is free.
        target: another runtime to write the file for, ``openvino``, ``litert`` or ``mnn``: sets the three
            arguments above if they are left out.
        extra_outputs: ``reconstruction``, ``couplings`` (the package's models).
        output_names: output names of a module of your own, instead of those of its dict or named tuple.
        rewrites: the exact rewrites to use; all by default.
        atol, rtol: tolerance of the comparison, ``atol + rtol·size of the pose``.
        metadata: metadata for the file of a module of your own.
        class_names: what the file says of itself: one name per class.
        preprocessing: how an image becomes the input; a mapping changes some of the model's own.
        task: ``single-label``, ``multi-label`` or ``regression``.
        outputs: which outputs hold scores, poses or values, and the names and units of values.
        checkpoint_sha256: checksum of the checkpoint, for the metadata.
        dry_run: do everything except write the file.

    Returns:
        The contents of the file, and every comparison.

    Raises:
        UsageError: an argument is wrong, or the file cannot be written.
        UnsupportedModelError: the module cannot be captured by ``torch.export`` or its shapes are not fixed.
        ParityError: the file would differ from the module; its ``report`` is the `ExportReport`, and nothing
            is written.
        EnvironmentProblem: the disk is full.

    Example:
        >>> model = capsedge.load_checkpoint("digits.safetensors")
        >>> capsedge.export(model, "digits.onnx").max_abs
    """
    ops, opset, batch = resolve(target, ops, opset, batch)
    _check_arguments(opset, ops, batch, iterations, atol, rtol)
    description = Description(class_names, preprocessing, task, outputs)
    path = Path(path)
    if not dry_run:
        check_writable(path)
    rewrites = rewrites or Rewrites()
    _check_parameters(model)
    with _evaluating(model):
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
        lowered, rewritten = to_proto(subject, opset, batch, rewrites)
        lowered = _with_ops(lowered, ops, rewrites)
        checks.validate(lowered)
        parity = _prove(lowered, ops, rewrites, subject, batch, atol, rtol)
    stated = subject.metadata
    if description and stated is None:
        stated = ModelMetadata(type(model).__name__, {}, "", 0, (), None)
    data = lowered.SerializeToString()
    if stated is not None:
        stated = dataclasses.replace(stated, parity=_measured(parity, atol, rtol))
    if stated is not None and all(p.passed for p in parity):
        # A fused file runs only with the kernels, so it is read with its function bodies.
        whole = _with_ops(copy_of(lowered), "auto", rewrites) if ops == "fused" else lowered
        made = described(data, description, stated, path, runnable=whole.SerializeToString())
        data = made.data
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
        rewrites=rewritten,
        atol=atol,
        rtol=rtol,
        parity=parity,
        dry_run=dry_run,
    )
    report.check()
    if not dry_run:
        write_bytes(path, data)
    return report


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
        if iterations is not None or extra_outputs:
            raise UsageError(
                "A module of your own has its own iterations and outputs.",
                "",
                "Set them in the module; leave out 'iterations' and 'extra_outputs'.",
            )
        return modules.of_module(model, example, batch, output_names, metadata)
    if iterations is not None and iterations != model.config.iterations:
        changed = build(model.config, iterations=iterations)
        changed.load_state_dict(model.state_dict())
        model = changed.eval()
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


def to_proto(
    subject: Subject, opset: int, batch: int | None, rewrites: Rewrites
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Capture the module and lower it to ``capsedge`` nodes without functions; says what was rewritten.

    Raises:
        UnsupportedModelError: torch cannot capture the module, or a shape depends on more than the batch.
    """
    module: nn.Module = subject.module
    if not rewrites.light_cone:
        # torch.export drops nodes that reach no output; all passes stay, because they are outputs.
        module = modules.KeepingAllPasses(module).eval()
    with torch.no_grad(), modules.RoutingCalls() as calls:
        subject.module(*subject.example)
    try:
        with _quiet():
            program = torch.onnx.export(
                module,
                subject.example,
                dynamo=True,
                opset_version=opset,
                dynamic_shapes=_free_batch(module, subject) if batch is None else None,
                input_names=list(subject.inputs),
                output_names=list(subject.outputs),
                custom_translation_table=translation_table(),
                optimize=False,
                verbose=False,
            )
    except CapsedgeError:
        raise
    except Exception as error:  # torch raises many kinds of errors here, none of them ours
        raise UnsupportedModelError(
            "PyTorch cannot capture this module as a graph.",
            _first_lines(error),
            "Remove data-dependent control flow, or fix the batch with batch= (--batch).",
        ) from error
    assert program is not None
    model = simplify(program.model_proto)
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "capsedge", _version()
    captured = sum(OPERATORS[n.op_type].couplings for n in operator_nodes(model, TORCH_DOMAIN))
    try:
        model = lower(model, rewrites)
    except UnknownShapeError as error:
        raise UnsupportedModelError(
            "A capsule operator has an input of unknown shape.",
            f"There is {error}.",
            "Give every operation before it fixed sizes; only the batch may be free.",
        ) from error
    # The passes kept alive as outputs go on as ordinary tensors.
    model.graph.value_info.extend(model.graph.output[len(subject.outputs) :])
    del model.graph.output[len(subject.outputs) :]
    said = {name: "on" if on else "off" for name, on in dataclasses.asdict(rewrites).items()}
    if rewrites.light_cone:
        said["light_cone"] = _effect(len(calls.outputs) - captured, "dead passes left out")
    if rewrites.first_pass_uniform:
        linear = replace_uniform_passes(model)
        said["first_pass_uniform"] = _effect(linear, "attention passes made linear layers")
    replace_layer_norms(model)
    remove_dead_nodes(model, None if rewrites.light_cone else DOMAIN)
    use_portable_forms(model)
    return model, said


def _effect(count: int, what: str) -> str:
    return f"on: {count} {what}" if count else "on"


def _free_batch(module: nn.Module, subject: Subject) -> Any:
    """Names the first dimension of every input ``N``, in the form of the module's signature."""
    batch = torch.export.Dim("N")
    dims = tuple({0: batch} for _ in subject.example)
    variadic = isinstance(module, (modules.Flat, modules.KeepingAllPasses))
    return {"inputs": dims} if variadic else dims


def _version() -> str:
    from capsedge import __version__

    return __version__


def _first_lines(error: BaseException) -> str:
    cause = error.__cause__ or error
    text = str(cause).strip() or type(cause).__name__
    return "\n".join(text.splitlines()[:3])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's notes about torchvision and its own deprecations; errors are still raised."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", message=".*The axis name")
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def _with_ops(model: onnx.ModelProto, ops: str, rewrites: Rewrites) -> onnx.ModelProto:
    if ops == "fused":
        return model
    attach_functions(model, rewrites)
    if ops == "auto":
        return model
    inlined = inline_functions(model)
    use_portable_forms(inlined)
    return inlined


def _prove(
    model: onnx.ModelProto,
    ops: str,
    rewrites: Rewrites,
    subject: Subject,
    batch: int | None,
    atol: float,
    rtol: float,
) -> tuple[CaseParity, ...]:
    runnable = model
    if ops == "fused":
        # A fused file runs only with the kernels; its graph is verified with the function bodies.
        runnable = copy_of(model)
        attach_functions(runnable, rewrites)
    cases = checks.input_cases(subject.example, (1, 3) if batch is None else (batch,))
    session = checks.session_of(runnable)
    return checks.compare(session, subject.module, subject.outputs, cases, atol, rtol)


def _measured(parity: tuple[CaseParity, ...], atol: float, rtol: float) -> dict[str, Any]:
    """The comparison, for the metadata."""
    return {
        "against": "PyTorch eager FP32",
        "torch": torch.__version__,
        "comparisons": len(parity),
        "max_abs": max(p.max_abs for p in parity),
        "worst": dataclasses.asdict(max(parity, key=lambda p: p.excess)),
        "atol": atol,
        "rtol": rtol,
    }


def _signature(values: Sequence[onnx.ValueInfoProto]) -> dict[str, list[int | str]]:
    return {
        v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values
    }
