"""``capsedge serve``: loaded models behind MLServer, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any

from capsedge import __version__
from capsedge.errors import EnvironmentProblem, UsageError
from capsedge.runtime.load import load
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
) -> int:
    """Serve models by the Open Inference Protocol, version 2, until a signal comes.

    Args:
        models: files, names of the zoo, or ``NAME=FILE`` and ``NAME:VERSION=FILE``.
        ready: called when requests are answered.
        log: gets messages of the engine.
        host: name or address of this machine to listen on.
        ports: to listen on; 0 takes a free one.
        threads: of one inference; as many inferences run at once as cores allow.
        batch: images of waiting requests that run together at most; 1 gathers none, None measures which
            number is best for each model.
        wait_ms: milliseconds that a batch waits for more requests although a core is free.
        device, ops: as for `capsedge.load`.

    Returns:
        The number of the signal.

    Raises:
        UsageError: a file or a name is wrong.
        EnvironmentProblem: MLServer is missing, or a port is taken.
        CapsedgeError: as `capsedge.load`.
    """
    given = parse_model_names(models)
    if not given:
        raise UsageError("There is no model to serve.", "", "Name an ONNX file.")
    if batch == 1 and wait_ms > 0:
        raise UsageError("A batch of one image waits for no others.", "", "Leave out --wait.")
    with ExitStack() as stack:
        sessions = []
        for model in given:
            engine = model.file.endswith(".engine")
            session = load(model.file, device=device, threads=None if engine else threads, ops=ops)
            assert isinstance(session, Session)  # of one file
            sessions.append(stack.enter_context(session))
        # grpc would write a line of its own for messages that it refuses, as often as a client likes.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        _require()
        from capsedge.serving.server import Engine

        sizes = [measure_size(s) if batch is None else fixed_size(s, batch) for s in sessions]
        served = tuple(
            ServedSession(model.name, model.version, model.file, session, size)
            for model, session, size in zip(given, sessions, sizes, strict=True)
        )
        serving = Serving(served, host, ports, threads, wait_ms, __version__)
        _open_files()

        async def run() -> int:
            try:
                engine = Engine(serving, log)
            except OSError as error:
                raise _not_bound(error, host) from error
            return await engine.run(lambda address: ready(serving, address))

        return _loop(run)


def _require() -> None:
    try:
        import_module("mlserver")
        import_module("httptools")
    except ImportError as error:
        old = sys.version_info < (3, 13)
        raise EnvironmentProblem(
            "`capsedge serve` needs MLServer and httptools.",
            f"{error}." if old else "MLServer supports Python up to 3.12.",
            INSTALL if old else f"Use Python 3.12: {INSTALL}",
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
    """Run in uvloop where it is installed, as MLServer does."""
    try:
        import uvloop
    except ImportError:
        return int(asyncio.run(run()))
    return int(uvloop.run(run()))
