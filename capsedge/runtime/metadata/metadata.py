"""Define and read a model's metadata: the ``capsedge.*`` properties of an ONNX file.

All of it is the file's own claim.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from capsedge.errors import ArtefactError
from capsedge.runtime.files.documents import MalformedJson, decode, dump, parse
from capsedge.runtime.metadata.cascade_metadata import Cascade
from capsedge.runtime.metadata.origin import Origin, TrainingSplit
from capsedge.runtime.metadata.scores import ChosenScores
from capsedge.runtime.metadata.typical_input import TypicalInput
from capsedge.runtime.session.routing_trace import TraceOutputs
from capsedge.spec import limits
from capsedge.spec.fields import FIELDS, LEAST_SIDE, PREFIX, SCHEMA, UNKNOWN
from capsedge.spec.limits import LIMITS
from capsedge.spec.vocabularies import (
    CLASSIFICATION,
    LAYOUTS,
    ORDERS,
    PER_IMAGE,
    REGRESSION,
    RESIZE_RULES,
    SCORE_KINDS,
    SEGMENTATION,
    TASKS,
)

# Characters that a property may have, if fewer than the limit for all properties together.
_MOST = {field.name: LIMITS[field.limit].value for field in FIELDS if field.limit}


@dataclass(frozen=True)
class Preprocessing:
    """How pixels become the input tensor ``images [N, C, H, W]``, or ``[N, H, W, C]``.

    Attributes:
        height, width: input size in pixels.
        channels: 1 (grey) or 3 (RGB); with other numbers of channels, only arrays are accepted.
        scale: factor from the 0..255 range of a pixel.
        mean, std: per channel, applied after the scale: ``(pixel * scale - mean) / std``.
        resize: ``stretch`` to the size, ``pad`` to keep the aspect ratio within it, ``crop`` to keep the
            aspect ratio and fill it, ``center`` to take the middle without scaling.
        per_image: ``standardize``: ``(x - m) / max(s, 1 / sqrt(n))`` of ``x = pixel * scale``, with the mean
            and the standard deviation of the image's ``n`` values, as TensorFlow's
            ``per_image_standardization``; mean and std stay 0 and 1. ``min-max``: before the scale, the
            image's values are stretched to 0..255, as by OpenCV's ``NORM_MINMAX``; an image of one value
            becomes 0. Empty: neither.
        layout: ``NCHW``, or ``NHWC`` if the input has the channels last, as in networks from TensorFlow.
        order: order of three channels: ``RGB``, or ``BGR`` for networks trained on OpenCV's images; mean and
            std are in this order too. Images are always passed as RGB.
    """

    height: int
    width: int
    channels: int
    scale: float = 1.0 / 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    resize: str = "stretch"
    per_image: str = ""
    layout: str = "NCHW"
    order: str = "RGB"

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
        if self.per_image not in PER_IMAGE:
            raise ValueError(f"per_image '{self.per_image}', known: {', '.join(PER_IMAGE[1:])}")
        if self.per_image == "standardize" and (any(self.mean) or set(self.std) != {1.0}):
            raise ValueError(
                "an image that is standardized by itself cannot have another mean and std"
            )
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout '{self.layout}', known: {', '.join(LAYOUTS)}")
        if self.order not in ORDERS or (self.order == "BGR" and self.channels != 3):
            raise ValueError(f"order '{self.order}', known: RGB, and BGR of three channels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """The input for one image, in its layout."""
        c, h, w = self.channels, self.height, self.width
        return (c, h, w) if self.layout == "NCHW" else (h, w, c)


@dataclass(frozen=True)
class Outputs:
    """Which outputs of the graph hold scores, poses or values, if they are not named ``lengths``, ``logits``
    and ``poses``.

    Attributes:
        scores: the output ``[N, classes]`` that decides the class; for a segmentation ``[N, H, W]`` or
            ``[N, maps, H, W]``, with the layout ``NHWC`` ``[N, H, W, maps]``; empty for a regression.
        kind: what the scores are: ``length`` of a capsule, ``logits`` (softmax makes them probabilities,
            sigmoid for several labels), or ``probability``.
        poses: the output ``[N, classes, ...]`` with a pose for each class; empty if there is none.
        values: the outputs of a regression ``[N, ...]``; empty for a classification.
        names: names of the values, in the order of the outputs and of their elements.
        units: units of the values; one for each, possibly empty.
    """

    scores: str = ""
    kind: str = ""
    poses: str = ""
    values: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("values", "names", "units"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


@dataclass(frozen=True)
class RoutedLayer:
    """A layer with routing: its name, kind (``dynamic``, ``em``, ...) and number of iterations."""

    name: str
    routing: str
    iterations: int


@dataclass(frozen=True)
class FusedRouting:
    """The routing that was recognized in a network that is not one of the package: its layers, in order."""

    routed_layers: tuple[RoutedLayer, ...]


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a capsedge artefact.

    Attributes:
        architecture: name of the model family's architecture (``capsnet``, ``matrix-capsules``,
            ``attention-capsules``, or the class name of a user's own module).
        configuration: the configuration that builds the model, as JSON values.
        routing: ``dynamic``, ``em``, ``attention`` or ``self-attention``, several joined by commas; empty if
            not stated.
        iterations: routing iterations that the graph is unrolled to; 0 if not stated, or if layers differ.
        class_names: one per class; empty for a regression, and if they have no names.
        preprocessing: how an image becomes the input; None for a user's own module without one.
        task: ``single-label``, ``multi-label``, ``regression`` or ``segmentation``.
        precision: ``fp32``, ``fp16``, ``int8`` or ``mixed``.
        calibration: what the precision was calibrated with; empty for FP32.
        checkpoint_sha256: checksum of the checkpoint file; empty if there was none.
        parity: the measurements of the comparison at export.
        outputs: which outputs hold the results; None for ``lengths`` or ``logits``, and ``poses``.
        origin: where imported weights come from, as the file claims; None for others.
        typical_input: what images as in training are like; None if the file does not state it.
        training_split: which images were held out from training; None if it is not known.
        cascade: the two networks of a cascade; None for others. The rest describes the large one.
        trace: the outputs with the values of every routing iteration; None if the file has none.
        fused_routing: the routed layers of a network that is not one of the package; None for others.
        chosen_scores: why this output was chosen as the scores; None if the file does not state it.
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
    outputs: Outputs | None = None
    origin: Origin | None = None
    typical_input: TypicalInput | None = None
    training_split: TrainingSplit | None = None
    cascade: Cascade | None = None
    trace: TraceOutputs | None = None
    fused_routing: FusedRouting | None = None
    chosen_scores: ChosenScores | None = None

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"task '{self.task}', known: {', '.join(TASKS)}")
        if self.iterations not in range(-(2**31), 2**31):
            raise ValueError(f"iterations {self.iterations}")
        if len(self.class_names) > limits.WIDTH:
            raise ValueError(f"there are over {limits.WIDTH} classes")
        if max(map(len, self.class_names), default=0) > limits.NAME_CHARACTERS:
            raise ValueError(f"a class name has over {limits.NAME_CHARACTERS} characters")
        if self.outputs is not None or self.task not in CLASSIFICATION:
            _check_outputs(self.outputs or Outputs(), self.task, self.class_names)
        if self.typical_input is not None:
            _check_measurable(self.preprocessing)
        if self.task == SEGMENTATION and len(self.class_names) not in (0, *range(2, UNKNOWN + 1)):
            raise ValueError(f"a segmentation has 2 to {UNKNOWN} classes")
        if self.cascade is not None and self.task not in CLASSIFICATION:
            raise ValueError(f"a {self.task} has no classes of images, so it cannot be a cascade")

    @property
    def routing_text(self) -> str:
        """The routing in words: ``dynamic, 3 iterations``; of layers that differ, each one's."""
        layers = self.fused_routing.routed_layers if self.fused_routing else ()
        if len({(each.routing, each.iterations) for each in layers}) > 1:
            return "; ".join(
                f"{each.name}: {each.routing}, {_iterations(each.iterations)}" for each in layers
            )
        if not self.routing:
            return "not stated"
        return self.routing + (f", {_iterations(self.iterations)}" if self.iterations else "")

    def to_properties(self) -> dict[str, str]:
        """The properties of an ONNX file: names under ``capsedge.``, and JSON texts."""
        values = {"schema": SCHEMA, **asdict(self)}
        return {
            PREFIX + name: dump(value)
            for name, value in values.items()
            if value is not None or name == "preprocessing"  # every file states preprocessing
        }

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ModelMetadata | None:
        """Read the properties of a file; None if it has no ``capsedge.*`` properties.

        Raises:
            ArtefactError: the properties are damaged or of another schema.
        """
        ours = {k.removeprefix(PREFIX): v for k, v in properties.items() if k.startswith(PREFIX)}
        if not ours:
            return None
        try:
            if sum(map(len, ours.values())) > limits.METADATA_BYTES:
                raise MalformedJson(f"it has over {limits.METADATA_BYTES // limits.MIB} MiB")
            schema = decode(int, _parsed("schema", ours.pop("schema", "null")), "schema")
            if schema != SCHEMA:
                raise ArtefactError(
                    "The model's metadata has a different schema.",
                    f"It has {schema}; this version of capsedge reads {SCHEMA}.",
                    "Export the model again, or install the capsedge that made it.",
                )
            return decode(cls, {name: _parsed(name, text) for name, text in ours.items()})
        except MalformedJson as error:
            raise ArtefactError(
                "The model's metadata cannot be read.",
                f"{error}.",
                "Export the model again with `capsedge export`.",
            ) from error


