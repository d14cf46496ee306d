"""Pictures and their reading, for the tests of what sessions take."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from PIL import Image

from capsedge.runtime.images.inputs import ImageReader
from capsedge.runtime.metadata.metadata import Preprocessing
from tests.runtime.models import SIDE

PLAIN = Preprocessing(8, 8, 1)
COLOUR = Preprocessing(8, 8, 3, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
LEFT = np.zeros((SIDE, SIDE), np.uint8)
LEFT[:, : SIDE // 2] = 255
quick = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def inputs(images: Any, preprocessing: Preprocessing = PLAIN, **options: Any) -> list[Any]:
    return list(ImageReader(preprocessing, **options).images(images))


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()
