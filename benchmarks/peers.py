"""The same models through capsedge and through every peer that a user would pick instead.

    python -m benchmarks.peers -o docs/benchmarks
    python -m benchmarks.peers --models em-smallnorb:3 --batches 1 --threads 2 --seconds 1

Each peer runs in its own process; rounds are interleaved (A B C A B C ...), so that a drift of the machine
meets all of them. Before any timing every peer's outputs are compared with torch eager; a peer that computes
something else is reported as such and not timed. Writes peers.json, peers.md and peers.png. A long run may be
made in parts: what an earlier run on the same machine wrote there stays, unless it is measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.common import machine, statistics
from capsedge.runtime.charts import save_figure

MODELS = (
    "capsnet-mnist:3",
    "attention-cifar10-simple:2",
    "attention-cifar10-simple:3",
    "em-smallnorb:3",
)
PLAIN: Final = "onnxruntime, plain export"
OPENVINO: Final = "openvino fp32, plain export"
REFERENCE: Final = "torch eager"
PEERS = (
    "capsedge fused",
    "capsedge portable",
    PLAIN,
    OPENVINO,
    "openvino default, plain export",
    "openvino fp32, rewritten export",
    REFERENCE,
    "torch.compile",
)
# Seconds between two peers: OpenMP's threads spin for 0.2 s after their work, which the next peer would feel.
PAUSE: Final = 0.3


def prepare(model: str, folder: Path, batch: int) -> None:
    """Write the files that the peers load: checkpoint, the three exports, an input."""
    import torch

    from capsedge.checkpoint import save_checkpoint
    from capsedge.exporters.to_onnx import export
    from capsedge.graph.rewrites import Rewrites
    from capsedge.models import build

    name, _, iterations = model.partition(":")
    torch.manual_seed(0)
    built = build(name, iterations=int(iterations)).eval()
    save_checkpoint(built, folder / "model.safetensors")
    export(built, folder / "auto.onnx")
    export(built, folder / "rewritten.onnx", ops="portable")
    export(built, folder / "plain.onnx", ops="portable", rewrites=Rewrites.none())
    p = built.config.preprocessing
    rng = np.random.default_rng(0)
    images = rng.random((batch, p.channels, p.height, p.width), dtype=np.float32)
    np.save(folder / "input.npy", images)


class Peer:
    """A worker process."""

    def __init__(self, name: str, folder: Path, batch: int, threads: int) -> None:
        self.name = name
        self.seconds: list[float] = []
        self.peak = 0
        command = [sys.executable, "-m", "benchmarks.peer_worker", name, str(folder)]
        command += ["--batch", str(batch), "--threads", str(threads)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (lives as long as the peer)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )
        self.first = self._read()

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            last = self.errors.read().strip().splitlines()[-1:]
            raise RuntimeError(f"{self.name}: {''.join(last)}")
        result: dict[str, Any] = json.loads(line)
        return result

    def round(self, seconds: float, keep: bool = True) -> None:
        """Let the peer run for a while; keep what it measured."""
        assert self.process.stdin
        time.sleep(PAUSE)
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        result = self._read()
        self.peak = result["peak"]
        if keep:
            self.seconds += result["seconds"]

    def outputs(self) -> dict[str, np.ndarray]:
        """The peer's answer to the input."""
        with np.load(self.first["answer"]) as archive:
            return dict(archive)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def difference(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> float:
    """Largest difference, relative to each output's largest magnitude."""
    return max(
        float(np.abs(found[k] - w).max() / max(np.abs(w).max(), 1e-30)) for k, w in wanted.items()
    )


def measure(
    model: str,
    folder: Path,
    batch: int,
    threads: int,
    peers: Sequence[str],
    rounds: int,
    seconds: float,
) -> list[dict[str, Any]]:
    """One row a peer; ``folder`` holds the model's files."""
    rows: list[dict[str, Any]] = []
    key = {"model": model, "batch": batch, "threads": threads}
    ready: list[tuple[Peer, float]] = []
    reference = Peer(REFERENCE, folder, batch, threads)
    wanted = reference.outputs()
    for peer in peers:
        try:
            worker = reference if peer == REFERENCE else Peer(peer, folder, batch, threads)
        except RuntimeError as error:
            rows.append({**key, "peer": peer, "error": str(error)})
            continue
        error = difference(worker.outputs(), wanted)
        # bfloat16, OpenVINO's default where the processor has it, keeps 8 bits.
        if error > (0.1 if "default" in peer else 1e-3):
            rows.append({**key, "peer": peer, "error": f"differs from torch by {error:.2g}"})
            worker.close()
            continue
        ready.append((worker, error))
    for turn in range(rounds + 1):
        for entry in tuple(ready):
            worker = entry[0]
            try:
                worker.round(seconds / rounds if turn else seconds / 2, keep=turn > 0)
            except (RuntimeError, BrokenPipeError) as error:  # most likely for its memory
                rows.append({**key, "peer": worker.name, "error": f"ended while running: {error}"})
                ready.remove(entry)
    for worker, error in ready:
        rows.append(
            {
                **key,
                "peer": worker.name,
                "version": worker.first["version"],
                **statistics(worker.seconds),
                "peak_mib": worker.peak / 2**20,
                "run_mib": (worker.peak - worker.first["loaded"]) / 2**20,
                "difference": error,
            }
        )
    for worker, _ in {(reference, 0.0), *ready}:
        if worker.process.poll() is None:
            worker.close()
    return rows


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
        f"Measured on {m['cpu']}, {m['cores']} cores, {m['system']}, Python {m['python']}, with",
        f"`{document['command']}`, peers in interleaved rounds. Columns: median, 10th and 90th percentile in",
        "milliseconds; speed relative to the plain export in ONNX Runtime, and in OpenVINO at FP32; peak",
        "memory of the whole process, and the part added by running; largest difference from torch eager,",
        "relative to each output's largest magnitude.",
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
    """Latency of every peer, one panel a model, at the largest number of threads."""
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


def kept_rows(path: Path, todo: Sequence[tuple[int, int, str]]) -> list[dict[str, Any]]:
    """Rows of an earlier run on this machine that are not measured again."""
    if not path.exists():
        return []
    before = json.loads(path.read_text())
    if before["machine"] != machine():
        return []
    return [r for r in before["rows"] if (r["threads"], r["batch"], r["model"]) not in todo]


def order(row: dict[str, Any]) -> tuple[int, int, int, int]:
    """Place of a row in the tables."""
    model, peer = (
        known.index(row[key]) if row[key] in known else len(known)
        for key, known in (("model", MODELS), ("peer", PEERS))
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
    document: dict[str, Any] = {
        "machine": machine(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "command": "python -m benchmarks.peers",
        "rows": kept_rows(options.output / "peers.json", todo),
    }
    with tempfile.TemporaryDirectory() as name:
        folders = {model: Path(name) / str(k) for k, model in enumerate(options.models)}
        for model, folder in folders.items():
            print(f"exporting {model}", file=sys.stderr, flush=True)
            folder.mkdir()
            prepare(model, folder, max(options.batches))
        for threads, batch, model in todo:
            print(f"{model}, batch {batch}, {threads} threads", file=sys.stderr, flush=True)
            document["rows"] += measure(
                model,
                folders[model],
                batch,
                threads,
                options.peers,
                options.rounds,
                options.seconds,
            )
            document["rows"].sort(key=order)
            # Written as it grows: a long run that is interrupted loses nothing.
            text = json.dumps(document, indent=1)
            (options.output / "peers.json").write_text(text)
            (options.output / "peers.md").write_text(markdown(document))
    chart(document, options.output / "peers.png")
    print(markdown(document))


if __name__ == "__main__":
    main()
