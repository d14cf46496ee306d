"""``capsedge_decode`` and traced files against Python: the same bits, the same refusals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.runtime.zoo import default_model

from . import libcapsedge
from .libcapsedge import USAGE, Failed, Session

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(
    libcapsedge.library_path() is None or not hasattr(libcapsedge.load(), "capsedge_decode"),
    reason="libcapsedge is not built, or is older: pip install -e . with a C++ compiler",
)
RNG = np.random.default_rng(0)
POSES = RNG.uniform(-0.4, 0.4, (67, 10, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def python() -> capsedge.Session:
    return capsedge.load(default_model(), threads=1)


@pytest.fixture(scope="module")
def native() -> Session:
    return Session(default_model())


def test_sizes(native: Session):
    found = native.decoder()
    assert (found.class_count, found.pose_size) == (10, 16)
    assert (found.channels, found.height, found.width) == (1, 28, 28)


@pytest.mark.parametrize("count", [1, 3, 64, 67])
def test_poses_of_all_classes(python: capsedge.Session, native: Session, count: int):
    """More poses than one run takes, too."""
    wanted = python.decode(POSES[:count])
    assert native.decode(POSES[:count]).tobytes() == wanted.tobytes()


def test_poses_of_single_classes(python: capsedge.Session, native: Session):
    classes = RNG.integers(0, 10, len(POSES)).astype(np.int32)
    poses = np.ascontiguousarray(POSES[np.arange(len(POSES)), classes])
    assert native.decode(poses, classes).tobytes() == python.decode(poses, classes).tobytes()


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_other_precisions(tmp_path: Path, precision: str):
    path = tmp_path / "smaller.onnx"
    images = RNG.integers(0, 256, (12, 28, 28)).astype(np.uint8)
    made = capsedge.quantize(default_model(), precision=precision, calib_data=images)
    path.write_bytes(made.model)
    python, native = capsedge.load(path, threads=1), Session(path)
    assert native.decode(POSES[:3]).tobytes() == python.decode(POSES[:3]).tobytes()
    found = python.predict(images)
    poses = np.stack([each.poses for each in found])
    np.testing.assert_allclose(python.decode(poses), python.reconstruct(images), atol=2e-3)


def test_from_several_threads(python: capsedge.Session):
    session, wanted = Session(default_model()), python.decode(POSES[:2])
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: session.decode(POSES[:2]), range(12)))
    assert all(np.array_equal(each, wanted) for each in found)


def test_what_is_refused(native: Session):
    with pytest.raises(Failed, match="no room for the pictures") as error:
        native.decode(POSES[:2], room=2 * 10 * 784 - 1)
    assert error.value.code == USAGE
    one, wrong = np.zeros((1, 16), np.float32), np.array([10], np.int32)
    for classes in (wrong, -wrong):
        with pytest.raises(Failed, match="There is no class"):
            native.decode(one, classes)
    with pytest.raises(Failed, match="NaN or infinite"):
        native.decode(np.full((1, 10, 16), np.nan, np.float32))
    with pytest.raises(Failed, match="no poses"):
        native.decode(POSES[:0])


def test_models_without_a_decoder():
    parts = Session(default_model(), outputs=["lengths", "poses"])
    for session in (Session(default_model().with_name("digits-em.onnx")), parts):
        with pytest.raises(Failed, match="capsedge export --with reconstruction") as error:
            session.decoder()
        assert error.value.code == USAGE


@pytest.mark.thorough
def test_a_trace_has_the_bits_of_python(tmp_path: Path):
    pytest.importorskip("torch")
    from tests.exporters.nets import network

    path = tmp_path / "traced.onnx"
    capsedge.export(network("em"), path, extra_outputs=["trace"])
    python, native = capsedge.load(path, threads=1), Session(path)
    images = RNG.random((2, 1, 10, 10)).astype(np.float32)
    wanted, found = python.run(images), native.run({"images": images})
    assert set(found) == set(wanted)
    assert any(name.startswith("trace/") for name in found)
    for name, value in wanted.items():
        assert found[name].tobytes() == value.tobytes(), name
