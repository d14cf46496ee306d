"""Match candidates to operators and replace them, still without function bodies."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import onnx

from capsedge.graph.fusion import FusedOperator, FusionReport, NoMatch, NotFused
from capsedge.graph.fusion.attention import emit_attention, fit_attention, fit_uniform
from capsedge.graph.fusion.candidates import (
    Candidate,
    Softmax,
    find_candidates,
    is_divided_again,
)
from capsedge.graph.fusion.dynamic import DynamicMatch, fit_dynamic
from capsedge.graph.fusion.edit import Edit, splice
from capsedge.graph.fusion.em import fit_em
from capsedge.graph.fusion.emit_dynamic import emit_dynamic
from capsedge.graph.fusion.emit_em import EMEdit, em_sources, emit_em
from capsedge.graph.fusion.grids import Children
from capsedge.graph.fusion.join_positions import equal_routing, join
from capsedge.graph.fusion.layouts import Layout
from capsedge.graph.fusion.self_attention import emit_self_attention, fit_self_attention
from capsedge.graph.fusion.self_routing import describe_self_routing as self_routing_sizes
from capsedge.graph.fusion.self_routing import emit_self_routing, fit_logits, fit_sum
from capsedge.graph.fusion.squash import emit_squash, match_squashes
from capsedge.graph.fusion.standard import NO_FASTER, emit_standard
from capsedge.graph.fusion.values import Values
from capsedge.graph.fusion.votes import VoteSource, dynamic_vote_source, linear_vote_source
from capsedge.graph.ir import Graph
from capsedge.spec.operators import EM_EPSILONS

STANDARD = "standard operators"  # reported if no operator fits
_NONE = "no operator"
Replacement = tuple[Edit, FusedOperator]


def find_replacements(model: onnx.ModelProto) -> tuple[list[Replacement], list[NotFused]]:
    """The candidates that can be replaced, each with its edit, and the others with their reasons.

    Args:
        model: simplified, without functions or loops with a fixed number of passes.
    """
    try:
        graph = Values(model)
    except NoMatch as error:
        return [], [NotFused("the graph", str(error))]
    made: list[Replacement] = []
    not_fused: list[NotFused] = []
    for candidate in find_candidates(graph):
        _replace_candidate(graph, candidate, made, not_fused)
    if any(match.operator == "AttentionRouting" for _, match in made):
        made += list(_uniform(graph, len(made)))
    done = {name for edit, _ in made for name in edit.results}
    for each in match_squashes(graph):
        if each.result in done:
            continue
        try:
            edit = emit_squash(graph, each, f"squash_{len(made)}")
        except NoMatch:
            continue
        parameters = {"axis": str(each.axis), "epsilon": f"{each.epsilon:.3g}"}
        made.append((edit, FusedOperator("Squash", each.result, parameters)))
    made = [(edit, _with_note_of_integers(graph, edit, match)) for edit, match in made]
    return _with_positions_joined(graph, made), not_fused


def _with_note_of_integers(graph: Values, edit: Edit, match: FusedOperator) -> FusedOperator:
    """Add a note if a weight was stored as integers: the operator has the same values in FP32."""
    reads = [name for name in edit.reads if name in graph.sources]
    if any(graph.is_quantized(c) for c in graph.between(reads, edit.results)[1]):
        note = f"{match.operator}: the weight was stored in integers and is in FP32 now, with the same values"
        return replace(match, notes=(*match.notes, note))
    return match


def apply_replacements(
    model: onnx.ModelProto, made: Iterable[Replacement]
) -> tuple[onnx.ModelProto, list[FusedOperator]]:
    """The model with edits applied, and those edits; if an edit's tensors are gone, those in reserve are."""
    kept = []
    inputs = {i.name for i in model.graph.input}
    waiting = list(made)[::-1]
    while waiting:
        edit, match = waiting.pop()
        present = Graph.of(model.graph).produced | inputs
        try:
            if not {*edit.results, *edit.reads} <= present:
                raise NoMatch("its tensors are gone")
            model = splice(model, [edit])
        except NoMatch:  # or it would read values computed from its own results
            waiting += edit.instead[::-1]
            continue
        kept.append(match)
    return model, kept


