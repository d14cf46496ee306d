"""Define the first bytes of foreign file formats, and what the formats are called."""

from __future__ import annotations

from typing import NamedTuple

from capsedge.spec.onnx_wire import ORT_FORMAT


class Signature(NamedTuple):
    """Bytes that identify a format.

    Attributes:
        key: of the format.
        bytes: the signature.
        at: its offset in the file.
    """

    key: str
    bytes: bytes
    at: int = 0


# The first that fits counts.
SIGNATURES = (
    Signature("image", b"\x89PNG\r\n"), Signature("image", b"\xff\xd8\xff"), Signature("image", b"GIF8"),
    Signature("image", b"II*\0"), Signature("image", b"MM\0*"), Signature("image", b"II+\0"),
    Signature("image", b"MM\0+"), Signature("hdf5", b"\x89HDF\r\n\x1a\n"), Signature("npy", b"\x93NUMPY"),
    Signature("idx", b"\0\0\x08"), Signature("tensorrt", b"ftrt"), Signature("tensorrt", b"ptrt"),
    Signature("gguf", b"GGUF"), Signature("program", b"\x7fELF"), Signature("ncnn", b"7767517"),
    Signature("ncnn", b"\xdd\x85\x76\0"), Signature("compressed", b"\x1f\x8b"),
    Signature("compressed", b"BZh"), Signature("compressed", b"\xfd7zXZ\0"),
    Signature("compressed", b"\x28\xb5\x2f\xfd"), Signature("compressed", b"7z\xbc\xaf"),
    Signature("compressed", b"Rar!"), Signature("lfs", b"version https://git-lfs"),
    Signature("wasm", b"\0asm"), Signature("predictions", b"PAR1"),
    Signature("pytorch-legacy", b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."),
    Signature("zip", b"PK\x03\x04"), Signature("zip", b"PK\x05\x06"),
    # Flatbuffers have theirs after four bytes.
    Signature("tflite", b"TFL3", 4), Signature("ort", ORT_FORMAT.encode(), 4),
    Signature("tar", b"ustar", 257),
)  # fmt: skip
# Too short to be sure: for readers that look no further.
HINTS = (Signature("safetensors", b"{", 8), Signature("xml", b"<?xml"))

# As text, with its article.
NAMES = {
    "image": "an image",
    "hdf5": "an HDF5 file, such as a Keras model (.h5)",
    "npy": "a NumPy array (.npy)",
    "idx": "an idx file, as MNIST's",
    "tensorrt": "a TensorRT engine",
    "gguf": "a GGUF model",
    "program": "a program or library (ELF)",
    "ncnn": "a model of ncnn",
    "compressed": "a compressed file",
    "lfs": "a pointer of Git LFS, not the file itself",
    "wasm": "WebAssembly, such as a network of `capsedge build --target wasm`",
    "predictions": "a table, such as `capsedge batch` writes (parquet)",
    "pytorch-legacy": "a PyTorch file from before version 1.6, or saved in that format",
    "zip": "a zip archive",
    "tflite": "a LiteRT (TensorFlow Lite) model",
    "ort": "a model in ONNX Runtime's own format (.ort)",
    "tar": "a tar archive",
    "safetensors": "a file of weights (safetensors)",
    "xml": "an XML file",
}
# Names for readers that do not look into the file.
UNOPENED = {
    "zip": "a zip archive, such as a PyTorch file (.pt, .pth) or a Keras model (.keras)",
}
