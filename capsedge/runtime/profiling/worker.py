"""Time runs; load and time a model in one runtime, in a process driven over its pipes.

    python -m capsedge.runtime.profiling.worker SPECIFICATION
    PYTHON -I .../profiling/worker.py SPECIFICATION

With one process per runtime, memory is measured separately, a cold start is really cold, and the
driver can let runtimes take turns. The specification and every line in and out are JSON documents.

The module itself needs only numpy, and each loader only its runtime, so that an interpreter with
these, and without capsedge, can run the file. `main` also serves loaders defined elsewhere.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from capsedge.runtime.session.session import Session

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]
Loader = Callable[["Specification"], tuple[Run, str]]
"""Loads a model; returns the function that runs it on inputs by name, and what runs it, with versions."""

CONVERTED_SUFFIXES = {"litert": ".tflite", "mnn": ".mnn"}  # files that need no conversion
MISSING = {
    "litert": "pip install onnx2tf ai-edge-litert, or name a .tflite file with --peer-model.",
    "mnn": "pip install MNN",
}


@dataclass(frozen=True)
class Specification:
    """The model and runtime that a worker runs.

    Attributes:
        peer: ``capsedge``, ``ort``, ``openvino``, ``litert``, ``mnn``; others have their own workers.
        model: the file that the runtime loads.
        inputs: an ``.npz`` file with the inputs by name.
        output: the ``.npz`` file to write the outputs to; empty if there is none.
        threads: threads of one inference; 0 for the runtime's own choice.
        ops, device, provider, graphs: as for ``capsedge.load``.
        precision: OpenVINO's precision; empty for its own choice, bfloat16 on processors that have it.
        single: run each image of the inputs by itself, for files of batch 1; the first one is timed.
        checkpoint: for peers that run the trained model itself.
        module: instead of it, what names a network of the user's own, as JSON.
    """

    peer: str
    model: str
    inputs: str = ""
    output: str = ""
    threads: int = 0
    ops: str = "auto"
    device: str = "cpu"
    provider: str = "auto"
    graphs: bool | None = None
    precision: str = "f32"
    single: bool = False
    checkpoint: str = ""
    module: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def ops_argument(session: Session) -> str:
    """The ``ops`` of ``capsedge.load`` for a session that runs the same operators.

    An engine takes ``auto`` alone, and ``mixed`` is not a choice; ``auto`` chooses the same for both.
    """
    ops = session.backend.ops
    return "auto" if session.backend.engine_metadata is not None or ops == "mixed" else ops


def graphs_argument(session: Session) -> bool | None:
    """The ``graphs`` of ``capsedge.load`` for a session that runs in the same way."""
    from capsedge.runtime.backends.backend import NOT_REQUESTED, GraphBackend

    backend = session.backend
    off = isinstance(backend, GraphBackend) and backend.no_graph_reason == NOT_REQUESTED
    return False if off else None


@dataclass(frozen=True)
class RunLimits:
    """How long to measure.

    Attributes:
        warmup: seconds of runs that are not timed.
        duration: seconds of timed runs.
        iterations: least number of timed runs, whatever the duration.
    """

    warmup: float = 0.5
    duration: float = 3.0
    iterations: int = 10


def take_times(run: Callable[[], Any], limits: RunLimits) -> NDArray[np.float64]:
    """Seconds of each run, after the warm-up."""
    until = time.perf_counter() + limits.warmup
    while time.perf_counter() < until:
        run()
    return timed_runs(run, limits.duration, limits.iterations)


def timed_runs(
    run: Callable[[], Any], duration: float, least: int = 1, most: int | None = None
) -> NDArray[np.float64]:
    """Seconds of each run: runs until both the number and the duration are reached, or ``most`` runs."""
    clock = time.perf_counter
    samples: list[float] = []
    end = clock() + duration
    now = clock()
    while (now < end or len(samples) < least) and (most is None or len(samples) < most):
        start = clock()
        run()
        now = clock()
        samples.append(now - start)
    return np.array(samples)


def resident_bytes(peak: bool = False) -> int | None:
    """Resident memory of this process, now or at its peak, in bytes; None if the system does not report it.

    Unlike the value of getrusage, the peak does not start from the memory of the parent process.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name = "VmHWM:" if peak else "VmRSS:"
    for line in status.splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return None


