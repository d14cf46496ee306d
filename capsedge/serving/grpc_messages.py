"""Build the messages of the Open Inference Protocol from ``open_inference.proto``, next to this file.

They have their own pool: clients of other projects define messages of the same names, and the shared pool
does not allow two with the same name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "inference"
COMPILED = Path(__file__).with_name("open_inference.binpb")


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(COMPILED.read_bytes()).file:
        pool.Add(file)
    return pool


@cache
def message(name: str) -> Any:
    """The class of a message."""
    return GetMessageClass(_pool().FindMessageTypeByName(f"{PACKAGE}.{name}"))


def set_parameters(owner: Any, parameters: Mapping[str, str | int]) -> None:
    """Set the parameters of a message: texts and whole numbers."""
    for name, value in parameters.items():
        kind = "string_param" if isinstance(value, str) else "int64_param"
        setattr(owner.parameters[name], kind, value)


def metadata_message(document: Mapping[str, Any]) -> Any:
    """A ModelMetadataResponse, made from the document sent over HTTP."""
    plain = {key: document[key] for key in ("name", "versions", "platform")}
    response = message("ModelMetadataResponse")(**plain)
    set_parameters(response, document["parameters"])
    for key in ("inputs", "outputs"):
        _add_tensors(getattr(response, key), document[key])
    return response


def _add_tensors(owner: Any, tensors: Sequence[Mapping[str, Any]]) -> None:
    for tensor in tensors:
        added = owner.add(**{key: tensor[key] for key in ("name", "datatype", "shape")})
        set_parameters(added, tensor.get("parameters", {}))
