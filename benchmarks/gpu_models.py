"""Whole models on an NVIDIA GPU: torch, ONNX Runtime and TensorRT in one run.

    python -m benchmarks.gpu_models -o models.json
    python -m benchmarks.gpu_models --model capsnet-mnist:3 --batches 1 --peer "TensorRT, fused"

Every peer's outputs are compared: those of INT8 engines with the same file in ONNX Runtime on the CPU, all
others with eager torch. Inputs and outputs stay on the GPU. For peers that are not installed or that refuse
the model, the row gives the reason; if no peer could run, the exit code is 3. TF32 is off everywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu import (
    COMPILED,
    EAGER,
    GRAPH,
    compiled,
    graphed,
    guarded,
    header,
    on_torch,
    timed,
)
from benchmarks.peers import MODELS
from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.cuda import load_cuda
from capsedge.runtime.files.writing import write_bytes
from capsedge.spec.vocabularies import TENSORRT, TENSORRT_RTX

ONNX_RUNTIME = "ONNX Runtime, CUDA"
OPS = {"fused": "fused", "portable": "bodies"}
ENGINES = {"TensorRT": TENSORRT, "TensorRT-RTX": TENSORRT_RTX}
LIMIT = {"fp32": 1e-3, "fp16": 3e-2, "int8": 3e-2}  # largest difference
PLUGINS = ("native", "fused")
NONE_RAN = 3  # exit code


def model_rows(
    model: str, batches: list[int], peers: list[str], mode: str, folder: Path
) -> Iterator[dict[str, Any]]:
    """Measure a model, with weights drawn from a seed, with every available peer."""
    import torch

    from capsedge.exporters.export import export
    from capsedge.models import build, get_config

    name, _, iterations = model.partition(":")
    torch.manual_seed(0)
    network = build(get_config(name), iterations=int(iterations)).eval()
    file = folder / f"{name}-{iterations}.onnx"
    export(network, file)
    network = network.cuda()
    prepared = network.config.preprocessing
    shape = (prepared.channels, prepared.height, prepared.width)
    for batch in batches:
        images = torch.rand(batch, *shape, device="cuda")

        def eager(images: Any = images) -> Any:
            return network(images)

        with torch.no_grad():
            output = eager()
        wanted = {network.score_name: output.scores, "poses": output.poses}
        wanted = {name: tensor.cpu().numpy() for name, tensor in wanted.items()}
        rows: dict[str, Callable[[], dict[str, Any]]] = {
            EAGER: lambda run=eager: on_torch(run),
            GRAPH: lambda run=eager: on_torch(graphed(run)),
        }
        for (ops, shown), graphs in product(OPS.items(), (False, True)):
            peer = f"{ONNX_RUNTIME}, {shown}{', graph' if graphs else ''}"
            rows[peer] = lambda x=images, w=wanted, o=ops, g=graphs: on_provider(file, x, w, o, g)
        if mode:
            rows[COMPILED] = lambda run=eager: compiled(run, mode)
        for (peer, target), plugin, precision in product(ENGINES.items(), PLUGINS, LIMIT):
            engine = Engine(target, plugin, precision)
            rows[f"{peer}, {plugin}, {precision.upper()}"] = lambda e=engine, x=images, w=wanted: (
                on_tensorrt(file, folder, e, x, w)
            )
        chosen = tuple(peers) or ("",)
        times = {peer: guarded(run) for peer, run in rows.items() if peer.startswith(chosen)}
        yield {"model": model, "batch": batch, "times": times}


def compared(found: dict[str, Any], wanted: dict[str, Any], limit: float) -> dict[str, Any]:
    """The largest difference in the scores and poses; a failure if it exceeds the limit."""
    worst = max(float(np.abs(found[name] - right).max()) for name, right in wanted.items())
    if not worst <= limit:
        return {"failed": f"differs from the reference by {worst:.3g}, more than {limit:g}"}
    return {"difference": worst}


def on_provider(
    file: Path, images: Any, wanted: dict[str, Any], ops: str, graphs: bool
) -> dict[str, Any]:
    """ONNX Runtime's CUDA provider, run by the session, with its input and outputs on the GPU."""
    import onnxruntime
    import torch

    import capsedge

    session = capsedge.load(file, device="cuda", ops=ops, graphs=graphs)
    given = {session.inputs[0].name: images}
    for _ in range(2):  # the second call captures
        out = {
            name: torch.utils.dlpack.from_dlpack(x)
            for name, x in session.run_on_device(given).items()
        }
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    run = lambda: session.run_on_device(given, out=out, stream=stream)  # noqa: E731
    run()
    found = {name: tensor.cpu().numpy() for name, tensor in out.items()}
    verdict = compared(found, wanted, LIMIT["fp32"])
    if "failed" in verdict:
        return verdict
    return {**timed(run, stream.synchronize), **verdict, "version": onnxruntime.__version__}


