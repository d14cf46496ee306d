"""Define the wire format of ONNX files: the fields that their messages have.

The messages are as ``onnx.proto`` of ONNX 1.23 (IR version 14) declares them: of each the numbers of its
fields and what they hold. ``*`` marks a repeated field, ``|`` a member of the message's one ``oneof``. All
readers go by this table and by nothing else, so that no field is read in one way here and in another by
protobuf.
"""

from __future__ import annotations

# Domains of operators that run: ONNX's own, ONNX Runtime's, ours, and those of a file's own functions.
DOMAIN = "capsedge"
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", DOMAIN)

# TensorProto.DataType: name and bits of an element.
ELEMENT_TYPES: dict[int, tuple[str, int]] = {
    1: ("float32", 32), 2: ("uint8", 8), 3: ("int8", 8), 4: ("uint16", 16), 5: ("int16", 16),
    6: ("int32", 32), 7: ("int64", 64), 8: ("string", 0), 9: ("bool", 8), 10: ("float16", 16),
    11: ("float64", 64), 12: ("uint32", 32), 13: ("uint64", 64), 14: ("complex64", 64),
    15: ("complex128", 128), 16: ("bfloat16", 16), 17: ("float8e4m3fn", 8), 18: ("float8e4m3fnuz", 8),
    19: ("float8e5m2", 8), 20: ("float8e5m2fnuz", 8), 21: ("uint4", 4), 22: ("int4", 4),
}  # fmt: skip
# Those that libcapsedge and browsers pass on; texts only browsers.
PASSED_TYPES = {number: each for number, each in ELEMENT_TYPES.items() if number <= 13}

COMPILED = "EPContext"  # a node that holds or names code compiled for a device
ORT_FORMAT = "ORTM"  # bytes 4 to 8 of a file in ONNX Runtime's own format
# Operators that keep all elements and their order, which may stand between a decoder and its output.
VIEWS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")

# The fields that readers pick out, by the message and what they hold.
MODEL_IR, MODEL_PRODUCER, MODEL_PRODUCER_VERSION = 1, 2, 3
MODEL_GRAPH, MODEL_OPSET, MODEL_METADATA, MODEL_FUNCTION = 7, 8, 14, 25
GRAPH_NODE, GRAPH_NAME, GRAPH_TENSOR = 1, 2, 5
GRAPH_INPUT, GRAPH_OUTPUT, GRAPH_VALUE = 11, 12, 13
NODE_INPUT, NODE_OUTPUT, NODE_NAME, NODE_TYPE = 1, 2, 3, 4
NODE_ATTRIBUTE, NODE_DOMAIN, NODE_OVERLOAD = 5, 7, 8
ATTRIBUTE_NAME, ATTRIBUTE_FLOAT, ATTRIBUTE_INTEGER, ATTRIBUTE_TEXT = 1, 2, 3, 4
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS = 5, 6, 11
ATTRIBUTE_FLOATS, ATTRIBUTE_INTEGERS = 7, 8
TENSOR_SIZES, TENSOR_TYPE, TENSOR_NAME, TENSOR_BYTES = 1, 2, 8, 9
TENSOR_EXTERNAL, TENSOR_LOCATION = 13, 14
FUNCTION_NAME, FUNCTION_NODE, FUNCTION_DOMAIN, FUNCTION_OVERLOAD = 1, 7, 10, 13
OPSET_DOMAIN, OPSET_VERSION = 1, 2
ENTRY_KEY, ENTRY_VALUE = 1, 2  # of metadata
VALUE_NAME, VALUE_TYPE = 1, 2
TYPE_TENSOR, ELEMENT_TYPE, TENSOR_SHAPE = 1, 1, 2  # of a value: its type is a tensor's
SHAPE_DIMENSION, DIMENSION_SIZE, DIMENSION_NAME = 1, 1, 2
FIELD_NUMBERS = {name: value for name, value in globals().items() if type(value) is int}

SCHEMA = """
ModelProto 1 int64, 2 string, 3 string, 4 string, 5 int64, 6 string, 7 GraphProto,
    8 OperatorSetIdProto*, 14 StringStringEntryProto*, 20 TrainingInfoProto*, 25 FunctionProto*,
    26 DeviceConfigurationProto*
OperatorSetIdProto 1 string, 2 int64
GraphProto 1 NodeProto*, 2 string, 5 TensorProto*, 10 string, 11 ValueInfoProto*,
    12 ValueInfoProto*, 13 ValueInfoProto*, 14 TensorAnnotation*, 15 SparseTensorProto*,
    16 StringStringEntryProto*
NodeProto 1 string*, 2 string*, 3 string, 4 string, 5 AttributeProto*, 6 string, 7 string, 8 string,
    9 StringStringEntryProto*, 10 NodeDeviceConfigurationProto*
AttributeProto 1 string, 2 float, 3 int64, 4 bytes, 5 TensorProto, 6 GraphProto, 7 float*, 8 int64*,
    9 bytes*, 10 TensorProto*, 11 GraphProto*, 13 string, 14 TypeProto, 15 TypeProto*, 20 int32,
    21 string, 22 SparseTensorProto, 23 SparseTensorProto*
TensorProto 1 int64*, 2 int32, 3 Segment, 4 float*, 5 int32*, 6 bytes*, 7 int64*, 8 string, 9 bytes,
    10 double*, 11 int64*, 12 string, 13 StringStringEntryProto*, 14 int32,
    16 StringStringEntryProto*
Segment 1 int64, 2 int64
StringStringEntryProto 1 string, 2 string
SparseTensorProto 1 TensorProto, 2 TensorProto, 3 int64*
TypeProto 1 Tensor|, 4 Sequence|, 5 Map|, 6 string, 7 Opaque|, 8 SparseTensor|, 9 Optional|
Tensor 1 int32, 2 TensorShapeProto
TensorShapeProto 1 Dimension*
Dimension 1 int64|, 2 string|, 3 string
Sequence 1 TypeProto
Map 1 int32, 2 TypeProto
Optional 1 TypeProto
SparseTensor 1 int32, 2 TensorShapeProto
Opaque 1 string, 2 string
NodeDeviceConfigurationProto 1 string, 2 ShardingSpecProto*, 3 int32
ShardingSpecProto 1 string, 2 int64*, 3 IntIntListEntryProto*, 4 ShardedDimProto*
IntIntListEntryProto 1 int64, 2 int64*
ShardedDimProto 1 int64, 2 SimpleShardedDimProto*
SimpleShardedDimProto 1 int64|, 2 string|, 3 int64
ValueInfoProto 1 string, 2 TypeProto, 3 string, 4 StringStringEntryProto*
TensorAnnotation 1 string, 2 StringStringEntryProto*
TrainingInfoProto 1 GraphProto, 2 GraphProto, 3 StringStringEntryProto*, 4 StringStringEntryProto*
FunctionProto 1 string, 4 string*, 5 string*, 6 string*, 7 NodeProto*, 8 string,
    9 OperatorSetIdProto*, 10 string, 11 AttributeProto*, 12 ValueInfoProto*, 13 string,
    14 StringStringEntryProto*
DeviceConfigurationProto 1 string, 2 int32, 3 string*
"""
