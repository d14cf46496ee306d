"""``verify`` of a folder of C: the source that is compiled, what comes out, and what is refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("torch", reason="the reference: pip install 'capsedge[export]'")

import capsedge
from capsedge.errors import ArtefactError, EnvironmentProblem, UsageError
from capsedge.exporters.c import toolchain
from capsedge.exporters.c.write_c import write_c
from capsedge.runtime.zoo import zoo_checkpoint, zoo_model
from capsedge.verification import compiled_c
from capsedge.verification.compiled_c import open_folder
from tests.exporters.c.compiled import compiler
from tests.exporters.c.test_inputs import fusion

FILE = zoo_model("digits-attention")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    assert FILE is not None
    write_c(FILE, tmp_path / "net")
    return tmp_path / "net"


@pytest.fixture
def _nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        pytest.fail("a compiler was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.mark.thorough
def test_a_folder_is_compared_with_its_file(folder: Path) -> None:
    """No checkpoint and no code is needed: what the C was made from is the reference."""
    compiler()
    certificate = capsedge.verify(None, folder, made_from=FILE, limit=8)
    assert certificate.passed, certificate.failures
    assert [link.kind for link in certificate.chain] == ["onnx", "c"]
    for part in (certificate.samples, certificate.hard_cases):
        assert all(output["max_abs"] > 0 for output in part["outputs"])


@pytest.mark.thorough
def test_a_folder_is_compared_with_pytorch(folder: Path) -> None:
    compiler()
    checkpoint = zoo_checkpoint("digits-attention")
    certificate = capsedge.verify(checkpoint, folder, made_from=FILE, limit=8)
    assert certificate.passed, certificate.failures
    assert [link.kind for link in certificate.chain] == ["checkpoint", "onnx", "c"]
    made = certificate.chain[-1]
    assert made.file == "digits_attention.c"
    assert made.bytes == (folder / made.file).stat().st_size
    assert made.facts["compiler"]


@pytest.mark.thorough
def test_a_folder_of_several_inputs(tmp_path: Path) -> None:
    """Of floats and integers, from random values and from arrays by name."""
    compiler()
    source, folder = tmp_path / "m.onnx", tmp_path / "net"
    onnx.save(fusion("uint8", "int8"), source)
    for batch in (1, 3):
        write_c(source, folder, name="net", batch=batch)
        with open_folder(folder, source) as session:
            assert [(p.name, p.dtype, p.shape) for p in session.backend.inputs] == [
                ("image", "uint8", (batch, 1, 9, 5)),
                ("features", "int8", (batch, 5)),
            ]
            assert session.backend.batches.fixed == batch
        rng = np.random.default_rng(0)
        rows = {
            "features": rng.integers(-128, 128, (7, 5)).astype(np.int8),
            "image": rng.integers(0, 256, (7, 1, 9, 5)).astype(np.uint8),
        }
        for inputs in (None, rows):
            certificate = capsedge.verify(None, folder, made_from=source, inputs=inputs, limit=7)
            assert certificate.passed, certificate.failures
            assert certificate.samples["images"] == 7


@pytest.mark.thorough
def test_wrong_results_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler()
    generated = compiled_c.generate_c_folder

    def doubled(*given: Any) -> Any:
        files, description = generated(*given)
        name = "digits_attention.c"
        text = files[name].decode()
        start = "CAPS_INLINE void caps_softmax(float *x, int n, int stride, int leaky) {"
        changed = text.replace(start, f"{start} x[0] += 1.0f;")
        assert changed != text
        (folder / name).write_text(changed)
        return {**files, name: changed.encode()}, description

    monkeypatch.setattr(compiled_c, "generate_c_folder", doubled)
    for reference in (None, zoo_checkpoint("digits-attention")):
        certificate = capsedge.verify(reference, folder, made_from=FILE, limit=8)
        assert not certificate.passed


@pytest.mark.sample(1)
@pytest.mark.usefixtures("_nothing_is_compiled")
@pytest.mark.parametrize("name", ["digits_attention.c", "digits_attention.h"])
def test_changed_source_is_not_compiled(folder: Path, name: str) -> None:
    assert FILE is not None
    (folder / name).write_text((folder / name).read_text() + "\n")
    with pytest.raises(ArtefactError, match="is not what capsedge writes"):
        open_folder(folder, FILE)
    (folder / name).unlink()
    with pytest.raises(UsageError, match="no such file"):
        open_folder(folder, FILE)


@pytest.mark.usefixtures("_nothing_is_compiled")
def test_a_description_names_nothing_but_its_network(folder: Path) -> None:
    assert FILE is not None
    path = folder / "digits_attention.json"
    text = path.read_text()
    for changed, error in (
        (text.replace('"digits_attention"', '"../../evil"'), UsageError),
        (text.replace('"digits_attention"', "7"), ArtefactError),
        (text.replace('"source"', '"origin"'), ArtefactError),
        (re.sub(r'("shape": \[\s*)1', r"\g<1>0", text, count=1), ArtefactError),
        (re.sub(r'("shape": \[\s*)1', r"\g<1>99999999", text, count=1), ArtefactError),
    ):
        path.write_text(changed)
        with pytest.raises(error):
            open_folder(folder, FILE)


@pytest.mark.usefixtures("_nothing_is_compiled")
def test_what_does_not_go_together_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        capsedge.verify(zoo_checkpoint("digits-attention"), folder)
    with pytest.raises(ArtefactError, match="was not made from"):
        capsedge.verify(None, folder, made_from=zoo_model("digits-em"))
    with pytest.raises(UsageError, match="is not a folder of C"):
        capsedge.verify(None, tmp_path, made_from=FILE)
    assert FILE is not None
    with pytest.raises(UsageError, match="is not a folder of C"):
        capsedge.verify(None, FILE, made_from=FILE)


@pytest.mark.thorough
def test_without_a_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FILE is not None
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(EnvironmentProblem, match="No C compiler"):
        open_folder(folder, FILE)


@pytest.mark.thorough
def test_a_crash_of_the_network_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler()
    generated = compiled_c.generate_c_folder

    def crashing(*given: Any) -> Any:
        files, description = generated(*given)
        name = "digits_attention.c"
        start = "  uint8_t *const memory = (uint8_t *)arena;\n"
        changed = files[name].decode().replace(start, f"{start}  *(volatile int *)8 = 1;\n")
        (folder / name).write_text(changed)
        return {**files, name: changed.encode()}, description

    monkeypatch.setattr(compiled_c, "generate_c_folder", crashing)
    assert FILE is not None
    with open_folder(folder, FILE) as session, pytest.raises(ArtefactError) as raised:
        session.run(np.zeros(session.backend.inputs[0].shape, np.float32))
    assert "ended by SIGSEGV" in raised.value.why
    assert raised.value.exit_code == 6


def test_a_tool_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    words = ["sh", "-c", "sleep 60 & echo $! > number; wait"]
    with pytest.raises(subprocess.TimeoutExpired):
        toolchain.run(words, tmp_path, seconds=2)
    number = (tmp_path / "number").read_text().strip()
    until = time.monotonic() + 20
    while _runs(number) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(number)


def _runs(number: str) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
