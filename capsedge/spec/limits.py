"""Limits on the size of everything that comes from a file. Readers check them before they allocate memory.

docs/reference/limits.md explains them; tests/test_limits.py compares the two.
"""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30

# JSON: metadata, configurations, metadata files, calibration tables, headers of checkpoints.
JSON_BYTES = 32 * MIB
JSON_VALUES = 2_000_000  # a calibration table has about 3,000 per tensor
JSON_DEPTH = 32
METADATA_BYTES = 8 * MIB  # of one model
TYPICAL_INPUT_BYTES = 4 * KIB  # of the typical input, in the metadata
CASCADE_BYTES = 16 * KIB  # of the description of a cascade, in the metadata
TRACE_BYTES = MIB  # of the description of traced layers, in the metadata
TRACED_BYTES = GIB  # of the values of one call of `Session.trace`

# Images: limits on one file.
IMAGE_FILE_BYTES = 128 * MIB
IMAGE_PIXELS = 2**26
IMAGE_SIDE = 32768  # keeps the integers of `resize.taps` below 2**53, hence exact as doubles too
INPUT_VALUES = 2**26  # of one input image of a model
GIF_BLOCKS = 65_536  # of extensions before the first frame
BMP_RUNS_BYTES = 4 * MIB  # of a BMP file with run-length encoding, whose decoder is slow
TIFF_TAGS = 4096  # of the first page
TIFF_VALUES = 2**18  # of one tag: offsets of strips, entries of a palette
TIFF_TILE_PIXELS = 2**22  # of one tile, if the image is not larger

# Data sets and checkpoints.
ARRAY_BYTES = 4 * GIB  # one file's arrays
UNPACKED_BYTES = 512 * MIB  # unpacked size of any compressed file ...
UNPACKED_RATIO = 20  # ... or this many times its compressed size, if that is larger
ARCHIVE_INDEX_BYTES = MIB  # the list of members of a zip archive
FOLDER_FILES = 1_000_000  # names in one folder
TABLE_BYTES = 64 * MIB  # of targets.csv
PICKLE_BYTES = 64 * MIB  # besides the arrays
PICKLE_OPCODES = 500_000
TENSORS = 65_536  # of one checkpoint
TORCH_SECONDS = 120  # of the process that opens a PyTorch file
TORCH_MEMORY = 512 * MIB  # of its address space, besides twice the file's unpacked size
KERAS_BYTES = GIB  # of one Keras file
KERAS_SECONDS = 60  # of the process that opens it
KERAS_MEMORY = 8 * GIB  # of address space, of which libraries take a part

# Configurations of models.
ITERATIONS = 100
LAYERS = 512
WIDTH = 2**16  # channels, types, classes, hidden units
KERNEL = 1024
NAME_CHARACTERS = 1024  # of one class name
ORIGIN_CHARACTERS = 4096  # of one text about where weights come from
ORIGIN_ENTRIES = 256  # notes, differences, results of a comparison
MODEL_VALUES = 2**26  # of one layer's output for one image
MODEL_SUM = 2**28  # of all layers' outputs for one image
MODEL_STEPS = 20_000  # operators of one image, routing iterations each on their own
MODEL_OPERATIONS = 2**40  # floating-point operations of one image

# Graphs of inspected ONNX files.
GRAPH_NODES = 100_000
LIVE_VALUES = 1024  # at once, in a forecast
VALUE_ELEMENTS = 2**63 - 1  # of one value: the range of 64 bits
DIMENSIONS = 64

# One run of an ONNX file: inputs and outputs, as far as the file fixes their sizes.
RUN_BYTES = 256 * MIB

# Requests to a server of models.
REQUEST_BYTES = 32 * MIB  # of one body, or one gRPC message
HEADER_BYTES = 64 * KIB  # of one request, its first line and trailers among them
HEADERS = 256  # of one request
REQUEST_VALUES = 2**23  # of all inputs of one request, and of all outputs of its answer
REQUEST_ITEMS = 65_536  # of one request: texts, names, fields, numbers outside of long lists
IN_FLIGHT_BYTES = 512 * MIB  # of all bodies, messages and answers that are held at the same time
CONCURRENT_MESSAGES = 4  # gRPC messages that arrive at the same time; others wait
REQUEST_SECONDS = 60  # until a request has arrived, or its client has taken a part of the answer
PIPELINED = 100  # requests of one connection that wait for the answer to an earlier one
REQUESTS = 2048  # at the same time, and open connections

MEMBERS = 64  # of one ensemble

# The process in which `capsedge optimize` takes a file apart.
OPTIMIZE_SECONDS = 900
OPTIMIZE_BYTES = 16 * GIB  # of address space, of which libraries take a part

# Sources of `capsedge batch`.
TAR_MEMBERS = 10_000_000  # of one archive
TAR_HEADER_BYTES = 64 * KIB  # of one extended header, such as one with a long name
PARQUET_FOOTER_BYTES = 64 * MIB
PARQUET_VALUES = 2_000_000  # in the footer, or in the header of one page
PARQUET_DEPTH = 64  # of structures in them
PARQUET_COLUMNS = 10_000
PARQUET_ROWS = 10_000_000  # of one file
PARQUET_PAGE_HEADER_BYTES = MIB
PARQUET_LIST_VALUES = 2**28  # of one row group, in a column of lists ...
PARQUET_LIST_RATIO = 256  # ... and for each of its bytes, if that is more than `INPUT_VALUES`
PARQUET_READ_BYTES = 64 * MIB  # of values decoded at once, if that is more than one
