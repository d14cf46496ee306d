"""``capsedge infer``: images in, classes, poses and pictures out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options, _output
from capsedge.cli._options import grouped
from capsedge.cli._parameters import Argument, Option
from capsedge.cli._paths import READS_IMAGES, READS_MODEL_OR_NAME, WRITES
from capsedge.errors import ExitCode
from capsedge.runtime.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from capsedge.runtime.classify import Classified
    from capsedge.runtime.ensemble import Ensemble
    from capsedge.runtime.predictions import Prediction
    from capsedge.runtime.session import Session

ATYPICAL = "nothing to see"
_MANY = 100  # progress is shown from this number of images on
Images = Annotated[
    list[Path],
    Argument(
        help="PNG, JPEG, GIF, BMP, TIFF or WebP files, or folders of them; - is standard input."
    ),
    READS_IMAGES,
]
Models = Annotated[
    list[str] | None,
    Option(
        "--model",
        "-m",
        help=(
            "ONNX file, TensorRT engine, or a name from the zoo (digits-em); digits-dynamic by "
            "default. Repeat it for an ensemble, which averages scores."
        ),
    ),
    READS_MODEL_OR_NAME,
]
Top = Annotated[int | None, Option("--top", min=1, help="Show the K best classes.")]
Threshold = Annotated[
    float | None,
    Option("--threshold", min=0, max=1, help="Show every class with at least this score."),
]
Invert = Annotated[bool, Option("--invert", help="Dark ink on a light background, as on paper.")]
Reconstruct = Annotated[
    Path | None,
    Option(
        "--reconstruct",
        help=(
            "Write a PNG with the model's input and the decoder's reconstruction of the classes "
            "shown (without --top and --threshold: up to two classes with a score of at least "
            "0.5)."
        ),
    ),
    WRITES,
]


@grouped
def command(
    images: Images,
    options: RuntimeOptions,
    model: Models = None,
    top: Top = None,
    threshold: Threshold = None,
    invert: Invert = False,
    reconstruct: Reconstruct = None,
    as_json: _options.Json = False,
) -> None:
    """Classify images, or compute the values of a regression.

    If an image cannot be read, it is reported, the others are classified, and the exit code is 2.
    """
    from capsedge.cli._process import contents
    from capsedge.runtime.classify import classify_files, image_files
    from capsedge.runtime.load import load
    from capsedge.runtime.zoo import DEFAULT

    files = image_files(images)
    opened = contents(files)
    given = model or [DEFAULT]
    session = load(given if len(given) > 1 else given[0], options)
    with _progress(len(files)) as progress:
        found = classify_files(
            session, files, opened=opened, top_k=top, threshold=threshold, invert=invert,
            reconstruct=reconstruct, failed=_output.log_error, progress=progress,
        )  # fmt: skip
    if as_json:
        _print_json(session, found, reconstruct)
    elif found.predictions:
        _print_table(session, found, asked=top is not None or threshold is not None)
        if reconstruct is not None:
            _output.log(f"wrote {reconstruct}")
    _log_hints(found)
    for warning in found.warnings:
        _output.log(f"warning: {warning}")
    if found.escalated is not None and not as_json:
        escalated = sum(p.escalated is True for p in found.predictions.values())
        _output.say(
            f"escalated: {escalated} of {len(found.predictions)} images, {found.escalated:.1%}, "
            "decided by the large network"
        )
    if found.errors:
        _output.log(f"{len(found.errors)} of {len(files)} images could not be read")
        raise SystemExit(int(ExitCode.USAGE))


@contextmanager
def _progress(count: int) -> Iterator[Callable[[int, int], None]]:
    """For many files, a bar on a terminal and lines elsewhere."""
    if count < _MANY:
        yield lambda _done, _total: None
        return
    if not sys.stderr.isatty():
        tenths = 0

        def line(done: int, total: int) -> None:
            nonlocal tenths
            if 10 * done // total > tenths:
                tenths = 10 * done // total
                _output.log(f"{done} of {total} images")

        yield line
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("classifying", total=count)
        yield lambda done, _total: bar.update(task, completed=done)


def _print_json(session: Session | Ensemble, found: Classified, reconstruct: Path | None) -> None:
    files, _, ops = _facts(session)
    lines: list[dict[str, Any]] = []
    for number, file in enumerate(found.files):
        line: dict[str, Any] = {"image": str(file)}
        if number in found.errors:
            error = found.errors[number]
            line |= {"error": error.what, "why": error.why, "fix": error.fix}
        else:
            line |= found.predictions[number].to_dict()
        if number in found.drawn:
            colours = found.drawn[number]
            line["drawn"] = {session.class_name(j): colour for j, colour in colours.items()}
        lines.append(line)
    _output.print_json(
        {
            **({"model": files[0]} if len(files) == 1 else {"models": files}),
            "ops": ops,
            "images": lines,
            "failed": len(found.errors),
            **({"warnings": list(found.warnings)} if found.warnings else {}),
            **({} if found.escalated is None else {"escalated_share": found.escalated}),
            "reconstruction": str(reconstruct) if found.drawn else None,
        }
    )


def _facts(model: Session | Ensemble) -> tuple[list[str], str, str]:
    """The files that were run, their name for a title, and which operators ran."""
    from capsedge.runtime.session import Session

    if isinstance(model, Session):
        return [str(model.path)], model.path.name, model.backend.ops
    return [str(path) for path in model.paths], model.name, model.ops


def _log_hints(found: Classified) -> None:
    """Why there is nothing to see in an image, and what to try."""
    for number, prediction in found.predictions.items():
        name = found.files[number]
        if prediction.atypical:
            _output.log(f"{name}: {ATYPICAL}: {prediction.atypical}")
        if prediction.hint:
            _output.log(f"hint: {name} is {prediction.hint}")


def _print_table(session: Session | Ensemble, found: Classified, asked: bool) -> None:
    """The predictions; for an atypical image, only those that were asked for or drawn."""
    from capsedge.cli._output import print_table

    _, name, ops = _facts(session)
    title = f"{name}, {ops} operators"
    first = next(iter(found.predictions.values()))
    if first.values:
        estimates = [
            [str(found.files[number]), _values(prediction)]
            for number, prediction in found.predictions.items()
        ]
        print_table(title, ["image", "values"], estimates)
        return
    kind = first.score_kind
    columns = ["image", "class", kind] + (["drawn"] if found.drawn else [])
    rows: list[list[str]] = []
    for number, prediction in found.predictions.items():
        colours = found.drawn.get(number, {})
        # A class that is drawn is listed with its colour even if it was not requested.
        classes = list(dict.fromkeys([label.index for label in prediction.labels] + list(colours)))
        if prediction.atypical and not asked:
            classes = list(colours)
        cells = [[ATYPICAL, "", ""]] if prediction.atypical else []
        cells += [
            [session.class_name(j), f"{prediction.scores[j]:.4f}", colours.get(j, "")]
            for j in classes
        ]
        for position, row in enumerate(cells or [["-", "", ""]]):
            name = str(found.files[number]) if position == 0 else ""
            rows.append([name, *row][: len(columns)])
    print_table(title, columns, rows)


def _values(prediction: Prediction) -> str:
    """The values of a regression."""
    return ATYPICAL if prediction.atypical else ", ".join(map(str, prediction.values))
