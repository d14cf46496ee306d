"""List the verbs and their help lines, so that ``capsedge --help`` imports none of them."""

from __future__ import annotations

from typing import NamedTuple

MODELS = "Train, export and verify"
SMALLER = "Smaller and faster"
DEVICE = "Run"
ELSEWHERE = "Serve and deploy"
LOOK = "Information"


class Verb(NamedTuple):
    """A verb, or a group of them.

    Attributes:
        module: the function, ``module:name`` below `capsedge.cli`; empty for a group.
        help: the first sentence of its help.
        panel: the heading under which it is listed.
        example: a command line that its help shows; empty for a group.
    """

    module: str
    help: str
    panel: str
    example: str


VERBS = {
    "train": Verb(
        "train:command",
        "Train a capsule network on images.",
        MODELS,
        "capsedge train --data photos/ -o run",
    ),
    "import": Verb(
        "import_:command",
        "Convert the weights of a public capsule network to a checkpoint.",
        MODELS,
        "capsedge import capsnet.pt -o capsnet.safetensors",
    ),
    "export": Verb(
        "export:command",
        "Export a trained network to one ONNX file.",
        MODELS,
        "capsedge export --module net.py:Net --weights net.pt --example 1x28x28",
    ),
    "optimize": Verb(
        "optimize:command",
        "Speed up the capsule routing in an ONNX file from any tool.",
        MODELS,
        "capsedge optimize model.onnx -o optimized.onnx",
    ),
    "verify": Verb(
        "verify:command",
        "Compare a file with its PyTorch source.",
        MODELS,
        "capsedge verify digits.onnx",
    ),
    "prune": Verb(
        "prune:command",
        "Remove channels, capsules and units from a checkpoint.",
        SMALLER,
        "capsedge prune run/model.safetensors --data mnist/ -o pruned.safetensors",
    ),
    "quantize": Verb(
        "quantize:command",
        "Convert an FP32 file to INT8, FP16 or mixed precision.",
        SMALLER,
        "capsedge quantize digits.onnx --calib-data mnist/ -o digits.int8.onnx",
    ),
    "sweep": Verb(
        "sweep:command",
        "Search for the best trade-off of accuracy, latency and size.",
        SMALLER,
        "capsedge sweep --checkpoint digits-em --data mnist/ --picture front.svg",
    ),
    "cascade": Verb(
        "cascade:command",
        "Join a small and a large network in one file.",
        SMALLER,
        "capsedge cascade small.onnx large.onnx --data mnist/ -o cascade.onnx",
    ),
    "build": Verb(
        "build:command",
        "Build a TensorRT engine, plain C or WebAssembly from an ONNX file.",
        SMALLER,
        "capsedge build digits.onnx -o digits.engine",
    ),
    "infer": Verb(
        "infer:command",
        "Classify or segment images, compute the values of a regression, or the outputs for arrays.",
        DEVICE,
        "capsedge infer --model digits.onnx image.png",
    ),
    "batch": Verb(
        "batch:command",
        "Classify any number of images into a parquet table.",
        DEVICE,
        "capsedge batch digits-em photos/ -o answers.parquet",
    ),
    "see": Verb(
        "see:command",
        "Draw what a network sees.",
        DEVICE,
        "capsedge see digits.onnx image.png -o picture.png",
    ),
    "profile": Verb(
        "profile:command",
        "Measure latency, memory and the time of every layer.",
        DEVICE,
        "capsedge profile digits.onnx --report report.html",
    ),
    "serve": Verb(
        "serve:command",
        "Serve models over REST and gRPC (Open Inference Protocol).",
        ELSEWHERE,
        "capsedge serve digits.onnx --port 8080",
    ),
    "deploy": Verb(
        "",
        "Put models on a web page, on Triton or on KServe.",
        ELSEWHERE,
        "",
    ),
    "inspect": Verb(
        "inspect:command",
        "Show what a file holds: metadata, operators, sizes, memory.",
        LOOK,
        "capsedge inspect digits.onnx",
    ),
    "config": Verb(
        "config:command",
        "Print flags and folders for building C and C++ programs.",
        LOOK,
        "gcc main.c $(capsedge config cflags libs)",
    ),
    "doctor": Verb(
        "doctor:command",
        "Show what is installed, what is missing, and how to fix it.",
        LOOK,
        "capsedge doctor",
    ),
}

GROUPS = {
    "deploy": {
        "web": Verb(
            "deploy:web",
            "Write a web page that runs models in the browser.",
            "Commands",
            "capsedge deploy web digits.onnx -o site",
        ),
        "triton": Verb(
            "deploy:triton",
            "Write a model repository for Triton Inference Server.",
            "Commands",
            "capsedge deploy triton digits.onnx -o repository",
        ),
        "kserve": Verb(
            "deploy:kserve",
            "Write a KServe service for a folder of `capsedge deploy triton`.",
            "Commands",
            "capsedge deploy kserve repository --storage s3://bucket/models -o service.yaml",
        ),
    }
}

# The commands on the README's first page, and the purpose of each.
FIRST_COMMANDS = (
    ("capsedge export -o digits.onnx", "Export the bundled digit model."),
    ("capsedge verify digits.onnx", "Compare the file with PyTorch."),
    ("capsedge infer -m digits.onnx image.png", "Classify an image."),
    ("capsedge profile digits.onnx", "Measure its speed and memory."),
    ("capsedge doctor", "Show what is installed or missing."),
)
