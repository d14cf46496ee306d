"""Damaged folders of C through ``verify FOLDER``: ``python -m tests.fuzz.folder_mutants FOLDER``.

A mutant is a folder of ``build --target c`` with one to three of its files changed, cut, removed, replaced or
described otherwise, or the ONNX file it was made from with other bytes. A mutant fails if the verb ends with
exit code 1 (a bug) or one that is not documented, or takes the process with it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests.fuzz.onnx_mutants import in_processes, judge
from tests.fuzz.target import Budget, Outcome, Target

Random = np.random.Generator
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, 1e308, "", "x", "9" * 5000, "../m", "/etc/passwd", "a\nb",
    "\x1b[2J", "\ud800", "printf", [], {}, [[]], [1] * 1000, {"": None},
)  # fmt: skip
_LIMIT = 60  # seconds for one mutant, before the driver takes it for one that hangs


def _pick(items: Any, random: Random) -> Any:
    return items[int(random.integers(len(items)))]


def _plain(path: Path) -> bool:
    """Whether a file can still be read to its end: not once it is a link to /dev/zero, or a pipe."""
    return path.is_file() and not path.is_symlink()


def _bytes(path: Path, random: Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(int(random.integers(1, 5))):
        data[int(random.integers(len(data)))] = int(random.integers(256))
    path.write_bytes(data)


def _cut(path: Path, random: Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(random.integers(len(data)))])


def _remove(path: Path, random: Random) -> None:
    path.unlink()


def _replace(path: Path, random: Random) -> None:
    path.unlink()
    kind = random.integers(4)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        path.symlink_to(path)
    elif kind == 2:
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")


def _rename(path: Path, random: Random) -> None:
    path.rename(path.with_name(str(_pick(("other.c", "a b.json", "m.C", "-o", "\udcff"), random))))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every value inside of a document, as its container and its key."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], (dict, list)):
            found += _places(value[key])
    return found


def _describe(path: Path, random: Random) -> None:
    """Another value of the description, or one fewer."""
    path = path.with_name("m.json")
    if not _plain(path):
        return
    document = json.loads(path.read_text())
    for _ in range(int(random.integers(1, 4))):
        container, key = _pick(_places(document), random)
        if random.integers(5) == 0:
            del container[key]
        else:
            container[key] = copy.deepcopy(_pick(_VALUES, random))  # none inside itself
    path.write_text(json.dumps(document))


MUTATIONS: tuple[Callable[[Path, Random], None], ...] = (
    _bytes, _cut, _remove, _replace, _rename, _describe, _describe, _describe, _describe,
)  # fmt: skip


def prepare(folder: Path) -> None:
    """The folder and the file that it was made from, unchanged."""
    from tests.runtime.models import capsule_model

    onnx.save(capsule_model(), str(folder / "m.onnx"))
    shutil.rmtree(folder / "whole", ignore_errors=True)
    words = ["build", "--target", "c", str(folder / "m.onnx"), "-o", str(folder / "whole")]
    if why := judge(words):
        raise AssertionError(why)


def mutate(number: int, folder: Path) -> list[str]:
    """Make the mutant of a number; returns the command that it goes through."""
    random = np.random.default_rng(number)
    place, model = folder / "net", folder / "m.onnx"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "whole", place)
    if random.integers(8) == 0:
        model = folder / "changed.onnx"
        shutil.copy(folder / "m.onnx", model)
        _bytes(model, random)
    else:
        files = sorted(path for path in place.iterdir() if path.is_file())
        for _ in range(int(random.integers(1, 4))):
            path, change = _pick(files, random), _pick(MUTATIONS, random)
            with contextlib.suppress(OSError, ValueError, KeyError, IndexError, TypeError):
                if _plain(path):
                    change(path, random)
    return ["verify", str(place), "--reference", str(model)]


def main() -> int:
    """Run mutants until the time or their number is up; prints each number, and why one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.folder_mutants")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    prepare(options.folder)
    started, number = time.monotonic(), options.first
    while time.monotonic() - started < options.seconds:
        if options.inputs and number >= options.first + options.inputs:
            break
        words = mutate(number, options.folder)
        print(f"#{number}", flush=True)
        begun = time.monotonic()
        if why := judge(words):
            print(f"FAILED {number}: {why}", flush=True)
        if time.monotonic() - begun > _LIMIT:
            print(f"FAILED {number}: it takes {time.monotonic() - begun:.0f} s", flush=True)
        number += 1
    return 0


def run(budget: Budget) -> Outcome:
    """The target: in a process of its own, which is started again where a mutant ends it."""
    return in_processes("tests.fuzz.folder_mutants", budget)


TARGETS = (Target("verify FOLDER", run),)

if __name__ == "__main__":
    raise SystemExit(main())
