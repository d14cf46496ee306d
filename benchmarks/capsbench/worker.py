"""One runtime with one file under LoadGen, in its own process, under the interpreter that has the runtime.

    PYTHON -m benchmarks.capsbench.worker SPECIFICATION

Needs numpy, mlcommons-loadgen and the runtime; from capsedge, only the runtime itself. The specification
is a JSON document: ``runtime``, ``model``, ``inputs`` (an ``.npz`` file of images by the input's name),
``outputs`` (their names, the scores first), ``classes``, ``free`` (whether the file's batch is), ``threads``,
``seconds``, ``warm_up``, ``scenarios``, ``folder`` (for LoadGen's logs). Prints JSON documents, one per line:
``version`` first, then one per accuracy run and scenario; or ``error``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlperf_loadgen as loadgen
import numpy as np
from numpy.typing import NDArray

from benchmarks.capsbench import rules
from benchmarks.capsbench.power import Energy, measured
from benchmarks.capsbench.rules import OFFLINE, SERVER, SINGLE, Scenario
from benchmarks.runtimes import LOADERS, worker

MARK = ":::MLLOG "


class System:
    """The system under test: answers queries in order, in runs of at most ``batch`` images.

    Args:
        run: the runtime's function that runs the model.
        feed: name of the model's input.
        images: the images, ``[N, ...]`` in float32.
        outputs: names of the outputs, the scores first; a runtime may have renamed them.
        classes: number of scores per image.
    """

    def __init__(
        self,
        run: worker.Run,
        feed: str,
        images: NDArray[np.float32],
        outputs: Sequence[str],
        classes: int,
    ) -> None:
        self._run, self._feed, self._images = run, feed, images
        self._outputs, self._classes = outputs, classes
        self.batch = 1

    def scores(self, indices: Sequence[int]) -> NDArray[np.float32]:
        """The scores ``[n, classes]`` of some images, in one run."""
        first = indices[0]
        part = self._images[first : first + 1] if len(indices) == 1 else self._images[list(indices)]
        found = self._run({self._feed: part})
        value = found.get(self._outputs[0])
        if value is None:
            wanted = len(indices) * self._classes
            value = next((v for v in found.values() if np.size(v) == wanted), None)
        if value is None:
            raise ValueError(f"no output with {self._classes} scores per image")
        return np.ascontiguousarray(value, np.float32).reshape(len(indices), self._classes)

    def issue(self, samples: Sequence[Any]) -> None:
        """Answer LoadGen's query: some samples, each with an id and the index of its image."""
        for start in range(0, len(samples), self.batch):
            part = samples[start : start + self.batch]
            found = self.scores([s.index for s in part])
            place, step = found.ctypes.data, found.strides[0]
            loadgen.QuerySamplesComplete(
                [
                    loadgen.QuerySampleResponse(s.id, place + k * step, step)
                    for k, s in enumerate(part)
                ]
            )

    def seconds(self, batch: int, warm_up: float) -> float:
        """The median seconds of a run on some images, during a warm-up of the given duration."""
        indices = [k % len(self._images) for k in range(batch)]
        until = time.perf_counter() + warm_up
        taken: list[float] = []
        while len(taken) < 3 or time.perf_counter() < until:
            start = time.perf_counter()
            self.scores(indices)
            taken.append(time.perf_counter() - start)
        return float(np.median(taken))


