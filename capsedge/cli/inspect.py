"""``capsedge inspect``: shows the contents of a model file or a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli import _options, _output
from capsedge.cli._options import Argument
from capsedge.cli._output import print_table
from capsedge.cli._paths import READS_FILE_OR_NAME
from capsedge.errors import UsageError
from capsedge.options import Option
from capsedge.runtime.files import reading
from capsedge.runtime.files.formats import is_engine

if TYPE_CHECKING:
    from capsedge.runtime.inspection_report import EngineInspection
    from capsedge.runtime.onnx_file.forecast import Forecast as ForecastData


File = Annotated[
    Path,
    Argument(
        help="An ONNX file from any tool, a name from the zoo (digits-em), a .safetensors checkpoint, a "
        "TensorRT engine, or a folder of `capsedge build --target c`.",
        complete="zoo",
    ),
    READS_FILE_OR_NAME,
]
Forecast = Annotated[
    bool, Option("--forecast", help="Forecast memory and traffic by layer, from shapes.")
]
Layers = Annotated[
    bool, Option("--layers", help="Layers of a TensorRT engine; needs its GPU and TensorRT.")
]
ForDevice = Annotated[
    str | None,
    Option(
        "--device",
        help="With --forecast: check whether the model fits a device, such as orin-nano-8gb.",
        complete="boards",
    ),
]


def command(
    file: File,
    batch: _options.BatchSizes = (1, 8),
    forecast: Forecast = False,
    layers: Layers = False,
    device: ForDevice = None,
    as_json: _options.Json = False,
) -> None:
    """Show what a file holds: metadata, operators, sizes, memory."""
    from capsedge.runtime.inspection import inspect
    from capsedge.runtime.inspection_report import Inspection

    batches = sorted(set(batch))
    if reading.path_kind(file) == reading.FOLDER:
        _c_folder(file, {"forecast": forecast, "layers": layers, "device": device}, as_json)
        return
    _check(file, forecast, layers, device)
    if forecast:
        from capsedge.runtime.onnx_file.forecast import ForecastReport

        forecasts = _forecasts(file, batches, device)
        _output.print_report(ForecastReport(str(file), forecasts), as_json)
        return
    found = inspect(file, batch=batches)
    if isinstance(found, Inspection):
        _output.print_report(found, as_json)
    else:
        _engine(found, layers, as_json)


def _check(file: Path, forecast: bool, layers: bool, device: str | None) -> None:
    engine = is_engine(file)
    if device is not None and not forecast:
        raise UsageError(
            "--device needs --forecast.", "It selects the device of a forecast.", "Add --forecast."
        )
    if engine and forecast:
        raise UsageError(
            f"{file} is a TensorRT engine.",
            "A forecast needs the shapes that an ONNX file holds.",
            "Pass the ONNX file that the engine was built from.",
        )
    if layers and not engine:
        raise UsageError(
            f"--layers does not apply to {file}.",
            "Only TensorRT engines have layers to list.",
            "Leave out --layers.",
        )


def _c_folder(folder: Path, options: Mapping[str, object], as_json: bool) -> None:
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise UsageError(f"--{given} does not apply to a folder of C.", "", f"Leave out --{given}.")
    from capsedge.exporters.c.folder import read_report

    _output.print_report(read_report(folder), as_json)


def _engine(found: EngineInspection, layers: bool, as_json: bool) -> None:
    from capsedge.runtime.inspection import labelled_layers

    listed = labelled_layers(Path(found.path)) if layers else []
    _output.print_report(found, as_json, more={"layers": listed} if layers else {})
    if not layers or as_json:
        return
    built = found.engine_metadata
    print_table(
        f"Layers, batch {built.batch[1]}" + (f", length {built.length[1]}" if built.length else ""),
        ("belongs to", "layer", "kind", "computes with"),
        [(x["belongs_to"], x["name"], x["kind"], x["types"]) for x in listed],
    )


def _forecasts(file: Path, batches: list[int], device: str | None) -> tuple[ForecastData, ...]:
    """Use the shapes stated in the file; if some are missing, those inferred by onnx, if installed."""
    from capsedge.runtime.files.writing import as_file
    from capsedge.runtime.onnx_file.forecast import UnknownSizes, forecast
    from capsedge.runtime.onnx_file.summary import read_harmless

    try:
        return tuple(forecast(file, n, device) for n in batches)
    except UnknownSizes as error:
        try:
            from capsedge.graph.write_shapes import with_shapes
        except ModuleNotFoundError:
            raise UnknownSizes(
                error.what,
                f"{error.why} The package onnx could infer it, but is not installed.",
                "pip install 'capsedge[build]'",
            ) from None
        with as_file(with_shapes(read_harmless(file)[0], str(file))) as complete:
            try:
                return tuple(forecast(complete, n, device) for n in batches)
            except UnknownSizes as found:
                words = (found.what, found.why, found.fix)
                raise UnknownSizes(*(w.replace(str(complete), str(file)) for w in words)) from None
