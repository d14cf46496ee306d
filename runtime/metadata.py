"""The metadata of an artefact: the ``capsedge.*`` properties of an ONNX file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from capsedge.errors import ArtefactError
from capsedge.runtime.files import limits
from capsedge.runtime.files.documents import Malformed, decode, parse

SCHEMA = 1
PREFIX = "capsedge."

RESIZE_RULES = ("stretch", "pad", "crop", "center")
TASKS = ("single-label", "multi-label")


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the input tensor ``images [N, C, H, W]``.

    Attributes:
        height, width: input size in pixels.
        channels: 1 (grey) or 3 (RGB); with other counts only arrays are accepted.
        scale: factor from the 0..255 range of a pixel.
        mean, std: per channel, applied after the scale: ``(pixel * scale - mean) / std``.
        resize: ``stretch`` to the size, ``pad`` to keep the aspect ratio within it, ``crop`` to keep the
            aspect ratio and fill it, ``center`` to take the middle without scaling.
    """

    height: int
    width: int
    channels: int
    scale: float = 1.0 / 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: str = "stretch"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(v) for v in self.mean))
        object.__setattr__(self, "std", tuple(float(v) for v in self.std))
        for side in (self.height, self.width, self.channels):
            if type(side) is not int:
                raise ValueError(f"input size {side!r} is not a whole number")
        if min(self.height, self.width, self.channels) < 1:
            raise ValueError(
                f"input size {self.channels}x{self.height}x{self.width} is not positive"
            )
        if (
            max(self.height, self.width) > limits.IMAGE_SIDE
            or self.height * self.width * self.channels > limits.INPUT_VALUES
        ):
            raise ValueError(
                f"input size {self.channels}x{self.height}x{self.width} is over "
                f"{limits.INPUT_VALUES:,} values or {limits.IMAGE_SIDE} pixels a side"
            )
        if not all(map(math.isfinite, (self.scale, *self.mean, *self.std))) or 0.0 in self.std:
            raise ValueError("scale, mean and std must be finite numbers, and std not zero")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise ValueError(f"{name} has {len(values)} values for {self.channels} channels")
        if self.resize not in RESIZE_RULES:
            raise ValueError(f"resize rule '{self.resize}', known: {', '.join(RESIZE_RULES)}")


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a capsedge artefact.

    Attributes:
        architecture: name of the model family's architecture (``capsnet``, ``matrix-capsules``,
            ``attention-capsules``, or the class name of a user's own module).
        configuration: the configuration that builds the model, as JSON values.
        routing: ``dynamic``, ``em`` or ``attention``.
        iterations: routing iterations that the graph is unrolled to.
        class_names: one per class.
        preprocessing: how an image becomes the input; None for a user's own module without one.
        task: ``single-label`` or ``multi-label``.
        precision: ``fp32``, ``fp16``, ``int8`` or ``mixed``.
        calibration: what the precision was calibrated with; empty for FP32.
        checkpoint_sha256: checksum of the checkpoint file; empty if there was none.
        parity: the measurements of the comparison at export.
    """

    architecture: str
    configuration: Mapping[str, Any]
    routing: str
    iterations: int
    class_names: tuple[str, ...]
    preprocessing: Preprocessing | None
    task: str = "single-label"
    precision: str = "fp32"
    calibration: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_sha256: str = ""
    parity: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task '{self.task}', known: {', '.join(TASKS)}")

    def to_properties(self) -> dict[str, str]:
        """ONNX metadata properties: string keys under ``capsedge.``, JSON values."""
        values = {"schema": SCHEMA, **asdict(self)}
        return {PREFIX + k: json.dumps(v, sort_keys=True) for k, v in values.items()}

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ModelMetadata | None:
        """Read the properties of a file; None if it has no ``capsedge.*`` properties.

        Raises:
            ArtefactError: the properties are damaged or of a newer schema.
        """
        ours = {k.removeprefix(PREFIX): v for k, v in properties.items() if k.startswith(PREFIX)}
        if not ours:
            return None
        try:
            if sum(map(len, ours.values())) > limits.METADATA_BYTES:
                raise Malformed(f"it has over {limits.METADATA_BYTES // limits.MIB} MiB")
            values = {k: parse(v, nan="null") for k, v in ours.items()}
            schema = decode(int, values.pop("schema", None), "schema")
            if schema != SCHEMA:
                raise ArtefactError(
                    "The model's metadata has another schema.",
                    f"It has {schema}, this version of capsedge reads {SCHEMA}.",
                    "Export the model again, or install the capsedge that made it.",
                )
            if isinstance(
                values.get("class_names"), list
            ):  # older files also use numbers as class names
                values["class_names"] = [
                    str(n) if type(n) is int else n for n in values["class_names"]
                ]
            return decode(cls, values)
        except Malformed as error:
            raise ArtefactError(
                "The model's metadata cannot be read.",
                f"{error}.",
                "Export the model again with `capsedge export`.",
            ) from error
