"""Nodes of each bundled model on ONNX Runtime's CUDA provider, as function bodies and with the CUDA kernels.

    python -m tests.native.ptx.provider_nodes

Models load here, on executed PTX, but do not run: the provider's own kernels have none.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.backend import ModelFile
from capsedge.runtime.backends.onnxruntime_backend import OnnxRuntimeBackend
from capsedge.runtime.backends.onnxruntime_session import NO_FALLBACK, provider_chain
from capsedge.runtime.onnx_file.structure import read_structure
from capsedge.runtime.runtime_options import RuntimeOptions
from capsedge.runtime.zoo import MODELS, zoo_model
from tests.conformance.provider import executor


def optimized(path: Path, ops: str) -> tuple[str, Counter[str]]:
    """What a session says that runs, and the types of the nodes of its graph."""
    import onnxruntime

    backend = OnnxRuntimeBackend.open(ModelFile(path), RuntimeOptions(device="cuda", ops=ops))
    settings = backend._settings
    with TemporaryDirectory() as folder:
        written = Path(folder, "optimized.onnx")
        options = settings.session_options(onnxruntime)
        options.add_session_config_entry(NO_FALLBACK, "1")
        options.optimized_model_filepath = str(written)
        chosen = provider_chain(settings.provider, settings.gpu)
        onnxruntime.InferenceSession(path.read_bytes(), options, providers=chosen)
        nodes = read_structure(written).graph.nodes
    return backend.ops, Counter(node.op for node in nodes)


def main() -> None:
    """Print the table."""
    executor()
    print(
        "| model | nodes, function bodies | nodes, CUDA kernels | operators | which run as kernels |"
    )
    print("|---|---|---|---|---|")
    for name in MODELS:
        path = zoo_model(name)
        assert path is not None
        try:
            _, before = optimized(path, "portable")
            ops, after = optimized(path, "auto")
        except CapsedgeError as error:
            print(f"| {name} | refused | refused | | {error.what.replace(str(path), name)} |")
            continue
        kernels = sorted(set(after) - set(before))
        print(
            f"| {name} | {before.total()} | {after.total()} | {ops} | {', '.join(kernels)} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
