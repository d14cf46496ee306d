"""The command; the package's docstring describes it."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import benchmarks.capsbench as capsbench
from benchmarks.capsbench import page, rules, running, submission
from benchmarks.capsbench.files import DATA, PRECISIONS, RUNTIMES
from benchmarks.common import machine

USUAL = tuple(name for name in RUNTIMES if name != "tensorrt")  # TensorRT needs a GPU


def main() -> None:
    """Run, check or show results."""
    options = _parser().parse_args()
    try:
        options.act(options)
    except ValueError as error:
        raise SystemExit(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capsbench", description=capsbench.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    actions = parser.add_subparsers(required=True, metavar="run|check|page")
    measure = actions.add_parser("run", help="measure, and write a submission")
    measure.set_defaults(act=_run)
    measure.add_argument("--name", required=True, help="of the machine: a-z, 0-9, dots and hyphens")
    measure.add_argument("--accelerator", default="", help="GPU or module, as its maker names it")
    measure.add_argument("--models", nargs="+", default=list(DATA), choices=DATA)
    measure.add_argument("--runtimes", nargs="+", default=list(USUAL), choices=RUNTIMES)
    measure.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    measure.add_argument(
        "--scenarios", nargs="+", default=list(rules.SCENARIOS), choices=rules.SCENARIOS
    )
    measure.add_argument(
        "--data", nargs="+", default=[], metavar="SET=DIR", help="mnist=..., cifar10=..."
    )
    measure.add_argument(
        "--checkpoint", nargs="+", default=[], metavar="MODEL=FILE", help="trained weights"
    )
    measure.add_argument(
        "--environments",
        type=Path,
        default=os.environ.get("CAPSEDGE_RUNTIMES"),
        help="folder of virtual environments by runtime, as tools/runtimes.sh makes (CAPSEDGE_RUNTIMES)",
    )
    measure.add_argument("--threads", type=int, default=os.cpu_count())
    measure.add_argument(
        "--seconds", type=float, default=rules.SECONDS, help="of each performance run"
    )
    measure.add_argument("--images", type=int, help="only the first N test images")
    measure.add_argument("-o", "--output", type=Path, default=Path("out/capsbench"))
    check = actions.add_parser("check", help="check submissions by schema, checksum and rules")
    check.set_defaults(act=_check)
    check.add_argument("files", nargs="+", type=Path)
    show = actions.add_parser("page", help="write the results page and its charts")
    show.set_defaults(act=_page)
    show.add_argument("page", type=Path)
    show.add_argument("folder", type=Path, help="of submissions")
    return parser


def _pairs(given: list[str], known: Any) -> dict[str, Path]:
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or key not in known or not Path(value).exists():
            names = ", ".join(known)
            raise ValueError(f"{text}: give NAME=PATH; a path that exists; NAME is one of {names}")
        found[key] = Path(value)
    return found


def _without_paths(words: list[str]) -> list[str]:
    """The command for a document that others read, without folders, which only mean something here."""
    found = []
    for before, word in zip(["", *words], words, strict=False):
        key, equals, _ = word.partition("=")
        if equals and key in (*DATA, *DATA.values()):
            word = f"{key}=PATH"
        elif before in ("-o", "--output", "--environments"):
            word = "PATH"
        found.append(word)
    return found


def _run(options: argparse.Namespace) -> None:
    """Measure; every row is written at once, so that an interrupted run loses none."""
    data = _pairs(options.data, sorted({name for name in DATA.values() if name}))
    checkpoints = _pairs(options.checkpoint, tuple(DATA))
    about = machine() | ({"accelerator": options.accelerator} if options.accelerator else {})
    place = options.output / f"{options.name}.json"
    options.output.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {
        "capsbench": 1,
        "name": options.name,
        "machine": about,
        "loadgen": version("mlcommons-loadgen"),
        "seconds": options.seconds,
        "images": options.images,
        "command": "python -m benchmarks.capsbench " + shlex.join(_without_paths(sys.argv[1:])),
        "rows": [],
    }
    plan = running.Plan(
        options.models, options.runtimes, options.precisions, options.scenarios, data, checkpoints,
        None if options.environments is None else Path(options.environments),
        options.threads, options.seconds, options.images,
    )  # fmt: skip
    for rows in running.run(plan, running.log):
        document["rows"] += rows
        submission.write(document, place)
    print(place)


def _check(options: argparse.Namespace) -> None:
    problems = {path: submission.problems_of(path) for path in options.files}
    for path, found in problems.items():
        print(f"{path}: {'; '.join(found) or 'correct'}")
    if any(problems.values()):
        raise SystemExit(1)


def _page(options: argparse.Namespace) -> None:
    page.write(options.page, options.folder)
    print(options.page)


if __name__ == "__main__":
    main()
