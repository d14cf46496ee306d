"""libcapsedge against Python: the same numbers, the same refusals, a status for every wrong call."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import capsedge
from capsedge.errors import CapsedgeError
from capsedge.runtime.backends.native_library import find_embedding
from capsedge.runtime.files.formats import identify_bytes
from capsedge.runtime.images.decoding import read_image
from capsedge.runtime.onnx_file.summary import summarize
from capsedge.runtime.zoo import default_model
from capsedge.spec.signatures import NAMES, SIGNATURES, UNOPENED

from . import libcapsedge
from .libcapsedge import ARTEFACT, ENVIRONMENT, USAGE, Array, Failed, Session

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.skipif(
    libcapsedge.library_path() is None,
    reason="libcapsedge is not built: pip install -e . with a C++ compiler",
)
ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "capsedge" / "runtime" / "native" / "libcapsedge" / "include" / "capsedge.h"
SAMPLES = sorted((ROOT / "capsedge" / "zoo" / "samples").glob("*.png"))


def same(found: list[dict[str, object]], wanted: list[capsedge.Prediction]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["score_kind"] == theirs.score_kind
        np.testing.assert_array_equal(ours["scores"], theirs.scores)
        np.testing.assert_array_equal(ours["poses"], theirs.poses)
        labels = ours["labels"]
        assert isinstance(labels, list)
        assert [x[:3] for x in labels] == [(x.name, x.index, x.score) for x in theirs.labels]
        for label, wanted_label in zip(labels, theirs.labels, strict=True):
            np.testing.assert_array_equal(label[3], wanted_label.pose)


# The numbers of Python


@pytest.mark.thorough
@pytest.mark.parametrize(("extra", "ops"), [([], "fused"), (["couplings"], "mixed")])
def test_it_says_what_really_runs(tmp_path: Path, extra: list[str], ops: str) -> None:
    pytest.importorskip("torch")
    from tests.exporters.nets import network

    path = tmp_path / "network.onnx"
    capsedge.export(network("attention"), path, extra_outputs=extra)
    assert capsedge.load(path).backend.ops == ops
    assert Session(path).describe().ops.decode() == ops
    assert Session(path, ops="portable").describe().ops == b"portable"


@pytest.mark.parametrize("ops", ["auto", "portable"])
def test_zoo_models_give_the_bits_of_python(zoo_model: Path, ops: str) -> None:
    python = capsedge.load(zoo_model, threads=1, ops=ops)
    native = Session(zoo_model, ops=ops)
    assert native.describe().ops.decode() == python.backend.ops
    rng = np.random.default_rng(0)
    for batch in (1, 3, 0):
        x = rng.random((batch, *python.inputs[0].shape[1:]), np.float32)
        wanted, found = python.run(x), native.run({python.inputs[0].name: x})
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert found[name].dtype == wanted[name].dtype
            assert found[name].shape == wanted[name].shape
            assert found[name].tobytes() == wanted[name].tobytes(), name
    images = [read_image(path) for path in SAMPLES]
    images += [rng.integers(0, 256, (40 + i, 90 - i, 3)).astype(np.uint8) for i in range(6)]
    for options in ({}, {"top_k": 4}, {"threshold": 0.1}, {"top_k": 2, "threshold": 0.3}):
        same(native.predict(images, **options), python.predict(images, **options))
    same(native.predict(images[:3], invert=True), python.predict(images[:3], invert=True))


def test_more_images_than_one_run_takes() -> None:
    python, native = (
        capsedge.load(default_model(), threads=1),
        Session(default_model()),
    )
    rng = np.random.default_rng(2)
    images = [rng.integers(0, 256, (20 + i, 90 - i, 3)).astype(np.uint8) for i in range(67)]
    same(native.predict(images), python.predict(images))


def test_fewer_outputs_are_computed_alike() -> None:
    """A decoder that nobody asked for is cut off; the rest is the same."""
    whole, part = Session(default_model()), Session(default_model(), outputs=["poses", "lengths"])
    assert list(part.ports("output")) == ["lengths", "poses"]
    x = np.random.default_rng(1).random((2, 1, 28, 28), np.float32)
    found, wanted = part.run({"images": x}), whole.run({"images": x})
    for name in found:
        np.testing.assert_array_equal(found[name], wanted[name])
    with pytest.raises(Failed, match="has no output 'reconstruction'"):
        part.run({"images": x}, {"reconstruction": 1 << 20})
    images = [read_image(path) for path in SAMPLES[:2]]
    same(
        part.predict(images),
        capsedge.load(default_model(), threads=1).predict(images),
    )


def test_what_a_model_says_of_itself() -> None:
    python, native = capsedge.load(default_model()), Session(default_model())
    metadata = python.metadata
    assert metadata is not None
    d = native.describe()
    assert (d.architecture.decode(), d.routing.decode(), d.task.decode()) == (
        metadata.architecture,
        metadata.routing,
        metadata.task,
    )
    assert (d.iterations, d.precision.decode(), d.batch) == (3, "fp32", -1)
    assert native.class_names() == list(metadata.class_names)
    for kind, ports in (("input", python.inputs), ("output", python.outputs)):
        found = native.ports(kind)
        assert list(found) == [port.name for port in ports]
        for port in ports:
            shape = [d if isinstance(d, int) else -1 for d in port.shape]
            assert found[port.name] == (port.dtype, shape)
    p, wanted = native.preprocessing(), metadata.preprocessing
    assert wanted is not None
    assert (p.height, p.width, p.channels, p.scale) == (28, 28, 1, wanted.scale)
    assert tuple(p.mean[: p.mean_count]) == wanted.mean
    assert p.resize.decode() == wanted.resize
    parity = native.property("capsedge.parity")
    assert parity is not None
    assert json.loads(parity) == metadata.parity
    assert native.property("capsedge.nothing") is None


def test_counters() -> None:
    session = Session(default_model())
    x = np.zeros((3, 1, 28, 28), np.float32)
    session.run({"images": x})
    libcapsedge.call("capsedge_warm_up", session.handle, ctypes.c_int64(4), 2)
    session.predict([np.zeros((9, 9, 1), np.uint8)] * 70)
    with pytest.raises(Failed):
        session.run({"images": x[0]})
    c = session.counters()
    assert (c.runs, c.images, c.failed) == (5, 3 + 8 + 70, 1)
    assert 0 < c.longest_run_ns <= c.run_ns
    assert c.prepare_ns > 0


def test_eight_threads_over_one_session() -> None:
    session = Session(default_model(), threads=2)
    images = [[read_image(path)] for path in SAMPLES[:8]]
    alone = [session.predict(image) for image in images]

    def work(k: int) -> bool:
        return all(
            np.array_equal(session.predict(images[k])[0]["poses"], alone[k][0]["poses"])
            for _ in range(20)
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


# Wrong use


def test_wrong_tensors() -> None:
    session = Session(default_model())
    x = np.zeros((1, 1, 28, 28), np.float32)
    for inputs, rooms, message in (
        ({"images": x[0]}, None, r"shape \[1, 28, 28\].*\n.*\[N, 1, 28, 28\]"),
        ({"images": np.zeros((1, 3, 28, 28), np.float32)}, None, r"\[1, 3, 28, 28\]"),
        ({"images": x.astype(np.float64)}, None, r"type float64.\nExpected: float32"),
        ({"images": x + np.nan}, None, "NaN or infinite"),
        ({"images": x + np.inf}, None, "NaN or infinite"),
        ({"images": x - np.float32(2.0**32)}, None, r"2\^32"),
        ({"pictures": x}, None, "no input 'pictures'.\nIts inputs: images"),
        ({}, None, "has 1 inputs, and 0 were given"),
        ({"images": x, "more": x}, None, "has 1 inputs, and 2 were given"),
        ({"images": x}, {"lengths": 39}, r"no room.\n.*takes 40 bytes; given: 39"),
        ({"images": x}, {"scores": 40}, "no output 'scores'"),
        ({"images": x}, {}, "No output was requested"),
    ):
        with pytest.raises(Failed, match=message) as failed:
            session.run(inputs, rooms)
        assert failed.value.code == USAGE
    assert session.counters().failed == 12
    below = np.full_like(x, np.nextafter(np.float32(2**32), np.float32(0)))
    assert all(np.isfinite(value).all() for value in session.run({"images": below}).values())


def test_sizes_that_lie() -> None:
    session = Session(default_model())
    x = np.zeros((1, 1, 28, 28), np.float32)
    room = np.zeros(1000, np.uint8)
    one = ctypes.c_size_t(1)

    def run(**changes: object) -> None:
        given = libcapsedge.Tensor(b"images", x.ctypes.data, x.nbytes, 1, 4)
        given.shape[:4] = x.shape
        found = libcapsedge.Tensor(b"lengths", room.ctypes.data, room.size)
        for name, value in changes.items():
            setattr(found if name == "room" else given, "data" if name == "room" else name, value)
        libcapsedge.call(
            "capsedge_run", session.handle, ctypes.byref(given), one, ctypes.byref(found), one
        )

    run()
    for changes, message in (
        ({"bytes": x.nbytes - 4}, "3132 bytes.\nIts shape takes 3136"),
        ({"data": None}, "has 0 bytes"),
        ({"room": None}, "no memory"),
        ({"rank": 9}, "shape"),
        ({"rank": -1}, "shape"),
        ({"type": 99}, "type unknown"),
        ({"shape": (ctypes.c_int64 * 8)(2**62, 1, 28, 28)}, "fits no memory"),
        ({"shape": (ctypes.c_int64 * 8)(-1, 1, 28, 28)}, "shape"),
    ):
        with pytest.raises(Failed, match=message) as failed:
            run(**changes)
        assert failed.value.code == USAGE


def test_null_and_closed_and_foreign_handles() -> None:
    session = Session(default_model())
    closed = Session(default_model())
    closed.close()
    prediction = ctypes.c_void_p()
    libcapsedge.call("capsedge_prediction_create", ctypes.byref(prediction))
    image = libcapsedge.image_of(np.zeros((4, 4, 1), np.uint8))
    description = libcapsedge.sized(libcapsedge.Description)
    bad = [None, closed.handle, prediction, ctypes.c_void_p(0xDEADBEEF), ctypes.c_void_p(1)]
    one = ctypes.c_size_t(1)
    for handle in bad:
        for function, arguments in (
            ("capsedge_close", []),
            ("capsedge_describe", [ctypes.byref(description)]),
            ("capsedge_run", [None, one, None, one]),
            ("capsedge_predict", [ctypes.byref(image), one, None, prediction]),
            ("capsedge_warm_up", [ctypes.c_int64(1), 1]),
            ("capsedge_class_name", [0, ctypes.byref(ctypes.c_char_p())]),
        ):
            with pytest.raises(Failed, match=r"null|not an open session") as failed:
                libcapsedge.call(function, handle, *arguments)
            assert failed.value.code == USAGE
    for function, arguments in (
        ("capsedge_describe", [None]),
        ("capsedge_run", [None, one, None, one]),
        ("capsedge_predict", [None, one, None, prediction]),
        ("capsedge_predict", [ctypes.byref(image), one, None, None]),
        ("capsedge_class_name", [0, None]),
        ("capsedge_class_name", [10, ctypes.byref(ctypes.c_char_p())]),
        ("capsedge_property", [None, ctypes.byref(ctypes.c_char_p())]),
        ("capsedge_input", [one, ctypes.byref(libcapsedge.sized(libcapsedge.Port))]),
        ("capsedge_input", [ctypes.c_size_t(0), None]),
        ("capsedge_read_counters", [None]),
        ("capsedge_warm_up", [ctypes.c_int64(0), 1]),
    ):
        with pytest.raises(Failed) as failed:
            libcapsedge.call(function, session.handle, *arguments)
        assert failed.value.code == USAGE
    result = libcapsedge.sized(libcapsedge.Result)
    with pytest.raises(Failed, match="holds 0"):
        libcapsedge.call(
            "capsedge_prediction_result", prediction, ctypes.c_size_t(0), ctypes.byref(result)
        )
    libcapsedge.call("capsedge_prediction_close", prediction)
    with pytest.raises(Failed, match="not an open prediction"):
        libcapsedge.call("capsedge_prediction_close", prediction)


def test_wrong_options() -> None:
    session = Session(default_model())
    pixels = [np.zeros((4, 4, 1), np.uint8)]
    for options, message in (
        ({"top_k": -1}, "top_k is -1"),
        ({"threshold": 1.5}, "threshold is 1.5"),
        ({"threshold": float("nan")}, "threshold is"),
    ):
        with pytest.raises(Failed, match=message) as failed:
            session.predict(pixels, **options)
        assert failed.value.code == USAGE
    with pytest.raises(Failed, match="image 1 has the type"):
        session.predict([pixels[0], np.zeros((4, 4, 1), np.int64)])
    with pytest.raises(Failed, match="threads is 5000"):
        Session(default_model(), threads=5000)


def test_structures_may_be_shorter_or_longer() -> None:
    """A program compiled with an older or a newer header."""
    session = Session(default_model())
    old = libcapsedge.Description(size=24)
    libcapsedge.call("capsedge_describe", session.handle, ctypes.byref(old))
    assert old.backend_version is not None
    assert old.ops is None
    longer = (ctypes.c_ubyte * 200)()
    ctypes.cast(longer, ctypes.POINTER(ctypes.c_size_t))[0] = 200
    out = ctypes.c_void_p()
    path = os.fsencode(default_model())
    arguments = (path, longer, ctypes.byref(out))
    libcapsedge.call("capsedge_open", *arguments)
    libcapsedge.call("capsedge_close", out)
    longer[150] = 1
    with pytest.raises(Failed, match="option that this libcapsedge does not know"):
        libcapsedge.call("capsedge_open", *arguments)
    with pytest.raises(Failed, match="size is 0"):
        libcapsedge.call(
            "capsedge_open", path, ctypes.byref(libcapsedge.OpenOptions()), ctypes.byref(out)
        )


# Files


@pytest.fixture(scope="module")
def small_model() -> bytes:
    pytest.importorskip("onnx")
    from tests.runtime.models import capsule_model

    return capsule_model(reconstruction=True).SerializeToString()


def test_files_that_are_none(tmp_path: Path, small_model: bytes) -> None:
    for content, code, message in (
        (b"", ARTEFACT, "is empty"),
        (b"hello, this is text", ARTEFACT, "not a complete ONNX file"),
        (b"PK\x03\x04" + bytes(40), ARTEFACT, "it is a zip archive, such as a PyTorch file"),
        (b"\x89HDF\r\n\x1a\n" + bytes(40), ARTEFACT, "it is an HDF5 file"),
        (small_model[:-9], ARTEFACT, "not a complete ONNX file"),
    ):
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        with pytest.raises(Failed, match=message) as failed:
            Session(path)
        assert failed.value.code == code
    for path, message in (
        (tmp_path / "none.onnx", "No such file"),
        (tmp_path, "not a regular file"),
    ):
        with pytest.raises(Failed, match=message) as failed:
            Session(path)
        assert failed.value.code == USAGE


def test_formats_are_named_as_in_python() -> None:
    wrong = []
    for key, start, at in SIGNATURES:
        data = bytes(k % 7 + 128 for k in range(at)) + start + bytes(300)
        told, failed = identify_bytes(data), outcome(data)
        name = {**NAMES, **UNOPENED}[key]
        if failed is None or f"it is {name}" not in str(failed):
            wrong.append(f"{start!r}: libcapsedge says {failed}")
        if told is None or told.key != key or told.name != NAMES[key]:
            wrong.append(f"{start!r}: Python says {told}")
    assert not wrong, "\n".join(wrong)


def outcome(data: bytes) -> Failed | None:
    """What opening these bytes gives."""
    try:
        Session(data)
    except Failed as failed:
        return failed
    return None


def test_every_cut_of_a_file_is_refused(small_model: bytes) -> None:
    """But for a cut between two fields, which leaves a whole file that lacks the second."""
    opened = 0
    for length in range(0, len(small_model), 7):
        try:
            summarize(small_model[:length])
            whole = True
        except CapsedgeError:
            whole = False
        failed = outcome(small_model[:length])
        opened += failed is None
        assert whole or (failed is not None and failed.code == ARTEFACT)
    assert opened < 5


def test_damaged_files_are_judged_as_python_judges_them(small_model: bytes) -> None:
    """One changed byte: what Python's reader refuses is refused here, and nothing crashes."""
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(200):
        data = bytearray(small_model)
        data[int(rng.integers(len(data)))] = int(rng.integers(256))
        try:
            summarize(bytes(data))
            wanted = True
        except CapsedgeError:
            wanted = False
        failed = outcome(bytes(data))
        if failed is None:
            assert wanted
            continue
        assert failed.code in (USAGE, ENVIRONMENT, ARTEFACT)
        assert wanted or "not a complete ONNX file" in str(failed)
        refused += 1
    assert 0 < refused < 200


