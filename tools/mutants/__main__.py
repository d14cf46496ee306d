"""Measure which mutants the fast tests find, and which all tests.

    python -m tools.mutants                      # all subjects: two hours on two cores
    python -m tools.mutants --only scores --count 5

Writes build/mutants/report.md and, with every mutant, NAME.json next to it. Exits with 1 if the fast tests
find less than 95 % of the mutants that all tests find.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice, zip_longest
from pathlib import Path

from . import native
from .making import Mutant, cpp_mutants, python_mutants
from .reach import VARIABLE, Reach
from .running import NO_TESTS, Tree
from .subjects import SUBJECTS, Subject

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "mutants"
SHARE = 0.95  # of what all tests find, the fast ones find
WORKERS = len(os.sched_getaffinity(0))
BUDGET = 60.0  # CPU seconds of the tests of one tier that run on one mutant; but LEAST tests run in any case
LEAST = 40


@dataclass(frozen=True)
class Result:
    """The fate of a mutant: the first test of each tier that detected it, if one did."""

    file: str
    line: int
    diff: str
    tests: int
    skipped: int  # tests that reach the line, but did not run because others had used up the budget
    fast: str
    thorough: str
    seconds: float


def main() -> int:
    """Run, write, judge."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=SUBJECTS, help="this subject; may be repeated"
    )
    parser.add_argument("--count", type=int, default=30, help="mutants of each subject (30)")
    parser.add_argument("--again", action="store_true", help="use the coverage of the last run")
    options = parser.parse_args()
    names = options.only or list(SUBJECTS)
    OUT.mkdir(parents=True, exist_ok=True)
    if not options.only:
        for old in OUT.glob("*.json"):
            old.unlink()
    with ExitStack() as stack:
        with ThreadPoolExecutor(WORKERS) as pool:
            trees = list(pool.map(lambda k: Tree(ROOT, OUT / f"tree{k}"), range(WORKERS)))
            for tree in pool.map(Tree.__enter__, trees):
                stack.push(tree)
        parts = [OUT / f"reach{k}.part" for k in range(WORKERS)]
        if not options.again:
            measure(trees, names, parts)
        reach = Reach()
        for part in filter(Path.is_file, parts):  # a process without tests writes nothing
            reach.add(part)
        for name in names:
            run(trees, SUBJECTS[name], reach, options.count, OUT / f"{name}.json")
    text, share = report({
        name: [Result(**row) for row in json.loads((OUT / f"{name}.json").read_text(encoding="utf-8"))]
        for name in SUBJECTS
        if (OUT / f"{name}.json").is_file()
    })  # fmt: skip
    (OUT / "report.md").write_text(text, encoding="utf-8")
    print(text)
    return int(share < SHARE)


def measure(trees: list[Tree], names: list[str], parts: list[Path]) -> None:
    """Run the subjects' tests, divided among the trees, and record the lines that they reach."""
    folders = {folder for name in names for folder in SUBJECTS[name].tests}
    tests = sorted(
        {str(file.relative_to(ROOT)) for folder in folders for file in
         ([ROOT / folder] if folder.endswith(".py") else (ROOT / folder).rglob("test_*.py"))}
    )  # fmt: skip
    running = []
    for number, (tree, part) in enumerate(zip(trees, parts, strict=True)):
        files = [file for name in names for file in SUBJECTS[name].files]
        job = json.dumps({"files": files, "target": str(part)})
        command = [
            sys.executable, "-m", "pytest", "-q", "-n", "0", "--tb=line", "-p", "no:cacheprovider",
            "-p", "tools.mutants.reach", "-m", "not slow", *tests[number :: len(trees)],
        ]  # fmt: skip
        log = part.with_suffix(".log").open("w")
        environment = {**tree.environment, VARIABLE: job, "COVERAGE_CORE": "ctrace"}
        running.append(
            subprocess.Popen(command, cwd=tree.folder, env=environment, stdout=log, stderr=log)
        )
    for process, part in zip(running, parts, strict=True):
        if process.wait() not in (0, 1, NO_TESTS):  # 1: a test failed, which finds no mutant then
            sys.exit(f"The tests did not run: {part.with_suffix('.log')}")


