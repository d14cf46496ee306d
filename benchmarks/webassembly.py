"""A network compiled to WebAssembly compared with onnxruntime-web, in Node.js with one thread.

    python -m benchmarks.webassembly digits-em.onnx digits-em-int8.onnx [--runs 300] [-o webassembly.json]

For each file: milliseconds per run, interleaved; milliseconds from starting a process to the first answer
(the peer is the npm package); gzip-compressed bytes of the network and of a first visit to its page. Needs
``make web`` and ``pip install 'capsedge[wasm]'``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import capsedge
from benchmarks.common import machine
from capsedge.exporters.c.wasm import write_wasm
from tests.web.package import WEB

SCRIPT = Path(__file__).with_suffix(".mjs")
ROUNDS = 5  # number of processes whose first answer is timed, in turns


def node(*words: object) -> Any:
    """The output of the script."""
    command = ["node", str(SCRIPT), *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def packed(data: bytes) -> int:
    """The number of bytes that a server sends."""
    return len(gzip.compress(data, 9))


def first_visit(file: Path, folder: Path) -> int:
    """The compressed bytes of everything that a first visit to the file's page loads."""
    made = capsedge.deploy_web(file, folder)
    early = [each.path for each in made.files if not each.path.startswith(made.late)]
    return sum(packed((folder / path).read_bytes()) for path in early)


def measure(file: Path, folder: Path, runs: int) -> dict[str, Any]:
    """Measure all figures for a file."""
    write_wasm(file, folder / "net", name="net")
    module = folder / "net/net.mjs"
    times = node("speed", WEB, module, file, runs)
    starts: dict[str, list[float]] = {"compiled": [], "npm": []}
    for _ in range(ROUNDS):
        starts["compiled"].append(node("compiled", module))
        starts["npm"].append(node("general", WEB, file))
    ours, theirs = (np.asarray(times[name]) for name in ("ours", "theirs"))
    return {
        "file": file.name,
        "run_ms": {"ours": float(np.median(ours)), "onnxruntime_web": float(np.median(theirs))},
        "least_run_ms": {"ours": float(ours.min()), "onnxruntime_web": float(theirs.min())},
        "ratio_of_medians": float(np.median(theirs) / np.median(ours)),
        "ratio_of_minima": float(theirs.min() / ours.min()),
        "first_answer_ms": {name: sorted(each) for name, each in starts.items()},
        "wasm_bytes": (folder / "net/net.wasm").stat().st_size,
        "wasm_bytes_compressed": packed((folder / "net/net.wasm").read_bytes()),
        "module_bytes": module.stat().st_size,
        "first_visit_bytes_compressed": first_visit(file, folder / "page"),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    rows = []
    for file in options.files:
        with tempfile.TemporaryDirectory() as name:
            rows.append(measure(file.resolve(), Path(name), options.runs))
    text = json.dumps({"machine": machine(), "files": rows}, indent=2)
    print(text)
    if options.output:
        options.output.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
