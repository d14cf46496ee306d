"""``capsedge serve``: models behind the Open Inference Protocol."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options
from capsedge.cli._output import log, print_json
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._paths import PathRole, check_model, file_or_name
from capsedge.errors import UsageError

if TYPE_CHECKING:
    from capsedge.serving.served_models import Address, BatchSize, Serving


LAST_PORT = 65535
LARGEST_BATCH = 1024
LEVELS = ("error", "warning", "info")


def _file(argument: Any) -> Path | None:
    from capsedge.serving.deploy.server_model import file_of

    return file_or_name(file_of(argument))


Models = Annotated[
    list[Path],
    Argument(
        metavar="MODEL...",
        help=(
            "ONNX files, TensorRT engines, or names from the zoo (digits-em); NAME=FILE or "
            "NAME:VERSION=FILE sets the name that clients use."
        ),
    ),
    PathRole(reads=True, check=check_model, named=_file),
]
Port = Annotated[
    int, Option("--port", min=0, max=LAST_PORT, help="Port of REST; 0 picks a free one.")
]
GrpcPort = Annotated[
    int | None,
    Option("--grpc-port", min=0, max=LAST_PORT, help="Port of gRPC; by default --port plus 1."),
]
MetricsPort = Annotated[
    int | None,
    Option(
        "--metrics-port",
        min=0,
        max=LAST_PORT,
        help="Port of Prometheus metrics; by default --port plus 2.",
    ),
]
Host = Annotated[
    str,
    Option(
        "--host",
        help=(
            "Address to listen on. There is no authentication: everyone who can reach it can use "
            "the server."
        ),
    ),
]
Threads = Annotated[
    int,
    Option(
        "--threads",
        min=1,
        help="Threads of one inference. As many inferences run at once as the cores allow.",
    ),
]
Batch = Annotated[
    str,
    Option(
        "--batch",
        metavar="auto|N",
        help=(
            "Maximum number of images of waiting requests that run together; auto measures the "
            "best number for each model."
        ),
    ),
]
Wait = Annotated[
    float,
    Option(
        "--wait",
        min=0,
        help="Milliseconds that a batch waits for more requests even if a core is free.",
    ),
]
LogLevel = Annotated[
    str,
    Option(
        "--log-level",
        metavar="error|warning|info",
        help="What the server logs; info adds a line per request with path, status, time and id.",
    ),
]


def command(
    models: Models,
    port: Port = 8080,
    grpc_port: GrpcPort = None,
    metrics_port: MetricsPort = None,
    host: Host = "127.0.0.1",
    threads: Threads = 1,
    batch: Batch = "auto",
    wait: Wait = 0.0,
    log_level: LogLevel = "warning",
    ops: _options.Ops = "auto",
    device: _options.Device = None,
    as_json: _options.Json = False,
) -> None:
    """Serve models over REST and gRPC (Open Inference Protocol).

    Ctrl-C stops the server. With --json, the document is printed as soon as it accepts requests.
    """
    from capsedge.serving.serve import serve
    from capsedge.serving.served_models import Ports

    if log_level not in LEVELS:
        raise UsageError(
            f"'{log_level[:20]}' is not a log level.", "", f"Use one of {', '.join(LEVELS)}."
        )

    def ready(serving: Serving, address: Address) -> None:
        if as_json:
            print_json(_document(serving, address))
            sys.stdout.flush()
        else:
            _show(serving, address)

    number = serve(
        [str(model) for model in models], ready, log,
        host=host, ports=Ports(port, *_more_ports(port, grpc_port, metrics_port)),
        threads=threads, batch=_size(batch), wait_ms=wait, device=device, ops=ops,
        log_level=log_level,
    )  # fmt: skip
    log("ended")
    raise SystemExit(128 + number)


def _size(text: str) -> int | None:
    """Images in a batch; None if it is to be measured."""
    if text == "auto":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= LARGEST_BATCH:
        raise UsageError(
            f"'{text[:20]}' is not a batch size.",
            "",
            f"Use --batch auto, or a number from 1 to {LARGEST_BATCH}.",
        )
    return int(text)


def _more_ports(port: int, grpc: int | None, metrics: int | None) -> tuple[int, int]:
    """The ports of gRPC and of metrics."""
    after = [0, 0] if port == 0 else [port + 1, port + 2]
    if max(after) > LAST_PORT and None in (grpc, metrics):
        raise UsageError(
            f"No port follows {port}.", "", "Set --grpc-port and --metrics-port as well."
        )
    return after[0] if grpc is None else grpc, after[1] if metrics is None else metrics


def _document(serving: Serving, address: Address) -> dict[str, Any]:
    return {
        "rest": f"http://{address.host}:{address.ports.rest}",
        "grpc": f"{address.host}:{address.ports.grpc}",
        "metrics": f"http://{address.host}:{address.ports.metrics}/metrics",
        "threads": serving.threads,
        "wait_ms": serving.wait_ms,
        "models": [
            {
                "name": model.name,
                "version": model.version or None,
                "file": str(model.session.path),
                "operators": model.session.backend.ops,
                "batch": model.batch.images,
                "batch_gain": model.batch.gain,
            }
            for model in serving.models
        ],
    }


def _gathered(batch: BatchSize) -> str:
    if batch.images == 1:
        return ""
    gain = f" ({batch.gain:.2f} times as many a second as one by one)" if batch.gain else ""
    return f", up to {batch.images} images in a batch{gain}"


def _show(serving: Serving, address: Address) -> None:
    document = _document(serving, address)
    for model in serving.models:
        version = f", version {model.version}" if model.version else ""
        log(f"serving {model.session.path} as {model.name}{version}{_gathered(model.batch)}")
    log(f"REST {document['rest']}/v2, gRPC {document['grpc']}, metrics {document['metrics']}")
    log("press Ctrl-C to stop")
