"""Describe a foreign ONNX file; what the user declares is checked by running the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsedge.errors import ArtefactError, CapsedgeError, UsageError
from capsedge.runtime.load import load_bytes
from capsedge.runtime.metadata.map_scores import choose_maps
from capsedge.runtime.metadata.metadata import (
    FusedRouting,
    ModelMetadata,
    Outputs,
    Preprocessing,
    RoutedLayer,
)
from capsedge.runtime.metadata.scores import SCORES, ChosenScores, choose_scores, shape_fault
from capsedge.runtime.metadata.typical_input import TypicalInput
from capsedge.runtime.onnx_file import summary
from capsedge.runtime.onnx_file.layer_map import layer_of_weights
from capsedge.runtime.onnx_file.structure import structure_of
from capsedge.runtime.onnx_file.wire import with_properties
from capsedge.runtime.score_checks import (
    Probes,
    check_computed,
    check_scores,
    kind_of_scores,
    run_probes,
)
from capsedge.runtime.session.session import Session
from capsedge.spec import limits
from capsedge.spec.fields import PREFIX
from capsedge.spec.operators import DOMAIN, ROUTING_OPERATORS
from capsedge.spec.vocabularies import (
    CLASSIFICATION,
    LENGTHS,
    LOGITS,
    POSES,
    REGRESSION,
    SEGMENTATION,
    TASKS,
)

NAMED = "named by the user"
_KIND_BY_NAME = {LENGTHS: "length", LOGITS: "logits"}
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Description:
    """A user's description of a network. Fields that are left out stay as in the file, or take their
    defaults.

    Attributes:
        class_names: one per class.
        preprocessing: how an image becomes the input; a mapping changes some of its fields.
        task: ``single-label``, ``multi-label``, ``regression`` or ``segmentation``; ``classification`` is
            ``single-label``.
        outputs: which outputs hold scores, poses or values; for a regression the names and units of the
            values, where a single unit stands for all.
        typical: images as in training (`capsedge.datasets.typical_input_from`): for an image unlike all of
            them, predictions say that there is nothing to see. Or a function that makes the criterion of
            the preprocessing.
    """

    class_names: Sequence[str] | None = None
    preprocessing: Preprocessing | Mapping[str, Any] | None = None
    task: str | None = None
    outputs: Outputs | None = None
    typical: Any = None

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
                    f"{name} has the type {type(value).__name__}.", f"Expected: {wanted}.", ""
                )

    @classmethod
    def of(cls, given: DescriptionLike | None) -> Description:
        """A description from a mapping of its fields, or from a TOML file with them.

        Raises:
            UsageError: a field is unknown, wrong, or contradicts another.
        """
        if given is None or isinstance(given, Description):
            return given or cls()
        # Not at the top: that file makes descriptions of this class.
        from capsedge.runtime.description_fields import described, read_fields, read_file

        if isinstance(given, Mapping):
            return described(read_fields(given))
        if isinstance(given, (str, Path)):
            return described(read_file(Path(given)))
        raise UsageError(
            f"description has the type {type(given).__name__}.",
            "Expected: a mapping, the path of a TOML file, or a capsedge.Description.",
        )

    def __bool__(self) -> bool:
        return any(value is not None for value in vars(self).values())


DescriptionLike: TypeAlias = Description | Mapping[str, Any] | Path | str


@dataclass(frozen=True)
class DescribedModel:
    """A file with its new metadata.

    Attributes:
        data: the bytes of the file.
        metadata: what it states now.
        warnings: about its scores, for the user.
    """

    data: bytes
    metadata: ModelMetadata
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Which outputs hold the answer, in words, including what was inferred from their values."""
        m = self.metadata
        if m.outputs is None:
            where = f"{len(m.class_names)} classes"
        elif m.task == REGRESSION:
            where = f"{', '.join(m.outputs.names[:16])} in {', '.join(m.outputs.values[:16])}"
        elif m.task == SEGMENTATION:
            names = f"{len(m.class_names)} classes" if m.class_names else "classes without names"
            where = f"{names} of pixels, scores ({m.outputs.kind}) in {m.outputs.scores}"
        else:
            kinds = {"length": "lengths", "probability": "probabilities"}
            poses = f"poses in {m.outputs.poses}" if m.outputs.poses else "no poses"
            kind = kinds.get(m.outputs.kind, m.outputs.kind)
            where = f"{len(m.class_names)} classes, scores ({kind}) in {m.outputs.scores}, {poses}"
        images = "" if m.preprocessing else "; no preprocessing of images, which --size gives it"
        typical = f"; typical input: {m.typical_input.summary}" if m.typical_input else ""
        why = f"; why these scores: {m.chosen_scores.reason}" if m.chosen_scores else ""
        return f"the file states: {m.task}, {where}{images}{typical}{why}"


