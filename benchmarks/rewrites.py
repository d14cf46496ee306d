"""How much the exact rewrites gain on the CPU: one model, exported with and without them, timed in turns.

    python -m benchmarks.rewrites                       # Tsai et al. 2020, table 8, two passes, batch 1
    python -m benchmarks.rewrites --each --json         # also with each rewrite left out alone

The variants run alternately in one process, so that other load on the machine affects all of them.
Both the wall-clock time and the CPU time (all threads) of each run are reported, as medians with the
10th and 90th percentiles; the ratio of the CPU times hardly changes when the machine is busy.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from benchmarks.common import machine
from capsedge.exporters.export import export
from capsedge.exporters.export_options import REWRITES, ExportOptions, Rewrite
from capsedge.models import build


def main() -> None:
    """Parse, measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="attention-cifar10-simple")
    parser.add_argument("--iters", type=int, default=2)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--ops", default="auto", choices=["auto", "portable"])
    parser.add_argument("--each", action="store_true", help="also leave out each rewrite alone")
    parser.add_argument("--openvino", action="store_true", help="OpenVINO (FP32) as well")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    variants: dict[str, tuple[Rewrite, ...]] = {"with": (), "without": tuple(REWRITES)}
    if options.each:
        variants |= {f"without {name}": (name,) for name in REWRITES}
    torch.manual_seed(0)
    model = build(options.model, iterations=options.iters).eval()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(model, variants, Path(folder), options)
    print(json.dumps(result, indent=2) if options.json else as_text(result))


def measure(
    model: Any, variants: dict[str, tuple[Rewrite, ...]], folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Export every variant, check that they agree, and time them in turns."""
    rng = np.random.default_rng(0)
    p = model.config.preprocessing
    images = rng.random((options.batch, p.channels, p.height, p.width)).astype(np.float32)
    runs: dict[str, Any] = {}
    for name, left_out in variants.items():
        file = folder / f"{len(runs)}.onnx"
        export(
            model, file, ExportOptions(ops=options.ops, batch=options.batch, no_rewrite=left_out)
        )
        session = _onnxruntime(file, options.threads)
        runs[f"onnxruntime, {name}"] = lambda s=session: s.run(None, {"images": images})
        if options.openvino:
            portable = folder / f"{len(runs)}-portable.onnx"
            export(
                model,
                portable,
                ExportOptions(ops="portable", batch=options.batch, no_rewrite=left_out),
            )
            compiled = _openvino(portable, options.threads)
            runs[f"openvino, {name}"] = lambda c=compiled: list(c(images).values())
    wanted = next(iter(runs.values()))()
    for name, run in runs.items():
        for found, w in zip(run(), wanted, strict=True):
            np.testing.assert_allclose(found, w, rtol=1e-3, atol=1e-4, err_msg=name)

    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for turn in range(options.runs + 5):
        for name, run in runs.items():
            clock, cpu = time.perf_counter(), time.process_time()
            run()
            taken = (time.perf_counter() - clock, time.process_time() - cpu)
            if turn >= 5:  # the first turns warm up caches and thread pools
                times[name].append(taken)

    rows = {name: _summary(np.array(values) * 1e3) for name, values in times.items()}
    backends = sorted({name.split(",")[0] for name in rows})
    return {
        "model": options.model,
        "iterations": options.iters,
        "batch": options.batch,
        "threads": options.threads,
        "runs": options.runs,
        "machine": {
            **machine(),
            "load": [round(v, 1) for v in os.getloadavg()],
            "onnxruntime": onnxruntime.__version__,
            "torch": torch.__version__,
        },
        "milliseconds": rows,
        "speedup": {
            b: {
                kind: round(rows[f"{b}, without"][kind][1] / rows[f"{b}, with"][kind][1], 2)
                for kind in ("clock", "cpu")
            }
            for b in backends
        },
    }


def _summary(times: np.ndarray) -> dict[str, list[float]]:
    low, middle, high = np.percentile(times, [10, 50, 90], axis=0)
    return {
        kind: [round(float(v[k]), 3) for v in (low, middle, high)]
        for k, kind in enumerate(("clock", "cpu"))
    }


def _onnxruntime(file: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Threads wait without spinning, so that their CPU time is only work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _openvino(file: Path, threads: int) -> Any:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    return openvino.compile_model(str(file), "CPU", settings)


def as_text(result: dict[str, Any]) -> str:
    """The result as a readable table."""
    m = result["machine"]
    lines = [
        f"{result['model']}, {result['iterations']} passes, batch {result['batch']}, "
        f"{result['threads']} threads, {result['runs']} runs in turns",
        f"{m['cpu']}, {m['cores']} cores, load {m['load'][0]}; ONNX Runtime {m['onnxruntime']}",
        f"{'milliseconds: median (10 %, 90 %)':<44}{'clock':>26}{'CPU':>26}",
    ]
    for name, row in result["milliseconds"].items():
        cells = [f"{row[k][1]:.2f} ({row[k][0]:.2f}, {row[k][2]:.2f})" for k in ("clock", "cpu")]
        lines.append(f"{name:<44}{cells[0]:>26}{cells[1]:>26}")
    for backend, ratio in result["speedup"].items():
        lines.append(
            f"{backend}: with the rewrites {ratio['clock']:.1f} times faster by the clock, "
            f"{ratio['cpu']:.1f} times less CPU time"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
