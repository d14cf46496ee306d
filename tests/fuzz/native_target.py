"""The C targets of tests/fuzz/native under libFuzzer with AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from capsedge.runtime.metadata.metadata import ModelMetadata
from tests.fuzz.target import Budget, Outcome, Target

SOURCE = Path(__file__).parent / "native"
CORPUS = Path(__file__).parent / "corpus"
BUILD = Path("build/fuzz-native")
MIBS = 2048  # with what the sanitizers take by themselves


def _models() -> dict[str, bytes]:
    """Small files: a whole model, and every operator as one node."""
    from tests.conformance.cases import CASES, make
    from tests.conformance.native import one_node
    from tests.fuzz.readers import SCORES, VALUES
    from tests.runtime.models import capsule_model, foreign_model

    def foreign(said: ModelMetadata) -> bytes:
        shapes = {"s": [2], "p": [2, 4]} if said is SCORES else {"o": [1], "p": [1]}
        return foreign_model(shapes, properties=said.to_properties()).SerializeToString()

    found = {
        "model": capsule_model().SerializeToString(),
        "scores": foreign(SCORES),
        "values": foreign(VALUES),
    }
    for case in CASES:
        for dtype in case.dtypes:
            name = f"{case.operator}-{dtype}"
            if case.heavy or dtype == "float64" or name in found:
                continue
            inputs = make(case, dtype).inputs
            if sum(x.nbytes for x in inputs.values()) < 20_000:
                found[name] = one_node(
                    case.operator, case.attributes, inputs, ("weight", "weight_scale")
                )
    return found


def _metadata() -> dict[str, bytes]:
    """Properties one by one, and all of them; the first byte tells the target which."""
    from tests.fuzz.readers import SCORES, VALUES
    from tests.runtime.models import metadata

    found: dict[str, bytes] = {}
    for name, said in (("all", metadata()), ("scores", SCORES), ("values", VALUES)):
        values = {k.removeprefix("capsedge."): v for k, v in said.to_properties().items()}
        lines = "\n".join(f"{key}={value}" for key, value in values.items())
        found[name] = b"\x02" + lines.encode()
    # "values" has the most of them
    for number, (key, value) in enumerate(sorted(values.items())):
        found[key] = b"\x00" + value.encode()
        found[f"{key} in place"] = bytes([3 + number % 8]) + value.encode()
    found["numbers"] = (
        b'\x01[1e5, -0.5, 18446744073709551615, NaN, "\\ud83d\\ude00", {"a": [null, true]}]'
    )
    return found


def _engine_metadata() -> dict[str, bytes]:
    from tests.runtime.models import metadata

    machine = ("tensorrt", "cuda", "gpu", "compute_capability", "architecture")
    document = {
        "schema": 1, "engine_sha256": "00", "engine_bytes": 4, "plugin": "fused", "plugin_library": "l.so",
        "plugin_sha256": "ab", "precision": "fp16", "layers": {"FP16": 12}, "batch": [1, 4, 8],
        "source": "m.onnx", "source_sha256": "cd", "command": "capsedge build m.onnx",
        "metadata": metadata().to_properties(), "machine": dict.fromkeys(machine, "1.2.3"),
    }  # fmt: skip
    return {"engine_metadata": json.dumps(document).encode()}


def _operators() -> dict[str, bytes]:
    return {str(i): bytes([i, 0, 1, *range(1, 200)]) for i in range(11)}


SEEDS: dict[str, Callable[[], dict[str, bytes]]] = {
    "onnx": _models,
    "json": _metadata,
    "engine_metadata": _engine_metadata,
    "operator": _operators,
    "session": _models,
}


def build(name: str, folder: Path, *options: str) -> Path:
    """Compile a target; the program.

    Raises:
        RuntimeError: it does not compile.
    """
    target = f"fuzz_{name}"
    for command in (
        ["cmake", "-S", str(SOURCE), "-B", str(folder), "-DCMAKE_BUILD_TYPE=Debug", *options],
        ["cmake", "--build", str(folder), "--target", target, "-j", str(os.cpu_count() or 1)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stdout + done.stderr)[-2000:])
    return folder / target


def run(name: str, budget: Budget) -> Outcome:
    """Compile and fuzz a target."""
    for tool, advice in (("cmake", "pip install cmake"), ("clang++", "apt-get install clang")):
        if shutil.which(tool) is None:
            return Outcome(skipped=f"{tool} is missing: {advice}")
    try:
        program = build(name, BUILD, "-DCMAKE_CXX_COMPILER=clang++")
    except RuntimeError as error:
        return Outcome(failures=[f"it does not compile: {error}"])
    corpus, seeds, findings = (budget.folder / part for part in ("corpus", "seeds", "findings"))
    for folder in (corpus, seeds, findings):
        folder.mkdir(parents=True, exist_ok=True)
    for title, seed in SEEDS[name]().items():
        (seeds / title).write_bytes(seed)
    command = [str(program), str(corpus), str(seeds)]
    if (CORPUS / f"native_{name}").is_dir():
        command.append(str(CORPUS / f"native_{name}"))
    command += [
        "-timeout=20",  # five seconds without sanitizers
        f"-rss_limit_mb={MIBS}",
        f"-artifact_prefix={findings}/",
        f"-max_total_time={max(1, int(budget.seconds))}",
        "-max_len=8192",
    ]
    if budget.inputs:
        command.append(f"-runs={budget.inputs}")
    started = time.monotonic()
    # ONNX Runtime keeps what it needs once.
    leaks = "0" if name == "session" else "1"
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False,
        env={**os.environ, "ASAN_OPTIONS": f"detect_leaks={leaks}", **onnxruntime_variable()},
    )  # fmt: skip
    outcome = Outcome(seconds=time.monotonic() - started)
    (budget.folder / "log").write_text(done.stderr)
    for line in re.finditer(r"^#(\d+)\s+\w+\s+cov: (\d+) ft: (\d+)", done.stderr, re.MULTILINE):
        outcome.inputs = int(line[1])
        if not outcome.coverage or int(line[3]) > outcome.coverage[-1][1]:
            outcome.coverage.append((outcome.inputs, int(line[3])))
    if done.returncode:
        kept = re.findall(r"Test unit written to (\S+)", done.stderr) or ["no input was kept"]
        said = [x for x in done.stderr.splitlines() if "ERROR" in x or "runtime error" in x][:3]
        outcome.failures = [f"exit {done.returncode}: {kept[-1]}: {'; '.join(said)}"]
    return outcome


def onnxruntime_variable() -> dict[str, str]:
    """What the session target needs to find ONNX Runtime."""
    from tests.native.libcapsedge import onnxruntime_library

    return {"CAPSEDGE_ONNXRUNTIME": str(onnxruntime_library())}


TARGETS = tuple(Target(f"native_{name}", partial(run, name)) for name in SEEDS)
