"""Running a request, and its answer in the terms of the Open Inference Protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mlserver.types import InferenceResponse, Parameters, ResponseOutput, TensorData
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.files import limits
from capsedge.runtime.tensors import LARGEST, checked
from capsedge.serving.requests import PREDICTIONS, Request
from capsedge.serving.tensors import DATATYPES, flat

if TYPE_CHECKING:
    from capsedge.runtime.session import Session

Arrays = Mapping[str, NDArray[Any]]


def compute(
    session: Session, arrays: Arrays, names: Sequence[str], most: float = limits.REQUEST_VALUES
) -> dict[str, NDArray[Any]]:
    """The named outputs. A file of capsedge takes any number of images, others what their graph takes.

    Args:
        most: values of all outputs.

    Raises:
        UsageError: the arrays do not fit the model, or the answer would be too large.
        ArtefactError: the runtime refuses to run the model on them.
    """
    if session.metadata is None:
        found = session.run(arrays)
        _check_answer(sum(found[name].size for name in names), most)
        return {name: found[name] for name in names}
    images = arrays[session.inputs[0].name]
    check_some(images)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    size = 0
    for _, found in session.run_batches(images, names):
        size += sum(array.size for array in found.values())
        _check_answer(size, most)
        for name, array in found.items():
            parts[name].append(array)
    return {name: p[0] if len(p) == 1 else np.concatenate(p) for name, p in parts.items()}


def check_images(session: Session, arrays: Arrays) -> NDArray[Any]:
    """The images of a file of capsedge ``[N, C, H, W]``, in the type of its input.

    Raises:
        UsageError: there are none, they do not fit the model, or a value is not finite.
    """
    port = session.inputs[0]
    images = checked(port, arrays[port.name], LARGEST, any_batch=True)
    check_some(images)
    return images.astype(port.dtype, copy=False)


def check_some(images: NDArray[Any]) -> None:
    """Refuse a request without images.

    Raises:
        UsageError: there are none.
    """
    if images.shape[:1] == (0,):
        raise UsageError("The request has no images.", "Its batch is 0.", "Send at least one.")


def _check_answer(size: int, most: float) -> None:
    if size > most:
        raise UsageError(
            "The answer would be too large.",
            f"Its outputs have over {most:,} values.",
            "Ask for fewer outputs, or send fewer images at a time.",
        )


def respond(
    session: Session, request: Request, found: Arrays, name: str, version: str | None, lists: bool
) -> InferenceResponse:
    """The answer to a request.

    Args:
        found: at least the outputs that the request needs.
        name, version: of the model.
        lists: whether tensors are lists, as MLServer's own endpoints take them, or arrays.

    Raises:
        ArtefactError: the model computed NaN, and predictions are asked for.
    """
    outputs = [
        ResponseOutput.model_construct(
            name=output,
            shape=list(found[output].shape),
            datatype=DATATYPES[str(found[output].dtype)],
            data=TensorData.model_construct(
                root=flat(found[output]) if lists else found[output].ravel()
            ),
        )
        for output in request.outputs
    ]
    answer = InferenceResponse(model_name=name, model_version=version, outputs=outputs)
    if request.choice is not None:
        answer.parameters = Parameters(**{PREDICTIONS: _predictions(session, request, found)})
    return answer


def _predictions(session: Session, request: Request, found: Arrays) -> str:
    """JSON, since a parameter of gRPC is a string, a whole number or a truth value."""
    choice = request.choice
    assert choice is not None
    images = request.arrays[session.inputs[0].name]
    made = session.roles.predictions(images, found, choice.top_k, choice.threshold, choice.invert)
    return json.dumps([prediction.to_dict() for prediction in made], allow_nan=False)
