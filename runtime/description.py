"""What a person states of a network: classes, preprocessing, task, and which output holds what."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.runtime.answers import POSES, SCORES
from capsedge.runtime.files import limits
from capsedge.runtime.loading import load_bytes
from capsedge.runtime.metadata import (
    CLASSIFICATION,
    OURS,
    REGRESSION,
    TASKS,
    ModelMetadata,
    Outputs,
    Preprocessing,
)
from capsedge.runtime.nothing import Nothing
from capsedge.runtime.reading import onnx_file
from capsedge.runtime.reading.properties import with_properties
from capsedge.runtime.session import Session

_KIND_BY_NAME = {"lengths": "length", "logits": "logits"}
_PROBES = 4  # images that a file is run on
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Description:
    """What a person says of a network. What is left out stays as the file has it, or takes its default.

    Attributes:
        class_names: one per class.
        preprocessing: how an image becomes the input; a mapping changes some of its fields.
        task: ``single-label``, ``multi-label`` or ``regression``; ``classification`` is ``single-label``.
        outputs: which outputs hold scores, poses or values; for a regression the names and units of the
            values, where a single unit stands for all.
        typical: makes the criterion for nothing to see, once the preprocessing is known.
    """

    class_names: Sequence[str] | None = None
    preprocessing: Preprocessing | Mapping[str, Any] | None = None
    task: str | None = None
    outputs: Outputs | None = None
    typical: Callable[[Preprocessing], Nothing] | None = None

    def __post_init__(self) -> None:
        for name, kinds, wanted in (
            ("class_names", (list, tuple), "a list of names"),
            ("preprocessing", (Preprocessing, Mapping), "a capsedge.Preprocessing"),
            ("task", (str,), f"one of {', '.join(TASKS)}"),
            ("outputs", (Outputs,), "a capsedge.Outputs"),
        ):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kinds):
                raise UsageError(
                    f"{name} has the type {type(value).__name__}.", f"Wanted: {wanted}.", ""
                )

    def __bool__(self) -> bool:
        return self != Description()


@dataclass(frozen=True)
class Described:
    """A file with its new metadata.

    Attributes:
        data: the bytes of the file.
        metadata: what it states now.
    """

    data: bytes
    metadata: ModelMetadata

    def __str__(self) -> str:
        """Where the answer is, for people; also what was taken from the outputs' values."""
        m = self.metadata
        if m.outputs is None:
            where = f"{len(m.class_names)} classes"
        elif m.task == REGRESSION:
            where = f"{', '.join(m.outputs.names[:16])} in {', '.join(m.outputs.values[:16])}"
        else:
            kinds = {"length": "lengths", "probability": "probabilities"}
            poses = f"poses in {m.outputs.poses}" if m.outputs.poses else "no poses"
            kind = kinds.get(m.outputs.kind, m.outputs.kind)
            where = f"{len(m.class_names)} classes, scores ({kind}) in {m.outputs.scores}, {poses}"
        images = "" if m.preprocessing else "; no preprocessing of images, which --size gives it"
        nothing = f"; nothing to see: {m.nothing.claim}" if m.nothing else ""
        return f"the file states: {m.task}, {where}{images}{nothing}"


def described(
    data: bytes,
    description: Description,
    base: ModelMetadata | None = None,
    name: Path | str = "the model",
    runnable: bytes | None = None,
) -> Described:
    """An ONNX file with the metadata that a description gives it; all other bytes stay as they are.

    It is read again as `load` reads it, and run on an image, so that nothing is written that a reader would
    refuse.

    Args:
        data: the file.
        description: what to state.
        base: metadata to begin with; by default the file's own.
        name: the name of the file in errors.
        runnable: the same graph, to be run in place of the file.

    Raises:
        UsageError: the description contradicts itself or does not fit the network.
        ArtefactError, EnvironmentProblem, UnsupportedModelError: the file cannot be read or run.
    """
    path, runnable = Path(name), runnable or data
    if base is None:
        base = ModelMetadata.from_properties(onnx_file.summarize(data, str(name)).metadata)
    base = base or ModelMetadata("", {}, "", 0, (), None)
    if description:
        plain = load_bytes(with_properties(runnable, {}, OURS), path)
        base = metadata_for(description, plain, base)
    properties = checked_properties(base, path)
    _check_read(with_properties(runnable, properties, OURS), path)
    return Described(with_properties(data, properties, OURS), base)


