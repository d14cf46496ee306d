"""Run a request, and write its answer in the form of the Open Inference Protocol."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from capsedge.errors import UsageError
from capsedge.runtime.session.tensors import LARGEST, check_sizes_agree, checked_input
from capsedge.serving import grpc_messages
from capsedge.serving.request_tensors import BYTES, DATATYPES, datatype_of
from capsedge.serving.requests import PREDICTIONS, PreparedRequest, encoded_masks, mask_metadata
from capsedge.spec import limits

if TYPE_CHECKING:
    from capsedge.runtime.backends.backend import Port
    from capsedge.runtime.session.predictions import Prediction
    from capsedge.runtime.session.session import Session


# --- Running ---

Arrays = Mapping[str, NDArray[Any]]


def compute_outputs(
    session: Session, arrays: Arrays, names: Sequence[str], most: float = limits.REQUEST_VALUES
) -> dict[str, NDArray[Any]]:
    """Compute the named outputs within ``most`` values; a capsedge file takes any number of images."""
    if session.metadata is None:
        outputs = session.run(arrays)
        _check_response_size(sum(outputs[name].size for name in names), most)
        return {name: outputs[name] for name in names}
    images = arrays[session.inputs[0].name]
    check_some(images)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in names}
    size = 0
    for _, outputs in session.run_batches(images, names):
        size += sum(array.size for array in outputs.values())
        _check_response_size(size, most)
        for name, array in outputs.items():
            parts[name].append(array)
    return {name: p[0] if len(p) == 1 else np.concatenate(p) for name, p in parts.items()}


def check_inputs(session: Session, arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Check the inputs of a request that is to run together with others.

    They are images ``[N, C, H, W]`` in the type of the input or, for a file without metadata, what its inputs
    take, such as ids ``[N, L]``.
    """
    if session.metadata is None:
        for port in session.inputs:
            checked_input(port, arrays[port.name], math.inf)
        check_sizes_agree(session.inputs, arrays)
        return dict(arrays)
    port = session.inputs[0]
    images = checked_input(port, arrays[port.name], LARGEST, any_batch=True)
    check_some(images)
    return {port.name: images.astype(port.dtype, copy=False)}


def check_some(images: NDArray[Any]) -> None:
    """Refuse a request without images."""
    if images.shape[:1] == (0,):
        raise UsageError("The request has no images.", "Its batch is 0.", "Send at least one.")


def _check_response_size(size: int, most: float) -> None:
    if size > most:
        raise UsageError(
            "The response would be too large.",
            f"Its outputs have over {most:,} values.",
            "Ask for fewer outputs, or send fewer images at a time.",
        )


@dataclass
class InferResponse:
    """An answer.

    Attributes:
        name, version: name and version of the model; the version may be empty.
        outputs: the arrays by name, in row-major order; those of files hold bytes.
        parameters: parameters of the answer; the predictions are one.
        id: id of the request.
    """

    name: str
    version: str
    outputs: dict[str, NDArray[Any]]
    parameters: dict[str, str]
    id: str = ""


def respond(
    session: Session, request: PreparedRequest, results: Arrays, name: str, version: str
) -> InferResponse:
    """The answer to a request.

    Args:
        results: at least the outputs that the request needs.
        name, version: name and version of the model.
    """
    outputs = {output: np.asarray(results[output], order="C") for output in request.outputs}
    parameters: dict[str, str] = {}
    if request.choice is not None:
        predictions = _predictions(session, request, results)
        outputs |= encoded_masks(request.masks, predictions)
        if request.sends_predictions:
            parameters[PREDICTIONS] = _as_json(predictions, request.choice.top_k)
    return InferResponse(name, version, outputs, parameters)


def _predictions(session: Session, request: PreparedRequest, outputs: Arrays) -> list[Prediction]:
    choice = request.choice
    assert choice is not None
    images = request.arrays[session.inputs[0].name]
    return session.roles.predictions(
        images, outputs, choice.top_k, choice.threshold, choice.invert, request.sizes
    )


def _as_json(predictions: Sequence[Prediction], top_k: int | None) -> str:
    """Predictions as JSON, since a gRPC parameter is a string, an integer or a boolean.

    A request for the best few classes does not include the scores of all.
    """
    documents = [prediction.to_dict() for prediction in predictions]
    if top_k is not None:
        for document in documents:
            document.pop("scores", None)
    return json.dumps(documents, allow_nan=False)


# --- Model metadata: inputs, outputs, and the file's own metadata ---

PLATFORM = "capsedge"


def model_metadata(session: Session, name: str, version: str) -> dict[str, Any]:
    """The model's inputs and outputs as the protocol's document.

    Inputs for images are marked in their parameters. Scores list their classes, and estimated values their
    names.
    """
    takes = session.metadata is not None and session.metadata.preprocessing is not None
    images = {"images": "BYTES [N]: image files, in JSON as base64"} if takes else {}
    return {
        "name": name,
        "versions": [version] if version else [],
        "platform": PLATFORM,
        "inputs": [_tensor(port, session, images) for port in session.inputs],
        "outputs": [
            *(_tensor(port, session, _meaning(port.name, session)) for port in session.outputs),
            *mask_metadata(session),
        ],
        "parameters": _parameters_of(session),
    }