def fusion_report(
    model: onnx.ModelProto, match: Iterable[FusedOperator], not_fused: Iterable[NotFused]
) -> FusionReport:
    """The report; unmatched candidates are included only if they are still in the model."""
    alive = Graph.of(model.graph).produced
    return FusionReport(tuple(match), tuple(e for e in not_fused if e.tensor in alive))


def _replace_candidate(
    graph: Values, candidate: Candidate, made: list[Replacement], not_fused: list[NotFused]
) -> None:
    """Try every operator that may match a group of softmaxes; report the reason if none fits."""
    if not candidate.votes:
        for softmax in candidate.softmaxes:
            why = ["a softmax that weighs no votes (attention, or scores)"]
            _otherwise(graph, softmax, made, not_fused, why)
        return
    reasons: list[str] = []
    inside = _quantized_inside(graph, candidate)
    if inside is not None:
        reason = f"its own values are quantized inside ('{inside}'): no operator supports this"
        not_fused += [NotFused(a.name, reason) for a in candidate.softmaxes]
        return
    fitted: list[DynamicMatch] = []
    for votes in candidate.votes:
        for attempt in (_dynamic, _em):
            try:
                made.append(attempt(graph, votes, candidate.softmaxes, len(made), fitted))
                return
            except NoMatch as error:
                reasons.append(str(error))
    for write, match in itertools.product((_emit_over_votes, _emit_standard), fitted):
        try:
            made.append(write(graph, match, len(made), reasons))
            return
        except NoMatch as error:
            reasons.append(str(error))
    for softmax in candidate.softmaxes:
        why = list(reasons)
        for votes, single in itertools.product(candidate.votes, (_self_attention, _attention)):
            try:
                made.append(single(graph, votes, softmax, len(made)))
                break
            except NoMatch as error:
                why.append(str(error))
        else:
            _otherwise(graph, softmax, made, not_fused, why)


def _otherwise(
    graph: Values,
    softmax: Softmax,
    made: list[Replacement],
    not_fused: list[NotFused],
    why: list[str],
) -> None:
    """Routing without an operator: self-routing in a faster form, or the reason why the nodes are kept.

    Args:
        why: the reason found so far; if it names a property no operator supports, it is not self-routing.
    """
    try:
        if _named(why) is not None:
            raise NoMatch(_telling(why))
        made.append(_self_routing(graph, softmax, len(made)))
    except NoMatch as error:
        if str(error) == NO_FASTER:
            why = [f"self-routing: no operator has it; {NO_FASTER}"]
        elif is_divided_again(graph, softmax):
            why = [*why, f"couplings that are divided by their sum again: {_NONE} supports this"]
        not_fused.append(NotFused(softmax.name, _telling(why)))


def _self_routing(graph: Values, softmax: Softmax, number: int) -> Replacement:
    """Write self-routing, whose couplings are computed from the children alone."""
    logits = fit_logits(graph, softmax)
    try:
        weighted = fit_sum(graph, softmax, logits)
    except NoMatch:
        weighted = None  # there are only activations, as in a last layer
    edit, gain = emit_self_routing(graph, logits, weighted, f"routing_{number}")
    form = f"standard operators in another form, {gain:.1f} times faster by estimate"
    note = f"self-routing: no operator has it; written with {form}"
    return edit, FusedOperator(
        STANDARD, edit.results[-1], self_routing_sizes(logits, weighted), (note,)
    )


def _quantized_inside(graph: Values, candidate: Candidate) -> str | None:
    """The first node between votes and softmax that quantizes them."""
    ahead = graph.distances(candidate.softmaxes[-1].name)
    behind = set(candidate.votes).union(*(graph.after(v) for v in candidate.votes[:1]))
    for node in graph.nodes:
        if node.op_type == "QuantizeLinear" and node.input[0] in behind and node.output[0] in ahead:
            return str(node.name or node.output[0])
    return None


def _emit_over_votes(graph: Values, match: DynamicMatch, number: int, _: list[str]) -> Replacement:
    """Routing over votes whose capsules were not found."""
    return _emit_dynamic(graph, match, None, number)


