"""How large anything that comes from a file may be. Every reader judges sizes by these before it allocates.

docs/limits.md explains them; tests/test_limits.py compares the two.
"""

from __future__ import annotations

KIB, MIB, GIB = 2**10, 2**20, 2**30

# JSON: metadata, configurations, passports, calibration tables, headers of checkpoints.
JSON_BYTES = 32 * MIB
JSON_VALUES = 2_000_000  # a calibration table has about 3,000 a tensor
JSON_DEPTH = 32
METADATA_BYTES = 8 * MIB  # of one model

# Images: what one PNG or JPEG file may be.
IMAGE_FILE_BYTES = 128 * MIB
IMAGE_PIXELS = 2**26
IMAGE_SIDE = 32768  # keeps the integers of `resize.taps` below 2**53, hence exact as doubles too
INPUT_VALUES = 2**26  # of one input image of a model

# Data sets and checkpoints.
ARRAY_BYTES = 4 * GIB  # one file's arrays
UNPACKED_BYTES = 512 * MIB  # what any compressed file may unpack to ...
UNPACKED_RATIO = 20  # ... or so many times its own size, if that is more
ARCHIVE_INDEX_BYTES = MIB  # the list of members of a zip archive
FOLDER_FILES = 1_000_000  # names in one folder
PICKLE_BYTES = 64 * MIB  # besides the arrays
PICKLE_OPCODES = 500_000
TENSORS = 65_536  # of one checkpoint

# Configurations of models.
ITERATIONS = 100
LAYERS = 512
WIDTH = 2**16  # channels, types, classes, hidden units
KERNEL = 1024
NAME_CHARACTERS = 1024  # of one class name

# Graphs of ONNX files, where they are inspected.
GRAPH_NODES = 100_000
LIVE_VALUES = 1024  # at once, in a forecast
VALUE_ELEMENTS = 2**63 - 1  # of one value: what 64 bits count
DIMENSIONS = 64

# One run of an ONNX file: inputs and outputs, as far as the file fixes their sizes.
RUN_BYTES = 256 * MIB
