"""``capsedge.verify``: compares an artefact with its unpatched eager FP32 source."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from capsedge.datasets import ImageSet
from capsedge.datasets.mask_folders import has_masks, read_mask_split
from capsedge.errors import ArtefactError, UsageError
from capsedge.graph.random_nodes import refuse_random
from capsedge.metrics import Decisions, check_above_chance
from capsedge.models.user.example_inputs import in_order_of
from capsedge.models.user.module import UserModule
from capsedge.options import takes_options
from capsedge.runtime.files.writing import DATA, MODEL, WEIGHTS, as_path, sha256
from capsedge.runtime.load import load
from capsedge.runtime.machine import machine, versions
from capsedge.runtime.metadata.cascade_metadata import CascadeParent
from capsedge.runtime.metadata.origin import AnySplit, pruned_of
from capsedge.runtime.onnx_file.stored_values import refuse_not_finite
from capsedge.runtime.onnx_file.summary import read_harmless
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.score_checks import score_warnings
from capsedge.runtime.session.ensemble import Ensemble
from capsedge.runtime.session.session import Session
from capsedge.spec.version import VERSION
from capsedge.tolerance import NOISE_FACTOR
from capsedge.verification.artefact_kind import is_folder
from capsedge.verification.certificate import (
    Certificate,
    ComparisonDocument,
    Link,
    LinkFacts,
    SamplesDocument,
)
from capsedge.verification.comparison import OutputComparison
from capsedge.verification.compiled_c import CompiledC, open_folder
from capsedge.verification.file_reference import FileReference
from capsedge.verification.reference import (
    Arrays,
    Reference,
    check_origin,
    expected_of,
    find_checkpoint,
    load_reference,
)
from capsedge.verification.requirements import Requirements, failures_of
from capsedge.verification.sample_inputs import (
    UserArrays,
    array_runs,
    arrays_for,
    hard_cases,
    load_samples,
    shipped_samples,
    takes_images,
)
from capsedge.verification.verify_options import VerifyOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import VerifyKeywords

_REPEATED = 4  # images that a module of the user's is run on twice
ROUTING_ERROR_FLIPS = 4  # samples with a changed decision whose routing errors are measured
Observer = Callable[[Arrays, Arrays, ImageSet], None]
ReferenceRun: TypeAlias = nn.Module | UserModule | Path | str | None
Runs = Iterable[tuple[tuple[NDArray[Any], ...], Arrays]]


@takes_options(VerifyOptions)
def verify(
    reference: ReferenceRun,
    artefact: Session | Path | str,
    options: VerifyOptions = VerifyOptions(),
    *,
    data: Path | str | None = None,
    inputs: UserArrays | None = None,
    progress: Progress = silent,
    **_keywords: Unpack[VerifyKeywords],
) -> Certificate:
    """Compare an artefact with its PyTorch source on real samples and hard cases.

    Quantized files and approximations are judged by their decisions, by accuracy if there are labels, and by
    whether their outputs are finite; their numerical differences are reported, but judged only if a
    tolerance is given.

    A ``tolerance`` is ``(1e-5, 1e-4)`` for all outputs, or ``{"poses": (1e-5, 1e-4)}``; by default, that of
    each output's name applies.

    Args:
        reference: a checkpoint file, a module of your own, or None for the checkpoint in the package that the
            artefact names. A folder of C is then compared with the ONNX file that it was made from.
        artefact: an ONNX file, a TensorRT engine, a loaded session, or a folder of
            ``capsedge build --target c``, which is compiled and run on this machine.
        data: a data set folder, an npz file, idx files, or images; by default the package's samples.
        inputs: instead of data, what the artefact's inputs take as it is, the batch first: an npz or npy
            file, an array, or arrays by the inputs' names. Without either, an artefact that does not take
            images gets random values.
        progress: called with (images done, total images).

    Returns:
        The certificate: ``passed`` is the outcome; ``check()`` raises a ParityError if it failed.

    Raises:
        UsageError: an argument or the data is wrong.
        ArtefactError: the artefact is damaged, or was not exported from this checkpoint.
        UnsupportedModelError: the artefact, or a module of your own, draws random numbers.

    Example:
        >>> certificate = capsedge.verify("digits.safetensors", "digits.onnx")
        >>> certificate.check()
    """
    check_arguments(data, inputs)
    if isinstance(artefact, (Ensemble, list, tuple)):
        raise UsageError(
            "verify takes one file.",
            "This is an ensemble or a list of files.",
            "Use capsedge.verify_ensemble(references, ensemble).",
        )
    session = _opened(artefact, options)
    limits = Requirements.of(session, options)
    return certify(
        reference, session, data, limits, inputs=inputs, limit=options.limit, progress=progress
    )


def certify(
    reference: ReferenceRun,
    session: Session,
    data: Path | str | None,
    limits: Requirements,
    *,
    inputs: UserArrays | None = None,
    limit: int | None = None,
    progress: Progress = silent,
    observe: Observer | None = None,
    rule: AnySplit | None = None,
) -> Certificate:
    """Compare a loaded artefact with its source, as `verify`.

    Args:
        limits: the requirements.
        observe: called with the reference's and the artefact's outputs of every batch of samples, and the
            samples of the batch.
        rule: which images training held out; by default as the artefact states it.

    Raises:
        UnsupportedModelError: the file, or the reference, draws random numbers.
    """
    data = None if data is None else as_path(data, DATA)
    _check_file(session)
    images = inputs is None and (data is not None or takes_images(session))
    if images:
        samples, hard = _images(data, session, limit, rule)
    else:
        samples, hard = arrays_for(session, inputs, limit)
    links, source = _source(reference, session)
    limits = limits.of_outputs(source.outputs)
    runs = _image_runs if images else array_runs
    step = _steps(progress, len(samples) + len(hard))
    on_samples = _on_samples(
        runs(session, samples), session, source, limits, samples, step, observe
    )
    on_hard = _on_hard_cases(runs(session, hard), session, source, limits, step)
    failures = failures_of(limits, ("samples", on_samples, samples), ("hard cases", on_hard, hard))
    routing_errors = None
    # Neither engines nor C can be opened.
    opened = images and session.backend.engine_metadata is None
    opened = opened and not isinstance(session.backend, CompiledC)
    if failures and not limits.approximate and opened and isinstance(source, Reference):
        from capsedge.verification.routing_errors import measure_routing_errors

        worst, are_hard = _worst_images(on_samples, on_hard, samples, hard)
        routing_errors = measure_routing_errors(source, session, worst, limits, are_hard).to_dict()
    warnings = [
        *_warnings(session, on_samples.decisions, samples.source),
        *source.unchecked,
    ]
    return Certificate(
        chain=(*links, *_source_links(session), _artefact_link(session), *_c_link(session)),
        samples=_sample_facts(samples, on_samples.to_dict(samples.names), warnings),
        hard_cases={
            "names": list(hard.names),
            "noise_factor": NOISE_FACTOR,
            **on_hard.to_dict(hard.names),
        },
        limits=limits.to_dict(),
        failures=tuple(failures),
        routing_errors=routing_errors,
        versions=software_versions(),
        machine=machine(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _sample_facts(
    samples: ImageSet, compared: ComparisonDocument, warnings: list[str]
) -> SamplesDocument:
    """The samples of a comparison, and its results."""
    described: SamplesDocument = {
        "source": Path(samples.source).name,
        "split": samples.split,
        "measured_on": replace(samples, source=Path(samples.source).name).described,
        "images": len(samples),
        "sha256": samples.digest(),
        "outputs": compared["outputs"],
        "decisions": compared["decisions"],
    }
    if "estimates" in compared:
        described["estimates"] = compared["estimates"]
    if "masks" in compared:
        described["masks"] = compared["masks"]
    if samples.ignored:
        described["ignored"] = samples.ignored
    if warnings:
        described["warnings"] = warnings
    return described


def _check_file(session: Session) -> None:
    """Refuse a file that cannot be compared.

    Raises:
        UnsupportedModelError: it draws random numbers.
        ArtefactError: its weights are not finite.
    """
    if session.backend.engine_metadata is not None:
        return
    stored = read_harmless(session.path)[0]
    refuse_random(onnx.load_model_from_string(stored), str(session.path))
    refuse_not_finite(stored, str(session.path))


def _source(
    reference: ReferenceRun, session: Session
) -> tuple[tuple[Link, ...], Reference | FileReference]:
    """The reference of a file: its link in the chain, and what runs.

    C without a module or a checkpoint is compared with its ONNX file, which is in the chain already.
    """
    if reference is None and isinstance(session.backend, CompiledC):
        names = [port.name for port in session.outputs]
        return (), FileReference(session.path, names)
    inputs = [port.name for port in session.inputs]
    link, module = _reference(reference, session)
    module = in_order_of(module, inputs)
    ranks = {p.name: len(p.shape) for p in session.outputs if p.name != session.roles.escalated}
    names = expected_of(module, ranks)
    source = Reference(module, names, ranks, session.metadata, session.backend.batches.fixed)
    if isinstance(reference, UserModule):
        source.own = reference.ordered(inputs)
    return (link,), source


def _opened(artefact: Session | Path | str, options: VerifyOptions) -> Session:
    """The session of what `verify` is given.

    Raises:
        UsageError: C is to be compared on a GPU, or as `load`.
    """
    if isinstance(artefact, Session):
        return artefact
    if not is_folder(artefact, options.made_from):
        return load(artefact, RuntimeOptions(ops=options.ops, device=options.device))
    if options.device not in (None, "cpu"):
        raise UsageError(
            f"{artefact} does not run on the device '{options.device:.40}'.",
            "C runs on the CPU.",
            "Leave the device out, or verify the ONNX file that it was made from.",
        )
    return open_folder(Path(artefact), as_path(options.made_from, MODEL))


def _warnings(session: Session, decisions: Decisions | None, data: str) -> list[str]:
    """Why the scores, or an accuracy measured by them, may say nothing."""
    found = list(score_warnings(session))
    accuracy = None if decisions is None else decisions.accuracy_reference
    if decisions is not None and accuracy is not None and session.roles.scores is not None:
        port = next(p for p in session.outputs if p.name == session.roles.scores)
        classes = port.shape[-1] if isinstance(port.shape[-1], int) else 0
        try:
            found += check_above_chance(
                accuracy, decisions.labelled, classes, port.name, data, "the reference"
            )
        except UsageError as error:
            found.append(f"{error.what} {error.why}")
    return found


def software_versions() -> dict[str, str]:
    """The versions of the software that a comparison depends on."""
    return {
        "capsedge": VERSION,
        **versions("torch", "onnxruntime", "onnx", "numpy"),
        "python": platform.python_version(),
    }


def check_arguments(data: object, inputs: object) -> None:
    """Refuse a verification with both a data set and inputs.

    Raises:
        UsageError: both are given.
    """
    if data is not None and inputs is not None:
        raise UsageError(
            "data and inputs cannot be used together.",
            "Both supply the inputs of the comparison.",
            "Use data for images with labels, or inputs for prepared arrays.",
            command="Use --data for images with labels, or --inputs for prepared arrays.",
        )


def _steps(progress: Progress, total: int) -> Callable[[int], None]:
    """The function that reports every batch compared."""
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        progress("comparing", done, total)

    return step


def _image_runs(
    session: Session, images: ImageSet
) -> Iterator[tuple[tuple[NDArray[Any], ...], Arrays]]:
    """Prepared images, run by run, and the artefact's outputs."""
    for batch, found in session.run_batches(images.inputs()):
        yield (batch,), found


