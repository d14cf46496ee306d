"""Requests by NVIDIA's client, and one server for the tests that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.serving import models
from tests.serving.running import Server, served

Ask = Callable[..., Any]
Answer = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of every kind by name."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "digits": models.DIGITS,
        "fixed": models.fixed(folder),
        "angles": models.regression(folder),
        "two": models.two_inputs(folder),
        "cascade": models.cascade_file(folder),
        "maps": models.segmentation(folder),
    }


@pytest.fixture(scope="module")
def server(files: dict[str, Path]) -> Iterator[Server]:
    """A server of them all, which runs each request by itself: a batch may change the last bits."""
    named = [f"{name}={path}" for name, path in files.items()]
    with served(*named, "--batch", "1") as running:
        assert running.document, running.said
        yield running


def ask_http(server: Server, name: str, arrays: Answer, outputs: Any = (), **more: Any) -> Answer:
    """A request over HTTP with NVIDIA's client, all in JSON; every output by name."""
    return _ask_http(server, name, arrays, outputs, False, **more)


def ask_binary(server: Server, name: str, arrays: Answer, outputs: Any = (), **more: Any) -> Answer:
    """The same with binary tensors, as the client sends them by default."""
    return _ask_http(server, name, arrays, outputs, True, **more)


def _ask_http(
    server: Server, name: str, arrays: Answer, outputs: Any, binary: bool, **more: Any
) -> Answer:
    import tritonclient.http as http

    inputs = []
    for key, array in arrays.items():
        inputs.append(http.InferInput(key, list(array.shape), datatype(array)))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    wanted = [http.InferRequestedOutput(key, binary_data=binary) for key in outputs]
    with http.InferenceServerClient(server.rest.removeprefix("http://")) as client:
        found = client.infer(name, inputs, outputs=wanted or None, **more)
        return {o["name"]: found.as_numpy(o["name"]) for o in found.get_response()["outputs"]}


def ask_grpc(server: Server, name: str, arrays: Answer, outputs: Any = (), **more: Any) -> Answer:
    """The same over gRPC."""
    import tritonclient.grpc as grpc

    inputs = []
    for key, array in arrays.items():
        inputs.append(grpc.InferInput(key, list(array.shape), datatype(array)))
        inputs[-1].set_data_from_numpy(array)
    wanted = [grpc.InferRequestedOutput(key) for key in outputs]
    with grpc.InferenceServerClient(server.grpc) as client:
        found = client.infer(name, inputs, outputs=wanted or None, **more)
        return {o.name: found.as_numpy(o.name) for o in found.get_response().outputs}


def datatype(array: NDArray[Any]) -> str:
    """NVIDIA's name of a type."""
    from tritonclient.utils import np_to_triton_dtype

    return str(np_to_triton_dtype(array.dtype))


def tensor(name: str, array: NDArray[Any]) -> dict[str, Any]:
    """A tensor of a request in JSON."""
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": datatype(array),
        "data": array.ravel().tolist(),
    }


def images(count: int, *shape: int, seed: int = 0) -> NDArray[np.float32]:
    """Prepared images."""
    return np.random.default_rng(seed).random((count, *shape), np.float32)
