"""One backend in its own process: it loads a model, runs it, and times itself; driven over its pipes.

    python -m capsedge.runtime.profiling.worker SPECIFICATION

With one process per backend, memory is measured separately, a cold start is really cold, and the driver can
let backends take turns. The specification and every line in and out are JSON documents. `serve` is the
protocol, also for workers outside this module.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from capsedge.errors import CapsedgeError, EnvironmentProblem

if TYPE_CHECKING:
    from capsedge.runtime.session import Session

Loader = Callable[["Specification"], tuple[Callable[[dict[str, Any]], dict[str, Any]], str]]


@dataclass(frozen=True)
class Specification:
    """The model and backend that a worker runs.

    Attributes:
        peer: ``capsedge``, ``ort``, ``openvino``, ``litert``, ``mnn``; others have their own workers.
        model: the ONNX file.
        inputs: an ``.npz`` file with the inputs by name.
        answer: the ``.npz`` file to write the outputs to; empty for none.
        threads: threads of one inference; 0 for the backend's own choice.
        ops, device, provider: as for ``capsedge.load``.
        checkpoint: for peers that run the trained model itself.
        module: instead of it, what names a network of the user's own, as JSON.
    """

    peer: str
    model: str
    inputs: str
    answer: str = ""
    threads: int = 0
    ops: str = "auto"
    device: str = "cpu"
    provider: str = "auto"
    checkpoint: str = ""
    module: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def ops_argument(session: Session) -> str:
    """The ``ops`` of ``capsedge.load`` for a session that runs the same operators.

    ``fused`` would be refused on a GPU, and ``mixed`` is not a choice; ``auto`` chooses the same for both.
    """
    gpu, ops = session.backend.gpu, session.backend.ops
    return ops if gpu is None and ops != "mixed" else "auto"


def serve(load: Loader, specification: Specification) -> None:
    """Load, run once, then time as many runs as the driver requests, until it closes the pipe.

    The first line out reports the times of importing and loading and of the first inference, and the memory
    after each; then, for each line in (``{"warmup": s, "duration": s, "iterations": n}``), a line reports
    the times of those runs.
    """
    import numpy as np

    from capsedge.runtime.profiling import memory
    from capsedge.runtime.profiling.measure import Limits, take_times

    with np.load(specification.inputs) as archive:
        feeds = {name: archive[name] for name in archive.files}
    before = memory.resident()
    start = time.perf_counter()
    run, version = load(specification)
    loaded_at, loaded = time.perf_counter(), memory.resident()
    outputs = run(feeds)
    first = time.perf_counter() - loaded_at
    _say(
        {
            "version": version,
            "load_s": loaded_at - start,
            "first_s": first,
            "before_bytes": before,
            "loaded_bytes": loaded,
        }
    )
    if specification.answer:
        arrays: dict[str, Any] = {name: np.asarray(v) for name, v in outputs.items()}
        np.savez(specification.answer, **arrays)
        _say({"answered": True})
    for line in sys.stdin:
        samples = take_times(lambda: run(feeds), Limits(**json.loads(line)))
        _say(
            {
                "seconds": samples.tolist(),
                "steady_bytes": memory.resident(),
                "peak_bytes": memory.peak_resident(),
                "device_bytes": memory.device_memory(),
            }
        )


def _say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def load_capsedge(s: Specification) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], str]:
    """The runtime of this package."""
    import onnxruntime

    from capsedge import __version__
    from capsedge.runtime.load import load

    session = load(
        s.model, device=s.device, threads=s.threads or None, ops=s.ops, provider=s.provider
    )
    version = (
        f"capsedge {__version__} ({session.backend.ops}), onnxruntime {onnxruntime.__version__}"
    )
    return session.run, version


def load_ort(s: Specification) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], str]:
    """Plain ONNX Runtime, without capsedge's operator library."""
    import onnxruntime

    from capsedge.runtime.backends.onnxruntime_backend import keep_to_itself
    from capsedge.runtime.reading.onnx_file import read_harmless

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = s.threads
    keep_to_itself(options)
    model, _ = read_harmless(s.model)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return (
        lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)),
        f"onnxruntime {onnxruntime.__version__}",
    )


def load_openvino(s: Specification) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], str]:
    """OpenVINO in FP32: its default would be bfloat16 on processors that have it."""
    import openvino

    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    if s.threads:
        config["INFERENCE_NUM_THREADS"] = s.threads
    compiled = openvino.Core().compile_model(s.model, "CPU", config)
    request = compiled.create_infer_request()

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        request.infer(feeds)
        return {
            name: request.get_tensor(output).data
            for output in compiled.outputs
            for name in output.names
        }

    return run, f"openvino {openvino.__version__.split('-')[0]}, FP32"


def load_converted(s: Specification) -> tuple[Callable[[dict[str, Any]], dict[str, Any]], str]:
    """LiteRT or MNN, with a file of its own format or one converted from the ONNX file."""
    from capsedge.runtime.profiling.peers import load_litert, load_mnn

    load = {"litert": load_litert, "mnn": load_mnn}[s.peer]
    try:
        return load(s.model, s.threads)
    except ImportError as error:
        raise EnvironmentProblem(
            f"The peer '{s.peer}' cannot read {s.model}.",
            f"{error}.",
            "pip install onnx2tf ai-edge-litert, or name a .tflite file with --peer-model."
            if s.peer == "litert"
            else "pip install MNN",
        ) from error


LOADERS: dict[str, Loader] = {
    "capsedge": load_capsedge,
    "ort": load_ort,
    "openvino": load_openvino,
    "litert": load_converted,
    "mnn": load_converted,
}


def main(loaders: dict[str, Loader] = LOADERS) -> None:
    """Serve the specification given as the first argument; errors go out as the first line."""
    specification = Specification(**json.loads(sys.argv[1]))
    try:
        serve(loaders[specification.peer], specification)
    except CapsedgeError as error:
        _say({"error": [error.what, error.why, error.fix]})
    except Exception as error:
        first = str(error).strip().splitlines()
        _say(
            {
                "error": [
                    f"{specification.peer} failed.",
                    f"{type(error).__name__}: {first[0] if first else ''}",
                    "",
                ]
            }
        )


if __name__ == "__main__":
    main()
