"""``capsedge build``: builds a TensorRT or TensorRT-RTX engine, plain C or WebAssembly from an ONNX file."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from capsedge.cli import _options
from capsedge.cli._options import Argument, grouped
from capsedge.cli._output import log, log_next, print_report, require_packages
from capsedge.cli._paths import READS_MODEL, PathRole, default_output
from capsedge.exporters.build_options import WASM, BuildOptions, C
from capsedge.options import Option
from capsedge.runtime.files.text import printable
from capsedge.runtime.files.writing import check_writable

if TYPE_CHECKING:
    from capsedge.exporters.c.wasm import WasmReport
    from capsedge.exporters.c.write_c import CReport
    from capsedge.exporters.tensorrt.engine_builder import Listener
    from capsedge.exporters.tensorrt.write_engine import BuildReport


def _written(path: Path) -> list[Path]:
    """The engine and its metadata file, or a file of the folder; imported late, as metadata needs numpy."""
    from capsedge.runtime.files import reading

    if reading.path_kind(path) == reading.FOLDER:
        return [path / "capsedge"]
    from capsedge.runtime.metadata.engine_metadata import metadata_path

    return [path, metadata_path(path)]


Model = Annotated[
    Path,
    Argument(
        help="ONNX file from `capsedge export` or `capsedge quantize`, or a name from the zoo (digits-em).",
        complete="zoo",
    ),
    READS_MODEL,
]
Output = Annotated[
    Path | None,
    Option(
        "-o",
        "--output",
        help="The engine, MODEL.engine by default; with --target c or wasm a folder, MODEL_c or "
        "MODEL_wasm by default.",
    ),
    PathRole(written=_written),
]
# For each target: the output, the packages that it needs, and the extra that has them.
_FOLDERS = {
    C: ("C", ("onnx", "onnxscript"), "build"),
    WASM: ("WebAssembly", ("onnx", "onnxscript", "ziglang"), "wasm"),
}


@grouped
def command(
    model: Model,
    options: BuildOptions,
    output: Output = None,
    as_json: _options.Json = False,
) -> None:
    """Build a TensorRT engine, plain C or WebAssembly from an ONNX file.

    The engine is for the GPU of this machine or, with --target tensorrt-rtx, for several kinds of RTX GPUs.
    With --target c, a folder holds the network as C99 source that needs no library; with --target wasm, that
    source compiled for browsers, Node.js and WASI hosts.
    """
    if options.target in _FOLDERS:
        _build_folder(
            model,
            output or default_output(model, f"{model.stem}_{options.target}"),
            options,
            as_json,
        )
        return
    if output is not None:
        check_writable(output)  # refuses a folder, which --target c accepts
    require_packages(
        "onnx", "onnxscript", "onnx_graphsurgeon",
        what="Building engines needs the packages onnx, onnxscript and onnx-graphsurgeon.",
        fix="pip install 'capsedge[build]'",
    )  # fmt: skip
    from capsedge.exporters.build import build

    with _progress() as progress:
        built = build(
            model,
            output or default_output(model, f"{model.stem}.engine"),
            options,
            progress=progress,
        )
    print_report(built, as_json)
    if not as_json:
        _log_engine(cast("BuildReport", built))


def _build_folder(model: Path, output: Path, options: BuildOptions, as_json: bool) -> None:
    what, packages, extra = _FOLDERS[options.target]
    require_packages(
        *packages,
        what=f"Writing {what} needs the packages {', '.join(packages[:-1])} and {packages[-1]}.",
        fix=f"pip install 'capsedge[{extra}]'",
    )
    from capsedge.exporters.build import build

    written = build(model, output, options)
    print_report(written, as_json)
    if as_json:
        return
    if options.target == C:
        _log_c(cast("CReport", written))
    else:
        name = cast("WasmReport", written).description["name"]
        log_next(f'import {{ load }} from "./{name}.mjs";')


def _log_c(written: CReport) -> None:
    if written.missing:
        log(f"instructions were not counted. On Debian: apt install {' '.join(written.missing)}")
    log_next(f"cmake -S {shlex.quote(str(written.path))} -B build && cmake --build build")


@contextmanager
def _progress() -> Iterator[Listener]:
    """A bar on a terminal; elsewhere a line for every tenth of the work."""
    if not sys.stderr.isatty():
        shown = -1

        def say(share: float, phase: str, left: float | None) -> None:
            nonlocal shown
            if int(share * 10) > shown:
                shown = int(share * 10)
                rest = "" if left is None else f", about {left:.0f} s left"
                log(f"building: {share:.0%} ({phase}){rest}")

        yield say
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    with Progress(
        TextColumn("building"),
        BarColumn(),
        TextColumn(
            "{task.percentage:>3.0f} %  {task.fields[left]}  {task.description}", markup=False
        ),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task("", total=1.0, left="")

        def draw(share: float, phase: str, left: float | None) -> None:
            rest = "" if left is None else f"about {left:.0f} s left"
            bar.update(task, completed=share, description=printable(phase), left=rest)

        yield draw


def _log_engine(built: BuildReport) -> None:
    engine_info = built.engine_metadata
    if engine_info.portable:
        log("untested: no TensorRT-RTX engine has been run on a GPU yet (docs/how-to/tensorrt.md)")
    model = engine_info.model
    given = "--inputs data.npz" if model is None or model.preprocessing is None else "image.png"
    log(
        "next, on such a GPU:" if engine_info.portable else "next:",
        f"  capsedge infer --model {shlex.quote(str(built.path))} {given}",
    )
