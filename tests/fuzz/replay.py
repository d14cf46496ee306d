"""Replay what once did harm: ``python -m tests.fuzz.replay NAME``, of a reader.

Prints a line for each input and ends with 1 if one ends otherwise than it may, or takes over a GiB.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from tests.fuzz.hostile import HOSTILE
from tests.fuzz.python_target import BYTES, CORPUS, peak, start_watching
from tests.fuzz.readers import READERS, check


def main(name: str) -> int:
    """The command."""
    reader, failed = READERS[name], False
    for seed in reader.seeds():
        check(reader, seed)  # also imports what the reader imports when it runs
    for title, data in _inputs(name):
        before, started = start_watching(), time.process_time()
        try:
            check(reader, data)
            said = "ok"
        except Exception as error:
            said = f"FAILED: {type(error).__name__}: {error}"
        grown = peak() - before
        if grown > BYTES:
            said = f"FAILED: it takes {grown >> 20} MiB"
        failed = failed or said != "ok"
        print(
            f"{title}: {said}, {time.process_time() - started:.2f} s, {grown >> 20} MiB", flush=True
        )
    return int(failed)


def _inputs(name: str) -> Iterator[tuple[str, bytes]]:
    yield from HOSTILE[name]().items()
    for path in sorted((CORPUS / name).glob("*")):
        yield path.name, path.read_bytes()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
