"""How fast the page is: from moving a slider to its picture, and from opening it to the first answer.

    python -m benchmarks.page [--turns 400] [-o page.json]

Needs ``make web`` and Chromium. The peer is ONNX Runtime in Python in the same run: the decoder alone, and a
fresh process that loads the model and classifies one image.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import capsedge
from benchmarks.common import machine
from capsedge.deploy.preview_server import FolderServer
from tests.conftest import ROOT
from tests.page import browser

SAMPLE = ROOT / "capsedge/zoo/samples/digit-7.png"
ROUNDS = 3  # the page and its peer take turns


def decoding(session: capsedge.Session, turns: int) -> list[float]:
    """Milliseconds for each picture that Python decodes."""
    (prediction,) = session.predict(SAMPLE)
    pose, index = prediction.poses[prediction.labels[0].index], prediction.labels[0].index
    times = []
    for k in range(turns):
        turned = pose + np.float32(0.001 * k)
        start = time.perf_counter()
        session.decode(turned, classes=index)
        times.append(1e3 * (time.perf_counter() - start))
    return times


def fresh(model: Path) -> float:
    """Milliseconds for a process that loads the model and classifies an image."""
    code = f"import capsedge; capsedge.load({str(model)!r}).predict({str(SAMPLE)!r})"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return 1e3 * (time.perf_counter() - start)


def measure(folder: Path, turns: int) -> dict[str, Any]:
    """Both measurements, in turns."""
    made = capsedge.deploy_web("digits-dynamic", folder, iterations=[3])
    model = folder / made.models[0].files[3]
    session = capsedge.load(model, threads=1)
    pages, peers, starts, processes = [], [], [], []
    with FolderServer(made.output, [file.path for file in made.files]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for _ in range(ROUNDS):
            seen = browser.play("speed", server.url, turns=turns)
            pages += seen["turns"]
            starts.append(seen["loading"])
            peers += decoding(session, turns)
            processes.append(fresh(model))
        server.shutdown()
    page, peer = ({p: float(np.percentile(t, p)) for p in (50, 95)} for t in (pages, peers))
    return {
        "slider_to_picture_ms": page,
        "python_decode_ms": peer,
        "slider_ratio_of_p95": page[95] / peer[95],
        "first_answer_ms": starts,
        "python_process_ms": processes,
        "first_answer_ratio_of_minima": min(starts) / min(processes),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=400)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    reason = browser.missing()
    if reason:
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as name:
        document = {"machine": machine(), **measure(Path(name, "folder"), options.turns)}
    text = json.dumps(document, indent=2)
    print(text)
    if options.output:
        options.output.write_text(f"{text}\n")


if __name__ == "__main__":
    main()
