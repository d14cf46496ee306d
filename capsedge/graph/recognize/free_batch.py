"""A free batch for a graph that is written for one.

Literals that name the batch become free: targets of Reshapes and Expands, bounds of slices, rows of constants
that repeat. Images that a trace took apart and joined again (``x[0], x[1], ...``) become one branch. This is
structure alone; whether the graph computes the same is proven afterwards by running it.
"""

from __future__ import annotations

import onnx

from capsedge.graph.recognize.batch_rules import RULES
from capsedge.graph.recognize.batch_walk import Freeing
from capsedge.graph.recognize.reasons import NotRecognized
from capsedge.graph.recognize.values import Values


def free_batch(graph: Values) -> onnx.ModelProto:
    """The graph with a batch that is free, as far as its structure tells; to be proven.

    Raises:
        NotRecognized: the reason and the node.
    """
    first = ""
    for last in (False, True):
        try:
            return Freeing(graph, last).model(RULES)
        except NotRecognized as error:
            first = first or str(error)
    raise NotRecognized(first)
