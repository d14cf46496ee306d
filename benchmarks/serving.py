"""`capsedge serve` compared with a plain FastAPI server and the C++ example, using the same file and options.

    make bench-serve                             # all of the package's models, and the page in docs
    python -m benchmarks.serving model.onnx --clients 1,16 -o serving.json
    python -m benchmarks.serving digits-small --soak 10 -o soak.json

All servers for a model run at the same time on the loopback address; clients in separate processes load them
in turns, one at a time. Every answer is checked. Needs `capsedge[cpu,serve]`, which includes FastAPI, and a
C++ compiler for the example.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import capsedge
from benchmarks.common import machine
from benchmarks.serving_clients import Tally, load
from benchmarks.serving_faults import FAULTS, KILLED, beside, killing
from benchmarks.serving_page import JSON, table, write_page
from benchmarks.serving_servers import Server, build_example, running
from benchmarks.serving_wire import Question, questions
from capsedge.runtime import zoo

RESTART = 30.0  # seconds of load during which the server is killed; enough for a slow machine
PER_CLIENT = 0.002  # extra seconds per client, so that each of a thousand gets several answers
IMAGES = 32
FAULT_CLIENTS = 16
PARTS = 20  # parts of the soak

Asked = dict[str, list[Question]]


@dataclass
class Plan:
    """How to load servers.

    Attributes:
        pool: pool of processes that run clients.
        processes: number of processes in the pool.
        seconds: duration of each load.
        rounds: rounds of the whole, after a short one to warm up.
        clients: the numbers of clients to use.
    """

    pool: ProcessPoolExecutor
    processes: int
    seconds: float
    rounds: int
    clients: Sequence[int]

    def load(self, server: Server, asked: Asked, clients: int, seconds: float = 0.0) -> Tally:
        """Put load on one server."""
        questions = asked[server.protocol]
        wanted = seconds or self.seconds + PER_CLIENT * clients
        return load(self.pool, self.processes, server.port, questions, clients, wanted)


def row(name: str, clients: int, tally: Tally, cpu: float, memory: float) -> dict[str, Any]:
    """One line of the table; ``cpu`` is in seconds per answer."""
    done = len(tally.seconds)
    p50, p99 = (1e3 * np.percentile(tally.seconds, (50, 99))).tolist() if done else (None, None)
    return {
        "server": name, "clients": clients, "requests": done, "p50_ms": p50, "p99_ms": p99,
        "per_second": tally.in_time / tally.elapsed, "cpu_s_per_1000": 1e3 * cpu,
        "most_mib": memory, "errors": tally.refused + tally.broken, "wrong": tally.wrong,
        "lost": tally.lost, "busiest_client": tally.busy,
    }  # fmt: skip


def alone(session: capsedge.Session, asked: Asked, seconds: float) -> dict[str, Any]:
    """The session without a server, which no server that answers single requests can beat."""
    bodies = [json.loads(q.request.partition(b"\r\n\r\n")[2])["inputs"][0] for q in asked["http"]]
    images = [np.array(body["data"], np.float32).reshape(body["shape"]) for body in bodies]
    tally, start, cpu = Tally(), time.perf_counter(), time.process_time()
    while time.perf_counter() < start + seconds:
        for image in images:
            began = time.perf_counter()
            list(session.run_batches(image, [session.roles.all[0]]))
            tally.seconds.append(time.perf_counter() - began)
    tally.elapsed, tally.in_time = time.perf_counter() - start, len(tally.seconds)
    return row("session alone", 1, tally, (time.process_time() - cpu) / tally.in_time, 0.0)


def compare(servers: Sequence[Server], asked: Asked, plan: Plan) -> list[dict[str, Any]]:
    """Every server with every number of clients, in turns; processor times are minima."""
    tallies: dict[tuple[str, int], Tally] = {}
    cpu: dict[tuple[str, int], float] = {}
    memory: dict[tuple[str, int], float] = {}
    for turn in range(plan.rounds + 1):
        for clients in plan.clients:
            for server in servers:
                key, before = (server.name, clients), server.cpu_seconds()
                tally = plan.load(server, asked, clients, 0.0 if turn else 0.5)
                if turn:
                    tallies.setdefault(key, Tally()).after(tally)
                    used = _per_answer(server.cpu_seconds() - before, tally)
                    cpu[key] = min(used, cpu.get(key, used))
                    memory[key] = server.memory()["most"]
    return [row(*key, tally, cpu[key], memory[key]) for key, tally in tallies.items()]


def _per_answer(seconds: float, tally: Tally) -> float:
    return seconds / max(len(tally.seconds), 1)


def faults(server: Server, asked: Asked, plan: Plan) -> list[dict[str, Any]]:
    """Good clients beside bad ones, and while the server is killed: none gets another's answer."""
    rows = []
    for fault in FAULTS:
        before = server.cpu_seconds()
        with beside(fault, server.port):
            tally = plan.load(server, asked, FAULT_CLIENTS)
        used = _per_answer(server.cpu_seconds() - before, tally)
        rows.append(row(fault, FAULT_CLIENTS, tally, used, server.memory()["most"]))
    seconds = max(plan.seconds, RESTART)
    with killing(seconds / 4, server):
        tally = plan.load(server, asked, FAULT_CLIENTS, seconds)
    # The processor time of the killed process is unknown.
    rows.append(row(KILLED, FAULT_CLIENTS, tally, 0.0, server.memory()["most"]))
    return rows


