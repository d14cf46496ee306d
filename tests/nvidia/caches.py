"""What becomes of timing caches that do not fit, with NVIDIA's library; run by test_builder.py."""

from __future__ import annotations

import json
import warnings

from capsedge.exporters.tensorrt.engine_builder import get_timings, set_timings
from capsedge.runtime.backends.tensorrt_library import start, tensorrt_logger
from capsedge.runtime.backends.tensorrt_rtx import import_tensorrt_rtx


def main() -> None:
    """A line of JSON: what is warned of, and how many bytes there are afterwards, for each cache."""
    warnings.simplefilter("ignore", DeprecationWarning)  # TensorRT-RTX times nothing
    trt = import_tensorrt_rtx()
    builder = start(trt, trt.Builder, tensorrt_logger(trt))
    config = builder.create_builder_config()
    set_timings(config, b"")
    own = get_timings(config)
    foreign = own[:16] + bytes(byte ^ 0xFF for byte in own[16:])
    found = {}
    for name, data in (
        ("empty", b""), ("own", own), ("garbage", b"garbage" * 10), ("foreign", foreign), ("cut", own[:20]),
    ):  # fmt: skip
        config = builder.create_builder_config()
        said = set_timings(config, data)
        found[name] = {"warnings": said, "bytes": len(get_timings(config))}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
