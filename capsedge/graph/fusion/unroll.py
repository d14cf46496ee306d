"""Unroll Loop and Scan nodes with a fixed number of passes so that fusion can look inside.

Names in the body are suffixed with the number of the pass; names from outside are kept. Loops with a computed
condition, or with subgraphs in their body, are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from capsedge.graph.ir import (
    Graph,
    attributes_of,
    constants_of,
    copy_of,
    has_inner_graphs,
    initializer,
    replace_repeated,
    rewire,
    values_of,
)

MOST_PASSES = 32
MOST_NODES = 5_000  # maximum number of nodes in one unrolled loop


def unroll(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """A copy in which loops with a fixed number of passes are unrolled, and how many there were."""
    if not any(n.op_type in ("Loop", "Scan") for n in model.graph.node):
        return model, 0
    copy = copy_of(model)
    constants = {k: onnx.numpy_helper.to_array(t) for k, t in constants_of(copy).items()}
    try:
        known = values_of(copy)
    except onnx.shape_inference.InferenceError:
        known = {}
    nodes: list[onnx.NodeProto] = []
    done = 0
    for node in copy.graph.node:
        written = None
        if node.op_type in ("Loop", "Scan") and not node.domain:
            pass_count = _passes(node, constants, known)
            body = attributes_of(node)["body"]
            if pass_count is not None and _is_plain(body, pass_count):
                written = _Writer(node, body, pass_count)
        if written is None:
            nodes.append(node)
            continue
        done += 1
        nodes += written.nodes
        copy.graph.initializer.extend(written.initializers)
    replace_repeated(copy.graph.node, nodes)
    return copy, done


def _passes(
    node: onnx.NodeProto,
    constants: dict[str, np.ndarray],
    known: dict[str, onnx.ValueInfoProto],
) -> int | None:
    """The number of passes, if it is the same for every input; None if that is not known."""
    attributes = attributes_of(node)
    body = attributes["body"]
    if node.op_type == "Loop":
        start = constants.get(node.input[1]) if node.input[1] else np.array(True)
        count = constants.get(node.input[0])
        fixed = start is not None and bool(start) and _always(body, constants)
        return int(count) if fixed and count is not None else None
    directions = (
        "scan_input_directions",
        "scan_output_directions",
        "scan_input_axes",
        "scan_output_axes",
    )
    if any(any(attributes.get(name, ())) for name in directions):
        return None
    first = node.input[len(node.input) - attributes["num_scan_inputs"]]
    if first in constants:
        return len(constants[first])
    dims = known[first].type.tensor_type.shape.dim if first in known else []
    return dims[0].dim_value or None if dims else None


def _always(body: onnx.GraphProto, constants: dict[str, np.ndarray]) -> bool:
    """Whether a loop's condition is always true."""
    graph = Graph.of(body)
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in body.initializer} | constants
    name = body.output[0].name
    while (node := graph.producer(name)) is not None and node.op_type in ("Identity", "Cast"):
        name = node.input[0]
    if name == body.input[1].name:
        return True
    if node is not None and node.op_type == "Constant" and node.attribute[0].HasField("t"):
        return bool(onnx.numpy_helper.to_array(node.attribute[0].t))
    return name in stored and bool(stored[name])


def _is_plain(body: onnx.GraphProto, count: int) -> bool:
    plain = not any(map(has_inner_graphs, body.node))
    return plain and count <= MOST_PASSES and count * len(body.node) <= MOST_NODES


class _Writer:
    """The nodes of one loop, pass by pass."""

    def __init__(self, node: onnx.NodeProto, body: onnx.GraphProto, count: int) -> None:
        self.tag = f"{node.name or node.output[0]}/pass"
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        scanned = attributes_of(node).get("num_scan_inputs", 0)
        loop = node.op_type == "Loop"
        first = 2 if loop else 0
        state = list(node.input[first : len(node.input) - scanned])
        sequences = list(node.input[len(node.input) - scanned :]) if scanned else []
        carried, ahead = len(state), int(loop)  # a loop's body returns its condition first
        stored = {t.name: f"{self.tag}/{t.name}" for t in body.initializer}
        for tensor in body.initializer:
            self._store(stored[tensor.name], onnx.numpy_helper.to_array(tensor))
        rows: list[list[str]] = [[] for _ in body.output[ahead + carried :]]
        produced = Graph.of(body).produced
        for number in range(count):
            names = dict(stored)
            if loop:
                for formal, value in zip(
                    body.input, (np.array(number), np.array(True)), strict=False
                ):
                    names[formal.name] = self._store(f"{self.tag}{number}/{formal.name}", value)
            names |= zip((i.name for i in body.input[first:]), state, strict=False)
            for formal, sequence in zip(body.input[first + carried :], sequences, strict=True):
                at = self._store(f"{self.tag}{number}/at", np.array(number))
                names[formal.name] = self._op(
                    "Gather", [sequence, at], f"{self.tag}{number}/{formal.name}", axis=0
                )
            names |= {name: f"{self.tag}{number}/{name}" for name in produced}
            for inner in body.node:
                self._write(inner, names, number)
            ends = [names.get(o.name, o.name) for o in body.output]
            state = ends[ahead : ahead + carried]
            for row, end in zip(rows, ends[ahead + carried :], strict=True):
                row.append(end)
        for name, output in zip(state, node.output, strict=False):
            if output:
                self._op("Identity", [name], output)
        for row, output in zip(rows, node.output[carried:], strict=False):
            if output:
                axis = self._store(f"{output}/axis", np.array([0]))
                lifted = [
                    self._op("Unsqueeze", [r, axis], f"{output}/{k}") for k, r in enumerate(row)
                ]
                self._op("Concat", lifted, output, axis=0)

    def _write(self, inner: onnx.NodeProto, names: dict[str, str], number: int) -> None:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        copy.name = f"{self.tag}{number}/{inner.name or inner.output[0]}"
        rewire(copy, names, names)
        self.nodes.append(copy)

    def _store(self, name: str, value: np.ndarray) -> str:
        if name not in (t.name for t in self.initializers):
            self.initializers.append(initializer(name, value))
        return name

    def _op(self, op_type: str, inputs: Iterable[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attributes))
        return output