def _iterations(count: int) -> str:
    return f"{count} iteration{'' if count == 1 else 's'}"


def _parsed(name: str, text: str) -> Any:
    """The plain values of a property."""
    most = _MOST.get(name, limits.METADATA_BYTES)
    if len(text) > most:
        raise MalformedJson(f"'{name}' has over {most // limits.KIB} KiB")
    try:
        return parse(text, most=limits.METADATA_VALUES)
    except MalformedJson as error:
        raise MalformedJson(f"'{name[:80]}': {error}") from error


def _check_measurable(preprocessing: Preprocessing | None) -> None:
    """Raise a ValueError where no image can be compared with typical input."""
    if preprocessing is None:
        raise ValueError("typical_input needs the preprocessing of images")
    if min(preprocessing.height, preprocessing.width) < LEAST_SIDE:
        raise ValueError(f"typical_input needs {LEAST_SIDE} pixels a side")


def _kind(task: str) -> str:
    return task if task == SEGMENTATION else "classification"


def _check_outputs(outputs: Outputs, task: str, class_names: tuple[str, ...]) -> None:
    """Raise a ValueError for outputs that contradict themselves or the task."""
    if task == REGRESSION:
        if not outputs.values or outputs.scores or outputs.kind or outputs.poses or class_names:
            raise ValueError("a regression has outputs for values, and neither scores nor classes")
        if not outputs.names or len(outputs.units) != len(outputs.names):
            raise ValueError(
                f"the values have {len(outputs.names)} names and {len(outputs.units)} units"
            )
    elif not outputs.scores or outputs.values or outputs.names or outputs.units:
        raise ValueError(f"a {_kind(task)} has an output for scores, and no values")
    elif task == SEGMENTATION and outputs.poses:
        raise ValueError("a segmentation has no output for poses")
    elif outputs.kind not in SCORE_KINDS:
        raise ValueError(f"kind of scores '{outputs.kind}', known: {', '.join(SCORE_KINDS)}")
    named = [name for name in (outputs.scores, outputs.poses, *outputs.values) if name]
    if len(set(named)) != len(named) or "" in outputs.values:
        raise ValueError("an output is named twice, or has no name")
    if len(outputs.values) > limits.RUN_TENSORS:
        raise ValueError(f"the values are in over {limits.RUN_TENSORS} outputs")
    if len(outputs.names) > limits.WIDTH:
        raise ValueError(f"there are over {limits.WIDTH} values")
    if any(len(text) > limits.NAME_CHARACTERS for text in (*outputs.names, *outputs.units)):
        raise ValueError(f"a name or unit has over {limits.NAME_CHARACTERS} characters")


