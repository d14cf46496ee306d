"""The plain server that `benchmarks.serving` compares with: hand-written, with FastAPI and ONNX Runtime.

    python -m benchmarks.serving_peer model.onnx PORT THREADS

It accepts and returns the same JSON, uses the same session options and operator library, and checks nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from capsedge.runtime.backends.native_library import find_library
from capsedge.runtime.backends.onnxruntime_session import register_operators
from capsedge.runtime.onnx_file import summary


class Tensor(BaseModel):
    """A tensor in a request."""

    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class Named(BaseModel):
    """A requested output."""

    name: str


class Asked(BaseModel):
    """A request."""

    inputs: list[Tensor]
    outputs: list[Named]


def session_of(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session with the same options as `capsedge.load`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    library, data = find_library(), path.read_bytes()
    nodes = summary.summarize(data, str(path)).capsedge_types
    if library is not None and nodes:
        register_operators(options, library, nodes)
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def application(session: onnxruntime.InferenceSession) -> FastAPI:
    """The application, which has a single path."""
    app = FastAPI()

    @app.post("/v2/models/model/infer")
    def infer(asked: Asked) -> dict[str, Any]:  # FastAPI runs it in a thread
        feeds = {t.name: np.array(t.data, np.float32).reshape(t.shape) for t in asked.inputs}
        names = [output.name for output in asked.outputs]
        found = session.run(names, feeds)
        outputs = [
            {"name": name, "shape": array.shape, "data": array.ravel().tolist()}
            for name, array in zip(names, found, strict=True)
        ]
        return {"outputs": outputs}

    return app


if __name__ == "__main__":
    path, port, threads = sys.argv[1:]
    app = application(session_of(Path(path), int(threads)))
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="critical", access_log=False)
