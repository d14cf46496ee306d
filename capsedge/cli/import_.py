"""``capsedge import``: converts trained weights of public networks to checkpoints."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from capsedge.cli import _options
from capsedge.cli._options import Argument, MetadataOptions, grouped
from capsedge.cli._output import (
    comparing,
    log_next,
    print_json,
    print_report,
    print_table,
    require_packages,
    stage_reporter,
)
from capsedge.cli._paths import READS, WRITES
from capsedge.errors import UsageError
from capsedge.importers.import_options import ImportOptions
from capsedge.options import Option

Files = Annotated[
    list[Path] | None,
    Argument(
        metavar="FILE...",
        help="Weights of PyTorch (.pt, .pth, .tar, ...), .safetensors, .npz, or Keras (.h5, .keras); "
        "several make an ensemble.",
    ),
    READS,
]
Listed = Annotated[bool, Option("--list", help="List the known families.")]
Output = Annotated[
    Path | None,
    Option("-o", "--output", help="The checkpoint; FILE.safetensors by default."),
    WRITES,
]


@grouped
def command(
    options: ImportOptions,
    described: MetadataOptions,
    files: Files = None,
    listed: Listed = False,
    output: Output = None,
    as_json: _options.Json = False,
) -> None:
    """Convert the weights of a public capsule network to a checkpoint."""
    if listed:
        _list(as_json)
        return
    if not files:
        raise UsageError(
            "No file was given.",
            "",
            "Run `capsedge import FILE`, or `capsedge import --list` for the families.",
        )
    require_packages(
        "torch", "safetensors", what="Import needs PyTorch.", fix="pip install 'capsedge[import]'"
    )
    from capsedge.importers.import_checkpoint import import_checkpoint

    target = output or _default_output(files)
    description = described.description()
    stage_reporter(as_json)(
        "reading the weights, building the network"
        + (", comparing" if options.reference_code else "")
    )
    with comparing() as progress:
        report = import_checkpoint(
            files, target, options, description=description, progress=progress
        )
    print_report(report, as_json)
    if not as_json:
        log_next(f"capsedge export --checkpoint {shlex.quote(str(report.output))}")


def _default_output(files: list[Path]) -> Path:
    if len(files) > 1:
        raise UsageError(
            "The checkpoint of an ensemble needs a name.",
            "By default it would be named after just one of the files.",
            "Choose one with -o CHECKPOINT.safetensors.",
        )
    file = files[0]
    target = file.with_suffix(".safetensors")
    if target == file:
        raise UsageError(
            f"{file} would be overwritten.",
            "",
            "Choose another name with -o CHECKPOINT.safetensors.",
        )
    return target


def _list(as_json: bool) -> None:
    from capsedge.importers.families import FAMILIES

    if as_json:
        print_json(
            {
                "schema": 1,
                "families": [
                    {
                        "name": f.name,
                        "source": f.source,
                        "licence": f.licence or None,
                        "dialect": f.dialect,
                        "differences": list(f.differences),
                        "variants": {v.name: v.words for v in f.variants},
                    }
                    for f in FAMILIES
                ],
            }
        )
        return
    rows = [[f.name, f.dialect, f.source, f.licence or "not stated"] for f in FAMILIES]
    print_table("Families", ["name", "dialect", "source", "licence"], rows)
