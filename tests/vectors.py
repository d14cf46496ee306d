"""The files of ``spec/vectors``, as tests in Python read them; its README describes them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conftest import ROOT
from tests.runtime.wire import field

FOLDER = ROOT / "spec" / "vectors"
_METADATA = 14  # the field of ModelProto


@dataclass(frozen=True)
class MetadataCase:
    """An ONNX file, and what reading it gives.

    Attributes:
        values: what is read; None where the file is refused or states nothing.
        refused: ``metadata`` or ``limit``; empty for a file that is accepted.
        why: part of the message.
    """

    name: str
    file: bytes
    values: dict[str, Any] | None
    refused: str
    why: str

    def fault(
        self, found: Mapping[str, Any] | None, message: str | None, not_shown: Collection[str] = ()
    ) -> str:
        """How a reader disagrees; empty if it does not.

        Args:
            found: the values that it read; None if the file states nothing.
            message: of its error; None if it accepts the file.
            not_shown: values that its interface does not have.
        """
        if message is not None:
            if self.refused and self.why in message:
                return ""
            return f"{self.name}: {message!r}" + (f" for {self.why!r}" if self.refused else "")
        if self.refused:
            return f"{self.name}: accepted"
        if found is None or self.values is None:
            return "" if found is self.values else f"{self.name}: {found} for {self.values}"
        wrong = [
            f"{self.name}: {key} is {found.get(key)} for {wanted}"
            for key, wanted in self.values.items()
            if key not in not_shown and not _same(wanted, found.get(key))
        ]
        return "; ".join(wrong)


def read(name: str) -> Any:
    """The content of a file."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def metadata_cases(language: str) -> Iterator[MetadataCase]:
    """The cases of ``metadata.json``, with the verdicts for a language."""
    vectors = read("metadata.json")
    for group in vectors["groups"]:
        base = vectors["bases"][group["base"]]
        for case in group["cases"]:
            graph = base64.b64decode(vectors["graphs"][case.get("graph", "open")])
            yield MetadataCase(
                f"{group['about']} / {case['name']}",
                graph + b"".join(entry(*e) for e in _properties(base["properties"], case).items()),
                **_verdict(group, case, base["values"], language),
            )


@dataclass(frozen=True)
class PredictionCase:
    """An ONNX file, an image of one row, and the answer.

    Attributes:
        pixels: 0 to 255.
        options: of ``predict``: ``top_k``, ``threshold``.
        answer: ``labels``, ``scores``, ``score_kind``, ``poses``, and of a regression ``values``, each with
            name and unit; or what is ``refused``: the ``input``, or the ``file``.
    """

    name: str
    file: bytes
    pixels: list[int]
    options: dict[str, Any]
    answer: dict[str, Any]

    def fault(self, found: Mapping[str, Any]) -> str:
        """How an answer differs; empty if it does not. Scores are compared as FP32, which browsers give."""
        wrong = [key for key, value in self.answer.items() if not _alike(value, found.get(key))]
        return f"{self.name}: {found} for {self.answer}" if wrong else ""


def prediction_cases() -> Iterator[PredictionCase]:
    """The cases of ``predictions.json``."""
    vectors = read("predictions.json")
    for case in vectors["cases"]:
        base = vectors["bases"][case["base"]]
        graph = base64.b64decode(vectors["graphs"][base["graph"]])
        properties = _properties(base["properties"], {})
        yield PredictionCase(
            f"{case['base']} / {case['name']}",
            graph + b"".join(entry(*each) for each in properties.items()),
            case["pixels"],
            case.get("options", {}),
            {k: v for k, v in case.items() if k not in ("name", "base", "pixels", "options")},
        )


@dataclass(frozen=True)
class MaskCase:
    """A segmentation, an image, and its mask.

    Attributes:
        pixels: grey ``[H, W]``.
        options: of ``predict``: ``top_k``, ``threshold``.
        mask: a text for each row: the class of each pixel, ``.`` if unknown; None where it is refused.
    """

    name: str
    file: bytes
    pixels: NDArray[np.uint8]
    options: dict[str, Any]
    mask: list[str] | None

    def fault(self, found: NDArray[np.uint8] | None) -> str:
        """How a mask differs; empty if it does not. None is for a refused image."""
        rows = None
        if found is not None:
            rows = ["".join("." if v == 255 else str(v) for v in row) for row in found]
        return "" if rows == self.mask else f"{self.name}: {rows} for {self.mask}"


