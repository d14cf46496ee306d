"""A graph in, the same graph with capsule operators out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import onnx

from capsedge.graph.recognize.anchors import Anchor, Group, groups
from capsedge.graph.recognize.edit import Edit, splice
from capsedge.graph.recognize.fit_attention import fit_attention, fit_uniform
from capsedge.graph.recognize.fit_dynamic import fit_dynamic
from capsedge.graph.recognize.fit_em import fit_em
from capsedge.graph.recognize.grids import Children
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.report import Found, Left, Recognition
from capsedge.graph.recognize.source import linear_source
from capsedge.graph.recognize.squashes import squashes, write_squash
from capsedge.graph.recognize.values import Values
from capsedge.graph.recognize.write_attention import write_attention
from capsedge.graph.recognize.write_dynamic import write_dynamic
from capsedge.graph.recognize.write_em import write_em
from capsedge.graph.recognize.write_standard import write_standard

STANDARD = "standard operators"  # what is reported where no operator fits
_NONE = "no operator"
Made = tuple[Edit, Found]


def recognize(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Recognition]:
    """Replace what is recognized; the nodes have no function bodies yet.

    Args:
        model: simplified, without functions and loops of a fixed number of passes.
    """
    made, left = candidates(model)
    model, found = applied(model, made)
    return model, recognition_of(model, found, left)


def candidates(model: onnx.ModelProto) -> tuple[list[Made], list[Left]]:
    """What may be replaced, each with its edit, and what is left with its reason."""
    try:
        graph = Values(model)
    except NotRecognized as error:
        return [], [Left("the graph", str(error))]
    made: list[Made] = []
    left: list[Left] = []
    for group in groups(graph):
        _group(graph, group, made, left)
    if any(found.operator == "AttentionRouting" for _, found in made):
        made += list(_uniform(graph, len(made)))
    done = {name for edit, _ in made for name in edit.results}
    for each in squashes(graph):
        if each.result in done:
            continue
        try:
            edit = write_squash(graph, each, f"squash_{len(made)}")
        except NotRecognized:
            continue
        parameters = {"axis": str(each.axis), "epsilon": f"{each.epsilon:.3g}"}
        made.append((edit, Found("Squash", each.result, parameters)))
    return [(edit, _with_note_of_integers(graph, edit, found)) for edit, found in made], left


def _with_note_of_integers(graph: Values, edit: Edit, found: Found) -> Found:
    """What to say of a weight that was stored in integers: the operator has the same numbers in FP32."""
    reads = [name for name in edit.reads if name in graph.sources]
    if any(graph.is_quantized(c) for c in graph.between(reads, edit.results)[1]):
        note = f"{found.operator}: the weight was stored in integers and is in FP32 now, with the same values"
        return replace(found, notes=(*found.notes, note))
    return found


def applied(model: onnx.ModelProto, made: Iterable[Made]) -> tuple[onnx.ModelProto, list[Found]]:
    """The model with edits put in, and which of them; one whose tensors are gone is none."""
    kept = []
    inputs = {i.name for i in model.graph.input}
    for edit, found in made:
        present = {o for n in model.graph.node for o in n.output} | inputs
        if {*edit.results, *edit.reads} <= present:
            try:
                model = splice(model, [edit])
            except NotRecognized:
                continue  # it reads what is made of its own results
            kept.append(found)
    return model, kept


def recognition_of(
    model: onnx.ModelProto, found: Iterable[Found], left: Iterable[Left]
) -> Recognition:
    """The report; of what is left that which the model still has."""
    alive = {o for n in model.graph.node for o in n.output}
    return Recognition(tuple(found), tuple(e for e in left if e.place in alive))


def _group(graph: Values, group: Group, made: list[Made], left: list[Left]) -> None:
    """Try what a group of softmaxes may be; say why it is nothing."""
    if not group.votes:
        reason = "a softmax that weighs no votes (attention, or scores)"
        left += [Left(a.name, reason) for a in group.anchors]
        return
    reasons: list[str] = []
    inside = _quantized_inside(graph, group)
    if inside is not None:
        reason = f"its own values are quantized inside ('{inside}'): no operator has that"
        left += [Left(a.name, reason) for a in group.anchors]
        return
    for votes in group.votes:
        for attempt in (_dynamic, _em):
            try:
                made.append(attempt(graph, votes, group.anchors, len(made)))
                return
            except NotRecognized as error:
                reasons.append(str(error))
    if any(_NONE in reason for reason in reasons):
        for votes in group.votes:
            try:
                made.append(_standard(graph, votes, group.anchors, len(made), _telling(reasons)))
                return
            except NotRecognized:
                continue
    for anchor in group.anchors:
        why = list(reasons)
        for votes in group.votes:
            try:
                made.append(_attention(graph, votes, anchor, len(made)))
                break
            except NotRecognized as error:
                why.append(str(error))
        else:
            left.append(Left(anchor.name, _telling(why)))


def _quantized_inside(graph: Values, group: Group) -> str | None:
    """The first node between votes and softmax that quantizes them."""
    ahead = graph.distances(group.anchors[-1].name)
    behind = set(group.votes).union(*(graph.after(v) for v in group.votes[:1]))
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear" and node.input[0] in behind and node.output[0] in ahead:
            return str(node.name or node.output[0])
    return None


def _standard(graph: Values, votes: str, anchors: list[Anchor], number: int, reason: str) -> Made:
    """Routing that no operator has, in a faster form."""
    found = fit_dynamic(graph, votes, anchors)
    edit, gain = write_standard(graph, found, f"routing_{number}")
    kind = found.kind
    _, j, i, p = found.roles.sizes
    parameters = {"children": str(i), "parents": f"{j} of {p}", "iterations": str(kind.iterations)}
    note = f"{reason}; written with standard operators in another form, {gain:.1f} times as fast"
    return edit, Found(STANDARD, found.result, parameters, (note,))


def _telling(reasons: list[str]) -> str:
    """The reason that says most: one that names what no operator has, else the first."""
    return next((r for r in reasons if _NONE in r or "averaged" in r or "EM" in r), reasons[0])


def _em(graph: Values, votes: str, anchors: list[Anchor], number: int) -> Made:
    found = fit_em(graph, votes, anchors)
    edit, children = write_em(graph, found, f"routing_{number}")
    parameters = _grid(children, found.roles.sizes) | {
        "iterations": str(len(found.kind.temperatures)),
        "inverse temperatures": ", ".join(f"{t:.4g}" for t in found.kind.temperatures),
        "epsilon": f"{found.kind.epsilon:.3g}",
    }
    if found.kind.normalized:
        parameters["activations"] = "a/(a + epsilon)"
    return edit, Found("EMRouting", found.pose, parameters)


def _attention(graph: Values, votes: str, anchor: Anchor, number: int) -> Made:
    found = fit_attention(graph, votes, anchor)
    edit, children = write_attention(graph, found, f"routing_{number}")
    parameters = _grid(children, found.roles.sizes) | {
        "agreement scale": f"{found.kind.agreement_scale:.4g}",
        "epsilon": f"{found.kind.epsilon:.3g}",
    }
    return edit, Found("AttentionRouting", found.result, parameters)


def _uniform(graph: Values, number: int) -> Iterator[Made]:
    """First attention passes: layer normalizations of a plain sum of votes."""
    for node in graph.nodes:
        three = node.op_type == "LayerNormalization" and len(node.input) == 3
        if not three or node.output[0] in graph.constant:
            continue
        for found in fit_uniform(graph, node.output[0]):
            try:
                edit, children = write_attention(graph, found, f"routing_{number}")
            except NotRecognized:
                continue
            number += 1
            sizes = found.roles.sizes
            parameters = _grid(children, sizes) | {"epsilon": f"{found.kind.epsilon:.3g}"}
            yield edit, Found("UniformRouting", found.result, parameters)
            break


def _grid(children: Children, sizes: tuple[int, ...]) -> dict[str, str]:
    rows, columns, types = children.grid
    return {
        "children": f"{rows}x{columns}x{types} of {children.source.depth}",
        "kernel": "x".join(map(str, children.windows.kernel)),
        "strides": "x".join(map(str, children.windows.strides)),
        "parents": f"{sizes[1]} of {sizes[3]}",
    }


def _dynamic(graph: Values, votes: str, anchors: list[Anchor], number: int) -> Made:
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
