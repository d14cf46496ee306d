"""Translate a file's decoder into a separate program, from the pose of one class to its picture."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from capsedge.errors import UnsupportedModelError
from capsedge.exporters.c.graph import Translation, prepare
from capsedge.exporters.c.program import Constants, Program, Shape
from capsedge.graph import ir
from capsedge.graph.ir import Graph
from capsedge.runtime.session.decoder import SubgraphError, extract_subgraph
from capsedge.spec.vocabularies import RECONSTRUCTION


def translate_decoder(
    data: bytes, poses: str, capsules: tuple[int, int], constants: Constants
) -> tuple[Program, Shape] | None:
    """The program of ``reconstruct``, and the shape of a picture; None if the file has no decoder.

    Usually, the file's decoder masks the poses once per class and draws all pictures. The program then masks
    them for one class only; a decoder of another form draws all pictures, and the program returns one.

    Args:
        data: the ONNX file.
        poses: its output with a pose for each class.
        capsules: classes, and elements of a pose.
    """
    try:
        part = onnx.load_model_from_string(extract_subgraph(data, poses, RECONSTRUCTION))
    except SubgraphError:
        return None
    for info in part.graph.input:
        if not len(info.type.tensor_type.shape.dim):
            return None
        info.type.tensor_type.shape.dim[0].dim_value = 1
    for info in part.graph.output:
        for size in info.type.tensor_type.shape.dim:
            size.Clear()
    for model in (_of_one_class(part, capsules[0]), part):
        if model is None:
            continue
        try:
            translation = _translated(model, constants)
        except (UnsupportedModelError, ValueError):
            if model is part:
                raise
            continue
        program = translation.program
        picture = translation.outputs[RECONSTRUCTION]
        pictures = 1 if model is not part else capsules[0]
        if picture.size % pictures or len(picture.shape) < 3 or picture.shape[1] != pictures:
            continue
        shape = picture.shape[2:]
        picture = program.ordered(picture)
        size = picture.size // pictures
        program.begin(RECONSTRUCTION, "Output")
        start = f"{program.pointer(picture)}{f' + index * {size}' if pictures > 1 else ''}"
        last = "" if pictures > 1 else "(void)index; "
        program.step(f"{last}memcpy(picture, {start}, {size} * sizeof(float));", [picture], [])
        return program, shape
    return None


def _translated(model: onnx.ModelProto, constants: Constants) -> Translation:
    """A second input is the mask, which the program fills from the class."""
    stored = {t.name for t in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in stored]
    return Translation(
        prepare(model, [RECONSTRUCTION]),
        constants,
        dict(zip(names, ("poses", ""), strict=False)),
        "d",
    )


def _of_one_class(part: onnx.ModelProto, classes: int) -> onnx.ModelProto | None:
    """The decoder with a single, computed row of its mask; None if the decoder has another form."""
    model = ir.copy_of(part)
    graph = model.graph
    masks = [
        t
        for t in graph.initializer
        if tuple(t.dims) == (1, classes, classes, 1)
        and np.array_equal(numpy_helper.to_array(t)[0, :, :, 0], np.eye(classes))
    ]
    last = Graph.of(graph).producer(RECONSTRUCTION)
    if len(masks) != 1 or last is None or last.op_type != "Reshape":
        return None
    shape = next((t for t in graph.initializer if t.name == last.input[1]), None)
    if shape is None:
        return None
    target = numpy_helper.to_array(shape).copy()
    if target.ndim != 1 or target.size < 3 or target[1] != classes:
        return None
    target[1] = 1
    last.input[1] = f"{shape.name}_of_one"
    graph.initializer.append(numpy_helper.from_array(target, last.input[1]))
    graph.initializer.remove(masks[0])
    graph.input.append(
        helper.make_tensor_value_info(masks[0].name, onnx.TensorProto.FLOAT, [1, 1, classes, 1])
    )
    return model
