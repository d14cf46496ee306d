"""Serve the Open Inference Protocol over gRPC, on grpc's own server.

Every method exchanges plain bytes, message by message. Otherwise grpc would accept any number of messages
before any of this code runs, decode them on the event loop, and log each one that it cannot read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode, aio

from capsedge.errors import UsageError
from capsedge.runtime.files.text import printable
from capsedge.serving.client_limits import (
    BudgetShare,
    Full,
    MemoryBudget,
    run_off_loop,
    unserved_model_message,
)
from capsedge.serving.grpc_messages import message as message_class
from capsedge.serving.grpc_messages import metadata_message
from capsedge.serving.grpc_requests import from_grpc
from capsedge.serving.inference import Model, ModelFailed
from capsedge.serving.monitoring import Access, logger
from capsedge.serving.request_bodies import MalformedRequest
from capsedge.serving.responses import PLATFORM, response_bytes, to_grpc
from capsedge.serving.rest import EXTENSIONS, Models, repository_index
from capsedge.serving.stopping import REFUSED, RunningRequest, Stopping
from capsedge.spec import limits

_SERVICE = "inference.GRPCInferenceService"
_SHORT = 4096  # most bytes of a message that only names a model
_HEALTH = ("ServerLive", "ServerReady", "ModelReady")  # answered until the end
_CLOSED = ("RepositoryModelLoad", "RepositoryModelUnload")
_OPTIONS = [
    ("grpc.max_receive_message_length", limits.REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),  # the values of an answer have their own limit
    # Compressed messages would be unpacked before their size is checked, so they are refused, as over HTTP.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_concurrent_streams", limits.PIPELINED),  # of one connection
    # Otherwise grpc refuses calls at random from a client with more than these, instead of letting them wait.
    ("grpc.http.overload_protection", 0),
    # The bytes that a connection may send unread do not grow with the speed of the line.
    ("grpc.http2.bdp_probe", 0),
    # A second server on the same port would silently take some of its requests.
    ("grpc.so_reuseport", 0),
]
_Exchange = Callable[[Any, RunningRequest], Awaitable[None]]
_Respond = Callable[["_Message"], Awaitable[bytes]]


class _RefusedCall(Exception):
    def __init__(self, code: StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class _Message:
    """A message, which its reader takes out, and the bytes that the server holds for it.

    Otherwise an error that grpc keeps for a while would keep its frames alive, and with them the bytes.
    """

    share: BudgetShare
    access: Access

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def take(self) -> bytes:
        """Return the bytes; works once."""
        data, self._data = self._data, b""
        return data


class _Service:
    """Answers messages.

    Args:
        models: by name and version; the default version is also there as the empty one.
        budget: counts what the server holds.
        stopping: whether the server is being stopped.
    """

    def __init__(
        self, models: Models, version: str, budget: MemoryBudget, stopping: Stopping
    ) -> None:
        self._models, self._version, self._budget = models, version, budget
        self._stopping = stopping

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """A handler for each method."""
        about: dict[str, Callable[[Any], dict[str, Any]]] = {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": self._stopping.ready},
            "ServerMetadata": lambda _: {
                "name": PLATFORM, "version": self._version, "extensions": EXTENSIONS,
            },
            "ModelReady": lambda asked: {
                "ready": bool(self._named(asked.name, asked.version)) and self._stopping.ready,
            },
            "ModelMetadata": lambda asked: self._named(asked.name, asked.version).metadata,
            "RepositoryIndex": lambda _: {"models": repository_index(self._models)},
        }  # fmt: skip
        responses: dict[str, _Respond] = {
            name: partial(self._about, name, say) for name, say in about.items()
        }
        responses |= dict.fromkeys(_CLOSED, _closed)
        responses["ModelInfer"] = responses["ModelStreamInfer"] = self._infer
        exchanges = {
            name: partial(self._each if name == "ModelStreamInfer" else self._once, name, respond)
            for name, respond in responses.items()
        }
        return {
            name: grpc.stream_stream_rpc_method_handler(partial(self._running, name, exchange))
            for name, exchange in exchanges.items()
        }

    async def _running(
        self, name: str, exchange: _Exchange, _requests: object, context: Any
    ) -> None:
        """Answer a call, unless the server is being stopped."""
        if name not in _HEALTH and not self._stopping.admits(context.peer()):
            await context.abort(StatusCode.UNAVAILABLE, REFUSED)
        with self._stopping.take(context.peer()) as taken:
            try:
                await exchange(context, taken)
            except asyncio.CancelledError:
                if not taken.dropped:
                    raise
                await context.abort(StatusCode.UNAVAILABLE, REFUSED)

    async def _once(
        self, name: str, respond: _Respond, context: Any, taken: RunningRequest
    ) -> None:
        message = await self._arrived(context, taken)
        if message is None:
            await context.abort(StatusCode.INVALID_ARGUMENT, "There is no message.")
        else:
            await self._answered(name, respond, message, context, taken)

    async def _each(
        self, name: str, respond: _Respond, context: Any, taken: RunningRequest
    ) -> None:
        while message := await self._arrived(context, taken):
            await self._answered(name, respond, message, context, taken)

    async def _arrived(self, context: Any, taken: RunningRequest) -> _Message | None:
        """The next message; None if there are no more."""
        taken.listen()
        try:
            message = await self._budget.arrive(context.read)
        except Full as error:
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, str(error))
        taken.quiet_since = None
        return None if message is aio.EOF else _Message(message)

    async def _answered(
        self, name: str, respond: _Respond, message: _Message, context: Any, taken: RunningRequest
    ) -> None:
        access = Access("grpc", name, "", context.peer())
        with access, self._budget.share() as share:
            message.share, message.access = share, access
            try:
                response = await self._response(respond, message)
                await asyncio.wait_for(context.write(response), limits.REQUEST_SECONDS)
                access.status = "OK"
                return
            except asyncio.TimeoutError:
                code, why = StatusCode.DEADLINE_EXCEEDED, "The answer was not taken."
            except _RefusedCall as error:
                code, why = error.code, str(error)
            except asyncio.CancelledError:
                access.status = StatusCode.UNAVAILABLE.name if taken.dropped else access.status
                raise
            access.status = code.name
            message.take()
            await context.abort(code, printable(why))

    async def _response(self, respond: _Respond, message: _Message) -> bytes:
        """An answer. Raises _RefusedCall if the request is wrong, or the server failed."""
        try:
            message.share.take(message.size)
            return await respond(message)
        except _RefusedCall:
            raise
        except Full as error:
            raise _RefusedCall(StatusCode.RESOURCE_EXHAUSTED, str(error)) from None
        except (MalformedRequest, DecodeError) as error:
            why = f"This is not an inference request: {error}."
            raise _RefusedCall(StatusCode.INVALID_ARGUMENT, why) from None
        except UsageError as error:
            why = " ".join(str(error).splitlines())
            raise _RefusedCall(StatusCode.INVALID_ARGUMENT, why) from None
        except ModelFailed as error:
            raise _RefusedCall(StatusCode.INTERNAL, str(error)) from None
        except Exception as error:
            logger.exception(error)
            why = "The server failed; its log says why."
            raise _RefusedCall(StatusCode.INTERNAL, why) from None

    async def _about(
        self, name: str, say: Callable[[Any], dict[str, Any]], message: _Message
    ) -> bytes:
        if message.size > _SHORT:
            raise MalformedRequest("it is too long for a message that only names a model")
        document = say(message_class(f"{name}Request").FromString(message.take()))
        if name == "ModelMetadata":
            return bytes(metadata_message(document).SerializeToString())
        return bytes(message_class(f"{name}Response")(**document).SerializeToString())

    async def _infer(self, message: _Message) -> bytes:
        name, version, asked = await run_off_loop(message.size, lambda: from_grpc(message.take()))
        message.access.id = asked.id or ""
        model, raw = self._named(name, version), asked.raw
        answer = await model.infer(asked)
        message.access.id = answer.id
        message.share.take(response_bytes(answer))
        return await run_off_loop(response_bytes(answer), to_grpc, answer, raw)

    def _named(self, name: str, version: str) -> Model:
        model = self._models.get((name, version))
        if model is None:
            raise _RefusedCall(StatusCode.NOT_FOUND, unserved_model_message(name, version))
        return model


async def _closed(_message: _Message) -> bytes:
    raise _RefusedCall(StatusCode.UNIMPLEMENTED, "Models cannot be loaded or unloaded remotely.")


def grpc_server(
    models: Models, version: str, budget: MemoryBudget, stopping: Stopping, address: str
) -> tuple[aio.Server, int]:
    """A server, not yet started, on ``host:port`` (0 takes a free one), and its port."""
    server = aio.server(
        ThreadPoolExecutor(1), options=_OPTIONS, maximum_concurrent_rpcs=limits.REQUESTS
    )
    handlers = _Service(models, version, budget, stopping).handlers()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
    try:
        port = int(server.add_insecure_port(address))
    except RuntimeError:
        port = 0
    if not port:
        raise OSError(0, "The port is taken, or may not be used")
    return server, port
