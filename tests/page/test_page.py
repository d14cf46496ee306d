"""The page in Chromium: its numbers are Python's, strangers' files are harmless, and it works offline."""

from __future__ import annotations

import http.server
import json
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import capsedge
from capsedge.deploy.preview_server import ADDRESS, FolderServer
from capsedge.runtime.onnx_file.wire import with_properties
from capsedge.runtime.zoo import DIGITS
from capsedge.spec.fields import PAGE_RUNTIME
from tests.conftest import ROOT
from tests.page.browser import play
from tests.page.conftest import manifest_of
from tests.paths.table import ZOO

pytestmark = pytest.mark.slow

SAMPLES = sorted((ROOT / "capsedge/zoo/samples").glob("digit-?.png"))
SAMPLES.append(ROOT / "capsedge/zoo/samples/overlapping-2-4.png")
TOLERANCE = 1e-5
LABEL = '<img src=x onerror="globalThis.intruded=true">'


def test_numbers_are_those_of_python(server: FolderServer, folder: Path) -> None:
    """Scores and poses of all samples, and pictures of turned poses, of every model of the zoo."""
    models = len(manifest_of(folder)["models"])
    compiled = PAGE_RUNTIME in manifest_of(folder)["late"]
    seen = play("values", server.url, models=models, images=len(SAMPLES))
    assert len(seen["found"]) == models == len(DIGITS) + 1  # photos
    for found in seen["found"]:
        assert found["checked"]
        assert found["compiled"] == compiled
        assert Path(found["file"]).suffix == (".wasm" if compiled else ".onnx")
        session = capsedge.load((folder / "models" / found["file"]).with_suffix(".onnx"))
        wanted = session.predict([str(path) for path in SAMPLES])
        for answer, prediction in zip(found["answers"], wanted, strict=True):
            assert answer["label"] == prediction.label
            np.testing.assert_allclose(answer["scores"], prediction.scores, atol=TOLERANCE)
            np.testing.assert_allclose(answer["poses"], prediction.poses.ravel(), atol=TOLERANCE)
        if found["pictures"]:
            check_pictures(session, found)


def check_pictures(session: capsedge.Session, found: dict[str, Any]) -> None:
    """The last sample has two digits: the best capsule's picture, and the second's."""
    prediction = session.predict(str(SAMPLES[-1]), top_k=10)[0]
    best, second = (label.index for label in prediction.labels[:2])
    own, turned = found["pictures"]
    for k, index in enumerate((best, second)):
        picture = session.decode(prediction.poses[index], classes=index)[0]
        np.testing.assert_allclose(own[k]["data"], picture.ravel(), atol=TOLERANCE)
    pose = prediction.poses[best].copy()
    pose[3] += 0.5 * max(0.25, 0.6 * np.linalg.norm(pose))  # slider 4, half of its way
    picture = session.decode(pose, classes=best)[0]
    np.testing.assert_allclose(turned[0]["data"], picture.ravel(), atol=TOLERANCE)
    assert np.abs(picture.ravel() - own[0]["data"]).max() > 0.01


def test_drawing(server: FolderServer) -> None:
    seen = play("draw", server.url)
    assert seen["hint"]
    assert seen["one"]["label"] == "1"
    assert re.fullmatch(r"1, 0\.\d\d", seen["said"])
    assert max(seen["one"]["input"]) > 0.9  # light lines on black, as the digits of MNIST
    assert seen["two"]["label"] != seen["one"]["label"]
    assert seen["touched"]["label"] == "1"


def test_photographs(server: FolderServer, folder: Path) -> None:
    """The network for them is fetched when it is chosen; its samples take the place of the digits."""
    models = [model["name"] for model in manifest_of(folder)["models"]]
    seen = play("photographs", server.url, model=models.index("photos"))
    assert not [path for path in seen["before"] if "photos" in path]
    assert seen["shown"] == ["photographs"]
    photographs = sorted((ROOT / "capsedge/zoo/photographs").glob("*.jpg"))
    assert [answer["label"] for answer in seen["answers"]] == [path.stem for path in photographs]
    with capsedge.load("photos") as session:
        for answer, path in zip(seen["answers"], photographs, strict=True):
            scores = session.predict(path)[0].scores
            np.testing.assert_allclose(answer["scores"], scores, atol=0.02)  # JPEG decoders differ


