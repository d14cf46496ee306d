"""Run all passes that turn a captured graph into the graph of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx

from capsedge.errors import CapsedgeError, ParityError, UnsupportedModelError
from capsedge.graph import Rewrites
from capsedge.graph.cleanup import (
    fold_fills,
    remove_dead_nodes,
    remove_unused_tensors,
    simplify,
    strip_notes,
)
from capsedge.graph.functions import attach_functions, expand, inline, inline_functions
from capsedge.graph.fusion import FusionReport
from capsedge.graph.fusion.execution import one_line_message
from capsedge.graph.fusion.optimize_graph import optimize_model
from capsedge.graph.ir import (
    Graph,
    UnknownShapeError,
    attributes_of,
    copy_of,
    detach_functions,
    inferred,
    input_shapes,
    operator_counts,
    operator_nodes,
    set_opset,
    shapes_of,
)
from capsedge.graph.portable import use_portable_forms
from capsedge.graph.random_nodes import refuse_random
from capsedge.graph.rewrites import (
    replace_layer_norms,
    replace_uniform_passes,
    write_exact_sigmoids,
    write_fast_convolutions,
)
from capsedge.graph.write_shapes import write_shapes
from capsedge.runtime.progress import Progress, silent
from capsedge.spec.operators import DOMAIN, OPERATORS, VERSION, operator_of

IR_VERSION = 10
TORCH_DOMAIN = "capsedge.torch"  # domain of the operators in a captured graph; never in a file
WriteTrace = Callable[[onnx.ModelProto, FusionReport], onnx.ModelProto]
"""From a graph of ``capsedge`` nodes and its fusion report, makes the graph with its trace as outputs."""

# Packages whose errors have no common base class.
_FOREIGN = ("onnx", "onnxruntime", "onnx_ir", "onnxscript", "torch")
_STAGES = {"fusing": "looking for routing", "proving": "proving what replaces it"}


@dataclasses.dataclass(frozen=True)
class LoweredGraph:
    """A graph in its final form.

    Attributes:
        model: the graph in the requested form.
        runnable: the same with function bodies, for ONNX Runtime without the kernels; ``model`` itself unless
            the form is ``fused``.
        rewrites: the effect of each exact rewrite.
        fusion: which of the user's own routing was fused, and which was not.
        notes: remarks for the user.
        operators: number of nodes of each type.
    """

    model: onnx.ModelProto
    runnable: onnx.ModelProto
    rewrites: dict[str, str]
    fusion: FusionReport
    notes: tuple[str, ...]
    operators: dict[str, int]


def lower(
    captured: onnx.ModelProto,
    rewrites: Rewrites,
    ops: str,
    *,
    outputs: int,
    passes: int,
    fuse: bool = True,
    write_trace: WriteTrace | None = None,
    progress: Progress = silent,
) -> LoweredGraph:
    """Turn a captured graph into a file's graph: refuse random nodes, simplify, rewrite and check it.

    Args:
        captured: capsule operators in the domain ``TORCH_DOMAIN``, with their couplings as an output.
        ops: ``auto``: capsule operators with function bodies; ``fused``: without; ``portable``: standard
            operators only.
        outputs: how many outputs belong to the file; the others keep passes of the routing alive.
        passes: number of routing passes by capsule operators in the module, including those that do not
            affect any output.
        fuse: whether to turn routing in standard operators into capsule operators if the module has none.
        write_trace: writes the values of every iteration into the graph; None for no trace.
        progress: called before long steps.

    Raises:
        UnsupportedModelError: it draws random numbers, or a shape depends on more than the batch.
        CapsedgeError: the resulting graph is not valid ONNX, which is a bug in this package.
    """
    refuse_random(
        captured, "The captured graph"
    )  # before folding constants, which would fold random draws too
    model = simplify(captured)
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version = "capsedge", _version()
    kept = sum(OPERATORS[n.op_type].couplings for n in operator_nodes(model, TORCH_DOMAIN))
    model = _in_our_domain(model, rewrites, traced=write_trace is not None)
    # The passes kept alive as outputs become ordinary tensors.
    model.graph.value_info.extend(model.graph.output[outputs:])
    del model.graph.output[outputs:]
    fusion, notes = FusionReport(), tuple[str, ...]()
    if fuse and not passes:
        model, fusion, notes = fuse_routing(model, progress)
    if write_trace is not None:
        model = write_trace(model, fusion)
    linear = replace_uniform_passes(model) if rewrites.first_pass_uniform else 0
    replace_layer_norms(model)
    write_exact_sigmoids(model)
    remove_dead_nodes(model, None if rewrites.light_cone else DOMAIN)
    use_portable_forms(model)
    if ops == "auto":  # a GPU has no kernel, and runs the body
        write_fast_convolutions(model)
    effects = _effects(rewrites, model, passes - kept, linear)
    model, runnable = _in_form(model, ops, rewrites)
    _check(model)
    write_shapes(model, runnable)
    return LoweredGraph(model, runnable, effects, fusion, notes, operator_counts(model))


def _version() -> str:
    from capsedge import __version__

    return __version__


def _in_our_domain(model: onnx.ModelProto, rewrites: Rewrites, *, traced: bool) -> onnx.ModelProto:
    """Turn every captured operator into a ``capsedge`` node, or standard operators if its couplings are used.

    The ONNX operators do not output couplings. With ``traced``, the nodes are kept for `graph.trace_outputs`.
    """
    strip_notes(model)
    fold_fills(model)
    shapes = shapes_of(model)
    read = Graph.of(model.graph).needed
    expanded = 0
    try:
        for node in operator_nodes(model, TORCH_DOMAIN):
            spec, known = OPERATORS[node.op_type], input_shapes(node, shapes)
            wanted = spec.couplings and node.output[-1] in read
            if wanted and not traced:
                expanded += 1
                expand(model, node, known, rewrites, expanded, couplings=True)
                continue
            node.domain = DOMAIN
            if not wanted:
                del node.output[len(spec.outputs) :]
    except UnknownShapeError as error:
        raise UnsupportedModelError(
            "A capsule operator has an input of unknown shape.",
            f"There is {error}.",
            "Give every operation before it fixed sizes; only the batch size may vary.",
        ) from error
    set_opset(model, TORCH_DOMAIN, None)
    set_opset(model, DOMAIN, VERSION)
    if expanded:
        model = inline(model)
    remove_unused_tensors(model)
    return model


def fuse_routing(
    model: onnx.ModelProto, progress: Progress = silent
) -> tuple[onnx.ModelProto, FusionReport, tuple[str, ...]]:
    """A model with fused routing and without function bodies, the fusion report, and notes.

    This works like ``capsedge.optimize``, including the comparison with the original model. A model that
    already has capsule operators is left unchanged.

    Args:
        progress: called with a description of each step.
    """
    if operator_nodes(model) or any(n.domain == DOMAIN for f in model.functions for n in f.node):
        return model, FusionReport(), ()

    def report(stage: str) -> None:
        if stage in _STAGES:
            progress(_STAGES[stage])

    try:
        improved = optimize_model(model.SerializeToString(), report, batch="keep")
    except (ParityError, UnsupportedModelError) as error:
        return model, FusionReport(), (f"routing was not looked for: {error.what} {error.why}",)
    except Exception as error:
        if not is_foreign(error):
            raise
        return model, FusionReport(), (f"routing was not looked for: {one_line_message(error)}",)
    better = onnx.load_model_from_string(improved.model)
    detach_functions(better)
    return better, improved.fusion, improved.notes


def is_foreign(error: BaseException) -> bool:
    """Whether an error comes from ONNX, ONNX Runtime or PyTorch, whose errors have no common base class."""
    return type(error).__module__.partition(".")[0] in _FOREIGN


def _effects(rewrites: Rewrites, model: onnx.ModelProto, dead: int, linear: int) -> dict[str, str]:
    """The effect of each rewrite; a rewrite without a suitable operator has none."""
    routing = any(OPERATORS[operator_of(n.op_type)].layout for n in operator_nodes(model))
    on = "on" if routing else "on, without effect: there is no capsule operator that routes"
    effects = {k: on if v else "off" for k, v in dataclasses.asdict(rewrites).items()}
    if rewrites.light_cone and dead:
        effects["light_cone"] = f"on: {dead} dead passes left out"
    if rewrites.first_pass_uniform and linear:
        effects["first_pass_uniform"] = f"on: {linear} attention passes made linear layers"
    return effects


def _in_form(
    model: onnx.ModelProto, ops: str, rewrites: Rewrites
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The model in one of the forms ``OPS``, and the model that runs without the kernels."""
    if ops == "fused":
        runnable = copy_of(model)
        attach_functions(runnable, rewrites)
        return model, runnable
    attach_functions(model, rewrites)
    if ops == "portable":
        model = inline_functions(model)
        use_portable_forms(model)
    return model, model


def _check(model: onnx.ModelProto) -> None:
    """Full check and strict shape inference."""
    problems = check_operators(model)
    try:
        onnx.checker.check_model(model, full_check=True)
        inferred(model)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        problems.append(str(error))
    if problems:
        raise CapsedgeError(
            "The exported graph is not valid ONNX.",
            "; ".join(problems),
            "This is a bug of the exporter; please report it with the model.",
        )


def check_operators(model: onnx.ModelProto) -> list[str]:
    """The errors in a model's capsule operators: unknown types, missing attributes."""
    problems = []
    for node in operator_nodes(model):
        spec = OPERATORS.get(operator_of(node.op_type))
        if spec is None:
            problems.append(f"unknown operator {node.op_type}")
        elif set(attributes_of(node)) != set(spec.attribute_names):
            problems.append(
                f"{node.op_type} '{node.name}': attributes {sorted(attributes_of(node))}"
            )
        elif not spec.takes(len(node.input)) or not all(node.input):
            problems.append(f"{node.op_type} '{node.name}': {len(node.input)} inputs")
    return problems
