"""``capsedge deploy``: deploys models, with one sub-command per target."""

from __future__ import annotations

import os
import sys
import webbrowser
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options, _process
from capsedge.cli._options import Argument, grouped
from capsedge.cli._output import log, print_report
from capsedge.cli._paths import (
    READS_MODEL_OR_NAME,
    READS_REPOSITORY,
    WRITES,
    PathRole,
    check_model,
    model_file_unless_name,
)
from capsedge.deploy.deploy_options import SET, KServeOptions, TritonOptions
from capsedge.errors import UsageError
from capsedge.options import Option, assigned, iteration_counts

if TYPE_CHECKING:
    from capsedge.deploy.deployment import WebDeployment

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")

Models = Annotated[
    list[Path],
    Argument(
        metavar="MODEL...",
        help="ONNX files from `capsedge export`, or names from the zoo (digits-em).",
        complete="zoo",
    ),
    READS_MODEL_OR_NAME,
]
Iterations = Annotated[
    str,
    Option(
        "--iters",
        help="Routing iterations of zoo models, for example 1,3; by default from 1 to the model's own.",
    ),
]
Open = Annotated[
    bool, Option("--open", help="Serve the folder on this machine and open a browser.")
]
Port = Annotated[
    int, Option("--port", min=0, max=65535, help="Port for --open; by default a free one.")
]


def web(
    models: Models,
    output: _options.DeployedFolder,
    iters: Iterations = "",
    serve: Open = False,
    port: Port = 0,
    as_json: _options.Json = False,
) -> None:
    """Write a web page that runs models in the browser.

    Any server of static files can host the folder.
    """
    from capsedge.deploy.web import deploy_web

    if port and not serve:
        raise UsageError(
            "--port has no effect without --open.", "", "Add --open, or leave --port out."
        )
    counts = iteration_counts(iters) if iters else None
    made = deploy_web(models, output, iterations=counts, note=lambda text: log(f"note: {text}"))
    print_report(made, as_json)
    if serve:
        _serve(made, port)


def _serve(made: WebDeployment, port: int) -> None:
    from capsedge.deploy.preview_server import FolderServer

    with FolderServer(made.output, [file.path for file in made.files], port) as server:
        log(f"serving {made.output} at {server.url}; press Ctrl-C to stop")
        if any(name in os.environ for name in _SCREENS) or sys.platform in ("darwin", "win32"):
            webbrowser.open(server.url)  # without a display it would take over the terminal
        try:
            server.serve_forever()
        except KeyboardInterrupt as error:
            _process.note_arrival(error)
            log("ended")
            raise SystemExit(_process.exit_code() or _process.INTERRUPTED) from None


# --- Model servers: ``capsedge deploy triton`` and ``capsedge deploy kserve`` ---


def _file(argument: Any) -> Path | None:
    from capsedge.serving.server_model import file_of_model_argument

    return model_file_unless_name(file_of_model_argument(argument))


ServedModels = Annotated[
    list[Path],
    Argument(
        metavar="MODEL...",
        help=(
            "ONNX files, TensorRT engines, or names from the zoo (digits-em); NAME=FILE sets the "
            "name that clients use."
        ),
        complete="zoo",
    ),
    PathRole(reads=True, check=check_model, named=_file),
]
Folder = Annotated[
    Path,
    Argument(metavar="REPOSITORY", help="A folder written by `capsedge deploy triton`."),
    READS_REPOSITORY,
]
Manifest = Annotated[Path, Option("-o", "--output", help="The YAML file."), WRITES]
Storage = Annotated[
    str,
    Option(
        "--storage",
        help="Where the cluster finds a copy of the folder: s3://bucket/models, gs://..., pvc://...",
    ),
]


Fields = Annotated[
    list[str] | None,
    Option(
        "--set",
        help="A field of every model: preferred_batches (sizes that run as soon as they are reached, such as "
        "8,16), queue_delay (microseconds that a request waits for others) or instances (copies that run at "
        "the same time).",
        metavar="NAME=VALUE",
        panel="Batches and instances",
    ),
]


@grouped
def triton(
    models: ServedModels,
    output: _options.DeployedFolder,
    options: TritonOptions,
    fields: Fields = None,
    as_json: _options.Json = False,
) -> None:
    """Write a model repository for Triton Inference Server."""
    from capsedge.deploy.triton import deploy_triton

    options = replace(options, **assigned(TritonOptions, SET, fields or [], "--set"))
    made = deploy_triton(models, output, options, note=lambda text: log(f"note: {text}"))
    print_report(made, as_json)


@grouped
def kserve(
    repository: Folder,
    output: Manifest,
    storage: Storage,
    options: KServeOptions,
    as_json: _options.Json = False,
) -> None:
    """Write a KServe service for a folder of `capsedge deploy triton`."""
    from capsedge.deploy.kserve import deploy_kserve

    made = deploy_kserve(repository, output, options, storage=storage)
    print_report(made, as_json)
