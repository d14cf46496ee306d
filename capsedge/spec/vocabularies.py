"""Define the words that files, options and answers use: tasks, routings, precisions, targets, outputs.

``python -m tools.spec`` makes enumerations of them in C++ and unions in TypeScript.
"""

from __future__ import annotations

CLASSIFICATION = ("single-label", "multi-label")
REGRESSION = "regression"
TASKS = (*CLASSIFICATION, REGRESSION)
ROUTINGS = ("dynamic", "em", "attention", "self-attention")
PRECISIONS = ("fp32", "fp16", "int8", "mixed")
RESIZE_RULES = ("stretch", "pad", "crop", "center")
PER_IMAGE = ("", "standardize", "min-max")
LAYOUTS = ("NCHW", "NHWC")
ORDERS = ("RGB", "BGR")
SCORE_KINDS = ("length", "logits", "probability")
TRACE_KINDS = ("couplings", "poses", "agreement", "distances", "activations", "children")
TRACE_REQUIRED = TRACE_KINDS[:3]  # the others belong to EM routing
TENSORRT, TENSORRT_RTX = "tensorrt", "tensorrt-rtx"
TARGETS = {TENSORRT: "TensorRT", TENSORRT_RTX: "TensorRT-RTX"}  # of engines, and their titles
PLUGINS = ("native", "fused")  # whether an engine needs the plugin library

# The type of each in C++ and TypeScript.
VOCABULARIES: dict[str, tuple[str, ...]] = {
    "Task": TASKS,
    "Routing": ROUTINGS,
    "Precision": PRECISIONS,
    "Resize": RESIZE_RULES,
    "PerImage": PER_IMAGE,
    "Layout": LAYOUTS,
    "Order": ORDERS,
    "ScoreKind": SCORE_KINDS,
    "TraceKind": TRACE_KINDS,
    "Target": tuple(TARGETS),
    "Plugin": PLUGINS,
}

# Names of a graph's outputs.
LENGTHS, LOGITS, POSES = "lengths", "logits", "poses"
ESCALATED = "escalated"  # [N], bool: the images that the large network of a cascade decided
RECONSTRUCTION = "reconstruction"
OUTPUT_NAMES = (LENGTHS, LOGITS, POSES, ESCALATED, RECONSTRUCTION)
