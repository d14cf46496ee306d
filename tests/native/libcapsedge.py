"""libcapsedge through ctypes, for tests: structures of capsedge.h, and statuses as exceptions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.backends.native_library import find_embedding
from capsedge.runtime.metadata.metadata import Preprocessing
from capsedge.spec.exit_codes import C_CODES

Array = NDArray[Any]
LIBRARY_VARIABLE = "CAPSEDGE_TEST_LIBRARY"  # another build of the library to test
OK, INTERNAL, USAGE, ENVIRONMENT, UNSUPPORTED, ARTEFACT = C_CODES
OPS = {"auto": 0, "fused": 1, "portable": 2}
PROVIDERS = {"cpu": 0, "cuda": 1}
GRAPHS = {None: 0, True: 1, False: 2}
TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7,
    "bool": 9, "float16": 10, "float64": 11, "uint32": 12, "uint64": 13,
}  # fmt: skip
NAMES = {number: name for name, number in TYPES.items()}
_SIZE = ("size", ctypes.c_size_t)
_I32, _I64, _TEXT = ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p


class OpenOptions(ctypes.Structure):
    _fields_ = (
        _SIZE,
        ("threads", _I32),
        ("ops", _I32),
        ("onnxruntime", _TEXT),
        ("outputs", ctypes.POINTER(_TEXT)),
        ("output_count", ctypes.c_size_t),
        ("tensorrt", _TEXT),
        ("device", _I32),
        ("contexts", ctypes.c_size_t),
        ("provider", _I32),
        ("graphs", _I32),
        ("cuda_kernels", _TEXT),
    )


class Description(ctypes.Structure):
    _fields_ = (
        _SIZE,
        ("backend", _TEXT),
        ("backend_version", _TEXT),
        ("ops", _TEXT),
        ("input_count", ctypes.c_size_t),
        ("output_count", ctypes.c_size_t),
        ("batch", _I64),
        ("architecture", _TEXT),
        ("routing", _TEXT),
        ("task", _TEXT),
        ("precision", _TEXT),
        ("iterations", _I32),
        ("class_count", _I32),
        ("score_kind", _TEXT),
        ("smallest_batch", _I64),
        ("largest_batch", _I64),
        ("no_graph_reason", _TEXT),
        ("value_count", ctypes.c_size_t),
        ("no_kernel_reason", _TEXT),
    )


class Port(ctypes.Structure):
    _fields_ = (_SIZE, ("name", _TEXT), ("type", _I32), ("rank", _I32), ("shape", _I64 * 8))


class Tensor(ctypes.Structure):
    _fields_ = (
        ("name", _TEXT),
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("type", _I32),
        ("rank", _I32),
        ("shape", _I64 * 8),
    )


class Image(ctypes.Structure):
    _fields_ = (
        ("pixels", ctypes.c_void_p),
        ("type", _I32),
        ("height", _I32),
        ("width", _I32),
        ("channels", _I32),
        ("stride", _I64),
    )


class Frame(ctypes.Structure):
    _fields_ = (
        _SIZE,
        ("format", _I32),
        ("matrix", _I32),
        ("range", _I32),
        ("height", _I32),
        ("width", _I32),
        ("planes", ctypes.c_void_p * 2),
        ("strides", _I64 * 2),
    )


class PreprocessingStruct(ctypes.Structure):
    _fields_ = (
        _SIZE,
        ("height", _I32),
        ("width", _I32),
        ("channels", _I32),
        ("scale", ctypes.c_double),
        ("mean", ctypes.POINTER(ctypes.c_double)),
        ("std", ctypes.POINTER(ctypes.c_double)),
        ("mean_count", ctypes.c_size_t),
        ("std_count", ctypes.c_size_t),
        ("resize", _TEXT),
        ("per_image", _TEXT),
        ("channels_last", _I32),
        ("bgr", _I32),
    )


class PredictOptions(ctypes.Structure):
    _fields_ = (
        _SIZE,
        ("top_k", _I32),
        ("use_threshold", _I32),
        ("threshold", ctypes.c_double),
        ("invert", _I32),
    )


class Label(ctypes.Structure):
    _fields_ = (
        ("name", _TEXT),
        ("pose", ctypes.POINTER(ctypes.c_float)),
        ("score", ctypes.c_double),
        ("index", _I32),
    )


class Result(ctypes.Structure):
    _fields_ = (
        _SIZE,
        ("labels", ctypes.POINTER(Label)),
        ("label_count", ctypes.c_size_t),
        ("scores", ctypes.POINTER(ctypes.c_double)),
        ("poses", ctypes.POINTER(ctypes.c_float)),
        ("class_count", _I32),
        ("pose_size", _I32),
        ("score_kind", _TEXT),
        ("values", ctypes.POINTER(ctypes.c_double)),
        ("value_count", ctypes.c_size_t),
        ("atypical", _TEXT),
        ("escalated", _I32),
        ("mask", ctypes.POINTER(ctypes.c_uint8)),
        ("mask_height", _I32),
        ("mask_width", _I32),
    )


class Decoder(ctypes.Structure):
    _fields_ = (
        _SIZE,
        ("class_count", _I32),
        ("pose_size", _I32),
        ("channels", _I32),
        ("height", _I32),
        ("width", _I32),
    )


class Counters(ctypes.Structure):
    _fields_ = (
        _SIZE,
        *((name, ctypes.c_uint64) for name in ("runs", "images", "failed", "prepare_ns", "run_ns")),
        ("longest_run_ns", ctypes.c_uint64),
    )


class Failed(Exception):
    """A status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def library_path() -> Path | None:
    """The library to test, or None if it was not built."""
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        return Path(named)
    try:
        return find_embedding().library
    except EnvironmentProblem:
        return None


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """The library; addresses and sizes travel as 64 bits."""
    path = library_path()
    assert path is not None
    library = ctypes.CDLL(str(path))
    library.capsedge_status_message.restype = _TEXT
    library.capsedge_version.restype = _TEXT
    library.capsedge_status_release.restype = None
    return library


