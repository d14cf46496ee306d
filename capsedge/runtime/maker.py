"""What a file was made from, by its metadata, and so the options that name it and how to export it again."""

from __future__ import annotations

import shlex
from enum import Enum

from capsedge.runtime.metadata import ModelMetadata


class Maker(Enum):
    """Where a file comes from."""

    CHECKPOINT = "a checkpoint of capsedge"
    MODULE = "a network of the user's own"
    UNKNOWN = "another tool, or a network that nobody described"


def maker_of(metadata: ModelMetadata | None) -> Maker:
    """Where a file with this metadata comes from."""
    if metadata is None or not metadata.architecture:
        return Maker.UNKNOWN
    return Maker.CHECKPOINT if metadata.configuration else Maker.MODULE


def reference_options(metadata: ModelMetadata | None) -> str:
    """The options by which `export`, `verify` and `profile` take the network that a file was made from."""
    if maker_of(metadata) is Maker.CHECKPOINT:
        return "--checkpoint CHECKPOINT"
    name = "CLASS" if metadata is None or not metadata.architecture else metadata.architecture
    return f"--module CODE.py:{shlex.quote(name)} --weights WEIGHTS"


def decoder_again(metadata: ModelMetadata | None) -> str:
    """The sentence that says how a file comes by its decoder's pictures."""
    if metadata is not None and maker_of(metadata) is Maker.CHECKPOINT:
        if not metadata.configuration.get("decoder"):
            return (
                "The network was trained without a decoder, which no export can add: use one that has it, "
                "such as `digits-dynamic`."
            )
        return export_again(metadata, "--with reconstruction")
    return (
        "Have the network's forward return a dict with 'reconstruction' [N, classes, C, H, W], the picture "
        "of each class decoded from its capsule alone, beside its lengths and its poses [N, classes, D] "
        f"(docs/how-to/see.md#your-own-network). {export_again(metadata)}"
    )


def export_again(metadata: ModelMetadata | None, options: str = "") -> str:
    """The sentence that says how to export a file again.

    Args:
        options: what the file lacks, such as ``--with trace``.
    """
    own = maker_of(metadata) is not Maker.CHECKPOINT
    shape = (
        (1, 28, 28)
        if metadata is None or metadata.preprocessing is None
        else metadata.preprocessing.shape
    )
    example = "x".join(map(str, shape))
    described = f" --example {example} --classes labels.txt --range 0-1" if own else ""
    words = [f"capsedge export {reference_options(metadata)}{described}", options, "-o NEW.onnx"]
    sentence = f"Export the network again: `{' '.join(filter(None, words))}`"
    if maker_of(metadata) is Maker.UNKNOWN:
        return f"{sentence}, if you have its PyTorch code."
    return f"{sentence}."
