"""The example of a segmentation prints the mask of Python's `predict` as a PGM file."""

from __future__ import annotations

import io
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import capsedge
from capsedge import Preprocessing
from capsedge.exporters.c.write_c import write_c
from capsedge.runtime.metadata.metadata import Outputs
from capsedge.spec.vocabularies import SEGMENTATION
from tests.exporters.c.compiled import STRICT, compiler
from tests.runtime.models import metadata, save, segmentation_model

HEIGHT, WIDTH = 8, 12


def segmentation(folder: Path, shape: tuple[int, ...], kind: str) -> Path:
    """A file whose maps have this shape, as logits or as probabilities."""
    last = len(shape) == 3 and shape[2] == 1
    maps = shape[0] if len(shape) == 3 and not last else 1
    said = metadata(
        architecture="", configuration={}, routing="", iterations=0, task=SEGMENTATION,
        class_names=("road", "tree", "sky")[: max(2, maps)],
        preprocessing=Preprocessing(HEIGHT, WIDTH, 1, layout="NHWC" if last else "NCHW"),
        outputs=Outputs(scores="mask", kind=kind),
    )  # fmt: skip
    node = "Sigmoid" if kind == "probability" else "Identity"
    model = segmentation_model(shape, properties=said.to_properties(), kind=node)
    return save(model, folder / "maps.onnx")


def printed(folder: Path, image: NDArray[np.uint8]) -> bytes:
    """What the example prints for an image in place of its zeros."""
    main = folder / "main.c"
    values = ", ".join(map(str, image.ravel()))
    text, filled = re.subn(
        r"(static uint8_t pixels\[[\d*]+\]);", rf"\1 = {{{values}}};", main.read_text()
    )
    assert filled == 1
    main.write_text(text)
    words = [compiler(), *STRICT, "-o", str(folder / "example"), str(main), str(folder / "net.c")]
    subprocess.run(words, check=True)
    return subprocess.run([folder / "example"], check=True, capture_output=True).stdout


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((3, HEIGHT, WIDTH), "logits"),
        ((1, HEIGHT, WIDTH), "logits"),
        ((HEIGHT, WIDTH), "probability"),
        ((HEIGHT, WIDTH, 1), "probability"),
    ],
    ids=["classes", "logits", "probabilities", "channels-last"],
)
def test_the_example_prints_the_mask(shape: tuple[int, ...], kind: str, tmp_path: Path) -> None:
    source = segmentation(tmp_path, shape, kind)
    write_c(source, tmp_path / "net", name="net")
    image = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH), np.uint8)
    with capsedge.load(source) as session:
        (wanted,) = session.predict(image)
    assert wanted.mask is not None
    assert len(np.unique(wanted.mask)) > 1
    data = printed(tmp_path / "net", image)
    most = len(wanted.mask_classes) - 1
    assert data.startswith(f"P2\n{WIDTH} {HEIGHT}\n{most}\n".encode())
    values = np.array(data.split()[4:], np.uint8)
    assert np.array_equal(values.reshape(HEIGHT, WIDTH), wanted.mask)
    assert Image.open(io.BytesIO(data)).size == (WIDTH, HEIGHT)