def soak(server: Server, asked: Asked, plan: Plan, minutes: float) -> dict[str, Any]:
    """Memory over a long time: its size after each part, and the answers during it."""
    total, sizes, before = Tally(), [], server.cpu_seconds()
    for _ in range(PARTS):
        tally = plan.load(server, asked, FAULT_CLIENTS, 60 * minutes / PARTS)
        total.after(tally)
        sizes.append(server.memory()["now"])
    used = _per_answer(server.cpu_seconds() - before, total)
    found = row("soak", FAULT_CLIENTS, total, used, server.memory()["most"])
    return {**found, "minutes": minutes, "rss_mib": sizes}


def parsed() -> argparse.Namespace:
    """The command-line options."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", help="files or names of the zoo; by default all of it")
    parser.add_argument("--clients", default="1,16,100,1000", help="numbers of clients")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of one inference")
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) // 4),
                        help="with clients")  # fmt: skip
    parser.add_argument("--no-example", action="store_true", help="leave out the C++ example")
    parser.add_argument("--beside", type=Path,
                        help="the command of another capsedge, to compare with")  # fmt: skip
    parser.add_argument("--no-faults", action="store_true", help="leave out bad clients")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes of load at the end")
    parser.add_argument("-o", "--output", type=Path, help="JSON; by default that of the page")
    options = parser.parse_args()
    if options.models and options.output is None:
        parser.error("the page has all models of the package: name a file for these with -o")
    options.clients = [int(part) for part in options.clients.split(",")]
    options.models = [zoo_file(name) for name in options.models or zoo.MODELS]
    return options


def zoo_file(name: str) -> Path:
    """The file for a path or for a model's name in the zoo."""
    return zoo.zoo_model(name) or Path(name)


def measure(model: Path, options: argparse.Namespace, plan: Plan, example: Path | None) -> Any:
    """Measure all rows of a model."""
    with capsedge.load(model, threads=options.threads) as session:
        asked = questions(session, IMAGES)
        rows = [alone(session, asked, options.seconds)]
    last = model == options.models[-1]
    found: dict[str, Any] = {"model": model.stem, "rows": rows}
    with running(model, options.threads, example, max(plan.clients), options.beside) as servers:
        rows += compare(servers, asked, plan)
        if last and not options.no_faults:
            found["faults"] = faults(servers[0], asked, plan)
        if last and options.soak:
            found["soak"] = soak(servers[0], asked, plan, options.soak)
    return found


def main() -> None:
    """Measure, print the tables and write the file."""
    options, start = parsed(), time.monotonic()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for clients and servers alike
    document: dict[str, Any] = {
        "machine": machine(), "seconds": options.seconds, "seconds_per_client": PER_CLIENT,
        "rounds": options.rounds, "threads": options.threads,
        "client_processes": options.processes, "models": [],
    }  # fmt: skip
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(options.processes, mp_context=spawn) as pool,
    ):
        example = None if options.no_example else build_example(Path(folder))
        plan = Plan(pool, options.processes, options.seconds, options.rounds, options.clients)
        for model in options.models:
            document["models"].append(measure(model, options, plan, example))
            print(table(document["models"][-1]), flush=True)
    document["minutes"] = (time.monotonic() - start) / 60
    (options.output or JSON).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.output is None:
        write_page()
    wrong = sum(r["wrong"] + r["lost"] for m in document["models"]
                for r in [*m["rows"], *m.get("faults", [])])  # fmt: skip
    print(f"{document['minutes']:.1f} minutes; wrong or lost answers: {wrong}")
    if wrong:
        raise SystemExit(4)


if __name__ == "__main__":
    main()
