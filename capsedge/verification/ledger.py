"""The routing ledger: errors of couplings, poses and lengths by layer and iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capsedge.judging.tolerance import NOISE
from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.session import Session
from capsedge.schema.operators import OPERATORS
from capsedge.verification.probe import Probe, Site
from capsedge.verification.reference import Reference
from capsedge.verification.routing_trace import Call, Step, trace

Array = NDArray[Any]

# The allowed error of an inner value in FP32: 1e-5 of its scale, plus NOISE times the error of eager FP32
# against FP64.
BUDGET = 1e-5


@dataclass(frozen=True)
class Cell:
    """One kind of value at one place: its largest error against FP64, and the allowed error."""

    error: float
    budget: float

    @property
    def over(self) -> bool:
        """Whether the error is over budget or not a number."""
        return not self.error <= self.budget


@dataclass(frozen=True)
class Row:
    """One layer and iteration; iteration 0 is the layer's input. None where the file shows no value."""

    layer: str
    iteration: int
    couplings: Cell | None
    pose: Cell | None
    length: Cell | None

    @property
    def over(self) -> list[str]:
        """The columns that are over budget."""
        cells = {"couplings": self.couplings, "pose": self.pose, "length": self.length}
        return [name for name, cell in cells.items() if cell is not None and cell.over]


@dataclass(frozen=True)
class Ledger:
    """Rows in the order in which the values are computed.

    Attributes:
        note: the values that the ledger cannot show, and why; empty if it shows all.
    """

    rows: tuple[Row, ...]
    note: str = ""

    @property
    def first(self) -> Row | None:
        """The first place over budget."""
        return next((row for row in self.rows if row.over), None)

    def verdict(self) -> str:
        """One sentence: where the values first exceed their budget."""
        row = self.first
        if not self.rows:
            return self.note
        if row is None:
            return (
                "No value of routing is over its budget, which allows for a whole layer what FP32 loses in "
                "it; the outputs are over theirs, which holds for each pose."
            )
        columns = " and ".join(row.over)
        if row.iteration == 0:
            place = f"the input of layer {row.layer} ({columns})"
            return f"First over budget: {place}; the error arises before it."
        # A file of standard operators does not show the input of its first layer.
        before = " or before it" if row is self.rows[0] else ""
        return (
            f"First over budget: layer {row.layer}, iteration {row.iteration}{before} ({columns})."
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""

        def cell(c: Cell | None) -> dict[str, Any] | None:
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


def routing_ledger(reference: Reference, session: Session, images: Array) -> Ledger:
    """Follow routing through the reference and the artefact on the same images.

    Args:
        reference: computes the true values (FP64) and the error of FP32 itself.
        session: the artefact; its file is probed, never changed.
        images: prepared ``[n, C, H, W]``.
    """
    batch = session.batch
    if batch is not None:  # one run, since the batch of inner values need not come first to be cut
        images = np.resize(images, (batch, *images.shape[1:]))
    exact = trace(reference.double, torch.from_numpy(images).double())
    rounded = trace(reference.module, torch.from_numpy(images))
    fused = session.ops != "portable"
    probe = Probe(session.path, find_library() if fused else None)
    if len(exact) != len(probe.sites):  # the exporter leaves out nodes that reach no output
        exact, rounded = ([c for c in calls if c.live] for calls in (exact, rounded))
    if not exact or len(exact) != len(probe.sites):
        return Ledger(
            (),
            f"The reference routes at {len(exact)} places, the file shows {len(probe.sites)}: their routing "
            "cannot be compared iteration by iteration. Export again with `capsedge export --ops auto`.",
        )
    values = probe.run(images)
    rows: list[Row] = []
    for site, call, own in zip(probe.sites, exact, rounded, strict=True):
        other = _other(site, call, values)
        if other:
            return Ledger(
                (),
                f"Layer {call.layer} has {other} in the file than in the reference: they are two networks. "
                "Verify the file with the checkpoint that it was exported from.",
            )
        rows += _rows(site, call, own, values)
    note = ""
    if fused:
        note = "Fused kernels show only their outputs; --ops portable shows every iteration of the bodies."
    return Ledger(tuple(rows), note)


def _other(site: Site, call: Call, values: dict[str, Array]) -> str:
    """What shows that a layer of the file is not the reference's; empty if nothing does."""
    steps = {step.iteration: step for step in call.steps}
    if OPERATORS[call.operator].iterates and max(site.values, default=0) > max(steps):
        return "more iterations"
    for iteration, names in site.values.items():
        known = steps.get(iteration) if "pose" in names else None
        if known is not None and values[names["pose"]].size != known.pose.size:
            return "poses of another size"
    return ""


def _rows(site: Site, call: Call, own: Call, values: dict[str, Array]) -> list[Row]:
    rows = []
    for step, noisy in zip(call.steps, own.steps, strict=True):
        # If a node is a single pass, the body numbers it 1; the schedule has its real number.
        iterates = OPERATORS[call.operator].iterates
        inner = step.iteration if iterates else min(step.iteration, 1)
        found = {kind: values[name] for kind, name in site.values.get(inner, {}).items()}
        known = step.iteration == 0 and call.sources[0] is not None  # the output of a layer before
        if found and not known:
            rows.append(_row(call.layer, step, noisy, found))
    return rows


def _row(layer: str, step: Step, own: Step, found: dict[str, Array]) -> Row:
    couplings = pose = length = None
    if "couplings" in found and step.couplings is not None and own.couplings is not None:
        couplings = _cell(
            found["couplings"], _parents_first(step.couplings), _parents_first(own.couplings)
        )
    if "pose" in found:
        values = found["pose"].reshape(step.pose.shape)
        pose = _cell(values, step.pose, own.pose)
        if (
            step.length.shape == step.pose.shape[:-1]
            and "logit" not in found
            and "activation" not in found
        ):
            length = _cell(
                np.linalg.norm(values.astype(np.float64), axis=-1), step.length, own.length
            )
    if "logit" in found:
        logit = found["logit"].astype(np.float64).reshape(step.length.shape)
        activation = np.exp(-np.logaddexp(0, -logit))
        length = _cell(activation, step.length, own.length)
    if "activation" in found:
        length = _cell(found["activation"].reshape(step.length.shape), step.length, own.length)
    return Row(layer, step.iteration, couplings, pose, length)


def _parents_first(couplings: Array) -> Array:
    """``[..., I, M]`` in the layout of the function bodies: ``[N·S, M, I]``."""
    return couplings.reshape(-1, *couplings.shape[-2:]).swapaxes(1, 2)


def _cell(found: Array, exact: Array, rounded: Array) -> Cell:
    truth = exact.astype(np.float64)
    error = np.abs(np.broadcast_to(found.astype(np.float64), truth.shape) - truth)
    noise = float(np.abs(rounded.astype(np.float64) - truth).max(initial=0.0))
    scale = float(np.abs(truth).max(initial=0.0))
    return Cell(float(error.max(initial=0.0)), BUDGET * max(scale, 1e-3) + NOISE * noise)