def describe_model(
    data: bytes,
    description: Description,
    base: ModelMetadata | None = None,
    name: Path | str = "the model",
    runnable: bytes | None = None,
) -> DescribedModel:
    """An ONNX file with the metadata that a description gives it; all other bytes stay as they are.

    It is read again as `load` reads it, and run on an image, so that nothing is written that a reader would
    refuse.

    Args:
        description: what to state.
        base: metadata to begin with; by default the file's own.
        runnable: the same graph, to be run in place of the file.
    """
    path, runnable = Path(name), runnable or data
    if base is None:
        base = ModelMetadata.from_properties(summary.summarize(data, str(name)).metadata)
    base = base or ModelMetadata("", {}, "", 0, (), None)
    warnings: tuple[str, ...] = ()
    if description:
        plain = load_bytes(with_properties(runnable, {}, PREFIX), path)
        base, warnings = metadata_for(description, plain, base)
    if not base.configuration:  # not a model of the package, whose configuration states its routing
        base = _with_routing(base, data)
    properties = checked_properties(base, path)
    _check_read(with_properties(runnable, properties, PREFIX), path)
    return DescribedModel(with_properties(data, properties, PREFIX), base, warnings)


def _with_routing(base: ModelMetadata, data: bytes) -> ModelMetadata:
    """The metadata with the routing whose operators are in the file; unchanged if there is none."""
    layers = tuple(
        RoutedLayer(
            layer_of_weights(node) or node.name or node.outputs[0],
            ROUTING_OPERATORS[node.operator].routing,
            ROUTING_OPERATORS[node.operator].iterations(node.attributes),
        )
        for node in structure_of(data).graph.walk()
        if node.domain == DOMAIN and node.operator in ROUTING_OPERATORS
    )
    if not layers:
        return base
    counts = {layer.iterations for layer in layers}
    return dataclasses.replace(
        base,
        routing=", ".join(dict.fromkeys(layer.routing for layer in layers)),
        iterations=counts.pop() if len(counts) == 1 else 0,
        fused_routing=FusedRouting(layers),
    )


_FITS = (
    "Correct the argument that describes it: class_names, preprocessing, task, outputs or typical "
    "(docs/reference/metadata.md)."
)
_FITS_COMMAND = (
    "Correct the option that describes it: --classes, --size, --range, --mean, --std, --task or "
    "--describe (docs/reference/metadata.md)."
)


def checked_properties(metadata: ModelMetadata, name: Path | str = "the model") -> dict[str, str]:
    """The properties of metadata, which the package reads back. Raises UsageError if it would refuse them."""
    try:
        properties = metadata.to_properties()
        read = ModelMetadata.from_properties(properties)
        why = "" if _in_words(read) == _in_words(metadata) else "It would be read back differently."
    except (ArtefactError, TypeError, ValueError) as error:
        why = error.why if isinstance(error, CapsedgeError) else f"{error}."
    if why:
        raise UsageError(
            f"The description of {name} cannot be written.", why, _FITS, command=_FITS_COMMAND
        )
    return properties


def _in_words(metadata: ModelMetadata | None) -> Any:
    """The metadata that readers use; other records may hold NaN, which reads as null."""
    return metadata and dataclasses.replace(metadata, configuration={}, calibration={}, parity={})


def _check_read(data: bytes, path: Path) -> None:
    """Load the file as any reader does, and predict."""
    try:
        session = load_bytes(data, path)
        if session.metadata is not None and session.metadata.preprocessing is not None:
            p = session.metadata.preprocessing
            session.predict(np.zeros((1, p.height, p.width, p.channels), np.uint8))
    except ArtefactError as error:
        raise UsageError(f"{path} does not fit its description.", error.why, error.fix) from error


