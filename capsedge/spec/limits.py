"""Limit the size of everything that comes from a file.

Readers check the limits before they allocate memory. ``python -m tools.spec`` writes them into C++, into
TypeScript and into docs/reference/limits.md, in this order.
"""

from __future__ import annotations

from typing import NamedTuple

KIB, MIB, GIB = 2**10, 2**20, 2**30


class Limit(NamedTuple):
    """A limit: how large, long or deep something may be.

    Attributes:
        value: the largest that is allowed.
        meaning: what it limits, in Markdown, with links from docs/reference.
    """

    name: str
    value: int
    meaning: str

    @property
    def unit(self) -> str:
        """``bytes`` or ``seconds``; empty for a number of things."""
        words = {"BYTES": "bytes", "MEMORY": "bytes", "SECONDS": "seconds"}
        return words.get(self.name.rpartition("_")[2], "")


LIMITS: dict[str, Limit] = {}


def _limit(name: str, value: int, meaning: str) -> int:
    """Enter a limit into the table; its value."""
    LIMITS[name] = Limit(name, value, meaning)
    return value


# JSON: metadata, configurations, metadata files, calibration tables, headers of checkpoints.
JSON_BYTES = _limit(
    "JSON_BYTES",
    32 * MIB,
    "one JSON document: a metadata file, a calibration table, the header of a checkpoint",
)
JSON_VALUES = _limit("JSON_VALUES", 2_000_000, "the values in one JSON document")
JSON_DEPTH = _limit("JSON_DEPTH", 32, "the nesting of one JSON document")
METADATA_BYTES = _limit("METADATA_BYTES", 8 * MIB, "the `capsedge.*` properties of one ONNX file")
METADATA_VALUES = _limit(
    "METADATA_VALUES",
    500_000,
    "the values in one such property, or in the metadata file of an engine; real ones have a few hundred",
)
TYPICAL_INPUT_BYTES = _limit(
    "TYPICAL_INPUT_BYTES",
    4 * KIB,
    "the [typical input](metadata.md#nothing-to-see), in the metadata or in a checkpoint",
)
TRAINING_SPLIT_BYTES = _limit(
    "TRAINING_SPLIT_BYTES",
    2 * MIB,
    "the [training split](metadata.md#every-field), in the metadata or in a checkpoint",
)
CASCADE_BYTES = _limit(
    "CASCADE_BYTES", 16 * KIB, "the description of a [cascade](metadata.md#cascade)"
)
TRACE_BYTES = _limit(
    "TRACE_BYTES", MIB, "the layers of a [trace](metadata.md#trace), in the metadata"
)
TRACED_BYTES = _limit("TRACED_BYTES", GIB, "the values of one call of `Session.trace`")

# Images: limits on one file.
IMAGE_FILE_BYTES = _limit("IMAGE_FILE_BYTES", 128 * MIB, "one image file, standard input included")
IMAGE_PIXELS = _limit("IMAGE_PIXELS", 2**26, "pixels of one image")
# Keeps the integers of `preprocessing.taps` below 2**53, hence exact as doubles too.
IMAGE_SIDE = _limit("IMAGE_SIDE", 32_768, "pixels along one side of an image")
INPUT_VALUES = _limit("INPUT_VALUES", 2**26, "values of one input image of a model")
INPUT_MAGNITUDE = _limit(
    "INPUT_MAGNITUDE",
    2**32,
    "bound on the values of an image: squares of larger ones [overflow FP32](operators.md#common-rules)",
)
GIF_BLOCKS = _limit("GIF_BLOCKS", 65_536, "blocks before the first frame of a GIF")
BMP_RUNS_BYTES = _limit(
    "BMP_RUNS_BYTES", 4 * MIB, "one BMP file with run-length encoding, which is slow to decode"
)
TIFF_TAGS = _limit("TIFF_TAGS", 4096, "tags of a TIFF's first page")
TIFF_VALUES = _limit("TIFF_VALUES", 2**18, "numbers in one TIFF tag, such as the offsets of strips")
TIFF_TILE_PIXELS = _limit(
    "TIFF_TILE_PIXELS", 2**22, "pixels of a TIFF's tile, unless the image itself has more"
)