def test_camera(server: FolderServer, tmp_path: Path) -> None:
    """Its pictures are classified until it is switched off, or an image is chosen."""
    film = tmp_path / "digit.y4m"
    write_film(film, SAMPLES[6])
    pretended = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    seen = play(
        "camera", server.url, arguments=[*pretended, f"--use-file-for-fake-video-capture={film}"]
    )
    assert seen["seen"]["label"] == "6"
    assert (seen["stopped"], seen["released"]) == ("false", "false")
    assert seen["example"]["label"] == "4"


def test_no_camera(server: FolderServer) -> None:
    seen = play("camera", server.url)
    assert "camera" in seen["message"]
    assert not seen["disabled"]


def write_film(path: Path, *pictures: Path) -> None:
    """Write a film (YUV4MPEG2, 4:2:0) of pictures, each between two grey margins that the page cuts off."""
    side, margin = 240, 40
    film = f"YUV4MPEG2 W{side + 2 * margin} H{side} F20:1 Ip A1:1 C420\n".encode()
    for picture in pictures:
        with Image.open(picture) as opened:
            grey = np.asarray(opened.convert("L").resize((side, side), Image.Resampling.NEAREST))
        frame = np.full((side, side + 2 * margin), 128, np.uint8)
        frame[:, margin:-margin] = 16 + (grey.astype(float) * 219 / 255).astype(np.uint8)
        film += (b"FRAME\n" + frame.tobytes() + bytes([128]) * (frame.size // 2)) * 10
    path.write_bytes(film)


def test_a_second_tab(server: FolderServer) -> None:
    first, second, again = play("tabs", server.url)["found"]
    assert first == second == again
    assert first["label"] == "3"


def test_files_of_a_person(server: FolderServer, tmp_path: Path) -> None:
    """A model that is chosen, an image that is dropped, and something that is neither.

    Its error goes with the next image. Advice on a light image names the box that inverts it.
    """
    model = tmp_path / "my model.onnx"
    model.write_bytes((ZOO / "digits-em.onnx").read_bytes())
    server.files["/photo.png"] = SAMPLES[4]
    light = server.files["/light.png"] = tmp_path / "light.png"
    ImageOps.invert(Image.open(SAMPLES[4]).convert("L")).save(light)
    seen = play("files", server.url, model=str(model), image="photo.png", light="light.png")
    assert seen["opened"]["file"] == "my model.onnx"
    prediction = capsedge.load(model).predict(str(SAMPLES[4]))[0]
    np.testing.assert_allclose(seen["image"]["scores"], prediction.scores, atol=TOLERANCE)
    assert "neither a model (.onnx) nor an image" in seen["message"]
    assert seen["forgotten"] == [True, True]
    assert "tick Invert" in seen["advice"][0]
    assert "invert:" not in seen["advice"][0]
    assert "Invert" not in seen["advice"][1]


def test_a_compiled_page_loads_the_runtime_for_files_of_a_person(
    server: FolderServer, folder: Path
) -> None:
    """Nothing of ONNX Runtime before that; then it runs the file, and is kept for use without a network."""
    if PAGE_RUNTIME not in manifest_of(folder)["late"]:
        pytest.skip("only a compiled page loads ONNX Runtime later")
    server.files["/own.onnx"] = ZOO / "digits-attention.onnx"
    seen = play("small", server.url, own="own.onnx")
    before, dropped = seen["before"], seen["dropped"]
    assert not [name for name in before["fetched"] + before["kept"] if PAGE_RUNTIME in name]
    assert not [name for name in before["fetched"] + before["kept"] if name.endswith(".onnx")]
    assert "compiled from this network" in before["status"]
    assert before["answer"]["label"] == "4"
    assert before["trace"] > 0
    assert (dropped["compiled"], dropped["description"]["file"]) == (False, "own.onnx")
    assert seen["own"]["label"] == "4"
    runtime = {f"/{path}" for path in manifest_of(folder)["files"] if path.startswith(PAGE_RUNTIME)}
    assert runtime
    assert runtime <= set(seen["after"]["kept"])
    assert "compiled" not in seen["after"]["status"]


def test_hostile_files(server: FolderServer, tmp_path: Path) -> None:
    """They are refused in words, or shown as text; the model before them stays."""
    data = (ZOO / "digits-em.onnx").read_bytes()
    names = json.dumps([LABEL, *"123456789"])
    files = {
        "text.onnx": b"<script>globalThis.intruded=true</script>",
        "cut.onnx": data[:-1000],
        "plain.onnx": with_properties(data, {}, ("capsedge",)),
        "long.onnx": with_properties(
            data, {"capsedge.class_names": json.dumps(["x" * 9_000_000])}, ("capsedge.class_names",)
        ),
        "label.onnx": with_properties(
            data, {"capsedge.class_names": names}, ("capsedge.class_names",)
        ),
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        server.files[f"/hostile/{name}"] = tmp_path / name
    called = [(f"hostile/{name}", f"<b onclick=alert(1)>{name}") for name in files]
    seen = play("hostile", server.url, files=called)
    *refused, shown = seen["found"]
    assert [each["problem"]["code"] for each in refused] == ["file", "file", "metadata", "limit"]
    assert all(each["problem"]["message"][:40] in each["message"] for each in refused)
    assert shown["description"]["labels"][0] == LABEL
    assert seen["labels"][0] == LABEL
    assert seen["elements"] == 0
    assert not seen["intruded"]
    assert seen["still"]["label"] == "2"


def test_a_file_that_was_exchanged_is_refused(server: FolderServer, folder: Path) -> None:
    """The checksum in the manifest decides, not the server."""
    manifest = manifest_of(folder)
    file = manifest["models"][-1]["files"][-1]
    last = file.get("compiled", file["path"])
    server.files[f"/{last}"] = ZOO / "digits-em.onnx"
    seen = play("exchanged", server.url, model=len(manifest["models"]) - 1)
    assert seen["problem"]["code"] == "file"
    assert "checksum" in seen["problem"]["message"]


def test_keyboard(server: FolderServer) -> None:
    """Every control is reached and named; arrows choose a class and turn a dimension."""
    seen = play("keyboard", server.url)
    for control in (
        "model",
        "provider",
        "open",
        "undo",
        "clear",
        "camera",
        "fit",
        "invert",
        "example",
        "reset",
    ):
        assert control in seen["reached"], control
    assert seen["reached"].count("radio") >= 2  # iterations and classes
    assert seen["reached"].count("range") == 16
    assert seen["before"] != seen["after"]
    assert seen["value"] != seen["turned"]
    assert seen["nameless"] == []


def test_offline(folder: Path) -> None:
    """A static server that sends no headers, and then none at all."""
    with PlainServer(folder) as (url, stop):
        seen = play("offline", url, ready=stop)
    wanted = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    kept = {path.removeprefix("/") for path in seen["kept"]}
    late = tuple(manifest_of(folder)["late"])
    assert kept == {path for path in wanted if not path.startswith(late)} - {"worker.js"}
    assert (seen["first"], seen["second"]) == (False, True)  # the service worker isolates it
    assert seen["answer"]["label"] == "5"


class PlainServer:
    """`python -m http.server`, which can be stopped in the middle."""

    def __init__(self, folder: Path) -> None:
        handler = partial(_Quiet, directory=str(folder))
        self._server = http.server.ThreadingHTTPServer((ADDRESS, 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> tuple[str, Any]:
        self._thread.start()
        return f"http://{ADDRESS}:{self._server.server_port}/", self._stop

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_no_width_is_too_small(server: FolderServer) -> None:
    assert [
        (width, needed) for width, needed in play("widths", server.url)["found"] if needed > width
    ] == []


def test_the_page_is_small(folder: Path) -> None:
    """At most 1 MB beside the runtime and the models."""
    own = [
        path
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".wasm", ".onnx") and "webgpu" not in path.parts
    ]
    assert sum(path.stat().st_size for path in own) < 1_000_000
    notices = (folder / "THIRD_PARTY.txt").read_text()
    for package in ("onnxruntime-web", "onnxruntime-common", "protobufjs", "flatbuffers", "long"):
        assert re.search(rf"^{package} \d", notices, re.MULTILINE), package
