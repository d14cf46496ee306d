"""Build an engine, C source or WebAssembly from an ONNX file (``capsedge.build``)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from capsedge.exporters.build_options import WASM, BuildOptions, C
from capsedge.options import takes_options
from capsedge.runtime.files.writing import OUTPUT, ModelLike, as_file, as_path

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from capsedge.exporters.c.wasm import WasmReport
    from capsedge.exporters.c.write_c import CReport
    from capsedge.exporters.tensorrt.engine_builder import Listener
    from capsedge.exporters.tensorrt.write_engine import BuildReport
    from capsedge.keywords import BuildKeywords


@takes_options(BuildOptions)
def build(
    model: ModelLike,
    path: Path | str,
    options: BuildOptions = BuildOptions(),
    *,
    progress: Listener = lambda _share, _phase, _left: None,
    **_keywords: Unpack[BuildKeywords],
) -> BuildReport | CReport | WasmReport:
    """Build a TensorRT engine, C source or WebAssembly from an ONNX file.

    Args:
        model: the ONNX file of ``capsedge.export`` or ``capsedge.quantize``, or its bytes.
        path: the engine to write, ``*.engine``, whose metadata file is written next to it; for ``c`` and
            ``wasm`` a folder, replaced if an earlier run wrote it.
        progress: called with (share done, phase, seconds left or None) while an engine is built.

    Returns:
        A report on what was written; its type depends on the target in the options.

    Raises:
        UsageError: an argument is wrong, the model's precision differs from the requested one, or the network
            does not fit.
        EnvironmentProblem: TensorRT, the GPU, the plugin library or a compiler is missing.
        UnsupportedModelError: TensorRT cannot run the model, or an operator has no translation.
        ParityError: TensorRT built a different precision; nothing was written.
        ArtefactError: the model is damaged.

    Example:
        >>> report = capsedge.build("digits.onnx", "digits.engine", batch=(1, 8, 32))
        >>> capsedge.load(report.path).predict("image.png")
    """
    path = as_path(path, OUTPUT)
    batch = options.batches[0] if options.batches else None
    with as_file(model) as file:
        if options.target == C:
            from capsedge.exporters.c.write_c import write_c

            return write_c(
                file,
                path,
                name=options.name,
                batch=batch,
                fit=options.fit,
                measure=options.measure,
            )
        if options.target == WASM:
            from capsedge.exporters.c.wasm import write_wasm

            return write_wasm(file, path, name=options.name, batch=batch)
        from capsedge.exporters.tensorrt.write_engine import write_engine

        shown = Path(file.name) if isinstance(model, bytes) else file
        return write_engine(file, path, options, progress, shown)
