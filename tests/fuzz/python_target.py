"""One Python reader under atheris (libFuzzer for Python): ``python -m tests.fuzz.python_target NAME ...``.

The arguments after the name are libFuzzer's. An input fails that ends otherwise than it may, takes over five
seconds, or over a GiB more memory than there was before it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tests.fuzz.readers import READERS, check
from tests.fuzz.target import Budget, Outcome, Target

SECONDS = 5
BYTES = 1 << 30
CORPUS = Path(__file__).parent / "corpus"
_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


def main(arguments: list[str]) -> None:
    """Fuzz a reader until libFuzzer ends."""
    import atheris

    reader = READERS[arguments[0]]
    for seed in reader.seeds():  # imports what the reader imports when it runs
        check(reader, seed)
    for module in _modules(reader.modules):
        _instrument(module, atheris.instrument_func)

    def one(data: bytes) -> None:
        before = start_watching()
        check(reader, data)
        grown = peak() - before
        if grown > BYTES:
            raise MemoryError(f"it takes {grown >> 20} MiB")

    atheris.Setup(["fuzz", *arguments[1:]], one)
    atheris.Fuzz()


def start_watching() -> int:
    """Forget the largest memory so far; returns the memory now, in bytes."""
    _CLEAR.write_text("5")
    return _field("VmRSS")


def peak() -> int:
    """The largest memory since `start_watching`, in bytes."""
    return _field("VmHWM")


def _field(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", _STATUS.read_text())
    assert found is not None
    return int(found[1]) << 10


def _modules(names: tuple[str, ...]) -> list[ModuleType]:
    """The modules of these names, and those inside of them."""
    found = [importlib.import_module(name) for name in names]
    for module in list(found):
        for inner in pkgutil.iter_modules(getattr(module, "__path__", ())):
            found.append(importlib.import_module(f"{module.__name__}.{inner.name}"))
    return found


def _instrument(module: ModuleType, instrument: Any) -> None:
    """Make every function of a module report what it runs."""
    places = [vars(module)]
    places += [vars(v) for v in vars(module).values() if isinstance(v, type)]
    for place in places:
        for value in list(place.values()):
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            function = getattr(function, "__wrapped__", function)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                instrument(function)


def run(name: str, budget: Budget) -> Outcome:
    """Run a reader's target in a process of its own."""
    if find_spec("atheris") is None:
        return Outcome(skipped="needs atheris: pip install 'capsedge[fuzz]'")
    corpus, seeds, findings = (budget.folder / part for part in ("corpus", "seeds", "findings"))
    shutil.rmtree(seeds, ignore_errors=True)
    for folder in (corpus, seeds, findings):
        folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(READERS[name].seeds()):
        (seeds / f"{number}").write_bytes(seed)
    command = [sys.executable, "-m", "tests.fuzz.python_target", name, str(corpus), str(seeds)]
    if (CORPUS / name).is_dir():
        command.append(str(CORPUS / name))
    command += [
        f"-timeout={SECONDS}",
        f"-rss_limit_mb={(BYTES >> 20) + 1024}",  # with what torch takes by itself
        f"-artifact_prefix={findings}/",
        f"-max_total_time={max(1, int(budget.seconds))}",
        "-max_len=65536",
        "-print_final_stats=1",
    ]
    if budget.inputs:
        command.append(f"-runs={budget.inputs}")
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    outcome = Outcome(seconds=time.monotonic() - started)
    (budget.folder / "log").write_text(done.stderr)
    for line in re.finditer(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+)", done.stderr, re.MULTILINE):
        outcome.inputs = int(line[1])
        reached = int(line[3])
        if not outcome.coverage or reached > outcome.coverage[-1][1]:
            outcome.coverage.append((outcome.inputs, reached))
    if done.returncode:
        kept = re.findall(r"Test unit written to (\S+)", done.stderr) or ["no input was kept"]
        said = [x for x in done.stderr.splitlines() if "Error" in x or "ERROR" in x][:3]
        outcome.failures = [f"exit {done.returncode}: {kept[-1]}: {'; '.join(said)}"]
    return outcome


TARGETS = tuple(Target(name, partial(run, name)) for name in READERS)

if __name__ == "__main__":
    main(sys.argv[1:])
