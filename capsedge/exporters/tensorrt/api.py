"""``capsedge.build``: an ONNX model in, a TensorRT engine with its passport out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from capsedge.exporters.tensorrt import engine_file
from capsedge.exporters.tensorrt.engine_file import BuildOptions, BuildReport
from capsedge.exporters.tensorrt.progress import Listener
from capsedge.runtime.files.given import FILE, OUTPUT, GivenModel, as_file, as_path


def build(
    model: GivenModel,
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
    """Build a TensorRT engine, on the machine that will run it or portable.

    Args:
        model: the ONNX file of ``capsedge.export`` or ``capsedge.quantize``, or its bytes.
        path: the engine to write, ``*.engine``; its passport goes beside it.
        precision: ``fp32``, ``fp16``, ``int8`` or ``mixed``: what the engine must have; the file's own by
            default.
        target: ``tensorrt``: for the GPU that is here; ``tensorrt-rtx``: for several kinds of RTX GPU, built
            on any machine.
        compute_capabilities: of those GPUs, as in ``("8.6", "12.0")``; 8.6, 8.9 and 12.0 by default.
        plugin: ``fused``: routing in the plugin library; ``native``: no plugin; ``auto``: fused where the
            library is found, native for ``tensorrt-rtx``.
        batch: a fixed batch, or the smallest, best and largest one; the file's own or 1 by default.
        workspace: bytes of scratch memory that TensorRT may use; all by default.
        timing_cache: file of timings that makes later builds faster: read if it is there, then written.
        optimization_level: TensorRT's effort, 0 to 5.
        device: number of the GPU.
        progress: called with (share done, phase, seconds left or None).

    Returns:
        Where the engine is, its passport, and what TensorRT warned of.

    Raises:
        UsageError: an argument is wrong, or the model has another precision than asked for.
        EnvironmentProblem: TensorRT, the GPU or the plugin library is missing.
        UnsupportedModelError: TensorRT cannot run the model.
        ParityError: TensorRT built another precision; nothing was written.
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
        return engine_file.build(file, path, options, progress, shown)
