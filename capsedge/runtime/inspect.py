"""``capsedge.inspect``: the contents of a model file, a checkpoint or an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from capsedge.runtime.files.given import MODEL_OR_BYTES, GivenModel, as_file, as_path
from capsedge.runtime.passport import is_engine
from capsedge.runtime.reading import inspection
from capsedge.runtime.reading.inspection import Inspection

if TYPE_CHECKING:
    from capsedge.runtime.backends.engine_inspection import EngineInspection


def inspect(model: GivenModel, *, batch: int | Sequence[int] = 1) -> Inspection | EngineInspection:
    """Inspect a file; nothing in it is run.

    Args:
        model: an ONNX file of any tool, a ``.safetensors`` checkpoint, or the bytes of either; or a TensorRT
            engine, named ``*.engine``, with its passport beside it.
        batch: batch sizes to compute the memory of the votes for; ignored for an engine.

    Returns:
        The `Inspection` of a model or a checkpoint, or the `EngineInspection` of an engine; ``to_dict``
        returns what ``capsedge inspect --json`` prints. For bytes the path is empty.

    Raises:
        UsageError: there is no such file, or a batch is below 1.
        ArtefactError: the file is damaged or of an unknown kind, or an engine has no passport.

    Example:
        >>> found = capsedge.inspect("digits.onnx", batch=8)
        >>> found.parameters, found.operators["capsedge"]
    """
    if not isinstance(model, bytes):
        model = as_path(model, MODEL_OR_BYTES)
        if is_engine(model):
            from capsedge.runtime.backends.engine_inspection import inspect_engine

            return inspect_engine(model)
    batches = [batch] if isinstance(batch, int) else list(batch)
    with as_file(model) as path:
        found = inspection.inspect(path, batches)
    return replace(found, path="") if isinstance(model, bytes) else found
