"""A server in the event loop of a test, whose model computes only when the test lets it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from onnx import TensorProto, helper

import capsedge
from capsedge.serving import inference
from capsedge.serving.grpc_messages import message
from capsedge.serving.inference import inference_threads
from capsedge.serving.served_models import (
    BatchSize,
    ServedSession,
    ServerAddress,
    ServerPorts,
    ServerSettings,
)
from capsedge.serving.server import Server
from tests.runtime.models import save
from tests.serving.running import SECONDS

INFER = "/v2/models/double/infer"
METHOD = "/inference.GRPCInferenceService/"


class Gate:
    """Lets inferences pass, or holds them. A model behind it doubles its input."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.failing = False
        self.open()

    def open(self) -> None:
        self._open.set()

    def close(self) -> None:
        self._open.clear()

    def compute(self, _session: Any, arrays: Any, *_: Any) -> dict[str, Any]:
        assert self._open.wait(SECONDS)
        if self.failing:
            raise capsedge.ArtefactError("It fails.", "The test wants it.", "")
        return {"y": 2 * arrays["x"]}


@contextmanager
def gated(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Put a gate before every inference of this process; it is opened at the end, so that no thread stays."""
    gate = Gate()
    monkeypatch.setattr(inference, "compute_outputs", gate.compute)
    try:
        yield gate
    finally:
        gate.open()
        inference_threads.cache_clear()


@dataclass
class Running:
    """A server that runs.

    Attributes:
        server: the server, to be stopped.
        address: where it listens.
        ended: the number of the signal, once it has ended.
    """

    server: Server
    address: ServerAddress
    ended: asyncio.Future[int]


@asynccontextmanager
async def running(
    folder: Path, *versions: str, stop_timeout: float = 3600.0
) -> AsyncIterator[Running]:
    """A server of a model in one version or several; it is stopped at the end."""
    path = save(_double(), folder / "double.onnx")
    with capsedge.load(path, threads=1) as session:
        served = tuple(
            ServedSession("double", version, str(path), session, BatchSize(1))
            for version in versions or ("1",)
        )
        server = Server(
            ServerSettings(served, "127.0.0.1", ServerPorts(0, 0, 0), 1, 0.0, stop_timeout, "0")
        )
        started: asyncio.Future[ServerAddress] = asyncio.get_running_loop().create_future()
        ended = asyncio.ensure_future(server.run(started.set_result))
        try:
            yield Running(server, await started, ended)
        finally:
            server.stop(15)
            server.stop(15)
            await ended


def _double() -> Any:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "xy"]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])], "double", ports[:1], ports[1:]
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


# --- HTTP ---


@dataclass
class Answer:
    """An answer over HTTP; the status is 0 if the connection was closed without one."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def infer_request(value: float = 1.0, headers: str = "", path: str = INFER) -> bytes:
    """A whole request for an inference."""
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [value]}
    body = json.dumps({"inputs": [tensor]}).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )


class Client:
    """A connection over HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, running: Running, port: int = 0) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port or running.address.ports.rest))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> Answer:
        """The next answer."""
        head = await self._until(b"\r\n\r\n")
        if not head:
            return Answer(0, {}, b"")
        first, *lines = head.decode().strip().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines)
        }
        body = await self._reader.readexactly(int(headers["content-length"]))
        return Answer(int(first.split()[1]), headers, body)

    async def _until(self, end: bytes) -> bytes:
        try:
            return await asyncio.wait_for(self._reader.readuntil(end), SECONDS)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def closed(self) -> bool:
        """Wait until the server closes the connection; whether it did so without another byte."""
        return not await asyncio.wait_for(self._reader.read(), SECONDS)

    async def ask(self, request: bytes) -> Answer:
        self.send(request)
        return await self.answer()


async def ask(running: Running, request: bytes, port: int = 0) -> Answer:
    """The answer to a request on a connection of its own."""
    return await (await Client.connect(running, port)).ask(request)


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


# --- gRPC ---


def channel(running: Running) -> grpc.aio.Channel:
    """A connection of its own, which is not shared with other channels."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    return grpc.aio.insecure_channel(f"127.0.0.1:{running.address.ports.grpc}", own)


def infer_message(value: float = 1.0, name: str = "double", version: str = "") -> bytes:
    asked = message("ModelInferRequest")(model_name=name, model_version=version)
    asked.inputs.add(name="x", datatype="FP32", shape=[1]).contents.fp32_contents.append(value)
    return bytes(asked.SerializeToString())


async def call(channel: grpc.aio.Channel, data: bytes, method: str = "ModelInfer") -> Any:
    """The answer's message, or the status of the refusal."""
    try:
        found = await channel.unary_unary(METHOD + method)(data, timeout=SECONDS)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return message(f"{method}Response").FromString(found)