def metadata_for(
    description: Description, session: Session, base: ModelMetadata
) -> tuple[ModelMetadata, tuple[str, ...]]:
    """The metadata that a description gives a network, and warnings on its scores.

    Args:
        session: session of the network, read without its metadata.
        base: what it states so far.
    """
    check_takes_images(str(session.path), {p.name: p.shape for p in session.inputs})
    try:
        preprocessing = preprocessing_for(
            description, session.inputs[0].shape[1:], base.preprocessing, str(session.path)
        )
        task = task_of(description, base)
        images, probed = run_probes(session, preprocessing)
        names: tuple[str, ...] = ()
        chosen, warnings = None, tuple[str, ...]()
        if task == REGRESSION:
            outputs: Outputs | None = _values(
                description.outputs, base.outputs, probed, len(images.images)
            )
        elif task == SEGMENTATION:
            names = _classes(description, base)
            outputs, chosen = _maps(description.outputs, base, len(names), probed, images)
        else:
            names = _classes(description, base)
            scored = _scores(description.outputs, base, names, probed, images)
            outputs, chosen = scored.outputs, scored.chosen
            warnings = check_scores(scored.name, scored.kind, task, probed, images)
        described = dataclasses.replace(
            base,
            task=task,
            class_names=names,
            preprocessing=preprocessing,
            outputs=outputs,
            typical_input=_typical_input(description, preprocessing, base),
            chosen_scores=chosen,
        )
        return described, warnings
    except UsageError:  # is a ValueError, too
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The description does not fit {session.path}.",
            f"{error}.",
            _FITS,
            command=_FITS_COMMAND,
        ) from error


def check_takes_images(name: str, inputs: Mapping[str, Sequence[int | str | None]]) -> None:
    """Refuse a network whose input is not images."""
    if [len(shape) for shape in inputs.values()] != [4]:
        shapes = ", ".join(f"{port} {list(shape)}" for port, shape in inputs.items())
        raise UsageError(
            f"{name} does not take images.",
            f"Its inputs: {shapes}; wanted one, [N, channels, height, width] or with the channels last.",
            "Use `Session.run` with arrays.",
        )


def _typical_input(
    description: Description, preprocessing: Preprocessing | None, base: ModelMetadata
) -> TypicalInput | None:
    """The typical input; one that was measured with different preprocessing is no longer valid."""
    if description.typical is None:
        return base.typical_input if preprocessing == base.preprocessing else None
    if preprocessing is None:
        raise ValueError("typical images need the preprocessing of the model, such as its --size")
    typical: TypicalInput = description.typical(preprocessing)
    return typical


def preprocessing_for(
    description: Description,
    sizes: Sequence[int | str | None],
    base: Preprocessing | None,
    name: str,
) -> Preprocessing | None:
    """How images become the input ``[N, *sizes]``, by a description and what was known before."""
    described = description.preprocessing
    if described is None or isinstance(described, Preprocessing):
        return described or base
    known = {field.name for field in dataclasses.fields(Preprocessing)}
    if not known >= set(described):
        raise ValueError(f"preprocessing has no {', '.join(sorted(set(described) - known))}")
    changes = dict(described)
    if base is not None:
        return dataclasses.replace(base, **changes)
    names = ("channels", "height", "width")
    if changes.setdefault("layout", _layout(sizes)) == "NHWC":
        sizes = (sizes[2], sizes[0], sizes[1])
    for name, size in zip(names, sizes, strict=True):
        if isinstance(size, int):
            changes.setdefault(name, size)
    missing = [name for name in names if name not in changes]
    if missing:
        raise UsageError(
            f"{name} does not fix the size of its input.",
            f"Missing: {', '.join(missing)}.",
            "Add --size HEIGHTxWIDTH, or in Python a Preprocessing.",
        )
    return Preprocessing(**changes)


def _layout(sizes: Sequence[int | str | None]) -> str:
    """Pictures have one or three channels, and larger sides."""
    return "NHWC" if sizes[2] in (1, 3) and sizes[0] not in (1, 3) else "NCHW"


def task_of(description: Description, base: ModelMetadata) -> str:
    """The task that a description gives a network."""
    task = description.task
    if task is None and description.class_names is not None:
        task = base.task if base.task != REGRESSION else CLASSIFICATION[0]
    if task is None and description.outputs is not None:
        task = REGRESSION if description.outputs.names or description.outputs.values else None
    task = CLASSIFICATION[0] if task == "classification" else task or base.task
    if task not in TASKS:
        raise ValueError(f"task '{task}', known: classification, {', '.join(TASKS)}")
    if task == REGRESSION and description.class_names is not None:
        raise ValueError("a regression has values, not classes")
    declared = description.outputs
    if task != REGRESSION and declared and (declared.names or declared.units or declared.values):
        raise ValueError("values, their names and units belong to a regression, not to classes")
    if task == REGRESSION and declared and (declared.scores or declared.kind or declared.poses):
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


@dataclass(frozen=True)
class _Scored:
    """The output of scores: its name, its kind, what the metadata says of it, and why it was chosen."""

    name: str
    kind: str
    outputs: Outputs | None
    chosen: ChosenScores | None


