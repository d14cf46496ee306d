"""Build a TensorRT engine and its metadata file from an ONNX file.

Engines for ``tensorrt`` are built on the machine that will run them; those for ``tensorrt-rtx`` on any.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from capsedge.errors import UsageError
from capsedge.exporters.build_options import BuildOptions
from capsedge.exporters.tensorrt import lowering
from capsedge.exporters.tensorrt import lowering as precision
from capsedge.exporters.tensorrt.engine_builder import Limits, Listener, Progress, build_engine
from capsedge.exporters.tensorrt.lowering import name_nodes
from capsedge.graph.check import checked
from capsedge.graph.fusion.free_length import at_length
from capsedge.runtime import engine_metadata
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.tensorrt_library import (
    find_plugin,
    interface,
    load_plugin,
    no_plugin,
    start,
    tensorrt_logger,
    this_machine,
)
from capsedge.runtime.backends.tensorrt_rtx import (
    DEFAULT_CAPABILITIES,
    check_capabilities,
    check_parser_takes_plugins,
    import_for,
)
from capsedge.runtime.engine_metadata import Machine
from capsedge.runtime.files import reading
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.files.writing import (
    check_apart,
    check_writable,
    sha256,
    write_bytes,
)
from capsedge.runtime.machine import power_mode
from capsedge.runtime.onnx_file import summary
from capsedge.runtime.result_summary import Row, Summarized, Summary, short
from capsedge.spec.fields import INPUTS_KEY, PREFIX
from capsedge.spec.vocabularies import TENSORRT, TENSORRT_RTX

# --- Building and writing ---


@dataclass(frozen=True, repr=False)
class BuildReport(Summarized):
    """Report on a build; ``to_dict`` is the document that ``--json`` prints.

    Attributes:
        path: the engine; its metadata file is next to it.
        engine_metadata: the kind of engine, its GPUs, and how to build it again.
        warnings: TensorRT's warnings.
    """

    path: Path
    engine_metadata: engine_metadata.EngineMetadata
    warnings: tuple[str, ...]

    def _summary(self) -> Summary:
        built = self.engine_metadata
        how = f"{built.target}, {built.precision}, {built.plugin} operators, batch {_span(built.batch)}"
        how += f", length {_span(built.length)}" if built.length else ""
        rows = [
            Row("engine", f"{self.path}, {format_bytes(built.engine_bytes)}"),
            Row("built", how),
            Row("from", built.source),
            *(Row("warning", warning) for warning in self.warnings),
        ]
        first = f"{short(self.path.name)}: {format_bytes(built.engine_bytes)}, {how}"
        return Summary("BuildReport", [first], rows)

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": 1,
            "engine": str(self.path),
            **asdict(self.engine_metadata),
            "warnings": list(self.warnings),
        }


def _span(sizes: Sequence[int]) -> str:
    return "-".join(str(n) for n in dict.fromkeys((sizes[0], sizes[-1])))


def write_engine(
    source: Path | str,
    target: Path | str,
    options: BuildOptions,
    report: Listener,
    shown: Path | None = None,
) -> BuildReport:
    """Build an engine and write it with its metadata file.

    Args:
        source: ONNX file of ``capsedge export`` or ``capsedge quantize``.
        target: the engine, ``*.engine``; its metadata file is written next to it.
        report: called with the progress: share, phase, seconds left.
        shown: name of the file in the command that builds the engine again; ``source`` by default.

    Raises:
        UsageError: an option is wrong, or the file's precision differs from the requested one.
        EnvironmentProblem: TensorRT, the GPU or the plugin library is missing.
        UnsupportedModelError: TensorRT cannot run the model.
        ParityError: TensorRT built another precision.
        ArtefactError: the file is damaged.
    """
    source, target = Path(source), Path(target)
    written = [target, engine_metadata.metadata_path(target)]
    written += [options.timing_cache] if options.timing_cache is not None else []
    for file in written:
        check_writable(file)
    check_apart(written, [source])
    model = _read(source)
    asked = precision.resolve(options.precision, model)
    lowering.check(model)
    trt = import_for(options.target)
    capabilities = options.compute_capabilities
    on_gpu: AbstractContextManager[None] = nullcontext()
    if options.target == TENSORRT_RTX:
        capabilities = capabilities or DEFAULT_CAPABILITIES
        check_capabilities(trt, capabilities)
        here = Machine(trt.__version__, "", "", "", platform.machine())
    else:
        cuda = load_cuda()
        here = replace(this_machine(trt, cuda, options.device), power_mode=power_mode())
        on_gpu = cuda.on(options.device)
    with on_gpu:
        return _build(
            source, target, options, report, model, asked, trt, here, capabilities, shown or source
        )


def _build(
    source: Path,
    target: Path,
    options: BuildOptions,
    report: Listener,
    model: onnx.ModelProto,
    asked: str,
    trt: Any,
    here: Machine,
    capabilities: tuple[str, ...],
    shown: Path,
) -> BuildReport:
    """Build, once the target and the GPUs are known."""
    portable = options.target == TENSORRT_RTX
    mode = "native" if portable and options.plugin == "auto" else options.plugin
    library = _plugin(mode, model, interface(trt))
    if portable and library is not None:
        check_parser_takes_plugins()
    logger = tensorrt_logger(trt)
    logger.clear()
    builder = start(trt, trt.Builder, logger)
    batch = lowering.choose_batch(model, options.batches)
    length = lowering.choose_length(model, options.lengths)
    if batch[0] == batch[2]:
        model = lowering.fix_batch(model, batch[0])
    if length and length[0] == length[2]:
        model = at_length(model, length[0])
    if library is None:
        lowered = lowering.native(model)
    else:
        namespace = load_plugin(builder.get_plugin_registry(), library, logger)
        lowered = lowering.fused(model, namespace)
    name_nodes(lowered, source)
    limits = Limits(
        batch=batch,
        length=length,
        workspace=options.workspace,
        timing_cache=_timings(options.timing_cache),
        optimization_level=options.optimization_level,
        compute_capabilities=capabilities,
    )
    built = build_engine(
        trt, builder, logger, lowered.SerializeToString(), limits, Progress(report), library
    )
    precision.compare(asked, built.layers)
    write_bytes(target, built.plan)
    issued = engine_metadata.EngineMetadata(
        engine_sha256=sha256(target),
        engine_bytes=len(built.plan),
        machine=here,
        plugin="fused" if library else "native",
        plugin_library=str(library or ""),
        plugin_sha256=sha256(library) if library else "",
        precision=asked,
        layers=precision.count(built.layers),
        batch=batch,
        source=source.name,
        source_sha256=sha256(source),
        metadata={
            p.key: p.value
            for p in model.metadata_props
            if p.key.startswith(PREFIX) or p.key == INPUTS_KEY
        },
        command=command(shown, target, options, batch, length),
        products=precision.count_products(built.layers),
        target=options.target,
        compute_capabilities=capabilities,
        length=length,
    )
    engine_metadata.write(target, issued)
    if options.timing_cache is not None and built.timing_cache:
        write_bytes(options.timing_cache, built.timing_cache)
    return BuildReport(target, issued, built.warnings)


def _read(source: Path) -> onnx.ModelProto:
    data, _ = summary.read_harmless(source)
    return onnx.load_model_from_string(checked(data, str(source)))


def _plugin(mode: str, model: onnx.ModelProto, major: int) -> Path | None:
    """The plugin library to build with, as the mode asks, for a major version of TensorRT."""
    if mode == "native":
        return None
    if not lowering.has_plugins(model):
        if mode == "fused":
            raise UsageError(
                "The model has no operators for the plugin library.",
                "Its couplings are all equal, its routing has a mask or logits of each image, or it was "
                "exported with `--ops portable` or by another tool.",
                "Build with `--plugin auto`, or export again with `capsedge export --ops auto`.",
            )
        return None
    library = find_plugin(major)
    if library is None and mode == "fused":
        raise no_plugin(major)
    if library is not None:
        lowering.check_plugin_limits(model)
    return library


def _timings(path: Path | None) -> bytes:
    if path is None:
        return b""
    if reading.path_kind(path) is None:
        return b""
    with reading.open_regular_file(path) as file:
        return file.read()


def command(
    source: Path,
    target: Path,
    options: BuildOptions,
    batch: tuple[int, int, int],
    length: tuple[int, ...] = (),
) -> str:
    """The command that repeats the build."""
    words = ["capsedge", "build", str(source), "--plugin", options.plugin]
    if options.target != TENSORRT:
        words += ["--target", options.target]
    if options.compute_capabilities:
        words += ["--compute-capability", ",".join(options.compute_capabilities)]
    if options.precision:
        words += ["--precision", options.precision]
    words += ["--batch", engine_metadata.range_text(batch)]
    if length:
        words += ["--length", engine_metadata.range_text(length)]
    if options.workspace is not None:
        words += ["--workspace", str(options.workspace)]
    if options.timing_cache is not None:
        words += ["--timing-cache", str(options.timing_cache)]
    if options.device:
        words += ["--device", str(options.device)]
    if options.optimization_level != BuildOptions().optimization_level:
        words += ["--optimization-level", str(options.optimization_level)]
    return shlex.join([*words, "-o", str(target)])