def _parameters_of(session: Session) -> dict[str, str | int]:
    """Further facts about the model, as strings and integers, which gRPC can carry."""
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


def _tensor(port: Port, session: Session, parameters: dict[str, str]) -> dict[str, Any]:
    tensor = {
        "name": port.name,
        "datatype": datatype_of(port, session.path),
        "shape": [size if isinstance(size, int) else -1 for size in port.shape],
    }
    return {**tensor, "parameters": parameters} if parameters else tensor


# --- Answers as JSON or protobuf, written in pieces so that other threads can run in between ---

_PIECE = 2**14  # values
_WRITTEN = 22  # bytes of a value, as a decimal with a comma
_CONTENTS = {
    "BOOL": "bool_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
    **{f"INT{bits}": "int_contents" for bits in (8, 16, 32)}, "INT64": "int64_contents",
    **{f"UINT{bits}": "uint_contents" for bits in (8, 16, 32)}, "UINT64": "uint64_contents",
    BYTES: "bytes_contents",
}  # fmt: skip


def response_bytes(response: InferResponse) -> int:
    """The size in bytes of its tensors together with their encoding."""
    return sum(_raw_size(array) + _WRITTEN * array.size for array in response.outputs.values())


def to_http(response: InferResponse, raw: Collection[str] = ()) -> tuple[list[bytes], int | None]:
    """An answer as pieces of a body: JSON, then the tensors that are sent as raw bytes.

    Floats in JSON have as many digits as their precision requires.

    Args:
        raw: outputs that are sent as raw bytes.

    Returns:
        The pieces, and the bytes of the JSON if raw bytes may follow it; otherwise None.
    """
    about: dict[str, Any] = {"model_name": response.name}
    if response.version:
        about["model_version"] = response.version
    about["id"] = response.id
    if response.parameters:
        about["parameters"] = response.parameters
    parts = [orjson.dumps(about)[:-1], b',"outputs":[']
    for number, (name, array) in enumerate(response.outputs.items()):
        tensor: dict[str, Any] = {"name": name, "shape": array.shape, "datatype": _type(array)}
        parts.append(b"," * (number > 0))
        if name in raw:
            tensor["parameters"] = {"binary_data_size": _raw_size(array)}
            parts.append(orjson.dumps(tensor))
            continue
        parts += [orjson.dumps(tensor)[:-1], b',"data":[']
        for at, piece in _pieces(array):
            row = _as_base64(piece) if piece.dtype == object else piece
            values = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
            parts += [b"," * (at > 0), values[1:-1]]
        parts.append(b"]}")
    parts.append(b"]}")
    if not raw:
        return parts, None
    length = sum(map(len, parts))
    for name, array in response.outputs.items():
        if name in raw:
            parts += _raw_parts(array)
    return parts, length


def _type(array: NDArray[Any]) -> str:
    return BYTES if array.dtype == object else DATATYPES[str(array.dtype)]


def _as_base64(files: NDArray[Any]) -> list[str]:
    return [base64.b64encode(file).decode() for file in files]


def _raw_size(array: NDArray[Any]) -> int:
    """The bytes of `_raw_parts`."""
    return array.nbytes if array.dtype != object else sum(4 + len(file) for file in array)


def _raw_parts(array: NDArray[Any]) -> Iterator[bytes]:
    """An array as raw bytes, little-endian; files each after their length in four bytes."""
    if array.dtype == object:
        for file in array:
            yield struct.pack("<I", len(file)) + file
        return
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    for _, piece in _pieces(little):
        yield piece.tobytes()


def _pieces(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Where each piece of the values starts, and the piece."""
    row = array.ravel()
    for at in range(0, row.size, _PIECE):
        yield at, row[at : at + _PIECE]


def to_grpc(response: InferResponse, raw: bool) -> bytes:
    """The same as a ModelInferResponse.

    Args:
        raw: whether tensors are sent as raw bytes; FP16 tensors always are, and then so are all others.
    """
    message = grpc_messages.message("ModelInferResponse")(
        model_name=response.name, model_version=response.version, id=response.id
    )
    raw = raw or any(array.dtype == np.float16 for array in response.outputs.values())
    for name, array in response.outputs.items():
        datatype = _type(array)
        tensor = message.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if raw:
            message.raw_output_contents.append(b"".join(_raw_parts(array)))
            continue
        contents: Any = getattr(tensor.contents, _CONTENTS[datatype])
        for _, piece in _pieces(array):
            contents.extend(piece.tolist())
    grpc_messages.set_parameters(message, response.parameters)
    return bytes(message.SerializeToString())