def _on_samples(
    runs: Runs,
    session: Session,
    source: Reference | FileReference,
    limits: Requirements,
    samples: ImageSet,
    step: Callable[[int], None],
    observe: Observer | None,
) -> OutputComparison:
    comparison = OutputComparison.of(session, limits.tolerances)
    compared = 0
    for inputs, found in runs:
        count = len(inputs[0])
        part = samples.take(np.arange(compared, compared + count))
        compared += count
        if not compared - count:
            source.check_repeatable(*(each[:_REPEATED] for each in inputs))
        expected = source.run(*inputs)
        defined = None
        if not (limits.explicit or limits.approximate):
            over = comparison.images_over(expected, found)
            defined = _defined(source, inputs, over, expected, session.backend.batches.fixed)
        comparison.update(expected, found, None, part.labels, *(defined or (None, None)))
        if observe is not None:
            observe(expected, found, part)
        step(count)
    return comparison


def _on_hard_cases(
    runs: Runs,
    session: Session,
    source: Reference | FileReference,
    limits: Requirements,
    step: Callable[[int], None],
) -> OutputComparison:
    """Compare the hard cases: FP32's own error is allowed for, and decisions within rounding are ties."""
    first = next(iter(limits.tolerances.values()))
    comparison = OutputComparison.of(session, limits.tolerances, tie=2 * first.atol)
    for inputs, found in runs:
        expected = source.run(*inputs)
        noise = source.noise(expected, *inputs)
        defined = None
        if not (limits.explicit or limits.approximate):
            over = comparison.images_over(expected, found, noise)
            defined = _defined(source, inputs, over, expected, session.backend.batches.fixed)
        comparison.update(expected, found, noise, None, *(defined or (None, None)))
        step(len(inputs[0]))
    return comparison


