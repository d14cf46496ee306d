"""Predictions of a segmentation over the protocol: masks of the images' own sizes."""

from __future__ import annotations

import io
import json

import numpy as np
from PIL import Image

from capsedge.serving.request_bodies import InferRequest, Input
from capsedge.serving.requests import read_request
from capsedge.serving.responses import respond
from tests.runtime.test_masks import segmenter


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def test_masks_have_the_sizes_of_the_images() -> None:
    rng = np.random.default_rng(1)
    files = [png(rng.integers(0, 256, size, np.uint8)) for size in ((8, 12), (20, 9))]
    with segmenter() as session:
        asked = Input("images", "BYTES", [2], list(files))
        request = read_request(InferRequest([asked], parameters={"predictions": True}), session)
        assert request.sizes == ((8, 12), (20, 9))
        outputs = session.run(request.arrays)
        answer = respond(session, request, outputs, "m", "")
        wanted = [found.to_dict() for found in session.predict(files)]
    assert json.loads(answer.parameters["predictions"]) == wanted
    assert [each["mask"]["height"] for each in wanted] == [8, 20]


def test_tensors_have_masks_of_the_input() -> None:
    with segmenter() as session:
        tensor = Input("images", "FP32", [1, 1, 8, 12], np.zeros((1, 1, 8, 12), np.float32))
        request = read_request(InferRequest([tensor], parameters={"predictions": True}), session)
        answer = respond(session, request, session.run(request.arrays), "m", "")
    (found,) = json.loads(answer.parameters["predictions"])
    assert (found["mask"]["height"], found["mask"]["width"]) == (8, 12)