def test_weights_in_other_files_are_refused(small_model: bytes) -> None:
    import onnx

    model = onnx.load_from_string(small_model)
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/etc/passwd")
    with pytest.raises(Failed, match="keeps weights in other files") as failed:
        Session(model.SerializeToString())
    assert failed.value.code == ARTEFACT


def test_numbers_do_not_depend_on_the_locale() -> None:
    """With a decimal comma strtod would read 0.25 as 0."""
    pytest.importorskip("onnx")
    import locale

    from capsedge.runtime.metadata.metadata import Preprocessing
    from tests.runtime.models import capsule_model, metadata

    p = Preprocessing(8, 8, 1, scale=0.25, mean=(0.125,), std=(1e-3,))
    data = capsule_model(properties=metadata(preprocessing=p).to_properties()).SerializeToString()
    before = locale.setlocale(locale.LC_ALL)
    try:
        for name in ("de_DE.UTF-8", "fr_FR.UTF-8", "C"):
            try:
                locale.setlocale(locale.LC_ALL, name)
            except locale.Error:
                continue
            session = Session(data)
            found = session.preprocessing()
            assert (found.scale, found.mean[0], found.std[0]) == (0.25, 0.125, 1e-3)
    finally:
        locale.setlocale(locale.LC_ALL, before)