def _defined(
    source: Reference | FileReference,
    inputs: tuple[NDArray[Any], ...],
    over: NDArray[np.intp],
    expected: Arrays,
    batch: int | None,
) -> tuple[Arrays, Arrays] | None:
    """The exact values and their conditioning, for the images that are over; FP32's for the others.

    None if there are none, or the reference cannot run in FP64.
    """
    if not len(over):
        return None
    rows = over if batch is None else np.arange(len(inputs[0]))
    some = tuple(x[rows] for x in inputs)
    conditioning = source.conditioning(*some)
    if conditioning is None:
        return None
    truth = source.run(*some, dtype=torch.float64)
    exact = {name: value.astype(np.float64) for name, value in expected.items()}
    widened = {}
    for name, value in exact.items():
        value[rows] = truth[name]
        widened[name] = np.zeros((len(value), *conditioning[name].shape[1:]))
        widened[name][rows] = conditioning[name]
    return exact, widened


def _images(
    data: Path | str | None, session: Session, limit: int | None, rule: AnySplit | None
) -> tuple[ImageSet, ImageSet]:
    """Samples and hard cases of a session that takes images.

    Raises:
        ArtefactError: it does not.
        UsageError: it takes them with the channels last, or the data does not fit.
    """
    prep = session.metadata.preprocessing if session.metadata is not None else None
    if prep is not None and prep.layout != "NCHW":
        raise UsageError(
            f"{session.path} takes images with the channels last.",
            "PyTorch networks have them first, so there is no reference to compare with.",
            "Compare the arrays of `Session.run` yourself.",
        )
    if not takes_images(session):
        raise ArtefactError(
            f"{session.path} does not take images.",
            f"Its inputs: {', '.join(f'{p.name} {list(p.shape)}' for p in session.inputs)}; "
            "expected one of floats, [N, channels, height, width] with the last three fixed.",
            "Pass arrays by input name with inputs= instead of data.",
            command="Pass arrays by input name with --inputs data.npz instead of --data.",
        )
    channels, height, width = (int(str(size)) for size in session.inputs[0].shape[1:])
    shape = channels, height, width
    return _samples(data, session, shape, limit, rule), hard_cases(shape, prep)