_FITS = (
    "Correct the argument that says so: class_names, preprocessing, task, outputs or typical "
    "(docs/reference/metadata.md)."
)
_FITS_COMMAND = (
    "Correct the option that says so: --classes, --size, --range, --mean, --std, --task or --outputs "
    "(docs/reference/metadata.md)."
)


def checked_properties(metadata: ModelMetadata, name: Path | str = "the model") -> dict[str, str]:
    """The properties of metadata, which the package reads back.

    Raises:
        UsageError: it would refuse them.
    """
    try:
        properties = metadata.to_properties()
        read = ModelMetadata.from_properties(properties)
        why = "" if _said(read) == _said(metadata) else "It would be read as something else."
    except (ArtefactError, TypeError, ValueError) as error:
        why = error.why if isinstance(error, CapsedgeError) else f"{error}."
    if why:
        raise UsageError(
            f"The description of {name} cannot be written.", why, _FITS, command=_FITS_COMMAND
        )
    return properties


def _said(metadata: ModelMetadata | None) -> Any:
    """What readers act on; the records of export and calibration may hold NaN, which reads as null."""
    return metadata and dataclasses.replace(metadata, configuration={}, calibration={}, parity={})


def _check_read(data: bytes, path: Path) -> None:
    """Load the file as any reader does, and predict."""
    try:
        session = load_bytes(data, path)
        if session.metadata is not None and session.metadata.preprocessing is not None:
            p = session.metadata.preprocessing
            session.predict(np.zeros((1, p.height, p.width, p.channels), np.uint8))
    except ArtefactError as error:
        raise UsageError(
            f"{path} does not fit what is said of it.", error.why, error.fix
        ) from error


def metadata_for(description: Description, session: Session, base: ModelMetadata) -> ModelMetadata:
    """The metadata that a description gives a network.

    Args:
        session: of the network, read without its metadata.
        base: what it states so far.

    Raises:
        UsageError: the description contradicts itself or does not fit the network.
    """
    if len(session.inputs) != 1 or len(session.inputs[0].shape) != 4:
        shapes = ", ".join(f"{port.name} {list(port.shape)}" for port in session.inputs)
        raise UsageError(
            f"{session.path} does not take images.",
            f"Its inputs: {shapes}; wanted one, [N, channels, height, width] or with the channels last.",
            "Use `Session.run` with arrays.",
        )
    try:
        preprocessing = _preprocessing(description, session, base.preprocessing)
        task = _task(description, base)
        probed = _probe(session, preprocessing)
        if task == REGRESSION:
            names: tuple[str, ...] = ()
            outputs: Outputs | None = _values(description.outputs, base.outputs, probed)
        else:
            names = _classes(description, base)
            outputs = _scores(description.outputs, base.outputs, names, probed)
        return dataclasses.replace(
            base,
            task=task,
            class_names=names,
            preprocessing=preprocessing,
            outputs=outputs,
            nothing=_nothing(description, preprocessing, base),
        )
    except UsageError:  # is a ValueError, too
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The description does not fit {session.path}.",
            f"{error}.",
            _FITS,
            command=_FITS_COMMAND,
        ) from error


def _nothing(
    description: Description, preprocessing: Preprocessing | None, base: ModelMetadata
) -> Nothing | None:
    """The criterion; one that was measured on images prepared otherwise does not hold any more."""
    if description.typical is None:
        return base.nothing if preprocessing == base.preprocessing else None
    if preprocessing is None:
        raise ValueError("typical images need the preprocessing of the model, such as its --size")
    return description.typical(preprocessing)


