"""Compile the page's models to WebAssembly, which visitors load in place of ONNX Runtime."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from capsedge.errors import ArtefactError, UnsupportedModelError, UsageError
from capsedge.runtime.files.text import format_bytes
from capsedge.spec.fields import PAGE_RUNTIME

_PACKAGES = ("ziglang", "onnx", "onnxscript")
_PREFIX = "network"  # prefix of internal symbols


def is_available() -> bool:
    """Whether models can be compiled: whether the extra ``wasm`` is installed."""
    return all(importlib.util.find_spec(name) is not None for name in _PACKAGES)


def compile_models(
    models: Mapping[str, bytes], note: Callable[[str], None]
) -> dict[str, tuple[str, bytes]]:
    """Compile the models that can be written as C.

    Args:
        models: bytes of ONNX files that were checked, by their paths in the folder.
        note: called for each model that cannot be compiled, with the reason.

    Returns:
        The path and bytes of each model's WebAssembly, by the model's path.

    Raises:
        EnvironmentProblem: the compiler fails.
    """
    from capsedge.exporters.c.wasm import compile_network

    found = {}
    for path, data in models.items():
        place = PurePosixPath(path)
        try:
            network = compile_network(data, Path(place.name), _PREFIX)
        except (UnsupportedModelError, ArtefactError, UsageError) as error:
            note(f"{place.stem} runs in ONNX Runtime, as it cannot be compiled: {error.why}")
            continue
        found[path] = (str(place.with_suffix(".wasm")), network.data)
    return found


def note_without_extra(runtime_bytes: int, note: Callable[[str], None]) -> None:
    """Tell the user how much less a visitor would load with the extra."""
    note(
        f"a first visit loads {format_bytes(runtime_bytes)} of ONNX Runtime; with pip install "
        "'capsedge[wasm]', models are compiled, and only files of the visitor's own need it"
    )


def late_files(compiled: Mapping[str, object], models: Sequence[str]) -> list[str]:
    """Prefixes of the paths that a visitor loads on first use, besides WebGPU's.

    Args:
        compiled: the paths of the models that were compiled.
        models: the paths of all models.
    """
    whole = [PAGE_RUNTIME] if models and all(path in compiled for path in models) else []
    return [*whole, *compiled]