def onnxruntime_library() -> Path:
    """ONNX Runtime's library in the installed Python package."""
    import onnxruntime

    folder = Path(onnxruntime.__file__).parent / "capi"
    return next(folder.glob("libonnxruntime.so*"))


def call(function: str, *arguments: Any) -> None:
    """Call and raise what comes back.

    Raises:
        Failed: a status that is not NULL.
    """
    library = load()
    entry = getattr(library, function)
    entry.restype = ctypes.c_void_p
    status = entry(*arguments)
    if status:
        handle = ctypes.c_void_p(status)
        code = library.capsedge_status_code(handle)
        message = library.capsedge_status_message(handle).decode()
        library.capsedge_status_release(handle)
        raise Failed(code, message)


def sized(kind: type[ctypes.Structure], **values: Any) -> Any:
    """A structure with its size filled in."""
    made = kind(**values)
    made.size = ctypes.sizeof(kind)  # type: ignore[attr-defined]
    return made


def image_of(pixels: Array) -> Image:
    """An image over the memory of ``[H, W, C]``, whose rows may have gaps."""
    _, width, channels = pixels.shape
    assert channels == 1 or pixels.strides[2] == pixels.itemsize
    assert width == 1 or pixels.strides[1] == pixels.itemsize * channels
    return Image(pixels.ctypes.data, TYPES[pixels.dtype.name], *pixels.shape, pixels.strides[0])


def prepare(pixels: Array | Image, preprocessing: Preprocessing, invert: bool = False) -> Array:
    """`capsedge_prepare`: ``[C, H, W]``."""
    image = pixels if isinstance(pixels, Image) else image_of(pixels)
    mean, std = ((ctypes.c_double * len(v))(*v) for v in (preprocessing.mean, preprocessing.std))
    p = sized(
        PreprocessingStruct,
        height=preprocessing.height,
        width=preprocessing.width,
        channels=preprocessing.channels,
        scale=preprocessing.scale,
        mean=mean,
        std=std,
        mean_count=len(mean),
        std_count=len(std),
        resize=preprocessing.resize.encode(),
        per_image=preprocessing.per_image.encode(),
        channels_last=int(preprocessing.layout == "NHWC"),
        bgr=int(preprocessing.order == "BGR"),
    )
    values = np.full(preprocessing.shape, np.nan, np.float32)
    call(
        "capsedge_prepare",
        ctypes.byref(p),
        ctypes.byref(image),
        int(invert),
        ctypes.c_void_p(values.ctypes.data),
        ctypes.c_size_t(values.size),
    )
    return values


