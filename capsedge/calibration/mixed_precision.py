"""Search for the smallest and the fastest mix of precisions that passes the accuracy gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, inliner

from capsedge.calibration import collect
from capsedge.calibration.accuracy import ERROR, UNITS_OF_LOSS, Gate, Outcome
from capsedge.calibration.collect import runs_over_samples, samples_of_a_run
from capsedge.calibration.float_model import MADE_BY, FloatModel, uniform_assignment
from capsedge.calibration.int8_cpu import activation_parameters
from capsedge.calibration.quantizable_layers import title as title_text
from capsedge.calibration.ranges import CalibrationTable
from capsedge.datasets import ImageSet
from capsedge.graph.ir import copy_of, initializer, operator_nodes
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.load import load_bytes
from capsedge.runtime.profiling.profile import random_inputs
from capsedge.runtime.profiling.timing import summarize
from capsedge.runtime.profiling.worker import RunLimits, take_times
from capsedge.runtime.result_summary import Report, Table, new_figure, save_figure, shortened_name
from capsedge.runtime.session.session import Session
from capsedge.spec.operators import (
    ROUTING_OPERATORS,
    IterationValue,
    operator_of,
    parse_iteration_value,
)

RANKING = RunLimits(warmup=0.05, duration=0.0, iterations=30)
SEARCHED = 0.75  # share of the allowed errors that a search may use


@dataclass(frozen=True)
class PrecisionCandidate:
    """An assignment that was tried.

    Attributes:
        assignment: precision of every layer.
        bytes: size of the file.
        milliseconds: time per image, for ranking.
        outcome: comparison with FP32 on the search images.
        fits: whether the loss is allowed.
    """

    assignment: dict[str, str]
    bytes: int
    milliseconds: float
    outcome: Outcome
    fits: bool

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {
            "assignment": self.assignment,
            "bytes": self.bytes,
            "milliseconds": self.milliseconds,
            "fits": self.fits,
            **self.outcome.to_dict(),
        }


@dataclass(frozen=True)
class PrecisionSearch:
    """All candidates, in the order in which they were tried."""

    candidates: list[PrecisionCandidate]

    def table(self) -> Table:
        """The Pareto front."""
        whole = max(c.bytes for c in self.candidates)
        return Table(
            f"Pareto front of {len(self.candidates)} candidates (size, time per image, score error)",
            ("size", "smaller", "ms", "accuracy", "agreement", "", "assignment"),
            [
                (
                    format_bytes(c.bytes),
                    f"{whole / c.bytes:.2f}x",
                    f"{c.milliseconds:.2f}",
                    c.outcome.change,
                    f"{100 * c.outcome.agreement:.2f} %",
                    "ok" if c.fits else "over",
                    levels(c.assignment),
                )
                for c in self.pareto()
            ],
        )

    @property
    def smallest(self) -> PrecisionCandidate | None:
        """The smallest file within the allowed drop; None if nothing fits."""
        return min((c for c in self.candidates if c.fits), key=lambda c: c.bytes, default=None)

    @property
    def fastest(self) -> PrecisionCandidate | None:
        """The fastest file within the allowed drop; None if nothing fits."""
        fitting = (c for c in self.candidates if c.fits)
        return min(fitting, key=lambda c: c.milliseconds, default=None)

    def pareto(self) -> list[PrecisionCandidate]:
        """The candidates that no other beats in size, time and error together, smallest first."""

        def beaten(c: PrecisionCandidate) -> bool:
            mine = (c.bytes, c.milliseconds, c.outcome.error)
            others = ((o.bytes, o.milliseconds, o.outcome.error) for o in self.candidates)
            return any(
                o != mine and all(a <= b for a, b in zip(o, mine, strict=True)) for o in others
            )

        return sorted((c for c in self.candidates if not beaten(c)), key=lambda c: c.bytes)


def search(
    float_model: FloatModel,
    table: CalibrationTable,
    data: ImageSet,
    target: str,
    gate: Gate,
    threads: int = 2,
    on_candidate: Callable[[PrecisionCandidate], None] | None = None,
) -> PrecisionSearch:
    """Lower one unit after another, beginning with those that save the most for the error they cause.

    Starting from INT8 everywhere, units go to 4 bits in the order of score error per byte saved; each step is
    kept only if it passes the gate (``_fits``). If INT8 itself does not fit, the units that do the most
    damage first return to FP32.

    Args:
        data: images to search on; accuracy is reported on other images.
        gate: what may be lost.
    """
    layers = float_model.quantizable(target)
    candidates: list[PrecisionCandidate] = []

    def candidate(assignment: dict[str, str]) -> PrecisionCandidate:
        model, _ = float_model.emit(assignment, table, target)
        outcome = float_model.outcome(model, data)
        content = model.SerializeToString()
        time = latency(load_bytes(content, MADE_BY, threads=threads), data)
        candidates.append(
            PrecisionCandidate(dict(assignment), len(content), time, outcome, _fits(gate, outcome))
        )
        if on_candidate is not None:
            on_candidate(candidates[-1])
        return candidates[-1]

    candidate(uniform_assignment(layers, "fp32"))
    current = candidate(uniform_assignment(layers, "int8"))
    alone = {u.name: _alone(float_model, table, data, target, u.name, "int8") for u in layers}
    for name in sorted(alone, key=lambda n: -alone[n].error):
        if current.fits:
            break
        current = candidate({**current.assignment, name: "fp32"})
    if "int4" in float_model.levels(target):
        lower = {u.name: _alone(float_model, table, data, target, u.name, "int4") for u in layers}
        price = {u.name: lower[u.name].error / u.elements for u in layers}
        for name in sorted(price, key=lambda n: price[n]):
            if current.assignment[name] != "int8":
                continue
            lowered = candidate({**current.assignment, name: "int4"})
            if lowered.fits:
                current = lowered
    return PrecisionSearch(candidates)


def _fits(gate: Gate, outcome: Outcome) -> bool:
    """Whether an outcome passes the gate with room to spare.

    The share of changed decisions must not exceed the points that may be lost. Errors may use only `SEARCHED`
    of the allowance: the best of many candidates on these images will have larger errors on others.

    The network may have been trained on the search images and is more confident on those, so accuracy alone
    would be too optimistic.
    """
    limit = gate.limit(outcome.metric)
    if outcome.metric == ERROR:
        kept = SEARCHED * limit, SEARCHED * gate.max_error
        least = 1 - SEARCHED * (1 - gate.min_cosine)
        searched = replace(gate, max_drop=kept[0], max_error=kept[1], min_cosine=least)
        return searched.passes(outcome)
    changed = 100.0 * (1.0 - outcome.agreement)
    return gate.passes(outcome) and changed <= limit


def _alone(
    float_model: FloatModel,
    table: CalibrationTable,
    data: ImageSet,
    target: str,
    name: str,
    level: str,
) -> Outcome:
    model, _ = float_model.emit({name: level}, table, target)
    return float_model.outcome(model, data)


def draw(result: PrecisionSearch, gate: Gate, path: Path) -> None:
    """Draw drop against size, one point per candidate, with the Pareto front. Needs matplotlib."""
    whole = max(c.bytes for c in result.candidates)
    metric = result.candidates[0].outcome.metric
    label, max_drop = UNITS_OF_LOSS[metric], gate.limit(metric)
    figure = new_figure(7, 4)
    axis = figure.subplots()
    for fits, colour, title in ((True, "#0b6e4f", "fits"), (False, "#c1121f", "drops too far")):
        some = [c for c in result.candidates if c.fits == fits]
        axis.scatter(
            [whole / c.bytes for c in some],
            [c.outcome.drop for c in some],
            [
                12 * c.milliseconds / min(x.milliseconds for x in result.candidates) + 12
                for c in some
            ],
            colour,
            label=title,
        )
    front = [c for c in result.pareto() if c.fits]
    axis.plot(
        [whole / c.bytes for c in front], [c.outcome.drop for c in front], "-", color="#9aa5b1"
    )
    axis.axhline(max_drop, color="#c1121f", linewidth=0.8, linestyle="--")
    axis.set_xlabel("times smaller than FP32 (area: time per image)")
    axis.set_ylabel(label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    save_figure(figure, path)


def levels(assignment: dict[str, str]) -> str:
    """An assignment in one line."""
    return ", ".join(f"{name} {level}" for name, level in assignment.items())


# --- Sensitivity: the loss when one layer or iteration alone is in 8 bits ---


@dataclass(frozen=True)
class Damage:
    """The error of a single layer or routing iteration in 8 bits.

    Attributes:
        name: the layer; for an iteration, also its number: its couplings and poses are in 8 bits.
        kind: ``conv``, ``routing``, ``linear`` or ``iteration``.
        saved: bytes by which the file becomes smaller.
        outcome: comparison with FP32.
    """

    name: str
    kind: str
    saved: int
    outcome: Outcome

    def to_dict(self) -> dict[str, object]:
        """JSON values."""
        return {
            "name": self.name,
            "kind": self.kind,
            "saved_bytes": self.saved,
            **self.outcome.to_dict(),
        }


def sensitivity(
    float_model: FloatModel,
    table: CalibrationTable,
    data: ImageSet,
    calibration: ImageSet,
    target: str = "ort-cpu",
    done: Callable[[str], None] | None = None,
) -> list[Damage]:
    """The damage of every layer and iteration alone, largest first: RMS error of the scores."""
    damages = []
    for layer in float_model.quantizable(target):
        model, _ = float_model.emit({layer.name: "int8"}, table, target)
        outcome = float_model.outcome(model, data)
        damages.append(
            Damage(layer.name, layer.kind, len(float_model.content) - model.ByteSize(), outcome)
        )
        if done is not None:
            done(layer.name)
    for name, model in _iterations(float_model, calibration):
        damages.append(Damage(name, "iteration", 0, float_model.outcome(model, data)))
        if done is not None:
            done(name)
    return sorted(damages, key=lambda d: -d.outcome.error)


def _iterations(
    float_model: FloatModel, calibration: ImageSet
) -> list[tuple[str, onnx.ModelProto]]:
    """One model per iteration of every routing node, with the results of the iteration rounded to 8 bits."""
    inlined = inliner.inline_local_functions(float_model.model)
    sites = _sites(float_model.model, inlined)
    tensors = [t for _, names in sites for t in names]
    limits = collect.magnitudes(inlined, tensors, calibration)
    return [(name, _rounded(inlined, names, limits)) for name, names in sites]


def _sites(model: onnx.ModelProto, inlined: onnx.ModelProto) -> list[tuple[str, list[str]]]:
    """The marked tensors of an inlined model by layer and iteration, in order."""
    layers = [
        title_text(n.input[ROUTING_OPERATORS[operator_of(n.op_type)].weight])
        for n in operator_nodes(model)
        if operator_of(n.op_type) in ROUTING_OPERATORS
    ]
    sites: list[tuple[str, list[str]]] = []
    taken: set[IterationValue] = set()
    index, passes = -1, dict.fromkeys(layers, 0)
    for node in inlined.graph.node:
        for name in node.output:
            mark = parse_iteration_value(name)
            if mark is None:
                continue
            fresh = not taken or mark in taken or mark.operator not in {t.operator for t in taken}
            if fresh:
                index, taken = index + 1, set()
                layer = layers[index] if index < len(layers) else f"routing {index + 1}"
                passes[layer] = passes.get(layer, 0) + 1
            taken.add(mark)
            # If a node is a single pass, the passes are the iterations of the layer.
            iterates = ROUTING_OPERATORS[mark.operator].iterates
            title_ = f"{layer}, iteration {mark.iteration if iterates else passes[layer]}"
            if sites and sites[-1][0] == title_:
                sites[-1][1].append(name)
            else:
                sites.append((title_, [name]))
    return sites


def _rounded(
    model: onnx.ModelProto, tensors: list[str], limits: dict[str, tuple[float, float]]
) -> onnx.ModelProto:
    """A copy in which some tensors are rounded to uint8."""
    copy = copy_of(model)
    nodes = list(copy.graph.node)
    del copy.graph.node[:]
    for node in nodes:
        after = []
        for k, name in enumerate(node.output):
            if name in tensors:
                scale, zero = activation_parameters(*limits[name])
                copy.graph.initializer.append(initializer(f"{name}_scale", np.float32(scale)))
                copy.graph.initializer.append(initializer(f"{name}_zero", np.uint8(zero)))
                parameters = [f"{name}_scale", f"{name}_zero"]
                node.output[k] = f"{name}_exact"
                after += [
                    helper.make_node(
                        "QuantizeLinear", [f"{name}_exact", *parameters], [f"{name}_q"]
                    ),
                    helper.make_node("DequantizeLinear", [f"{name}_q", *parameters], [name]),
                ]
        copy.graph.node.extend([node, *after])
    del copy.graph.value_info[:]
    return copy


@dataclass(frozen=True, repr=False)
class SensitivityReport(Report):
    """The error that each layer and each routing iteration causes by itself in 8 bits.

    Attributes:
        damage: the largest first.
        warnings: warnings about the images.
    """

    damage: tuple[Damage, ...]
    warnings: tuple[str, ...]

    def _lines(self) -> list[str]:
        return [f"{len(self.damage)} layers and iterations, each alone in 8 bits"] + [
            f"{shortened_name(d.name)}: score error {d.outcome.error:.2e}" for d in self.damage[:2]
        ]

    def rows(self) -> list[tuple[str, str]]:
        """Nothing: all is in the table."""
        return []

    def tables(self) -> list[Table]:
        """One row for each layer and iteration."""
        return [
            Table(
                "Damage of each alone in 8 bits, largest first",
                ("", "kind", "score error", "agreement", "accuracy", "saved"),
                [
                    (
                        d.name,
                        d.kind,
                        f"{d.outcome.error:.2e}",
                        f"{100 * d.outcome.agreement:.2f} %",
                        d.outcome.change,
                        format_bytes(d.saved) if d.saved > 0 else "-",
                    )
                    for d in self.damage
                ],
            )
        ]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"damage": [each.to_dict() for each in self.damage]}


def latency(session: Session, data: ImageSet) -> float:
    """Median milliseconds of one run of the smallest batch; for ranking candidates, not for reports."""
    if session.metadata is not None:
        feeds: Mapping[str, NDArray[Any]] = random_inputs(session, session.backend.batches.smallest)
    else:  # sizes that the file leaves free come from the data
        size = samples_of_a_run(session, data) or 1
        _, feeds, _ = next(runs_over_samples(session, data.first(size)))
    return summarize(take_times(lambda: session.run(feeds), RANKING)).median
