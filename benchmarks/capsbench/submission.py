"""A submission: one JSON document, with a schema and a checksum."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema

from benchmarks.capsbench import rules
from capsedge.runtime.files.writing import write_text

SCHEMA = Path(__file__).with_name("schema.json")


def checksum(document: dict[str, Any]) -> str:
    """SHA-256 of everything but the checksum, as JSON with sorted keys and no spaces."""
    body = {k: v for k, v in document.items() if k != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write(document: dict[str, Any], path: Path) -> None:
    """Write a document with its checksum, under a temporary name first."""
    write_text(path, json.dumps({**document, "sha256": checksum(document)}, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    """A document that conforms to the schema and has not been changed.

    Raises:
        ValueError: it does not conform or has been changed; gives all reasons.
    """
    problems = problems_of(path)
    if problems:
        raise ValueError("\n".join(f"{path}: {problem}" for problem in problems))
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def problems_of(path: Path) -> list[str]:
    """What is wrong with a file; empty if nothing is."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        return [f"not a JSON document: {error}"]
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    found = [
        f"{'/'.join(map(str, error.absolute_path)) or 'document'}: {error.message[:200]}"
        for error in sorted(validator.iter_errors(document), key=lambda e: list(map(str, e.path)))
    ]
    if found:
        return found
    if document["sha256"] != checksum(document):
        found.append("the checksum is another: the document was changed after it was measured")
    if document["seconds"] < rules.SECONDS:
        found.append(f"runs of {document['seconds']:g} s; the rules ask for {rules.SECONDS:g}")
    rows = [(r["model"], r["runtime"], r["precision"], r.get("scenario")) for r in document["rows"]]
    for row in {r for r in rows if rows.count(r) > 1}:
        found.append(f"measured twice: {row}")
    return found