def _emit_standard(
    graph: Values, match: DynamicMatch, number: int, reasons: list[str]
) -> Replacement:
    """Write routing that no operator computes, in a faster form."""
    edit, gain = emit_standard(graph, match, f"routing_{number}")
    kind = match.kind
    _, j, i, p = match.roles.sizes
    groups = match.roles.part(1)
    parameters = {
        "children": str(i),
        "parents": f"{groups[0]} of {j // groups[0]}" if p == 1 else f"{j} of {p}",
        "iterations": str(kind.iterations),
    }
    form = f"standard operators in another form, {gain:.1f} times faster by estimate"
    note = f"{_telling(reasons)}; written with {form}"
    return edit, FusedOperator(STANDARD, match.result, parameters, (note,))


def _telling(reasons: list[str]) -> str:
    """The most informative reason: one that names a property no operator supports, else the first."""
    reason = _named(reasons) or reasons[0]
    return f"{reason}; {NO_FASTER}" if NO_FASTER in reasons and reason != NO_FASTER else reason


def _named(reasons: list[str]) -> str | None:
    """The reason that names a property no operator supports."""
    return next((r for r in reasons if _NONE in r or "averaged" in r or "EM" in r), None)


def _em(
    graph: Values, votes: str, softmaxes: list[Softmax], number: int, _: list[DynamicMatch]
) -> Replacement:
    match = fit_em(graph, votes, softmaxes)
    routing = em_sources(graph, match)
    try:
        edit = emit_em(graph, routing, f"routing_{number}")
    except NoMatch as error:
        try:
            edit = join(graph, [routing], f"routing_{number}")
        except NoMatch:
            raise error from None
    return edit, FusedOperator("EMRouting", match.pose, _em_parameters(edit))


def _em_parameters(edit: EMEdit) -> dict[str, str]:
    kind = edit.routing.match.kind
    parameters = _grid(edit.children, edit.routing.match.roles.sizes) | {
        "iterations": str(len(kind.temperatures)),
        "inverse temperatures": ", ".join(f"{t:.4g}" for t in kind.temperatures),
        "epsilon": f"{kind.epsilon:.3g}",
    }
    own = {name: getattr(kind, name) for name in EM_EPSILONS}
    parameters |= {name.replace("_", " "): f"{e:.3g}" for name, e in own.items() if e}
    if kind.normalized:
        parameters["activations"] = "a/(a + epsilon)"
    if kind.ones_first:
        parameters["first responsibilities"] = "1"
    if edit.coordinates is not None:
        parameters["coordinates"] = "of the file"
    return parameters


def _with_positions_joined(graph: Values, made: list[Replacement]) -> list[Replacement]:
    """Routing of single positions with equal weights becomes one operator, which keeps theirs in reserve."""
    places = {id(edit): k for k, (edit, _) in enumerate(made)}
    changed: dict[int, list[Replacement]] = {}
    for pieces in equal_routing(graph, [e for e, _ in made if isinstance(e, EMEdit)]):
        former = [made[places[id(piece)]] for piece in pieces]
        try:
            edit = join(graph, [piece.routing for piece in pieces], f"{pieces[0].tag}_joined")
        except NoMatch as error:
            note = f"EMRouting: {len(pieces)} operators with equal weights are not one: {error}"
            first = former[0][1]
            noted = replace(first, notes=(*first.notes, note))
            changed[places[id(pieces[0])]] = [(former[0][0], noted)]
            continue
        edit.instead = former
        note = f"EMRouting: one operator for {len(pieces)} parts of the file with equal weights"
        notes = tuple(dict.fromkeys(n for _, match in former for n in match.notes))
        match = FusedOperator("EMRouting", edit.results[0], _em_parameters(edit), (*notes, note))
        changed |= {places[id(piece)]: [] for piece in pieces}
        changed[places[id(pieces[0])]] = [(edit, match)]
    return [each for k, one in enumerate(made) for each in changed.get(k, [one])]


def _self_attention(graph: Values, votes: str, softmax: Softmax, number: int) -> Replacement:
    match = fit_self_attention(graph, votes, softmax)
    vote_source = linear_vote_source(graph, votes, match.roles)
    edit, notes = emit_self_attention(graph, match, vote_source, f"routing_{number}")
    _, j, i, p = match.roles.sizes
    parameters = {
        "children": f"{i} of {vote_source.depth}",
        "parents": f"{j} of {p}",
        "epsilon": f"{match.kind.epsilon:.3g}",
    }
    if match.kind.bias.any():
        parameters["bias"] = "of the file"
    return edit, FusedOperator("SelfAttentionRouting", match.result, parameters, notes)


