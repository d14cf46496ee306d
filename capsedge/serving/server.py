"""MLServer, set up by capsedge: everything from arguments, nothing from files or the environment."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import math
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn
from mlserver import MLServer, ModelSettings, Settings
from mlserver.metrics.server import MetricsServer
from mlserver.middleware import InferenceMiddlewares
from mlserver.registry import MultiModelRegistry
from mlserver.repository import ModelRepository
from mlserver.rest import RESTServer
from mlserver.settings import ModelParameters
from starlette.routing import BaseRoute

from capsedge.serving.client_limits import PATHS, Guard, MemoryBudget
from capsedge.serving.grpc_service import GrpcServer
from capsedge.serving.mlserver_runtime import CapsedgeModel
from capsedge.serving.rest import Connection, Inference
from capsedge.serving.served_models import Address, Ports, Serving
from capsedge.spec import limits

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_GRACE = 10  # seconds that running requests have to end
_STEP = 0.01  # seconds between looks whether a server has started
METRICS = "/metrics"
_MESSAGES, _MESSAGES_SECONDS = 20, 10.0  # so many in so many seconds are told
_MESSAGE_CHARACTERS = 1000
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


class _ArgumentsOnly:
    """Settings from arguments; ``MLSERVER_*`` and ``.env`` of the current folder change nothing."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type, init_settings: Any, **_others: Any
    ) -> tuple[Any]:
        return (init_settings,)


class _Settings(_ArgumentsOnly, Settings):
    pass


class _ModelSettings(_ArgumentsOnly, ModelSettings):
    pass


class _ModelParameters(_ArgumentsOnly, ModelParameters):
    pass


class _NoRepository(ModelRepository):
    """No model is found anywhere: those that are served are given."""

    def __init__(self, **_settings: Any) -> None:
        super().__init__()

    async def list(self) -> Sequence[ModelSettings]:
        return []

    async def find(self, name: str) -> Sequence[ModelSettings]:
        return []


class _Uvicorn(uvicorn.Server):
    """Without signal handlers, which belong to the engine."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Web:
    """Runs an application of MLServer on a socket that is bound already."""

    _server: uvicorn.Server
    _app: Any
    socket: socket.socket

    async def start(self) -> None:
        config = uvicorn.Config(
            self._app,
            http=Connection,
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=limits.REQUESTS,
            timeout_graceful_shutdown=_GRACE,
            lifespan="off",
        )
        self._server = _Uvicorn(config)
        await self._server.serve(sockets=[self.socket])

    def keep(self, paths: frozenset[str], own: Sequence[BaseRoute] = ()) -> None:
        """Remove all other paths, and answer the ``own`` ones first."""
        router = self._app.router
        router.routes = [*own, *(route for route in router.routes if route.path in paths)]


class _Rest(_Web, RESTServer):
    """MLServer's REST endpoints."""


class _Metrics(_Web, MetricsServer):
    """MLServer's Prometheus endpoint."""


