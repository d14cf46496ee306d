"""``capsedge.verify``: an artefact against its unpatched eager FP32 source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import capsedge
from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files.writing import sha256
from capsedge.runtime.machine.environment import machine, versions
from capsedge.runtime.metadata import Preprocessing
from capsedge.runtime.session import SCORES, Session, load
from capsedge.verification.certificate import Certificate, Link
from capsedge.verification.inputs import hard_cases, load_samples, shipped_samples
from capsedge.verification.metrics import Decisions, OutputMetrics
from capsedge.verification.reference import (
    Arrays,
    Reference,
    check_origin,
    find_checkpoint,
    load_reference,
)
from capsedge.verification.tolerance import Tolerance, least_agreement, tolerances

BATCH = 50
NOISE = 4.0  # a hard case may be off by so many times what eager FP32 itself is off from FP64
Progress = Callable[[int, int], None]


@dataclass
class _Comparison:
    """Metrics of one set of images."""

    outputs: dict[str, OutputMetrics]
    decisions: Decisions | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "outputs": [m.to_dict() for m in self.outputs.values()],
            "decisions": None if self.decisions is None else self.decisions.to_dict(),
        }


def verify(
    reference: nn.Module | Path | str | None,
    artefact: Session | Path | str,
    data: Path | str | None = None,
    *,
    limit: int | None = None,
    atol: float | Mapping[str, float] | None = None,
    rtol: float | Mapping[str, float] | None = None,
    min_agreement: float | None = None,
    ops: str = "auto",
    progress: Progress | None = None,
) -> Certificate:
    """Compare an artefact with its PyTorch source on real samples and hard cases.

    Quantized files and approximations are judged by their decisions, by accuracy where there are
    labels, and by being finite; their numbers are reported, and judged only against a tolerance given.

    Args:
        reference: a checkpoint file, a module, or None for the package's own checkpoint that the
            artefact names.
        artefact: an ONNX file, a TensorRT engine, or a loaded session.
        data: a data set folder, an npz file, idx files, or images; the package's samples when left out.
        limit: only the first so many samples.
        atol, rtol: tolerance, one figure or figures by output; by default those of each output's name.
        min_agreement: least share of samples with the same decision; by default 1 in FP32, and for other
            precisions the figure of ``tolerance.AGREEMENT``.
        ops: which path runs the operators: ``auto``, ``fused`` or ``portable``.
        progress: called with (images done, images in all).

    Returns:
        The certificate: ``passed`` says how it ended, ``check()`` raises a ParityError where it failed.

    Raises:
        UsageError: an argument or the data is wrong.
        ArtefactError: the artefact is damaged, or was not exported from this checkpoint.

    Example:
        >>> certificate = capsedge.verify("digits.safetensors", "digits.onnx")
        >>> certificate.check()
    """
    if min_agreement is not None and not 0 <= min_agreement <= 1:
        raise UsageError(
            f"min_agreement is {min_agreement:g}.", "It is a share from 0 to 1.", "Use 0.999."
        )
    if limit is not None and limit < 1:
        raise UsageError(
            f"limit is {limit}.", "At least one sample is compared.", "Use --limit 100."
        )
    session = artefact if isinstance(artefact, Session) else load(artefact, ops=ops)
    shape = _input_shape(session)
    prep = session.metadata.preprocessing if session.metadata is not None else None
    approximate = _approximate(session)
    by_numbers = not approximate or atol is not None or rtol is not None
    if min_agreement is None:
        min_agreement = least_agreement(session.metadata)
    link, module = _reference(reference, session)
    names = [port.name for port in session.outputs]
    table = tolerances(names, atol, rtol)
    source = Reference(module, names)
    samples = _samples(data, prep, shape, limit)
    hard_names, hard = hard_cases(shape, prep)

    total, done = len(samples) + len(hard), 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    on_samples = _comparison(session, table, tie=0.0)
    compared = 0
    for images in samples.batches(_batch(session)):
        labels = None if samples.labels is None else samples.labels[compared:][: len(images)]
        compared += len(images)
        wanted, found = source.run(images), _run(session, images)
        _update(on_samples, wanted, found, None, labels)
        step(len(images))
    on_hard = _comparison(session, table, tie=2 * table[names[0]].atol)
    for start in range(0, len(hard), _batch(session)):
        images = hard[start : start + _batch(session)]
        wanted, exact = source.run(images), source.run(images, torch.float64)
        noise = {n: NOISE * _largest_error(wanted[n], exact[n]) for n in names}
        _update(on_hard, wanted, _run(session, images), noise, None)
        step(len(images))

    failures = _failures(
        on_samples, on_hard, min_agreement, samples.names, hard_names, by_numbers, approximate
    )
    max_drop = _max_drop(session) if approximate else None
    if max_drop is not None and on_samples.decisions is not None:
        failures += _drop_failure(on_samples.decisions, max_drop)
    ledger = None
    if failures and not approximate and session.passport is None:  # an engine cannot be opened
        from capsedge.verification.ledger import routing_ledger

        worst = _worst_images(on_samples, on_hard, samples, hard)
        ledger = routing_ledger(source, session, worst).to_dict()
    return Certificate(
        chain=(link, *_source_links(session), _artefact_link(session)),
        samples={
            "source": Path(samples.source).name,
            "images": len(samples),
            "sha256": samples.stored_sha256(),
            **on_samples.to_dict(),
        },
        hard_cases={"names": list(hard_names), "noise_factor": NOISE, **on_hard.to_dict()},
        limits={
            "min_agreement": min_agreement,
            "max_drop_points": max_drop,
            "judged_by": "numbers and decisions" if by_numbers else "decisions",
            "tolerances": {n: {"atol": t.atol, "rtol": t.rtol} for n, t in table.items()},
        },
        failures=tuple(failures),
        ledger=ledger,
        versions={
            "capsedge": capsedge.__version__,
            **versions("torch", "onnxruntime", "onnx", "numpy"),
            "python": _python(),
        },
        machine=machine(),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _python() -> str:
    import platform

    return platform.python_version()


def _input_shape(session: Session) -> tuple[int, int, int]:
    shapes = [port.shape for port in session.inputs]
    if len(shapes) == 1 and len(shapes[0]) == 4:
        c, h, w = shapes[0][1:]
        if isinstance(c, int) and isinstance(h, int) and isinstance(w, int):
            return c, h, w
    raise ArtefactError(
        f"{session.path} takes no images.",
        f"Its inputs: {', '.join(f'{p.name} {list(p.shape)}' for p in session.inputs)}; "
        "wanted one, [N, channels, height, width] with the last three fixed.",
        "Verify files of `capsedge export`.",
    )


def _reference(given: nn.Module | Path | str | None, session: Session) -> tuple[Link, nn.Module]:
    if isinstance(given, nn.Module):
        return Link("module", type(given).__name__, ""), given
    path = find_checkpoint(session.metadata) if given is None else Path(given)
    module = load_reference(path, session.metadata)
    checksum = sha256(path)
    check_origin(session.metadata, path, checksum)
    facts = {
        "architecture": module.config.architecture,
        "parameters": sum(p.numel() for p in module.parameters()),
    }
    return Link("checkpoint", path.name, checksum, path.stat().st_size, facts), module


def _artefact_link(session: Session) -> Link:
    meta = session.metadata
    facts: dict[str, Any] = {"ops": session.ops}
    if meta is not None:
        facts |= {
            "precision": meta.precision,
            "routing": meta.routing,
            "iterations": meta.iterations,
            "checkpoint_sha256": meta.checkpoint_sha256,
        }
        if meta.calibration:
            facts["calibration"] = dict(meta.calibration)
    path = session.path
    if session.passport is not None:
        built = session.passport.machine
        facts |= {
            "precision": session.passport.precision,
            "gpu": built.gpu,
            "tensorrt": built.tensorrt,
        }
        return Link("engine", path.name, sha256(path), path.stat().st_size, facts)
    kind = "quantized" if meta is not None and meta.precision != "fp32" else "onnx"
    return Link(kind, path.name, sha256(path), path.stat().st_size, facts)


def _source_links(session: Session) -> tuple[Link, ...]:
    """The files between the checkpoint and the artefact, as its metadata and its passport name them."""
    meta = session.metadata
    links: tuple[Link, ...] = ()
    source = meta.calibration.get("source") if meta is not None else None
    if meta is not None and source:
        facts = {"precision": "fp32", "iterations": meta.iterations, "parity": dict(meta.parity)}
        links = (Link("onnx", source["file"], source["sha256"], source["bytes"], facts),)
    if session.passport is not None:  # between them and the engine, the file that it was built from
        issued, kind = session.passport, "quantized" if links else "onnx"
        links += (Link(kind, issued.source, issued.source_sha256),)
    return links


def _approximate(session: Session) -> bool:
    """Whether a file is not meant to equal its source: another precision, frozen couplings."""
    meta = session.metadata
    return meta is not None and (meta.precision != "fp32" or "frozen_couplings" in meta.calibration)


def _max_drop(session: Session) -> float | None:
    """Points of accuracy that a file was allowed to lose when it was made."""
    meta = session.metadata
    stated = meta.calibration.get("evaluation", {}).get("max_drop") if meta is not None else None
    return None if stated is None else float(stated)


def _drop_failure(decisions: Decisions, max_drop: float) -> list[str]:
    """A sentence if accuracy fell by more than was allowed and than one image is worth."""
    if not decisions.labelled:
        return []
    lost = decisions.correct_reference - decisions.correct_found
    points = 100 * lost / decisions.labelled
    if lost <= 1 or points <= max_drop + 1e-9:
        return []
    return [
        f"Accuracy: {points:.2f} points lost on {decisions.labelled} labelled samples, "
        f"{max_drop:g} allowed when the file was made."
    ]


def _samples(
    data: Path | str | None,
    prep: Preprocessing | None,
    shape: tuple[int, int, int],
    limit: int | None,
) -> ImageSet:
    if data is None:
        return shipped_samples(prep, shape, limit)
    samples = load_samples(data, prep, limit)
    if samples.preprocessing is None and samples.images.shape[1:] != shape:
        raise UsageError(
            f"{data} holds images {list(samples.images.shape[1:])}.",
            f"The model takes {list(shape)}.",
            "Give images of the model's size, or uint8 pixels to have them prepared.",
        )
    return samples


def _batch(session: Session) -> int:
    return session.batch or min(BATCH, session.largest_batch or BATCH)


def _run(session: Session, images: NDArray[np.float32]) -> Arrays:
    """Run the artefact; a batch short of the file's fixed size is filled up with black images."""
    count = len(images)
    if count < session.smallest_batch:
        rest = np.zeros((session.smallest_batch - count, *images.shape[1:]), np.float32)
        images = np.concatenate([images, rest])
    outputs = session.run(images.astype(session.inputs[0].dtype, copy=False))
    return {name: value[:count] for name, value in outputs.items()}