class Harness:
    """Runs LoadGen on a system."""

    def __init__(self, system: System, images: int, seconds: float, folder: Path) -> None:
        self._system, self._images, self._seconds, self._folder = system, images, seconds, folder

    def test(
        self, scenario: Scenario, mode: str, expected: float, seconds: float = 0.0
    ) -> dict[str, Any]:
        """Run one test and return what LoadGen's detail log says about it.

        Args:
            mode: ``PerformanceOnly`` or ``AccuracyOnly``.
            expected: seconds per query, or images per second in Offline and Server.
            seconds: minimum duration.
        """
        folder = self._folder / f"{scenario.name}-{mode}"
        folder.mkdir(parents=True, exist_ok=True)
        log = loadgen.LogSettings()
        log.log_output.outdir = str(folder)
        log.enable_trace = False
        settings = self._settings(scenario, mode, expected, seconds)
        system = loadgen.ConstructSUT(self._system.issue, lambda: None)
        # All images are in memory before the run, as MLPerf's rules require.
        library = loadgen.ConstructQSL(self._images, self._images, lambda _: None, lambda _: None)
        try:
            loadgen.StartTestWithLogSettings(system, library, settings, log)
        finally:
            loadgen.DestroyQSL(library)
            loadgen.DestroySUT(system)
        return details(folder / "mlperf_log_detail.txt")

    def _settings(self, scenario: Scenario, mode: str, expected: float, seconds: float) -> Any:
        found = loadgen.TestSettings()
        found.scenario = getattr(loadgen.TestScenario, scenario.name)
        found.mode = getattr(loadgen.TestMode, mode)
        found.min_duration_ms = int(1e3 * (seconds or self._seconds))
        found.min_query_count = scenario.queries
        found.qsl_rng_seed = found.sample_index_rng_seed = found.schedule_rng_seed = rules.SEED
        nanoseconds = max(int(1e9 * expected), 1)
        found.single_stream_expected_latency_ns = nanoseconds
        found.multi_stream_expected_latency_ns = nanoseconds
        found.multi_stream_samples_per_query = rules.MULTI.samples
        found.offline_expected_qps = expected
        found.server_target_qps = expected
        found.server_target_latency_ns = int(1e9 * rules.SERVER_SECONDS)
        found.server_coalesce_queries = self._system.batch > 1
        return found

    def accuracy(self, expected: float) -> NDArray[np.float32]:
        """The scores ``[N, classes]`` of all images, from LoadGen's log of answers."""
        self.test(OFFLINE, "AccuracyOnly", expected)
        log = self._folder / "Offline-AccuracyOnly" / "mlperf_log_accuracy.json"
        rows = {r["qsl_idx"]: r["data"] for r in json.loads(log.read_text())}
        return np.stack(
            [np.frombuffer(bytes.fromhex(rows[k]), np.float32) for k in range(self._images)]
        )

    def performance(self, scenario: Scenario, single: float, batched: float) -> dict[str, Any]:
        """A valid run of a scenario, or the last run if none was valid.

        Args:
            single: seconds for a run of one image.
            batched: images per second in runs of the largest batch.
        """
        if scenario is SERVER:
            return self._server(batched)
        # LoadGen generates its queries in advance, so it must not overestimate a query's duration.
        expected = 1.2 * batched
        if scenario is not OFFLINE:
            expected = 0.5 * min(scenario.samples * single, scenario.samples / batched)
        for _ in range(rules.TRIES):
            with measured() as energy:
                found = self.test(scenario, "PerformanceOnly", expected)
            if found["result_validity"] == "VALID":
                break
            expected *= 2.0 if scenario is OFFLINE else 0.5
        return _result(scenario, found, energy, self._images)

    def _server(self, most: float) -> dict[str, Any]:
        """The highest rate within the latency bound: a search in short runs, then full runs."""
        low, high, probe = 0.0, 1.2 * most, min(rules.SERVER_PROBE, self._seconds)
        for _ in range(rules.SERVER_PROBES):
            rate = 0.5 * (low + high)
            found = self.test(SERVER, "PerformanceOnly", rate, probe)
            low, high = (rate, high) if found["result_validity"] == "VALID" else (low, rate)
        rate = low or 0.5 * high
        for _ in range(rules.SERVER_TRIES):
            with measured() as energy:
                found = self.test(SERVER, "PerformanceOnly", rate)
            if found["result_validity"] == "VALID":
                break
            rate *= rules.SERVER_STEP
        return _result(SERVER, found, energy, self._images)


def details(log: Path) -> dict[str, Any]:
    """The last value of every key in LoadGen's detail log."""
    found: dict[str, Any] = {}
    for line in log.read_text().splitlines():
        if line.startswith(MARK):
            entry = json.loads(line.removeprefix(MARK))
            found[entry["key"]] = entry["value"]
    return found


def _result(
    scenario: Scenario, found: dict[str, Any], energy: Energy, images: int
) -> dict[str, Any]:
    """The fields of a row for a scenario."""
    queries = found["result_query_count"]
    per_query = found["generated_samples_per_query"]
    return {
        "scenario": scenario.name,
        "valid": found["result_validity"] == "VALID",
        "reason": found.get("result_invalid_reason", "").strip(),
        "result": float(found[scenario.field]),
        "unit": scenario.unit,
        "percentiles_ns": {
            p: int(found[f"result_{p}.00_percentile_latency_ns"]) for p in ("50", "90", "99")
        },
        "queries": int(queries),
        "images": int(queries * per_query),
        "energy_source": energy.source,
        "joules_per_image": None
        if energy.joules is None
        else energy.joules / (queries * per_query),
    }


def say(document: dict[str, Any]) -> None:
    """Print one line for the driver."""
    print(json.dumps(document), flush=True)


def work(wanted: dict[str, Any]) -> None:
    """Load, warm up, answer all images, then each scenario."""
    with np.load(wanted["inputs"]) as archive:
        (feed,) = archive.files
        images = archive[feed]
    start = time.perf_counter()
    asked = worker.Specification(wanted["runtime"], wanted["model"], threads=wanted["threads"])
    run, said = LOADERS[asked.peer](asked)
    system = System(run, feed, images, wanted["outputs"], wanted["classes"])
    system.scores([0])
    say({"version": said, "first_answer_s": time.perf_counter() - start})
    single = system.seconds(1, wanted["warm_up"])
    harness = Harness(system, len(images), wanted["seconds"], Path(wanted["folder"]))
    system.batch = rules.BATCH if wanted["free"] else 1
    batched = system.batch / system.seconds(system.batch, wanted["warm_up"])
    scores = harness.accuracy(batched)
    np.save(Path(wanted["folder"]) / "scores.npy", scores)
    say({"answered": len(scores)})
    for name in wanted["scenarios"]:
        scenario = rules.SCENARIOS[name]
        # The scenario asks for one image at a time, and for more only if several arrive at once.
        system.batch = 1 if scenario is SINGLE or not wanted["free"] else rules.BATCH
        say(harness.performance(scenario, single, batched))


def main() -> None:
    """Do the work; anything that goes wrong is reported in a document."""
    try:
        work(json.loads(sys.argv[1]))
    except Exception as error:  # any failure of a runtime is a finding
        text = " ".join(str(error).split())
        say({"error": f"{type(error).__name__}: {text}"[:600]})


if __name__ == "__main__":
    main()