class Session:
    """`capsedge_open` and what it gives."""

    def __init__(
        self,
        model: Path | bytes,
        *,
        threads: int = 1,
        ops: str = "auto",
        outputs: Sequence[str] | None = None,
        onnxruntime: str | None = None,
        tensorrt: str | None = None,
        device: int = 0,
        contexts: int = 0,
        provider: str = "cpu",
        graphs: bool | None = None,
        cuda_kernels: str | None = None,
    ) -> None:
        self.handle = ctypes.c_void_p()
        options = sized(
            OpenOptions, threads=threads, ops=OPS[ops], device=device, contexts=contexts,
            provider=PROVIDERS[provider], graphs=GRAPHS[graphs],
        )  # fmt: skip
        if cuda_kernels is not None:
            options.cuda_kernels = cuda_kernels.encode()
        options.onnxruntime = (onnxruntime or str(onnxruntime_library())).encode()
        if tensorrt is not None:
            options.tensorrt = tensorrt.encode()
        if outputs is not None:
            options.outputs = (_TEXT * len(outputs))(*(name.encode() for name in outputs))
            options.output_count = len(outputs)
        out = ctypes.byref(self.handle)
        if isinstance(model, bytes):
            data = ctypes.c_char_p(model)
            size = ctypes.c_size_t(len(model))
            call("capsedge_open_bytes", data, size, ctypes.byref(options), out)
        else:
            call("capsedge_open", os.fsencode(model), ctypes.byref(options), out)
        self.open = True

    def close(self) -> None:
        self.open = False
        call("capsedge_close", self.handle)

    def __del__(self) -> None:
        if getattr(self, "open", False):
            self.close()

    def describe(self) -> Any:
        found = sized(Description)
        call("capsedge_describe", self.handle, ctypes.byref(found))
        return found

    def ports(self, kind: str) -> dict[str, tuple[str, list[int]]]:
        """Type and shape of each ``input`` or ``output``."""
        count = getattr(self.describe(), f"{kind}_count")
        found = {}
        for index in range(count):
            port = sized(Port)
            call(f"capsedge_{kind}", self.handle, ctypes.c_size_t(index), ctypes.byref(port))
            found[port.name.decode()] = (NAMES.get(port.type, "other"), port.shape[: port.rank])
        return found

    def class_names(self) -> list[str]:
        names = []
        for index in range(self.describe().class_count):
            name = ctypes.c_char_p()
            call("capsedge_class_name", self.handle, index, ctypes.byref(name))
            assert name.value is not None
            names.append(name.value.decode())
        return names

    def value_names(self) -> list[tuple[str, str]]:
        """Name and unit of each value."""
        found = []
        for index in range(self.describe().value_count):
            name, unit = ctypes.c_char_p(), ctypes.c_char_p()
            place = ctypes.c_size_t(index)
            call("capsedge_value_name", self.handle, place, ctypes.byref(name), ctypes.byref(unit))
            found.append(((name.value or b"").decode(), (unit.value or b"").decode()))
        return found

    def property(self, key: str) -> str | None:
        value = ctypes.c_char_p()
        call("capsedge_property", self.handle, key.encode(), ctypes.byref(value))
        return value.value.decode() if value.value is not None else None

    def preprocessing(self) -> Any:
        found = sized(PreprocessingStruct)
        call("capsedge_preprocessing_of", self.handle, ctypes.byref(found))
        return found

    def run(
        self, inputs: Mapping[str, Array], rooms: Mapping[str, int] | None = None
    ) -> dict[str, Array]:
        """`capsedge_run`; ``rooms`` are the bytes for each output, a megabyte for all by default."""
        if rooms is None:
            rooms = dict.fromkeys(self.ports("output"), 1 << 20)
        given = (Tensor * len(inputs))()
        for tensor, (name, array) in zip(given, inputs.items(), strict=True):
            assert array.flags.c_contiguous
            tensor.name = name.encode()
            tensor.data = array.ctypes.data
            tensor.bytes = array.nbytes
            tensor.type = TYPES[array.dtype.name]
            tensor.rank = array.ndim
            tensor.shape[: array.ndim] = array.shape
        memory = {name: np.full(room, 0xA5, np.uint8) for name, room in rooms.items()}
        found = (Tensor * len(rooms))()
        for tensor, (name, room) in zip(found, memory.items(), strict=True):
            tensor.name, tensor.data, tensor.bytes = name.encode(), room.ctypes.data, room.size
        call(
            "capsedge_run",
            self.handle,
            given,
            ctypes.c_size_t(len(given)),
            found,
            ctypes.c_size_t(len(found)),
        )
        result = {}
        for tensor, (name, room) in zip(found, memory.items(), strict=True):
            assert (room[tensor.bytes :] == 0xA5).all(), "written past the end"
            values = room[: tensor.bytes].view(NAMES[tensor.type])
            result[name] = values.reshape(tensor.shape[: tensor.rank])
        return result

    def predict(
        self,
        images: Sequence[Array],
        top_k: int | None = None,
        threshold: float | None = None,
        invert: bool = False,
    ) -> list[dict[str, Any]]:
        """`capsedge_predict`: for each image its labels ``(name, index, score, pose)``, scores, poses."""
        prediction = ctypes.c_void_p()
        call("capsedge_prediction_create", ctypes.byref(prediction))
        try:
            given = (Image * len(images))(*map(image_of, images))
            options = sized(PredictOptions, top_k=top_k or 0, invert=int(invert))
            if threshold is not None:
                options.use_threshold, options.threshold = 1, threshold
            size = ctypes.c_size_t(len(images))
            call("capsedge_predict", self.handle, given, size, ctypes.byref(options), prediction)
            count = ctypes.c_size_t()
            call("capsedge_prediction_count", prediction, ctypes.byref(count))
            assert count.value == len(images)
            return [_result(prediction, index) for index in range(len(images))]
        finally:
            call("capsedge_prediction_close", prediction)

    def decoder(self) -> Any:
        found = sized(Decoder)
        call("capsedge_decoder_of", self.handle, ctypes.byref(found))
        return found

    def decode(self, poses: Array, classes: Array | None = None, room: int | None = None) -> Array:
        """`capsedge_decode`; ``room`` in values, just enough by default."""
        sizes = self.decoder()
        shape = (len(poses), sizes.channels, sizes.height, sizes.width)
        if classes is None:
            shape = (len(poses), sizes.class_count, *shape[1:])
        assert poses.dtype == np.float32
        assert poses.flags.c_contiguous
        pictures = np.full(shape, np.nan, np.float32)
        call(
            "capsedge_decode",
            self.handle,
            ctypes.c_void_p(poses.ctypes.data),
            None if classes is None else ctypes.c_void_p(classes.ctypes.data),
            ctypes.c_size_t(len(poses)),
            ctypes.c_void_p(pictures.ctypes.data),
            ctypes.c_size_t(pictures.size if room is None else room),
        )
        return pictures

    def counters(self) -> Any:
        found = sized(Counters)
        call("capsedge_read_counters", self.handle, ctypes.byref(found))
        return found


def _result(prediction: ctypes.c_void_p, index: int) -> dict[str, Any]:
    found = sized(Result)
    call("capsedge_prediction_result", prediction, ctypes.c_size_t(index), ctypes.byref(found))
    size, classes = found.pose_size, found.class_count
    return {
        "labels": [
            (
                label.name.decode(),
                label.index,
                label.score,
                np.array(label.pose[:size] if size else [], np.float32),
            )
            for label in found.labels[: found.label_count]
        ],
        "scores": np.array(found.scores[:classes] if classes else []),
        "poses": np.array(
            found.poses[: classes * size] if classes * size else [], np.float32
        ).reshape(classes, size),
        "score_kind": (found.score_kind or b"").decode(),
        "values": found.values[: found.value_count] if found.value_count else [],
        "atypical": (found.atypical or b"").decode(),
        "escalated": {-1: None, 0: False, 1: True}[found.escalated],
        "mask": np.array(found.mask[:pixels], np.uint8).reshape(found.mask_height, -1)
        if (pixels := found.mask_height * found.mask_width)
        else None,
    }
