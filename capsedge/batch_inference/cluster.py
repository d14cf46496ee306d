"""Process the parts of a source on the workers of a Ray cluster.

Ray Data (https://docs.ray.io/en/latest/data/data.html) streams the parts to workers, restarts lost workers
and recomputes what was lost with them. A worker receives the model once, as bytes, and uses one session for
all its parts.
"""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from capsedge import errors
from capsedge.batch_inference.items import ImageSource, Part
from capsedge.batch_inference.model_bytes import ModelBytes
from capsedge.batch_inference.rows import Counts, RowMaker, part_bytes, schema_of
from capsedge.errors import CapsedgeError, EnvironmentProblem, UsageError
from capsedge.runtime.backends.onnxruntime_backend import import_onnxruntime
from capsedge.runtime.session.session import Session

INSTALL = "pip install 'capsedge[cpu,ray]'"


@dataclass(frozen=True)
class PartTask:
    """The work description sent to every worker.

    Attributes:
        source: source of the parts.
        threads: CPUs of one worker.
        ops, outputs, invert: as for `capsedge.batch`.
        versions: the result of `versions`, which workers must match.
    """

    source: ImageSource
    threads: int
    ops: str
    outputs: tuple[str, ...]
    invert: bool
    versions: str


def predict_parts(
    address: str, model: ModelBytes, work: PartTask, parts: Sequence[Part]
) -> Iterator[tuple[int, bytes, Counts]]:
    """Predict the parts on a Ray cluster; yields each once, in any order, as parquet with its counts."""
    if not parts:
        return
    with connected(address) as ray, _quiet_ray():
        compute = _workers(ray, work.threads, len(parts))
        items = [{"part": json.dumps(part.to_dict())} for part in parts]
        answers = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            PartWorker,
            fn_constructor_args=(ray.put(model), work),
            batch_size=1,
            num_cpus=work.threads,
            compute=compute,
        )
        waiting = {part.number for part in parts}
        for row in answers.iter_rows():
            if row["problem"]:
                raise _from_json(row["problem"])
            if row["number"] in waiting:  # parts recomputed after a loss count once
                waiting.remove(row["number"])
                yield row["number"], row["table"], Counts(**json.loads(row["counts"]))
        if waiting:
            raise EnvironmentProblem(
                f"The cluster lost {len(waiting)} of {len(parts)} parts.",
                "",
                "Continue with resume=True.",
                command="Continue with --resume.",
            )


class PartWorker:
    """A worker of the cluster, which turns parts into tables.

    Args:
        model: a reference to `ModelBytes` in the object store.
        work: its work description.
    """

    def __init__(self, model: Any, work: PartTask) -> None:
        self._problem = ""  # why this worker could not start
        try:
            self._begin(model, work)
        except CapsedgeError as problem:
            self._problem = _to_json(problem)

    def _begin(self, model: Any, work: PartTask) -> None:
        """Load the model."""
        import ray

        if work.source.storage.kind() is None:
            raise UsageError(
                f"A machine of the cluster cannot reach {work.source.storage.address}.",
                f"{platform.node()} has no such path.",
                "Put the source where all machines can reach it: in a shared folder, or at an "
                "address such as s3://.",
            )
        content: ModelBytes = ray.get(model)
        session = content.load(work.threads, work.ops)
        _check_versions(versions(session), work.versions)
        self._row_maker = RowMaker(session, work.outputs, work.invert, work.threads)
        self._schema = schema_of(self._row_maker)
        self._source = work.source

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Answer parts.

        Args:
            batch: JSON of the parts, as ``part``.

        Returns:
            For each part its ``number``, ``table`` as the content of a parquet file, and ``counts`` as JSON;
            or the ``problem`` behind a `CapsedgeError`: Ray would keep only its text.
        """
        done: dict[str, list[Any]] = {"number": [], "table": [], "counts": [], "problem": []}
        for text in batch["part"]:
            declared = json.loads(text)
            part = Part(**declared | {"names": tuple(declared["names"])})
            content, counts, problem = b"", "", self._problem
            if not problem:
                try:
                    content, counts = self._rows_of_part(part)
                except CapsedgeError as error:
                    problem = _to_json(error)
            for name, value in zip(done, (part.number, content, counts, problem), strict=True):
                done[name].append(value)
        return done

    def _rows_of_part(self, part: Part) -> tuple[bytes, str]:
        """The content of a parquet file, and counts as JSON."""
        rows = self._row_maker.rows(self._source.read(part))
        content, counts = part_bytes(rows, self._schema)
        return content, json.dumps(counts.to_dict())


def _to_json(error: CapsedgeError) -> str:
    kind = next(c.__name__ for c in type(error).__mro__ if getattr(errors, c.__name__, None) is c)
    document = {"what": error.what, "why": error.why, "fix": error.fix, "command": error.command}
    return json.dumps({"kind": kind, "text": document, "details": error.details})


def _from_json(text: str) -> CapsedgeError:
    declared = json.loads(text)
    kind: type[CapsedgeError] = getattr(errors, declared["kind"])
    error = kind.__new__(kind)  # some error classes take other arguments
    CapsedgeError.__init__(error, **declared["text"], details=declared["details"])
    return error


def versions(session: Session) -> str:
    """Everything that determines the last bits of a result: package versions, and what runs the operators."""
    import numpy
    import PIL

    from capsedge import __version__

    return (
        f"capsedge {__version__}, ONNX Runtime {import_onnxruntime().__version__}, "
        f"NumPy {numpy.__version__}, Pillow {PIL.__version__}, {session.backend.ops} operators"
    )


def _check_versions(here: str, expected: str) -> None:
    """Refuse a worker whose results may differ from those of the others."""
    if here != expected:
        raise EnvironmentProblem(
            f"{platform.node()} differs from the machine that runs the command.",
            f"It has {here}; expected: {expected}.",
            "Install the same versions on all machines.",
        )


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Ray, connected to a running cluster while the block runs; the caller's own connection is kept."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray reports to its developers
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise EnvironmentProblem("A cluster needs Ray.", f"{error}.", INSTALL) from error
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise EnvironmentProblem(
                f"There is no Ray cluster at {address}.",
                f"{str(error).partition(chr(10))[0]}",
                "Start one with `ray start --head`, or pass the address of a running cluster.",
            ) from error
    context = ray.data.DataContext.get_current()
    shown, context.enable_progress_bars = context.enable_progress_bars, False
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        context.enable_progress_bars = shown
        logger.setLevel(level)
        if ours:
            ray.shutdown()


@contextmanager
def _quiet_ray() -> Iterator[None]:
    """Turn failures of the cluster into readable errors."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        last = [line for line in str(error).splitlines() if line.strip()]
        raise EnvironmentProblem(
            "The cluster failed.",
            last[-1].strip() if last else type(error).__name__,
            "Check its logs, then continue with resume=True.",
            command="Check its logs, then continue with --resume.",
        ) from error


def _workers(ray: Any, threads: int, parts: int) -> Any:
    """The number of workers: as many as the CPUs allow, but no more than there are parts."""
    cpus = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    fitting = sum(int(count // threads) for count in cpus)
    if fitting == 0:
        raise UsageError(
            f"No machine of the cluster has {threads} CPUs for a worker.",
            f"The largest has {max(cpus, default=0):g}.",
            "Use fewer threads.",
            command="Lower --threads.",
        )
    return ray.data.ActorPoolStrategy(min_size=1, max_size=max(1, min(fitting, parts)))
