"""An answer as bytes of JSON or of protobuf, made in pieces between which other threads may run."""

from __future__ import annotations

from typing import Any

from mlserver.codecs.json import encode_to_json_bytes
from mlserver.grpc import dataplane_pb2 as pb
from mlserver.grpc.converters import ParametersConverter
from mlserver.types import InferenceResponse

_PIECE = 2**14  # values
_WRITTEN = 22  # bytes of a value, as a decimal with a comma
_CONTENTS = {
    "BOOL": "bool_contents", "FP32": "fp32_contents", "FP64": "fp64_contents",
    **{f"INT{bits}": "int_contents" for bits in (8, 16, 32)}, "INT64": "int64_contents",
    **{f"UINT{bits}": "uint_contents" for bits in (8, 16, 32)}, "UINT64": "uint64_contents",
}  # fmt: skip


def size_of(answer: InferenceResponse) -> int:
    """The bytes that its tensors, whose ``root`` are arrays, take together with what is written of them."""
    arrays = [output.data.root for output in answer.outputs]
    return sum(array.nbytes + _WRITTEN * array.size for array in arrays)


def to_json(answer: InferenceResponse) -> list[bytes]:
    """An answer whose tensors are arrays, as pieces of JSON."""
    parts = [encode_to_json_bytes(answer.model_dump(exclude={"outputs"}))[:-1], b',"outputs":[']
    for number, output in enumerate(answer.outputs):
        said = {"name": output.name, "shape": output.shape, "datatype": output.datatype}
        parts += [b"," * (number > 0), encode_to_json_bytes(said)[:-1], b',"data":[']
        for at in range(0, output.data.root.size, _PIECE):
            piece = encode_to_json_bytes(output.data.root[at : at + _PIECE].tolist())
            parts += [b"," * (at > 0), piece[1:-1]]
        parts.append(b"]}")
    parts.append(b"]}")
    return parts


def to_grpc(answer: InferenceResponse, raw: bool) -> bytes:
    """The same as a ModelInferResponse.

    Args:
        raw: whether the tensors are raw bytes; those of FP16 always are, and then all others too.
    """
    found = pb.ModelInferResponse(
        model_name=answer.model_name, model_version=answer.model_version or "", id=answer.id or ""
    )
    raw = raw or any(output.datatype not in _CONTENTS for output in answer.outputs)
    for output in answer.outputs:
        tensor = found.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        array = output.data.root
        if raw:
            found.raw_output_contents.append(array.tobytes())
            continue
        contents: Any = getattr(tensor.contents, _CONTENTS[output.datatype])
        for at in range(0, array.size, _PIECE):
            contents.extend(array[at : at + _PIECE].tolist())
    if answer.parameters is not None:
        for name, value in ParametersConverter.from_types(answer.parameters).items():
            found.parameters[name].MergeFrom(value)
    return bytes(found.SerializeToString())
