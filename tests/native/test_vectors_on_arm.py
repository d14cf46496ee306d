"""libcapsedge for 64-bit ARM, emulated, reads ``spec/vectors`` as the vectors say.

`test_walkers` reads ``files.json`` there.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")

from tests import vectors
from tests.runtime.image_bits import BITS
from tests.runtime.models import capsule_model, metadata

from .builds import ARM_COMPILER, NATIVE, ROOT, TOOLCHAIN, arm, cmake_build
from .libcapsedge import ARTEFACT, USAGE
from .test_vectors import NOT_SHOWN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
Facts = Mapping[str, list[str]]


class Program:
    """``answers.cpp``: a job for each file, all in one process."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command, self._folder = command, folder

    def facts(self, jobs: Iterable[tuple[str, bytes, str]]) -> list[Facts]:
        """What it says about each job: what to do, the file, the other arguments."""
        lines = []
        for number, (what, file, arguments) in enumerate(jobs):
            path = self._folder / f"{number}.onnx"
            path.write_bytes(file)
            lines.append(f"{what} {path} {arguments}\n")
        done = subprocess.run(
            self._command, input="".join(lines).encode(), capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found = list(_parsed(done.stdout))
        assert len(found) == len(lines)
        return found


def _parsed(output: bytes) -> Iterator[Facts]:
    facts: dict[str, list[str]] = {}
    at = 0
    while at < len(output):
        name, size = output[at : (line := output.index(b"\n", at))].split()
        at = line + 1 + int(size)
        if name == b"end":
            yield facts
            facts = {}
        else:
            text = output[line + 1 : at]
            facts.setdefault(name.decode(), []).append(
                text.hex() if name == b"values" else text.decode()
            )


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("arm")
    machine = arm(folder)
    built = cmake_build(folder / "build", "capsedge", "--toolchain", str(TOOLCHAIN)) / "libcapsedge"
    subprocess.run(
        [ARM_COMPILER, "-std=c++17", "-O1", f"-I{NATIVE}/libcapsedge/include",
         str(ROOT / "tests" / "native" / "answers.cpp"), "-o", str(folder / "answers"),
         f"-L{built}", "-lcapsedge", f"-Wl,-rpath,{built}"],
        check=True,
    )  # fmt: skip
    command = [*machine.emulator, str(folder / "answers"), str(machine.onnxruntime)]
    return Program(command, tmp_path_factory.mktemp("files"))


def test_metadata(program: Program) -> None:
    cases = list(vectors.metadata_cases("cpp"))
    found = program.facts(("describe", case.file, "") for case in cases)
    faults = [
        fault
        for case, facts in zip(cases, found, strict=True)
        if (fault := case.fault(_values(facts), _refusal(facts), NOT_SHOWN))
    ]
    assert sum(bool(case.refused) for case in cases) > 80
    assert not faults, "\n".join(faults)


def test_text(program: Program) -> None:
    cases = vectors.read("text.json")["cases"]
    files = [
        capsule_model(
            properties=metadata().to_properties() | {"capsedge.task": json.dumps(case["text"])}
        ).SerializeToString()
        for case in cases
    ]
    for case, facts in zip(cases, program.facts(("describe", f, "") for f in files), strict=True):
        shown = case.get("except", {}).get("cpp", case)["shown"]
        assert f"task '{shown}" in (_refusal(facts) or ""), case["name"]


def test_predictions(program: Program) -> None:
    cases = list(vectors.prediction_cases())
    jobs = []
    for case in cases:
        top, threshold = case.options.get("top_k", 0), case.options.get("threshold", "-")
        words = [top, threshold, *case.pixels]
        jobs.append(("predict", case.file, " ".join(map(str, words))))
    faults = [
        fault
        for case, facts in zip(cases, program.facts(jobs), strict=True)
        if (fault := case.fault(_answer(facts)))
    ]
    assert len(cases) > 60
    assert not faults, "\n".join(faults)


def test_images(program: Program) -> None:
    """No fused multiply-add where Python has none."""
    said = vectors.read("metadata.json")
    graph, own = base64.b64decode(said["graphs"]["open"]), said["bases"]["all properties"]
    jobs = []
    for bits in BITS:
        changed = own["properties"] | {"capsedge.preprocessing": asdict(bits.preprocessing)}
        changed.pop("capsedge.typical_input")  # needs larger images
        file = graph + b"".join(vectors.entry(k, json.dumps(v)) for k, v in changed.items())
        jobs.append(("prepare", file, f"{bits.height} {bits.width} {int(bits.invert)}"))
    for bits, facts in zip(BITS, program.facts(jobs), strict=True):
        assert bits.agree(bytes.fromhex(facts["values"][0])), bits


def _refusal(facts: Facts) -> str | None:
    if "message" not in facts:
        return None
    assert int(facts["code"][0]) == ARTEFACT, facts
    return facts["message"][0]


def _names(facts: Facts) -> list[list[str]]:
    names, units = facts.get("value_name", []), facts.get("unit", [])
    return [[*each] for each in zip(names, units, strict=True)]


def _answer(facts: Facts) -> dict[str, Any]:
    if "code" in facts:
        return {"refused": {USAGE: "input", ARTEFACT: "file"}.get(int(facts["code"][0]))}  # type: ignore[call-overload]
    values = map(float, facts.get("value", []))
    return {
        "labels": facts.get("label", []),
        "scores": [float(x) for x in facts.get("score", [])],
        "score_kind": facts["score_kind"][0],
        "poses": [float(x) for x in facts.get("pose", [])],
        "values": [[n, v, u] for (n, u), v in zip(_names(facts), values, strict=True)],
    }


def _values(facts: Facts) -> dict[str, Any] | None:
    if "architecture" not in facts:
        return None
    words = ("architecture", "routing", "task", "precision", "score_kind")
    return {
        **{name: facts[name][0] for name in words},
        "iterations": int(facts["iterations"][0]),
        "class_names": facts.get("class_name", []),
        "values": _names(facts),
        "preprocessing": _preprocessing(facts),
    }


def _preprocessing(facts: Facts) -> dict[str, Any] | None:
    if "height" not in facts:
        return None
    return {
        **{name: int(facts[name][0]) for name in ("height", "width", "channels")},
        "scale": float(facts["scale"][0]),
        "mean": [float(x) for x in facts["mean"]],
        "std": [float(x) for x in facts["std"]],
        "resize": facts["resize"][0],
        "per_image": facts["per_image"][0],
        "layout": "NHWC" if facts["channels_last"] == ["1"] else "NCHW",
        "order": "BGR" if facts["bgr"] == ["1"] else "RGB",
    }
