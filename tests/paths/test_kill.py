"""Killed before and after every write: what is there is whole, and running it again completes it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.paths.table import honest, repository, snapshot

HEAVY = ("capsedge.models.training.train", "capsedge.exporters", "capsedge.calibration.quantize")

# Runs commands, one per line of the standard input. Each is killed as often as it writes, a write later every
# time, and then run once more. The processes are forked from one that has everything loaded.
SERVER = """
import json, os, sys, time
import capsedge.cli
stand_in, *modules = sys.argv[1:]
for module in modules:
    __import__(module)
if stand_in:  # build: over stand-ins for TensorRT and CUDA
    from tests.paths.stand_ins import install
    install(stand_in)
time.monotonic = lambda: 0.0  # the seconds of an epoch are no part of what must be equal

def command(words, fatal):
    left = [fatal]
    def counted(call):
        real = getattr(os, call)
        def run(*arguments, **options):
            result = None
            ours = call != "open" or ".capsedge-" in str(arguments[0]) and options.get("dir_fd") is None
            if ours and call != "open" and left[0] == 0: os.kill(os.getpid(), 9)
            result = real(*arguments, **options)
            if ours:
                if call == "open" and left[0] == 0: os.kill(os.getpid(), 9)
                left[0] -= 1
            return result
        setattr(os, call, run)
    for call in ("open", "fsync", "replace"):
        counted(call)
    sys.argv = ["capsedge", *words]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os._exit(capsedge.cli._run())

for line in sys.stdin:
    folder, words, fatal = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.chdir(folder)
        command(words, fatal)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
NEVER = 10**9


class Server:
    """Commands in processes that end when they are told."""

    def __init__(self, *modules: str, stand_in: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(stand_in or ""), *modules],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip

    def run(self, folder: Path, words: list[Any], fatal: int = NEVER) -> int:
        """The exit code of a command in a folder, killed at its ``fatal``-th step of writing."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(folder), [str(w) for w in words], fatal]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def serving(*modules: str, stand_in: Path | None = None) -> Iterator[Server]:
    """A server, until the block ends."""
    found = Server(*modules, stand_in=stand_in)
    with found.process:
        yield found
        found.process.communicate()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that has imported PyTorch, whose operations take one thread (tests/conftest.py)."""
    pytest.importorskip("torch", reason="train and quantize need torch")
    with serving(*HEAVY) as found:
        yield found


def content(folder: Path) -> dict[str, Any]:
    return {Path(k).name: v[3] for k, v in snapshot(folder).items()}


def killed_everywhere(
    server: Server, words: list[Any], again: list[Any], tmp_path: Path, writes: int
) -> None:
    """Kill a command at every step of writing; ``again`` is what completes it then."""
    whole = tmp_path / "whole"
    whole.mkdir()
    assert server.run(whole, words) == 0
    wanted = content(whole)
    assert len(wanted) == writes
    steps = 0
    while True:
        folder = tmp_path / str(steps)
        folder.mkdir()
        code = server.run(folder, words, steps)
        if code == 0:
            break
        assert code == -9
        assert server.run(folder, again) == 0, steps
        assert content(folder) == wanted, f"killed at step {steps}"
        steps += 1
    assert steps >= 3 * writes  # a temporary file, its end and its name for each


@pytest.mark.thorough
def test_deploy(tmp_path: Path) -> None:
    words = [
        "deploy", "kserve", repository(tmp_path / "repository"), "--storage", "s3://bucket/models",
        "-o", "service.yaml",
    ]  # fmt: skip
    with serving("capsedge.cli.deploy", "capsedge.deploy.kserve") as server:
        killed_everywhere(server, words, words, tmp_path, 1)


@pytest.mark.slow
def test_train(server: Server, tmp_path: Path) -> None:
    data = honest(tmp_path / "honest")["train"]["data"][1]

    words = [
        "train", "--model", "digits-em", "--iters", "1", "--data", data, "--epochs", "2", "--batch", "16",
        "--limit", "16", "--threads", "1", "-o", ".",
    ]  # fmt: skip
    killed_everywhere(server, words, [*words, "--resume"], tmp_path, 3)


@pytest.mark.thorough
def test_quantize(server: Server, tmp_path: Path) -> None:
    given = honest(tmp_path / "honest")["quantize"]

    words = [
        "quantize", *given["model"], *given["calib_data"], "--calib-images", "16", "--limit", "8",
        "--max-drop", "100", "--table", "table.json", "-o", "small.onnx",
    ]  # fmt: skip
    killed_everywhere(server, words, words, tmp_path, 2)


@pytest.mark.thorough
def test_build(tmp_path: Path, cudart: Path) -> None:
    model = honest(tmp_path / "honest")["build"]["model"][0]

    words = ["build", model, "--plugin", "native", "--timing-cache", "timings", "-o", "new.engine"]
    with serving(*HEAVY, stand_in=cudart) as server:
        killed_everywhere(server, words, words, tmp_path, 3)
