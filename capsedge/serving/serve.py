"""``capsedge serve``: loaded models behind REST and gRPC, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from capsedge import __version__
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.load import load
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.session import Session
from capsedge.serving.deploy.server_model import parse_model_names
from capsedge.serving.served_models import (
    Address,
    Ports,
    ServedSession,
    Serving,
    fixed_size,
    measure_size,
)
from capsedge.spec import limits

INSTALL = "pip install 'capsedge[serve]'"
_PACKAGES = (
    "google.protobuf", "grpc", "httptools", "orjson", "prometheus_client", "starlette", "uvicorn",
)  # fmt: skip


def serve(
    models: Sequence[str],
    ready: Callable[[Serving, Address], None],
    log: Callable[[str], None],
    *,
    host: str = "127.0.0.1",
    ports: Ports = Ports(8080, 8081, 8082),  # noqa: B008 - frozen
    threads: int = 1,
    batch: int | None = None,
    wait_ms: float = 0.0,
    device: str | None = None,
    ops: str = "auto",
    log_level: str = "warning",
) -> int:
    """Serve models by the Open Inference Protocol, version 2, until a signal comes.

    Args:
        models: files, names of the zoo, or ``NAME=FILE`` and ``NAME:VERSION=FILE``.
        ready: called when requests are answered.
        log: gets messages of the server.
        host: name or address of this machine to listen on.
        ports: to listen on; 0 takes a free one.
        threads: of one inference; as many inferences run at once as cores allow.
        batch: images of waiting requests that run together at most; 1 gathers none, None measures which
            number is best for each model.
        wait_ms: milliseconds that a batch waits for more requests although a core is free.
        device, ops: as for `capsedge.load`.
        log_level: ``error``, ``warning`` or ``info``, which tells of every request.

    Returns:
        The number of the signal.

    Raises:
        UsageError: a file or a name is wrong.
        EnvironmentProblem: a package is missing, or a port is taken.
        CapsedgeError: as `capsedge.load`.
    """
    given = parse_model_names(models)
    if not given:
        raise UsageError("There is no model to serve.", "", "Pass an ONNX file.")
    if batch == 1 and wait_ms > 0:
        raise UsageError("--wait has no effect with --batch 1.", "", "Leave out --wait.")
    with ExitStack() as stack:
        sessions = []
        for model in given:
            engine = model.file.endswith(".engine")
            session = load(
                model.file,
                RuntimeOptions(device=device, threads=None if engine else threads, ops=ops),
            )
            assert isinstance(session, Session)  # of one file
            sessions.append(stack.enter_context(session))
        # grpc would write a line of its own for messages that it refuses, as often as a client likes.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        _require()
        from capsedge.serving.monitoring import start_log
        from capsedge.serving.server import Server

        sizes = [measure_size(s) if batch is None else fixed_size(s, batch) for s in sessions]
        served = tuple(
            ServedSession(model.name, model.version, model.file, session, size)
            for model, session, size in zip(given, sessions, sizes, strict=True)
        )
        serving = Serving(served, host, ports, threads, wait_ms, __version__)
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
    """Let the process have as many connections as the server takes; often 1024 files are the default."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # no Unix, or not permitted
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = max(now, min(most, 2 * limits.REQUESTS))
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _loop(run: Callable[[], Any]) -> int:
    """Run in uvloop, which Windows does not have."""
    try:
        import uvloop
    except ImportError:
        return int(asyncio.run(run()))
    return int(uvloop.run(run()))