def mask_cases() -> Iterator[MaskCase]:
    """The cases of ``masks.json``."""
    vectors = read("masks.json")
    for case in vectors["cases"]:
        base = vectors["bases"][case["base"]]
        graph = base64.b64decode(vectors["graphs"][base["graph"]])
        height, width = case["size"]
        i = np.arange(height * width)
        yield MaskCase(
            f"{case['base']} / {height}x{width} {case.get('options', '')}",
            graph + b"".join(entry(*each) for each in _properties(base["properties"], {}).items()),
            ((i * i * 7 + i * 13) >> 3 & 255).astype(np.uint8).reshape(height, width),
            case.get("options", {}),
            case.get("mask"),
        )


@dataclass(frozen=True)
class FileCase:
    """The bytes of an ONNX file, and what is in it; None where it is refused.

    A fact is its kind (``operator``, ``function``, ``external``, ``metadata``, ``harmful``), and two texts.
    """

    name: str
    data: bytes
    facts: set[tuple[str, str, str]] | None


def file_cases() -> Iterator[FileCase]:
    """The cases of ``files.json``."""
    for case in read("files.json")["cases"]:
        facts = case["facts"]
        known = None if facts is None else {(kind, a, b) for kind, a, b in facts}
        yield FileCase(case["name"], _message(case["file"]), known)


def _message(parts: list[Any]) -> bytes:
    return b"".join(
        bytes.fromhex(part) if isinstance(part, str) else _field(*part) for part in parts
    )


def _field(number: int, value: int | str | list[Any]) -> bytes:
    if isinstance(value, int):
        return field(number, value)
    return field(number, value.encode() if isinstance(value, str) else _message(value))


def _verdict(group: Any, case: Any, values: Any, language: str) -> dict[str, Any]:
    said = case.get("except", {}).get(language)
    if said is None and "refused" in case:
        said = group.get("except", {}).get(language)
    said = case if said is None else said
    if "refused" in said:
        why = said["why"]
        why = why if isinstance(why, str) else why[language]
        return {"values": None, "refused": said["refused"], "why": why}
    accepted = said["accepted"]
    wanted = None if accepted is None else _merged(values, accepted)
    return {"values": wanted, "refused": "", "why": ""}


def _properties(base: dict[str, Any], case: Any) -> dict[str, str]:
    texts = {key: json.dumps(value) for key, value in base.items()}
    texts |= {key: json.dumps(value) for key, value in case.get("set", {}).items()}
    for key, members in case.get("merge", {}).items():
        texts[key] = json.dumps(json.loads(texts[key]) | members)
    texts |= {key: _expanded(text) for key, text in case.get("text", {}).items()}
    for path in case.get("without", ()):
        key, _, member = path.partition("/")
        if member:
            left = json.loads(texts[key])
            del left[member]
            texts[key] = json.dumps(left)
        else:
            del texts[key]
    return texts


def _expanded(text: str | list[str | list[Any]]) -> str:
    """A text, or its parts, of which ``[part, count]`` stands ``count`` times."""
    parts = [text] if isinstance(text, str) else text
    return "".join(part if isinstance(part, str) else part[0] * part[1] for part in parts)


def entry(key: str, text: str) -> bytes:
    """A property at the end of an ONNX file."""
    return _field(_METADATA, [[1, key], [2, text]])


def _merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        k for k, v in changes.items() if isinstance(v, dict) and isinstance(values.get(k), dict)
    }
    return {**values, **changes, **{k: {**values[k], **changes[k]} for k in both}}


def _alike(wanted: Any, found: Any) -> bool:
    """Equal; numbers within the rounding of FP32."""
    if isinstance(wanted, list) and isinstance(found, list):
        return len(wanted) == len(found) and all(map(_alike, wanted, found))
    if isinstance(wanted, (int, float)) and isinstance(found, (int, float)):
        return math.isclose(wanted, found, rel_tol=1e-6, abs_tol=1e-9)
    return bool(wanted == found)


def _same(wanted: Any, found: Any) -> bool:
    """Equal; of an object, what the vectors state of it, of a long text or list its length."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(_same(value, found.get(key)) for key, value in wanted.items())
    if isinstance(wanted, list) and isinstance(found, list):
        return len(found) == len(wanted) and all(map(_same, wanted, found))
    if isinstance(wanted, int) and isinstance(found, (str, list)):
        return len(found) == wanted
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    return bool(wanted == found)
