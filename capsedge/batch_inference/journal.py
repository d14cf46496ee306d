"""Keep the finished parts of a run in a folder, from which an interrupted run is resumed.

The folder holds ``_plan.json`` (what is computed, by checksums), for each part ``part-000000.parquet`` and
``_part-000000.json`` (its checksum and counts), and at the end ``_SUCCESS``. If the output is one file, the
folder is next to it and is removed once the parts are merged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from capsedge.batch_inference.items import Part
from capsedge.batch_inference.parquet import BadParquet, opened_parquet, readable_errors
from capsedge.batch_inference.rows import PLAN, Counts, merge
from capsedge.batch_inference.storage import PartStore, is_remote, plain
from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.runtime.files import reading as opening
from capsedge.runtime.files.documents import MalformedJson, changed_settings, decode, parse
from capsedge.runtime.files.writing import atomic_writer, check_writable
from capsedge.spec import limits

_PLAN, SUCCESS = "_plan.json", "_SUCCESS"
SUFFIX = ".parquet"
FOLDER_SUFFIX = ".parts"


@dataclass(frozen=True)
class _Record:
    """The facts about a finished part, as JSON in a separate file.

    Attributes:
        plan: the digest of the plan.
        part: its number.
        size: bytes of its file.
        sha256: the checksum of its file, in hexadecimal.
        counts: numbers of its rows.
    """

    plan: str
    part: int
    size: int
    sha256: str
    counts: Counts


class Journal:
    """The parts of one table.

    Args:
        output: a file ``*.parquet`` on this machine, or a folder or an address for a folder of parts.
        plan: the plan of the computation: JSON values that determine every bit of the table.
        parts: of the source.
    """

    def __init__(self, output: str, plan: dict[str, Any], parts: Sequence[Part]) -> None:
        self.output = output
        self.file = Path(plain(output)) if is_single_table(output) else None
        self._store = PartStore(f"{output}{FOLDER_SUFFIX}" if self.file is not None else output)
        self._plan = plan
        text = json.dumps(plan | {"parts": [part.to_dict() for part in parts]}, sort_keys=True)
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self._parts = parts
        self._records: dict[int, _Record] = {}
        self.counts = Counts()
        self.complete = False

    def begin(self, resume: bool, force: bool) -> set[int]:
        """Lock the folder; returns the numbers of the complete parts that are already there.

        Args:
            resume: continue an unfinished run.
            force: replace what an earlier run wrote.
        """
        there = self.file is not None and opening.path_kind(self.file) == opening.FILE
        if self.file is not None:
            check_writable(self.file)
        if resume and there and self._merged():
            self.complete = True
            return {part.number for part in self._parts}
        names = self._store.names()
        if there and not force and not (resume and _PLAN in names):
            raise self._exists(resume)
        if not names:
            self._store.take()
            self._start()
            return set()
        self._check(names, resume, force)
        self._store.take()
        if force:
            self._store.clear(names)
            self._start()
            return set()
        for part in self._parts:
            if {name_of(part.number), _record_of(part.number)} <= names:
                self._take_back(part.number)
        self.complete = (
            self.file is None and len(self._records) == len(self._parts) and self._marked_for(names)
        )
        return set(self._records)

    def _start(self) -> None:
        self._store.put(_PLAN, json.dumps({"sha256": self.digest, "plan": self._plan}).encode())

    def _exists(self, resume: bool) -> UsageError:
        if resume:
            what, why = (
                "is not the table of this run.",
                ("It has another model, source or options, or is damaged."),
            )
        else:
            what, why = "exists already.", "It may be the table of an earlier run."
        return UsageError(
            f"{self.output} {what}",
            why,
            "Choose another output, or replace the file with force=True.",
            command="Choose another output, or replace the file with --force.",
        )

    def _merged(self) -> bool:
        """Whether the file holds the whole table of this plan."""
        assert self.file is not None
        try:
            with opening.open_regular_file(self.file) as file, opened_parquet(file) as table:
                declared = parse((table.content.metadata.metadata or {}).get(PLAN, b"null"))
                counts = (
                    decode(Counts, declared.pop("counts")) if isinstance(declared, dict) else None
                )
                if counts is None or declared != {"sha256": self.digest}:
                    return False
                rows = 0
                for k in range(len(table.groups)):
                    with readable_errors():
                        rows += table.content.read_row_group(k, use_threads=False).num_rows
        except (BadParquet, MalformedJson, KeyError, UsageError):
            return False
        self.counts = counts
        return rows == counts.images

    def _marked_for(self, names: set[str]) -> bool:
        """Whether the folder states that it holds these parts."""
        if SUCCESS not in names:
            return False
        try:
            return bool(parse(self._store.get(SUCCESS, limits.JSON_BYTES)) == self._write_marker())
        except MalformedJson:
            return False

    def _write_marker(self) -> dict[str, Any]:
        return {"sha256": self.digest, "parts": len(self._parts), **self.counts.to_dict()}

    def _check(self, names: set[str], resume: bool, force: bool) -> None:
        where = self._store.address
        ours = {name_of(part.number) for part in self._parts}
        # Readers of folders of tables ignore names that begin with these.
        others = {name for name in names - ours if not name.startswith(("_", "."))}
        if _PLAN not in names or (resume and others):
            raise UsageError(
                f"The folder {where} is not empty.",
                "Its contents were not written by an earlier run"
                + (f": {min(others)}." if others and _PLAN in names else "."),
                "Choose a new folder, or a file *.parquet.",
            )
        if not resume and not force:
            state = "a finished" if SUCCESS in names else "an unfinished"
            raise UsageError(
                f"The folder {where} holds {state} run.",
                "",
                "Continue with resume=True, or replace it with force=True.",
                command="Continue with --resume, or replace it with --force.",
            )
        try:
            declared = parse(self._store.get(_PLAN, limits.JSON_BYTES))
        except MalformedJson:
            declared = None
        declared = declared if isinstance(declared, dict) else {}
        if resume and declared.get("sha256") != self.digest:
            changed = changed_settings(declared.get("plan", {}), self._plan)
            raise UsageError(
                f"The unfinished run in {where} used another model, source or options.",
                f"Its parts would not match: {changed or 'the source has other images'}.",
                "Use the same ones, or replace it with force=True.",
                command="Use the same ones, or replace it with --force.",
            )

    def _take_back(self, number: int) -> None:
        """Verify and count a part of an earlier run."""
        name = _record_of(number)
        try:
            record = decode(_Record, parse(self._store.get(name, limits.JSON_BYTES)))
        except MalformedJson as error:
            raise self._damaged(name, f"{error}") from error
        if (record.plan, record.part) != (self.digest, number):
            raise self._damaged(name, "it describes another part")
        self._records[number] = record
        self._content(number)
        self.counts.add(record.counts)

    def _content(self, number: int) -> bytes:
        """A part, as it was written. Raises ArtefactError if its file is another one."""
        record, name = self._records[number], name_of(number)
        content = self._store.get(name, max(0, record.size))
        if hashlib.sha256(content).hexdigest() != record.sha256:
            raise self._damaged(name, "its checksum is not the one that the run wrote down")
        return content

    def put(self, number: int, content: bytes, counts: Counts) -> None:
        """Keep a part. Raises UsageError or EnvironmentProblem if it cannot be written."""
        digest = hashlib.sha256(content).hexdigest()
        record = _Record(self.digest, number, len(content), digest, counts)
        self._store.put(name_of(number), content)
        self._store.put(_record_of(number), json.dumps(asdict(record)).encode())
        self._records[number] = record
        self.counts.add(counts)

    def complete_table(self, schema: Any) -> None:
        """Make the table whole: merge the parts into the file, or mark the folder."""
        if self.file is None:
            for _ in self._contents():
                pass
            self._store.put(SUCCESS, json.dumps(self._write_marker()).encode())
            self._store.unlock_file()
            return
        declared = json.dumps({"sha256": self.digest, "counts": self.counts.to_dict()})
        try:
            with atomic_writer(self.file) as target:
                rows = merge(self._contents(), target, schema, declared)
                if rows != self.counts.images:
                    raise BadParquet(f"the parts have {rows:,} rows of {self.counts.images:,}")
        except (BadParquet, ValueError) as error:
            if isinstance(error, CapsedgeError):
                raise
            raise self._damaged("a part", f"{error}") from error
        self._store.remove()

    def _contents(self) -> Iterator[bytes]:
        return (self._content(part.number) for part in self._parts)

    def close(self) -> None:
        """Unlock the folder for other processes."""
        if self.complete:
            self._store.unlock_file()
        self._store.release()

    def abandon(self) -> None:
        """Remove a run without finished parts."""
        self._store.remove()

    def _damaged(self, name: str, why: str) -> ArtefactError:
        return ArtefactError(
            f"{name} in {self._store.address} is damaged or a different file.",
            f"{why[:1].upper()}{why[1:]}.",
            "Remove it, and continue with resume=True.",
            command="Remove it, and continue with --resume.",
        )


def name_of(number: int) -> str:
    """The file of a part."""
    return f"part-{number:06d}{SUFFIX}"


def _record_of(number: int) -> str:
    return f"_part-{number:06d}.json"


def is_single_table(output: str) -> bool:
    """Whether an output is one file and not a folder of parts."""
    return output.lower().endswith(SUFFIX) and not is_remote(output)


def check_batch_output(output: str) -> None:
    """Refuse an output named like a file of another format, because it would become a folder."""
    name = re.split(r"[/\\]", output)[-1]
    suffix = re.search(r"[^.](\.[A-Za-z]\w{0,7})$", name)
    if suffix is None or suffix[1].lower() == SUFFIX:
        return
    if not is_remote(output) and opening.path_kind(plain(output)) == opening.FOLDER:
        return
    raise UsageError(
        f"{output} would be a folder of parquet files.",
        f"Tables are written as parquet, not as '{suffix[1]}'.",
        "Choose a file *.parquet, or a folder without such a suffix. pandas turns a table into CSV: "
        "pandas.read_parquet('answers.parquet').to_csv('answers.csv').",
    )
