"""Define what files state about themselves: the fields of the metadata, of ONNX files and engines.

``python -m tools.spec`` makes from it what C++ and TypeScript know of the fields, and the tables of
docs/reference/metadata.md. The dataclasses of ``runtime`` have the same fields; a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SCHEMA = 1  # version of the metadata
ENGINE_SCHEMA = 1  # version of an engine's metadata file
PREFIX = "capsedge."  # prefix of all property names
QUANTIZATION_KEY = "capsedge_quantization"  # what a file without metadata was quantized with
INPUTS_KEY = "capsedge_inputs"  # what a file states about its inputs, with or without metadata


class _Required:
    """There is no default."""


REQUIRED: Any = _Required()
# Pixels of a side of an image with a typical input: a frame, and something inside it.
LEAST_SIDE = 3
# A score from which a class applies, between the margins of the margin loss (Sabour et al. 2017, eq. 4).
CONFIDENT = 0.5
# In a mask: of a pixel that the network did not see. So a mask has at most this many classes.
UNKNOWN = 255
# What `build` writes besides engines: kinds in the description of a folder of C, and of WebAssembly.
C_KIND, WASM_KIND = "capsedge-c", "capsedge-wasm"
COMPILED_SCHEMA = 1  # version of these descriptions
WASM_SECTION = "capsedge"  # custom section of a WebAssembly module that holds it
# The manifest of a folder of `deploy`, and the folder of its page with ONNX Runtime for WebAssembly.
MANIFEST, MANIFEST_SCHEMA = "capsedge.json", 1
PAGE_RUNTIME = "runtime/"


@dataclass(frozen=True)
class MetadataField:
    """A property of a file, or a member of one.

    Attributes:
        kind: ``string``, ``integer``, ``number``, ``boolean``; ``strings``, ``numbers``,
            ``integers`` (three), ``list of integers``: lists;
            ``pair of numbers``, ``pair of integers``; ``map of strings``, ``map of integers``,
            ``map of scalars``: an object with any names; ``values``: an object of which nothing is read;
            ``object``: one with ``members``; ``objects``: a list of such.
        meaning: Markdown of docs/reference.
        default: value if it is missing; REQUIRED if it must not be.
        nullable: whether it may be null.
        members: members of an object.
        limit: on the characters of its text, where that is less than ``METADATA_BYTES``.
    """

    name: str
    kind: str
    meaning: str
    default: Any = REQUIRED
    nullable: bool = False
    members: tuple[MetadataField, ...] = ()
    limit: str = ""


_PREPROCESSING = (
    MetadataField("height", "integer", "height of the input, in pixels"),
    MetadataField("width", "integer", "width of the input, in pixels"),
    MetadataField(
        "channels", "integer", "1 (grey) or 3 (RGB); with other counts only arrays are accepted"
    ),
    MetadataField("scale", "number", "factor from the 0..255 range of a pixel", 1.0 / 255.0),
    MetadataField(
        "mean",
        "numbers",
        "mean of each channel, after the scale: `(pixel * scale - mean) / std`",
        (0.0,),
    ),
    MetadataField("std", "numbers", "standard deviation of each channel", (1.0,)),
    MetadataField("resize", "string", "`stretch`, `pad`, `crop` or `center`", "stretch"),
    MetadataField("per_image", "string", "`standardize`, `min-max`, or empty for neither", ""),
    MetadataField(
        "layout", "string", "`NCHW`, or `NHWC` if the input has the channels last", "NCHW"
    ),
    MetadataField(
        "order", "string", "order of three channels: `RGB` or `BGR`; images are given as RGB", "RGB"
    ),
)
_OUTPUTS = (
    MetadataField(
        "scores",
        "string",
        "the output that decides the class, for a segmentation that of each pixel; empty for a regression",
        "",
    ),
    MetadataField("kind", "string", "kind of the scores: `length`, `logits` or `probability`", ""),
    MetadataField(
        "poses", "string", "the output with a pose for each class; empty if there is none", ""
    ),
    MetadataField("values", "strings", "the outputs of a regression", ()),
    MetadataField(
        "names", "strings", "names of the values, in the order of outputs and elements", ()
    ),
    MetadataField("units", "strings", "units of the values, possibly empty", ()),
)
_ORIGIN = (
    MetadataField("family", "string", "the code base"),
    MetadataField("source", "string", "the repository"),
    MetadataField("licence", "string", "licence that the repository states; empty if none"),
    MetadataField("dialect", "string", "the network's function, in words"),
    MetadataField("differences", "strings", "differences from the paper"),
    MetadataField("file", "string", "the file of weights that was imported"),
    MetadataField("file_sha256", "string", "checksum of that file"),
    MetadataField("notes", "strings", "assumptions made by the import, and later changes", ()),
    MetadataField(
        "compared",
        "map of scalars",
        "results of `--reference-code`: the author's code, the number of inputs, the largest difference, "
        "flips, margins; null if the network was not compared with its author's code",
        None,
        nullable=True,
    ),
)
_TYPICAL_INPUT = (
    *(
        MetadataField(name, "pair of numbers", "the span of a measurement")
        for name in ("contrast", "level", "roughness", "frame_level", "frame_contrast")
    ),
    MetadataField("images", "integer", "number of images that the spans come from", 0),
    MetadataField("data_sha256", "string", "digest of these images", ""),
)
_TRAINING_SPLIT = (
    MetadataField("seed", "integer", "seed of the drawing"),
    MetadataField(
        "test", "string", "threshold of each class for test images, 8 hexadecimal digits each"
    ),
    MetadataField("validation", "string", "the same for validation images"),
    MetadataField(
        "sample", "string", "64 bits of the checksums of up to 64 training images, in hexadecimal"
    ),
)
_PARENT = (
    MetadataField("file", "string", "name of the file"),
    MetadataField("sha256", "string", "checksum of the file"),
    MetadataField("bytes", "integer", "size of the file"),
    MetadataField("precision", "string", "precision of the file", "fp32"),
    MetadataField("checkpoint_sha256", "string", "checksum of the file's checkpoint", ""),
)
_CASCADE = (
    MetadataField("small", "object", "the file of the small network", members=_PARENT),
    MetadataField("large", "object", "the file of the large network", members=_PARENT),
    MetadataField(
        "margin", "number", "an image is escalated if the margin of its scores is below this"
    ),
    MetadataField(
        "score",
        "number",
        "an image is also escalated if its best score is below this; null if only the margin decides",
        nullable=True,
    ),
    MetadataField("min_agreement", "number", "the requested agreement with the large network"),
    MetadataField("agreement", "number", "the agreement on the held-out images"),
    MetadataField(
        "agreement_at_least", "number", "lower bound of that agreement, with 95 % confidence"
    ),
    MetadataField("share", "number", "share of the held-out images that were escalated"),
    MetadataField("images", "integer", "number of held-out images"),
    MetadataField(
        "data_sha256", "string", "[digest](data.md#the-digest-of-a-data-set) of the held-out images"
    ),
    MetadataField(
        "cost",
        "number",
        "time of the small network for an image, relative to the large one's, on the machine that made "
        "the file",
    ),
)
_TRACE_LAYER = (
    MetadataField("name", "string", "name of the layer: `classes`, `capsules.0`"),
    MetadataField("routing", "string", "`dynamic`, `em`, `attention` or `self-attention`"),
    MetadataField("iterations", "integer", "number of routing iterations, T"),
    MetadataField(
        "outputs",
        "map of strings",
        "the output for each kind of value: `couplings`, `poses`, `agreement`; for EM routing also "
        "`distances`, `activations` and `children`",
    ),
    MetadataField(
        "grid",
        "pair of integers",
        "rows and columns of the parents' map; `[1, 1]` for a dense layer, whose outputs lack these axes",
        (1, 1),
    ),
    MetadataField(
        "child_grid",
        "pair of integers",
        "rows and columns of the children's map; null if unknown",
        None,
        nullable=True,
    ),
    MetadataField(
        "kernel",
        "pair of integers",
        "size of the window that a parent sees; null if unknown",
        None,
        nullable=True,
    ),
    MetadataField(
        "strides",
        "pair of integers",
        "steps from one window to the next; null if unknown",
        None,
        nullable=True,
    ),
    MetadataField(
        "types_first",
        "boolean",
        "whether the children of a window are ordered by type, row and column, instead of by row, "
        "column and type",
        False,
    ),
)
_CHOSEN_SCORES = (
    MetadataField("reason", "string", "why this output was chosen as the scores"),
    MetadataField(
        "made_of",
        "string",
        "the output from which export computed the scores; empty if the network does",
        "",
    ),
    MetadataField("classes", "integer", "number of scores that were computed", 0),
    MetadataField("capsules", "boolean", "whether the scores are lengths of capsules", False),
)

# What `capsedge_inputs` states about each input.
INPUT_FIELDS = (
    MetadataField(
        "entries",
        "integer",
        "entries of the table that it indexes; null if it indexes none",
        None,
        nullable=True,
    ),
    MetadataField(
        "longest", "list of integers", "largest size of each axis, 0 if the shape alone decides", ()
    ),
    MetadataField(
        "independent",
        "boolean",
        "whether the result for a row is the same whatever the others are",
        False,
    ),
)

_ROUTED_LAYER = (
    MetadataField("name", "string", "name of the layer"),
    MetadataField("routing", "string", "`dynamic`, `em`, `attention` or `self-attention`"),
    MetadataField("iterations", "integer", "routing iterations"),
)

# The properties of a file, `capsedge.` before each name, besides `schema`. Nullable ones with the default
# None are missing or null where a file does not state them.
FIELDS = (
    MetadataField(
        "architecture",
        "string",
        "the model family, or the class of a module of your own; empty for a file from another tool",
    ),
    MetadataField(
        "configuration", "values", "configuration of a model of the package, as in its checkpoint"
    ),
    MetadataField(
        "routing",
        "string",
        "`dynamic`, `em`, `attention` or `self-attention`; several kinds are joined by commas; empty if "
        "not stated",
    ),
    MetadataField(
        "iterations",
        "integer",
        "routing iterations; 0 if not stated, or if the layers differ in them",
    ),
    MetadataField(
        "class_names",
        "strings",
        "names of the classes; empty if they have none, and for a regression; two, background and "
        "foreground, for a segmentation with one map of scores",
    ),
    MetadataField(
        "preprocessing",
        "object",
        "how an image becomes the input: [below](#preprocessing); or null",
        nullable=True,
        members=_PREPROCESSING,
    ),
    MetadataField(
        "task",
        "string",
        "`single-label`, `multi-label`, `regression` or `segmentation`",
        "single-label",
    ),
    MetadataField("precision", "string", "`fp32`, `fp16`, `int8` or `mixed`", "fp32"),
    MetadataField("calibration", "values", "how a quantized file was calibrated and judged", {}),
    MetadataField(
        "checkpoint_sha256", "string", "checksum of the checkpoint that was exported", ""
    ),
    MetadataField("parity", "values", "for an export, the comparison with PyTorch", {}),
    MetadataField(
        "outputs",
        "object",
        "which outputs hold the answer: [below](#outputs); absent for `lengths` or `logits`, and "
        "`poses`",
        None,
        nullable=True,
        members=_OUTPUTS,
    ),
    MetadataField(
        "origin",
        "object",
        "where imported weights come from: [below](#origin)",
        None,
        nullable=True,
        members=_ORIGIN,
    ),
    MetadataField(
        "typical_input",
        "object",
        "what images like those of training have in common: [above](#nothing-to-see)",
        None,
        nullable=True,
        members=_TYPICAL_INPUT,
        limit="TYPICAL_INPUT_BYTES",
    ),
    MetadataField(
        "training_split",
        "object",
        "which images were held out from training: of data without test images, those for which the first "
        "32 bits of SHA-256(seed, SHA-256(pixels)) are below the threshold of their class",
        None,
        nullable=True,
        members=_TRAINING_SPLIT,
        limit="TRAINING_SPLIT_BYTES",
    ),
    MetadataField(
        "cascade",
        "object",
        "the two networks of a cascade: [below](#cascade)",
        None,
        nullable=True,
        members=_CASCADE,
        limit="CASCADE_BYTES",
    ),
    MetadataField(
        "trace",
        "object",
        "the outputs that show the routing: [below](#trace)",
        None,
        nullable=True,
        members=(
            MetadataField("layers", "objects", "in the order of routing", members=_TRACE_LAYER),
        ),
        limit="TRACE_BYTES",
    ),
    MetadataField(
        "fused_routing",
        "object",
        "the routing that was recognized in a network that is not one of the package",
        None,
        nullable=True,
        members=(
            MetadataField(
                "routed_layers", "objects", "in the order of routing", members=_ROUTED_LAYER
            ),
        ),
    ),
    MetadataField(
        "chosen_scores",
        "object",
        "why this output was chosen as the scores (`reason`); for scores that `export` added, the output "
        "that they come from (`made_of`, `classes`, `capsules`)",
        None,
        nullable=True,
        members=_CHOSEN_SCORES,
    ),
)

_MACHINE = (
    MetadataField("tensorrt", "string", "version of TensorRT or TensorRT-RTX, with all four parts"),
    MetadataField("cuda", "string", "version of the CUDA runtime; empty for a portable engine"),
    MetadataField("gpu", "string", "name of the GPU; empty for a portable engine"),
    MetadataField(
        "compute_capability",
        "string",
        "compute capability of the GPU, as `8.7`; empty for a portable engine",
    ),
    MetadataField("architecture", "string", "architecture of the CPU"),
    MetadataField("multiprocessors", "integer", "multiprocessors of the GPU; 0 if unknown", 0),
    MetadataField("power_mode", "string", "power mode of a Jetson", ""),
)
# The metadata file of an engine, besides `schema`.
ENGINE_FIELDS = (
    MetadataField("engine_sha256", "string", "checksum of the engine"),
    MetadataField("engine_bytes", "integer", "size of the engine"),
    MetadataField(
        "machine", "object", "the machine that the engine was built on", members=_MACHINE
    ),
    MetadataField("plugin", "string", "`native` (no plugin) or `fused`"),
    MetadataField("plugin_library", "string", "the plugin library; empty without one"),
    MetadataField("plugin_sha256", "string", "checksum of the plugin library"),
    MetadataField("precision", "string", "the requested precision, which was found in the engine"),
    MetadataField("layers", "map of integers", "layers by the element types of their data"),
    MetadataField("batch", "integers", "smallest, best and largest batch"),
    MetadataField("source", "string", "the ONNX file"),
    MetadataField("source_sha256", "string", "checksum of the ONNX file"),
    MetadataField(
        "metadata",
        "map of strings",
        "properties of the ONNX file under `capsedge.`, and `capsedge_inputs`",
    ),
    MetadataField("command", "string", "the command that built the engine"),
    MetadataField(
        "products", "map of integers", "convolutions and products by the type of their inputs", {}
    ),
    MetadataField("target", "string", "`tensorrt` or `tensorrt-rtx`", "tensorrt"),
    MetadataField(
        "compute_capabilities", "strings", "compute capabilities of a portable engine", ()
    ),
    MetadataField(
        "length",
        "list of integers",
        "smallest, best and largest length of histories; empty if the ONNX file has no free length",
        (),
    ),
)
