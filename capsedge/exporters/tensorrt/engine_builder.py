"""Build strongly typed networks with TensorRT 10.3 to 11 and TensorRT-RTX alike, with progress.

Every name of TensorRT that is used here is in the bindings of all versions (tests/tensorrt/test_contract.py);
numbers of flags moved between 10 and 11, so no flag is ever written as a number.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsedge.errors import EnvironmentProblem, UnsupportedModelError, UsageError
from capsedge.runtime.backends import engine_layers
from capsedge.runtime.backends.engine_layers import EngineLayer
from capsedge.runtime.backends.tensorrt_library import load_plugin, product_version, start
from capsedge.runtime.backends.tensorrt_rtx import set_compute_capabilities
from capsedge.runtime.files.text import format_bytes

# --- Progress for people: the phase, the share done and the time left ---

Listener = Callable[[float, str, "float | None"], None]
_EARLY = 0.05  # share of the work below which an estimate would be a guess


@dataclass
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


@dataclass
class BuildProgress:
    """Nested phases as one share of the whole.

    TensorRT opens phases inside steps of others and tells neither weights nor times, so a step counts as
    an equal part of its phase. The share never goes back.

    Args:
        report: called with the share (0 to 1), the phase in words, and the seconds left (None while it
            is too early to say).
        clock: seconds.

    Attributes:
        stopped_by: the exception raised during the build, to be raised again when it has ended.
    """

    report: Listener
    clock: Callable[[], float] = time.monotonic
    stopped_by: BaseException | None = None
    share: float = 0.0
    _phases: dict[str, _Phase] = field(default_factory=dict)
    _start: float | None = None

    def start(self, phase: str, parent: str | None, steps: int) -> None:
        """A phase begins, inside another or on its own."""
        if self._start is None:
            self._start = self.clock()
        self._phases[phase] = _Phase(parent or None, max(1, steps))
        self._tell(phase)

    def step(self, phase: str, done: int) -> bool:
        """``done`` is the number of the step that ended, from 0; False asks TensorRT to stop."""
        if phase in self._phases:
            self._phases[phase].done = done + 1
            self._tell(phase)
        return self.stopped_by is None

    def finish(self, phase: str) -> None:
        """A phase ends, even if the build was stopped in it."""
        ended = self._phases.pop(phase, None)
        if ended is None:
            return
        if ended.parent is None and not self._phases:
            self.share = 1.0
        self._tell(phase)

    def _tell(self, phase: str) -> None:
        self.share = max(self.share, min(1.0, self._whole()))
        spent = self.clock() - (self._start or 0.0)
        left = spent * (1 / self.share - 1) if self.share >= _EARLY else None
        self.report(self.share, phase, left)

    def _whole(self) -> float:
        """Share of the first phase of all that is open, with the shares of those inside its current step."""
        roots = [name for name, phase in self._phases.items() if phase.parent not in self._phases]
        return self._of(roots[0]) if roots else self.share

    def _of(self, name: str) -> float:
        phase = self._phases[name]
        inside = [child for child, p in self._phases.items() if p.parent == name]
        part = max((self._of(child) for child in inside), default=0.0)
        return min(1.0, (phase.done + part) / phase.steps)


def monitor(trt: Any, progress: BuildProgress) -> Any:
    """An ``IProgressMonitor`` that forwards every event.

    Exceptions must not pass through TensorRT's C++. An interrupt, or a report that fails because standard
    error is closed, stops the build and is raised when it has ended.
    """

    @contextmanager
    def guarded() -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            progress.stopped_by = progress.stopped_by or error

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            with guarded():
                progress.start(phase_name, parent_phase, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            with guarded():
                progress.step(phase_name, step)
            return progress.stopped_by is None

        def phase_finish(self, phase_name: str) -> None:
            with guarded():
                progress.finish(phase_name)

    return Monitor()


# --- The builder ---


@dataclass(frozen=True)
class EngineLimits:
    """Limits for the builder.

    Attributes:
        batch: smallest, best and largest batch.
        length: likewise of the other free axes; empty if there are none.
        workspace: bytes of scratch memory on the GPU; None: TensorRT may use all of it.
        timing_cache: timings of an earlier build; empty if none. Nothing is timed for a portable engine.
        optimization_level: 0 to 5.
        compute_capabilities: those of the GPUs that a portable TensorRT-RTX engine is for, such as ``8.6``;
            empty for an engine for this machine's GPU.
    """

    batch: tuple[int, int, int]
    workspace: int | None = None
    timing_cache: bytes = b""
    optimization_level: int = 3
    compute_capabilities: tuple[str, ...] = ()
    length: tuple[int, ...] = ()

    def sizes(self, which: int) -> tuple[int, int]:
        """The smallest (0), best (1) or largest (2) batch and length; without a free length, 1."""
        return self.batch[which], self.length[which] if self.length else 1

    @property
    def portable(self) -> bool:
        """Whether the engine is built ahead of time, for GPUs other than this machine's."""
        return bool(self.compute_capabilities)


