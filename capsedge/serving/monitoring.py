"""Monitor a server: metrics for Prometheus, an access log, and messages within a limit."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

from capsedge.runtime.files.text import printable

logger = logging.getLogger("capsedge.serving")

REQUESTS = Counter(
    "capsedge_requests", "Requests that were answered", ["protocol", "method", "status"]
)
RUNNING = Gauge("capsedge_requests_running", "Requests that are not answered yet", ["protocol"])
SECONDS = Histogram(
    "capsedge_infer_seconds", "Time of an inference, waiting included", ["model", "version"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)  # fmt: skip
FAILURES = Counter("capsedge_infer_failures", "Inferences without an answer", ["model", "version"])
BATCHES = Histogram(
    "capsedge_batch_images", "Images in one inference", ["model", "version"],
    buckets=(1, 2, 4, 8, 16, 32, 64),
)  # fmt: skip

# --- The log ---

_MESSAGES, _MESSAGES_SECONDS = 20, 10.0  # messages logged per interval of so many seconds
_MESSAGE_CHARACTERS = 1000
_ACCESS_CHARACTERS = 100  # maximum length of a path or an id


class Access:
    """One request, from arrival to answer: it is counted, and logged in one line at level ``info``.

    Attributes:
        status: status of the answer; ``gone`` if the client disconnected first.
        id: id of the request; empty if it has none.
    """

    def __init__(self, protocol: str, method: str, path: str, client: str) -> None:
        self._protocol, self._method, self._path, self._client = protocol, method, path, client
        self.status, self.id = "gone", ""

    def __enter__(self) -> Access:
        RUNNING.labels(self._protocol).inc()
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_error: object) -> None:
        RUNNING.labels(self._protocol).dec()
        REQUESTS.labels(self._protocol, self._method, self.status).inc()
        if logger.isEnabledFor(logging.INFO):
            took = f"{1e3 * (time.perf_counter() - self._start):.1f} ms"
            path, named = _plain(self._path), self.id and f"id={_plain(self.id)}"
            words = self._protocol, self._client, self._method, path, self.status, took, named
            logger.info(" ".join(filter(None, words)))


def _plain(text: str) -> str:
    """A text chosen by a client, reduced to one short word without control characters."""
    short = text[:_ACCESS_CHARACTERS]
    return "".join(c if c.isprintable() and c != " " else "?" for c in short)


def start_log(level: str, tell: Callable[[str], None]) -> None:
    """Send messages of the server and its libraries from ``level`` on to a function of a line."""
    handler = _Messages(tell)
    for name in ("uvicorn", "grpc", "asyncio", logger.name):
        one = logging.getLogger(name)
        one.handlers, one.propagate = [handler], False
        one.setLevel(logging.ERROR if level == "error" else logging.WARNING)
    logger.setLevel(level.upper())


class _Messages(logging.Handler):
    """Logs messages, one line each.

    No client can fill a disk with them: of a burst, only the first messages are logged, and a count. Lines of
    the access log, which must be enabled, are all logged.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell
        self._since, self._told = -math.inf, 0

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= logging.INFO:
            self._tell(record.getMessage())
            return
        if record.created >= self._since + _MESSAGES_SECONDS:
            if self._told > _MESSAGES:
                self._tell(f"{self._told - _MESSAGES:,} more messages of the server were left out")
            self._since, self._told = record.created, 0
        self._told += 1
        if self._told > _MESSAGES:
            return
        error = record.exc_info[1] if record.exc_info else None
        text = " ".join(record.getMessage().split())
        text = text if error is None else f"{text}: {type(error).__name__}: {error}"
        self._tell(printable(text)[:_MESSAGE_CHARACTERS])