def _reference(reference: ReferenceRun, session: Session) -> tuple[Link, nn.Module]:
    if isinstance(reference, UserModule):
        weights = reference.weights
        checksum = sha256(weights) if weights else ""
        if weights is not None:
            check_origin(session.metadata, weights, checksum)
        return Link(
            "module", reference.name, checksum, facts=cast("LinkFacts", reference.facts())
        ), reference.module
    if isinstance(reference, nn.Module):
        return Link("module", type(reference).__name__, "", facts={"user_module": True}), reference
    path = find_checkpoint(session.metadata) if reference is None else as_path(reference, WEIGHTS)
    module = load_reference(path, session.metadata)
    checksum = sha256(path)
    check_origin(session.metadata, path, checksum)
    facts: LinkFacts = {
        "architecture": module.config.architecture,
        "parameters": sum(p.numel() for p in module.parameters()),
    }
    if module.origin is not None:
        facts["claimed_origin"] = module.origin.summary
    pruned = pruned_of(path)
    if pruned is not None:
        facts["claimed_parent"] = pruned.summary
    return Link("checkpoint", path.name, checksum, path.stat().st_size, facts), module


def _artefact_link(session: Session) -> Link:
    meta = session.metadata
    facts: LinkFacts = {"ops": session.backend.ops}
    if session.backend.gpu is not None:
        facts["device"] = f"cuda:{session.backend.gpu}"
    if meta is not None:
        facts |= {
            "precision": meta.precision,
            "routing": meta.routing,
            "iterations": meta.iterations,
            "checkpoint_sha256": meta.checkpoint_sha256,
        }
        if meta.calibration:
            facts["calibration"] = dict(meta.calibration)
        if meta.cascade is not None:
            facts["cascade"] = meta.cascade.to_dict()
        if meta.typical_input is not None:
            facts["typical_input"] = meta.typical_input.summary
        if meta.origin is not None:
            facts["claimed_origin"] = meta.origin.summary
    path = session.path
    if session.backend.engine_metadata is not None:
        built = session.backend.engine_metadata.machine
        facts |= {
            "precision": session.backend.engine_metadata.precision,
            "gpu": built.gpu,
            "tensorrt": built.tensorrt,
        }
        return Link("engine", path.name, sha256(path), path.stat().st_size, facts)
    kind = "quantized" if meta is not None and meta.precision != "fp32" else "onnx"
    if meta is not None and meta.cascade is not None:
        kind = "cascade"
    return Link(kind, path.name, sha256(path), path.stat().st_size, facts)