def _attention(graph: Values, votes: str, softmax: Softmax, number: int) -> Replacement:
    match = fit_attention(graph, votes, softmax)
    edit, children = emit_attention(graph, match, f"routing_{number}")
    parameters = _grid(children, match.roles.sizes) | {
        "agreement scale": f"{match.kind.agreement_scale:.4g}",
        "epsilon": f"{match.kind.epsilon:.3g}",
    }
    return edit, FusedOperator("AttentionRouting", match.result, parameters)


def _uniform(graph: Values, number: int) -> Iterator[Replacement]:
    """First attention passes: layer normalizations of an unweighted sum of votes."""
    for node in graph.nodes:
        three = node.op_type == "LayerNormalization" and len(node.input) == 3
        if not three or node.output[0] in graph.constant or not graph.constant >= {*node.input[1:]}:
            continue
        for match in fit_uniform(graph, node.output[0]):
            try:
                edit, children = emit_attention(graph, match, f"routing_{number}")
            except NoMatch:
                continue
            number += 1
            sizes = match.roles.sizes
            parameters = _grid(children, sizes) | {"epsilon": f"{match.kind.epsilon:.3g}"}
            yield edit, FusedOperator("UniformRouting", match.result, parameters)
            break


def _grid(children: Children, sizes: tuple[int, ...]) -> dict[str, str]:
    rows, columns, types = children.grid
    return {
        "children": f"{rows}x{columns}x{types} of {children.vote_source.depth}",
        "kernel": "x".join(map(str, children.windows.kernel)),
        "strides": "x".join(map(str, children.windows.strides)),
        "parents": f"{sizes[1]} of {sizes[3]}",
    }


def _dynamic(
    graph: Values, votes: str, softmaxes: list[Softmax], number: int, fitted: list[DynamicMatch]
) -> Replacement:
    """Dynamic routing over votes of capsules; matches are first appended to ``fitted``."""
    match = fit_dynamic(graph, votes, softmaxes)
    fitted.append(match)
    # The file already has one product for votes that it does not repeat for every parent.
    shared = match.roles.parents > 0
    vote_source = None if shared else dynamic_vote_source(graph, votes, match.roles)
    return _emit_dynamic(graph, match, vote_source, number)


def _emit_dynamic(
    graph: Values, match: DynamicMatch, vote_source: VoteSource | None, number: int
) -> Replacement:
    written = emit_dynamic(graph, match, vote_source, f"routing_{number}")
    kind = match.kind
    _, j, _, p = match.roles.sizes
    parameters = {
        "children": _children(match.roles, vote_source),
        "parents": f"{j} of {p}",
        "iterations": str(kind.iterations),
        "epsilon": f"{kind.epsilon:.3g}",
    }
    values = {
        "softmax": "over the children" if kind.over == "i" else "",
        "logits": "replaced" if kind.replace else "",
        "agreements": "with normalized sums" if kind.normalize else "",
        "agreement scale": f"{kind.scale:.4g}" if kind.scale != 1 else "",
        "squash": _squash(kind.form, kind.axis),
        "leaky": "yes" if kind.leaky else "",
        "prior": "of the file" if kind.prior.any() else "",
        "bias": "of the file" if kind.bias.any() else "",
        "couplings": " and ".join(map(str, match.per_image)),
    }
    if vote_source is not None:
        shared = (
            len(vote_source.weight[0]) > 1
            and (vote_source.weight == vote_source.weight[:, :1]).all()
        )
        values["weight"] = "shared by the children" if shared else ""
        values["vote bias"] = "of the file" if vote_source.constant is not None else ""
    parameters |= {name: text for name, text in values.items() if text}
    return written.edit, FusedOperator(written.operator, match.result, parameters, written.notes)


def _children(roles: Layout, vote_source: VoteSource | None) -> str:
    if vote_source is not None:
        return f"{roles.sizes[2]} of {vote_source.depth}"
    return f"{roles.sizes[2]}, votes {'of all parents' if roles.parents else 'given'}"


def _squash(form: str, axis: str) -> str:
    if axis == "element":
        return "of each element"
    return "s·n/(½ + n²)" if form == "H" else ""
