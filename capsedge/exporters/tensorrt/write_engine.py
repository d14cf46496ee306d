"""Build a TensorRT engine and its metadata file from an ONNX file.

Engines for ``tensorrt`` are built on the machine that will run them; those for ``tensorrt-rtx`` on any.
"""

from __future__ import annotations

import platform
import shlex
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from capsedge.errors import UsageError
from capsedge.exporters.build_options import BuildOptions
from capsedge.exporters.tensorrt import lowering
from capsedge.exporters.tensorrt.engine_builder import (
    BuildProgress,
    Built,
    EngineLimits,
    Listener,
    build_engine,
)
from capsedge.exporters.tensorrt.lowering import name_nodes
from capsedge.graph.check import checked
from capsedge.graph.fusion.free_axes import at_length
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.tensorrt_library import (
    find_plugin,
    interface,
    load_plugin,
    no_plugin,
    start,
    tensorrt_logger,
    this_build_machine,
)
from capsedge.runtime.backends.tensorrt_rtx import (
    DEFAULT_CAPABILITIES,
    check_capabilities,
    check_parser_takes_plugins,
    import_for,
)
from capsedge.runtime.files import reading
from capsedge.runtime.files.text import format_bytes
from capsedge.runtime.files.writing import (
    check_apart,
    check_writable,
    sha256,
    write_bytes,
)
from capsedge.runtime.machine import power_mode
from capsedge.runtime.metadata import engine_metadata
from capsedge.runtime.metadata.engine_metadata import BuildMachine
from capsedge.runtime.onnx_file import summary
from capsedge.runtime.result_summary import Report, shortened_name
from capsedge.spec.fields import INPUTS_KEY, PREFIX
from capsedge.spec.vocabularies import TENSORRT, TENSORRT_RTX

# --- Building and writing ---


@dataclass(frozen=True, repr=False)
class BuildReport(Report):
    """Report on a build; ``to_dict`` is the document that ``--json`` prints.

    Attributes:
        path: the engine; its metadata file is next to it.
        engine_metadata: the kind of engine, its GPUs, and how to build it again.
        warnings: TensorRT's warnings.
    """

    path: Path
    engine_metadata: engine_metadata.EngineMetadata
    warnings: tuple[str, ...]

    def _lines(self) -> list[str]:
        built = self.engine_metadata
        sizes = f"batch {engine_metadata.range_words(built.batch)}"
        if built.length:
            sizes += f", length {engine_metadata.range_words(built.length)}"
        how = f"{built.target}, {built.precision}, {built.plugin} operators, {sizes}"
        return [f"{shortened_name(self.path.name)}: {format_bytes(built.engine_bytes)}, {how}"]

    def rows(self) -> list[tuple[str, str]]:
        """The engine, its layers, and where it runs."""
        built = self.engine_metadata
        size = format_bytes(built.engine_bytes)
        rows = [
            ("engine", f"{self.path} ({size}), with its metadata file next to it"),
            ("from", built.source),
            ("precision", f"{built.precision}; built: {_counts(built.layers)}"),
            (
                "products",
                f"{_counts(built.products)} (convolutions and matrix products, by input)",
            ),
            ("operators", built.plugin),
            ("batch", engine_metadata.range_words(built.batch)),
        ]
        if built.length:
            rows.append(("length", engine_metadata.range_words(built.length)))
        return [*rows, ("built for", built.built_for), ("built with", built.built_with)]

    def to_dict(self) -> dict[str, Any]:
        """JSON values only."""
        return {
            "schema": 1,
            "engine": str(self.path),
            **asdict(self.engine_metadata),
            "warnings": list(self.warnings),
        }


def _counts(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{n} layers with {kind}" for kind, n in kinds.items()) or "none"


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
    asked = lowering.resolve_precision(options.precision, model)
    lowering.check(model)
    trt = import_for(options.target)
    capabilities = options.compute_capabilities
    on_gpu: AbstractContextManager[None] = nullcontext()
    if options.target == TENSORRT_RTX:
        capabilities = capabilities or DEFAULT_CAPABILITIES
        check_capabilities(trt, capabilities)
        here = BuildMachine(trt.__version__, "", "", "", platform.machine())
    else:
        cuda = load_cuda()
        here = replace(this_build_machine(trt, cuda, options.device), power_mode=power_mode())
        on_gpu = cuda.on(options.device)
    job = _EngineJob(
        source, target, options, model, asked, trt, here, capabilities, shown or source
    )
    with on_gpu:
        return _build(job, report)


@dataclass(frozen=True)
class _EngineJob:
    """What to build, once the target and the GPUs are known.

    Attributes:
        source, target, options, shown: as for `write_engine`.
        model: the ONNX model.
        precision: the precision to build.
        trt: TensorRT's module.
        machine: where it is built.
        capabilities: compute capabilities of TensorRT-RTX.
    """

    source: Path
    target: Path
    options: BuildOptions
    model: onnx.ModelProto
    precision: str
    trt: Any
    machine: BuildMachine
    capabilities: tuple[str, ...]
    shown: Path


def _build(job: _EngineJob, report: Listener) -> BuildReport:
    """Build and write an engine."""
    options, trt, model = job.options, job.trt, job.model
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
        model = lowering.fix_engine_batch(model, batch[0])
    if length and length[0] == length[2]:
        model = at_length(model, length[0])
    if library is None:
        lowered = lowering.native(model)
    else:
        namespace = load_plugin(builder.get_plugin_registry(), library, logger)
        lowered = lowering.fused(model, namespace)
    name_nodes(lowered, job.source)
    limits = EngineLimits(
        batch=batch,
        length=length,
        workspace=options.workspace,
        timing_cache=_timings(options.timing_cache),
        optimization_level=options.optimization_level,
        compute_capabilities=job.capabilities,
    )
    built = build_engine(
        trt, builder, logger, lowered.SerializeToString(), limits, BuildProgress(report), library
    )
    lowering.compare(job.precision, built.layers)
    write_bytes(job.target, built.plan)
    described = _metadata(job, model, library, limits, built)
    engine_metadata.write(job.target, described)
    if options.timing_cache is not None and built.timing_cache:
        write_bytes(options.timing_cache, built.timing_cache)
    return BuildReport(job.target, described, built.warnings)


def _metadata(
    job: _EngineJob,
    model: onnx.ModelProto,
    library: Path | None,
    limits: EngineLimits,
    built: Built,
) -> engine_metadata.EngineMetadata:
    """The metadata of a written engine; ``model`` is what was built, ``library`` its plugins."""
    return engine_metadata.EngineMetadata(
        engine_sha256=sha256(job.target),
        engine_bytes=len(built.plan),
        machine=job.machine,
        plugin="fused" if library else "native",
        plugin_library=str(library or ""),
        plugin_sha256=sha256(library) if library else "",
        precision=job.precision,
        layers=lowering.count_by_precision(built.layers),
        batch=limits.batch,
        source=job.source.name,
        source_sha256=sha256(job.source),
        metadata={
            p.key: p.value
            for p in model.metadata_props
            if p.key.startswith(PREFIX) or p.key == INPUTS_KEY
        },
        command=engine_build_command(
            job.shown, job.target, job.options, limits.batch, limits.length
        ),
        products=lowering.count_products(built.layers),
        target=job.options.target,
        compute_capabilities=job.capabilities,
        length=limits.length,
    )


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


def engine_build_command(
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