def test_models_of_every_kind_predict_as_python_does(tmp_path: Path) -> None:
    """Logits, several labels, a fixed batch, colour, no function bodies, no fused operators."""
    pytest.importorskip("onnx")
    from capsedge.runtime.metadata.metadata import Preprocessing
    from tests.runtime.models import capsule_model, metadata, save

    rng = np.random.default_rng(5)
    images = [rng.integers(0, 256, (8, 8, 3)).astype(np.uint8) for _ in range(5)]
    several = metadata(task="multi-label").to_properties()
    colour = metadata(preprocessing=Preprocessing(8, 8, 3, resize="pad")).to_properties()
    unnamed = metadata(class_names=()).to_properties()
    for number, (model, ops) in enumerate(
        (
            (capsule_model(scores="logits"), "auto"),
            (capsule_model(scores="logits", properties=several), "auto"),
            (capsule_model(properties=several), "portable"),
            (capsule_model(batch=2), "auto"),
            (capsule_model(channels=3, properties=colour), "auto"),
            (capsule_model(function=False), "fused"),
            (capsule_model(capsedge_node=False), "portable"),
            (capsule_model(properties=unnamed), "auto"),
        )
    ):
        path = save(model, tmp_path / f"{number}.onnx")
        python, native = (
            capsedge.load(path, threads=1, ops=ops),
            Session(path, ops=ops),
        )
        for options in ({}, {"top_k": 3}, {"threshold": 0.2}):
            same(native.predict(images, **options), python.predict(images, **options))


