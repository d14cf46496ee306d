"""A real cluster of three nodes on this machine: the same bytes as one machine, whatever is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import capsedge
from capsedge.errors import CapsedgeError, EnvironmentProblem, ParityError, UsageError
from capsedge.runtime.progress import Progress
from tests.batch_inference.sources import KINDS, MODEL, pixels, png, write_folder, write_parquet

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason="a cluster needs Ray: `make test-ray` installs it")
pytestmark = pytest.mark.slow
SECONDS = 120  # until a worker that was lost has a successor
STORE = 80 << 20  # bytes of shared memory for each node


class Slow:
    """The module `time`, whose clock runs slowly: Ray waits only 30 seconds for a node."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() / 8


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray._private import node
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(node, "time", Slow())
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            found.add_node(num_cpus=1, object_store_memory=STORE)
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


@pytest.fixture
def larger_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from capsedge.batch_inference import parquet, rows, sources

    for module in (sources, rows, parquet):
        monkeypatch.setattr(module, "PART_ROWS", 200)


def below(process: int) -> Iterator[tuple[int, str]]:
    """The processes that a process started, and those that they started: numbers and command lines."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (OSError, IndexError):
            continue
        if parent == process:
            yield int(entry.name), command
            yield from below(int(entry.name))


def kill_a_worker() -> None:
    """Kill one of the cluster's workers that answers, as soon as there is one."""
    for _ in range(SECONDS):
        workers = [number for number, command in below(os.getpid()) if "MapWorker" in command]
        if workers:
            os.kill(workers[0], signal.SIGKILL)
            return
        time.sleep(1)
    raise AssertionError("no worker answers")


def after(counts: dict[int, Callable[[], None]]) -> Progress:
    """Progress that acts once so many parts are done."""
    calls = 0

    def progress(_stage: str, _done: int = 0, _total: int | None = None) -> None:
        nonlocal calls
        calls += 1
        counts.get(calls, lambda: None)()

    return progress


@pytest.mark.usefixtures("larger_parts")
def test_nothing_is_lost_and_nothing_twice(cluster: Any, tmp_path: Path) -> None:
    source = KINDS["npy"](pixels(4000), tmp_path)
    whole = capsedge.batch(MODEL, source, tmp_path / "whole.parquet", threads=1)
    last = [*cluster.worker_nodes][-1]
    deeds = {
        3: kill_a_worker,
        7: lambda: cluster.remove_node(last, allow_graceful=False),
        11: kill_a_worker,
    }
    report = capsedge.batch(
        MODEL,
        source,
        tmp_path / "out.parquet",
        cluster=cluster.address,
        progress=after(deeds),
    )
    assert (report.images, report.parts) == (whole.images, whole.parts) == (4000, 20)
    names = pq.read_table(tmp_path / "out.parquet", columns=["image"])["image"].to_pylist()
    assert names == [str(k) for k in range(4000)]
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert not ray.is_initialized()  # the command leaves no connection open


def test_folders_of_parts_and_resuming(cluster: Any, tmp_path: Path) -> None:
    source = write_folder(pixels(20), tmp_path / "images")
    (source / "0/00001.png").write_bytes(b"bad")
    capsedge.batch(MODEL, source, tmp_path / "whole", threads=1)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capsedge.batch(
            MODEL,
            source,
            tmp_path / "out",
            cluster=cluster.address,
            progress=after({2: stop}),
        )
    report = capsedge.batch(MODEL, source, tmp_path / "out", cluster=cluster.address, resume=True)
    assert (report.images, report.failed) == (20, 1)
    assert report.resumed >= 2
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "whole").iterdir()
    }


def test_what_a_cluster_cannot_do(cluster: Any, tmp_path: Path) -> None:
    source = KINDS["npy"](pixels(4), tmp_path)
    with pytest.raises(UsageError, match="No machine of the cluster has 64 CPUs"):
        capsedge.batch(
            MODEL,
            source,
            tmp_path / "a.parquet",
            cluster=cluster.address,
            threads=64,
        )
    with pytest.raises(UsageError, match="on a cluster"):
        capsedge.batch(
            MODEL,
            source,
            tmp_path / "a.parquet",
            cluster=cluster.address,
            device="cuda",
        )
    with pytest.raises(UsageError, match="cannot reach memory://gone"):
        _at_a_place_of_the_driver(cluster.address, tmp_path)


def _at_a_place_of_the_driver(address: str, place: Path) -> None:
    """Memory is a file system of one process, which workers do not see."""
    import fsspec

    with fsspec.open("memory://gone/a.npy", "wb") as file:
        np.save(file, pixels(4))
    capsedge.batch(MODEL, "memory://gone/a.npy", place / "b.parquet", cluster=address)


def test_workers_with_other_versions_are_refused() -> None:
    from capsedge.batch_inference.cluster import _check_versions, versions

    with capsedge.load(MODEL, threads=1) as session:
        here = versions(session)
    _check_versions(here, here)
    with pytest.raises(EnvironmentProblem, match="Install the same versions"):
        _check_versions(here, here.replace("fused", "portable").replace("NumPy ", "NumPy 9"))


def test_there_is_no_cluster(tmp_path: Path) -> None:
    source = KINDS["npy"](pixels(4), tmp_path)
    with pytest.raises(EnvironmentProblem, match="no Ray cluster at auto"):
        capsedge.batch(MODEL, source, tmp_path / "a.parquet", cluster="auto")


def test_the_predictor_in_a_pipeline(cluster: Any, tmp_path: Path) -> None:
    from capsedge.batch_inference.model_bytes import read_model
    from capsedge.batch_inference.ray_step import Predictor

    images = [png(image) for image in pixels(30)]
    write_parquet({"image": images, "key": list(range(30))}, tmp_path / "a.parquet", rows=10)
    capsedge.batch(
        MODEL,
        tmp_path / "a.parquet",
        tmp_path / "whole.parquet",
        threads=1,
    )
    ray.init(address=cluster.address, log_to_driver=False)
    answers = ray.data.read_parquet(str(tmp_path / "a.parquet")).map_batches(
        Predictor,
        fn_constructor_kwargs={"model": ray.put(read_model(MODEL))},
        batch_size=8,
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(size=2),
    )
    found = sorted(answers.take_all(), key=lambda row: row["key"])
    wanted = pq.read_table(tmp_path / "whole.parquet").to_pylist()
    assert [row["key"] for row in found] == list(range(30))
    assert [row["label"] for row in found] == [row["label"] for row in wanted]
    np.testing.assert_allclose(
        [row["score"] for row in found], [row["score"] for row in wanted], rtol=1e-6
    )


@pytest.mark.parametrize("kind", [UsageError, EnvironmentProblem, ParityError])
def test_errors_of_workers_arrive_whole(kind: type[CapsedgeError]) -> None:
    from capsedge.batch_inference.cluster import _from_json, _to_json

    found = _from_json(_to_json(kind("what", "why", "fix", command="command")))
    assert type(found) is kind
    assert (found.what, found.why, found.fix, found.command) == ("what", "why", "fix", "command")
    assert str(found) == "what\nwhy\nfix"
