"""``capsedge build``: builds a TensorRT or TensorRT-RTX engine, plain C or WebAssembly from an ONNX file."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli import _options
from capsedge.cli._output import log, print_json, require, say
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._paths import READS_MODEL, UPDATES, PathRole
from capsedge.errors import UsageError
from capsedge.runtime.files.text import format_bytes, printable
from capsedge.runtime.files.writing import check_writable

if TYPE_CHECKING:
    from capsedge.exporters.c.wasm import WasmReport
    from capsedge.exporters.c.write_c import CReport
    from capsedge.exporters.tensorrt.build import BuildReport
    from capsedge.exporters.tensorrt.engine_builder import Listener


def _written(path: Path) -> list[Path]:
    """The engine and its metadata file, or a file of the folder; imported late, as metadata needs numpy."""
    from capsedge.runtime.files import reading

    if reading.path_kind(path) == reading.FOLDER:
        return [path / "capsedge"]
    from capsedge.runtime.engine_metadata import metadata_path

    return [path, metadata_path(path)]


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


Model = Annotated[
    Path, Argument(help="ONNX file from `capsedge export` or `capsedge quantize`."), READS_MODEL
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
Precision = Annotated[
    str | None,
    Option(
        "--precision",
        help="Precision that the engine must have: fp32, fp16, int8 or mixed; by default the file's.",
    ),
]
Target = Annotated[
    str,
    Option(
        "--target",
        help="tensorrt: for the GPU of this machine; tensorrt-rtx: for several kinds of RTX GPU, "
        "built on any machine; c: C99 source for microcontrollers and anything else; wasm: WebAssembly "
        "with a JavaScript module.",
    ),
]
ComputeCapability = Annotated[
    str | None,
    Option(
        "--compute-capability",
        help="With --target tensorrt-rtx: compute capabilities to build for; 8.6,8.9,12.0 by default.",
    ),
]
Plugin = Annotated[
    str,
    Option(
        "--plugin",
        help="fused: routing in the plugin library; native: no plugin; auto: fused if the library is "
        "installed, native for tensorrt-rtx.",
    ),
]
Batch = Annotated[
    int | None,
    Option("--batch", min=1, help="Fixed batch size; by default the file's, or 1."),
]
DynamicBatch = Annotated[
    str | None,
    Option(
        "--dynamic-batch",
        help="Range of batch sizes: smallest, best and largest, for example 1:8:32.",
    ),
]
Workspace = Annotated[
    str | None,
    Option(
        "--workspace",
        help="Scratch memory that TensorRT may use, for example 512M or 2G; all by default.",
    ),
]
TimingCache = Annotated[
    Path | None,
    Option("--timing-cache", help="File with timings that make later builds faster."),
    UPDATES,
]
OptimizationLevel = Annotated[
    int, Option("--optimization-level", help="TensorRT's effort, 0 to 5.")
]
DeviceNumber = Annotated[int, Option("--device", min=0, help="Number of the GPU.")]
Name = Annotated[
    str | None,
    Option(
        "--name",
        help="With --target c: prefix of all symbols; with wasm: name of the files; from the file's name "
        "by default.",
    ),
]
Fit = Annotated[
    str | None,
    Option(
        "--fit",
        help="With --target c: refuse a network that needs more, for example flash=256K,ram=64K.",
    ),
]
_C, _WASM = "c", "wasm"


def command(
    model: Model,
    output: Output = None,
    precision: Precision = None,
    target: Target = "tensorrt",
    compute_capability: ComputeCapability = None,
    plugin: Plugin = "auto",
    batch: Batch = None,
    dynamic_batch: DynamicBatch = None,
    workspace: Workspace = None,
    timing_cache: TimingCache = None,
    optimization_level: OptimizationLevel = 3,
    device: DeviceNumber = 0,
    name: Name = None,
    fit: Fit = None,
    as_json: _options.Json = False,
) -> None:
    """Build a TensorRT engine, plain C or WebAssembly from an ONNX file.

    The engine is for the GPU of this machine or, with --target tensorrt-rtx, for several kinds of RTX GPUs.
    With --target c, a folder holds the network as C99 source that needs no library; with --target wasm, that
    source compiled for browsers, Node.js and WASI hosts.
    """
    given = {
        "precision": precision is not None,
        "compute-capability": compute_capability is not None,
        "plugin": plugin != "auto",
        "dynamic-batch": dynamic_batch is not None,
        "workspace": workspace is not None,
        "timing-cache": timing_cache is not None,
        "optimization-level": optimization_level != 3,
        "device": device != 0,
    }
    if target in (_C, _WASM):
        given["fit"] = fit is not None and target == _WASM
        _refuse([option for option, is_given in given.items() if is_given], target)
        if target == _C:
            _build_c(model, output, name, batch, fit, as_json)
        else:
            _build_wasm(model, output, name, batch, as_json)
        return
    _refuse(
        [option for option, value in (("name", name), ("fit", fit)) if value is not None], target
    )
    if output is not None:
        check_writable(output)  # which lets no folder pass, as --target c does
    require(
        "onnx", "onnxscript", "onnx_graphsurgeon",
        what="Building engines needs the packages onnx, onnxscript and onnx-graphsurgeon.",
        fix="pip install 'capsedge[build]'",
    )  # fmt: skip
    from capsedge.exporters.tensorrt.build import build

    _options.exclude(batch=batch, dynamic_batch=dynamic_batch)
    with _progress() as progress:
        built = build(
            model,
            output or model.parent / f"{model.stem}.engine",
            precision=precision,
            target=target,
            compute_capabilities=_capabilities(compute_capability),
            plugin=plugin,
            batch=batch if dynamic_batch is None else _batches(dynamic_batch),
            workspace=_bytes(workspace),
            timing_cache=timing_cache,
            optimization_level=optimization_level,
            device=device,
            progress=progress,
        )
    if as_json:
        print_json(built.to_dict())
    else:
        _print(built)


def _refuse(options: list[str], target: str) -> None:
    """Refuse options of another target."""
    if options:
        raise UsageError(
            f"--{options[0]} does not apply to --target {printable(target)}.", "", "Leave it out."
        )


def _build_c(
    model: Path,
    output: Path | None,
    name: str | None,
    batch: int | None,
    fit: str | None,
    as_json: bool,
) -> None:
    require(
        "onnx", "onnxscript",
        what="Writing C needs the packages onnx and onnxscript.",
        fix="pip install 'capsedge[build]'",
    )  # fmt: skip
    from capsedge.exporters.c.fit import parse_fit
    from capsedge.exporters.c.write_c import write_c

    written = write_c(
        model,
        output or model.parent / f"{model.stem}_c",
        name=name,
        batch=batch,
        fit=None if fit is None else parse_fit(fit),
    )
    if as_json:
        print_json(written.to_dict())
    else:
        _print_c(written)


def _build_wasm(
    model: Path, output: Path | None, name: str | None, batch: int | None, as_json: bool
) -> None:
    require(
        "onnx", "onnxscript", "ziglang",
        what="Writing WebAssembly needs the packages onnx, onnxscript and ziglang.",
        fix="pip install 'capsedge[wasm]'",
    )  # fmt: skip
    from capsedge.exporters.c.wasm import write_wasm

    written = write_wasm(
        model, output or model.parent / f"{model.stem}_wasm", name=name, batch=batch
    )
    if as_json:
        print_json(written.to_dict())
    else:
        _print_wasm(written)


def _print_wasm(written: WasmReport) -> None:
    name = written.description["name"]
    lines = {
        "folder": f"{written.path}, with {name}.wasm and {name}.mjs",
        "network": format_bytes(written.wasm_bytes),
        "module": f"{format_bytes(written.module_bytes)} of JavaScript, with types",
    }
    for key, value in lines.items():
        say(f"{key:<10} {value}")
    log("next:", f'  import {{ load }} from "./{name}.mjs";')


def _print_c(written: CReport) -> None:
    memory, name = written.description["memory"], written.description["name"]
    lines = {
        "folder": f"{written.path}, with {name}.c and {name}.h",
        "constants": f"{format_bytes(memory['constant_bytes'])} (flash)",
        "arena": f"{format_bytes(memory['arena_bytes'])} (RAM)",
        "products": f"{written.description['products']:,} multiply-adds",
    }
    for key, value in lines.items():
        say(f"{key:<10} {value}")
    log("next:", f"  cmake -S {shlex.quote(str(written.path))} -B build && cmake --build build")


def _batches(text: str) -> tuple[int, int, int]:
    """The three numbers of, for example, ``1:8:32``.

    Raises:
        UsageError: it has another form.
    """
    parts = text.split(":")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        raise UsageError(
            f"Invalid --dynamic-batch {text}.",
            "The format is MIN:BEST:MAX, three batch sizes.",
            "For example: 1:8:32.",
        )
    low, best, high = map(int, parts)
    return low, best, high


def _capabilities(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if not all(re.fullmatch(r"\d{1,2}\.\d", part) for part in parts):
        raise UsageError(
            f"Invalid --compute-capability {text}.",
            "It takes numbers such as 8.9, separated by commas.",
            "For example: 8.6,8.9,12.0.",
        )
    return parts


def _bytes(text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if found is None:
        raise UsageError(
            f"Invalid --workspace {text}.",
            "It takes a size with a unit.",
            "For example: 512M or 2G.",
        )
    return int(found[1]) * _UNITS[found[2]]


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


def _print(built: BuildReport) -> None:
    engine_info = built.engine_metadata
    low, best, high = engine_info.batch
    lines = {
        "engine": (
            f"{built.path} ({format_bytes(engine_info.engine_bytes)}), with its metadata file next to "
            f"it"
        ),
        "from": engine_info.source,
        "precision": f"{engine_info.precision}; built: {_counts(engine_info.layers)}",
        "products": f"{_counts(engine_info.products)} (convolutions and matrix products, by input)",
        "operators": engine_info.plugin,
        "batch": str(low) if low == high else f"{low} to {high}, best {best}",
        "built for": engine_info.built_for,
        "built with": engine_info.built_with,
    }
    for key, value in lines.items():
        say(f"{key:<10} {value}")
    for warning in built.warnings:
        log(f"TensorRT warns: {warning}")
    if engine_info.portable:
        log("untested: no TensorRT-RTX engine has been run on a GPU yet (docs/how-to/tensorrt.md)")
    log(
        "next, on such a GPU:" if engine_info.portable else "next:",
        f"  capsedge infer --model {shlex.quote(str(built.path))} image.png",
    )


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{n} layers with {kind}" for kind, n in kinds.items()) or "none"
