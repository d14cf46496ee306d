"""What a run has done: parts in a folder, from which an interrupted run goes on.

The folder holds ``_plan.json`` (what is computed, by checksums), ``part-000000.parquet`` and so on, and at
the end ``_SUCCESS``. For an output that is one file it lies beside it, and is removed once they are merged.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from capsedge.batches.columns import PLAN, Counts, counts_of, merge
from capsedge.batches.items import Part
from capsedge.batches.parquet_file import import_parquet
from capsedge.batches.storage import is_remote, plain
from capsedge.batches.store import Store
from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files import opening
from capsedge.runtime.files.writing import check_writable, written

_PLAN, SUCCESS = "_plan.json", "_SUCCESS"
SUFFIX = ".parquet"
BESIDE = ".parts"


class Journal:
    """The parts of one table.

    Args:
        output: a file ``*.parquet`` on this machine, or a folder or an address for a folder of parts.
        plan: what is computed: JSON values that decide every bit of the table.
        parts: of the source.
    """

    def __init__(self, output: str, plan: dict[str, Any], parts: Sequence[Part]) -> None:
        self.output = output
        self.file = Path(plain(output)) if is_file(output) else None
        self._store = Store(f"{output}{BESIDE}" if self.file is not None else output)
        text = json.dumps(plan | {"parts": [part.to_dict() for part in parts]}, sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self._parts = parts
        self.counts = Counts()
        self.complete = False

    def begin(self, resume: bool) -> set[int]:
        """Take the folder; returns the numbers of the parts that are there already.

        Raises:
            UsageError: it holds something else, an unfinished run that is not to be resumed, or a run with
                another plan.
        """
        if self.file is not None:
            check_writable(self.file)
        if resume and self._merged():
            self.complete = True
            return {part.number for part in self._parts}
        names = self._store.names()
        if not names:
            self._store.take()
            self._store.put(_PLAN, json.dumps({"sha256": self.digest}).encode())
            return set()
        self._check(names, resume)
        self._store.take()
        done = {part.number for part in self._parts if name_of(part.number) in names}
        for number in sorted(done):
            self.counts.add(self._counts(number))
        self.complete = SUCCESS in names
        return done

    def _merged(self) -> bool:
        """Whether the file is there, with the whole table of this plan."""
        if self.file is None or opening.kind(self.file) != opening.FILE:
            return False
        try:
            with opening.opened(self.file) as file:
                stated = import_parquet().read_metadata(file).metadata or {}
            if stated.get(PLAN) != self.digest.encode():
                return False
            with opening.opened(self.file) as file:
                columns = import_parquet().read_table(file, columns=["error", "nothing"])
        except (OSError, ValueError):  # pyarrow's errors are among them
            return False
        failed, nothing = (len(c) - c.null_count for c in (columns["error"], columns["nothing"]))
        self.counts = Counts(len(columns), failed, nothing)
        return True

    def _check(self, names: set[str], resume: bool) -> None:
        where = self._store.address
        if _PLAN not in names:
            raise UsageError(
                f"The folder {where} is not empty.",
                "No earlier run wrote what it holds.",
                "Name a new folder, or a file *.parquet.",
            )
        if not resume:
            state = "a finished" if SUCCESS in names else "an unfinished"
            raise UsageError(
                f"The folder {where} holds {state} run.",
                "",
                "Go on with resume=True, or remove the folder.",
                command="Go on with --resume, or remove the folder.",
            )
        try:
            stated = json.loads(self._store.get(_PLAN))
        except ValueError:
            stated = None
        if stated != {"sha256": self.digest}:
            raise UsageError(
                f"The unfinished run in {where} had another model, source or options.",
                "Its parts would not fit those that are left.",
                "Give the same ones, or remove the folder.",
            )

    def _counts(self, number: int) -> Counts:
        try:
            with self._store.opened(name_of(number)) as file:
                return counts_of(file)
        except (OSError, ValueError, TypeError) as error:
            raise self._damaged(name_of(number), error) from error

    def put(self, number: int, content: bytes, counts: Counts) -> None:
        """Keep a part.

        Raises:
            UsageError, EnvironmentProblem: it cannot be written.
        """
        self._store.put(name_of(number), content)
        self.counts.add(counts)

    def finish(self, schema: Any) -> None:
        """Make the table whole: merge the parts into the file, or mark the folder.

        Raises:
            ArtefactError: a part is damaged.
            UsageError, EnvironmentProblem: the file cannot be written.
        """
        names = [name_of(part.number) for part in self._parts]
        if self.file is None:
            self._store.put(SUCCESS, json.dumps(self.counts.to_dict()).encode())
            self._store.unlock_file()
            return
        opened = [functools.partial(self._store.opened, name) for name in names]
        try:
            with written(self.file) as target:
                merge(opened, target, schema, self.digest)
        except ValueError as error:
            if isinstance(error, UsageError):
                raise
            raise self._damaged("a part", error) from error
        self._store.remove()

    def close(self) -> None:
        """Let other processes go on."""
        if self.complete:
            self._store.unlock_file()
        self._store.release()

    def abandon(self) -> None:
        """Remove a run that has nothing to keep."""
        self._store.remove()

    def _damaged(self, name: str, error: Exception) -> ArtefactError:
        return ArtefactError(
            f"{name} in {self._store.address} is damaged.",
            f"{error}.",
            "Remove it, and continue with --resume.",
        )


def name_of(number: int) -> str:
    """The file of a part."""
    return f"part-{number:06d}{SUFFIX}"


def is_file(output: str) -> bool:
    """Whether an output is one file and not a folder of parts."""
    return output.endswith(SUFFIX) and not is_remote(output)