# --- The model, code or checkpoint that a file was exported from ---


class Provenance(Enum):
    """Where a file comes from."""

    CHECKPOINT = "a checkpoint of capsedge"
    MODULE = "a network of the user's own"
    UNKNOWN = "another tool, or a network that nobody described"


def provenance_of(metadata: ModelMetadata | None) -> Provenance:
    """Where a file with this metadata comes from."""
    if metadata is None or not metadata.architecture:
        return Provenance.UNKNOWN
    return Provenance.CHECKPOINT if metadata.configuration else Provenance.MODULE


def reference_options(metadata: ModelMetadata | None) -> str:
    """The options by which `export`, `verify` and `profile` take the network that a file was made from."""
    if provenance_of(metadata) is Provenance.CHECKPOINT:
        return "--checkpoint CHECKPOINT"
    name = "CLASS" if metadata is None or not metadata.architecture else metadata.architecture
    return f"--module CODE.py:{shlex.quote(name)} --weights WEIGHTS"


def how_to_add_decoder(metadata: ModelMetadata | None) -> str:
    """The sentence that says how to get a file with its decoder's pictures."""
    if metadata is not None and provenance_of(metadata) is Provenance.CHECKPOINT:
        if not metadata.configuration.get("decoder"):
            return (
                "The network was trained without a decoder, which no export can add: use one that has it, "
                "such as `digits-dynamic`."
            )
        return how_to_export_again(metadata, "--with reconstruction")
    return (
        "Have the network's forward return a dict with 'reconstruction' [N, classes, C, H, W], the picture "
        "of each class decoded from its capsule alone, beside its lengths and its poses [N, classes, D] "
        f"(docs/how-to/see.md#your-own-network). {how_to_export_again(metadata)}"
    )


def how_to_export_again(metadata: ModelMetadata | None, options: str = "") -> str:
    """The sentence that says how to export a file again with ``options``, which it lacks."""
    own = provenance_of(metadata) is not Provenance.CHECKPOINT
    shape = (
        (1, 28, 28)
        if metadata is None or metadata.preprocessing is None
        else metadata.preprocessing.shape
    )
    example = "x".join(map(str, shape))
    described = f" --example {example} --classes labels.txt --range 0-1" if own else ""
    words = [f"capsedge export {reference_options(metadata)}{described}", options, "-o NEW.onnx"]
    sentence = f"Export the network again: `{' '.join(filter(None, words))}`"
    if provenance_of(metadata) is Provenance.UNKNOWN:
        return f"{sentence}, if you have its PyTorch code."
    return f"{sentence}."
