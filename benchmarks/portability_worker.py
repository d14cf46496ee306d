"""One runtime and one file in a process of its own, by the interpreter that has the runtime.

    PYTHON benchmarks/portability_worker.py SPECIFICATION

Needs numpy and the runtime, nothing of capsedge. The specification is a JSON document: ``runtime``,
``model``, ``inputs`` (an ``.npz`` file of images by input name), ``answer`` (the ``.npz`` file to write),
``threads``, ``seconds`` of timed runs. Prints one JSON document: ``version``, ``outputs`` (names, in the
runtime's order; the answer has them by number), ``median_ms`` of one image; or ``error``.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[dict[str, Any]], dict[str, Any]]
PEERS = Path(__file__).parents[1] / "runtime" / "profiling" / "peers.py"


def _peers() -> Any:
    specification = importlib.util.spec_from_file_location("peers", PEERS)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules["peers"] = module
    specification.loader.exec_module(module)
    return module


def load_onnxruntime(model: str, threads: int) -> tuple[Run, str]:
    """ONNX Runtime as it comes, without the operator library."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return (
        lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)),
        f"onnxruntime {onnxruntime.__version__}",
    )


def load_openvino(model: str, threads: int) -> tuple[Run, str]:
    """OpenVINO, whose default on some processors would be bfloat16, in FP32."""
    import openvino

    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        request.infer(feeds)
        return {
            str(k): request.get_output_tensor(k).data.copy() for k in range(len(compiled.outputs))
        }

    return run, f"openvino {openvino.__version__.split('-')[0]}"


def load_tract(model: str, threads: int) -> tuple[Run, str]:
    """tract, which computes on one thread."""
    import tract

    found = tract.onnx().load(model)
    names = [found.output_name(k) for k in range(found.output_count())]
    runnable = found.into_model().into_runnable()
    return (
        lambda feeds: {
            name: value.to_numpy()
            for name, value in zip(names, runnable.run(list(feeds.values())), strict=True)
        },
        f"tract {version('tract')}",
    )


def load_reference(model: str, threads: int) -> tuple[Run, str]:
    """ONNX's own reference evaluator, in numpy."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    session = ReferenceEvaluator(model)
    names = [str(name) for name in session.output_names]
    return (
        lambda feeds: dict(zip(names, session.run(None, feeds), strict=True)),
        f"onnx {onnx.__version__}",
    )


def load_ncnn(model: str, threads: int) -> tuple[Run, str]:
    """ncnn, of a file that pnnx converts."""
    import ncnn

    # The package's own module would import torch.
    package = importlib.util.find_spec("pnnx")
    assert package is not None
    assert package.origin is not None
    converter = Path(package.origin).with_name("pnnx")
    folder = Path(tempfile.mkdtemp(prefix="capsedge-ncnn-"))
    place = folder / "model.onnx"
    place.write_bytes(Path(model).read_bytes())
    done = subprocess.run(
        [str(converter), str(place), "fp16=0"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    text = folder / "model.ncnn.param"
    if not text.exists():
        raise ValueError((done.stdout + done.stderr).strip().splitlines()[-1])
    problem = [line for line in (done.stdout + done.stderr).splitlines() if "not supported" in line]
    if problem:
        raise ValueError("pnnx: " + problem[0].strip())
    net = ncnn.Net()
    net.opt.num_threads = threads
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    if net.load_param(str(text)) or net.load_model(str(folder / "model.ncnn.bin")):
        raise ValueError("ncnn cannot load what pnnx wrote")

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        with net.create_extractor() as extractor:
            for name, value in zip(net.input_names(), feeds.values(), strict=True):
                extractor.input(name, ncnn.Mat(np.ascontiguousarray(value[0])))
            found = {}
            for name in net.output_names():
                code, value = extractor.extract(name)
                if code:
                    raise ValueError(f"ncnn cannot compute {name}")
                found[name] = np.array(value)[None]
        return found

    return run, f"ncnn {version('ncnn')}, pnnx {version('pnnx')}"


def load_executorch(model: str, threads: int) -> tuple[Run, str]:
    """ExecuTorch with its portable kernels, of a program that torch.export saved."""
    import torch
    from executorch.exir import to_edge
    from executorch.runtime import Runtime

    program = to_edge(torch.export.load(model)).to_executorch()
    loaded = Runtime.get().load_program(program.buffer)
    method = loaded.load_method("forward")
    assert method is not None

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        assert loaded  # the method lives in it
        found = method.execute([torch.from_numpy(v) for v in feeds.values()])
        return {str(k): value.numpy() for k, value in enumerate(found)}

    return run, f"executorch {version('executorch')}"


LOADERS: dict[str, Callable[[str, int], tuple[Run, str]]] = {
    "onnxruntime": load_onnxruntime,
    "openvino": load_openvino,
    "litert": lambda model, threads: _peers().load_litert(model, threads),
    "mnn": lambda model, threads: _peers().load_mnn(model, threads),
    "tract": load_tract,
    "onnx.reference": load_reference,
    "ncnn": load_ncnn,
    "executorch": load_executorch,
}


def main() -> None:
    """Convert, answer, time; whatever goes wrong is said in the document."""
    wanted = json.loads(sys.argv[1])
    try:
        run, said = LOADERS[wanted["runtime"]](wanted["model"], wanted["threads"])
        with np.load(wanted["inputs"]) as archive:
            inputs = {name: archive[name] for name in archive.files}
        count = len(next(iter(inputs.values())))
        single = [{k: v[i : i + 1] for k, v in inputs.items()} for i in range(count)]
        answers = [run(feeds) for feeds in single]
        names = list(answers[0])
        merged = {str(k): np.stack([np.array(a[n]) for a in answers]) for k, n in enumerate(names)}
        np.savez(wanted["answer"], **merged)
        seconds = []
        until = time.perf_counter() + wanted["seconds"]
        while len(seconds) < 3 or time.perf_counter() < until:
            start = time.perf_counter()
            run(single[0])
            seconds.append(time.perf_counter() - start)
        document = {"version": said, "outputs": names, "median_ms": 1e3 * float(np.median(seconds))}
    except Exception as error:  # any failure of a runtime is a finding
        text = " ".join(str(error).split())
        document = {"error": f"{type(error).__name__}: {text}"[:600]}
    print("\n" + json.dumps(document), flush=True)


if __name__ == "__main__":
    main()
