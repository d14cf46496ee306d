"""Python reads ``spec/vectors`` as the vectors say."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, UsageError
from capsedge.runtime.files.text import printable
from capsedge.runtime.images.preprocessing import prepare
from tests import vectors
from tests.runtime.image_bits import BITS

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from capsedge.runtime.load import load_bytes
from capsedge.runtime.session.session import Session
from tests.runtime.walking import in_python


@pytest.mark.parametrize("part", range(8))
def test_metadata(part: int) -> None:
    cases = list(vectors.metadata_cases("python"))[part::8]
    faults = [fault for case in cases if (fault := _fault(case))]
    assert sum(bool(case.refused) for case in cases) > 5
    assert sum(not case.refused for case in cases) > 5
    assert not faults, "\n".join(faults)


def test_files() -> None:
    assert not [case.name for case in vectors.file_cases() if in_python(case.data) != case.facts]


def test_text() -> None:
    cases = vectors.read("text.json")["cases"]
    assert not [case["name"] for case in cases if printable(case["text"]) != case["shown"]]


def test_images() -> None:
    assert not [
        bits
        for bits in BITS
        if not bits.agree(prepare(bits.pixels, bits.preprocessing, bits.invert))
    ]


def test_predictions() -> None:
    assert not [
        fault for case in vectors.prediction_cases() if (fault := case.fault(_answer(case)))
    ]


def _answer(case: vectors.PredictionCase) -> dict[str, Any]:
    try:
        with load_bytes(case.file, threads=1) as session:
            (found,) = session.predict(np.array([case.pixels], np.uint8), **case.options)
    except UsageError:
        return {"refused": "input"}
    except ArtefactError:
        return {"refused": "file"}
    return {
        "labels": [label.name for label in found.labels],
        "scores": found.scores.tolist(),
        "score_kind": found.score_kind,
        "poses": found.poses.ravel().tolist(),
        "values": [[each.name, each.value, each.unit] for each in found.values],
    }


def test_masks() -> None:
    assert not [fault for case in vectors.mask_cases() if (fault := case.fault(_mask(case)))]


def _mask(case: vectors.MaskCase) -> NDArray[np.uint8] | None:
    try:
        with load_bytes(case.file, threads=1) as session:
            return session.predict(case.pixels, **case.options)[0].mask
    except UsageError:
        return None


def test_numbers_are_the_same_in_every_language() -> None:
    """JavaScript takes 1.0 for 1, and has 53 bits: other numbers stand in texts."""
    faults = []

    def real(digits: str) -> float:
        if float(digits).is_integer():
            faults.append(digits)
        return float(digits)

    def whole(digits: str) -> int:
        if abs(int(digits)) >= 2**53:
            faults.append(digits)
        return int(digits)

    for path in vectors.FOLDER.glob("*.json"):
        json.loads(path.read_text(encoding="utf-8"), parse_float=real, parse_int=whole)
    assert not faults


def _fault(case: vectors.MetadataCase) -> str:
    try:
        with load_bytes(case.file, threads=1) as session:
            return case.fault(_values(session), None)
    except ArtefactError as error:
        return case.fault(None, f"{error.what} {error.why}")


def _values(session: Session) -> dict[str, Any] | None:
    m = session.metadata
    if m is None:
        return None
    # What was recognized is for people; nothing is computed from it, and tests of user_metadata check it.
    values = {k: v for k, v in asdict(m).items() if k != "fused_routing"} | {
        "scores": session.roles.scores or "",
        "poses": session.roles.poses or "",
        "score_kind": "probability" if session.roles.kind == "logits" else session.roles.kind,
        "values": list(zip(m.outputs.names, m.outputs.units, strict=True)) if m.outputs else [],
    }
    if m.cascade is not None:
        values["cascade"] |= {"small": m.cascade.small.file, "large": m.cascade.large.file}
    if m.trace is not None:
        values["trace"] = values["trace"]["layers"]
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found