@dataclass(frozen=True)
class Engine:
    """A kind of engine."""

    target: str
    plugin: str
    precision: str


def on_tensorrt(
    file: Path, folder: Path, engine: Engine, images: Any, wanted: dict[str, Any]
) -> dict[str, Any]:
    """An engine run by the session, with its input and outputs on the GPU."""
    import torch

    import capsedge
    from capsedge.exporters.build_options import BuildOptions
    from capsedge.exporters.tensorrt.write_engine import write_engine as build

    target, plugin, precision = engine.target, engine.plugin, engine.precision
    if precision == "int8":
        file = quantized(file, folder, images)
        wanted = capsedge.load(file, ops="portable").run(images.cpu().numpy())
    path = folder / f"{file.stem}-{target}-{plugin}-{precision}-{len(images)}.engine"
    options = BuildOptions(
        plugin=plugin,
        precision=precision,
        batch=(len(images),) * 3,
        target=target,
        timing_cache=folder / "timings" if target == TENSORRT else None,
        compute_capabilities=(load_cuda().compute_capability(0),) if target == TENSORRT_RTX else (),
    )
    build(file, path, options, lambda *_: None)
    session = capsedge.load(path)
    given = {session.inputs[0].name: images}
    out = {
        name: torch.utils.dlpack.from_dlpack(x) for name, x in session.run_on_device(given).items()
    }
    found = {name: tensor.cpu().numpy() for name, tensor in out.items()}
    verdict = compared(found, wanted, LIMIT[precision])
    if "failed" in verdict:
        return verdict
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    run = lambda: session.run_on_device(given, out=out, stream=stream)  # noqa: E731
    return {**timed(run, stream.synchronize), **verdict}


def quantized(file: Path, folder: Path, images: Any) -> Path:
    """The file in INT8 for TensorRT, calibrated on noise, made once. Its weights are random, so no gate."""
    import capsedge

    path = folder / f"{file.stem}-int8.onnx"
    if not path.is_file():
        noise = np.random.default_rng(0).random((128, *images.shape[1:]), dtype=np.float32)
        capsedge.quantize(
            file,
            path,
            calib_images=64,
            target="tensorrt",
            max_drop=100,
            calib_data=noise,
        )
    return path


def markdown(document: dict[str, Any]) -> str:
    """A paragraph per model and batch size."""
    lines = [f"{document['gpu']}, {document['versions']}"]
    for row in document["models"]:
        shown = "; ".join(
            f"{peer} {t['median_ms']:.3f} ms" if "median_ms" in t else f"{peer}: {t['failed']}"
            for peer, t in row["times"].items()
        )
        lines.append(f"\n{row['model']}, batch {row['batch']}: {shown}")
    return "\n".join(lines)


def main() -> int:
    """Print the rows; if requested, write JSON after every row, so that an interrupted run loses nothing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, help="write everything there too")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument(
        "--model", action="append", help="NAME:ITERATIONS; default: the four of peers"
    )
    parser.add_argument(
        "--peer", action="append", default=[], help="only those whose names begin so"
    )
    parser.add_argument("--compile", default="", metavar="MODE", help="torch.compile too")
    options = parser.parse_args()
    document: dict[str, Any] = {**header(), "models": []}
    batches = [int(b) for b in options.batches.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for model in options.model or MODELS:
            rows = model_rows(model, batches, options.peer, options.compile, Path(folder))
            for row in rows:
                document["models"].append(row)
                print(f"{model}: {row['times']}", file=sys.stderr, flush=True)
                if options.output:
                    write_bytes(options.output, (json.dumps(document, indent=1) + "\n").encode())
    print(markdown(document))
    measured = [
        time for row in document["models"] for time in row["times"].values() if "median_ms" in time
    ]
    return 0 if measured else NONE_RAN


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CapsedgeError as error:
        sys.exit(str(error))
