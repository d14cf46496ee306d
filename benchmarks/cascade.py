"""A cascade compared with its large network alone, and with two sessions that compact the batch in Python.

    python -m benchmarks.cascade small.onnx large.onnx ../shared/data/mnist
    python -m benchmarks.cascade small.onnx large.onnx ../shared/data/mnist --images 20000 --threads 2

The cascade is made with training images; agreement, accuracy and the share escalated are measured on the
whole test split. For speed, the files take turns in one process, on batches of test images; the figures are
ratios of their minimum times. Writes JSON with --output.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import capsedge
from benchmarks.common import machine
from capsedge.datasets import ImageSet, read_images
from capsedge.optimization.cascade_thresholds import Thresholds, margins_of
from capsedge.runtime.session.session import Session

BATCHES = (1, 8, 64)
Run = Callable[[np.ndarray], Any]


def answering(session: Session) -> Run:
    """A run that computes scores and poses and, for a cascade, which network decided."""
    wanted = (session.roles.scores, session.roles.poses, session.roles.escalated)
    names = [name for name in wanted if name is not None]

    def run(images: np.ndarray) -> list[np.ndarray]:
        ((_, found),) = session.run_batches(images, names, len(images))
        return [found[name] for name in names]

    return run


def two_sessions(small: Session, large: Session, thresholds: Thresholds) -> Run:
    """The same cascade as two sessions, with compaction and scattering in numpy."""
    first, second = answering(small), answering(large)

    def run(images: np.ndarray) -> list[np.ndarray]:
        found = first(images)
        escalated = thresholds.escalates(margins_of(found[0], None), found[0].max(axis=1))
        if escalated.any():
            for values, certain in zip(found, second(images[escalated]), strict=True):
                values[escalated] = certain
        return found

    return run


def in_turns(runs: dict[str, Run], batches: list[np.ndarray], rounds: int) -> dict[str, float]:
    """The minimum time of each batch, summed over the batches, in seconds."""
    least = {name: np.full(len(batches), np.inf) for name in runs}
    for _ in range(rounds):
        for k, batch in enumerate(batches):
            for name, run in runs.items():
                start = time.perf_counter()
                run(batch)
                least[name][k] = min(least[name][k], time.perf_counter() - start)
    return {name: float(each.sum()) for name, each in least.items()}


def answers(session: Session, data: ImageSet) -> tuple[np.ndarray, np.ndarray]:
    """The classes of all images, and which images were escalated."""
    assert session.roles.scores is not None
    names = [session.roles.scores]
    names += [session.roles.escalated] if session.roles.escalated else []
    found = [out for _, out in session.run_batches(data.inputs(), names)]
    classes = np.concatenate([out[names[0]].argmax(axis=1) for out in found])
    escalated = [out[names[1]] for out in found] if len(names) > 1 else []
    return classes, np.concatenate(escalated) if escalated else np.zeros(len(classes), bool)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Make the cascade and measure it on the test split."""
    report = capsedge.cascade(
        options.small,
        options.large,
        options.cascade,
        limit=options.images,
        min_agreement=options.min_agreement,
        data=options.data,
    )
    found = report.cascade
    paths = {"small": options.small, "large": options.large, "cascade": options.cascade}
    sessions = {n: capsedge.load(Path(p), threads=options.threads) for n, p in paths.items()}
    metadata = sessions["large"].metadata
    assert metadata is not None
    data = read_images(options.data, metadata.preprocessing, "test")
    classes = {name: answers(session, data)[0] for name, session in sessions.items()}
    share = float(answers(sessions["cascade"], data)[1].mean())
    document: dict[str, Any] = {
        "machine": machine(),
        "cascade": found.to_dict(),
        "test_images": len(data),
        "share": share,
        "agreement": {n: float((c == classes["large"]).mean()) for n, c in classes.items()},
        "accuracy": {n: float((c == data.classes).mean()) for n, c in classes.items()},
        "speed": [],
    }
    runs: dict[str, Run] = {name: answering(session) for name, session in sessions.items()}
    thresholds = Thresholds(found.margin, found.score)
    runs["two sessions"] = two_sessions(sessions["small"], sessions["large"], thresholds)
    prepared = np.stack(list(data.draw(options.timed).inputs()))
    for size in BATCHES:
        batches = [prepared[k : k + size] for k in range(0, len(prepared), size)]
        taken = in_turns(runs, batches, options.rounds)
        ratios = {name: seconds / taken["large"] for name, seconds in taken.items()}
        ratios["cascade / two sessions"] = taken["cascade"] / taken["two sessions"]
        document["speed"].append({"batch": size, "of the large network's time": ratios})
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("small", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("data", type=Path, help="data set folder")
    parser.add_argument("--cascade", type=Path, default=Path("cascade.onnx"))
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--min-agreement", type=float, default=0.9995)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timed", type=int, default=256, help="test images to time")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, help="write JSON")
    options = parser.parse_args()
    document = measure(options)
    text = json.dumps(document, indent=2)
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
