"""Shapes that a file computes although they are known: constant targets for its Reshapes."""

from __future__ import annotations

import numpy as np
import onnx

from capsedge.graph.proto import copy_of, initializer
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.values import Values, session_of

_BATCHES = (2, 3, 5)


def constant_targets(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    """A copy whose Reshapes have constant targets where these depend on the batch alone; how many that made.

    A target that is computed from shapes is looked at for three batches. If one entry differs at most, and
    the others are no 0, -1 in its place says the same, since a Reshape keeps the number of elements.
    """
    try:
        graph = Values(model)
    except NotRecognized:
        return model, 0
    stored = {t.name for t in model.graph.initializer}
    wanted = {
        n.input[1]: n
        for n in graph.nodes
        if n.op_type == "Reshape" and n.input[1] in graph.constant and n.input[1] not in stored
    }
    if not wanted or not graph.free:
        return model, 0
    probe = copy_of(model)
    del probe.graph.output[:]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    try:
        session = session_of(probe)
        seen = [session.run(list(wanted), graph.feeds(b)) for b in _BATCHES]
    except Exception:  # ONNX Runtime's errors have no common public base
        return model, 0
    copy, made = copy_of(model), 0
    for k, name in enumerate(wanted):
        rows = np.stack([np.asarray(run[k]).reshape(-1) for run in seen])
        varying = (rows != rows[:1]).any(0)
        if (
            varying.sum() > 1
            or (rows[0][~varying] == 0).any()
            or (rows[0][~varying] == -1).sum() + varying.sum() > 1
        ):
            continue
        target = np.where(varying, -1, rows[0]).astype(np.int64)
        fresh = f"{name}/constant"
        copy.graph.initializer.append(initializer(fresh, target))
        for node in copy.graph.node:
            if node.op_type == "Reshape" and node.input[1] == name:
                node.input[1] = fresh
        made += 1
    return copy, made
