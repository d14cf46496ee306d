"""Networks of ``spec/vectors/predictions.json`` as C give the scores, poses and values stated there.

What C leaves to its caller, the test does: the softmax or sigmoid of logits. It does not choose classes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capsedge.runtime.metadata.metadata import ModelMetadata
from capsedge.runtime.onnx_file.summary import summarize
from tests import vectors
from tests.exporters.c.compiled import Compiled

Floats = NDArray[np.floating[Any]]


@pytest.mark.thorough
def test_predictions(tmp_path: Path) -> None:
    networks: dict[bytes, Compiled] = {}
    checked, faults = 0, []
    for case in vectors.prediction_cases():
        if "refused" in case.answer:  # options, and NaN, are the caller's
            continue
        if case.file not in networks:
            source = tmp_path / f"{len(networks)}.onnx"
            source.write_bytes(case.file)
            networks[case.file] = Compiled(source, source.with_suffix(""))
        found = _answer(networks[case.file], case)
        wrong = case.fault({**case.answer, **found})
        faults += [wrong] if wrong else []
        checked += 1
    assert checked > 60
    assert not faults, "\n".join(faults)


def _answer(network: Compiled, case: vectors.PredictionCase) -> dict[str, Any]:
    """The numbers of an answer: scores and poses, or values with their names and units."""
    metadata = ModelMetadata.from_properties(summarize(case.file).metadata)
    assert metadata is not None
    outputs = metadata.outputs
    assert outputs is not None
    pixels = np.array(case.pixels, np.uint8).reshape(1, -1, 1)
    found = network.run(network.prepare(pixels))
    if outputs.values:
        values = np.concatenate([found[name].ravel() for name in outputs.values])
        named = zip(outputs.names, values.tolist(), outputs.units, strict=True)
        return {"values": [[*each] for each in named]}
    scores = found[outputs.scores][0].astype(np.float64)
    if outputs.kind == "logits":
        scores = _sigmoid(scores) if metadata.task == "multi-label" else _softmax(scores)
    poses = found[outputs.poses].ravel().tolist() if outputs.poses else []
    return {"scores": scores.tolist(), "poses": poses}


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def _softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max())
    return e / e.sum()