# Videos: limits on one file, and on the process that decodes it.
VIDEO_PIXELS = _limit("VIDEO_PIXELS", 2**25, "pixels of one frame of a video")
VIDEO_FRAMES = _limit("VIDEO_FRAMES", 4_000_000, "frames of one video; 30 a second for 37 hours")
VIDEO_FRAME_SECONDS = _limit(
    "VIDEO_FRAME_SECONDS", 30, "seconds until the next frame of a video is decoded"
)
VIDEO_SECONDS = _limit(
    "VIDEO_SECONDS", 86_400, "processor seconds of the process that decodes one video"
)
VIDEO_MEMORY = _limit("VIDEO_MEMORY", 4 * GIB, "the address space of that process")
CAMERA_SECONDS = _limit("CAMERA_SECONDS", 10, "seconds until the next frame of a camera arrives")

# Data sets and checkpoints.
ARRAY_BYTES = _limit(
    "ARRAY_BYTES",
    4 * GIB,
    "the arrays of one data set file, all images of one folder, one checkpoint",
)
UNPACKED_BYTES = _limit(
    "UNPACKED_BYTES",
    512 * MIB,
    "the unpacked size of a compressed file",
)
UNPACKED_RATIO = _limit(
    "UNPACKED_RATIO",
    20,
    "the same as a multiple of the compressed size; the larger of the two limits applies",
)
ARCHIVE_INDEX_BYTES = _limit(
    "ARCHIVE_INDEX_BYTES", MIB, "the list of members of a zip archive (npz, `.pt`)"
)
FOLDER_FILES = _limit("FOLDER_FILES", 1_000_000, "names in one folder")
TABLE_BYTES = _limit("TABLE_BYTES", 64 * MIB, "a table `targets.csv`")
PICKLE_BYTES = _limit("PICKLE_BYTES", 64 * MIB, "the pickle of a `.pt` file, besides its tensors")
CIFAR_SECONDS = _limit(
    "CIFAR_SECONDS", 30, "seconds of the process that unpickles one batch of CIFAR-10"
)
CIFAR_MEMORY = _limit(
    "CIFAR_MEMORY", 256 * MIB, "the memory of that process, in addition to eight times the file"
)
TENSORS = _limit("TENSORS", 65_536, "tensors of one safetensors checkpoint")
TORCH_SECONDS = _limit("TORCH_SECONDS", 120, "seconds of the process that opens a `.pt` file")
TORCH_MEMORY = _limit(
    "TORCH_MEMORY",
    512 * MIB,
    "the memory of that process, in addition to twice the file's unpacked size",
)
KERAS_BYTES = _limit(
    "KERAS_BYTES", GIB, "one Keras file (`.h5`, and the weights in a `.keras` archive)"
)
KERAS_SECONDS = _limit("KERAS_SECONDS", 60, "seconds of the process that opens a Keras file")
KERAS_MEMORY = _limit("KERAS_MEMORY", 8 * GIB, "the address space of that process")

# Configurations of models.
ITERATIONS = _limit("ITERATIONS", 100, "routing iterations")
LAYERS = _limit("LAYERS", 512, "layers of one kind, blocks of a residual stem")
WIDTH = _limit("WIDTH", 2**16, "channels, capsule types, pose elements, classes, hidden units")
KERNEL = _limit("KERNEL", 1024, "windows, strides, padding")
NAME_CHARACTERS = _limit("NAME_CHARACTERS", 1024, "one class name")
ORIGIN_CHARACTERS = _limit(
    "ORIGIN_CHARACTERS",
    4096,
    "one text of the [origin](metadata.md#origin) of imported weights, or on the "
    "[scores](metadata.md#which-output-holds-the-scores)",
)
ORIGIN_ENTRIES = _limit(
    "ORIGIN_ENTRIES", 256, "notes of an origin, its differences, the results of its comparison"
)
MODEL_VALUES = _limit(
    "MODEL_VALUES", 2**26, "values that one layer of a checkpoint's model computes for one image"
)
MODEL_SUM = _limit(
    "MODEL_SUM", 2**28, "values that all layers of a checkpoint's model compute for one image"
)
MODEL_STEPS = _limit(
    "MODEL_STEPS",
    20_000,
    "operators that a checkpoint's model runs for one image, in all routing iterations",
)
MODEL_OPERATIONS = _limit(
    "MODEL_OPERATIONS",
    2**40,
    "floating-point operations of a model's convolutions and matrix products for one image",
)
# 255 * 127 times as many fit 32 bits.
CONVOLUTION_PRODUCTS = _limit(
    "CONVOLUTION_PRODUCTS",
    65_000,
    "products of 8-bit numbers that [`QuantizedConv`](operators/quantized-conv.md) sums in 32 bits",
)

# Graphs of ONNX files.
# A node takes a kilobyte of memory or more, and two bytes of the file.
GRAPH_NODES = _limit("GRAPH_NODES", 100_000, "nodes of a graph, its functions included")
LIVE_VALUES = _limit("LIVE_VALUES", 1024, "values live at once in a forecast")
VALUE_ELEMENTS = _limit("VALUE_ELEMENTS", 2**63 - 1, "elements of one value of a graph")
DIMENSIONS = _limit("DIMENSIONS", 64, "dimensions of one value of a graph")