def run(trees: list[Tree], subject: Subject, reach: Reach, count: int, target: Path) -> None:
    """Run a number of a subject's mutants, evenly from its files, each against the tests that reach it."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutants in zip_longest(*(mutants_of(file, reach, count) for file in subject.files)):
        for mutant in filter(None, mutants):
            waiting.put(mutant)
    results: list[Result] = []

    def work(tree: Tree) -> None:
        while len(results) < count and not waiting.empty():
            mutant = waiting.get()
            result = judge(tree, mutant, tests_of(mutant, subject, reach), reach)
            if result is not None and len(results) < count:
                results.append(result)
                rows = [
                    asdict(row) for row in sorted(results, key=lambda row: (row.file, row.line))
                ]
                target.write_text(json.dumps(rows, indent=1), encoding="utf-8")
                by = result.fast or result.thorough or "lives"
                where = f"{mutant.file}:{mutant.line}"
                print(f"{len(results)}/{count} {where} {by} {result.seconds:.0f} s", flush=True)

    with ThreadPoolExecutor(len(trees)) as pool:
        for future in [pool.submit(work, tree) for tree in trees]:
            future.result()


def mutants_of(file: str, reach: Reach, count: int) -> Iterator[Mutant]:
    """The mutants, in the order in which they are run."""
    if file.endswith(".py"):
        return islice(python_mutants(ROOT, file, set(reach.lines.get(file, {}))), count)
    return cpp_mutants(ROOT, file)


def tests_of(mutant: Mutant, subject: Subject, reach: Reach) -> list[str]:
    """The tests that reach its line: those of the module's own test file first, then the cheapest.

    For code that runs on import, they are all tests that reach the file; for C++ and files of constants,
    whose reach is unknown, all tests of the subject.
    """
    found = every = reach.reaching(mutant.file, None)
    if not every:
        found = [name for name in reach.passing() if name.startswith(subject.tests)]
    elif not mutant.imported:
        found = reach.reaching(mutant.file, {mutant.line})
        found = found or reach.reaching(mutant.file, {mutant.statement}) or every
    own = f"test_{Path(mutant.file).stem}.py"
    return sorted(found, key=lambda name: f"/{own}::" not in name)


def judge(tree: Tree, mutant: Mutant, tests: list[str], reach: Reach) -> Result | None:
    """Run the fast tests, then the thorough ones if the mutant survives; nothing if it does not compile."""
    begin = time.monotonic()
    found, skipped = ["", ""], 0
    with tree.changed(mutant):
        if not native.compiles(tree, mutant.file):
            return None
        for tier, fast in enumerate((True, False)):
            mine = [name for name in tests if reach.tests[name].fast == fast]
            taken, cost = affordable(mine, reach)
            skipped += len(mine) - len(taken)
            found[tier] = tree.finds(mutant, taken, 3 * cost + BUDGET)
            if found[tier]:
                break
    return Result(
        file=mutant.file,
        line=mutant.line,
        diff=mutant.diff((ROOT / mutant.file).read_text(encoding="utf-8")),
        tests=len(tests),
        skipped=skipped,
        fast=found[0],
        thorough=found[1],
        seconds=round(time.monotonic() - begin, 1),
    )


def affordable(tests: list[str], reach: Reach) -> tuple[list[str], float]:
    """The cheapest tests within the budget, and their cost."""
    taken: list[str] = []
    cost = 0.0
    for name in tests:
        if len(taken) >= LEAST and cost + reach.tests[name].cost > BUDGET:
            break
        taken.append(name)
        cost += reach.tests[name].cost
    return taken, cost


def report(subjects: dict[str, list[Result]]) -> tuple[str, float]:
    """The table of all survivors, and the share of detected mutants that the fast tests detect."""
    rows, lived = [], []
    all_fast = all_found = 0
    for name, results in subjects.items():
        fast = sum(bool(result.fast) for result in results)
        found = fast + sum(bool(result.thorough) for result in results)
        all_fast, all_found = all_fast + fast, all_found + found
        seconds = sum(result.seconds for result in results)
        rows.append(f"| {name} | {len(results)} | {fast} | {found} | {seconds / 60:.0f} |")
        for result in results:
            if not result.fast:
                words = f"only {result.thorough}" if result.thorough else "lives"
                if result.skipped:
                    words += f"; {result.skipped} of {result.tests} tests were too expensive to run"
                lived.append(
                    f"{result.file}:{result.line}: {words}\n\n```diff\n{result.diff}\n```\n"
                )
    share = all_fast / max(1, all_found)
    head = "| subject | mutants | found by fast tests | by all | minutes of a core |\n|---|---|---|---|---|"
    judged = f"The fast tests find {share:.1%} of what all tests find; {SHARE:.0%} are required."
    return "\n".join(
        ["# Mutants", "", head, *rows, "", judged, "", "## Not found by fast tests", "", *lived]
    ), share


if __name__ == "__main__":
    os.nice(5)
    sys.exit(main())