@dataclass(frozen=True)
class Built:
    """The result of a build.

    Attributes:
        plan: the engine.
        layers: TensorRT's report on its layers.
        timing_cache: cache with this build's timings; empty if there are none.
        warnings: TensorRT's warnings, and whether a timing cache was usable.
    """

    plan: bytes
    layers: tuple[EngineLayer, ...]
    timing_cache: bytes
    warnings: tuple[str, ...]


def build_engine(
    trt: Any,
    builder: Any,
    logger: Any,
    model: bytes,
    limits: EngineLimits,
    progress: BuildProgress,
    plugin: Path | None,
) -> Built:
    """Parse an ONNX model and build its engine.

    Args:
        trt: the package.
        builder: a ``Builder`` whose registry has the plugins that the model needs.
        model: a serialized model without functions.
        plugin: the library with those plugins; None if not needed.

    Raises:
        UsageError: the workspace is too small for the model.
        UnsupportedModelError: the parser refuses a node, or no kernel was found for one.
        EnvironmentProblem: memory ran out.
        BaseException: an exception raised by ``progress`` during the build, such as an interrupt.
    """
    # Required on 10.x; without effect on 11, where every network is strongly typed.
    strongly_typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(strongly_typed)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model):
        raise _refused(trt, logger, parser, plugin)
    config = builder.create_builder_config()
    if limits.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, limits.workspace)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.builder_optimization_level = limits.optimization_level
    # FP32 is FP32: TF32 keeps 10 bits and is on by default.
    config.clear_flag(trt.BuilderFlag.TF32)
    _add_profile(builder, network, config, limits)
    warnings: list[str] = []
    if limits.portable:
        set_compute_capabilities(trt, config, limits.compute_capabilities)
    else:
        warnings += set_timings(config, limits.timing_cache)
    config.progress_monitor = monitor(trt, progress)
    logger.layers.clear()
    plan = builder.build_serialized_network(network, config)
    if progress.stopped_by is not None:
        raise progress.stopped_by
    if plan is None:
        raise _failure(trt, logger, limits, plugin)
    data = bytes(memoryview(plan))
    layers = engine_layers.from_log(logger.layers)
    timings = b""
    if not limits.portable:
        best = limits.sizes(1)
        layers = engine_layers.fill(_inspect(trt, logger, data, best, plugin), layers)
        timings = get_timings(config)
        if not timings:
            warnings.append("TensorRT returned no timings to save.")
    warnings += logger.warnings
    return Built(data, tuple(layers), timings, tuple(warnings))


def _refused(trt: Any, logger: Any, parser: Any, plugin: Path | None) -> UnsupportedModelError:
    """Why a model could not be parsed. A plugin's reason appears only in the log."""
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    reasons = logger.of_plugins() + [
        f"{error.node_operator()} '{error.node_name()}': {error.desc()}" for error in errors
    ]
    return UnsupportedModelError(
        f"{product_version(trt)} cannot parse the model.",
        "; ".join(reasons) or logger.words(),
        _advice(plugin),
    )


