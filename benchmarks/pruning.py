"""Pruned networks, their INT8 files and cascades compared with the plain FP32 export of their parent network.

    python -m benchmarks.pruning PARENT.safetensors FILE.onnx... [--data mnist] [--batch 1 16] [--threads 2]

The plain export has only standard operators and no rewrites. Sessions take turns, round by round, in one
process; times are minima over all rounds, ratios are relative to the plain export. With ``--data``, the data
set's test images are used instead of random ones, and the accuracy is reported.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import capsedge
from benchmarks.common import machine
from capsedge.datasets import ImageSet, read_images
from capsedge.exporters.export_options import REWRITES
from capsedge.models.checkpoint import load_checkpoint
from capsedge.runtime.session.session import Session

PLAIN = "plain FP32 export of the parent"
_ROUNDS, _SECONDS = 12, 0.25


def times(
    sessions: dict[str, Session], images: NDArray[np.float32], batch: int
) -> dict[str, float]:
    """The minimum seconds per image for each, over interleaved rounds; each round uses other images."""
    least = dict.fromkeys(sessions, np.inf)
    for number in range(_ROUNDS):
        for name, session in sessions.items():
            start = time.perf_counter()
            done = 0
            while done == 0 or time.perf_counter() - start < _SECONDS:
                place = (number * 131 + done) % (len(images) - batch + 1)
                session.run(images[place : place + batch])
                done += batch
            least[name] = min(least[name], (time.perf_counter() - start) / done)
    return least


def accuracy(session: Session, data: ImageSet, images: NDArray[np.float32]) -> float:
    """The share of correct answers."""
    assert session.roles.scores is not None
    right = done = 0
    for _, outputs in session.run_batches(images, [session.roles.scores]):
        found = outputs[session.roles.scores].argmax(1)
        right += int((found == data.classes[done : done + len(found)]).sum())
        done += len(found)
    return right / done


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure all files, starting with the parent's plain export."""
    model = load_checkpoint(options.parent)
    plain = folder / "plain.onnx"
    capsedge.export(model, plain, ops="portable", no_rewrite=tuple(REWRITES))
    files = {PLAIN: plain, **{path.name: path for path in options.files}}
    sessions = {n: capsedge.load(path, threads=options.threads) for n, path in files.items()}
    shape = model.config.preprocessing.shape
    images = np.random.default_rng(0).random((64, *shape), np.float32)
    data: ImageSet | None = None
    if options.data:
        data = read_images(options.data, model.config.preprocessing, "test")
        images = np.stack(list(data.inputs()))
    results: list[dict[str, Any]] = [
        {
            "file": name,
            "bytes": files[name].stat().st_size,
            "accuracy": None if data is None else accuracy(session, data, images),
        }
        for name, session in sessions.items()
    ]
    for batch in options.batch:
        found = times(sessions, images, batch)
        for row in results:
            seconds = found[row["file"]]
            row[f"ms_{batch}"] = 1e3 * seconds
            row[f"ratio_{batch}"] = found[PLAIN] / seconds
    return {
        "command": f"python -m benchmarks.pruning {' '.join(sys.argv[1:])}",
        "machine": machine(),
        "threads": options.threads,
        "batches": options.batch,
        "images": 0 if data is None else len(data),
        "results": results,
    }


def markdown(document: dict[str, Any]) -> str:
    """The table."""
    heads = [f"batch {b}, ms per image | faster" for b in document["batches"]]
    lines = [
        f"| file | KiB | accuracy | {' | '.join(heads)} |",
        "|---|---|---|" + "---|---|" * len(heads),
    ]
    for row in document["results"]:
        share = "-" if row["accuracy"] is None else f"{100 * row['accuracy']:.2f} %"
        cells = [f"{row[f'ms_{b}']:.3f} | {row[f'ratio_{b}']:.1f}x" for b in document["batches"]]
        lines.append(
            f"| {row['file']} | {row['bytes'] / 1024:.0f} | {share} | {' | '.join(cells)} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure and print; ``--json`` writes the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parent", type=Path)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        document = measure(options, Path(folder))
    print(markdown(document))
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
