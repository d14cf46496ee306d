"""Predictions of a segmentation over the protocol: masks of the images' own sizes."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import capsedge
from capsedge.errors import UsageError
from capsedge.serving.request_bodies import InferRequest, RequestedOutput, RequestInput
from capsedge.serving.requests import MASK, MASK_PNG, mask_outputs, read_request
from capsedge.serving.responses import model_metadata, respond
from capsedge.spec import limits
from tests.runtime.test_masks import segmenter
from tests.serving.conftest import ask_binary, ask_grpc, ask_http
from tests.serving.running import Server


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_masks_have_the_sizes_of_the_images() -> None:
    rng = np.random.default_rng(1)
    files = [png(rng.integers(0, 256, size, np.uint8)) for size in ((8, 12), (20, 9))]
    with segmenter() as session:
        asked = RequestInput("images", "BYTES", [2], list(files))
        request = read_request(InferRequest([asked], parameters={"predictions": True}), session)
        assert request.sizes == ((8, 12), (20, 9))
        outputs = session.run(request.arrays)
        answer = respond(session, request, outputs, "m", "")
        wanted = [found.to_dict() for found in session.predict(files)]
    assert json.loads(answer.parameters["predictions"]) == wanted
    assert [each["mask"]["height"] for each in wanted] == [8, 20]


def test_tensors_have_masks_of_the_input() -> None:
    with segmenter() as session:
        tensor = RequestInput("images", "FP32", [1, 1, 8, 12], np.zeros((1, 1, 8, 12), np.float32))
        request = read_request(InferRequest([tensor], parameters={"predictions": True}), session)
        answer = respond(session, request, session.run(request.arrays), "m", "")
    (found,) = json.loads(answer.parameters["predictions"])
    assert (found["mask"]["height"], found["mask"]["width"]) == (8, 12)


def asked_for(*outputs: str, files: Sequence[bytes], **parameters: object) -> InferRequest:
    images = RequestInput("images", "BYTES", [len(files)], list(files))
    return InferRequest([images], [RequestedOutput(name) for name in outputs], parameters)


@pytest.mark.parametrize("protocol", ["json", "binary", "grpc"])
def test_masks_are_sent_as_a_tensor_and_as_files(
    protocol: str, server: Server, files: dict[str, Path]
) -> None:
    """The masks of Python's `predict`, to NVIDIA's client."""
    rng = np.random.default_rng(1)
    sent = [png(rng.integers(0, 256, (20, 9), np.uint8)) for _ in range(3)]
    given = [base64.b64encode(file).decode() for file in sent] if protocol == "json" else sent
    arrays = {"images": np.array(given, object)}
    ask = {"json": ask_http, "binary": ask_binary, "grpc": ask_grpc}[protocol]
    answer = ask(server, "maps", arrays, [MASK, MASK_PNG])
    with capsedge.load(files["maps"]) as session:
        wanted = list(session.predict(sent))
    assert list(answer) == [MASK, MASK_PNG]
    assert answer[MASK].dtype == np.uint8
    assert np.array_equal(answer[MASK], np.stack([found.mask for found in wanted]))  # type: ignore[arg-type]
    for file, found in zip(answer[MASK_PNG], wanted, strict=True):
        data = base64.b64decode(file) if protocol == "json" else file
        assert np.array_equal(np.array(Image.open(io.BytesIO(data))), found.mask)


def test_masks_follow_the_threshold_and_predictions_are_sent_on_request() -> None:
    files = [png(np.full((8, 12), 90, np.uint8))]
    with segmenter(1) as session:
        for threshold in (0.2, 0.9):
            request = asked_for(MASK, "mask", files=files, threshold=threshold)
            answer = respond(
                session, read := read_request(request, session), session.run(read.arrays), "m", ""
            )
            (wanted,) = session.predict(files, threshold=threshold)
            assert np.array_equal(answer.outputs[MASK][0], wanted.mask)
            assert list(answer.outputs) == ["mask", MASK]
            assert not answer.parameters
        both = read_request(asked_for(MASK, files=files, predictions=True), session)
        assert "predictions" in respond(session, both, session.run(both.arrays), "m", "").parameters


def test_a_tensor_refuses_masks_of_different_sizes() -> None:
    files = [png(np.zeros(size, np.uint8)) for size in ((8, 12), (20, 9))]
    with segmenter() as session:
        request = read_request(asked_for(MASK, files=files), session)
        with pytest.raises(UsageError, match=r"different sizes, such as 8x12 and 20x9"):
            respond(session, request, session.run(request.arrays), "m", "")
        request = read_request(asked_for(MASK_PNG, files=files), session)
        answer = respond(session, request, session.run(request.arrays), "m", "")
    assert [Image.open(io.BytesIO(file)).size for file in answer.outputs[MASK_PNG]] == [
        (12, 8),
        (9, 20),
    ]


def test_masks_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [png(np.zeros((60, 60), np.uint8))]
    with segmenter() as session:
        request = read_request(asked_for(MASK_PNG, files=files), session)
        outputs = session.run(request.arrays)
        monkeypatch.setattr(limits, "REQUEST_VALUES", 3599)
        with pytest.raises(UsageError, match="too large"):
            respond(session, request, outputs, "m", "")


def test_the_metadata_lists_masks_of_segmentations_alone() -> None:
    with segmenter() as session:
        listed = {each["name"]: each for each in model_metadata(session, "m", "")["outputs"]}
        assert listed[MASK] == {"name": MASK, "datatype": "UINT8", "shape": [-1, -1, -1]}
        assert listed[MASK_PNG] == {"name": MASK_PNG, "datatype": "BYTES", "shape": [-1]}
    with capsedge.load("digits-em") as session:
        assert mask_outputs(session) == ()
