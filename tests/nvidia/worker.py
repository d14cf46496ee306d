"""Builds with NVIDIA's library in a process of its own, because its parser ends the process for some errors.

    python -m tests.nvidia.worker < jobs.json

A job is an ONNX file, an engine and the fields of `BuildOptions`, with ``unchecked`` for a file that the
package would refuse before TensorRT sees it; a line of JSON is printed for each: the document of
``capsedge build --json`` with the seconds it took, or what was raised.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from capsedge.errors import CapsedgeError
from capsedge.exporters.build_options import BuildOptions
from capsedge.exporters.tensorrt import write_engine
from capsedge.runtime.backends import engine_layers
from capsedge.runtime.backends.tensorrt_library import tensorrt_logger
from capsedge.runtime.backends.tensorrt_rtx import import_for
from capsedge.runtime.onnx_file.layer_map import engine_locations, merge_locations
from capsedge.spec.vocabularies import TENSORRT_RTX


def run(source: str, target: str, options: dict[str, Any]) -> dict[str, Any]:
    """One job."""
    for name in ("batch", "length", "compute_capabilities"):
        if options.get(name) is not None:
            options[name] = tuple(options[name])
    unchecked = mock.patch.object(write_engine, "checked", lambda data, _: data)
    checks = unchecked if options.pop("unchecked", False) else nullcontext()
    told: list[tuple[float, str]] = []
    start = time.monotonic()
    try:
        with checks:
            built = write_engine.write_engine(
                source,
                target,
                BuildOptions(**{"target": TENSORRT_RTX, **options}),
                lambda share, phase, left: told.append((share, phase)),
            )
    except CapsedgeError as error:
        return {
            "error": type(error).__name__, "what": error.what, "why": error.why, "fix": error.fix,
            "written": Path(target).exists(),
        }  # fmt: skip
    shares = [share for share, _ in told]
    layers = engine_layers.from_log(tensorrt_logger(import_for(TENSORRT_RTX)).layers)
    return {
        **built.to_dict(),
        "belongs_to": [
            merge_locations(engine_locations(f"{x.name} {x.metadata}")).label for x in layers
        ],
        "seconds": time.monotonic() - start,
        "progress": {"told": len(told), "last": shares[-1], "monotonic": shares == sorted(shares)},
    }


def main() -> None:
    """All jobs."""
    for job in json.load(sys.stdin):
        print(json.dumps(run(job["source"], job["target"], job["options"])), flush=True)


if __name__ == "__main__":
    main()
