"""Build a TensorRT engine and its metadata file from an ONNX file (``capsedge.build``).

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

from capsedge.errors import ArtefactError, EnvironmentProblem, UsageError
from capsedge.exporters.tensorrt import lowering
from capsedge.exporters.tensorrt import lowering as precision
from capsedge.exporters.tensorrt.engine_builder import Limits, Listener, Progress, build_engine
from capsedge.exporters.tensorrt.lowering import name_nodes
from capsedge.runtime import engine_metadata
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.backends.tensorrt_library import (
    NAME,
    find_plugin,
    load_plugin,
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
    FILE,
    OUTPUT,
    ModelLike,
    as_file,
    as_path,
    check_apart,
    check_writable,
    sha256,
    write_bytes,
)
from capsedge.runtime.machine import power_mode
from capsedge.runtime.onnx_file import summary
from capsedge.runtime.result_summary import Row, Summarized, Summary, short
from capsedge.spec.fields import PREFIX
from capsedge.spec.vocabularies import PLUGIN_CHOICES as PLUGIN_MODES
from capsedge.spec.vocabularies import TARGETS, TENSORRT, TENSORRT_RTX

# --- Building and writing ---

_LEVELS = range(6)


@dataclass(frozen=True)
class BuildOptions:
    """How to build.

    Attributes:
        precision: precision that the engine must have; None for the file's.
        plugin: ``fused`` uses the plugin library, ``native`` does not, ``auto`` does if it is installed. An
            engine needs the same plugin library wherever it runs, so ``auto`` is ``native`` for
            ``tensorrt-rtx``.
        batch: smallest, best and largest batch, all equal for a fixed batch; None for the file's, or 1.
        workspace: bytes of scratch memory that TensorRT may use; None for all.
        timing_cache: file with timings, read if it exists, written afterwards.
        optimization_level: TensorRT's, 0 to 5.
        device: number of the GPU; not used for ``tensorrt-rtx``.
        target: ``tensorrt``, or ``tensorrt-rtx`` for an engine that several kinds of GPU run.
        compute_capabilities: of those GPUs; empty for `DEFAULT_CAPABILITIES`.
    """

    precision: str | None = None
    plugin: str = "auto"
    batch: tuple[int, int, int] | None = None
    workspace: int | None = None
    timing_cache: Path | None = None
    optimization_level: int = 3
    device: int = 0
    target: str = TENSORRT
    compute_capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class BuildReport(Summarized):
    """What was built; ``to_dict`` is the document that ``--json`` prints.

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
        batch = "-".join(str(n) for n in dict.fromkeys((built.batch[0], built.batch[-1])))
        how = f"{built.target}, {built.precision}, {built.plugin} operators, batch {batch}"
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
        target: the engine, ``*.engine``; its metadata file goes beside it.
        report: called with the progress: share, phase, seconds left.
        shown: name of the file in the command that builds the engine again; ``source`` by default.

    Raises:
        UsageError: an option is wrong, or the file has another precision than asked for.
        EnvironmentProblem: TensorRT, the GPU or the plugin library is missing.
        UnsupportedModelError: TensorRT cannot run the model.
        ParityError: TensorRT built another precision.
        ArtefactError: the file is damaged.
    """
    source, target = Path(source), Path(target)
    _check(options)
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
    """`build`, once it is known what to build and for which GPUs."""
    portable = options.target == TENSORRT_RTX
    library = _plugin("native" if portable and options.plugin == "auto" else options.plugin, model)
    if portable and library is not None:
        check_parser_takes_plugins()
    logger = tensorrt_logger(trt)
    logger.clear()
    builder = start(trt, trt.Builder, logger)
    batch = lowering.choose_batch(model, options.batch)
    if batch[0] == batch[2]:
        model = lowering.fix_batch(model, batch[0])
    if library is None:
        lowered = lowering.native(model)
    else:
        namespace = load_plugin(builder.get_plugin_registry(), library, logger)
        lowered = lowering.fused(model, namespace)
    name_nodes(lowered, source)
    limits = Limits(
        batch=batch,
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
        metadata={p.key: p.value for p in model.metadata_props if p.key.startswith(PREFIX)},
        command=command(shown, target, options, batch),
        products=precision.count_products(built.layers),
        target=options.target,
        compute_capabilities=capabilities,
    )
    engine_metadata.write(target, issued)
    if options.timing_cache is not None and built.timing_cache:
        write_bytes(options.timing_cache, built.timing_cache)
    return BuildReport(target, issued, built.warnings)


def _check(options: BuildOptions) -> None:
    low, best, high = options.batch or (1, 1, 1)
    if not 1 <= low <= best <= high:
        raise UsageError(
            f"Invalid batch {low}:{best}:{high}.",
            "It takes the smallest, the best and the largest batch size, in ascending order from 1.",
            "For example: `--dynamic-batch 1:8:32`.",
        )
    if options.plugin not in PLUGIN_MODES:
        raise UsageError(
            f"Unknown plugin mode '{options.plugin}'.",
            "",
            f"Choose one of: {', '.join(PLUGIN_MODES)}.",
        )
    if options.optimization_level not in _LEVELS:
        raise UsageError(
            f"Invalid optimization level {options.optimization_level}.",
            "TensorRT's levels are 0 to 5.",
            "Use 3.",
        )
    if options.target not in TARGETS:
        raise UsageError(
            f"Unknown target '{options.target}'.", "", f"Choose one of: {', '.join(TARGETS)}."
        )
    if options.target == TENSORRT_RTX:
        for given, name in ((options.timing_cache, "timing-cache"), (options.device, "device")):
            if given:
                raise UsageError(
                    f"--{name} does not apply to --target {TENSORRT_RTX}.",
                    "TensorRT-RTX builds ahead of time: no kernel is timed and no GPU is used.",
                    "Leave it out.",
                )
    elif options.compute_capabilities:
        raise UsageError(
            f"--compute-capability does not apply to --target {options.target}.",
            "A TensorRT engine runs only on the kind of GPU that it was built on.",
            f"Add `--target {TENSORRT_RTX}` to build an engine for several kinds of RTX GPUs.",
        )
    if options.workspace is not None and options.workspace < 1 << 20:
        raise UsageError(
            f"A workspace of {options.workspace} bytes is too small.",
            "TensorRT needs at least 1 MiB.",
            "For example: `--workspace 1G`, or leave it out.",
        )


def _read(source: Path) -> onnx.ModelProto:
    data, _ = summary.read_harmless(source)
    try:
        return onnx.load_model_from_string(data)
    except Exception as error:  # protobuf's own error class differs between its versions
        raise ArtefactError(
            f"{source} cannot be read.", f"{error}.", "Export it again with `capsedge export`."
        ) from error


def _plugin(mode: str, model: onnx.ModelProto) -> Path | None:
    """The plugin library to build with, as the mode asks."""
    if mode == "native":
        return None
    if not lowering.has_plugins(model):
        if mode == "fused":
            raise UsageError(
                "The model has no operators for the plugin library.",
                "Its couplings are all equal, or it was exported with `--ops portable` or by another tool.",
                "Build with `--plugin auto`, or export again with `capsedge export --ops auto`.",
            )
        return None
    library = find_plugin()
    if library is None and mode == "fused":
        raise EnvironmentProblem(
            "The TensorRT plugin library of capsedge is not installed.",
            f"{NAME} is compiled on machines with nvcc and TensorRT's headers.",
            "Compile it (docs/how-to/tensorrt.md), or build with `--plugin native`, which does not "
            "need it.",
        )
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


def command(source: Path, target: Path, options: BuildOptions, batch: tuple[int, int, int]) -> str:
    """The command that builds the same again."""
    low, best, high = batch
    words = ["capsedge", "build", str(source), "--plugin", options.plugin]
    if options.target != TENSORRT:
        words += ["--target", options.target]
    if options.compute_capabilities:
        words += ["--compute-capability", ",".join(options.compute_capabilities)]
    if options.precision:
        words += ["--precision", options.precision]
    words += ["--batch", str(low)] if low == high else ["--dynamic-batch", f"{low}:{best}:{high}"]
    if options.workspace is not None:
        words += ["--workspace", str(options.workspace)]
    if options.timing_cache is not None:
        words += ["--timing-cache", str(options.timing_cache)]
    if options.device:
        words += ["--device", str(options.device)]
    if options.optimization_level != BuildOptions.optimization_level:
        words += ["--optimization-level", str(options.optimization_level)]
    return shlex.join([*words, "-o", str(target)])


# --- ``capsedge.build`` ---


def build(
    model: ModelLike,
    path: Path | str,
    *,
    precision: str | None = None,
    target: str = "tensorrt",
    compute_capabilities: Sequence[str] = (),
    plugin: str = "auto",
    batch: int | tuple[int, int, int] | None = None,
    workspace: int | None = None,
    timing_cache: Path | str | None = None,
    optimization_level: int = 3,
    device: int = 0,
    progress: Listener = lambda _share, _phase, _left: None,
) -> BuildReport:
    """Build a TensorRT engine: for this machine, or a portable one.

    Args:
        model: the ONNX file of ``capsedge.export`` or ``capsedge.quantize``, or its bytes.
        path: the engine to write, ``*.engine``; its metadata file is written next to it.
        precision: ``fp32``, ``fp16``, ``int8`` or ``mixed``: the precision that the engine must have; by
            default the file's.
        target: ``tensorrt``: for this machine's GPU; ``tensorrt-rtx``: for several kinds of RTX GPU, built on
            any machine.
        compute_capabilities: of those GPUs, as in ``("8.6", "12.0")``; 8.6, 8.9 and 12.0 by default.
        plugin: ``fused``: routing in the plugin library; ``native``: no plugin; ``auto``: fused if the
            library is found, native for ``tensorrt-rtx``.
        batch: a fixed batch, or the smallest, best and largest one; the file's own or 1 by default.
        workspace: bytes of scratch memory that TensorRT may use; all by default.
        timing_cache: file with timings that make later builds faster: read if it exists, then written.
        optimization_level: TensorRT's effort, 0 to 5.
        device: number of the GPU.
        progress: called with (share done, phase, seconds left or None).

    Returns:
        The paths of the engine and its metadata file, and TensorRT's warnings.

    Raises:
        UsageError: an argument is wrong, or the model's precision differs from the requested one.
        EnvironmentProblem: TensorRT, the GPU or the plugin library is missing.
        UnsupportedModelError: TensorRT cannot run the model.
        ParityError: TensorRT built a different precision; nothing was written.
        ArtefactError: the model is damaged.

    Example:
        >>> report = capsedge.build("digits.onnx", "digits.engine", batch=(1, 8, 32))
        >>> capsedge.load(report.path).predict("image.png")
    """
    path = as_path(path, OUTPUT)
    options = BuildOptions(
        precision=precision,
        plugin=plugin,
        batch=(batch,) * 3 if isinstance(batch, int) else batch,
        workspace=workspace,
        timing_cache=None if timing_cache is None else as_path(timing_cache, FILE),
        optimization_level=optimization_level,
        device=device,
        target=target,
        compute_capabilities=tuple(compute_capabilities),
    )
    with as_file(model) as file:
        shown = Path(file.name) if isinstance(model, bytes) else file
        return write_engine(file, path, options, progress, shown)
