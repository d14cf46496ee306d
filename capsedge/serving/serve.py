"""``capsedge serve``: serve loaded models over REST and gRPC until a signal arrives."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from capsedge import __version__
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.options import takes_options
from capsedge.runtime.load import load
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session.session import Session
from capsedge.serving.serve_options import ServeOptions
from capsedge.serving.served_models import (
    ServedSession,
    ServerAddress,
    ServerPorts,
    ServerSettings,
    fixed_size,
    measure_size,
)
from capsedge.serving.server_model import parse_model_names
from capsedge.spec import limits

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.keywords import ServeKeywords

INSTALL = "pip install 'capsedge[serve]'"
_PACKAGES = (
    "google.protobuf", "grpc", "httptools", "orjson", "prometheus_client", "starlette", "uvicorn",
)  # fmt: skip


@takes_options(ServeOptions)
def serve(
    models: str | Sequence[str],
    options: ServeOptions = ServeOptions(),
    *,
    ready: Callable[[ServerSettings, ServerAddress], None] = lambda _serving, _address: None,
    log: Callable[[str], None] = lambda _: None,
    **_keywords: Unpack[ServeKeywords],
) -> int:
    """Serve models over the Open Inference Protocol, version 2, until a signal arrives.

    Args:
        models: files, names of the zoo, or ``NAME=FILE`` and ``NAME:VERSION=FILE``.
        ready: called when the server accepts requests.
        log: called with the server's messages.

    Returns:
        The number of the signal.

    Raises:
        UsageError: a file or a name is wrong.
        EnvironmentProblem: a package is missing, or a port is taken.
        CapsedgeError: as `capsedge.load`.

    Example:
        >>> capsedge.serve("digits.onnx", port=9000)
    """
    named = parse_model_names([models] if isinstance(models, str) else models)
    if not named:
        raise UsageError("There is no model to serve.", "", "Pass an ONNX file.")
    threads, batch, host, ports = (
        options.threads,
        options.batch,
        options.host,
        ServerPorts(*options.ports),
    )
    wait_ms, log_level = options.wait, options.log_level
    with ExitStack() as stack:
        sessions = []
        for model in named:
            engine = model.file.endswith(".engine")
            session = load(
                model.file,
                RuntimeOptions(
                    device=options.device,
                    threads=None if engine else threads,
                    ops=options.ops,
                    graphs=options.graphs,
                ),
            )
            assert isinstance(session, Session)  # a single file loads as a Session
            sessions.append(stack.enter_context(session))
        # grpc would write its own line for each message that it refuses, as often as a client sends one.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        _require()
        from capsedge.serving.monitoring import start_log
        from capsedge.serving.server import Server

        sizes = [
            fixed_size(s, batch) if isinstance(batch, int) else measure_size(s) for s in sessions
        ]
        served = tuple(
            ServedSession(model.name, model.version, model.file, session, size)
            for model, session, size in zip(named, sessions, sizes, strict=True)
        )
        serving = ServerSettings(
            served, host, ports, threads, wait_ms, options.stop_timeout, __version__
        )
        _open_files()
        start_log(log_level, log)

        async def run() -> int:
            try:
                server = Server(serving)
            except OSError as error:
                raise _not_bound(error, host) from error
            return await server.run(lambda address: ready(serving, address))

        return _loop(run)


def _require() -> None:
    try:
        for package in _PACKAGES:
            import_module(package)
    except ImportError as error:
        raise EnvironmentProblem(
            "`capsedge serve` needs packages that are not installed.", f"{error}.", INSTALL
        ) from error


def _not_bound(error: OSError, host: str) -> EnvironmentProblem:
    unknown = (error.errno or 0) < 0 or error.errno == errno.EADDRNOTAVAIL  # of names, below 0
    option = "--host" if unknown else str(error.filename)
    return EnvironmentProblem(
        f"Cannot serve on {host} ({option}).",
        f"{error.strerror}.",
        f"Choose another with {option}.",
    )


def _open_files() -> None:
    """Allow the process as many open files as the server accepts connections; the default is often 1024."""
    if sys.platform != "win32":
        import resource

        with contextlib.suppress(ValueError, OSError):  # not permitted
            now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
            wanted = max(now, min(most, 2 * limits.REQUESTS))
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _loop(run: Callable[[], Any]) -> int:
    """Run in uvloop, except on Windows, which it does not support."""
    try:
        import uvloop
    except ImportError:
        return int(asyncio.run(run()))
    return int(uvloop.run(run()))
