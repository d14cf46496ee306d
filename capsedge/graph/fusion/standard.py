"""Write dynamic routing that no operator covers as standard operators, if that is faster.

The nodes are structured like the portable bodies: no agreement is computed after the last sum, and nothing is
approximated. Logits come from the running sum of the parents: ``b_t = b_0 + votes · (v_1 + ... + v_t)``.

The speedup is estimated from what the nodes read and write and from the extra cost of their kernels. Unlike a
timing, the estimate is the same in every run, so the output is reproducible.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import onnx

from capsedge.graph.functions import attach_functions
from capsedge.graph.fusion import NoMatch
from capsedge.graph.fusion.dynamic import DynamicMatch
from capsedge.graph.fusion.edit import Edit, splice
from capsedge.graph.fusion.emit_dynamic import (
    Expressed,
    check_expressed,
    epsilon_under_root,
    read_children,
)
from capsedge.graph.fusion.formulas import Dynamic
from capsedge.graph.fusion.layouts import Layout
from capsedge.graph.fusion.values import Array, Values
from capsedge.graph.fusion.votes import VoteSource, dynamic_vote_source, order_of

# --- Writing: a matrix product, or elementwise products, for each weighted sum ---


def emit_standard_routing(
    edit: Edit, votes: str, roles: Layout, kind: Dynamic, vote_source: VoteSource | None = None
) -> str:
    """The parents ``[n, j, p]``, in any shape, of votes given as a tensor of the graph.

    Args:
        vote_source: the source of the votes, to compute them in another order; None to read them.
    """
    form: _Form = (_Elements if roles.sizes[3] == 1 else _Products)(edit, roles.sizes, kind)
    made = None if vote_source is None else _product_of_children(edit, roles, kind, vote_source)
    v = form.route(made or edit.read(votes, roles, form.votes_shape))
    return form.viewed.get(v, v)


def _product_of_children(
    edit: Edit, roles: Layout, kind: Dynamic, vote_source: VoteSource
) -> str | None:
    """Votes ``[n, j, i]`` as one matrix product of all images for each child, whose votes end up last.

    None where that is no better, as with one weight for all children, or where children would change places.
    """
    n, j, i, p = roles.sizes
    weight = vote_source.weight[:, :, 0]
    if p > 1 or n != edit.graph.batch or vote_source.constant is not None:
        return None
    order = order_of(vote_source.index)
    moved = order is not None and (order != np.arange(i)).any()
    if (weight == weight[:, :1]).all() or (moved and kind.prior.any()):
        return None
    u, at = read_children(edit, vote_source, (n, i))
    weight = weight if at is None else weight[:, at]
    stored = edit.constant(weight.transpose(1, 2, 0), "weight")
    votes = edit.op("MatMul", [edit.transpose(u, (1, 0, 2)), stored])
    return edit.describe(edit.transpose(votes, (1, 2, 0)), (n, j, i))


class _Form(ABC):
    def __init__(self, edit: Edit, sizes: Sequence[int], kind: Dynamic) -> None:
        self.edit, self.kind = edit, kind
        self.n, self.j, self.i, self.p = sizes
        self.viewed: dict[str, str] = {}  # what a view shows

    @property
    @abstractmethod
    def votes_shape(self) -> tuple[int, ...]:
        """The form in which the votes are read."""

    @abstractmethod
    def first(self, votes: str) -> str:
        """The sums ``[n, j, p]``, weighted by the couplings of the start logits."""

    @abstractmethod
    def later(self, votes: str, agreed: str) -> str:
        """The sums weighted by the couplings from the votes' agreements with ``[n, j, p]``."""

    def route(self, votes: str) -> str:
        """The parents ``[n, j, p]``."""
        op, kind = self.edit.op, self.kind
        agreed = ""  # sum of the parents so far, or the last one
        for t in range(kind.iterations):
            s = self.later(votes, self.scaled(agreed)) if t else self.first(votes)
            s = self.view(s, (self.n, self.j, self.p))
            if kind.bias.any():
                bias = np.broadcast_to(kind.bias, (self.j, self.p))
                s = op("Add", [s, self.edit.constant(bias, "bias")])
            v = self.squash(s)
            if t + 1 < kind.iterations:
                agreed = v if not agreed or kind.replace else op("Add", [agreed, v])
        return v

    def start(self) -> Array:
        """The couplings of the start logits ``[1, j, i]``."""
        prior = np.broadcast_to(self.kind.prior, (self.j, self.i)).astype(np.float64)
        return self.kind.couplings(prior[None])

    def with_prior(self, b: str, shape: tuple[int, ...]) -> str:
        """Logits plus the start logits, which have the shape ``[j, i]`` with ones."""
        if self.kind.replace or not self.kind.prior.any():
            return b
        prior = np.broadcast_to(self.kind.prior, (self.j, self.i)).reshape(shape)
        return self.edit.op("Add", [b, self.edit.constant(prior, "prior")])

    def scaled(self, agreed: str) -> str:
        if self.kind.scale == 1:
            return agreed
        return self.edit.op(
            "Mul", [agreed, self.edit.constant(np.float32(self.kind.scale), "scale")]
        )

    def squash(self, s: str) -> str:
        """The squash of ``[n, j, p]``, as in ``formulas.squash``."""
        op, kind = self.edit.op, self.kind
        shape = (self.n, self.j, self.p)
        if kind.axis == "group":
            shape = (self.n, self.j // kind.group, kind.group * self.p)
            s = self.view(s, shape)
        if _has_operator(kind):
            self.edit.describe(s, shape)
            name = f"{self.edit.tag}_squash_{len(self.edit.nodes)}"
            self.edit.capsule("Squash", [s], [name], axis=-1, epsilon=float(kind.epsilon))
            self.edit.nodes[-1].name = name  # of several in one edit
            return self.view(name, (self.n, self.j, self.p)) if kind.axis == "group" else name
        square = op("Mul", [s, s])
        if kind.axis != "element":
            square = self.total(square, -2 if kind.axis == "j" else -1)
        v = op("Mul", [s, self.factor(square)])
        return self.view(v, (self.n, self.j, self.p)) if kind.axis == "group" else v

    def factor(self, square: str) -> str:
        """The factor by which the squash multiplies a vector, from its squared norm."""
        op, kind = self.edit.op, self.kind
        one = self.edit.constant(np.float32(1), "one")
        epsilon = self.edit.constant(np.float32(kind.epsilon), "epsilon")
        if kind.form == "D":
            return op("Div", [op("Sqrt", [square]), op("Add", [square, one])])
        inside = op("Add", [square, epsilon]) if kind.form == "B" and kind.epsilon else square
        n = op("Sqrt", [inside])
        if kind.form == "G":
            return op("Div", [one, op("Add", [n, one])])
        if kind.form == "E":
            length = op("Sub", [one, op("Exp", [op("Neg", [n])])])
        else:
            length = op("Div", [square, op("Add", [square, one])])
        below = op("Add", [n, epsilon]) if kind.form in "AE" and kind.epsilon else n
        return op("Div", [length, below])

    def total(self, x: str, axis: int, op_type: str = "ReduceSum") -> str:
        axes = self.edit.constant(np.array([axis]), f"axis_{axis}".replace("-", "last_"))
        return self.edit.op(op_type, [x, axes], keepdims=1)

    def view(self, x: str, shape: tuple[int, ...]) -> str:
        """The tensor in a shape, directly if it is a view itself."""
        origin = self.viewed.get(x, x)
        made = self.edit.reshape(origin, shape, 0)
        self.viewed[made] = origin
        return made


def _has_operator(kind: Dynamic) -> bool:
    """Whether ``Squash`` computes the squash."""
    return kind.form == "B" and kind.epsilon > 0 and kind.axis in ("p", "group")


class _Products(_Form):
    """Poses with several elements: a matrix product per weighted sum, and one for the agreements."""

    @property
    def votes_shape(self) -> tuple[int, ...]:
        return (self.n, self.j, self.i, self.p)

    def first(self, votes: str) -> str:
        couplings = self.edit.constant(self.start()[:, :, None], "couplings")
        return self.edit.op("MatMul", [couplings, votes])

    def later(self, votes: str, agreed: str) -> str:
        b = self.edit.op("MatMul", [votes, self.view(agreed, (self.n, self.j, self.p, 1))])
        return self.edit.op(
            "MatMul", [self.couplings(self.with_prior(b, (self.j, self.i, 1))), votes]
        )

    def couplings(self, b: str) -> str:
        """The couplings ``[n, j, 1, i]``."""
        op, kind = self.edit.op, self.kind
        shape = (self.n, self.j, 1, self.i)
        if kind.over == "ji":
            both = op("Softmax", [self.view(b, (self.n, self.j * self.i))], axis=-1)
            return self.view(both, shape)
        if kind.over == "groups":
            groups = self.view(b, (self.n, self.j // kind.group, kind.group, self.i))
            return self.view(op("Softmax", [groups], axis=1), shape)
        return op("Softmax", [self.view(b, shape)], axis=1 if kind.over == "j" else 3)


class _Elements(_Form):
    """Elements with their own logits: children last, elementwise products.

    ONNX Runtime is slow at multiplying a row by a column, and transposes around a softmax over any axis but
    the last, so such a softmax is decomposed.
    """

    @property
    def votes_shape(self) -> tuple[int, ...]:
        return (self.n, self.j, self.i)

    def first(self, votes: str) -> str:
        couplings = self.start()
        if self.kind.over == "i" and np.ptp(couplings) == 0:
            return self.total(votes, -1, "ReduceMean")
        if np.ptp(couplings) == 0:
            share = self.edit.constant(np.float32(couplings.flat[0]), "share")
            return self.edit.op("Mul", [self.total(votes, -1), share])
        stored = self.edit.constant(couplings, "couplings")
        return self.total(self.edit.op("Mul", [votes, stored]), -1)

    def later(self, votes: str, agreed: str) -> str:
        b = self.edit.op("Mul", [votes, self.view(agreed, (self.n, self.j, 1))])
        c = self.couplings(self.with_prior(b, (self.j, self.i)))
        return self.total(self.edit.op("Mul", [c, votes]), -1)

    def couplings(self, b: str) -> str:
        """The couplings ``[n, j, i]``."""
        if self.kind.over == "i":
            return self.edit.op("Softmax", [b], axis=-1)
        shape = (self.n, self.j, self.i)
        if self.kind.over == "ji":
            both = self.view(b, (self.n, self.j * self.i))
            return self.view(self.edit.op("Softmax", [both], axis=-1), shape)
        if self.kind.over == "groups":
            groups = (self.n, self.j // self.kind.group, self.kind.group * self.i)
            return self.view(self.over_parents(self.view(b, groups)), shape)
        return self.over_parents(b)

    def over_parents(self, b: str) -> str:
        """The softmax over the second axis."""
        op = self.edit.op
        e = op("Exp", [op("Sub", [b, self.total(b, 1, "ReduceMax")])])
        return op("Div", [e, self.total(e, 1)])


# --- Choosing, by the estimate ---

_FORMS = "ABDEG"  # forms of the squash in ``formulas`` that are supported here
NO_FASTER = "standard operators in another form would not be clearly faster"
LEAST_GAIN = 1.5  # with a smaller speedup, the nodes stay unchanged
# Measured with ONNX Runtime 1.31 on one core, as the number of bytes that can be copied in the same time.
_A_NODE, _A_PRODUCT = 128 << 10, 4 << 10  # overhead of a node, of one matrix product in a batch
_SOFTMAX, _REDUCTION = {True: 2, False: 8}, {True: 2, False: 6}  # whether along the last axis
_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}


def emit_standard(graph: Values, match: DynamicMatch, tag: str) -> tuple[Edit, float]:
    """The nodes, and their estimated speedup over the file's nodes.

    Raises:
        NoMatch: they cannot be written, or save too little.
    """
    kind = match.kind
    if (
        match.per_image
        or match.roles.parents
        or kind.leaky
        or kind.batch_mean
        or kind.normalize
        or kind.form not in _FORMS
    ):
        raise NoMatch("it is not rewritten")
    vote_source = None
    with suppress(NoMatch):  # otherwise the squash in standard operators
        kind = _with_operator(graph, match)
    with suppress(NoMatch):  # otherwise the votes as they are
        vote_source = dynamic_vote_source(graph, match.votes, match.roles)
    edit = Edit(graph, tag)
    v = emit_standard_routing(edit, match.votes, match.roles, kind, vote_source)
    edit.write(v, match.layout, match.result)
    gain = estimated_gain(graph, edit)
    if gain < LEAST_GAIN:
        raise NoMatch(NO_FASTER)
    return edit, gain


def _with_operator(graph: Values, match: DynamicMatch) -> Dynamic:
    """The kind with a squash that ``Squash`` computes.

    Raises:
        NoMatch: its results would differ.
    """
    kind = match.kind
    if kind.form not in "AB":
        return kind
    form = Expressed(replace(kind, form="B", epsilon=epsilon_under_root(kind.form, kind.epsilon)))
    check_expressed(graph, match, form)
    return form.kind


def estimated_gain(graph: Values, edit: Edit) -> float:
    """The ratio of the cost per image of the file's nodes to that of the edit's nodes.

    Raises:
        NoMatch: the graph with the edit does not run.
    """
    new_model = splice(graph.model, [edit])
    attach_functions(new_model)
    after = Values(new_model)
    old, new = graph.produced, after.produced
    return _cost(graph, old - new) / _cost(after, new - old)


def _cost(graph: Values, made: set[str]) -> float:
    """The cost for one image, in bytes moved, of the nodes that compute tensors and are not views."""
    costs = [
        _A_NODE + _moved(graph, node) / graph.batch
        for node in graph.nodes
        if node.op_type not in _VIEWS
        and not made.isdisjoint(node.output)
        and node.output[0] not in graph.constant
    ]
    return sum(costs)


def _moved(graph: Values, node: onnx.NodeProto) -> float:
    """Bytes that a node reads and writes, times a factor for its kernel's cost in ONNX Runtime."""
    moved = sum(graph.summaries[name].nbytes for name in (*node.input, *node.output) if name)
    if node.op_type == "MatMul":
        return moved + _A_PRODUCT * math.prod(graph.shapes[node.output[0]][:-2])
    if node.op_type == "Softmax":
        return moved * _SOFTMAX[_over_last(graph, node, [graph.attribute(node, "axis", -1)])]
    if node.op_type.startswith("Reduce"):
        axes = graph.attribute(node, "axes", None)
        if axes is None:
            axes = graph.value[node.input[1]] if len(node.input) > 1 else [-1]
        return moved * _REDUCTION[_over_last(graph, node, axes)]
    return moved


def _over_last(graph: Values, node: onnx.NodeProto, axes: Iterable[int]) -> bool:
    """Whether a node works along the last axis that has several elements; these are contiguous."""
    shape = graph.shapes[node.input[0]]
    sizes = {int(a) % len(shape) for a in axes if shape[int(a)] > 1}
    return not sizes or all(math.prod(shape[a + 1 :]) == 1 or a + 1 in sizes for a in sizes)