def device_memory() -> int | None:
    """Memory that this process uses on NVIDIA GPUs, in bytes; None without ``nvidia-smi``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [program, *query], capture_output=True, encoding="utf-8", errors="replace", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1]
    used = [
        int(size)
        for pid, size in rows
        if pid.strip() == str(os.getpid()) and size.strip().isdigit()
    ]
    return sum(used) * 2**20 if used else None


def serve(load: Loader, specification: Specification, checked: float = 0.0) -> None:
    """Load, run once, then time as many runs as the driver requests, until it closes the pipe.

    The first line out reports the times of importing and loading and of the first inference, and the memory
    after each. With ``answer``, the second names the outputs, whose values are in the file by their number.
    Then, for each line in (``{"warmup": s, "duration": s, "iterations": n}``), a line reports the times of
    those runs.

    Args:
        checked: seconds of a check before, which the driver does not count.
    """
    with np.load(specification.inputs) as archive:
        feeds = {name: archive[name] for name in archive.files}
    images = [feeds]
    if specification.single:
        count = len(next(iter(feeds.values())))
        images = [{name: v[k : k + 1] for name, v in feeds.items()} for k in range(count)]
    before = resident_bytes()
    start = time.perf_counter()
    run, version = load(specification)
    loaded_at, loaded = time.perf_counter(), resident_bytes()
    outputs = run(images[0])
    first = time.perf_counter() - loaded_at
    _send(
        {
            "version": version,
            "load_s": loaded_at - start,
            "first_s": first,
            "checked_s": checked,
            "before_bytes": before,
            "loaded_bytes": loaded,
        }
    )
    if specification.output:
        np.savez(specification.output, *_outputs_of(run, images, outputs))
        _send({"answered": list(outputs)})
    for line in sys.stdin:
        samples = take_times(lambda: run(images[0]), RunLimits(**json.loads(line)))
        _send(
            {
                "seconds": samples.tolist(),
                "steady_bytes": resident_bytes(),
                "peak_bytes": resident_bytes(peak=True),
                "device_bytes": device_memory(),
            }
        )


def _outputs_of(
    run: Run, images: list[dict[str, Any]], first: Mapping[str, Any]
) -> list[NDArray[Any]]:
    """The outputs in order; ``[images, 1, ...]`` where each image was run by itself."""
    if len(images) == 1:
        return [np.asarray(value) for value in first.values()]
    # Copies, because some runtimes write the next outputs to the same memory.
    by_image = [[np.array(value) for value in run(feeds).values()] for feeds in images]
    return [np.stack(values) for values in zip(*by_image, strict=True)]


def _send(document: dict[str, Any]) -> None:
    print("\n" + json.dumps(document), flush=True)  # runtimes print, too, and not whole lines


def load_capsedge(s: Specification) -> tuple[Run, str]:
    """The runtime of this package."""
    from capsedge.runtime import machine
    from capsedge.runtime.load import load
    from capsedge.runtime.runtime_options import RuntimeOptions
    from capsedge.spec.version import VERSION

    options = RuntimeOptions(
        device=s.device, threads=s.threads or None, ops=s.ops, provider=s.provider, graphs=s.graphs
    )
    session = load(s.model, options)
    package = "onnxruntime" if session.backend.engine_metadata is None else "tensorrt"
    below = f"{package} {machine.versions(package).get(package, 'unknown')}"
    return session.run, f"capsedge {VERSION} ({session.backend.ops}), {below}"


def load_ort(s: Specification) -> tuple[Run, str]:
    """Plain ONNX Runtime, without capsedge's operator library."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = s.threads
    model = _harmless(s.model, options)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return (
        lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)),
        f"onnxruntime {onnxruntime.__version__}",
    )


def _harmless(model: str, options: Any) -> str | bytes:
    """The model for ONNX Runtime: with this package, checked bytes that cannot open other files."""
    try:
        from capsedge.runtime.backends.onnxruntime_session import keep_to_itself
        from capsedge.runtime.onnx_file.summary import read_harmless
    except ImportError:  # an interpreter that has the runtime alone
        return model
    keep_to_itself(options)
    return read_harmless(model)[0]


def load_openvino(s: Specification) -> tuple[Run, str]:
    """OpenVINO."""
    import openvino

    config: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
    if s.precision:
        config["INFERENCE_PRECISION_HINT"] = s.precision
    if s.threads:
        config["INFERENCE_NUM_THREADS"] = s.threads
    compiled = openvino.Core().compile_model(s.model, "CPU", config)
    request = compiled.create_infer_request()

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        request.infer(dict(feeds))
        return {
            name: request.get_tensor(output).data
            for output in compiled.outputs
            for name in output.names
        }

    used = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    precision = "FP32" if used == "f32" else used
    return run, f"openvino {openvino.__version__.split('-')[0]}, {precision}"


