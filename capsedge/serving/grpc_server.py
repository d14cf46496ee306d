"""MLServer's gRPC service with limits, without the repository, and on a port of its own."""

from __future__ import annotations

import struct
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from grpc import StatusCode, aio
from mlserver.errors import InferenceError, MLServerError, ModelNotFound
from mlserver.grpc.dataplane_pb2_grpc import add_GRPCInferenceServiceServicer_to_server
from mlserver.grpc.interceptors import PromServerInterceptor
from mlserver.grpc.server import GRPCServer
from mlserver.grpc.servicers import InferenceServicer
from mlserver.types import InferenceRequest

from capsedge.errors import UsageError
from capsedge.runtime.files import limits
from capsedge.serving.tensors import check_size

_MALFORMED = (ValueError, LookupError, OverflowError, struct.error)


class _Servicer(InferenceServicer):
    """MLServer's answers, for models that are served; wrong requests are the client's errors.

    Args:
        known: name and version of each model; an empty version is the default one.
    """

    def __init__(self, data_plane: Any, handlers: Any, known: Collection[tuple[str, str]]) -> None:
        super().__init__(data_plane, handlers)
        self._known = known

    def _InsertHeaders(self, request: Any, context: Any) -> InferenceRequest:  # noqa: N802
        if (request.model_name, request.model_version) not in self._known:
            raise ModelNotFound(request.model_name[:80], request.model_version[:80] or None)
        try:
            for tensor in request.inputs:
                check_size(tensor.name, list(tensor.shape))
            return super()._InsertHeaders(request, context)
        except MLServerError:
            raise
        except UsageError as error:
            raise InferenceError(" ".join(str(error).splitlines())) from error
        except _MALFORMED as error:
            raise InferenceError(
                "A tensor's contents do not fit its datatype and shape."
            ) from error

    async def RepositoryIndex(self, request: Any, context: Any) -> None:  # noqa: N802
        await _refuse(context)

    async def RepositoryModelLoad(self, request: Any, context: Any) -> None:  # noqa: N802
        await _refuse(context)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> None:  # noqa: N802
        await _refuse(context)


async def _refuse(context: Any) -> None:
    await context.abort(StatusCode.UNIMPLEMENTED, "Models are not loaded or unloaded remotely.")


class GrpcServer(GRPCServer):
    """The service, on a port that `bind` takes.

    Args:
        settings, data_plane, handlers: MLServer's.
        known: as for `_Servicer`.
    """

    def __init__(
        self, settings: Any, data_plane: Any, handlers: Any, known: Collection[tuple[str, str]]
    ) -> None:
        super().__init__(settings, data_plane, handlers)
        self._servicer = _Servicer(data_plane, handlers, known)

    def bind(self, address: str) -> int:
        """Take the port of an address ``host:port``; 0 takes a free one.

        Returns:
            The port.

        Raises:
            OSError: it cannot be taken.
        """
        self._server = aio.server(
            ThreadPoolExecutor(1),
            interceptors=[PromServerInterceptor(enable_handling_time_histogram=True)],
            options=[
                ("grpc.max_receive_message_length", limits.REQUEST_BYTES),
                # One more server on a port would silently take a part of its requests.
                ("grpc.so_reuseport", 0),
            ],
            maximum_concurrent_rpcs=limits.REQUESTS,
        )
        add_GRPCInferenceServiceServicer_to_server(self._servicer, self._server)
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
