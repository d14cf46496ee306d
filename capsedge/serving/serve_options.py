"""Declare the options of ``serve``, for Python and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from capsedge.errors import UsageError
from capsedge.options import LONGEST_SECONDS, Options, option, parse_whole
from capsedge.spec import limits
from capsedge.spec.vocabularies import OPS

LAST_PORT = 65535
LARGEST_BATCH = 1024
LONGEST_WAIT = 60_000  # a minute
Batch = int | Literal["auto"]
_ADDRESSES, _EXECUTION = "Addresses", "Execution"


def _batch(text: str) -> int | str:
    try:
        return parse_whole(text)
    except ValueError:
        return text


@dataclass(frozen=True)
class ServeOptions(Options):
    """Where `capsedge.serve` listens, and how it runs the models."""

    port: int = option(
        8080, "Port of REST; 0 picks a free one.", min=0, max=LAST_PORT, panel=_ADDRESSES
    )
    grpc_port: int | None = option(
        None,
        "Port of gRPC; by default --port plus 1.",
        min=0,
        max=LAST_PORT,
        panel=_ADDRESSES,
    )
    metrics_port: int | None = option(
        None,
        "Port of Prometheus metrics; by default --port plus 2.",
        min=0,
        max=LAST_PORT,
        panel=_ADDRESSES,
    )
    host: str = option(
        "127.0.0.1",
        "Address to listen on. There is no authentication: everyone who can reach it can use the server.",
        panel=_ADDRESSES,
    )
    threads: int = option(
        1,
        "Threads of one inference. As many inferences run at once as the cores allow.",
        min=1,
        max=limits.RUN_THREADS,
        panel=_EXECUTION,
    )
    batch: Batch = option(
        "auto",
        "Maximum number of images of waiting requests that run together; auto measures the best number for "
        "each model.",
        metavar="auto|N",
        parse=_batch,
        panel=_EXECUTION,
        complete=("auto",),
    )
    wait: float = option(
        0.0,
        "Milliseconds that a batch waits for more requests even if a core is free.",
        min=0,
        max=LONGEST_WAIT,
        panel=_EXECUTION,
    )
    stop_timeout: float = option(
        25.0,
        "Seconds that running requests have to finish after SIGTERM or Ctrl-C; later they get status 503 or "
        "UNAVAILABLE.",
        min=0,
        max=LONGEST_SECONDS,
    )
    log_level: Literal["error", "warning", "info"] = option(
        "warning",
        "What the server logs; info adds a line per request with path, status, time and id.",
    )
    ops: str = option(
        "auto",
        "auto, fused (operator library) or portable (function bodies).",
        choices=OPS,
        panel=_EXECUTION,
    )
    device: str | None = option(
        None,
        "cpu, cuda or cuda:1; by default the CPU, or the GPU for an engine.",
        panel=_EXECUTION,
        complete="devices",
    )
    graphs: bool | None = option(
        None,
        "CUDA graphs on a GPU: by default where the file can; --graphs refuses a file that cannot.",
        "--graphs/--no-graphs",
        panel=_EXECUTION,
    )

    def __post_init__(self) -> None:
        """Check the values, including the batch and the ports.

        Raises:
            UsageError: a value is wrong, or options contradict each other.
        """
        super().__post_init__()
        number = isinstance(self.batch, int) and 1 <= self.batch <= LARGEST_BATCH
        if self.batch != "auto" and not number:
            raise UsageError(
                f"'{self.batch!s:.20}' is not a batch size.",
                "",
                f"Use --batch auto, or a number from 1 to {LARGEST_BATCH}.",
            )
        if self.batch == 1 and self.wait > 0:
            raise UsageError("--wait has no effect with --batch 1.", "", "Leave out --wait.")
        if self.port + 2 > LAST_PORT and None in (self.grpc_port, self.metrics_port):
            raise UsageError(
                f"No port follows {self.port}.", "", "Set --grpc-port and --metrics-port as well."
            )

    @property
    def ports(self) -> tuple[int, int, int]:
        """The ports of REST, gRPC and metrics; 0 takes a free one."""
        after = (0, 0) if self.port == 0 else (self.port + 1, self.port + 2)
        return (
            self.port,
            after[0] if self.grpc_port is None else self.grpc_port,
            after[1] if self.metrics_port is None else self.metrics_port,
        )
