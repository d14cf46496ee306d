"""The same models in capsedge and in every peer that a user might choose instead.

    python -m benchmarks.peers -o docs/benchmarks
    python -m benchmarks.peers --models em-smallnorb:3 --batches 1 --threads 2 --seconds 1

Each peer runs in its own process; rounds are interleaved (A B C A B C ...), so that drift in the machine
affects all of them. Before any timing, every peer's outputs are compared with eager torch; a peer that
computes something else is reported and not timed. Writes peers.json, peers.md and peers.png. A long run can
be split: what an earlier run on the same machine wrote there is kept, unless it is measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import machine, statistics
from capsedge.errors import CapsedgeError
from capsedge.runtime.profiling.compare import TOLERANCE, Entrant, Entry, compare
from capsedge.runtime.profiling.worker import RunLimits, Specification
from capsedge.runtime.result_summary import save_figure

MODELS = (
    "capsnet-mnist:3",
    "attention-cifar10-simple:2",
    "attention-cifar10-simple:3",
    "em-smallnorb:3",
)
PLAIN: Final = "onnxruntime, plain export"
OPENVINO: Final = "openvino fp32, plain export"
OPENVINO_DEFAULT: Final = "openvino default, plain export"
REFERENCE: Final = "torch eager"
PEERS: Final = {
    "capsedge fused": Specification("capsedge", "auto.onnx", ops="fused"),
    "capsedge portable": Specification("capsedge", "rewritten.onnx", ops="portable"),
    PLAIN: Specification("ort", "plain.onnx"),
    OPENVINO: Specification("openvino", "plain.onnx"),
    OPENVINO_DEFAULT: Specification("openvino", "plain.onnx", precision=""),
    "openvino fp32, rewritten export": Specification("openvino", "rewritten.onnx"),
    REFERENCE: Specification("torch", "model.safetensors"),
    "torch.compile": Specification("torch.compile", "model.safetensors"),
}
BFLOAT16: Final = (
    0.1  # tolerance of OpenVINO's default, which keeps 8 bits where the processor does
)
WORKER: Final = (sys.executable, "-m", "benchmarks.runtimes")


def prepare(model: str, folder: Path, batch: int) -> np.ndarray:
    """Write the files that the peers load (a checkpoint and three exports); returns images."""
    import torch

    from capsedge.exporters.export import export
    from capsedge.exporters.export_options import REWRITES, ExportOptions
    from capsedge.models import build
    from capsedge.models.checkpoint import save_checkpoint

    folder.mkdir()
    name, _, iterations = model.partition(":")
    torch.manual_seed(0)
    built = build(name, iterations=int(iterations)).eval()
    save_checkpoint(built, folder / "model.safetensors")
    export(built, folder / "auto.onnx")
    export(built, folder / "rewritten.onnx", ExportOptions(ops="portable"))
    export(built, folder / "plain.onnx", ExportOptions(ops="portable", no_rewrite=tuple(REWRITES)))
    p = built.config.preprocessing
    rng = np.random.default_rng(0)
    return rng.random((batch, p.channels, p.height, p.width), dtype=np.float32)


def measure(
    model: str,
    folder: Path,
    images: np.ndarray,
    threads: int,
    peers: Sequence[str],
    rounds: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """Measure one row per peer; ``folder`` holds the model's files.

    If eager torch fails, its row says why, and the next peer takes its place as the reference.
    """
    key = {"model": model, "batch": len(images), "threads": threads}
    entrants = []
    for name in (REFERENCE, *(peer for peer in peers if peer != REFERENCE)):
        file = str(folder / PEERS[name].model)
        specification = replace(PEERS[name], model=file, threads=threads)
        tolerance = BFLOAT16 if name == OPENVINO_DEFAULT else TOLERANCE
        entrants.append(Entrant(name, specification, model, WORKER, tolerance))
    limits = RunLimits(seconds / 2, seconds, rounds)
    failed = []
    while entrants:
        try:
            found = compare(entrants, {"images": images}, limits, rounds=rounds, keep_going=True)
        except CapsedgeError as error:
            failed.append(
                {**key, "peer": entrants.pop(0).name, "error": f"failed: {error.what} {error.why}"}
            )
            continue
        rows = [{**key, "peer": e.name, **_measured(e)} for e in found.entries]
        return [row for row in (*failed, *rows) if row["peer"] in peers]
    return [row for row in failed if row["peer"] in peers]


def _measured(entry: Entry) -> dict[str, Any]:
    if entry.problem or entry.peak_bytes is None or entry.loaded_bytes is None:
        return {"error": f"failed: {entry.problem or 'its memory was not measured'}"}
    return {
        "version": entry.version,
        **statistics(entry.samples),
        "peak_mib": entry.peak_bytes / 2**20,
        "run_mib": (entry.peak_bytes - entry.loaded_bytes) / 2**20,
        "difference": entry.difference,
    }


def ratio(rows: list[dict[str, Any]], row: dict[str, Any], peer: str) -> float | None:
    """How many times faster ``row`` is than a peer under the same conditions."""
    same = ("model", "batch", "threads")
    for other in rows:
        if other["peer"] == peer and all(other[k] == row[k] for k in same):
            if "error" in other or "error" in row:
                return None
            return float(other["median_ms"] / row["median_ms"])
    return None


def markdown(document: dict[str, Any]) -> str:
    """The tables."""
    m = document["machine"]
    lines = [
        "# The same models in every peer",
        "",
        f"Measured on {m['cpu']}, {m['cores']} cores, {m['system']}, Python {m['python']}, on",
        f"{document['date']} with `{document['command']}`, peers in interleaved rounds. Columns: median,",
        "10th and 90th percentile in milliseconds; speed relative to the plain export in ONNX Runtime, and",
        "in OpenVINO at FP32; peak memory of the whole process, and the part added by running; largest",
        "difference from torch eager, relative to each output's largest magnitude.",
        "",
    ]
    rows = document["rows"]
    for model in dict.fromkeys(r["model"] for r in rows):
        name, _, iterations = model.partition(":")
        lines += [f"## {name}, {iterations} iterations", ""]
        for batch, threads in sorted(
            {(r["batch"], r["threads"]) for r in rows if r["model"] == model}
        ):
            lines += [
                f"Batch {batch}, {threads} thread{'s' if threads > 1 else ''}:",
                "",
                "| | median ms | p10 - p90 | plain export | OpenVINO | peak MiB | run MiB | difference |",
                "|---|---|---|---|---|---|---|---|",
            ]
            for r in rows:
                if (r["model"], r["batch"], r["threads"]) != (model, batch, threads):
                    continue
                if "error" in r:
                    lines.append(f"| {r['peer']} | - | {r['error']} | | | | | |")
                    continue
                times = [ratio(rows, r, peer) for peer in (PLAIN, OPENVINO)]
                factors = " | ".join("" if t is None else f"{t:.1f}x" for t in times)
                lines.append(
                    f"| {r['peer']} | {r['median_ms']:.2f} | {r['p10_ms']:.2f} - {r['p90_ms']:.2f} | "
                    f"{factors} | {r['peak_mib']:.0f} | {r['run_mib']:.0f} | {r['difference']:.1e} |"
                )
            lines.append("")
    versions = sorted({r["version"] for r in rows if "version" in r})
    return "\n".join([*lines, "Versions: " + "; ".join(versions) + ".", ""])


def chart(document: dict[str, Any], path: Path) -> None:
    """Draw the latency of every peer, one panel per model, at the largest number of threads."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    threads = max(r["threads"] for r in document["rows"])
    rows = [r for r in document["rows"] if r["threads"] == threads and "error" not in r]
    models = list(dict.fromkeys(r["model"] for r in rows))
    batches = sorted({r["batch"] for r in rows})
    figure, axes = pyplot.subplots(
        len(models), len(batches), figsize=(5 * len(batches), 2.4 * len(models)), squeeze=False
    )
    for i, model in enumerate(models):
        for k, batch in enumerate(batches):
            axis = axes[i][k]
            mine = [r for r in rows if r["model"] == model and r["batch"] == batch]
            if not mine:
                axis.set_axis_off()
                continue
            names = [r["peer"] for r in mine]
            values = [r["median_ms"] for r in mine]
            colours = ["#0b6e4f" if n.startswith("capsedge") else "#9aa5b1" for n in names]
            bars = axis.barh(names, values, color=colours)
            axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=7)
            axis.set_xscale("log")
            axis.xaxis.set_minor_formatter(ticker.NullFormatter())
            axis.invert_yaxis()
            axis.set_title(f"{model.replace(':', ', T=')}, batch {batch}", fontsize=9)
            axis.tick_params(labelsize=7)
            axis.margins(x=0.25)
            axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"Milliseconds a batch (log scale), {threads} threads, {document['machine']['cpu']}",
        fontsize=10,
    )
    figure.tight_layout()
    save_figure(figure, path)


