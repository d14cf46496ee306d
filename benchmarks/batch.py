"""``capsedge batch`` on one machine against Ray with the same cores: ``python -m benchmarks.batch``.

The same command runs in one process with N cores, and on a cluster of N workers with one core each, on this
machine. Sources of several sizes show from where a cluster pays off; runs are interleaved, and ratios are
between minimum times. As is usual, the cluster is already running: starting it is not measured, starting the
workers is.

`--kill` then runs the largest source of each model on three nodes and removes one of them midway.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import capsedge
from benchmarks.common import machine
from capsedge.batch_inference.batch_options import BatchOptions
from capsedge.runtime.backends.backend import usable_cores
from capsedge.runtime.runtime_options import RuntimeOptions

LOCAL, CLUSTER = "one process", "Ray"


def main() -> None:
    """Print a table, and write JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["digits-em", "digits-attention"])
    parser.add_argument("--cores", type=int, default=usable_cores())
    parser.add_argument("--images", type=int, nargs="+", default=[1_000, 10_000, 60_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", action="store_true", help="a run that loses a node, in the end")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print("| model | images | one process, images/s | Ray, images/s | efficiency |")
    print("|---|---|---|---|---|")
    with _cluster(options.cores) as cluster, tempfile.TemporaryDirectory() as folder:
        for model in options.models:
            for count in options.images:
                row = _measured(
                    model, count, options.rounds, options.cores, cluster.address, Path(folder)
                )
                rows.append(row)
                print(
                    f"| {model} | {count:,} | {row[LOCAL]:,.0f} | {row[CLUSTER]:,.0f} "
                    f"| {row['efficiency']:.2f} |",
                    flush=True,
                )
    killed = []
    if options.kill:
        with tempfile.TemporaryDirectory() as folder:
            for model in options.models:
                killed.append(_with_a_node_lost(model, max(options.images), Path(folder)))
                print(killed[-1])
    if options.json is not None:
        document = {"machine": machine(), "cores": options.cores, "runs": rows, "killed": killed}
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _cluster(cores: int, others: int = 0) -> Iterator[Any]:
    """A cluster on this machine: one node, and others with the same number of cores."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        from ray.cluster_utils import Cluster
    except ModuleNotFoundError:
        sys.exit("the cluster needs Ray: pip install 'capsedge[ray]'")

    node = {"num_cpus": cores, "object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(others):
            cluster.add_node(**node)
        yield cluster
    finally:
        cluster.shutdown()


def _with_a_node_lost(model: str, count: int, folder: Path) -> dict[str, Any]:
    """Whether the table equals that of one process although one of three nodes is lost midway."""
    import pyarrow.parquet as parquet

    source = _source(model, count, folder)
    here, there = folder / "one.parquet", folder / "out.parquet"
    parts = capsedge.batch(
        model,
        source,
        here,
        force=True,
        threads=1,
    ).parts
    with _cluster(1, others=2) as cluster:
        calls, lost = itertools.count(1), []

        def progress(_stage: str, _done: int = 0, _total: int | None = None) -> None:
            if next(calls) == parts // 2:
                lost.append([*cluster.worker_nodes][-1])
                cluster.remove_node(lost[0], allow_graceful=False)

        capsedge.batch(
            model,
            source,
            there,
            force=True,
            cluster=cluster.address,
            progress=progress,
        )
    return {
        "model": model, "images": count, "nodes": 3, "lost": len(lost),
        "rows": parquet.read_metadata(there).num_rows,
        "same_bytes": here.read_bytes() == there.read_bytes(),
    }  # fmt: skip


def _source(model: str, count: int, folder: Path) -> Path:
    """Random pixels in the size that a model takes."""
    with capsedge.load(model) as session:
        metadata = session.metadata
        assert metadata is not None
        assert metadata.preprocessing is not None
        p = metadata.preprocessing
    source = folder / "images.npy"
    shape = (count, p.height, p.width, p.channels)
    np.save(source, np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    return source


def _measured(
    model: str, count: int, rounds: int, cores: int, address: str, folder: Path
) -> dict[str, Any]:
    """Images per second for both ways, and their ratio."""
    source = _source(model, count, folder)
    ways = {LOCAL: (cores, None), CLUSTER: (1, address)}
    least = dict.fromkeys(ways, float("inf"))
    tables: set[bytes] = set()
    for _ in range(rounds):
        for way, (threads, cluster) in ways.items():
            options = BatchOptions(force=True, cluster=cluster)
            runtime = RuntimeOptions(threads=threads)
            start = time.perf_counter()
            capsedge.batch(model, source, folder / "out.parquet", options, runtime)
            least[way] = min(least[way], time.perf_counter() - start)
            tables.add((folder / "out.parquet").read_bytes())
    return {
        "model": model,
        "images": count,
        **{way: count / seconds for way, seconds in least.items()},
        "efficiency": least[LOCAL] / least[CLUSTER],
        "same_bytes": len(tables) == 1,
    }


if __name__ == "__main__":
    main()
