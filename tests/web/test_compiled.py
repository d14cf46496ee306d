"""Compiled networks in the package: Python's answers without ONNX Runtime; other files are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.exporters.c import wasm
from capsedge.exporters.export_options import ExportOptions
from capsedge.models.checkpoint import load_checkpoint
from capsedge.runtime import zoo
from tests.runtime.models import CLASSES, POSE, SIDE, capsule_model
from tests.web.package import CLOSE, Package, Refused
from tests.web.test_values import SAMPLES, TRACED, compare, pixels_of

pytestmark = pytest.mark.thorough


def compiled_bytes(path: Path) -> bytes:
    """The network of a file in WebAssembly; without the compiler the test is skipped."""
    if not wasm.is_available():
        pytest.skip("needs ziglang: pip install 'capsedge[wasm]'")
    return wasm.compile_network(path.read_bytes(), path, "net").data


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A small file with its decoder."""
    path = tmp_path / "small.onnx"
    path.write_bytes(capsule_model(reconstruction=True).SerializeToString())
    return path


@pytest.mark.parametrize("name", zoo.MODELS)
def test_the_zoo_answers_like_python(web: Package, name: str) -> None:
    path = zoo.zoo_model(name)
    assert path is not None
    python, session = capsedge.load(path), web.load(compiled_bytes(path), op="loadCompiled")
    for sample in SAMPLES:
        compare(python, session, pixels_of(sample))
    known = session.known["description"]
    assert (known["routing"], known["labels"]) == (
        python.metadata.routing,  # type: ignore[union-attr]
        [*python.metadata.class_names],  # type: ignore[union-attr]
    )
    assert known["hasDecoder"] == any(port.name == "reconstruction" for port in python.outputs)
    session.close()


def test_a_trace_and_pictures(web: Package, tmp_path: Path) -> None:
    path = tmp_path / "traced.onnx"
    model = load_checkpoint(zoo.zoo_checkpoint("digits-small"))
    outputs = ("reconstruction", "trace") if model.decoder is not None else ("trace",)
    capsedge.export(model, path, ExportOptions(extra_outputs=outputs))
    session = web.load(compiled_bytes(path), op="loadCompiled")
    general = web.load(path.read_bytes())
    image = pixels_of(SAMPLES[5])
    answer, found = session.predict(image, trace=True)
    wanted_answer, wanted = general.predict(image, trace=True)
    assert answer["trace"] == wanted_answer["trace"]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, **TRACED)


def test_pictures_of_all_classes_and_of_one(web: Package, small: Path) -> None:
    python, session = capsedge.load(small), web.load(compiled_bytes(small), op="loadCompiled")
    poses = np.random.default_rng(2).normal(0, 1, (3, CLASSES, POSE)).astype(np.float32)
    np.testing.assert_allclose(session.decode(poses), python.decode(poses), **CLOSE)
    one = np.ascontiguousarray(poses[:, 1])
    np.testing.assert_allclose(session.decode(one, 1), python.decode(one, 1), **CLOSE)
    for wrong, index, message in ((poses[0, 0], None, "values"), (poses[0], 10, "class is 10")):
        with pytest.raises(Refused, match=message) as error:
            session.decode(wrong, index)
        assert error.value.code == "input"
    compare(python, session, np.zeros((SIDE, SIDE, 1), np.uint8))


def test_what_is_no_compiled_network_is_refused(web: Package, small: Path) -> None:
    data = compiled_bytes(small)
    other = b"\0asm\1\0\0\0"
    section = wasm.custom_section
    text = data[data.rindex(b"\x08capsedge{") + 9 :]
    changed = data.replace(b'"kind":"capsedge-wasm"', b'"kind":"capsedge-what"')
    later = data.replace(b'"schema":1', b'"schema":9')
    metadata = data.replace(b"capsedge.class_names", b"capsedge.class_namez")
    for file, code, said in (
        (small.read_bytes(), "file", "not WebAssembly"),
        (b"", "file", "not WebAssembly"),
        (data[:2000], "runtime", "cannot be compiled"),
        (other, "file", "another program"),
        (other + section("capsedge", b"[]"), "file", "another kind"),
        (other + section("capsedge", b"\xff"), "file", "not a network"),
        (other + section("capsedge", text), "file", "functions are missing"),
        (changed, "file", "another kind"),
        (later, "file", "another version"),
        (metadata, "metadata", "class_namez"),
    ):
        refused = web.refused("loadCompiled", file, id=0)
        assert refused is not None, said
        assert refused.code == code, (said, str(refused))
        assert said in str(refused)