class Engine(MLServer):
    """An MLServer for loaded models. Create it inside a running event loop.

    Args:
        serving: what is served, and where.

    Raises:
        OSError: a port cannot be taken; ``filename`` is its option.
    """

    def __init__(self, serving: Serving, log: Callable[[str], None]) -> None:
        self._serving, self._log = serving, log
        self.signal = 0  # that ended it
        super().__init__(
            _Settings(
                debug=False, parallel_workers=0, host=serving.host, server_name="capsedge",
                server_version=serving.version, metrics_endpoint=METRICS, gzip_enabled=False,
                load_models_at_startup=False, model_repository_implementation=_NoRepository,
                model_repository_root="", grpc_max_message_length=limits.REQUEST_BYTES,
            )
        )  # fmt: skip
        self.address = self._bind()

    def _create_model_registry(self) -> MultiModelRegistry:
        return MultiModelRegistry(model_initialiser=self._initialise)

    def _initialise(self, settings: ModelSettings) -> CapsedgeModel:
        served = self._serving.find(settings.name, settings.version)
        return CapsedgeModel(settings, served.session)

    def _configure_logger(self) -> None:
        handler = _Messages(self._log)
        for name in ("mlserver", "uvicorn", "grpc"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [handler], False
            logger.setLevel(logging.WARNING)

    def _create_servers(self) -> None:
        known, handlers = self._serving.known(), self._model_repository_handlers
        # Otherwise every request and answer gets six headers for Seldon's request logger (CloudEvents).
        self._data_plane._inference_middleware = InferenceMiddlewares()
        self._rest_server = _Rest(self._settings, self._data_plane, handlers)
        self._rest_server.keep(PATHS, Inference(self._data_plane).routes())
        budget = MemoryBudget()
        self._rest_server._app.add_middleware(
            Guard, hosts=_hosts(self._serving.host), known=known, held=budget
        )
        self._grpc_server = GrpcServer(self._settings, self._data_plane, handlers, known, budget)
        self._metrics_server = _Metrics(self._settings)
        self._metrics_server.keep(frozenset({METRICS}))
        self._kafka_server = None

    def _bind(self) -> Address:
        host, ports = self._serving.host, self._serving.ports
        taken: list[int] = []
        for option, server, port in (
            ("--port", self._rest_server, ports.rest),
            ("--metrics-port", self._metrics_server, ports.metrics),
        ):
            with _named(option):
                server.socket = _socket(host, port)
                taken.append(server.socket.getsockname()[1])
        with _named("--grpc-port"):
            grpc = self._grpc_server.bind(f"{_bracketed(host)}:{ports.grpc}")
        return Address(_bracketed(host), Ports(taken[0], grpc, taken[1]))

    def _add_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._end, number)

    def _end(self, number: int) -> None:
        if not self.signal:
            self.signal = int(number)
            self._ending = asyncio.ensure_future(self.stop(number))

    async def run(self, ready: Callable[[Address], None]) -> int:
        """Serve until a signal comes.

        Args:
            ready: called with the addresses when requests are answered.

        Returns:
            The number of the signal.
        """
        for served in self._serving.models:
            await self._model_registry.load(
                _ModelSettings(
                    implementation=CapsedgeModel,
                    name=served.name,
                    max_batch_size=served.batch.images,
                    max_batch_time=self._serving.wait_ms / 1000,
                    parameters=_ModelParameters(
                        version=served.version or None,
                        uri=str(served.session.path),
                        extra={"threads": self._serving.threads},
                    ),
                )
            )
        webs = (self._rest_server, self._metrics_server)
        servers = [asyncio.ensure_future(s.start()) for s in (*webs, self._grpc_server)]
        while not self.signal and not all(_started(web) for web in webs):
            await asyncio.sleep(_STEP)
        if not self.signal:
            # What is loaded by now stays: without this the collector looks through all of it again and again.
            gc.collect()
            gc.freeze()
            ready(self.address)
        await asyncio.gather(*servers)
        await self._ending
        return self.signal


class _Messages(logging.Handler):
    """Messages of the engine, one line each. What a client did wrong is told to the client alone.

    No client can fill a disk with them: of those that come together only the first are told, and a count.
    """

    def __init__(self, log: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._tell = log
        self._since, self._told = -math.inf, 0

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if getattr(error, "status_code", 500) < 500:
            return
        if record.created >= self._since + _MESSAGES_SECONDS:
            if self._told > _MESSAGES:
                self._tell(f"{self._told - _MESSAGES:,} more messages of the server were left out")
            self._since, self._told = record.created, 0
        self._told += 1
        if self._told > _MESSAGES:
            return
        text = " ".join(record.getMessage().split())
        text = text if error is None else f"{text}: {type(error).__name__}: {error}"
        self._tell(text[:_MESSAGE_CHARACTERS])


def _started(web: _Web) -> bool:
    return bool(getattr(getattr(web, "_server", None), "started", False))


@contextlib.contextmanager
def _named(option: str) -> Iterator[None]:
    """Name the option of a port in errors."""
    try:
        yield
    except OSError as error:
        error.filename = option
        raise


def _socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=limits.REQUESTS)
    # Accepted connections inherit it. Without it an answer waits 40 ms for the client's acknowledgement.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _hosts(host: str) -> Sequence[str]:
    """The names of the ``Host`` header; any where the server is not for this machine alone.

    On the loopback address a page of another site could otherwise reach it by DNS rebinding.
    """
    with contextlib.suppress(ValueError):
        return _LOOPBACK_NAMES if ipaddress.ip_address(host).is_loopback else ()
    return _LOOPBACK_NAMES if host == "localhost" else ()
