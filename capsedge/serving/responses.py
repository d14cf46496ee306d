"""Run a request, and write its answer in the terms of the Open Inference Protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mlserver.codecs.json import encode_to_json_bytes
from mlserver.grpc import dataplane_pb2 as pb
from mlserver.grpc.converters import ParametersConverter
from mlserver.types import InferenceResponse, MetadataTensor, Parameters, ResponseOutput, TensorData
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.tensors import LARGEST, checked_input
from capsedge.serving.request_tensors import DATATYPES, datatype_of, flat
from capsedge.serving.requests import PREDICTIONS, PreparedRequest
from capsedge.spec import limits

if TYPE_CHECKING:
    from capsedge.runtime.backends.backend import Port
    from capsedge.runtime.session import Session


# --- Running ---

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
        _check_response_size(sum(found[name].size for name in names), most)
        return {name: found[name] for name in names}
    images = arrays[session.inputs[0].name]
    check_some(images)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    size = 0
    for _, found in session.run_batches(images, names):
        size += sum(array.size for array in found.values())
        _check_response_size(size, most)
        for name, array in found.items():
            parts[name].append(array)
    return {name: p[0] if len(p) == 1 else np.concatenate(p) for name, p in parts.items()}


def check_images(session: Session, arrays: Arrays) -> NDArray[Any]:
    """The images of a file of capsedge ``[N, C, H, W]``, in the type of its input.

    Raises:
        UsageError: there are none, they do not fit the model, or a value is not finite.
    """
    port = session.inputs[0]
    images = checked_input(port, arrays[port.name], LARGEST, any_batch=True)
    check_some(images)
    return images.astype(port.dtype, copy=False)


def check_some(images: NDArray[Any]) -> None:
    """Refuse a request without images.

    Raises:
        UsageError: there are none.
    """
    if images.shape[:1] == (0,):
        raise UsageError("The request has no images.", "Its batch is 0.", "Send at least one.")


def _check_response_size(size: int, most: float) -> None:
    if size > most:
        raise UsageError(
            "The answer would be too large.",
            f"Its outputs have over {most:,} values.",
            "Ask for fewer outputs, or send fewer images at a time.",
        )


def respond(
    session: Session,
    request: PreparedRequest,
    found: Arrays,
    name: str,
    version: str | None,
    lists: bool,
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


def _predictions(session: Session, request: PreparedRequest, found: Arrays) -> str:
    """JSON, since a parameter of gRPC is a string, a whole number or a truth value."""
    choice = request.choice
    assert choice is not None
    images = request.arrays[session.inputs[0].name]
    made = session.roles.predictions(images, found, choice.top_k, choice.threshold, choice.invert)
    return json.dumps([prediction.to_dict() for prediction in made], allow_nan=False)


# --- Model metadata: inputs, outputs, and what the file says of them ---

PLATFORM = "capsedge"


def inputs_of(session: Session) -> list[MetadataTensor]:
    """The model's inputs. One that takes images says so in its parameters.

    Raises:
        UnsupportedModelError: one is of a type that the protocol does not have.
    """
    takes = session.metadata is not None and session.metadata.preprocessing is not None
    inputs = {"images": "BYTES [N]: image files, in JSON as base64"} if takes else {}
    return [_tensor(port, session, inputs) for port in session.inputs]


def outputs_of(session: Session) -> list[MetadataTensor]:
    """The model's outputs. Scores name their classes, and values what they are, in their parameters.

    Raises:
        UnsupportedModelError: one is of a type that the protocol does not have.
    """
    return [_tensor(port, session, _meaning(port.name, session)) for port in session.outputs]


def parameters_of(session: Session) -> dict[str, str | int]:
    """What else is known of the model, as texts and whole numbers, which gRPC can carry."""
    parameters: dict[str, str | int] = {"operators": session.backend.ops}
    if session.backend.batches.fixed is not None:
        parameters["batch"] = session.backend.batches.fixed
    metadata = session.metadata
    if metadata is not None:
        parameters |= {"task": metadata.task, "precision": metadata.precision}
        if metadata.architecture:
            parameters["architecture"] = metadata.architecture
        if metadata.routing:
            parameters |= {"routing": metadata.routing, "iterations": metadata.iterations}
    return parameters


def _meaning(output: str, session: Session) -> dict[str, str]:
    metadata = session.metadata
    if metadata is None:
        return {}
    if output == session.roles.scores:
        labels = {"labels": _texts(metadata.class_names)} if metadata.class_names else {}
        return {**labels, "score_kind": session.roles.kind}
    if output in session.roles.values and metadata.outputs is not None:
        return {"values": _texts(metadata.outputs.names), "units": _texts(metadata.outputs.units)}
    return {}


def _texts(texts: Sequence[str]) -> str:
    return json.dumps(list(texts))


def _tensor(port: Port, session: Session, parameters: dict[str, str]) -> MetadataTensor:
    extra: dict[str, Any] = {"parameters": Parameters(**parameters)} if parameters else {}
    return MetadataTensor(
        name=port.name,
        datatype=datatype_of(port, session.path),
        shape=[size if isinstance(size, int) else -1 for size in port.shape],
        **extra,
    )


# --- Answers as JSON or protobuf, made in pieces between which other threads may run ---

_JSON_PIECE = 2**14  # values
_WRITTEN = 22  # bytes of a value, as a decimal with a comma
_CONTENTS = {
    "BOOL": "bool_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
    **{f"INT{bits}": "int_contents" for bits in (8, 16, 32)}, "INT64": "int64_contents",
    **{f"UINT{bits}": "uint_contents" for bits in (8, 16, 32)}, "UINT64": "uint64_contents",
}  # fmt: skip


def size_of(response: InferenceResponse) -> int:
    """The bytes that its tensors, whose ``root`` are arrays, take together with what is written of them."""
    arrays = [output.data.root for output in response.outputs]
    return sum(array.nbytes + _WRITTEN * array.size for array in arrays)


def to_json(response: InferenceResponse) -> list[bytes]:
    """An answer whose tensors are arrays, as pieces of JSON."""
    parts = [encode_to_json_bytes(response.model_dump(exclude={"outputs"}))[:-1], b',"outputs":[']
    for number, output in enumerate(response.outputs):
        tensor = {"name": output.name, "shape": output.shape, "datatype": output.datatype}
        parts += [b"," * (number > 0), encode_to_json_bytes(tensor)[:-1], b',"data":[']
        for at in range(0, output.data.root.size, _JSON_PIECE):
            piece = encode_to_json_bytes(output.data.root[at : at + _JSON_PIECE].tolist())
            parts += [b"," * (at > 0), piece[1:-1]]
        parts.append(b"]}")
    parts.append(b"]}")
    return parts


def to_grpc(response: InferenceResponse, raw: bool) -> bytes:
    """The same as a ModelInferResponse.

    Args:
        raw: whether the tensors are raw bytes; those of FP16 always are, and then all others too.
    """
    found = pb.ModelInferResponse(
        model_name=response.model_name,
        model_version=response.model_version or "",
        id=response.id or "",
    )
    raw = raw or any(output.datatype not in _CONTENTS for output in response.outputs)
    for output in response.outputs:
        tensor = found.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        array = output.data.root
        if raw:
            found.raw_output_contents.append(array.tobytes())
            continue
        contents: Any = getattr(tensor.contents, _CONTENTS[output.datatype])
        for at in range(0, array.size, _JSON_PIECE):
            contents.extend(array[at : at + _JSON_PIECE].tolist())
    if response.parameters is not None:
        for name, value in ParametersConverter.from_types(response.parameters).items():
            found.parameters[name].MergeFrom(value)
    return bytes(found.SerializeToString())
