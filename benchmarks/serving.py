"""`capsedge serve` against a plain FastAPI and ONNX Runtime server with the same file and session options.

    python -m benchmarks.serving capsedge/zoo/digits-dynamic.onnx
    python -m benchmarks.serving model.onnx --clients 1,16,100,1000 --batch 16 --wait 2 -o serving.json
    python -m benchmarks.serving model.onnx --faults --soak 10

All servers run at the same time on the loopback address, and clients load one after another in turns, each
checking its own answers. The first row is the session without a server. Needs `capsedge[serve]`, which brings
FastAPI and uvicorn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import capsedge
from benchmarks.common import machine
from benchmarks.serving_clients import Question, Tally, load, questions
from benchmarks.serving_faults import FAULTS, beside, killing

RESTART = 30.0  # seconds of the load during which the server is killed, for a slow machine
PATH = "/v2/models/model/infer"
COLUMNS = (
    "server",
    "clients",
    "p50_ms",
    "p99_ms",
    "per_second",
    "cpu_s_per_1000",
    "rss_mib",
    "errors",
)


class Server:
    """A server in a process of its own.

    Args:
        name: of its rows.
        command: that starts it; ``{port}`` stands for its port.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self.port = name, _free_port()
        self._command = [word.format(port=self.port) for word in command]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        while self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                return
            time.sleep(0.05)
        raise SystemExit(f"error: {self.name} ended with {self._process.returncode}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident memory in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def end(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def running(options: argparse.Namespace) -> Iterator[list[Server]]:
    """The servers that are compared."""
    model, threads = str(options.model), str(options.threads)
    ours = [
        sys.executable, "-m", "capsedge", "serve", f"model={model}", "--port", "{port}",
        "--grpc-port", "0", "--metrics-port", "0", "--threads", threads,
    ]  # fmt: skip
    plain = [sys.executable, "-m", "benchmarks.serving_peer", model, "{port}", threads]
    servers = [Server("capsedge", ours), Server("FastAPI", plain)]
    if options.batch:
        batching = ["--batch", str(options.batch), "--wait", str(options.wait)]
        servers.append(Server("capsedge, batches", [*ours, *batching]))
    try:
        yield servers
    finally:
        for server in servers:
            server.end()


def row(name: str, clients: int, tally: Tally, cpu: float, memory: float) -> dict[str, Any]:
    """One line of the table."""
    done = len(tally.seconds)
    p50, p99 = (1e3 * np.percentile(tally.seconds or [np.nan], (50, 99))).tolist()
    return {
        "server": name, "clients": clients, "requests": done, "p50_ms": p50, "p99_ms": p99,
        "per_second": done / tally.elapsed, "cpu_s_per_1000": 1e3 * cpu / max(done, 1),
        "rss_mib": memory, "errors": tally.refused + tally.broken, "wrong": tally.wrong,
    }  # fmt: skip


def alone(session: capsedge.Session, asked: Sequence[Question], seconds: float) -> dict[str, Any]:
    """The session without a server: what no server can undercut."""
    port = session.inputs[0]
    arrays = [np.array(json.loads(q.body)["inputs"][0]["data"], np.float32) for q in asked]
    images = [a.reshape([1, *(int(s) for s in port.shape[1:])]) for a in arrays]  # type: ignore[arg-type]
    tally, start, cpu = Tally(), time.perf_counter(), time.process_time()
    while time.perf_counter() < start + seconds:
        for image in images:
            began = time.perf_counter()
            list(session.run_batches(image, [session.answer_outputs[0]]))
            tally.seconds.append(time.perf_counter() - began)
    tally.elapsed = time.perf_counter() - start
    return row("session alone", 1, tally, time.process_time() - cpu, 0.0)


def compare(
    servers: Sequence[Server], asked: dict[str, list[Question]], options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every server under every number of clients, in turns."""
    tallies: dict[tuple[str, int], Tally] = {}
    cpu: dict[tuple[str, int], float] = {}
    memory: dict[tuple[str, int], float] = {}
    for turn in range(options.rounds + 1):
        for clients in options.clients:
            for server in servers:
                key, before = (server.name, clients), server.cpu_seconds()
                seconds = options.seconds if turn else 1.0  # the first turn warms up
                tally = asyncio.run(load(server.port, PATH, asked[server.name], clients, seconds))
                if not turn:
                    continue
                tallies.setdefault(key, Tally()).add(tally)
                cpu[key] = cpu.get(key, 0.0) + server.cpu_seconds() - before
                memory[key] = server.memory()
    return [row(*key, tally, cpu[key], memory[key]) for key, tally in tallies.items()]


async def _with_fault(
    fault: str, server: Server, asked: Sequence[Question], seconds: float
) -> Tally:
    if fault == "killed":
        seconds = max(seconds, RESTART)
        restarted = killing(seconds / 4, server.pid, server.start)
        tally, _ = await asyncio.gather(load(server.port, PATH, asked, 16, seconds), restarted)
        return tally
    async with beside(fault, server.port):
        return await load(server.port, PATH, asked, 16, seconds)


def faults(server: Server, asked: Sequence[Question], seconds: float) -> list[dict[str, Any]]:
    """Honest clients beside bad ones, and while the server is killed: none gets an answer of another."""
    rows = []
    for fault in (*FAULTS, "killed"):
        before = 0.0 if fault == "killed" else server.cpu_seconds()
        tally = asyncio.run(_with_fault(fault, server, asked, seconds))
        rows.append(row(fault, 16, tally, server.cpu_seconds() - before, server.memory()))
    return rows


def soak(server: Server, asked: Sequence[Question], minutes: float) -> dict[str, Any]:
    """Memory over a long time: its size after each twentieth, and answers on the way."""
    total, sizes = Tally(), []
    for _ in range(20):
        total.add(asyncio.run(load(server.port, PATH, asked, 16, 60 * minutes / 20)))
        sizes.append(server.memory())
    return {
        **row("soak", 16, total, 0.0, sizes[-1]),
        "minutes": minutes,
        "rss_mib_by_twentieth": sizes,
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for one in rows:
        cells = [one[c] if isinstance(one[c], (str, int)) else f"{one[c]:.3g}" for c in COLUMNS]
        lines.append(" | ".join(map(str, cells)))
    return "\n".join(f"| {line} |" for line in lines)


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path, help="ONNX file of capsedge")
    parser.add_argument("--clients", default="1,16,100", help="numbers of clients")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of one inference")
    parser.add_argument("--batch", type=int, default=0, help="adds a server that gathers requests")
    parser.add_argument("--wait", type=float, default=2.0, help="milliseconds of --batch")
    parser.add_argument("--faults", action="store_true", help="bad clients, and a killed server")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes of load at the end")
    parser.add_argument("-o", "--output", type=Path, help="JSON")
    options = parser.parse_args()
    options.clients = [int(part) for part in options.clients.split(",")]
    return options


def main() -> None:
    """Measure, print the table, write the file."""
    options = parsed()
    with capsedge.load(options.model, threads=options.threads) as session:
        asked = {
            name: questions(session, 32, exact=name != "capsedge, batches")
            for name in ("capsedge", "FastAPI", "capsedge, batches")
        }
        rows = [alone(session, asked["capsedge"], options.seconds)]
    document: dict[str, Any] = {"machine": machine(), "model": options.model.name, "rows": rows}
    with running(options) as servers:
        rows += compare(servers, asked, options)
        if options.faults:
            document["faults"] = faults(servers[0], asked["capsedge"], options.seconds)
        if options.soak:
            document["soak"] = soak(servers[0], asked["capsedge"], options.soak)
    print(
        table([*rows, *document.get("faults", []), *([document["soak"]] if options.soak else [])])
    )
    wrong = sum(r["wrong"] for r in [*rows, *document.get("faults", [])])
    print(f"wrong answers: {wrong}")
    if options.output:
        options.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if wrong:
        raise SystemExit(4)


if __name__ == "__main__":
    main()
