"""Why a file differs from its module: whether rewrites have a part in it, and the first node that differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

from capsedge.errors import CapsedgeError
from capsedge.exporters import checks
from capsedge.exporters.export_report import ExportReport
from capsedge.exporters.modules import Subject
from capsedge.exporters.user_code import first_line, node_lines
from capsedge.graph.rewrites import Rewrites
from capsedge.judging.tolerance import Tolerance, excess

Make = Callable[[int | None, Rewrites, bool], tuple[onnx.ModelProto, torch.export.ExportedProgram]]
"""Batch, rewrites and recognition to a graph that runs, and the program that it was made of."""


def diagnose(
    subject: Subject,
    make: Make,
    batch: int | None,
    rewrites: Rewrites,
    cases: Sequence[checks.Case],
    report: ExportReport,
) -> str:
    """Where the worst required difference comes from, in a sentence or two; empty if that cannot be told."""
    failed = [p for p in report.parity if not p.passed and not p.outside]
    worst = max(failed, key=lambda p: p.excess)
    case = next(c for c in cases if c[0] == worst.case)

    def agrees(rewrites: Rewrites, recognize: bool) -> bool:
        session = checks.session_of(make(batch, rewrites, recognize)[0])
        found = checks.compare(
            session, subject.reference, subject.compared, [case], report.atol, report.rtol
        )
        return all(p.passed for p in found)

    try:
        if agrees(Rewrites.none(), recognize=False):
            return f"The plain export agrees: {_part(agrees, rewrites, bool(report.recognition.found))}."
        model, program = make(len(case[1][0]), Rewrites.none(), False)
        node = _first_node(model, program, case[1], Tolerance(report.atol, report.rtol))
    except CapsedgeError as error:
        return f"The cause could not be found: {error.what}"
    except Exception as error:  # of torch or ONNX Runtime; the comparison itself must still be told
        return f"The cause could not be found: {first_line(error)}"
    plain = "Rewrites have no part in it: the plain export differs too."
    return f"{plain} {node}"


def _part(agrees: Callable[[Rewrites, bool], bool], rewrites: Rewrites, recognized: bool) -> str:
    if recognized and agrees(rewrites, False):
        return "the difference comes from the operators that replaced its routing"
    for each in fields(rewrites):
        if getattr(rewrites, each.name) and agrees(replace(rewrites, **{each.name: False}), True):
            return f"the rewrite '{each.name}' makes the difference; leave it out"
    return "several rewrites together make the difference; leave all of them out"


def _first_node(
    model: onnx.ModelProto,
    program: torch.export.ExportedProgram,
    tensors: Sequence[Tensor],
    tolerance: Tolerance,
) -> str:
    """The first value of the program that the file computes differently."""
    recorded = _Recorder(program.module())
    with torch.no_grad():
        recorded.run(*tensors)
    made = {o for n in model.graph.node for o in n.output}
    have = {o.name for o in model.graph.output}
    names = [n for n in recorded.values if n in made]
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in have)
    session = checks.session_of(model)
    feeds = {i.name: t.numpy() for i, t in zip(session.get_inputs(), tensors, strict=True)}
    found = session.run(names, feeds)
    for name, array in zip(names, found, strict=True):
        wanted, line = recorded.values[name]
        if _differs(array, wanted, tolerance):
            maker = next(n for n in model.graph.node if name in n.output)
            return f"First to differ: '{name}' ({maker.op_type})" + (f", {line}." if line else ".")
    return "No node differs by itself: rounding grows on the way."


def _differs(found: np.ndarray, wanted: np.ndarray, tolerance: Tolerance) -> bool:
    if found.shape != wanted.shape:
        return True
    if wanted.dtype.kind != "f":
        return not np.array_equal(found, wanted)
    reference = np.atleast_1d(wanted.astype(np.float64))
    finite = np.isfinite(reference)
    off = np.abs(np.atleast_1d(found.astype(np.float64)) - np.where(finite, reference, 0))[finite]
    size = np.abs(reference[finite]).max(initial=0.0)
    whole = np.full((len(off), 1), size)
    return bool(len(off)) and not excess(off[:, None], whole, tolerance, 0.0).max() <= 1


class _Recorder(torch.fx.Interpreter):
    """Runs a program and keeps every tensor with the user's line that made it."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.values: dict[str, tuple[np.ndarray, str]] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor) and n.op == "call_function":
            self.values[n.name] = (value.detach().numpy().copy(), next(node_lines(n), ""))
        return value
