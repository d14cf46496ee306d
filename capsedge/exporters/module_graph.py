"""The graph of a module: captured, lowered to the form of the file, with the bounds of its inputs."""

from __future__ import annotations

from typing import NamedTuple

import onnx
import torch
from torch import nn

from capsedge.errors import UnsupportedModelError
from capsedge.exporters.capture import capture
from capsedge.exporters.subject import KeepingAllPasses, Subject, watched
from capsedge.exporters.traced_routing import Traced
from capsedge.exporters.user_traced_routing import traced_graph
from capsedge.graph import Rewrites
from capsedge.graph.fusion import FusionReport
from capsedge.graph.passes import LoweredGraph, lower
from capsedge.models.ops.registration import RoutingCalls
from capsedge.models.user.looked_up_tables import TableBounds, table_bounds
from capsedge.runtime.metadata.table_indices import InputBounds, inputs_property
from capsedge.runtime.progress import Progress, silent
from capsedge.spec import limits

_DIMENSIONS = limits.runtime_limit("libcapsedge", "DIMENSIONS")


class ModuleGraph(NamedTuple):
    """A module's graph for the file, the program that torch captured, and the traced routing."""

    lowered: LoweredGraph
    program: torch.export.ExportedProgram
    traced: Traced | None


def to_graph(
    subject: Subject,
    opset: int,
    batch: int | None,
    rewrites: Rewrites,
    ops: str = "auto",
    fuse: bool = True,
    progress: Progress = silent,
) -> ModuleGraph:
    """Capture the module and make the graph of the file.

    Args:
        ops, fuse, progress: as for `graph.passes.lower`.

    Raises:
        UnsupportedModelError: torch cannot capture the module, it draws random numbers, or a shape depends on
            more than the batch.
    """
    module: nn.Module = subject.module
    if not rewrites.light_cone:
        # torch.export drops nodes that do not affect an output; the passes stay, because they are outputs.
        module = KeepingAllPasses(module).eval()
    with torch.no_grad(), watched(), RoutingCalls() as calls:
        subject.module(*subject.example)
    progress("capturing it as a graph")
    captured, program = capture(module, subject, opset, batch)
    traced = subject.traced

    def write_trace(model: onnx.ModelProto, found: FusionReport) -> onnx.ModelProto:
        nonlocal traced
        if subject.to_trace:
            traced, model = traced_graph(subject.module, model, subject.example, found)
        assert traced is not None
        return traced.write(model)

    lowered = lower(
        captured,
        rewrites,
        ops,
        outputs=len(subject.outputs),
        passes=len(calls.outputs),
        fuse=fuse,
        write_trace=write_trace if subject.to_trace or traced is not None else None,
        progress=progress,
    )
    return ModuleGraph(lowered, program, traced)


def check_ports(model: onnx.ModelProto) -> None:
    """Refuse inputs and outputs that one of the runtimes cannot pass on.

    Raises:
        UnsupportedModelError: one has too many dimensions, or there are too many inputs.
    """
    why = ""
    if len(model.graph.input) > limits.RUN_TENSORS:
        why = f"It has {len(model.graph.input)} inputs, and at most {limits.RUN_TENSORS} are possible."
    for port in (*model.graph.input, *model.graph.output):
        found = len(port.type.tensor_type.shape.dim)
        if found > _DIMENSIONS:
            why = f"'{port.name}' has {found} dimensions; libcapsedge takes at most {_DIMENSIONS}."
    if why:
        raise UnsupportedModelError(
            "Not every runtime can pass on the inputs and outputs of this module.",
            why,
            "Reshape or join them in the module's forward.",
        )


def declare_inputs(
    model: onnx.ModelProto, subject: Subject, *, independent: bool
) -> tuple[str, ...]:
    """Declare in a graph what its inputs may look up, how long they may be, and whether rows are independent.

    Args:
        model: changed in place.
        independent: whether the batch is free, which `user_batch` allows only for independent rows.

    Returns:
        Notes.
    """
    tables = [TableBounds()] * len(subject.inputs)
    if not all(x.dtype.is_floating_point for x in subject.example):
        tables = table_bounds(subject.module, subject.example)
    longest = subject.longest or [()] * len(subject.inputs)
    bounds: dict[str, InputBounds] = {}
    notes: list[str] = []
    for name, table, most in zip(subject.inputs, tables, longest, strict=True):
        lengths = most if any(most) else ()
        if table.most or lengths or independent:
            bounds[name] = InputBounds(table.most or None, lengths, independent)
        if table.most != table.least:
            notes.append(
                f"parts of '{name}' look up tables of {table.least} to {table.most} entries; runtimes refuse "
                f"indices below 0 and above {table.most - 1}, and ONNX Runtime those above a smaller table"
            )
    for key, value in inputs_property(bounds).items():
        model.metadata_props.add(key=key, value=value)
    return tuple(notes)


def longest_of_inputs(
    subject: Subject, program: torch.export.ExportedProgram
) -> tuple[tuple[int, ...], ...]:
    """For each input, the largest size of each axis that a captured program takes (0: any).

    Empty if nothing is limited.
    """
    names = program.graph_signature.user_inputs
    shapes = {n.name: n.meta["val"].shape for n in program.graph.nodes if n.op == "placeholder"}
    found = (
        tuple(
            tuple(_most(size, program) if k in axes else 0 for k, size in enumerate(shapes[name]))
            for name, axes in zip(names, subject.free_axes, strict=True)
        )
        if subject.free_axes
        else ()
    )
    return found if any(map(any, found)) else ()


def _most(size: int | torch.SymInt, program: torch.export.ExportedProgram) -> int:
    """The largest value of a dimension of a program; 0 for any."""
    if isinstance(size, int):
        return 0
    limits = program.range_constraints.get(size.node.expr)
    upper = None if limits is None else limits.upper
    return int(upper) if upper is not None and upper.is_Integer else 0
