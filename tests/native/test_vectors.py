"""The C++ library reads ``spec/vectors`` as the vectors say; `test_walkers` reads ``files.json``."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from tests import vectors
from tests.runtime.image_bits import BITS, Bits
from tests.runtime.models import capsule_model, metadata

from . import libcapsedge
from .libcapsedge import ARTEFACT, USAGE, Failed, Session

pytestmark = pytest.mark.skipif(
    libcapsedge.library_path() is None,
    reason="libcapsedge is not built: pip install -e . with a C++ compiler",
)
NOT_SHOWN = (
    "checkpoint_sha256", "scores", "poses", "typical_input", "origin", "cascade", "trace", "chosen_scores",
)  # fmt: skip


@pytest.mark.parametrize("refused", [False, True])
def test_metadata(refused: bool) -> None:
    cases = [case for case in vectors.metadata_cases("cpp") if bool(case.refused) == refused]
    faults = [fault for case in cases if (fault := _fault(case))]
    assert len(cases) > 80
    assert not faults, "\n".join(faults)


def test_text() -> None:
    """Messages that quote a file."""
    faults = []
    for case in vectors.read("text.json")["cases"]:
        said = metadata().to_properties() | {"capsedge.task": json.dumps(case["text"])}
        shown = case.get("except", {}).get("cpp", case)["shown"]
        with pytest.raises(Failed) as failed:
            Session(capsule_model(properties=said).SerializeToString())
        if f"task '{shown}" not in str(failed.value):
            faults.append(f"{case['name']}: {failed.value}")
    assert not faults, "\n".join(faults)


def test_images() -> None:
    def found(bits: Bits) -> libcapsedge.Array:
        return libcapsedge.prepare(bits.pixels, bits.preprocessing, bits.invert)

    assert not [bits for bits in BITS if not bits.agree(found(bits))]


def test_predictions() -> None:
    assert not [
        fault for case in vectors.prediction_cases() if (fault := case.fault(_answer(case)))
    ]


def _answer(case: vectors.PredictionCase) -> dict[str, Any]:
    try:
        session = Session(case.file)
        (found,) = session.predict([np.array([case.pixels], np.uint8)[..., None]], **case.options)
    except Failed as failed:
        return {"refused": {USAGE: "input", ARTEFACT: "file"}.get(failed.code)}
    names = session.value_names()
    return {
        "labels": [name for name, *_ in found["labels"]],
        "scores": found["scores"].tolist(),
        "score_kind": found["score_kind"],
        "poses": found["poses"].ravel().tolist(),
        "values": [[name, v, unit] for (name, unit), v in zip(names, found["values"], strict=True)],
    }


def test_masks() -> None:
    assert not [fault for case in vectors.mask_cases() if (fault := case.fault(_mask(case)))]


def _mask(case: vectors.MaskCase) -> NDArray[np.uint8] | None:
    try:
        (found,) = Session(case.file).predict([case.pixels[..., None]], **case.options)
    except Failed as failed:
        return None if failed.code == USAGE else np.zeros((0, 0), np.uint8)
    mask: NDArray[np.uint8] = found["mask"]
    return mask


def _fault(case: vectors.MetadataCase) -> str:
    try:
        session = Session(case.file)
    except Failed as failed:
        if failed.code != ARTEFACT:
            return f"{case.name}: code {failed.code}"
        return case.fault(None, str(failed))
    return case.fault(_values(session), None, NOT_SHOWN)


def _values(session: Session) -> dict[str, Any] | None:
    about = session.describe()
    if about.architecture is None:
        return None
    return {
        "architecture": about.architecture.decode(),
        "routing": about.routing.decode(),
        "iterations": about.iterations,
        "task": about.task.decode(),
        "precision": about.precision.decode(),
        "score_kind": (about.score_kind or b"").decode(),
        "class_names": session.class_names(),
        "values": [list(each) for each in session.value_names()],
        "preprocessing": _preprocessing(session),
    }


def _preprocessing(session: Session) -> dict[str, Any] | None:
    try:
        p = session.preprocessing()
    except Failed:
        return None
    return {
        "height": p.height,
        "width": p.width,
        "channels": p.channels,
        "scale": p.scale,
        "mean": p.mean[: p.mean_count],
        "std": p.std[: p.std_count],
        "resize": p.resize.decode(),
        "per_image": p.per_image.decode(),
        "layout": "NHWC" if p.channels_last else "NCHW",
        "order": "BGR" if p.bgr else "RGB",
    }
