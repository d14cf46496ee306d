"""``python -m tests.conformance test|gradient|performance|support|dump``."""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

from . import modes
from .backends import BACKENDS
from .cases import CASES, DTYPES
from .cuda import BACKENDS as CUDA
from .dump import dump
from .provider import BACKENDS as PROVIDER
from .ptx import BACKENDS as PTX
from .torch_fused import BACKENDS as TORCH


def main() -> int:
    """Run one mode; exit code 1 when a case fails, 2 when nothing matches."""
    others = (*CUDA, *PTX, *PROVIDER, *TORCH)
    known = {**BACKENDS, **{backend.name: backend for backend in others}}
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("mode", choices=[*modes.MODES, "dump"])
    parser.add_argument("folder", nargs="?", type=Path, help="where `dump` writes")
    parser.add_argument(
        "--backend", action="append", choices=list(known), help="default: all but CUDA"
    )
    parser.add_argument("--filter", default="", help="regular expression over the printed case")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="default: all")
    parser.add_argument("--light", action="store_true", help="leave the heavy cases out")
    parser.add_argument("--csv", action="store_true", help="comma-separated values, all rows")
    options = parser.parse_args()

    cases = [c for c in CASES if re.search(options.filter, str(c))]
    if options.light:
        cases = [c for c in cases if not c.heavy]
    dtypes = options.dtype or list(DTYPES)
    if not cases:
        print(f"no case matches '{options.filter}'", file=sys.stderr)
        return 2
    if options.mode == "dump":
        if options.folder is None:
            parser.error("dump needs a folder")
        print(f"{dump(options.folder, cases, dtypes)} files in {options.folder}", file=sys.stderr)
        return 0

    writer = csv.DictWriter(sys.stdout, modes.Row.FIELDS) if options.csv else None
    if writer:
        writer.writeheader()
    counts: dict[str, int] = {}
    backends = [known[name] for name in options.backend or BACKENDS]
    for row in modes.MODES[options.mode](backends, cases, dtypes):
        counts[row.verdict] = counts.get(row.verdict, 0) + 1
        if writer:
            writer.writerow(row.fields())
        else:
            print(row)
    summary = ", ".join(f"{n} {verdict}" for verdict, n in sorted(counts.items()))
    print(f"{options.mode}: {summary}", file=sys.stderr)
    return 1 if counts.get("FAILED") else 0


if __name__ == "__main__":
    sys.exit(main())
