"""Constant folding and clean-up of a graph, exact but for the folding of batch normalization into weights.

Not ``onnxscript.optimizer.optimize`` (which ``torch.onnx.export(optimize=True)`` runs too): its rule
``x + 0 -> x`` takes any constant up to 1e-8 for zero, and so removes the epsilon that keeps a squash
of the zero vector finite.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript import optimizer, rewriter
from onnxscript.rewriter.rules import common as rules

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
_ROUNDS = 3  # one step opens the way for another: a fold, a rewrite, a fold


def fold(model: onnx.ModelProto, limit: int) -> onnx.ModelProto:
    """A copy with constants of at most ``limit`` bytes folded, and nothing else changed."""
    graph = ir.from_proto(model)
    optimizer.fold_constants(graph, input_size_limit=limit, output_size_limit=limit)
    return ir.to_proto(graph)


def simplify(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with constants folded into initializers, casts and transposes merged, duplicates shared.

    Nodes that reach no output are removed, as are functions that nothing calls.
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
