"""A graph in, the same graph with capsule operators out."""

from __future__ import annotations

import onnx

from capsedge.graph.recognize.anchors import Anchor, Group, groups
from capsedge.graph.recognize.edit import Edit, splice
from capsedge.graph.recognize.fit_dynamic import fit_dynamic
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.report import Found, Left, Recognition
from capsedge.graph.recognize.source import linear_source
from capsedge.graph.recognize.squashes import squashes, write_squash
from capsedge.graph.recognize.values import Values
from capsedge.graph.recognize.write_dynamic import write_dynamic

_Made = tuple[Edit, Found]


def recognize(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Recognition]:
    """Replace what is recognized; the nodes have no function bodies yet.

    Args:
        model: simplified, without functions and loops of a fixed number of passes.
    """
    try:
        graph = Values(model)
    except NotRecognized as error:
        return model, Recognition(left=(Left("the graph", str(error)),))
    made: list[_Made] = []
    left: list[Left] = []
    for group in groups(graph):
        _group(graph, group, made, left)
    done = {name for edit, _ in made for name in edit.results}
    for found in squashes(graph):
        if found.result in done:
            continue
        try:
            edit = write_squash(graph, found, f"squash_{len(made)}")
        except NotRecognized as error:
            left.append(Left(found.result, str(error)))
            continue
        parameters = {"axis": str(found.axis), "epsilon": f"{found.epsilon:.3g}"}
        made.append((edit, Found("Squash", found.result, parameters)))
    kept = []
    for edit, found in made:
        present = {o for n in model.graph.node for o in n.output} | graph.dims.keys()
        if {*edit.results, *edit.reads} <= present:
            model = splice(model, [edit])
            kept.append(found)
    alive = {o for n in model.graph.node for o in n.output}
    return model, Recognition(tuple(kept), tuple(e for e in left if e.place in alive))


def _group(graph: Values, group: Group, made: list[_Made], left: list[Left]) -> None:
    """Try what a group of softmaxes may be; say why it is nothing."""
    if not group.votes:
        reason = "a softmax that weighs no votes (attention, or scores)"
        left += [Left(a.name, reason) for a in group.anchors]
        return
    reasons: list[str] = []
    for votes in group.votes:
        try:
            made.append(_dynamic(graph, votes, group.anchors, len(made)))
            return
        except NotRecognized as error:
            reasons.append(str(error))
    left += [Left(a.name, reasons[0]) for a in group.anchors]


def _dynamic(graph: Values, votes: str, anchors: list[Anchor], number: int) -> _Made:
    found = fit_dynamic(graph, votes, anchors)
    source = linear_source(graph, votes, found.roles)
    edit, notes = write_dynamic(graph, found, source, f"routing_{number}")
    kind = found.kind
    _, j, i, p = found.roles.sizes
    parameters = {
        "children": f"{i} of {source.depth}",
        "parents": f"{j} of {p}",
        "iterations": str(kind.iterations),
        "epsilon": f"{kind.epsilon:.3g}",
    }
    if kind.leaky:
        parameters["leaky"] = "yes"
    if kind.prior.any():
        parameters["prior"] = "of the file"
    if kind.bias.any():
        parameters["bias"] = "of the file"
    return edit, Found("DynamicRouting", found.result, parameters, notes)
