"""Dynamic routing that no operator has, as standard operators in the form of the portable bodies, if faster.

One matrix product a weighted sum, one for the agreements; logits from the running sum of the parents, since
``b_t = b_0 + votes · (v_1 + ... + v_t)``; no agreement after the last sum. Nothing is approximated.

Such nodes take the time that memory takes. So what they read and write decides, which is the same in every
run; a clock would make two files of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from capsedge.graph.recognize.edit import Edit, splice
from capsedge.graph.recognize.fit_dynamic import FoundDynamic
from capsedge.graph.recognize.formulas import Dynamic, softmax
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.values import Values

_FORMS = "ABDE"  # squashes of ``formulas`` that are written here
LEAST_GAIN = 1.5  # below it the nodes stay what they are
_VIEWS = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}


def write_standard(graph: Values, found: FoundDynamic, tag: str) -> tuple[Edit, float]:
    """The nodes, and how many times fewer bytes they read and write than those of the file.

    Raises:
        NotRecognized: they cannot be written, or save too little.
    """
    kind = found.kind
    if kind.leaky or kind.batch_mean or kind.normalize or kind.form not in _FORMS:
        raise NotRecognized("it is not written anew")
    edit = Edit(graph, tag)
    v = _Writer(edit, found.roles.sizes, kind).route(
        edit.read(found.votes, found.roles, found.roles.sizes)
    )
    edit.write(v, found.layout, found.result)
    gain = _gain(graph, edit)
    if gain < LEAST_GAIN:
        raise NotRecognized("standard operators in another form would save too little")
    return edit, gain


class _Writer:
    """Routing of votes ``[n, j, i, p]``."""

    def __init__(self, edit: Edit, sizes: Sequence[int], kind: Dynamic) -> None:
        self.edit, self.kind = edit, kind
        self.n, self.j, self.i, self.p = sizes

    def route(self, votes: str) -> str:
        """The parents ``[n, j, p]``."""
        op, kind = self.edit.op, self.kind
        agreed = ""  # sum of the parents so far, or the last one
        for t in range(kind.iterations):
            if t:
                c = self.couplings(votes, agreed)
                s = op("MatMul", [c, votes])  # [n, j, 1, p]
            else:
                s = op("MatMul", [self.first(), votes])
            s = self.view(s, (self.n, self.j, self.p))
            if kind.bias.any():
                bias = np.broadcast_to(kind.bias, (self.j, self.p))
                s = op("Add", [s, self.edit.constant(bias, "bias")])
            v = self.squash(s)
            if t + 1 < kind.iterations:
                agreed = v if not agreed or kind.replace else op("Add", [agreed, v])
        return v

    def first(self) -> str:
        """The couplings of the start logits ``[1, j, 1, i]``."""
        start = np.broadcast_to(self.kind.prior, (self.j, self.i)).astype(np.float64)[None]
        over = {"j": (1,), "i": (2,), "ji": (1, 2)}[self.kind.over]
        return self.edit.constant(softmax(start, over)[:, :, None], "couplings")

    def couplings(self, votes: str, agreed: str) -> str:
        """``[n, j, 1, i]``, from ``[n, j, p]`` that the votes agree with."""
        op, kind = self.edit.op, self.kind
        if kind.scale != 1:
            agreed = op("Mul", [agreed, self.edit.constant(np.float32(kind.scale), "scale")])
        b = op("MatMul", [votes, self.view(agreed, (self.n, self.j, self.p, 1))])
        shape = (self.n, self.j, 1, self.i)
        if not kind.replace and kind.prior.any():
            prior = np.broadcast_to(kind.prior, (self.j, self.i))[:, :, None]
            b = op("Add", [b, self.edit.constant(prior, "prior")])
        if kind.over == "ji":
            both = op("Softmax", [self.view(b, (self.n, self.j * self.i))], axis=-1)
            return self.view(both, shape)
        return op("Softmax", [self.view(b, shape)], axis=1 if kind.over == "j" else 3)

    def squash(self, s: str) -> str:
        """Of ``[n, j, p]``, as ``formulas.squash``."""
        op, kind = self.edit.op, self.kind
        square = op("Mul", [s, s])
        if kind.axis != "element":
            axis = self.edit.constant(
                np.array([-1 if kind.axis == "p" else -2]), f"axis_{kind.axis}"
            )
            square = op("ReduceSum", [square, axis], keepdims=1)
        one = self.edit.constant(np.float32(1), "one")
        epsilon = self.edit.constant(np.float32(kind.epsilon), "epsilon")
        if kind.form == "D":
            return op("Mul", [s, op("Div", [op("Sqrt", [square]), op("Add", [square, one])])])
        inside = op("Add", [square, epsilon]) if kind.form == "B" and kind.epsilon else square
        n = op("Sqrt", [inside])
        if kind.form == "E":
            length = op("Sub", [one, op("Exp", [op("Neg", [n])])])
        else:
            length = op("Div", [square, op("Add", [square, one])])
        below = op("Add", [n, epsilon]) if kind.form in "AE" and kind.epsilon else n
        return op("Mul", [s, op("Div", [length, below])])

    def view(self, x: str, shape: tuple[int, ...]) -> str:
        return self.edit.reshape(x, shape, 0)


def _gain(graph: Values, edit: Edit) -> float:
    """How many bytes the nodes of the file read and write for each one of the edit.

    Raises:
        NotRecognized: the graph with the edit does not run.
    """
    after = Values(splice(graph.model, [edit]))
    old, new = ({o for n in g.nodes for o in n.output} for g in (graph, after))
    return _traffic(graph, old - new) / graph.batch / (_traffic(after, new - old) / after.batch)


def _traffic(graph: Values, made: set[str]) -> int:
    """Bytes read and written by the nodes that make tensors and are no views."""
    return sum(
        graph.seen[name].nbytes
        for node in graph.nodes
        if node.op_type not in _VIEWS and not made.isdisjoint(node.output)
        for name in (*node.input, *node.output)
        if name and node.output[0] not in graph.constant
    )