def load_litert(s: Specification) -> tuple[Run, str]:
    """LiteRT with XNNPACK, for a ``.tflite`` file or, through onnx2tf, an ONNX file of constant shapes."""
    from ai_edge_litert.interpreter import Interpreter

    version = f"ai-edge-litert {importlib.metadata.version('ai-edge-litert')}"
    model = s.model
    if not model.endswith(".tflite"):
        model = _converted_by_onnx2tf(model)
        version += f", onnx2tf {importlib.metadata.version('onnx2tf')}"
    interpreter = Interpreter(model_path=model, num_threads=s.threads or None)
    interpreter.allocate_tensors()
    inputs = {d["name"].removesuffix(":0"): d for d in interpreter.get_input_details()}
    outputs = interpreter.get_output_details()

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in feeds.items():
            wanted = next(iter(inputs.values())) if len(inputs) == 1 else inputs[name]
            interpreter.set_tensor(wanted["index"], _channels_last(value, wanted["shape"]))
        interpreter.invoke()
        return {d["name"].removesuffix(":0"): interpreter.get_tensor(d["index"]) for d in outputs}

    return run, version


def _converted_by_onnx2tf(model: str) -> str:
    import onnx2tf

    folder = temporary_folder()
    onnx2tf.convert(
        input_onnx_file_path=model,
        output_folder_path=str(folder),
        non_verbose=True,
        verbosity="error",
    )
    files = sorted(folder.glob("*float32.tflite"))
    if not files:
        raise ValueError("onnx2tf wrote no file")
    return str(files[0])


def _channels_last(value: Any, shape: Any) -> Any:
    """Images as the converter laid them out: ``[N, H, W, C]``."""
    same = value.shape == tuple(shape) and len(set(value.shape[1:])) > 1
    if value.ndim == 4 and not same:
        value = value.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(value)


def load_mnn(s: Specification) -> tuple[Run, str]:
    """MNN in FP32, for an ``.mnn`` file or an ONNX file."""
    import MNN

    model = s.model if s.model.endswith(".mnn") else _converted_by_mnn(s.model)
    interpreter = MNN.Interpreter(model)
    session = interpreter.createSession({"numThread": s.threads or 4, "precision": "high"})
    inputs = interpreter.getSessionInputAll(session)

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in feeds.items():
            if tuple(inputs[name].getShape()) != value.shape:
                interpreter.resizeTensor(inputs[name], value.shape)
                interpreter.resizeSession(session)
            inputs[name].copyFrom(_mnn_tensor(np.ascontiguousarray(value, np.float32)))
        interpreter.runSession(session)
        outputs = {}
        for name, tensor in interpreter.getSessionOutputAll(session).items():
            shape = tuple(tensor.getShape())
            host = _mnn_tensor(np.zeros(shape, np.float32))
            tensor.copyToHostTensor(host)
            outputs[name] = np.array(host.getNumpyData()).reshape(shape).copy()
        return outputs

    return run, f"MNN {importlib.metadata.version('MNN')}"


def _converted_by_mnn(model: str) -> str:
    """Not by the command ``mnnconvert``, which would install packages and report to its maker."""
    import _tools  # MNN's converter itself

    target = temporary_folder() / "model.mnn"
    arguments = ["mnnconvert", "-f", "ONNX", "--modelFile", model, "--MNNModel", str(target)]
    _tools.mnnconvert([*arguments, "--bizCode", "capsedge"])
    if not target.exists():
        raise ValueError("MNN's converter wrote no file")
    return str(target)


def _mnn_tensor(value: Any) -> Any:
    import MNN

    shape, kind = value.shape, MNN.Halide_Type_Float
    return MNN.Tensor(shape, kind, value, MNN.Tensor_DimensionType_Caffe)


def temporary_folder() -> Path:
    """A folder for what a converter writes, which is removed with the process."""
    folder = tempfile.mkdtemp(prefix="capsedge-peer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


LOADERS: dict[str, Loader] = {
    "capsedge": load_capsedge,
    "ort": load_ort,
    "openvino": load_openvino,
    "litert": load_litert,
    "mnn": load_mnn,
}


def main(
    loaders: Mapping[str, Loader] = LOADERS,
    check: Callable[[Specification], None] = lambda _: None,
) -> None:
    """Serve the specification given as the first argument; errors go out as the first line.

    Args:
        check: called before anything is measured.
    """
    specification = Specification(**json.loads(sys.argv[1]))
    try:
        start = time.perf_counter()
        check(specification)
        checked = time.perf_counter() - start
        serve(loaders[specification.peer], specification, checked)
    except Exception as error:
        unsupported = type(error).__name__ == "UnsupportedModelError"
        _send({"error": _parts(error, specification), "unsupported": unsupported})


def _parts(error: Exception, s: Specification) -> list[str]:
    """What failed, why, and the fix."""
    if hasattr(error, "what"):  # of this package
        return [error.what, getattr(error, "why", ""), getattr(error, "fix", "")]
    text = " ".join(str(error).split())[:600]
    if isinstance(error, ImportError) and s.peer in MISSING:
        return [f"The peer '{s.peer}' cannot read {s.model}.", f"{text}.", MISSING[s.peer]]
    return [f"{s.peer} failed.", f"{type(error).__name__}: {text}", ""]


if __name__ == "__main__":
    main()
