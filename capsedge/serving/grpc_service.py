"""The gRPC service of the Open Inference Protocol, on grpc's own server.

Every method takes and gives plain bytes, message by message: grpc would otherwise take up any number of
messages before a line of this runs, decode them on the event loop, and log each one that it cannot read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import StatusCode, aio
from mlserver.errors import MLServerError
from mlserver.grpc import dataplane_pb2 as pb
from mlserver.grpc.interceptors import PromServerInterceptor
from mlserver.grpc.server import GRPCServer
from mlserver.grpc.servicers import InferenceServicer
from mlserver.logging import logger

from capsedge.serving.client_limits import BudgetShare, Full, MemoryBudget, missing, run_off_loop
from capsedge.serving.request_bodies import Malformed, from_grpc
from capsedge.serving.responses import size_of, to_grpc
from capsedge.spec import limits

_SERVICE = "inference.GRPCInferenceService"
_SHORT = 4096  # bytes of a message that only names a model
_STATUS = {
    400: StatusCode.INVALID_ARGUMENT, 404: StatusCode.NOT_FOUND, 503: StatusCode.UNAVAILABLE,
}  # fmt: skip
_ASKED = {
    "ServerLive": pb.ServerLiveRequest, "ServerReady": pb.ServerReadyRequest,
    "ServerMetadata": pb.ServerMetadataRequest, "ModelReady": pb.ModelReadyRequest,
    "ModelMetadata": pb.ModelMetadataRequest,
}  # fmt: skip
_CLOSED = ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
_OPTIONS = [
    ("grpc.max_receive_message_length", limits.REQUEST_BYTES),
    ("grpc.max_send_message_length", -1),  # the values of an answer have their limit
    # Compressed messages are unpacked before their size is checked: none are taken, as over HTTP.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.max_concurrent_streams", limits.PIPELINED),  # of one connection
    # What a connection may send before anybody reads it does not grow with the speed of the line.
    ("grpc.http2.bdp_probe", 0),
    # One more server on a port would silently take a part of its requests.
    ("grpc.so_reuseport", 0),
]
_ResponseT = Callable[["_Message", Any], Awaitable[bytes]]


class _Refused(Exception):
    def __init__(self, code: StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class _Message:
    """A message that whoever reads it takes out, and what the server holds for it.

    An error that grpc keeps for a while would otherwise keep the frames that it went through, and with them
    the bytes.
    """

    share: BudgetShare

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def take(self) -> bytes:
        """The bytes; once."""
        data, self._data = self._data, b""
        return data


class _Service:
    """Answers messages.

    Args:
        data_plane, handlers: MLServer's.
        known: name and version of each model; an empty version is the default one.
        held: counts what the server holds.
    """

    def __init__(
        self,
        data_plane: Any,
        handlers: Any,
        known: Collection[tuple[str, str]],
        budget: MemoryBudget,
    ) -> None:
        self._data_plane, self._known, self._budget = data_plane, known, budget
        self._servicer = InferenceServicer(data_plane, handlers)
        self._counted = PromServerInterceptor(enable_handling_time_histogram=True)

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """A handler for each method."""
        answers: dict[str, _ResponseT] = {name: partial(self._about, name) for name in _ASKED}
        answers |= dict.fromkeys(_CLOSED, _closed)
        answers["ModelInfer"] = self._infer
        found = {
            name: partial(self._once, self._counting(name, answer))
            for name, answer in answers.items()
        }
        counted = self._counting("ModelStreamInfer", self._infer)
        found["ModelStreamInfer"] = partial(self._each, counted)
        return {
            name: grpc.stream_stream_rpc_method_handler(behaviour)
            for name, behaviour in found.items()
        }

    def _counting(self, name: str, answer: _ResponseT) -> _ResponseT:
        """The same, counted in the metrics."""
        counted: _ResponseT = self._counted._metrics_wrapper(
            (_SERVICE, name, ""), partial(self._refusing, answer), False, False
        )
        return counted

    async def _once(self, answer: _ResponseT, _requests: object, context: Any) -> None:
        message = await self._arrived(context)
        if message is None:
            await context.abort(StatusCode.INVALID_ARGUMENT, "There is no message.")
        else:
            await self._answered(answer, message, context)

    async def _each(self, answer: _ResponseT, _requests: object, context: Any) -> None:
        while message := await self._arrived(context):
            await self._answered(answer, message, context)

    async def _arrived(self, context: Any) -> _Message | None:
        """The next message; None where there are no more."""
        try:
            message = await self._budget.arrive(context.read)
        except Full as error:
            await context.abort(StatusCode.RESOURCE_EXHAUSTED, str(error))
        return None if message is aio.EOF else _Message(message)

    async def _answered(self, answer: _ResponseT, message: _Message, context: Any) -> None:
        with self._budget.share() as share:
            message.share = share
            found = await answer(message, context)
            try:
                await asyncio.wait_for(context.write(found), limits.REQUEST_SECONDS)
            except asyncio.TimeoutError:
                await context.abort(StatusCode.DEADLINE_EXCEEDED, "The answer was not taken.")

    async def _refusing(self, answer: _ResponseT, message: _Message, context: Any) -> bytes:
        """An answer; what is wrong with a request becomes its status."""
        try:
            message.share.take(message.size)
            return await answer(message, context)
        except _Refused as error:
            code, why = error.code, str(error)
        except Full as error:
            code, why = StatusCode.RESOURCE_EXHAUSTED, str(error)
        except (Malformed, DecodeError) as error:
            code, why = StatusCode.INVALID_ARGUMENT, f"This is no inference request: {error}."
        except MLServerError as error:
            code, why = _STATUS.get(error.status_code, StatusCode.INTERNAL), str(error)
        except Exception as error:
            logger.exception(error)
            code, why = StatusCode.INTERNAL, "The server failed; its log says why."
        message.take()
        await context.abort(code, why)
        raise AssertionError("abort returns never")

    async def _about(self, name: str, message: _Message, context: Any) -> bytes:
        if message.size > _SHORT:
            raise Malformed("it is too long for one that only names a model")
        request = _ASKED[name].FromString(message.take())
        if name.startswith("Model"):
            self._check_known(request.name, request.version)
        found = await getattr(self._servicer, name)(request, context)
        return bytes(found.SerializeToString())

    async def _infer(self, message: _Message, _context: Any) -> bytes:
        name, version, payload = await run_off_loop(message.size, lambda: from_grpc(message.take()))
        self._check_known(name, version)
        raw = payload.raw
        answer = await self._data_plane.infer(payload, name, version)
        message.share.take(size_of(answer))
        return await run_off_loop(size_of(answer), to_grpc, answer, raw)

    def _check_known(self, name: str, version: str) -> None:
        if (name, version) not in self._known:
            raise _Refused(StatusCode.NOT_FOUND, missing(name, version))


async def _closed(_message: _Message, _context: Any) -> bytes:
    raise _Refused(StatusCode.UNIMPLEMENTED, "Models are not loaded or unloaded remotely.")


class GrpcServer(GRPCServer):
    """The service, on a port that `bind` takes.

    Args:
        settings, data_plane, handlers: MLServer's.
        known, held: as for `_Service`.
    """

    def __init__(
        self,
        settings: Any,
        data_plane: Any,
        handlers: Any,
        known: Collection[tuple[str, str]],
        budget: MemoryBudget,
    ) -> None:
        super().__init__(settings, data_plane, handlers)
        self._service = _Service(data_plane, handlers, known, budget)

    def bind(self, address: str) -> int:
        """Take the port of an address ``host:port``; 0 takes a free one.

        Returns:
            The port.

        Raises:
            OSError: it cannot be taken.
        """
        self._server = aio.server(
            ThreadPoolExecutor(1), options=_OPTIONS, maximum_concurrent_rpcs=limits.REQUESTS
        )
        handlers = grpc.method_handlers_generic_handler(_SERVICE, self._service.handlers())
        self._server.add_generic_rpc_handlers((handlers,))
        try:
            port = int(self._server.add_insecure_port(address))
        except RuntimeError as error:
            raise OSError(0, "The port is taken, or may not be used") from error
        if not port:
            raise OSError(0, "The port is taken, or may not be used")
        return port

    async def start(self) -> None:
        """Answer until `stop` is called."""
        await self._server.start()
        await self._server.wait_for_termination()
