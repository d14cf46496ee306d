"""Calls of the public functions for type checkers: what ends in "# wrong" is an error, the rest is right.

`tests/test_typed.py` checks it with mypy, and with pyright where that is installed; it is never run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import capsedge

module: Any = None

session = capsedge.load("digits-em", threads=2, ops="fused", device="cpu")
capsedge.load(["a.onnx", "b.onnx"], threads=1).predict("image.png")
capsedge.load("digits-em", thread=2)  # wrong
capsedge.load("digits-em", threads="2")  # wrong
capsedge.export(module, "m.onnx", opset=18, iterations=3, extra_outputs=["trace"])
capsedge.export(module, None, batch=None, example=None, tolerance=(1e-5, 1e-4))
capsedge.export(module, "m.onnx", iters=3)  # wrong
capsedge.export(module, "m.onnx", ops="fast")  # wrong
capsedge.quantize(
    "m.onnx", Path("q.onnx"), calib_data="mnist", max_drop=0.5, precision="fp16", table="t.csv"
)
capsedge.quantize("m.onnx", calib_data="mnist", max_drop="0.5")  # wrong
capsedge.quantize("m.onnx", max_drop=0.5)  # wrong
capsedge.verify(None, "m.onnx", limit=10, tolerance={"poses": (1e-5, 1e-4)})
capsedge.verify(None, "m.onnx", limits=10)  # wrong
capsedge.profile(session, batch=[1, 8], duration=0.3)
capsedge.profile(session, batches=(1, 8))  # wrong
capsedge.build("m.onnx", "folder", target="c", fit={"flash": 1000})
capsedge.build("m.onnx", "folder", target=3)  # wrong
capsedge.train("images", "run", epochs=3, learning_rate=1e-3)
capsedge.train("images", "run", epoch=3)  # wrong
capsedge.batch("m.onnx", "images", "t.parquet", threads=1, resume=True)
capsedge.batch("m.onnx", "images", "t.parquet", resume="yes")  # wrong
capsedge.optimize("m.onnx", measure=0.0, batch="free")
capsedge.optimize("m.onnx", batch="any")  # wrong
capsedge.prune("c.pt", "d.safetensors", target_speedup=4, data="mnist")
capsedge.sweep("c.pt", "mnist", iterations=(1, 3))
capsedge.cascade("a.onnx", "b.onnx", data="mnist", min_agreement=0.95)
capsedge.import_checkpoint("weights.pt", iterations=3)
capsedge.serve("digits.onnx", port=9000, batch="auto")
capsedge.deploy_triton("digits.onnx", "models", mount="/mnt/models")
capsedge.deploy_kserve("models", "service.yaml", storage="s3://bucket/models", cpus=2)
