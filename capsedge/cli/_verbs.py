"""List the verbs and their help lines, so that ``capsedge --help`` imports none of them."""

from __future__ import annotations

from typing import NamedTuple

MODELS = "From a checkpoint to a file"
SMALLER = "Smaller and faster"
DEVICE = "On the device"
ELSEWHERE = "Elsewhere"
LOOK = "Information"


class Verb(NamedTuple):
    """A verb, or a group of them.

    Attributes:
        module: the function, ``module:name`` below `capsedge.cli`; empty for a group.
        help: the first sentence of its help.
        panel: the heading under which it is listed.
    """

    module: str
    help: str
    panel: str


VERBS = {
    "train": Verb(
        "train:command",
        "Train a model; writes model.safetensors, history.jsonl and the state to resume from.",
        MODELS,
    ),
    "import": Verb(
        "import_:command",
        "Make a checkpoint of the trained weights of a public capsule network.",
        MODELS,
    ),
    "export": Verb(
        "export:command",
        "Export a trained network to one ONNX file, compared with PyTorch before it is written.",
        MODELS,
    ),
    "optimize": Verb(
        "optimize:command",
        "Find capsule routing in an ONNX file from any tool, replace it with operators, verify the result.",
        MODELS,
    ),
    "verify": Verb(
        "verify:command",
        "Compare a model with its PyTorch source: numbers, decisions, accuracy, and a verdict.",
        MODELS,
    ),
    "prune": Verb(
        "prune:command",
        "Prune a checkpoint; if it loses too much, write .rejected and exit with code 4.",
        SMALLER,
    ),
    "quantize": Verb(
        "quantize:command",
        "Quantize an FP32 file; if it loses too much, write .rejected and exit with code 4.",
        SMALLER,
    ),
    "sweep": Verb(
        "sweep:command",
        "Search iterations, couplings, precisions and checkpoints for the best accuracy, latency and size.",
        SMALLER,
    ),
    "cascade": Verb(
        "cascade:command",
        "Join two networks: the small one answers, and escalates unsure images to the large one.",
        SMALLER,
    ),
    "build": Verb(
        "build:command",
        "Build a TensorRT engine from an ONNX file: for this machine, or a portable one.",
        SMALLER,
    ),
    "infer": Verb(
        "infer:command", "Classify images, or compute the values of a regression.", DEVICE
    ),
    "batch": Verb(
        "batch:command",
        "Classify any number of images into a parquet table, on this machine or on a Ray cluster.",
        DEVICE,
    ),
    "see": Verb(
        "see:command",
        "Draw what a network sees: reconstructions, poses, overlapping objects, routing, hardest images.",
        DEVICE,
    ),
    "profile": Verb(
        "profile:command",
        "Measure latency, memory and time by layer; compare backends and models.",
        DEVICE,
    ),
    "serve": Verb(
        "serve:command",
        "Serve models over REST and gRPC by the Open Inference Protocol.",
        ELSEWHERE,
    ),
    "deploy": Verb("", "Put models where people use them.", ELSEWHERE),
    "inspect": Verb(
        "inspect:command",
        "Show metadata, operators, sizes, and the memory of the votes by layer and batch.",
        LOOK,
    ),
    "config": Verb(
        "config:command",
        "Print what a build of a C or C++ program needs: flags, folders, models.",
        LOOK,
    ),
    "doctor": Verb(
        "doctor:command",
        "List what is installed, what works, what each missing part costs, and the command that fixes it.",
        LOOK,
    ),
}

GROUPS = {
    "deploy": {
        "web": Verb(
            "deploy:web",
            "Write a folder with a page that runs models in the browser; any server of static files can "
            "host it.",
            "Commands",
        ),
        "triton": Verb(
            "deploy:triton",
            "Write a model repository for Triton Inference Server.",
            "Commands",
        ),
        "kserve": Verb(
            "deploy:kserve",
            "Write an InferenceService of KServe that runs a folder of `capsedge deploy triton`.",
            "Commands",
        ),
    }
}