def _preprocessing(
    description: Description, session: Session, base: Preprocessing | None
) -> Preprocessing | None:
    given = description.preprocessing
    if given is None or isinstance(given, Preprocessing):
        return given or base
    known = {field.name for field in dataclasses.fields(Preprocessing)}
    if not known >= set(given):
        raise ValueError(f"preprocessing has no {', '.join(sorted(set(given) - known))}")
    changes = dict(given)
    if base is not None:
        return dataclasses.replace(base, **changes)
    names = ("channels", "height", "width")
    sizes = session.inputs[0].shape[1:]
    if changes.setdefault("layout", _layout(sizes)) == "NHWC":
        sizes = (sizes[2], sizes[0], sizes[1])
    for name, found in zip(names, sizes, strict=True):
        if isinstance(found, int):
            changes.setdefault(name, found)
    missing = [name for name in names if name not in changes]
    if missing:
        raise UsageError(
            f"{session.path} leaves the size of its input open.",
            f"Not stated: {', '.join(missing)}.",
            "Give --size HEIGHTxWIDTH, or in Python a Preprocessing.",
        )
    return Preprocessing(**changes)


def _layout(sizes: Sequence[int | str | None]) -> str:
    """Pictures have one or three channels, and larger sides."""
    return "NHWC" if sizes[2] in (1, 3) and sizes[0] not in (1, 3) else "NCHW"


def _task(description: Description, base: ModelMetadata) -> str:
    task = description.task
    if task is None and description.class_names is not None:
        task = base.task if base.task in CLASSIFICATION else CLASSIFICATION[0]
    if task is None and description.outputs is not None:
        task = REGRESSION if description.outputs.names or description.outputs.values else None
    task = CLASSIFICATION[0] if task == "classification" else task or base.task
    if task not in TASKS:
        raise ValueError(f"task '{task}', known: classification, {', '.join(TASKS)}")
    if task == REGRESSION and description.class_names is not None:
        raise ValueError("a regression has no classes but values")
    stated = description.outputs
    if task != REGRESSION and stated and (stated.names or stated.units or stated.values):
        raise ValueError("values, their names and units belong to a regression, not to classes")
    if task == REGRESSION and stated and (stated.scores or stated.kind or stated.poses):
        raise ValueError("scores and poses belong to classes, not to a regression")
    return task


def _classes(description: Description, base: ModelMetadata) -> tuple[str, ...]:
    if description.class_names is None:
        return base.class_names
    names = tuple(description.class_names)
    if not names:
        raise ValueError("no class is named")
    for number, name in enumerate(names):
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"the name of class {number} is empty or not text")
        if len(name) > limits.NAME_CHARACTERS:
            raise ValueError(
                f"the name of class {number} has over {limits.NAME_CHARACTERS} characters"
            )
    return names


def _probe(session: Session, preprocessing: Preprocessing | None) -> Arrays:
    """The outputs on noise and on plain images; sizes that the file leaves open are 32."""
    port = session.inputs[0]
    shape = [size if isinstance(size, int) else 32 for size in port.shape[1:]]
    if preprocessing is not None:
        shape = list(preprocessing.shape)
    declared = [
        f for f, d in zip(shape, port.shape[1:], strict=True) if isinstance(d, int) and f != d
    ]
    if declared:
        raise ValueError(f"the input takes {list(port.shape[1:])}, not {shape}")
    if not port.dtype.startswith("float"):
        raise ValueError(f"the input takes {port.dtype}, and images become floats")
    rng = np.random.default_rng(0)
    images = rng.random((_PROBES, *shape), np.float32)
    images[0] = 0
    parts: dict[str, list[NDArray[Any]]] = {}
    for _, found in session.run_batches(images):
        for name, value in found.items():
            parts.setdefault(name, []).append(np.atleast_1d(value))
    return {name: np.concatenate(values) for name, values in parts.items()}


