"""Short commands compared with ``import onnxruntime``, in interleaved fresh processes.

    python -m benchmarks.startup

Prints the median ratio of each command's time to the import's time in the same round, in processor time and
wall-clock time. Files are in the system's cache, and the package is compiled to bytecode beforehand.
"""

from __future__ import annotations

import argparse
import compileall
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import capsedge
from benchmarks.common import machine

ROOT = Path(__file__).resolve().parents[1]
PEER = [sys.executable, "-c", "import onnxruntime"]
COMMANDS = {
    "--version": 0.5, "--help": 1.0, "infer capsedge/zoo/samples/digit-7.png": 2.0
}  # fmt: skip


def run(command: list[str]) -> tuple[float, float]:
    """The processor time and wall-clock time of a process, in seconds."""
    before, start = os.times(), time.perf_counter()
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system
    return used - before.children_user - before.children_system, time.perf_counter() - start


def ratios(words: str, rounds: int) -> tuple[float, float]:
    """Median ratios of a command to the import: processor time, wall-clock time."""
    command = [sys.executable, "-m", "capsedge", *words.split()]
    for warm_up in (command, PEER):
        run(warm_up)
    found = [(run(command), run(PEER)) for _ in range(rounds)]
    cpu, wall = (statistics.median(a[k] / b[k] for a, b in found) for k in (0, 1))
    return cpu, wall


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    compileall.compile_dir(str(Path(capsedge.__file__).parent), quiet=2)
    facts = machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, Python {facts['python']}, {rounds} rounds")
    for words, goal in COMMANDS.items():
        cpu, wall = ratios(words, rounds)
        print(f"capsedge {words}: {cpu:.2f} x processor, {wall:.2f} x wall, goal {goal}")


if __name__ == "__main__":
    main()