def _advice(plugin: Path | None) -> str:
    report = "report it with the model's `capsedge inspect`."
    if plugin is None:
        return f"Please {report}"
    return f"Build with `--plugin native`; if that fails too, {report}"


def set_timings(config: Any, timings: bytes) -> list[str]:
    """Give a build the timings of an earlier one; it goes without if TensorRT rejects them.

    A cache is valid for one TensorRT version and one GPU. TensorRT rejects any other with a null pointer or
    False.

    Returns:
        Warnings for the user.
    """
    cache = config.create_timing_cache(timings)
    if cache is not None and config.set_timing_cache(cache, False):
        return []
    cache = config.create_timing_cache(b"")
    if cache is not None:
        config.set_timing_cache(cache, False)
    return ["The timing cache is of another TensorRT or GPU, or damaged: built without it."]


def get_timings(config: Any) -> bytes:
    """The timings after a build; empty if TensorRT has none."""
    cache = config.get_timing_cache()
    memory = None if cache is None else cache.serialize()
    return b"" if memory is None else bytes(memoryview(memory))


def _shape(shape: Sequence[int], sizes: tuple[int, int]) -> tuple[int, ...]:
    """A shape with its free sizes replaced: the first by the batch, others by the length."""
    return tuple(d if d >= 0 else sizes[min(axis, 1)] for axis, d in enumerate(shape))


def _add_profile(builder: Any, network: Any, config: Any, limits: EngineLimits) -> None:
    profile = builder.create_optimization_profile()
    free = 0
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        shape = tuple(tensor.shape)
        if -1 not in shape:
            continue
        profile.set_shape(tensor.name, *(_shape(shape, limits.sizes(k)) for k in range(3)))
        free += 1
    if free:
        config.add_optimization_profile(profile)


def _inspect(
    trt: Any, logger: Any, plan: bytes, sizes: tuple[int, int], plugin: Path | None
) -> list[EngineLayer]:
    """TensorRT's report on the engine. A runtime has its own registry, so it loads the plugins too."""
    runtime = start(trt, trt.Runtime, logger)
    if plugin is not None:
        load_plugin(runtime.get_plugin_registry(), plugin, logger)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise EnvironmentProblem(
            "TensorRT built an engine that it cannot load.",
            logger.words(),
            "Run `capsedge doctor`.",
        )
    inspector = engine.create_engine_inspector()
    # Without shapes, the layers of an engine for several sizes have no formats. The inspector does not keep
    # the context alive. It takes as much memory as a run: without it, formats stay unknown.
    context = engine.create_execution_context()
    if context is not None:
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
                context.set_input_shape(name, _shape(engine.get_tensor_shape(name), sizes))
        inspector.execution_context = context
    information = inspector.get_engine_information(trt.LayerInformationFormat.JSON)
    return engine_layers.from_inspector(str(information))


def _failure(
    trt: Any, logger: Any, limits: EngineLimits, plugin: Path | None
) -> EnvironmentProblem | UnsupportedModelError | UsageError:
    words = logger.words()
    messages = " ".join(logger.errors).lower()
    if "workspace limit" in messages and limits.workspace is not None:
        return UsageError(
            f"A workspace of {format_bytes(limits.workspace)} is too small for this model.",
            words,
            "Raise it, as in `--workspace 1G`, or leave it out.",
        )
    if "turing" in messages:
        return UnsupportedModelError(
            f"{product_version(trt)} cannot build this model for compute capability 7.5 (Turing).",
            words,
            "Leave 7.5 out of `--compute-capability`. On a Turing GPU, `capsedge build` without "
            "`--target` builds a TensorRT engine.",
        )
    if "memory" in messages:
        return EnvironmentProblem(
            f"{product_version(trt)} ran out of memory.",
            words,
            "Close other programs, lower the limit with `--workspace 512M`, or build for a smaller batch.",
        )
    return UnsupportedModelError(
        f"{product_version(trt)} cannot build this model.", words, _advice(plugin)
    )