# What `optimize`, `quantize` and `build` check before they start, in a process of its own.
COMPUTED_VALUES = _limit(
    "COMPUTED_VALUES",
    2**28,
    "numbers that one node of an ONNX file computes for one image, and that all nodes which depend on no "
    "input compute, in addition to `CONSTANT_STEPS` for each weight, where the file is optimized, quantized "
    "or built",
)
# The bodies of capsule operators cast, scale and rearrange their weights in up to nine nodes.
CONSTANT_STEPS = _limit(
    "CONSTANT_STEPS", 16, "numbers that nodes which depend on no input compute for each weight"
)
COMPUTED_SUM = _limit(
    "COMPUTED_SUM", 2**31, "numbers that all nodes which depend on an input compute for one image"
)
C_VALUES = _limit(
    "C_VALUES", 2**26, "`COMPUTED_VALUES` for a whole batch, with `build --target c` or `wasm`"
)
C_SUM = _limit(
    "C_SUM", 2**28, "`COMPUTED_SUM` for a whole batch, with `build --target c` or `wasm`"
)
C_BATCH = _limit(
    "C_BATCH",
    1024,
    "images of one call of a network in C or WebAssembly, whose source grows with each",
)
C_INPUTS = _limit(
    "C_INPUTS",
    125,
    "inputs of a network in C: with arena and outputs, the parameters that C99 promises",
)
CHECK_SECONDS = _limit("CHECK_SECONDS", 60, "seconds of the process that checks an ONNX file")
CHECK_MEMORY = _limit(
    "CHECK_MEMORY", GIB, "the memory of that process, in addition to eight times the file"
)

# ONNX files: what protobuf reads, and what keeps a hostile file from taking minutes.
FILE_BYTES = _limit(
    "FILE_BYTES", 2**31 - 1, "one ONNX file, since protobuf does not read larger messages"
)
WIRE_FIELDS = _limit(
    "WIRE_FIELDS", 4_000_000, "protobuf fields of one ONNX file; real ones have a few thousand"
)
WIRE_MESSAGES = _limit("WIRE_MESSAGES", 500_000, "protobuf messages of one ONNX file")
WIRE_DEPTH = _limit("WIRE_DEPTH", 100, "nesting of protobuf messages, as in protobuf itself")
ENGINE_BYTES = _limit("ENGINE_BYTES", 64 * GIB, "one TensorRT engine")
PLUGIN_BYTES = _limit("PLUGIN_BYTES", GIB, "the plugin library that an engine was built with")

# One run of an ONNX file: inputs and outputs, as far as the file fixes their sizes.
RUN_TENSORS = _limit(
    "RUN_TENSORS", 64, "inputs of a model, and outputs that hold the values of a regression"
)
RUN_BYTES = _limit(
    "RUN_BYTES",
    256 * MIB,
    "the inputs of one run, and its outputs, as far as an ONNX file fixes their sizes",
)

# Requests to a server of models.
REQUEST_BYTES = _limit(
    "REQUEST_BYTES",
    32 * MIB,
    "the body of one request to [`capsedge serve`](../how-to/serve.md), or one gRPC message",
)
HEADER_BYTES = _limit(
    "HEADER_BYTES", 64 * KIB, "the first line, headers and trailers of one request"
)
HEADERS = _limit("HEADERS", 256, "headers of one request")
REQUEST_VALUES = _limit(
    "REQUEST_VALUES", 2**23, "values of all inputs of one request, and of all outputs of its answer"
)
REQUEST_ITEMS = _limit(
    "REQUEST_ITEMS",
    65_536,
    "everything else in one request: texts, names, fields, images, numbers in short lists",
)
IN_FLIGHT_BYTES = _limit(
    "IN_FLIGHT_BYTES",
    512 * MIB,
    "bodies, messages and answers that the server holds at the same time",
)
CONCURRENT_MESSAGES = _limit(
    "CONCURRENT_MESSAGES", 4, "gRPC messages that arrive at the same time; others wait their turn"
)
REQUEST_SECONDS = _limit(
    "REQUEST_SECONDS",
    60,
    "seconds until a request has arrived, or until its client has received the next part of a long answer",
)
PIPELINED = _limit(
    "PIPELINED", 100, "requests of one connection that wait for the answer to an earlier one"
)
REQUESTS = _limit("REQUESTS", 2048, "requests, and open connections, at the same time")

