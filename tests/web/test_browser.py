"""The package in headless Chromium, with the browser's own decoders, against Python."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.runtime.images.decoding import read_pixels
from capsedge.runtime.images.preprocessing import _to_channels, prepare
from capsedge.runtime.zoo import MODELS, zoo_model
from tests.conftest import ROOT
from tests.vectors import file_cases

from . import browser
from .package import CLOSE, assert_close_poses
from .pictures import ODD, RULES, chunk, odd_pictures, written

pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(browser.missing()), reason=browser.missing()),
]
SAMPLES = sorted((ROOT / "capsedge" / "zoo" / "samples").glob("*.png"))


def test_five_hundred_png_files(compiled: Path) -> None:
    """Of odd sizes, grey, RGB and with palettes: the same bytes as Python prepares."""
    folder = compiled / "pictures"
    folder.mkdir()
    asked, wanted = [], []
    for number, path in enumerate(written(folder, 500)):
        preprocessing = RULES[number % len(RULES)]
        asked.append(
            {"url": f"/pictures/{path.name}", "preprocessing": json.dumps(asdict(preprocessing))}
        )
        wanted.append(
            hashlib.sha256(prepare(path, preprocessing).astype("<f4").tobytes()).hexdigest()
        )
    of_blobs, of_elements, of_bitmaps = browser.calls(
        compiled,
        ("prepared", asked, "blob"),
        ("prepared", asked[:60], "element"),
        ("prepared", asked[:60], "bitmap"),
    )
    assert of_blobs == wanted
    assert of_elements == wanted[:60]
    assert of_bitmaps == wanted[:60]


def differences(folder: Path, pictures: Iterable[Path]) -> list[float]:
    """Largest difference of a level to Python for each picture below ``folder``."""
    pairs = []
    for path in pictures:
        levels = _to_channels(np.atleast_3d(read_pixels(path, path.name)), 3, invert=False)
        path.with_suffix(".levels").write_bytes(levels.astype("<f4").tobytes())
        name = f"/{path.relative_to(folder).as_posix()}"
        pairs.append([name, f"{name.rsplit('.', 1)[0]}.levels"])
    found: list[float] = browser.calls(folder, ("differences", pairs))[0]
    return found


def test_jpeg_within_two_levels(compiled: Path) -> None:
    folder = compiled / "photographs"
    folder.mkdir()
    assert max(differences(compiled, written(folder, 120, "jpg"))) <= 2


def test_what_else_pictures_have(compiled: Path) -> None:
    """docs/how-to/browser.md lists it: less than a level for alpha and 16 bits, nothing for the rest."""
    folder = compiled / "odd"
    folder.mkdir()
    found = dict(zip(ODD, differences(compiled, odd_pictures(folder)), strict=True))
    assert 0 < max(found["alpha"], found["grey16"]) < 1
    assert {name: most for name, most in found.items() if name not in ("alpha", "grey16")} == {
        name: 0 for name in ODD if name not in ("alpha", "grey16")
    }


@pytest.mark.parametrize("name", MODELS)
def test_the_zoo_on_all_samples(compiled: Path, name: str) -> None:
    path = zoo_model(name)
    assert path is not None
    shutil.copy(path, compiled)
    for sample in SAMPLES:
        shutil.copy(sample, compiled)
    names = [f"/{sample.name}" for sample in SAMPLES]
    one, two = browser.calls(
        compiled,
        ("answers", f"/{path.name}", names, 1),
        ("answers", f"/{path.name}", names[:2], 2),
    )
    assert one["isolated"]
    assert (one["provider"], one["fallback"], one["file"]) == ("wasm", None, path.name)
    python = capsedge.load(path, threads=1)
    for sample, found in zip(SAMPLES, one["found"], strict=True):
        segments = python.roles.segmentation
        wanted = python.predict(sample, top_k=None if segments else 3)[0]
        assert (found["atypical"] or "") == wanted.atypical
        if segments:
            assert wanted.mask is not None
            assert (np.array(found["mask"]) != wanted.mask.ravel()).mean() <= 2e-3
            continue
        assert [each["label"] for each in found["ranking"]] == [each.name for each in wanted.labels]
        np.testing.assert_allclose(found["scores"], wanted.scores, **CLOSE)
        assert_close_poses(np.asarray(found["poses"]), wanted.poses.ravel())
        if found["pictures"]:
            pictures = python.decode(wanted.poses)
            np.testing.assert_allclose(found["pictures"], pictures.ravel(), **CLOSE)
    for found, same in zip(two["found"], one["found"], strict=False):
        np.testing.assert_allclose(found["scores"], same["scores"], **CLOSE)


def test_strangers_are_refused(compiled: Path) -> None:
    """Files and images, in words; the page lives on."""
    model, sample = zoo_model(MODELS[0]), SAMPLES[0]
    assert model is not None
    shutil.copy(model, compiled)
    shutil.copy(sample, compiled)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 65535, 65535, 8, 0, 0, 0, 0))
    files = {
        "external.onnx": next(case.data for case in file_cases() if case.name == "initializer"),
        "cut.onnx": model.read_bytes()[:100_000],
        "bomb.png": b"\x89PNG\r\n\x1a\n" + header + chunk(b"IEND", b""),
        "text.png": b"<svg onload=alert(1)></svg>",
        "damaged.png": sample.read_bytes()[:100],
    }
    for name, data in files.items():
        (compiled / name).write_bytes(data)
    good = f"/{model.name}"
    cases = {
        ("/external.onnx",): ("file", "other files"),
        ("/cut.onnx",): ("file", "not a complete ONNX file"),
        (good, "/bomb.png"): ("limit", "65,535 x 65,535"),
        (good, "/text.png"): ("input", "neither a PNG nor a JPEG"),
        (good, "/damaged.png"): ("input", "cannot decode"),
    }
    asked = [("refused", *case) for case in cases]
    *refused, fine = browser.calls(compiled, *asked, ("refused", good, f"/{sample.name}"))
    assert fine is None
    for found, (code, text) in zip(refused, cases.values(), strict=True):
        assert found["ours"]
        assert found["code"] == code
        assert text in found["message"]
