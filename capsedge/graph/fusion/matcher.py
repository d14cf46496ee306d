"""Candidates, what each may be, and the operators in their place, which have no function bodies yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import onnx

from capsedge.graph.fusion import Found, Left, NotRecognized, Recognition
from capsedge.graph.fusion.attention import fit_attention, fit_uniform, write_attention
from capsedge.graph.fusion.candidates import Anchor, Group, groups
from capsedge.graph.fusion.dynamic import FoundDynamic, fit_dynamic, write_dynamic
from capsedge.graph.fusion.edit import Edit, splice
from capsedge.graph.fusion.em import fit_em, write_em
from capsedge.graph.fusion.grids import Children
from capsedge.graph.fusion.self_attention import fit_self_attention, write_self_attention
from capsedge.graph.fusion.squash import squashes, write_squash
from capsedge.graph.fusion.standard import NO_FASTER, write_standard
from capsedge.graph.fusion.values import Values
from capsedge.graph.fusion.votes import Source, dynamic_source, linear_source

STANDARD = "standard operators"  # what is reported where no operator fits
_NONE = "no operator"
Made = tuple[Edit, Found]


def candidates(model: onnx.ModelProto) -> tuple[list[Made], list[Left]]:
    """What may be replaced, each with its edit, and what is left with its reason.

    Args:
        model: simplified, without functions and loops of a fixed number of passes.
    """
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
    fitted: list[FoundDynamic] = []
    for votes in group.votes:
        for attempt in (_dynamic, _em):
            try:
                made.append(attempt(graph, votes, group.anchors, len(made), fitted))
                return
            except NotRecognized as error:
                reasons.append(str(error))
    for write, found in itertools.product((_given, _standard), fitted):
        try:
            made.append(write(graph, found, len(made), reasons))
            return
        except NotRecognized as error:
            reasons.append(str(error))
    for anchor in group.anchors:
        why = list(reasons)
        for votes, single in itertools.product(group.votes, (_self_attention, _attention)):
            try:
                made.append(single(graph, votes, anchor, len(made)))
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


def _given(graph: Values, found: FoundDynamic, number: int, _: list[str]) -> Made:
    """Routing over votes of which no capsules were found that they are made of."""
    return _written(graph, found, None, number)


def _standard(graph: Values, found: FoundDynamic, number: int, reasons: list[str]) -> Made:
    """Routing that no operator has, in a faster form."""
    edit, gain = write_standard(graph, found, f"routing_{number}")
    kind = found.kind
    _, j, i, p = found.roles.sizes
    groups = found.roles.part(1)
    parameters = {
        "children": str(i),
        "parents": f"{groups[0]} of {j // groups[0]}" if p == 1 else f"{j} of {p}",
        "iterations": str(kind.iterations),
    }
    form = f"standard operators in another form, {gain:.1f} times faster by estimate"
    note = f"{_telling(reasons)}; written with {form}"
    return edit, Found(STANDARD, found.result, parameters, (note,))


def _telling(reasons: list[str]) -> str:
    """The reason that says most: one that names what no operator has, else the first."""
    said = next((r for r in reasons if _NONE in r or "averaged" in r or "EM" in r), reasons[0])
    return f"{said}; {NO_FASTER}" if NO_FASTER in reasons and said != NO_FASTER else said


def _em(
    graph: Values, votes: str, anchors: list[Anchor], number: int, _: list[FoundDynamic]
) -> Made:
    found = fit_em(graph, votes, anchors)
    written = write_em(graph, found, f"routing_{number}")
    parameters = _grid(written.children, found.roles.sizes) | {
        "iterations": str(len(found.kind.temperatures)),
        "inverse temperatures": ", ".join(f"{t:.4g}" for t in found.kind.temperatures),
        "epsilon": f"{found.kind.epsilon:.3g}",
    }
    if found.kind.normalized:
        parameters["activations"] = "a/(a + epsilon)"
    if found.kind.ones_first:
        parameters["first responsibilities"] = "1"
    if written.coordinates is not None:
        parameters["coordinates"] = "of the file"
    return written.edit, Found("EMRouting", found.pose, parameters)


def _self_attention(graph: Values, votes: str, anchor: Anchor, number: int) -> Made:
    found = fit_self_attention(graph, votes, anchor)
    source = linear_source(graph, votes, found.roles)
    edit, notes = write_self_attention(graph, found, source, f"routing_{number}")
    _, j, i, p = found.roles.sizes
    parameters = {
        "children": f"{i} of {source.depth}",
        "parents": f"{j} of {p}",
        "epsilon": f"{found.kind.epsilon:.3g}",
    }
    if found.kind.bias.any():
        parameters["bias"] = "of the file"
    return edit, Found("SelfAttentionRouting", found.result, parameters, notes)


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
        if not three or node.output[0] in graph.constant or not graph.constant >= {*node.input[1:]}:
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


def _dynamic(
    graph: Values, votes: str, anchors: list[Anchor], number: int, fitted: list[FoundDynamic]
) -> Made:
    """Dynamic routing over votes of capsules; what fits goes into ``fitted`` first."""
    found = fit_dynamic(graph, votes, anchors)
    fitted.append(found)
    return _written(graph, found, dynamic_source(graph, votes, found.roles), number)


def _written(graph: Values, found: FoundDynamic, source: Source | None, number: int) -> Made:
    written = write_dynamic(graph, found, source, f"routing_{number}")
    kind = found.kind
    _, j, i, p = found.roles.sizes
    parameters = {
        "children": f"{i}, votes given" if source is None else f"{i} of {source.depth}",
        "parents": f"{j} of {p}",
        "iterations": str(kind.iterations),
        "epsilon": f"{kind.epsilon:.3g}",
    }
    said = {
        "softmax": "over the children" if kind.over == "i" else "",
        "logits": "replaced" if kind.replace else "",
        "agreements": "with normalized sums" if kind.normalize else "",
        "agreement scale": f"{kind.scale:.4g}" if kind.scale != 1 else "",
        "squash": _squash(kind.form, kind.axis),
        "leaky": "yes" if kind.leaky else "",
        "prior": "of the file" if kind.prior.any() else "",
        "bias": "of the file" if kind.bias.any() else "",
    }
    if source is not None:
        shared = len(source.weight[0]) > 1 and (source.weight == source.weight[:, :1]).all()
        said["weight"] = "shared by the children" if shared else ""
        said["vote bias"] = "of the file" if source.constant is not None else ""
    parameters |= {name: text for name, text in said.items() if text}
    return written.edit, Found(written.operator, found.result, parameters, written.notes)


def _squash(form: str, axis: str) -> str:
    if axis == "element":
        return "of each element"
    return "s·n/(½ + n²)" if form == "H" else ""
