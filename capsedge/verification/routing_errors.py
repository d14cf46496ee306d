"""Measure the errors of couplings, poses and lengths by layer and routing iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.session.session import Session
from capsedge.spec.operators import OPERATORS
from capsedge.tolerance import DEFAULTS, OTHER_OUTPUTS, Tolerance, excess, nearest_ratio
from capsedge.verification.certificate import CellDocument, RoutingErrorsDocument
from capsedge.verification.reference import Reference
from capsedge.verification.requirements import Requirements
from capsedge.verification.routing_probe import (
    Probe,
    RoutingCallValues,
    RoutingSite,
    RoutingStep,
    unroll_routing_calls,
)

Array = NDArray[Any]


@dataclass(frozen=True)
class _Rule:
    """How values are judged: as the outputs are.

    Attributes:
        couplings, pose, length: tolerances of the outputs of these kinds.
        hard: which of the images ``[n]`` are hard cases: the error of FP32 widens their tolerances.
        referee: whether a value passes, too, that is near enough to FP64.
    """

    couplings: Tolerance
    pose: Tolerance
    length: Tolerance
    hard: NDArray[np.bool_]
    referee: bool

    @classmethod
    def of(cls, session: Session, limits: Requirements, hard: NDArray[np.bool_]) -> _Rule:
        """The rule of the outputs' comparison."""
        explicit = limits.tolerances
        return cls(
            explicit.get("couplings", DEFAULTS["couplings"]),
            explicit.get(session.roles.poses or "", OTHER_OUTPUTS),
            explicit.get("lengths", DEFAULTS["lengths"]),
            hard,
            not limits.explicit,
        )

    def cell(
        self,
        tolerance: Tolerance,
        artefact: Array,
        exact: Array,
        rounded: Array,
        moved: Sequence[Array],
    ) -> ErrorCell:
        """Judge one kind of value of one layer and iteration.

        Args:
            tolerance: its absolute part is for magnitudes of 1; smaller values have less.
            artefact: the file's ``[n, ...]``, or ``[1, ...]`` for all images.
            exact, rounded: the reference's in FP64 and FP32.
            moved: in FP64, with all inputs and weights rounded in other ways.
        """
        truth, expected = exact.astype(np.float64), rounded.astype(np.float64)
        actual = np.broadcast_to(artefact.astype(np.float64), truth.shape)
        scale = float(np.abs(truth).max(initial=0.0))
        tolerance = replace(tolerance, atol=tolerance.atol * min(scale, 1.0))
        if not np.isfinite(actual).all():
            return ErrorCell(float("nan"), tolerance.atol)
        rest = tuple(range(1, truth.ndim))
        hard = np.repeat(self.hard, len(truth) // len(self.hard)).reshape(-1, *[1] * len(rest))
        noise = hard * np.abs(expected - truth).max(axis=rest, keepdims=True, initial=0.0)
        ratio = excess(actual - expected, expected, tolerance, noise)
        if self.referee:
            size = np.max([np.abs(m - truth) for m in moved], axis=0)
            conditioning = size.max(axis=-1, keepdims=True, initial=0.0)
            ratio = nearest_ratio(ratio, actual, truth, tolerance, conditioning)
        if not ratio.size or not ratio.max():
            return ErrorCell(0.0, tolerance.atol)
        at = np.unravel_index(ratio.argmax(), ratio.shape)
        error = max(float(abs(actual[at] - truth[at])), float(np.finfo(np.float32).tiny))
        return ErrorCell(error, error / float(ratio[at]))


@dataclass(frozen=True)
class ErrorCell:
    """One kind of value at one place: the error against FP64 of the value nearest its limit, and that."""

    error: float
    budget: float

    @property
    def over(self) -> bool:
        """Whether the error is beyond tolerance or not a number."""
        return not self.error <= self.budget


@dataclass(frozen=True)
class ErrorRow:
    """One layer and iteration; iteration 0 is the layer's input. None if the file shows no value."""

    layer: str
    iteration: int
    couplings: ErrorCell | None
    pose: ErrorCell | None
    length: ErrorCell | None

    @property
    def over(self) -> list[str]:
        """The columns that are beyond tolerance."""
        cells = {"couplings": self.couplings, "pose": self.pose, "length": self.length}
        return [name for name, cell in cells.items() if cell is not None and cell.over]


@dataclass(frozen=True)
class RoutingErrors:
    """Rows in the order in which the values are computed.

    Attributes:
        note: the values that the table cannot show, and why; empty if it shows all.
    """

    rows: tuple[ErrorRow, ...]
    note: str = ""

    @property
    def first(self) -> ErrorRow | None:
        """The first place beyond tolerance."""
        return next((row for row in self.rows if row.over), None)

    def verdict(self) -> str:
        """One sentence: where the values are first beyond their tolerance."""
        row = self.first
        if not self.rows:
            return self.note
        if row is None:
            return (
                "No value of routing is beyond its tolerance: the fault arises after it, or is a decision "
                "between scores that are nearer to each other than their tolerance."
            )
        columns = " and ".join(row.over)
        if row.iteration == 0:
            place = f"the input of layer {row.layer} ({columns})"
            return f"First beyond tolerance: {place}; the error arises before it."
        # A file of standard operators does not show the input of its first layer.
        before = " or before it" if row is self.rows[0] else ""
        return f"First beyond tolerance: layer {row.layer}, iteration {row.iteration}{before} ({columns})."

    def to_dict(self) -> RoutingErrorsDocument:
        """JSON values only."""

        def cell(c: ErrorCell | None) -> CellDocument | None:
            if c is None:
                return None
            error = c.error if np.isfinite(c.error) else None
            return {"error": error, "budget": c.budget, "over": c.over}

        first = self.first
        return {
            "verdict": self.verdict(),
            "note": self.note,
            "first": None
            if first is None
            else {"layer": first.layer, "iteration": first.iteration, "columns": first.over},
            "rows": [
                {
                    "layer": r.layer,
                    "iteration": r.iteration,
                    "couplings": cell(r.couplings),
                    "pose": cell(r.pose),
                    "length": cell(r.length),
                }
                for r in self.rows
            ],
        }


def measure_routing_errors(
    reference: Reference,
    session: Session,
    images: Array,
    limits: Requirements | None = None,
    hard: NDArray[np.bool_] | None = None,
) -> RoutingErrors:
    """Follow routing through the reference and the artefact on the same images.

    Args:
        reference: computes the true values (FP64), the error of FP32 itself, and how far rounding moves them.
        session: the artefact; its file is probed, never changed.
        images: prepared ``[n, C, H, W]``.
        limits: what the outputs were judged by; the defaults if None.
        hard: which of the images ``[n]`` are hard cases; none by default.
    """
    batch = session.backend.batches.fixed
    hard = np.zeros(len(images), np.bool_) if hard is None else hard
    if batch is not None:  # one run, since the batch of inner values need not come first to be cut
        images, hard = np.resize(images, (batch, *images.shape[1:])), np.resize(hard, batch)
    rule = _Rule.of(session, limits or Requirements.of(session), hard)
    inputs = torch.from_numpy(images)
    exact = unroll_routing_calls(reference.fp64, inputs.double())
    rounded = unroll_routing_calls(reference.module, inputs)
    moved = [unroll_routing_calls(module, x) for module, (x,) in reference.moved([inputs])]
    fused = session.backend.ops != "portable"
    probe = Probe(session.path, find_library() if fused else None)
    if len(exact) != len(probe.sites):  # the exporter leaves out nodes that reach no output
        exact, rounded, *moved = (
            [c for c in calls if c.live] for calls in (exact, rounded, *moved)
        )
    if not exact or len(exact) != len(probe.sites):
        return RoutingErrors(
            (),
            f"The reference routes at {len(exact)} places, the file shows {len(probe.sites)}: their routing "
            "cannot be compared iteration by iteration. Export again with `capsedge export --ops auto`.",
        )
    values = probe.run(images)
    rows: list[ErrorRow] = []
    for site, call, own, *others in zip(probe.sites, exact, rounded, *moved, strict=True):
        other = _other(site, call, values)
        if other:
            return RoutingErrors(
                (),
                f"Layer {call.layer} has {other} in the file than in the reference: they are two networks. "
                "Verify the file with the checkpoint that it was exported from.",
            )
        rows += _rows(rule, site, values, call, own, others)
    note = ""
    if fused:
        note = "Fused kernels show only their outputs; --ops portable shows every iteration of the bodies."
    return RoutingErrors(tuple(rows), note)


def _other(site: RoutingSite, call: RoutingCallValues, values: dict[str, Array]) -> str:
    """What shows that a layer of the file is not the reference's; empty if nothing does."""
    steps = {step.iteration: step for step in call.steps}
    if OPERATORS[call.operator].iterates and max(site.values, default=0) > max(steps):
        return "more iterations"
    for iteration, names in site.values.items():
        known = steps.get(iteration) if "pose" in names else None
        if known is not None and values[names["pose"]].size != known.pose.size:
            return "poses of another size"
    return ""


def _rows(
    rule: _Rule,
    site: RoutingSite,
    values: dict[str, Array],
    call: RoutingCallValues,
    own: RoutingCallValues,
    others: list[RoutingCallValues],
) -> list[ErrorRow]:
    rows = []
    moved = zip(*(other.steps for other in others), strict=True)
    for step, rounded, changed in zip(call.steps, own.steps, moved, strict=True):
        # If a node is a single pass, the body numbers it 1; the schedule has its real number.
        iterates = OPERATORS[call.operator].iterates
        inner = step.iteration if iterates else min(step.iteration, 1)
        found = {kind: values[name] for kind, name in site.values.get(inner, {}).items()}
        known = step.iteration == 0 and call.sources[0] is not None  # the output of a layer before
        if found and not known:
            rows.append(_row(rule, call.layer, found, step, rounded, changed))
    return rows


def _row(
    rule: _Rule,
    layer: str,
    artefact: dict[str, Array],
    step: RoutingStep,
    rounded: RoutingStep,
    moved: Sequence[RoutingStep],
) -> ErrorRow:
    """The cells of a place: what the file has, and the reference in FP64, FP32 and with inputs moved."""
    couplings = pose = length = None
    if "couplings" in artefact and step.couplings is not None:
        own, *others = (
            _parents_first(s.couplings) for s in (rounded, *moved) if s.couplings is not None
        )
        couplings = rule.cell(
            rule.couplings, artefact["couplings"], _parents_first(step.couplings), own, others
        )
    activation = None
    if "pose" in artefact:
        values = artefact["pose"].reshape(step.pose.shape)
        pose = rule.cell(rule.pose, values, step.pose, rounded.pose, [s.pose for s in moved])
        if step.length.shape == step.pose.shape[:-1]:
            activation = np.linalg.norm(values.astype(np.float64), axis=-1)
    if "logit" in artefact:
        activation = np.exp(-np.logaddexp(0, -artefact["logit"].astype(np.float64)))
    if "activation" in artefact:
        activation = artefact["activation"]
    if activation is not None:
        length = rule.cell(
            rule.length,
            activation.reshape(step.length.shape),
            step.length,
            rounded.length,
            [s.length for s in moved],
        )
    return ErrorRow(layer, step.iteration, couplings, pose, length)


def _parents_first(couplings: Array) -> Array:
    """``[..., I, M]`` in the layout of the function bodies: ``[N·S, M, I]``."""
    return couplings.reshape(-1, *couplings.shape[-2:]).swapaxes(1, 2)