RUN_THREADS = _limit("RUN_THREADS", 1024, "threads of one inference")
ENGINE_CALLS = _limit("ENGINE_CALLS", 1024, "concurrent calls of an engine in libcapsedge")
DECODER_VIEWS = _limit(
    "DECODER_VIEWS", 8, "reshapes and casts between the decoder of a graph and its output"
)
MEMBERS = _limit("MEMBERS", 64, "models of one [ensemble](../how-to/ensembles.md)")

# The process in which `capsedge optimize` analyses a file.
OPTIMIZE_SECONDS = _limit(
    "OPTIMIZE_SECONDS",
    900,
    "seconds of the process in which `capsedge optimize` analyses a file",
)
OPTIMIZE_BYTES = _limit("OPTIMIZE_BYTES", 16 * GIB, "the address space of that process")

# Sources of `capsedge batch`.
TAR_MEMBERS = _limit(
    "TAR_MEMBERS",
    10_000_000,
    "members of one tar archive of [`capsedge batch`](../how-to/batch.md)",
)
TAR_HEADER_BYTES = _limit(
    "TAR_HEADER_BYTES",
    64 * KIB,
    "one extended header of a tar archive, such as one with a long name",
)
PARQUET_FOOTER_BYTES = _limit("PARQUET_FOOTER_BYTES", 64 * MIB, "the footer of one parquet file")
PARQUET_VALUES = _limit(
    "PARQUET_VALUES", 2_000_000, "the values in one parquet footer, or in the header of one page"
)
PARQUET_DEPTH = _limit("PARQUET_DEPTH", 64, "nesting of a parquet footer or page header")
PARQUET_COLUMNS = _limit("PARQUET_COLUMNS", 10_000, "columns of one parquet file")
PARQUET_ROWS = _limit("PARQUET_ROWS", 10_000_000, "rows of one parquet file")
PARQUET_PAGE_HEADER_BYTES = _limit(
    "PARQUET_PAGE_HEADER_BYTES",
    MIB,
    "the header of one parquet page, whose unpacked size `UNPACKED_BYTES` and `UNPACKED_RATIO` limit",
)
PARQUET_READ_BYTES = _limit(
    "PARQUET_READ_BYTES", 64 * MIB, "values that are decoded at once, unless it is a single value"
)
PARQUET_LIST_VALUES = _limit(
    "PARQUET_LIST_VALUES", 2**28, "values of one row group in a column of lists"
)
PARQUET_LIST_RATIO = _limit(
    "PARQUET_LIST_RATIO",
    256,
    "the same, per byte of the row group, if there are more than `INPUT_VALUES`",
)


# --- What differs between runtimes ---


class RuntimeLimit(NamedTuple):
    """A smaller limit of one runtime. What exceeds it is refused where a file for it is written.

    Attributes:
        runtime: ``cuda``: the CUDA kernels, and the TensorRT plugins, which run them; ``libcapsedge``: the
            library for C and C++.
        limit: the name of the limit.
    """

    runtime: str
    limit: str
    value: int
    reason: str


DIFFERENCES = (
    RuntimeLimit(
        "cuda",
        "ITERATIONS",
        64,
        "a kernel gets its layer by value, with an inverse temperature for each iteration",
    ),
    RuntimeLimit(
        "libcapsedge",
        "DIMENSIONS",
        8,
        "for inputs and outputs: a shape is part of a structure, so that a call allocates no memory",
    ),
)


def runtime_limit(runtime: str, name: str) -> int:
    """The value of a limit in a runtime."""
    own = (d.value for d in DIFFERENCES if (d.runtime, d.limit) == (runtime, name))
    return next(own, LIMITS[name].value)


# The limits that `load` of the npm package can lower, with its name for each.
OPTIONS = {
    "FILE_BYTES": "fileBytes",
    "GRAPH_NODES": "nodes",
    "WIRE_MESSAGES": "messages",
    "WIRE_FIELDS": "fields",
    "METADATA_BYTES": "metadataBytes",
    "TYPICAL_INPUT_BYTES": "typicalInputBytes",
    "TRAINING_SPLIT_BYTES": "trainingSplitBytes",
    "CASCADE_BYTES": "cascadeBytes",
    "TRACE_BYTES": "traceBytes",
    "TRACED_BYTES": "tracedBytes",
    "IMAGE_FILE_BYTES": "imageFileBytes",
    "IMAGE_PIXELS": "imagePixels",
    "IMAGE_SIDE": "imageSide",
    "INPUT_VALUES": "inputValues",
    "RUN_BYTES": "runBytes",
}
