"""Find tensors beside the votes that change the couplings of single images: masks, priors, given logits.

Routing over a history has a mask, and the code of recommenders applies it in three ways, which are different
functions: after a softmax over the children (what is left does not sum to one), before it (logits that are
out become -2³¹), and after a softmax over the parents. Some also start from logits that come in. The graph
suggests which tensors these are and what makes them neutral; whether one is a factor of the couplings or is
added to the logits is found by numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.equivalence import excess_of
from capsedge.graph.fusion.formulas import LOWEST, Dynamic
from capsedge.graph.fusion.layouts import Layout, layouts
from capsedge.graph.fusion.values import Array, Function, Values

MORE = "its logits depend on more than the votes"
LOW = -1e4  # a logit of what is out
_STEPS = 8  # nodes between the last softmax and its weighted sum at most
_MOST = 2  # tensors beside the votes
# What only moves elements, or asks whether they are zero.
_VIEWS = {
    "Cast", "Concat", "Equal", "Expand", "Identity", "Not", "Reshape", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
}  # fmt: skip


# --- Which tensors: before it is known what they do ---


@dataclass(frozen=True)
class OtherInput:
    """A tensor beside the votes.

    Attributes:
        name: of the graph.
        neutral: a value of all its elements with which the routing is as without it.
    """

    name: str
    neutral: float


def find_other_inputs(graph: Values, votes: str, last: str) -> tuple[OtherInput, ...]:
    """What routing depends on beside its votes; empty for nothing.

    Args:
        last: the last softmax.

    Raises:
        NoMatch: it is nothing that an operator takes.
    """
    wanted = _other_reads(graph, votes, last)
    chains = {name: _chain(graph, name) for name in wanted}
    groups: list[
        tuple[set[str], list[str]]
    ] = []  # tensors that all of a group are made of, and the group
    for name, chain in chains.items():
        for k, (common, members) in enumerate(groups):
            if common & set(chain):
                groups[k] = (common & set(chain), [*members, name])
                break
        else:
            groups.append((set(chain), [name]))
    if len(groups) > _MOST:
        raise NoMatch(MORE)
    return tuple(
        _smallest(graph, common, {m: wanted[m] for m in members}) for common, members in groups
    )


def _other_reads(graph: Values, votes: str, last: str) -> dict[str, float]:
    """What the nodes from the votes to the weighted sum read beside them, and the neutral value of each."""
    known = set(graph.with_twins([votes]))
    down = known.union(*(graph.after(v) for v in known))
    inside = {name for name in graph.distances(last) if name in down} - known
    end = last
    for _ in range(_STEPS):  # what changes the couplings after the last softmax
        users = graph.users.get(end, [])
        if len(users) != 1 or users[0].op_type in ("MatMul", "Einsum", "ReduceSum"):
            break
        if any(i in known for i in users[0].input):
            break
        end = users[0].output[0]
        inside.add(end)
    found: dict[str, float] = {}

    def note(read: str, neutral: float) -> None:
        if found.setdefault(read, neutral) != neutral:
            raise NoMatch(MORE)

    def look(node: onnx.NodeProto, within: set[str]) -> None:
        """Note what a node reads beside the tensors within, and the neutral value of it."""
        for k, read in enumerate(node.input):
            if read in within or read in graph.constant or not read:
                continue
            neutral = _neutral(node, k, within)
            if neutral is not None:
                note(read, neutral)
            elif not first(read):
                raise NoMatch(MORE)

    def first(name: str) -> bool:
        """Note what the first couplings are made of, which do not depend on the votes."""
        node = graph.maker.get(name)
        if node is None or node.op_type not in (*_VIEWS, "Softmax", "Where", "Mul"):
            return False
        if node.op_type == "Softmax":
            logits(node.input[0])
            return True
        behind = {i for i in node.input if i in graph.sources and first(i)}
        if not behind:  # equal couplings are a constant
            behind = {i for i in node.input if i in graph.constant and np.any(graph.value[i])}
        if not behind or (node.op_type in _VIEWS and not behind & set(graph.sources)):
            return False
        look(node, behind)
        return True

    def logits(name: str) -> None:
        """Note what start logits are made of."""
        node = graph.maker.get(name)
        live = [i for i in node.input if i in graph.sources] if node is not None else []
        if node is None or node.op_type not in ("Where", "Add") or not live:
            return note(name, 0.0)
        if node.op_type == "Where" and node.input[0] in graph.sources:
            out = [np.all(graph.value.get(i, 0.0) <= LOW) for i in node.input[1:]]
            if out[0] == out[1]:
                return note(name, 0.0)
            note(node.input[0], float(out[1]))
            live.remove(node.input[0])
        for each in live:
            logits(each)
        return None

    for name in sorted(inside, key=lambda n: graph.order[n]):
        look(graph.maker[name], down)
    return found


def _neutral(node: onnx.NodeProto, place: int, within: set[str]) -> float | None:
    """With what value of an input a node hands on what else it reads; None where that is unknown."""
    if node.op_type == "Where" and place == 0:
        return float(node.input[1] in within)
    return {"Add": 0.0, "Sub": 0.0, "Mul": 1.0, "Div": 1.0}.get(node.op_type)


def _chain(graph: Values, name: str) -> list[str]:
    """A tensor, and what it is a view of, the nearest first."""
    found = [name]
    while True:
        node = graph.maker.get(found[-1])
        sources = graph.sources.get(found[-1], [])
        if node is None or node.op_type not in _VIEWS or len(sources) != 1:
            return found
        found.append(sources[0])


def _smallest(graph: Values, common: set[str], wanted: dict[str, float]) -> OtherInput:
    """The smallest tensor that all are views of, the nearest of several, with its neutral value."""
    name = min(common, key=lambda n: (graph.sizes[n], -graph.order[n]))
    if list(wanted) == [name]:
        return OtherInput(name, wanted[name])
    ends = [w for w in wanted if w != name]
    function = graph.function([name], ends)
    for value in (1.0, 0.0):
        given = function(np.full(graph.shapes[name], value))
        own = wanted.get(name, value) == value
        if own and all((g == wanted[w]).all() for w, g in zip(ends, given, strict=True)):
            return OtherInput(name, value)
    raise NoMatch(MORE)


class Region:
    """The nodes of the graph that the votes determine, with what stands beside them held neutral."""

    def __init__(self, graph: Values, votes: str, others: Sequence[OtherInput]) -> None:
        self.graph = graph
        self.others = tuple(others)
        self.cut = [votes, *(s.name for s in others)]

    def determined(self) -> list[str]:
        """The tensors of it."""
        return self.graph.determined(*self.cut)

    def numbers(self, ends: Sequence[str]) -> dict[str, Array]:
        """``Values.numbers`` of it."""
        return self.graph.numbers(self.cut, ends)

    def function(self, ends: Sequence[str]) -> Function:
        """The ends as a function of the votes alone."""
        whole = self.graph.function(self.cut, ends)
        neutral = [np.full(self.graph.shapes[s.name], s.neutral) for s in self.others]
        return lambda x: whole(x, *neutral)


# --- What they do ---


@dataclass(frozen=True)
class PerImage:
    """What a tensor beside the votes does.

    Attributes:
        name: of the graph.
        layout: ``[n, i]``, or of priors also ``[n, i, j]``.
        prior: whether it is added to the logits, and not a factor of the couplings.
        form: ``value`` as it is; else what is in, ``nonzero`` or ``zero``. What is out has the factor 0, or
            the prior `formulas.LOWEST`.
    """

    name: str
    layout: Layout
    prior: bool
    form: str

    def couplings(self, x: Array) -> Array:
        """Priors or factors ``[n, j or 1, i]`` from a value of the tensor."""
        values = self.layout.read(np.asarray(x, np.float64))
        if self.form != "value":
            inside = (values != 0) == (self.form == "nonzero")
            values = np.where(inside, 0.0, LOWEST) if self.prior else inside.astype(float)
        return values.swapaxes(1, 2) if values.ndim == 3 else values[:, None]

    def __str__(self) -> str:
        if self.form == "value":
            return "priors of each image" if self.prior else "factors of each image"
        return "a mask before the softmax" if self.prior else "a mask after the softmax"


def fit_per_image(
    region: Region, end: str, layout: Layout, roles: Layout, kind: Dynamic, rtol: float
) -> tuple[PerImage, ...]:
    """What each tensor beside the votes does.

    Args:
        end: the result, whose layout is ``[n, j, p]``.
        roles: of the votes.
        kind: of the routing where all of them are neutral.
        rtol: of the comparison.

    Raises:
        NoMatch: nothing fits.
    """
    graph = region.graph
    if not region.others:
        return ()
    if roles.sizes[0] != graph.batch or kind.over not in ("i", "j") or kind.group > 1:
        raise NoMatch(MORE)
    function = graph.function(region.cut, [end])
    hypotheses = [list(_hypotheses(graph, s.name, roles)) for s in region.others]
    for chosen in itertools.product(*hypotheses):
        if _agrees(graph, function, chosen, layout, roles, kind, rtol):
            return chosen
    raise NoMatch(MORE)


def _hypotheses(graph: Values, name: str, roles: Layout) -> Iterator[PerImage]:
    kind, shape = graph.kind(name), graph.shapes[name]
    batch, parents, children = roles.part(0), roles.part(1), roles.part(2)
    first = None if roles.batch is None else 0
    forms = ["nonzero", "zero"] if kind == np.bool_ else ["value", "nonzero", "zero"]
    for prior, form in itertools.product((False, True), forms):
        if prior and form == "value" and not np.issubdtype(kind, np.floating):
            continue
        for layout in layouts(shape, [batch, children], first):
            yield PerImage(name, layout, prior, form)
        if prior and form == "value":
            for layout in layouts(shape, [batch, children, parents], first):
                yield PerImage(name, layout, prior, form)


def _agrees(
    graph: Values,
    function: Function,
    chosen: Sequence[PerImage],
    layout: Layout,
    roles: Layout,
    kind: Dynamic,
    rtol: float,
) -> bool:
    rng = np.random.default_rng(17)
    for size in (0.3, 2.0, 1e-2, 20.0):
        votes = size * rng.standard_normal(roles.shape)
        values = [_drawn(graph, b, rng) for b in chosen]
        prior = sum(
            (b.couplings(x) for b, x in zip(chosen, values, strict=True) if b.prior), np.zeros(())
        )
        mask = np.ones(())
        for b, x in zip(chosen, values, strict=True):
            mask = mask if b.prior else mask * b.couplings(x)
        wanted = layout.read(function(votes, *values)[0])
        found = kind(roles.read(votes), prior, mask)
        if not excess_of(found, wanted, rtol, 1e-9) <= 1:
            return False
    return True


def _drawn(graph: Values, term: PerImage, rng: np.random.Generator) -> Array:
    """Values of a tensor: where it is a mask, of one image all in and of another none."""
    shape, kind = graph.shapes[term.name], graph.kind(term.name)
    if term.prior and term.form == "value":
        return rng.standard_normal(shape)
    if term.form == "value" and np.issubdtype(kind, np.floating):
        return 2 * rng.random(shape)
    most = 3 if np.issubdtype(kind, np.integer) else 2
    x = term.layout.read(rng.integers(most, size=shape)).copy()
    x[0], x[-1] = 1, 0
    return term.layout.write(x)
