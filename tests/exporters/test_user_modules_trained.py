"""A CapsNet in plain PyTorch, trained: one command, full speed, verified, INT8, and the same bits in C++."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="the reference is eager: pip install 'capsedge[export]'"
)

import capsedge  # noqa: E402
from benchmarks.own_modules import ratios  # noqa: E402
from benchmarks.plain_capsnets import STYLES, Bielski  # noqa: E402
from capsedge.datasets import ImageSet, read_split  # noqa: E402
from capsedge.models.training.losses import margin_loss  # noqa: E402
from capsedge.runtime.metadata.metadata import Preprocessing  # noqa: E402
from tests.native import libcapsedge  # noqa: E402

pytestmark = pytest.mark.slow
PREPROCESSING = Preprocessing(height=28, width=28, channels=1)
DESCRIPTION = capsedge.Description(tuple("0123456789"), PREPROCESSING)


@pytest.fixture(scope="module")
def trained(mnist: Path) -> torch.nn.Module:
    """Small, two passes over 6000 digits."""
    torch.manual_seed(2)
    model = Bielski(32, 4)
    with torch.no_grad():
        model.weights *= 10
    digits = read_split(mnist, "train", PREPROCESSING, 6000)
    x = torch.from_numpy(digits.images.reshape(-1, 1, 28, 28).astype(np.float32) / 255)
    y = torch.from_numpy(np.asarray(digits.labels))
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(2):
        for rows in torch.randperm(len(x)).split(50):
            loss = margin_loss(model(x[rows])[1], torch.nn.functional.one_hot(y[rows], 10).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def file(trained: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("own") / "caps.onnx"
    report = capsedge.export(
        trained,
        path,
        example=torch.rand(2, 1, 28, 28),
        output_names=["poses", "lengths"],
        description=DESCRIPTION,
    )
    assert report.operators["capsedge::DynamicRouting"] == 1
    return path


def test_verified(trained: torch.nn.Module, file: Path, mnist: Path) -> None:
    certificate = capsedge.verify(trained, file, limit=1000, data=mnist)
    certificate.check()
    decisions = certificate.samples["decisions"]
    assert decisions["flips"] == 0
    assert decisions["accuracy_reference"] > 0.9


def test_int8_within_a_tenth_of_a_point(file: Path, mnist: Path) -> None:
    test = read_split(mnist, "test", PREPROCESSING)
    report = capsedge.quantize(
        file,
        file.with_suffix(".int8.onnx"),
        max_drop=0.1,
        calib_data=read_split(mnist, "train", PREPROCESSING, 512).images,
        data=ImageSet("mnist", test.images, test.labels),
    )
    assert report.outcome.drop <= 0.1


@pytest.mark.skipif(libcapsedge.library_path() is None, reason="libcapsedge is not built")
def test_the_same_bits_in_c(file: Path) -> None:
    images = np.random.default_rng(0).random((5, 1, 28, 28), np.float32)
    wanted = capsedge.load(file, threads=1).run({"x": images})
    found = libcapsedge.Session(file).run({"x": images})
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values)


def test_full_size_is_exported_as_operators(tmp_path: Path) -> None:
    """All styles at the paper's size; how fast they are is the benchmark's to say."""
    found = ratios(256, 32, 0.2, tmp_path)
    assert found.keys() == {"WithOps", *(kind.__name__ for kind in STYLES)}