def _comparison(session: Session, table: Mapping[str, Tolerance], tie: float) -> _Comparison:
    decisions = None
    scores = _score_name(session)
    if scores is not None:
        several = session.metadata is not None and session.metadata.task == "multi-label"
        threshold = 0.0 if scores == "logits" else 0.5
        decisions = Decisions(several, threshold, tie)
    return _Comparison({n: OutputMetrics(n, t) for n, t in table.items()}, decisions)


def _score_name(session: Session) -> str | None:
    return next((p.name for p in session.outputs if p.name in SCORES), None)


def _update(
    comparison: _Comparison,
    wanted: Arrays,
    found: Arrays,
    noise: Mapping[str, NDArray[np.float64]] | None,
    labels: NDArray[np.int64] | None,
) -> None:
    for name, metrics in comparison.outputs.items():
        if wanted[name].shape != found[name].shape:
            raise ArtefactError(
                f"Output '{name}' has the shape {list(found[name].shape)}.",
                f"The reference's has {list(wanted[name].shape)}.",
                "Name the checkpoint that the file was exported from with --checkpoint.",
            )
        metrics.update(wanted[name], found[name], None if noise is None else noise[name])
    if comparison.decisions is not None:
        scores = next(n for n in SCORES if n in wanted)
        comparison.decisions.update(wanted[scores], found[scores], labels)
        if "poses" in wanted:
            comparison.decisions.update_poses(wanted["poses"], found["poses"], wanted[scores])


