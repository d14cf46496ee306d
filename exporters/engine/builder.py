"""The one path through TensorRT's builder, from 10.3 to 11: strongly typed, no precision flag.

Every name of TensorRT that is used here is in the bindings of all versions (tests/exporters/engine); numbers
of flags moved between 10 and 11, so no flag is ever written as a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsedge.errors import EnvironmentProblem, UnsupportedModelError
from capsedge.exporters.engine.progress import Progress, monitor
from capsedge.runtime.tensorrt_library import load_plugin, start


@dataclass(frozen=True)
class Limits:
    """What the builder may use.

    Attributes:
        batch: smallest, best and largest batch.
        workspace: bytes of scratch memory on the GPU; None leaves TensorRT the whole GPU.
        timing_cache: timings of an earlier build; empty without.
        optimization_level: 0 to 5.
    """

    batch: tuple[int, int, int]
    workspace: int | None = None
    timing_cache: bytes = b""
    optimization_level: int = 3


@dataclass(frozen=True)
class Built:
    """What the builder made.

    Attributes:
        plan: the engine.
        information: the inspector's JSON.
        timing_cache: with this build's timings.
        warnings: what TensorRT warned of.
    """

    plan: bytes
    information: str
    timing_cache: bytes
    warnings: tuple[str, ...]


def build_engine(
    trt: Any,
    builder: Any,
    logger: Any,
    model: bytes,
    limits: Limits,
    progress: Progress,
    plugin: Path | None,
) -> Built:
    """Parse an ONNX model and build its engine.

    Args:
        trt: the package.
        builder: a ``Builder`` whose registry has the plugins that the model needs.
        model: a serialized model without functions.
        plugin: the library with those plugins; None without.

    Raises:
        UnsupportedModelError: the parser refuses a node, or no kernel was found for one.
        EnvironmentProblem: memory ran out.
        BaseException: what ``progress`` raised in the middle of the build, such as an interrupt.
    """
    # Required on 10.x; without effect on 11, where every network is strongly typed.
    strongly_typed = 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(strongly_typed)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(model):
        errors = [parser.get_error(index) for index in range(parser.num_errors)]
        raise UnsupportedModelError(
            f"TensorRT {trt.__version__} cannot parse the model.",
            "; ".join(
                f"{error.node_operator()} '{error.node_name()}': {error.desc()}" for error in errors
            )
            or logger.words(),
            "Build with `--plugin native`; if that fails too, report it with the model's `capsedge inspect`.",
        )
    config = builder.create_builder_config()
    if limits.workspace is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, limits.workspace)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.builder_optimization_level = limits.optimization_level
    # FP32 is FP32: TF32 keeps 10 bits and is on by default.
    config.clear_flag(trt.BuilderFlag.TF32)
    _add_profile(builder, network, config, limits.batch)
    cache = config.create_timing_cache(limits.timing_cache)
    config.set_timing_cache(cache, False)
    config.progress_monitor = monitor(trt, progress)
    plan = builder.build_serialized_network(network, config)
    if progress.stopped_by is not None:
        raise progress.stopped_by
    if plan is None:
        raise _failure(trt, logger)
    data = bytes(memoryview(plan))
    timings = bytes(memoryview(config.get_timing_cache().serialize()))
    return Built(data, _inspect(trt, logger, data, plugin), timings, tuple(logger.warnings))


def _add_profile(builder: Any, network: Any, config: Any, batch: tuple[int, int, int]) -> None:
    profile = builder.create_optimization_profile()
    free = 0
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        shape = tuple(tensor.shape)
        if -1 not in shape:
            continue
        if -1 in shape[1:]:
            raise UnsupportedModelError(
                f"Input '{tensor.name}' has the shape {list(shape)}.",
                "Only the batch may be free.",
                "Export the model with fixed image sizes.",
            )
        profile.set_shape(tensor.name, *((size, *shape[1:]) for size in batch))
        free += 1
    if free:
        config.add_optimization_profile(profile)


def _inspect(trt: Any, logger: Any, plan: bytes, plugin: Path | None) -> str:
    """What TensorRT says of the engine. A runtime has a registry of its own, so it loads the plugins too."""
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
    return str(inspector.get_engine_information(trt.LayerInformationFormat.JSON))


def _failure(trt: Any, logger: Any) -> EnvironmentProblem | UnsupportedModelError:
    words = logger.words()
    if "memory" in words.lower():
        return EnvironmentProblem(
            f"TensorRT {trt.__version__} ran out of memory.",
            words,
            "Close other programs, give less with `--workspace 512M`, or build for a smaller batch.",
        )
    return UnsupportedModelError(
        f"TensorRT {trt.__version__} cannot build this model.",
        words,
        "Build with `--plugin native`; if that fails too, report it with the model's `capsedge inspect`.",
    )
