"""Nsight Compute's counts for one layer: ``python -m tools.gpu.counters --layer digit --batch 1``.

It counts instructions, bytes from memory and bank conflicts in shared memory, for each kernel of one call.
The counts do not depend on clocks, which are left unchanged.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import gpu
from capsedge.runtime.files.writing import write_bytes
from tests.native import cuda_library

METRICS = (
    "smsp__inst_executed.sum",
    "dram__bytes.sum",
    "lts__t_bytes.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "gpu__time_duration.sum",
    "launch__registers_per_thread",
)


def once(name: str, batch: int, scheme: str) -> None:
    """Make one call of the first layer whose name contains this."""
    layer = next(x for _, x in gpu.layers([batch]) if name in x.name)
    path = cuda_library.gpu_library()
    if path is None:
        sys.exit("the CUDA kernels are not built: `make cuda`")
    memory = cuda_library.Gpu()
    call, outputs = cuda_library.prepare(
        cuda_library.bind(path),
        memory,
        layer.operator,
        layer.attributes,
        layer.inputs,
        scheme=scheme,
    )
    call()
    memory.get(outputs[0])


def parsed(text: str) -> list[dict[str, Any]]:
    """A row for each launch from ncu's CSV output: its kernel, and the metrics."""
    lines = text.splitlines()
    start = next((k for k, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    launches: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        launch = launches.setdefault(
            row["ID"],
            {"kernel": row["Kernel Name"], "grid": row["Grid Size"], "block": row["Block Size"]},
        )
        value = row["Metric Value"].replace(",", "")
        unit = row["Metric Unit"]
        launch[row["Metric Name"]] = {"value": float(value), "unit": unit}
    return list(launches.values())


def main() -> int:
    """Write the counts as JSON; exit code 1 with ncu's own message if it fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layer", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--scheme", choices=list(cuda_library.SCHEMES), default="auto")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.inside:
        once(options.layer, options.batch, options.scheme)
        return 0
    ncu = shutil.which("ncu", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if ncu is None:
        print("ncu is not installed: it comes with the CUDA toolkit")
        return 3
    command = [ncu, "--csv", "--clock-control", "none", "--metrics", ",".join(METRICS)]
    command += [sys.executable, "-m", "tools.gpu.counters", *sys.argv[1:], "--inside"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    launches = parsed(done.stdout)
    if done.returncode or not launches:
        print(done.stdout[-2000:] + done.stderr[-2000:])
        return 1
    document = {"layer": options.layer, "batch": options.batch, "launches": launches}
    text = json.dumps(document, indent=1) + "\n"
    if options.output:
        write_bytes(options.output, text.encode())
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