def test_what_python_refuses_to_load(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from tests.runtime.models import capsule_model, save

    for model, ops, message in (
        (capsule_model(function=False), "portable", "runs only with the fused operators"),
        (capsule_model(capsedge_node=False), "fused", "has no capsedge nodes"),
        (capsule_model(scores="others"), "auto", "does not fit its graph"),
    ):
        path = save(model, tmp_path / "model.onnx")
        with pytest.raises(Failed, match=message):
            Session(path, ops=ops)
        with pytest.raises(CapsedgeError):
            capsedge.load(path, ops=ops)


def test_files_of_other_tools_run_and_do_not_predict(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from tests.runtime.models import capsule_model, save

    path = save(capsule_model(properties={}), tmp_path / "foreign.onnx")
    session = Session(path)
    x = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    wanted = capsedge.load(path).run(x)
    for name, found in session.run({"images": x}).items():
        np.testing.assert_array_equal(found, wanted[name])
    with pytest.raises(Failed, match="no room"):
        session.run({"images": x}, {"poses": 8})
    assert session.describe().architecture is None
    for refused in (
        lambda: session.predict([np.zeros((8, 8, 1), np.uint8)]),
        session.preprocessing,
    ):
        with pytest.raises(Failed) as failed:
            refused()
        assert failed.value.code == ARTEFACT


def test_scores_that_are_no_numbers(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from tests.runtime.models import capsule_model, save

    path = save(capsule_model(gain=float("nan")), tmp_path / "nan.onnx")
    with pytest.raises(Failed, match="NaN or infinite") as failed:
        Session(path).predict([np.full((8, 8, 1), 255, np.uint8)])
    assert failed.value.code == ARTEFACT


# ONNX Runtime


def opened_elsewhere(environment: dict[str, str], onnxruntime: str = "") -> str:
    """What a process of its own gets for opening a model; the first session decides for all."""
    program = (
        "import ctypes, sys\n"
        "from pathlib import Path\n"
        "from tests.native import libcapsedge\n"
        "options = libcapsedge.sized(libcapsedge.OpenOptions)\n"
        "options.onnxruntime = sys.argv[2].encode() or None\n"
        "out = ctypes.c_void_p()\n"
        "try:\n"
        "    arguments = ctypes.byref(options), ctypes.byref(out)\n"
        "    libcapsedge.call('capsedge_open', sys.argv[1].encode(), *arguments)\n"
        "    print('opened')\n"
        "except libcapsedge.Failed as failed:\n"
        "    print(failed.code, failed)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(default_model()), onnxruntime],
        capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.thorough
def test_onnxruntime_is_found_and_named(tmp_path: Path) -> None:
    library = libcapsedge.onnxruntime_library()
    assert opened_elsewhere({}, str(library)) == "opened"
    assert opened_elsewhere({}, str(library.parent)) == "opened"
    assert opened_elsewhere({"CAPSEDGE_ONNXRUNTIME": str(library)}) == "opened"
    if libcapsedge.LIBRARY_VARIABLE not in os.environ:
        assert opened_elsewhere({"CAPSEDGE_ONNXRUNTIME": ""}) == "opened"


def test_where_onnxruntime_was_searched(tmp_path: Path) -> None:
    found = opened_elsewhere({}, str(tmp_path))
    assert found.startswith("3 ")
    assert f"{tmp_path}: no libonnxruntime.so" in found
    found = opened_elsewhere({"CAPSEDGE_ONNXRUNTIME": str(tmp_path / "none.so")})
    assert found.startswith("3 ")
    assert "CAPSEDGE_ONNXRUNTIME" in found
    assert f"{tmp_path}/none.so: " in found
    other = next(iter(Path("/lib").glob("*/libm.so.6")), None)
    if other is not None:
        assert "a different library" in opened_elsewhere({}, str(other))
    alone = tmp_path / "libcapsedge.so"
    path = libcapsedge.library_path()
    assert path is not None
    shutil.copy(path, alone)
    found = opened_elsewhere(
        {
            libcapsedge.LIBRARY_VARIABLE: str(alone),
            "CAPSEDGE_ONNXRUNTIME": "",
            "LD_LIBRARY_PATH": "",
        }
    )
    if found != "opened":  # the system may have one
        assert found.startswith("3 ONNX Runtime was not found.")
        for place in (str(tmp_path), "onnxruntime/capi", "libonnxruntime.so.1", "pip install"):
            assert place in found


def test_a_second_onnxruntime_is_refused(tmp_path: Path) -> None:
    Session(default_model())
    with pytest.raises(Failed, match="another ONNX Runtime open already"):
        Session(default_model(), onnxruntime=str(tmp_path / "other.so"))


# The library and its header


def declared() -> list[str]:
    return re.findall(r"^CAPSEDGE_API .*?\b(capsedge_\w+)\(", HEADER.read_text(), re.MULTILINE)


def test_only_the_header_is_exported() -> None:
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed: apt-get install binutils")
    found = subprocess.run(
        [nm, "-D", "--defined-only", str(libcapsedge.library_path())],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert sorted(line.split()[-1] for line in found.splitlines()) == sorted(declared())


def test_only_the_c_library_is_needed() -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("readelf is not installed: apt-get install binutils")
    found = subprocess.run(
        [readelf, "-d", str(libcapsedge.library_path())], capture_output=True, text=True, check=True
    ).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*?)\]", found))
    assert all(re.match(r"(libc|libm|libdl|libpthread|ld-linux.*)\.so", name) for name in needed), (
        needed
    )


def test_versions_agree() -> None:
    assert libcapsedge.load().capsedge_version().decode() == capsedge.__version__


def test_the_installed_header_is_this_one() -> None:
    if libcapsedge.LIBRARY_VARIABLE in os.environ:
        pytest.skip("another build is being tested")
    for name in ("capsedge.h", "capsedge.hpp"):
        installed = find_embedding().include / name
        assert installed.read_text() == (HEADER.parent / name).read_text(), (
            "install again: pip install -e . --no-deps"
        )


def test_every_function_is_in_the_guide_and_in_an_example() -> None:
    guide = (ROOT / "docs" / "how-to" / "libcapsedge.md").read_text()
    examples = "".join(
        path.read_text() for path in (HEADER.parents[1] / "examples").iterdir() if path.is_file()
    )
    for name in declared():
        assert name in guide, name
        # What needs a GPU no test could run; the guide has it.
        shown = guide if name == "capsedge_run_on_stream" else examples
        assert re.search(rf"\b{name}\(", shown), name


def test_arrays_stay_theirs() -> None:
    """What is given is not written to."""
    session = Session(default_model())
    x: Array = np.random.default_rng(0).random((1, 1, 28, 28), np.float32)
    copy = x.copy()
    session.run({"images": x})
    np.testing.assert_array_equal(x, copy)
