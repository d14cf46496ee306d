"""``capsedge deploy``: models where people use them, one target a sub-command."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli import _options, _signals
from capsedge.cli._common import log, print_json
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._places import READS_MODEL_OR_NAME
from capsedge.cli._tables import print_table
from capsedge.errors import UsageError
from capsedge.runtime.quantities import size

if TYPE_CHECKING:
    from capsedge.deploy.report import WebDeployment

_SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")

Models = Annotated[
    list[Path],
    Argument(
        metavar="MODEL...", help="ONNX files of `capsedge export`, or names of the zoo (digits-em)."
    ),
    READS_MODEL_OR_NAME,
]
Iterations = Annotated[
    str,
    Option(
        "--iters",
        help="Routing iterations of models of the zoo, for example 1,3; by default 1 up to the model's own.",
    ),
]
Open = Annotated[
    bool, Option("--open", help="Serve the folder on this machine and open a browser.")
]
Port = Annotated[int, Option("--port", min=0, max=65535, help="For --open; by default a free one.")]


def web(
    models: Models,
    output: _options.DeployedFolder,
    iters: Iterations = "",
    serve: Open = False,
    port: Port = 0,
    as_json: _options.Json = False,
) -> None:
    """Write a folder with a page that runs models in the browser; any server of static files can host it."""
    from capsedge.deploy.web import deploy_web

    if port and not serve:
        raise UsageError("--port is for --open.", "", "Add --open, or leave --port out.")
    counts = _options.iteration_counts(iters) if iters else None
    made = deploy_web(models, output, iterations=counts, note=lambda text: log(f"note: {text}"))
    if as_json:
        print_json(made.to_dict())
    else:
        show(made)
    if serve:
        _serve(made, port)


# Each target and its function.


def show(made: WebDeployment) -> None:
    """Print a report for a person."""
    rows = [("folder", f"{made.output}, {len(made.files)} files, {size(made.bytes)}")]
    rows.append(("first visit", f"loads at most {size(made.first_visit)}"))
    for model in made.models:
        iterations = ", ".join(map(str, model.files))
        routing = f"{model.routing} routing, iterations {iterations}, " if model.routing else ""
        rows.append((model.name, f"{routing}{model.precision}"))
    print_table("Deployed", ("", ""), rows)


def _serve(made: WebDeployment, port: int) -> None:
    from capsedge.deploy.server import FolderServer

    with FolderServer(made.output, [file.path for file in made.files], port) as server:
        log(f"serving {made.output} at {server.url}; Ctrl-C ends it")
        if any(name in os.environ for name in _SCREENS) or sys.platform in ("darwin", "win32"):
            webbrowser.open(server.url)  # without a screen it would take the terminal for itself
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            log("ended")
            raise SystemExit(_signals.exit_code() or _signals.INTERRUPTED) from None
