"""Define the words that files, options and answers use: tasks, routings, precisions, targets, outputs.

``python -m tools.spec`` makes enumerations of them in C++ and unions in TypeScript.
"""

from __future__ import annotations

from typing import Literal, get_args

CLASSIFICATION = ("single-label", "multi-label")
REGRESSION = "regression"
SEGMENTATION = "segmentation"
TASKS = (*CLASSIFICATION, REGRESSION, SEGMENTATION)
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
TARGETS = {TENSORRT: "TensorRT", TENSORRT_RTX: "TensorRT-RTX"}  # engine targets, with titles
PLUGINS = ("native", "fused")  # whether an engine needs the plugin library

# What options take, besides the words of files.
TASK_CHOICES = ("classification", *TASKS)
PIXEL_RANGES = {
    "0-1": (1 / 255, 0.0),
    "0-255": (1.0, 0.0),
    "-1-1": (2 / 255, 1.0),
}  # that a network was trained on: factor from 0..255, and what is subtracted
Ops = Literal["auto", "fused", "portable"]
OPS: tuple[str, ...] = get_args(Ops)
QUANTIZE_OPS = OPS[:2]
PLUGIN_CHOICES = ("auto", *PLUGINS)
QUANTIZE_PRECISIONS = ("int8", "fp16", "mixed")
SWEEP_PRECISIONS = PRECISIONS[:3]
QDQ_TARGETS = (TENSORRT, "openvino", "litert")  # targets with Q/DQ pairs around convolutions
QUANTIZE_TARGETS = ("ort-cpu", *QDQ_TARGETS)
StandardRuntime = Literal["openvino", "litert", "mnn"]  # they only run standard operators
RUNTIMES: tuple[str, ...] = get_args(StandardRuntime)
PEERS = ("ort", *RUNTIMES, "torch")  # peers that are compared with capsedge
PROVIDERS = ("auto", "cpu", "cuda", "tensorrt")  # providers of ONNX Runtime

# The fields of a description, which `runtime.description_fields` reads.
DESCRIPTION_FIELDS = (
    *("classes", "task", "size", "range", "mean", "std", "per_image", "order", "resize"),
    *("scores", "score_kind", "poses", "values", "outputs", "units", "typical_data"),
)

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
ExtraOutput = Literal["reconstruction", "couplings", "trace"]  # that an export may have
EXTRA_OUTPUTS: tuple[str, ...] = get_args(ExtraOutput)
RECONSTRUCTION, COUPLINGS, TRACE = EXTRA_OUTPUTS
ZOO_ROUTINGS = ROUTINGS[:3]  # each with a trained model, digits-<routing>
OUTPUT_NAMES = (LENGTHS, LOGITS, POSES, ESCALATED, RECONSTRUCTION)
