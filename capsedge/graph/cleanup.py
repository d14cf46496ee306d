"""Clean a graph up: fold constants, drop dead nodes, and bring foreign files into a normal form.

All steps are exact except the folding of batch normalization into weights. ``onnxscript.optimizer.optimize``
(which ``torch.onnx.export(optimize=True)`` also runs) is not used: its rule ``x + 0 -> x`` treats any
constant up to 1e-8 as zero, which removes the epsilon that keeps the squash of the zero vector finite.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
from onnx import TensorProto, numpy_helper
from onnx_ir.passes import common as passes
from onnxscript import optimizer, rewriter
from onnxscript.rewriter.rules import common as rules

from capsedge.errors import UnsupportedModelError
from capsedge.graph.ir import Graph, constants_of, copy_of, replace_repeated
from capsedge.spec.operators import DOMAIN

# --- Constant folding ---

FOLD_LIMIT = 1 << 30  # size of one folded constant

_RULES = [
    rules.no_op_cast_rule,
    rules.cast_cast_rule,
    rules.no_op_transpose_rule,
    rules.transpose_transpose_rule,
    rules.reshape_reshape_rule,
    rules.unsqueeze_unsqueeze_rule,
    rules.squeeze_reshape_1d_rule,
    rules.flatten_to_reshape_rule,
    rules.no_op_expand_rule,
    rules.materialize_reshape_shape_rule,
    rules.cast_constant_of_shape_rule,
    rules.cast_constant_of_shape_without_value_rule,
    rules.collapse_slice_rule,
    rules.collapse_slice2_rule,
    rules.fuse_pad_into_conv_rule,
    rules.fuse_batchnorm_into_conv_rule,
    rules.fuse_batchnorm_into_conv_transpose_rule,
    rules.fuse_batchnorm_into_gemm_rule,
]
_ROUNDS = 3  # one step may enable another: a fold, a rewrite, a fold


def fold(model: onnx.ModelProto, limit: int) -> onnx.ModelProto:
    """A copy with constants of at most ``limit`` bytes folded, and nothing else changed."""
    graph = ir.from_proto(model)
    optimizer.fold_constants(graph, input_size_limit=limit, output_size_limit=limit)
    return ir.to_proto(graph)


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with constants folded into initializers, casts and transposes merged, duplicates shared.

    Nodes that do not affect any output and functions that are never called are removed.
    """
    graph = ir.from_proto(model)
    for _ in range(_ROUNDS):
        optimizer.fold_constants(graph, input_size_limit=FOLD_LIMIT, output_size_limit=FOLD_LIMIT)
        graph = rewriter.rewrite(graph, pattern_rewrite_rules=_RULES)
    for each in (
        passes.RemoveUnusedNodesPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    ):
        graph = each(graph).model
    simplified = ir.to_proto(graph)
    simplified.ir_version = model.ir_version
    return simplified


# --- Dead nodes, unused tensors, constant fills, traces of the machine ---


def remove_dead_nodes(model: onnx.ModelProto, keep_domain: str | None = None) -> int:
    """Remove the nodes and initializers that do not affect any output; returns the number of nodes.

    Args:
        keep_domain: nodes of this domain, and what they need, are kept although they do not affect an output.
    """
    graph = Graph.of(model.graph)
    kept_anyway = [o for n in graph.nodes if n.domain == keep_domain for o in n.output]
    live = graph.before([*graph.outputs, *kept_anyway])
    replace_repeated(model.graph.node, [graph.nodes[k] for k in live])
    remove_unused_tensors(model)
    return len(graph.nodes) - len(live)


def remove_unused_tensors(model: onnx.ModelProto) -> None:
    """Remove the initializers and value descriptions that no node uses."""
    graph = Graph.of(model.graph)
    used = graph.needed
    replace_repeated(
        model.graph.initializer, [t for t in model.graph.initializer if t.name in used]
    )
    described = [v for v in model.graph.value_info if v.name in used and v.name in graph.produced]
    replace_repeated(model.graph.value_info, described)


def fold_fills(model: onnx.ModelProto) -> None:
    """Turn ``ConstantOfShape`` of a constant shape into an initializer (zeros that stand for "none")."""
    constants = constants_of(model)
    kept = []
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in constants:
            shape = numpy_helper.to_array(constants[node.input[0]])
            fill = (
                numpy_helper.to_array(node.attribute[0].t) if node.attribute else np.zeros(1, "f4")
            )
            if int(np.prod(shape)) <= FOLD_LIMIT:
                value = np.full(shape, fill.reshape(-1)[0], fill.dtype)
                model.graph.initializer.append(numpy_helper.from_array(value, node.output[0]))
                continue
        kept.append(node)
    replace_repeated(model.graph.node, kept)
    remove_unused_tensors(model)


def strip_notes(model: onnx.ModelProto) -> None:
    """Remove the exporter's records of its machine: stack traces and source paths."""
    graph = model.graph
    graph.name = "capsedge"
    for item in (*graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer):
        del item.metadata_props[:]
        item.doc_string = ""
    del graph.metadata_props[:]
    del model.metadata_props[:]
    model.doc_string = ""


# --- The normal form of files from other tools ---

IR_VERSION = 8  # from IR version 4 on, weights need not be inputs


def to_normal_form(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy without foreign functions or weights among its inputs, and with FP32 constants as initializers.

    Files of IR version 3 have their weights among the inputs.

    Raises:
        UnsupportedModelError: it has sparse weights, or imports no standard operators.
    """
    if not any(e.domain in ("", "ai.onnx") for e in model.opset_import):
        raise UnsupportedModelError(
            "The file does not import the standard ONNX operators.",
            "",
            "Export it again with a standard opset.",
        )
    if model.graph.sparse_initializer:
        raise UnsupportedModelError(
            "The file has sparse weights.",
            f"The first is '{model.graph.sparse_initializer[0].values.name}'.",
            "Export it again with dense weights.",
        )
    functions = [(f.domain, f.name) for f in model.functions if f.domain != DOMAIN]
    made = onnx.inliner.inline_selected_functions(model, functions) if functions else copy_of(model)
    graph = made.graph
    stored = {t.name for t in graph.initializer}
    replace_repeated(graph.input, [i for i in graph.input if i.name not in stored])
    nodes = []
    for node in graph.node:
        value = next((a.t for a in node.attribute if a.name == "value"), None)
        if (
            node.op_type == "Constant"
            and value is not None
            and value.data_type == TensorProto.FLOAT
        ):
            value.name = node.output[0]
            graph.initializer.append(value)
        else:
            nodes.append(node)
    for node in nodes:  # ONNX Runtime's own rewrites fail on empty output names at the end
        while node.output and not node.output[-1]:
            del node.output[-1]
    replace_repeated(graph.node, [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes])
    made.ir_version = max(made.ir_version, IR_VERSION)
    return made
