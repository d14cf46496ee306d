"""libcapsedge: overhead of a call over ONNX Runtime's own, time to the first answer, and size.

python -m benchmarks.libcapsedge [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.common import machine
from capsedge.runtime.backends.native_library import find_embedding
from capsedge.runtime.zoo import default_model
from tests.native.libcapsedge import onnxruntime_library
from tests.runtime.models import capsule_model, save

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "capsedge" / "runtime" / "native"
SAMPLE = ROOT / "capsedge" / "zoo" / "samples" / "digit-7.png"


def compiled(source: Path, folder: Path, *flags: str) -> Path:
    """Compile a program from one C++ file, linked with the installed libcapsedge."""
    found = find_embedding()
    program = folder / source.stem
    subprocess.run(
        ["c++", "-std=c++17", "-O2", *found.cflags, *flags, str(source), "-o", str(program),
         *found.libs, "-ldl"],
        check=True,
    )  # fmt: skip
    return program


def call_overhead(folder: Path, model: Path, calls: int, blocks: int) -> dict[str, float]:
    """Microseconds per call, as medians over interleaved blocks."""
    program = compiled(
        ROOT / "benchmarks" / "libcapsedge.cpp",
        folder,
        f"-I{NATIVE}/onnxruntime",
        f"-I{NATIVE}/kernels/cpu",
    )
    done = subprocess.run(
        [str(program), str(onnxruntime_library()), str(model), str(calls), str(blocks)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    times = np.array([line.split() for line in done.stdout.splitlines()], float) / 1e3
    low, median, high = np.percentile(times[:, 1] - times[:, 0], (10, 50, 90))
    return {
        "onnxruntime_us": float(np.median(times[:, 0])),
        "capsedge_us": float(np.median(times[:, 1])),
        "overhead_us": float(median),
        "overhead_p10_us": float(low),
        "overhead_p90_us": float(high),
    }


def first_answer(folder: Path, runs: int) -> dict[str, float]:
    """Milliseconds from start to end of `classify` on one image, with files in the system's cache."""
    found = find_embedding()
    source, program = found.examples / "classify.c", folder / "classify"
    subprocess.run(
        ["cc", "-std=c99", "-O2", *found.cflags, str(source), "-o", str(program), *found.libs],
        check=True,
    )
    image = folder / "image.pgm"  # a format that the program reads without libpng
    with Image.open(SAMPLE) as picture:
        picture.save(image)
    command = [str(program), str(default_model()), str(image)]
    samples = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        samples.append(1e3 * (time.perf_counter() - start))
    low, median, high = np.percentile(samples[1:], (10, 50, 90))
    return {"median_ms": float(median), "p10_ms": float(low), "p90_ms": float(high)}


def stripped_bytes(folder: Path) -> int:
    """The size of the library without debug symbols."""
    copy = folder / "stripped.so"
    subprocess.run(["strip", "-o", str(copy), str(find_embedding().library)], check=True)
    return copy.stat().st_size


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--calls", type=int, default=2000, help="calls of a block")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--starts", type=int, default=20)
    options = parser.parse_args()
    os.environ["CAPSEDGE_ONNXRUNTIME"] = str(onnxruntime_library())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny = save(capsule_model(), folder / "tiny.onnx")
        found: dict[str, Any] = {
            "machine": machine(),
            "call": call_overhead(folder, tiny, options.calls, options.blocks),
            "first_answer": first_answer(folder, options.starts),
            "library_bytes": stripped_bytes(folder),
        }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    call, first = found["call"], found["first_answer"]
    print(
        f"{found['machine']['cpu']}, {found['machine']['cores']} cores\n"
        f"a call of a tiny model: ONNX Runtime {call['onnxruntime_us']:.2f} us, capsedge_run "
        f"{call['capsedge_us']:.2f} us, over it {call['overhead_us']:.2f} us "
        f"(p10 {call['overhead_p10_us']:.2f}, p90 {call['overhead_p90_us']:.2f})\n"
        f"from start to answer, digits-dynamic.onnx: {first['median_ms']:.1f} ms "
        f"(p10 {first['p10_ms']:.1f}, p90 {first['p90_ms']:.1f})\n"
        f"library, stripped: {found['library_bytes'] / 1e6:.2f} MB"
    )


if __name__ == "__main__":
    main()