def _c_link(session: Session) -> tuple[Link, ...]:
    """The source that was compiled from the file."""
    backend = session.backend
    if not isinstance(backend, CompiledC):
        return ()
    return (Link("c", *backend.source, {"compiler": backend.compiler}),)


def _source_links(session: Session) -> tuple[Link, ...]:
    """The files between the checkpoint and the artefact, as named by its metadata and its metadata file."""
    meta = session.metadata
    links: tuple[Link, ...] = ()
    if meta is not None and meta.cascade is not None:
        links = tuple(map(_parent_link, (meta.cascade.small, meta.cascade.large)))
    source = meta.calibration.get("source") if meta is not None else None
    if meta is not None and source:
        facts: LinkFacts = {
            "precision": "fp32",
            "iterations": meta.iterations,
            "parity": dict(meta.parity),
        }
        links = (Link("onnx", source["file"], source["sha256"], source["bytes"], facts),)
    if (
        session.backend.engine_metadata is not None
    ):  # the last is the file that the engine was built from
        issued, kind = session.backend.engine_metadata, "quantized" if links else "onnx"
        links += (Link(kind, issued.source, issued.source_sha256),)
    return links


def _parent_link(parent: CascadeParent) -> Link:
    kind = "onnx" if parent.precision == "fp32" else "quantized"
    facts: LinkFacts = {
        "precision": parent.precision,
        "checkpoint_sha256": parent.checkpoint_sha256,
    }
    return Link(kind, parent.file, parent.sha256, parent.bytes, facts)


def _samples(
    data: Path | str | None,
    session: Session,
    shape: tuple[int, int, int],
    limit: int | None,
    rule: AnySplit | None,
) -> ImageSet:
    prep = session.metadata.preprocessing if session.metadata is not None else None
    if data is None:
        return shipped_samples(prep, shape, limit)
    inputs = {port.name: port.dtype for port in session.inputs}
    if rule is None and session.metadata is not None:
        rule = session.metadata.training_split
    named = session.metadata.class_names if session.metadata is not None else ()
    if session.roles.segmentation and prep is not None and has_masks(Path(data)):
        return read_mask_split(Path(data), "test", prep, session.roles.mask_classes, limit, rule)
    samples = load_samples(data, prep, limit, inputs, not session.roles.values, rule, named)
    if samples.preprocessing is None and samples.images.shape[1:] != shape:
        raise UsageError(
            f"{data} holds images {list(samples.images.shape[1:])}.",
            f"The model takes {list(shape)}.",
            "Pass images of the model's size, or uint8 pixels, which are prepared automatically.",
        )
    return samples


def _worst_images(
    on_samples: OutputComparison, on_hard: OutputComparison, samples: ImageSet, hard: ImageSet
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The images for the routing errors: the worst of each output, and samples whose decision flipped; which
    of them are hard cases."""
    flips = [] if on_samples.decisions is None else on_samples.decisions.flips[:ROUTING_ERROR_FLIPS]
    chosen: list[NDArray[np.float32]] = []
    are_hard: list[bool] = []
    for comparison, images, more in (
        (on_samples, samples, {flip.image for flip in flips}),
        (on_hard, hard, set()),
    ):
        worst = {m.worst_image for m in comparison.outputs.values() if not m.passed} | more
        numbers = np.array(sorted(k for k in worst if k is not None), np.intp)
        chosen += images.take(numbers).inputs()
        are_hard += [images is hard] * len(numbers)
    if not chosen:
        return np.stack([next(samples.inputs())]), np.zeros(1, np.bool_)
    return np.stack(chosen), np.array(are_hard)
