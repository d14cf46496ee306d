"""Decide whether an artefact passes, with a sentence for everything that it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from capsedge.datasets import ImageSet
from capsedge.errors import ArtefactError
from capsedge.metrics import Decisions, allowed_share
from capsedge.runtime.files.documents import MalformedJson, parse
from capsedge.runtime.onnx_file.summary import read_harmless
from capsedge.runtime.session.session import Session
from capsedge.spec.fields import QUANTIZATION_KEY
from capsedge.tolerance import MAX_GROWTH, NOISE_FACTOR, Tolerance, least_agreement, tolerances
from capsedge.verification.comparison import OutputComparison, OutputMetrics
from capsedge.verification.verify_options import VerifyOptions

# Least mean Dice of an exact file's masks: rounding changes pixels whose best scores are all but equal.
MASKS = 0.999


@dataclass(frozen=True)
class Requirements:
    """The requirements.

    Attributes:
        tolerances: tolerance of each output.
        min_agreement: least share of equal decisions.
        approximate: whether the file is not meant to equal its source.
        by_numbers: whether outputs are judged by their tolerances, in addition to decisions.
        explicit: whether the tolerances are the user's: nothing is added to them on samples.
        max_drop: points that the file was allowed to lose when it was made; None if not stated.
        max_error: largest error as a percentage of an output's range, for a file that was judged by its
            numbers when it was made; None for others.
        share: share of its range that the mean error of a regression's value may reach.
    """

    tolerances: dict[str, Tolerance]
    min_agreement: float
    approximate: bool
    by_numbers: bool
    explicit: bool
    max_drop: float | None
    max_error: float | None
    share: float

    @classmethod
    def of(
        cls,
        session: Session,
        options: VerifyOptions = VerifyOptions(),
    ) -> Requirements:
        """The limits that are given, otherwise the defaults for the artefact."""
        approximate = _approximate(session)
        return cls(
            tolerances(_compared(session), options.tolerances),
            least_agreement(session.metadata)
            if options.min_agreement is None
            else options.min_agreement,
            approximate,
            by_numbers=not approximate or bool(options.tolerances),
            explicit=bool(options.tolerances),
            max_drop=_allowed(session, "max_drop") if approximate else None,
            max_error=_allowed(session, "max_error") if approximate else None,
            share=allowed_share(session.metadata),
        )

    def of_outputs(self, names: Sequence[str]) -> Requirements:
        """The limits for some of the outputs."""
        return replace(self, tolerances={name: self.tolerances[name] for name in names})

    @property
    def by_share(self) -> bool:
        """Whether ``share`` judges the values of a regression, because no limit was stated for them."""
        return self.approximate and self.max_error is None

    @property
    def criterion(self) -> str:
        """In words: numbers, decisions, or errors as allowed when the file was made."""
        if self.by_numbers:
            return "numbers and decisions"
        return "decisions" if self.max_error is None else "errors by range"

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "min_agreement": self.min_agreement,
            "max_drop_points": self.max_drop,
            "max_error_percent": self.max_error,
            "max_mean_error_percent": 100 * self.share,
            "criterion": self.criterion,
            "tolerances": {n: {"atol": t.atol, "rtol": t.rtol} for n, t in self.tolerances.items()},
        }


def _compared(session: Session) -> list[str]:
    """The outputs that the source has too."""
    return [port.name for port in session.outputs if port.name != session.roles.escalated]


def _approximate(session: Session) -> bool:
    """Whether a file is not meant to equal its source: it has another precision, frozen
    couplings, or is a cascade."""
    meta = session.metadata
    if meta is None:
        return bool(_record(session))
    return (
        meta.precision != "fp32"
        or "frozen_couplings" in meta.calibration
        or meta.cascade is not None
    )


def _allowed(session: Session, key: str) -> float | None:
    """What the gate allowed when a file was quantized."""
    meta = session.metadata
    calibration = _record(session) if meta is None else meta.calibration
    evaluation = calibration.get("evaluation")
    declared = evaluation.get(key) if isinstance(evaluation, dict) else None
    return float(declared) if isinstance(declared, (int, float)) else None


def _record(session: Session) -> Mapping[str, Any]:
    """What a file without metadata was quantized with; empty if it does not say so.

    Raises:
        ArtefactError: the property is damaged.
    """
    if session.backend.engine_metadata is not None or session.path.is_dir():
        return {}
    text = read_harmless(session.path)[1].metadata.get(QUANTIZATION_KEY)
    if text is None:
        return {}
    try:
        record = parse(text)
    except MalformedJson as error:
        record, why = None, f"{error}"
    else:
        why = "it is no object"
    if not isinstance(record, dict):
        raise ArtefactError(
            f"The property {QUANTIZATION_KEY} of {session.path} cannot be read.",
            f"{why[0].upper()}{why[1:]}.",
            "Quantize the FP32 file again.",
        )
    return record


def failures_of(limits: Requirements, *parts: tuple[str, OutputComparison, ImageSet]) -> list[str]:
    """A sentence for every requirement that is not met; parts are place, comparison and images."""
    failures = []
    for place, comparison, images in parts:
        for metrics in comparison.outputs.values():
            failures += _output_failures(limits, place, metrics, images.names)
        if limits.by_share and comparison.regression is not None and place == "samples":
            failures += comparison.regression.failures(limits.share, place)
        decisions, masks = comparison.decisions, comparison.masks
        if limits.approximate and place == "hard cases":
            continue  # on them any precision other than the source's decides by rounding
        if decisions is not None and decisions.agreement < limits.min_agreement:
            failures.append(
                f"Decisions: {len(decisions.flips)} of {decisions.images} flipped on the {place}; agreement "
                f"{decisions.agreement:.6f}, wanted {limits.min_agreement:g}."
            )
        wanted = limits.min_agreement if limits.approximate else min(limits.min_agreement, MASKS)
        if masks is not None and masks.mean_dice < wanted:
            failures.append(
                f"Masks: {masks.changed:,} of {masks.pixels:,} pixels change class on the {place}; mean Dice "
                f"{masks.mean_dice:.6f}, wanted {wanted:g}."
            )
    failures += _error_failures(limits, parts[0][1])
    for _, comparison, _ in parts:
        if limits.max_drop is not None and comparison.decisions is not None:
            failures += drop_failures(comparison.decisions, limits.max_drop)
    return failures


def _output_failures(
    limits: Requirements, subject: str, metrics: OutputMetrics, names: tuple[str, ...]
) -> list[str]:
    failures = []
    if metrics.not_finite:
        failures.append(
            f"{metrics.name}: {metrics.not_finite} values are NaN or infinite on the {subject}."
        )
    if metrics.over and limits.by_numbers:
        worst = metrics.worst_image if metrics.worst_image is not None else 0
        image = names[worst] if names else f"image {worst}"
        failures.append(
            f"{metrics.name}: {metrics.over} of {metrics.elements} values beyond tolerance on the {subject}, "
            f"at worst {metrics.worst:.3g} times ({image}); max abs {metrics.max_abs:.3g}."
        )
        if metrics.undefined:
            failures.append(
                f"{metrics.name}: {metrics.undefined} of these values the network itself does not define in "
                f"FP32: one rounding of its inputs and weights moves them by over "
                f"1/{round(NOISE_FACTOR / MAX_GROWTH)} of "
                "the largest value, beyond what a tolerance may allow. It is ill-conditioned there."
            )
    return failures


def _error_failures(limits: Requirements, comparison: OutputComparison) -> list[str]:
    """A sentence for every output whose error is beyond what was allowed when the file was made."""
    if limits.max_error is None or limits.max_drop is None:
        return []
    failures = []
    for count in comparison.errors.values():
        found = count.result()
        mean, largest = 100 * found.mean_share, 100 * found.largest_share
        if not (mean <= limits.max_drop and largest <= limits.max_error):
            failures.append(
                f"{found.name}: mean error {mean:.3g} % of its range on the samples, "
                f"{limits.max_drop:g} allowed; largest {largest:.3g} %, {limits.max_error:g} allowed when "
                "the file was made."
            )
    return failures


def drop_failures(decisions: Decisions, max_drop: float) -> list[str]:
    """A sentence if accuracy fell by more than was allowed and by more than one image counts."""
    if not decisions.labelled:
        return []
    lost = decisions.correct_reference - decisions.correct_artefact
    points = 100 * lost / decisions.labelled
    if lost <= 1 or points <= max_drop + 1e-9:
        return []
    return [
        f"Accuracy: {points:.2f} points lost on {decisions.labelled} labelled samples, "
        f"{max_drop:g} allowed when the file was made."
    ]
