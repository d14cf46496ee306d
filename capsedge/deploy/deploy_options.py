"""Declare the options of ``deploy triton`` and ``deploy kserve``, for Python and the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from capsedge.errors import UsageError
from capsedge.options import LARGEST_COUNT, Options, format_number, option
from capsedge.spec.vocabularies import OPS

MOST_CPUS = 65_536
TRITON = "26.07"  # a release with ONNX Runtime 1.27
MOUNT = "/models"
_PATH = re.compile(r"(/[A-Za-z0-9._-]+)+")
_RELEASE = re.compile(r"[0-9]{2}\.[0-9]{2}")


# The fields that `--set` of the command line sets.
SET = ("preferred_batches", "queue_delay", "instances")


@dataclass(frozen=True)
class TritonOptions(Options):
    """How Triton runs the models of `capsedge.deploy_triton`."""

    device: str | None = option(
        None,
        "cpu, cuda or cuda:1; by default the CPU, or the GPU for an engine.",
        complete="devices",
    )
    ops: str = option(
        "auto",
        "auto (operator library, and a portable twin of each model), fused (no twin) or portable (no "
        "library).",
        choices=OPS,
    )
    max_batch: int = option(
        32,
        "Largest batch that is formed from requests.",
        min=1,
        max=LARGEST_COUNT,
        panel="Batches and instances",
    )
    preferred_batches: tuple[int, ...] = option(
        (),
        "Batch sizes that run as soon as they are reached, for example 8,16.",
        python_only=True,
        min=1,
        max=LARGEST_COUNT,
    )
    queue_delay: int = option(
        0,
        "Microseconds that a request may wait for others.",
        python_only=True,
        min=0,
        max=LARGEST_COUNT,
    )
    instances: int = option(
        1,
        "Copies of each model that run at the same time.",
        python_only=True,
        min=1,
        max=LARGEST_COUNT,
    )
    threads: int | None = option(
        None,
        "Threads of one inference on the CPU; one per core by default.",
        min=1,
        max=LARGEST_COUNT,
    )
    mount: str = option(MOUNT, "Where the server sees the folder; for KServe /mnt/models.")

    def __post_init__(self) -> None:
        """Check the values, including the path and the preferred batches.

        Raises:
            UsageError: a value is wrong.
        """
        super().__post_init__()
        sizes = tuple(sorted(set(self.preferred_batches)))
        object.__setattr__(self, "preferred_batches", sizes)
        if sizes and sizes[-1] > self.max_batch:
            raise UsageError(
                f"A preferred batch cannot be {sizes[-1]}.",
                f"The largest batch is {self.max_batch}.",
                "Correct the option, or leave it out.",
            )
        if not _PATH.fullmatch(self.mount) or ".." in self.mount.split("/"):
            raise UsageError(
                f"The server cannot see the repository at '{self.mount}'.",
                "Expected: an absolute path of letters, digits, '.', '_' and '-'.",
                f"For example: --mount {MOUNT}.",
            )


@dataclass(frozen=True)
class KServeOptions(Options):
    """The service that `capsedge.deploy_kserve` describes."""

    name: str | None = option(None, "Name of the service; by default that of the first model.")
    models: tuple[str, ...] = option(
        (), "Models to load; by default all but the twins.", python_only=True
    )
    cpus: int | None = option(
        None,
        "Processors of a replica; by default those of the Triton runtime.",
        python_only=True,
        min=1,
        max=MOST_CPUS,
    )
    memory: str = option(
        "",
        "Memory of a replica, such as 4Gi; by default that of the Triton runtime.",
        python_only=True,
    )
    replicas: tuple[int, int] | None = option(
        None,
        "Minimum and maximum number of replicas, such as (1, 4); by default the cluster's choice.",
        python_only=True,
    )
    release: str = option(
        TRITON, "Release of Triton's container, 24.08 or later.", python_only=True
    )

    def __post_init__(self) -> None:
        """Check the values, including the format of memory, replicas and release.

        Raises:
            UsageError: a value is wrong.
        """
        super().__post_init__()
        if self.memory and not re.fullmatch(r"[1-9][0-9]{0,8}(Mi|Gi|M|G)", self.memory):
            raise UsageError(
                f"'{self.memory}' is not an amount of memory.",
                "Expected: a number with the unit Mi, Gi, M or G.",
                "For example: memory='4Gi'.",
            )
        least, most = self.replicas or (1, 1)
        if not 0 <= least <= most <= LARGEST_COUNT or most < 1:
            raise UsageError(
                f"There cannot be {format_number(least)} to {format_number(most)} replicas.",
                f"Expected: two whole numbers in ascending order, from 0 to {LARGEST_COUNT}.",
                "For example: replicas=(1, 4).",
            )
        if not _RELEASE.fullmatch(self.release) or self.release < "24.08":
            raise UsageError(
                f"'{self.release}' is not a Triton release that can run the files of capsedge.",
                "They need ONNX Runtime 1.19, which Triton includes since 24.08.",
                f"For example: release={TRITON!r}.",
            )