def earlier_run(path: Path, todo: Sequence[tuple[int, int, str]]) -> dict[str, Any]:
    """What an earlier run on this machine wrote, with the rows that are not measured again."""
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("machine") != machine():
        return {"command": "", "rows": []}
    rows = [r for r in before["rows"] if (r["threads"], r["batch"], r["model"]) not in todo]
    return {"command": before["command"] if rows else "", "rows": rows}


def order(row: dict[str, Any]) -> tuple[int, int, int, int]:
    """The sort key of a row in the tables."""
    model, peer = (
        known.index(row[key]) if row[key] in known else len(known)
        for key, known in (("model", MODELS), ("peer", list(PEERS)))
    )
    return model, row["batch"], -row["threads"], peer


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME:ITERATIONS")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--threads", nargs="+", type=int, default=[2, 1])
    parser.add_argument("--peers", nargs="+", default=list(PEERS), choices=PEERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each peer, over all rounds")
    parser.add_argument("-o", "--output", type=Path, default=Path("out/benchmarks"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    todo = list(product(options.threads, options.batches, options.models))
    before = earlier_run(options.output / "peers.json", todo)
    command = " ".join(["python -m benchmarks.peers", *sys.argv[1:]])
    document: dict[str, Any] = {
        "machine": machine(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": "`, `".join(filter(None, [before["command"], command])),
        "rows": before["rows"],
    }
    with tempfile.TemporaryDirectory() as name:
        folders = {model: Path(name) / str(k) for k, model in enumerate(options.models)}
        images = {}
        for model, folder in folders.items():
            print(f"exporting {model}", file=sys.stderr, flush=True)
            images[model] = prepare(model, folder, max(options.batches))
        for threads, batch, model in todo:
            print(f"{model}, batch {batch}, {threads} threads", file=sys.stderr, flush=True)
            document["rows"] += measure(
                model,
                folders[model],
                images[model][:batch],
                threads,
                options.peers,
                options.rounds,
                options.seconds,
            )
            document["rows"].sort(key=order)
            # Written after each step, so that a long run loses nothing if it is interrupted.
            text = json.dumps(document, indent=1)
            (options.output / "peers.json").write_text(text)
            (options.output / "peers.md").write_text(markdown(document))
    chart(document, options.output / "peers.png")
    print(markdown(document))


if __name__ == "__main__":
    main()