def _scores(
    given: Outputs | None, base: Outputs | None, names: tuple[str, ...], probed: Arrays
) -> Outputs | None:
    """Which outputs decide the class; None where their names say it."""
    given, stated = given or Outputs(), base or Outputs()
    scores = given.scores or stated.scores or _score_output(probed, len(names))
    value = _output(probed, scores)
    if value.ndim != 2:
        raise ValueError(f"{scores} has {_sizes(value)} for an image, not a score for each class")
    if names and value.shape[1] != len(names):
        raise ValueError(f"{len(names)} classes are named, {scores} has {value.shape[1]}")
    kind = given.kind or (stated.kind if scores == stated.scores else "")
    kind = kind or _KIND_BY_NAME.get(scores) or _kind(value)
    poses = given.poses or stated.poses or (POSES if _posed(probed, value) else "")
    if poses and (_output(probed, poses).ndim < 3 or probed[poses].shape[1] != value.shape[1]):
        raise ValueError(f"{poses} has {_sizes(probed[poses])}, not a pose for each class")
    found = Outputs(scores=scores, kind=kind, poses=poses)
    only = len(set(SCORES) & set(probed)) == 1
    if only and found == Outputs(scores=scores, kind=_KIND_BY_NAME.get(scores, ""), poses=POSES):
        return None
    return found


def _posed(probed: Arrays, scores: NDArray[Any]) -> bool:
    poses = probed.get(POSES)
    return poses is not None and poses.ndim >= 3 and poses.shape[1] == scores.shape[1]


def _score_output(probed: Arrays, classes: int) -> str:
    """The output called lengths or logits, otherwise the only one with a number for each class."""
    named = [name for name in SCORES if name in probed]
    floats = {name: value for name, value in probed.items() if value.dtype.kind == "f"}
    fitting = [n for n, v in floats.items() if v.ndim == 2 and classes in (0, v.shape[1])]
    found = named if len(named) == 1 else fitting
    if len(found) != 1:
        sizes = ", ".join(f"{name} {_sizes(value)}" for name, value in probed.items())
        what = f"{classes} classes" if classes else "the classes"
        raise ValueError(
            f"{len(found) or 'none'} of the outputs could hold the scores of {what}: {sizes}; "
            "name it: --scores, in Python Outputs(scores=...)"
        )
    return found[0]


def _kind(scores: NDArray[Any]) -> str:
    """What scores are, by their values: probabilities add up to one, lengths lie between 0 and 1."""
    if (scores < 0).any() or (scores > 1).any():
        return "logits"
    whole = scores.shape[1] > 1 and np.allclose(scores.sum(axis=1), 1, atol=1e-3)
    return "probability" if whole else "length"


def _values(given: Outputs | None, base: Outputs | None, probed: Arrays) -> Outputs:
    """The outputs of a regression with a name and a unit for each value."""
    given, base = given or Outputs(), base or Outputs()
    outputs = given.values or base.values
    if not outputs:
        named = given.names and set(given.names) <= set(probed)
        outputs = given.names if named else tuple(probed)
    counts = {name: int(np.prod(_output(probed, name).shape[1:])) for name in outputs}
    names = given.names or (base.names if outputs == base.values else ())
    total = sum(counts.values())
    if not names or (names == outputs and total != len(names)):
        names = tuple(
            name if count == 1 else f"{name}[{k}]"
            for name, count in counts.items()
            for k in range(count)
        )
    if len(names) != total:
        sizes = ", ".join(f"{name} {_sizes(probed[name])}" for name in counts)
        raise ValueError(
            f"{len(names)} values are named, the outputs have {total}: {sizes}; name the outputs "
            "that hold them: --values, in Python Outputs(values=...)"
        )
    units = given.units or (base.units if names == base.names else ()) or ("",)
    units = units * len(names) if len(units) == 1 else units
    if len(units) != len(names):
        raise ValueError(f"there are {len(units)} units for {len(names)} values")
    return Outputs(values=outputs, names=names, units=units)


def _output(probed: Arrays, name: str) -> NDArray[Any]:
    if name not in probed:
        raise ValueError(f"there is no output {name}; the graph has {', '.join(probed)}")
    value = probed[name]
    if len(value) != _PROBES or value.dtype.kind != "f":
        raise ValueError(f"output {name} does not hold floats with the images first")
    return value


def _sizes(value: NDArray[Any]) -> list[int]:
    return list(value.shape[1:])
