"""Write the shape of every value into a file, for forecasts and readers that do not infer shapes."""

from __future__ import annotations

import os
import sys
import tempfile
from io import FileIO

import onnx

from capsedge.errors import UnsupportedModelError
from capsedge.graph.cleanup import fold
from capsedge.graph.ir import Graph, copy_of, replace_repeated
from capsedge.runtime.files.sandbox import (
    SandboxLimits,
    enter_sandbox,
    forbid_new_files,
    run_in_sandbox,
)
from capsedge.spec import limits

_BATCHES = (5, 7)  # a size that is the same at both does not depend on the batch
_FOLDED_BYTES = 1 << 20  # maximum size of a constant: shapes and indices, not weights
_Shapes = dict[str, tuple[int, tuple[int, ...]]]  # element type and sizes by name


def write_shapes(model: onnx.ModelProto, complete: onnx.ModelProto | None = None) -> None:
    """State type and shape of every value of the graph whose shape depends on the batch alone.

    Sizes are numbers, the name of the batch axis, or a multiple of it (``36*N``). Shapes that the file
    already states are kept, unless a size in them has its own name. Values whose shape cannot be inferred,
    such as those after NonZero, are left out.

    Args:
        complete: the same graph with function bodies, if the file has none.
    """
    wanted = _without_shape(model)
    if not wanted:
        return
    name = _batch_name(model)
    found = [_sizes(complete or model, n, wanted) for n in (_BATCHES if name else _BATCHES[:1])]
    declared = {v.name: v for v in model.graph.value_info}
    for value in wanted:
        shapes = [at[value] for at in found if value in at]
        if len(shapes) < len(found) or len({len(shape) for _, shape in shapes}) != 1:
            continue
        sizes = [_size(each, name) for each in zip(*(shape for _, shape in shapes), strict=True)]
        if None not in sizes:
            declared[value] = onnx.helper.make_tensor_value_info(value, shapes[0][0], sizes)
    replace_repeated(model.graph.value_info, declared.values())


def with_shapes(data: bytes, name: str) -> bytes:
    """A file with its shapes stated; unchanged if onnx cannot infer them. A process of its own infers them.

    Args:
        data: bytes of a file that ``read_harmless`` accepted.
        name: its name in errors.

    Raises:
        UnsupportedModelError: that takes too much time or memory.
    """
    most = SandboxLimits(
        limits.CHECK_SECONDS, limits.CHECK_MEMORY + 8 * len(data), limits.FILE_BYTES
    )
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        with run_in_sandbox(__name__, file, most, fork=True) as ended:
            code, better = ended.exit_code, ended.output.read()
    if code:
        why = f"onnx needs more than {limits.CHECK_MEMORY >> 20} MiB for that, or fails ({code})."
    elif code is None:
        why = f"onnx needs more than {limits.CHECK_SECONDS} s for that."
    else:
        return better or data
    raise UnsupportedModelError(
        f"The sizes of {name} cannot be inferred.", why, "Export it again with its shapes stated."
    )


def main() -> None:
    """State the shapes of the file on standard input; answer with the new file, or nothing if onnx cannot."""
    enter_sandbox()
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries print
    data = FileIO(0, closefd=False).readall()
    forbid_new_files()
    try:
        model = onnx.load_model_from_string(data)
        write_shapes(model)
    except MemoryError:
        sys.exit(1)
    except Exception:  # onnx raises many kinds for other tools' files, none of them ours
        return
    with os.fdopen(answer, "wb") as file:
        file.write(model.SerializeToString())


def _without_shape(model: onnx.ModelProto) -> list[str]:
    """Values of nodes whose shape the file does not state in terms of numbers and the batch."""
    graph, name = model.graph, _batch_name(model)
    known = {t.name for t in graph.initializer} | {v.name for v in (*graph.input, *graph.output)}
    for value in graph.value_info:
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(
            d.HasField("dim_value") or (name and d.dim_param == name) for d in kind.shape.dim
        ):
            known.add(value.name)
    return [value for value in Graph.of(graph).produced if value not in known]


def _batch_name(model: onnx.ModelProto) -> str:
    """The name of the free first axis of the first input that has one; empty if the batch is fixed."""
    stored = {t.name for t in model.graph.initializer}
    names = (
        value.type.tensor_type.shape.dim[0].dim_param
        for value in model.graph.input
        if value.name not in stored and len(value.type.tensor_type.shape.dim)
    )
    return next(filter(None, names), "")


def _size(sizes: tuple[int, ...], name: str) -> int | str | None:
    """A size in the file's form, from its values at the batches; None if it is not a multiple."""
    first = sizes[0]
    if len(set(sizes)) == 1:
        return first
    times, rest = divmod(first, _BATCHES[0])
    if rest or any(size != times * n for size, n in zip(sizes, _BATCHES, strict=True)):
        return None
    return name if times == 1 else f"{times}*{name}"


def _sizes(model: onnx.ModelProto, batch: int, wanted: list[str]) -> _Shapes:
    """Sizes at one batch by inference; if that stops at computed shapes, they are folded first."""
    fixed = _fixed(model, batch)
    inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
    found = _known(inferred)
    left = [name for name in wanted if name not in found]
    if not left:
        return found
    outputs = {value.name for value in inferred.graph.output}
    types = {value.name: value for value in inferred.graph.value_info}
    # Folding leaves outputs their names.
    inferred.graph.output.extend(
        types[name] for name in left if name in types and name not in outputs
    )
    try:
        folded = fold(inferred, _FOLDED_BYTES)
    except Exception:  # it evaluates other tools' nodes; their results then stay unstated
        return found
    return _known(onnx.shape_inference.infer_shapes(folded, data_prop=True)) | found


def _fixed(model: onnx.ModelProto, batch: int) -> onnx.ModelProto:
    """A copy for one batch; sizes with names are left to inference."""
    fixed = copy_of(model)
    stored = {t.name for t in fixed.graph.initializer}
    for value in fixed.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in stored and len(dims) and not dims[0].HasField("dim_value"):
            dims[0].dim_value = batch
    for value in (*fixed.graph.output, *fixed.graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if not size.HasField("dim_value"):
                size.Clear()
    return fixed


def _known(model: onnx.ModelProto) -> _Shapes:
    graph = model.graph
    found = {t.name: (t.data_type, tuple(t.dims)) for t in graph.initializer}
    for value in (*graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            found[value.name] = (kind.elem_type, tuple(d.dim_value for d in kind.shape.dim))
    return found


if __name__ == "__main__":
    main()
