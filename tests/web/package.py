"""The npm package in Node.js, as tests ask it questions."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.conftest import ROOT

WEB = ROOT / "capsedge" / "runtime" / "web"
DRIVER = Path(__file__).with_name("driver.mjs")
_OLDEST_NODE = (20, 19)
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def missing() -> str:
    """What the tests lack, and the command that installs it; empty if they can run."""
    node = shutil.which("node")
    if node is None:
        return "needs Node.js: https://nodejs.org, or apt-get install nodejs"
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if tuple(map(int, version.lstrip("v").split(".")[:2])) < _OLDEST_NODE:
        return (
            f"needs Node.js {'.'.join(map(str, _OLDEST_NODE))} or newer, this is {version.strip()}"
        )
    if not (WEB / "node_modules" / "onnxruntime-web").is_dir():
        return "needs the npm packages of capsedge/runtime/web: make web"
    return ""


def assert_close_poses(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    """Poses of EM routing are several units long: an element rounds as the sum behind it does."""
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(found / scale, wanted / scale, **CLOSE)


class Refused(Exception):
    """The package raised an error.

    Attributes:
        code: of a `CapsedgeError`; otherwise the name of the class.
    """

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code, self.hint = code, hint


def build(folder: Path) -> None:
    """Compile the package and install it in a folder, as npm would."""
    package, modules = folder / "capsedge", folder / "node_modules"
    package.mkdir()
    modules.mkdir()
    compiler = WEB / "node_modules" / "typescript" / "bin" / "tsc"
    subprocess.run(
        ["node", str(compiler), "-p", str(WEB), "--outDir", str(package / "dist")], check=True
    )
    shutil.copy(WEB / "package.json", package)
    (modules / "capsedge").symlink_to(package)
    for installed in (WEB / "node_modules").iterdir():
        if not installed.name.startswith("."):
            (modules / installed.name).symlink_to(installed)


class Package:
    """A process of Node.js that runs the compiled package in ``folder``."""

    def __init__(self, folder: Path) -> None:
        shutil.copy(DRIVER, folder)
        self._process = subprocess.Popen(
            ["node", DRIVER.name], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._sessions = 0

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def ask(self, op: str, payload: bytes = b"", **question: Any) -> tuple[dict[str, Any], bytes]:
        """The answer to a question, and its bytes.

        Raises:
            Refused: the package raised an error.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        text = json.dumps({"op": op, **question}).encode()
        stdin.write(struct.pack("<II", len(text), len(payload)) + text + payload)
        stdin.flush()
        answer = json.loads(stdout.readline())
        data = stdout.read(answer.pop("size"))
        if "refused" in answer:
            raise Refused(**answer["refused"])
        return answer, data

    def refused(self, op: str, payload: bytes = b"", **question: Any) -> Refused | None:
        """The error that a question raises; None if it has an answer."""
        try:
            self.ask(op, payload, **question)
        except Refused as error:
            return error
        return None

    def load(self, file: bytes, op: str = "load", **options: Any) -> Session:
        """A model in the package; ``op`` is ``loadCompiled`` for one in WebAssembly."""
        self._sessions += 1
        answer, _ = self.ask(op, file, id=self._sessions, **options)
        return Session(self, self._sessions, answer)


class Session:
    """A loaded model.

    Attributes:
        number: its name in questions.
        known: ``description``, ``provider`` and ``fallback``.
    """

    def __init__(self, package: Package, number: int, known: dict[str, Any]) -> None:
        self._package, self.number, self.known = package, number, known

    def predict(
        self, image: NDArray[Any], pixels: bool = True, **options: Any
    ) -> tuple[dict[str, Any], list[NDArray[np.float32]]]:
        """The answer for pixels ``[H, W, C]`` or a prepared input, and its arrays, flat."""
        size = (
            dict(zip(("height", "width", "channels"), image.shape, strict=False)) if pixels else {}
        )
        answer, data = self._package.ask(
            "predict",
            image.tobytes(),
            id=self.number,
            kind=str(image.dtype),
            options=options,
            **size,
        )
        values = np.frombuffer(data, "<f4")
        ends = np.cumsum(answer["sizes"])
        return answer, np.split(values, ends[:-1])

    def decode(self, poses: NDArray[np.float32], index: int | None = None) -> NDArray[np.float32]:
        """Pictures of poses."""
        given = {} if index is None else {"classIndex": index}
        answer, data = self._package.ask("decode", poses.tobytes(), id=self.number, **given)
        return np.frombuffer(data, "<f4").reshape(answer["dims"])

    def close(self) -> None:
        """Free it."""
        self._package.ask("close", id=self.number)