def _largest_error(wanted: NDArray[Any], exact: NDArray[Any]) -> NDArray[np.float64]:
    """Per image, what FP32 is off by at worst; broadcasts over the output's elements."""
    error = np.abs(wanted.astype(np.float64) - exact).reshape(len(wanted), -1).max(axis=1)
    return np.asarray(error, np.float64).reshape(-1, *[1] * (wanted.ndim - 1))


def _failures(
    on_samples: _Comparison,
    on_hard: _Comparison,
    min_agreement: float,
    sample_names: tuple[str, ...],
    hard_names: tuple[str, ...],
    by_numbers: bool,
    approximate: bool,
) -> list[str]:
    failures = []
    for place, comparison, names in (
        ("samples", on_samples, sample_names),
        ("hard cases", on_hard, hard_names),
    ):
        for m in comparison.outputs.values():
            if m.not_finite:
                failures.append(
                    f"{m.name}: {m.not_finite} values are NaN or infinite on the {place}."
                )
            if m.over and by_numbers:
                worst = m.worst_image if m.worst_image is not None else 0
                image = names[worst] if names else f"image {worst}"
                failures.append(
                    f"{m.name}: {m.over} of {m.elements} values beyond tolerance on the {place}, at worst "
                    f"{m.worst:.3g} times ({image}); max abs {m.max_abs:.3g}."
                )
        decisions = comparison.decisions
        if approximate and comparison is on_hard:
            continue  # nothing to see in them: a decision is rounding's, in any precision but the source's
        if decisions is not None and decisions.agreement < min_agreement:
            failures.append(
                f"Decisions: {len(decisions.flips)} of {decisions.images} flipped on the {place}; agreement "
                f"{decisions.agreement:.6f}, wanted {min_agreement:g}."
            )
    return failures


def _worst_images(
    on_samples: _Comparison, on_hard: _Comparison, samples: ImageSet, hard: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The images that failed worst, one an output: what the ledger looks at."""
    chosen: list[NDArray[np.float32]] = []
    wanted = {m.worst_image for m in on_samples.outputs.values() if not m.passed}
    if on_samples.decisions is not None:
        wanted |= {f.image for f in on_samples.decisions.flips[:4]}
    for index in sorted(k for k in wanted if k is not None):
        chosen.append(next(samples.take(np.array([index])).batches(1)))
    hardest = {m.worst_image for m in on_hard.outputs.values() if not m.passed}
    for k in sorted(k for k in hardest if k is not None):
        chosen.append(hard[k : k + 1])
    if not chosen:
        chosen.append(next(samples.batches(1)))
    return np.concatenate(chosen)
