"""``capsedge serve``: serves models over the Open Inference Protocol."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options
from capsedge.cli._options import Argument, grouped
from capsedge.cli._output import log, print_json
from capsedge.cli._paths import PathRole, check_model, model_file_unless_name
from capsedge.cli._process import leave
from capsedge.serving.serve_options import ServeOptions

if TYPE_CHECKING:
    from capsedge.serving.served_models import BatchSize, ServerAddress, ServerSettings


def _file(argument: Any) -> Path | None:
    from capsedge.serving.server_model import file_of_model_argument

    return model_file_unless_name(file_of_model_argument(argument))


Models = Annotated[
    list[Path],
    Argument(
        metavar="MODEL...",
        help=(
            "ONNX files, TensorRT engines, or names from the zoo (digits-em); NAME=FILE or "
            "NAME:VERSION=FILE sets the name that clients use."
        ),
        complete="zoo",
    ),
    PathRole(reads=True, check=check_model, named=_file),
]


@grouped
def command(
    models: Models,
    options: ServeOptions,
    as_json: _options.Json = False,
) -> None:
    """Serve models over REST and gRPC (Open Inference Protocol).

    Ctrl-C stops the server. With --json, the document is printed as soon as it accepts requests.
    """
    from capsedge.serving.serve import serve

    def ready(serving: ServerSettings, address: ServerAddress) -> None:
        if as_json:
            print_json(_document(serving, address))
            sys.stdout.flush()
        else:
            _show(serving, address)

    number = serve([str(model) for model in models], options, ready=ready, log=log)
    log("ended")
    leave(128 + number)


def _document(serving: ServerSettings, address: ServerAddress) -> dict[str, Any]:
    from capsedge.runtime.backends.backend import cuda_graphs_text

    return {
        "rest": f"http://{address.host}:{address.ports.rest}",
        "grpc": f"{address.host}:{address.ports.grpc}",
        "metrics": f"http://{address.host}:{address.ports.metrics}/metrics",
        "threads": serving.threads,
        "wait_ms": serving.wait_ms,
        "stop_timeout_s": serving.stop_timeout,
        "models": [
            {
                "name": model.name,
                "version": model.version,
                "file": str(model.session.path),
                "operators": model.session.backend.ops,
                "graphs": cuda_graphs_text(model.session.backend),
                "batch": model.batch.images,
                "batch_gain": model.batch.gain,
                "alone": model.batch.alone,
            }
            for model in serving.models
        ],
    }


def _gathered(batch: BatchSize) -> str:
    if batch.images == 1:
        return f", one request at a time: {batch.alone}" if batch.alone else ""
    gain = f" ({batch.gain:.2f} times as many a second as one by one)" if batch.gain else ""
    return f", up to {batch.images} images in a batch{gain}"


def _show(serving: ServerSettings, address: ServerAddress) -> None:
    from capsedge.runtime.backends.backend import cuda_graphs_text

    document = _document(serving, address)
    for model in serving.models:
        several = len(serving.versions(model.name)) > 1
        version = f", version {model.version}" if several else ""
        graphs = f", {text}" if (text := cuda_graphs_text(model.session.backend)) else ""
        log(
            f"serving {model.session.path} as {model.name}{version}{_gathered(model.batch)}{graphs}"
        )
    log(f"REST {document['rest']}/v2, gRPC {document['grpc']}, metrics {document['metrics']}")
    log("press Ctrl-C to stop")
