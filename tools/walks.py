"""Trace a command's path through the package: files whose functions run, their rooms, changes of file.

python -m tools.walks export --routing dynamic -o digits.onnx
python -m tools.walks --often 20 quantize digits.onnx --calib-data digits -o int8.onnx

Every call of a function of the package counts, and every step of a generator; two in a row in different files
make a change of file. Code that runs during imports does not count, nor do other processes. ``--mapping``
also counts as if modules were merged: a Python file with ``M``, new module -> old ones.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

PACKAGE: Final = Path(__file__).resolve().parent.parent / "capsedge"
Step = tuple[str, str]


class Walk:
    """Calls of the package's functions, on this thread and on threads started meanwhile.

    Attributes:
        calls: number of calls by module, without ``capsedge.``.
        changes: of module, how many, by (module, function) before and after.
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.changes: Counter[tuple[Step, Step]] = Counter()
        self._modules: dict[CodeType, str] = {}
        self._here = threading.local()

    def __enter__(self) -> Walk:
        threading.setprofile(self._seen)
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "return"):
            return
        code, here = frame.f_code, self._here.__dict__
        if code not in self._modules:
            self._modules[code] = self._module(code)
        if not (module := self._modules[code]):
            return
        if not code.co_flags & CO_OPTIMIZED:  # the body of a module or of a class
            here["importing"] = here.get("importing", 0) + (1 if event == "call" else -1)
        elif event == "call" and not here.get("importing"):
            self.calls[module] += 1
            now, before = (module, code.co_name), here.get("last")
            if before is not None and before[0] != module:
                self.changes[before, now] += 1
            here["last"] = now

    def _module(self, code: CodeType) -> str:
        path = Path(code.co_filename)
        if not path.is_relative_to(PACKAGE):
            return ""
        return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)

    def counts(self, merged: Mapping[str, str]) -> dict[str, Any]:
        """The counts, as JSON values.

        Args:
            merged: for each module, the merged one that replaces it.
        """
        calls: Counter[str] = Counter()
        for module, count in self.calls.items():
            calls[merged.get(module, module)] += count
        changes: Counter[tuple[str, str]] = Counter()
        for ((before, left), (after, entered)), count in self.changes.items():
            pair = merged.get(before, before), merged.get(after, after)
            if pair[0] != pair[1]:
                changes[f"{pair[0]}.{left}", f"{pair[1]}.{entered}"] += count
        rooms = Counter(module.partition(".")[0] for module in calls if "." in module)
        return {
            "files": len(calls),
            "rooms": dict(sorted(rooms.items())),
            "calls": calls.total(),
            "changes": changes.total(),
            "modules": dict(sorted(calls.items())),
            "often": [[*pair, count] for pair, count in changes.most_common()],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and print its path; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.walks", description="A command's way.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--mapping", type=Path, help="count as if modules were merged, too")
    parser.add_argument("--often", type=int, default=0, help="print so many frequent changes")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="of capsedge, with its options")
    given = parser.parse_args(arguments)
    sys.argv = ["capsedge", *given.command]
    from capsedge.cli import main as capsedge

    with Walk() as walk:
        try:
            capsedge()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    found = {"now": walk.counts({})}
    if given.mapping is not None:
        new = runpy.run_path(str(given.mapping))["M"]
        found["merged"] = walk.counts({old: name for name, olds in new.items() for old in olds})
    if given.json:
        print(json.dumps(found))
        return code
    for title, counts in found.items():
        rooms = ", ".join(f"{room} {files}" for room, files in counts["rooms"].items())
        print(f"{title}: {counts['files']} files, {len(counts['rooms'])} rooms ({rooms})")
        print(f"  {counts['calls']} calls, {counts['changes']} changes of file")
        for before, after, count in counts["often"][: given.often]:
            print(f"{count:8}  {before} -> {after}")
    return code


if __name__ == "__main__":
    sys.exit(main())