def _scores(
    requested: Outputs | None,
    base: ModelMetadata,
    names: tuple[str, ...],
    probed: Arrays,
    images: Probes,
) -> _Scored:
    """Which output decides the class; its `outputs` are None if the names already say so."""
    requested, declared = requested or Outputs(), base.outputs or Outputs()
    scores, chosen = requested.scores, ChosenScores(NAMED) if requested.scores else None
    if scores == declared.scores:
        chosen = base.chosen_scores
    if not scores:
        scores, chosen = declared.scores, base.chosen_scores
    named = [name for name in SCORES if name in probed]
    if not scores and base.class_names and len(named) == 1:  # a file in which names decide
        scores, chosen = named[0], base.chosen_scores
    posed = ""
    if not scores:
        choice = choose_scores(
            probed, len(names), inside=images.inside, images=images.images.shape[1:]
        )
        check_computed(choice)
        scores, chosen, posed = choice.output, ChosenScores(choice.reason), choice.poses
    value = _output(probed, scores, len(images.images))
    if fault := shape_fault(scores, value.shape[1:], len(names)):
        raise ValueError(fault)
    kind = requested.kind or (declared.kind if scores == declared.scores else "")
    kind = kind or _KIND_BY_NAME.get(scores) or kind_of_scores(value[images.inside])
    poses = requested.poses or declared.poses or (POSES if _posed(probed, POSES, value) else "")
    poses = poses or (posed if _posed(probed, posed, value) else "")
    if poses and (
        _output(probed, poses, len(value)).ndim < 3 or probed[poses].shape[1] != value.shape[1]
    ):
        raise ValueError(f"{poses} has {_sizes(probed[poses])}, not a pose for each class")
    outputs = Outputs(scores=scores, kind=kind, poses=poses)
    only = len(set(SCORES) & set(probed)) == 1
    computed = chosen is not None and chosen.made_of
    if (
        only
        and not computed
        and outputs == Outputs(scores=scores, kind=_KIND_BY_NAME.get(scores, ""), poses=POSES)
    ):
        return _Scored(scores, kind, None, chosen)
    return _Scored(scores, kind, outputs, chosen)


def _maps(
    requested: Outputs | None, base: ModelMetadata, classes: int, probed: Arrays, images: Probes
) -> tuple[Outputs, ChosenScores | None]:
    """The output of a segmentation, and why it was chosen."""
    requested = requested or Outputs()
    stated = base.outputs if base.task == SEGMENTATION else None
    if requested.poses:
        raise ValueError("a segmentation has no output for poses")
    name = requested.scores or (stated.scores if stated else "")
    if name:
        _output(probed, name, len(images.images))
    inside = {each: value[images.inside] for each, value in probed.items() if value.ndim}
    choice = choose_maps(inside, images.images.shape[1:], classes, name)
    same = stated is not None and stated.scores == choice.output
    kind = requested.kind or (stated.kind if stated and same else choice.kind)
    chosen = base.chosen_scores if same else ChosenScores(choice.reason)
    return Outputs(scores=choice.output, kind=kind), chosen


def _posed(probed: Arrays, name: str, scores: NDArray[Any]) -> bool:
    poses = probed.get(name)
    return poses is not None and poses.ndim >= 3 and poses.shape[1] == scores.shape[1]


def _values(requested: Outputs | None, base: Outputs | None, probed: Arrays, rows: int) -> Outputs:
    """The outputs of a regression with a name and a unit for each value."""
    requested, base = requested or Outputs(), base or Outputs()
    outputs = requested.values or base.values
    if not outputs:
        named = requested.names and set(requested.names) <= set(probed)
        outputs = requested.names if named else tuple(probed)
    counts = {name: int(np.prod(_output(probed, name, rows).shape[1:])) for name in outputs}
    names = requested.names or (base.names if outputs == base.values else ())
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
            "that hold them: --describe values=NAME, in Python Outputs(values=...)"
        )
    units = requested.units or (base.units if names == base.names else ()) or ("",)
    units = units * len(names) if len(units) == 1 else units
    if len(units) != len(names):
        raise ValueError(f"there are {len(units)} units for {len(names)} values")
    return Outputs(values=outputs, names=names, units=units)


def _output(probed: Arrays, name: str, rows: int) -> NDArray[Any]:
    if name not in probed:
        raise ValueError(f"there is no output {name}; the graph has {', '.join(probed)}")
    value = probed[name]
    if len(value) != rows or value.dtype.kind != "f":
        raise ValueError(f"output {name} does not hold floats with the images first")
    return value


def _sizes(value: NDArray[Any]) -> list[int]:
    return list(value.shape[1:])
