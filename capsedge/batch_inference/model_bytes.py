"""Read a model as bytes with a checksum, to be sent to other processes and machines."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from capsedge.batch_inference.storage import Storage, is_remote, plain
from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files.formats import is_engine
from capsedge.runtime.load import load_bytes, model_path
from capsedge.runtime.onnx_file import summary
from capsedge.runtime.session.session import Session
from capsedge.spec import limits


@dataclass(frozen=True)
class ModelBytes:
    """The content of an ONNX file.

    Attributes:
        name: name of the file, for errors.
        data: its content.
        sha256: the checksum of its content, in hexadecimal.
    """

    name: str
    data: bytes
    sha256: str

    def load(self, threads: int | None = None, ops: str = "auto") -> Session:
        """A session on the CPU.

        Args:
            threads, ops: as for `capsedge.load`.

        Raises:
            ArtefactError: the content differs from what was sent, or as `capsedge.load`.
            EnvironmentProblem, UnsupportedModelError: as `capsedge.load`.
        """
        if hashlib.sha256(self.data).hexdigest() != self.sha256:
            raise ArtefactError(
                f"{self.name} arrived damaged.", "Its checksum differs.", "Start again."
            )
        return load_bytes(self.data, self.name, threads=threads, ops=ops)


def read_model(model: str | os.PathLike[str]) -> ModelBytes:
    """Read an ONNX file, a model of the zoo, or an fsspec address such as ``s3://bucket/model.onnx``.

    Raises:
        UsageError: there is no such model, or it cannot be read.
        ArtefactError: it is too large, or not an ONNX file.
    """
    if isinstance(model, str) and is_remote(model):
        data = Storage(model).start(limits.FILE_BYTES + 1)
        if len(data) > limits.FILE_BYTES:
            raise ArtefactError(f"{model} is too large for an ONNX file.")
        return ModelBytes(model, data, hashlib.sha256(data).hexdigest())
    path = model_path(plain(model) if isinstance(model, str) else model)
    if is_engine(path):
        raise UsageError(
            f"{path} is a TensorRT engine.",
            "It runs only on a GPU like the one that it was built on.",
            "Send the ONNX file that it was built from.",
        )
    data = summary.read_model_bytes(path)
    return ModelBytes(str(path), data, hashlib.sha256(data).hexdigest())
