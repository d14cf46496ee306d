"""``capsedge infer``: images in, classes, poses and pictures out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsedge.cli import _common
from capsedge.cli._places import READS, READS_FLAT, WRITES
from capsedge.errors import CapsedgeError, ExitCode, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from capsedge.runtime.session import Session
    from capsedge.runtime.vision.prediction import Prediction

_GROUP = 32  # images of one run
_MANY = 100  # images from which on progress is shown
_ACTIVE = 0.5  # score from which on a second capsule is drawn


def command(
    images: Annotated[
        list[Path], typer.Argument(help="PNG or JPEG files, or folders of them."), READS_FLAT
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            "-m",
            help="ONNX file or TensorRT engine; the zoo's digit model by default.",
        ),
        READS,
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="Show the K best classes.")
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            "--threshold", min=0, max=1, help="Show every class with at least this score."
        ),
    ] = None,
    invert: Annotated[
        bool, typer.Option("--invert", help="Dark ink on a light ground, as on paper.")
    ] = False,
    reconstruct: Annotated[
        Path | None,
        typer.Option(
            "--reconstruct",
            help="Write a PNG: what the model saw, beside the decoder's picture of the classes shown "
            "(of up to two with a score of at least 0.5, without --top and --threshold).",
        ),
        WRITES,
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", min=1, help="Threads of one inference; one a physical core by default."
        ),
    ] = None,
    ops: Annotated[
        str,
        typer.Option("--ops", help="auto, fused (operator library) or portable (function bodies)."),
    ] = "auto",
    device: Annotated[
        str | None,
        typer.Option(
            "--device", help="cpu, cuda or cuda:1; by default the CPU, for an engine the GPU."
        ),
    ] = None,
    provider: Annotated[
        str, typer.Option("--provider", help="Of ONNX Runtime on a GPU: auto, cuda or tensorrt.")
    ] = "auto",
    as_json: _common.Json = False,
) -> None:
    """Classify images.

    An image that cannot be read is reported, the others are classified, and the exit code is 2.
    """
    from capsedge.runtime.session import load

    files = expand(images)
    if model is None:
        from capsedge.zoo import default_model

        model = default_model()
    session = load(model, device=device, threads=threads, ops=ops, provider=provider)
    if reconstruct is not None:
        from capsedge.runtime.vision.pictures import check_sheet, write_sheet

        session.check_reconstruction()
        check_sheet(reconstruct, len(files))
    results: dict[int, Prediction] = {}
    errors: dict[int, CapsedgeError] = {}
    sheet: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]] = []
    drawn: dict[int, dict[int, str]] = {}
    for group in _progress(files):
        batch: dict[int, NDArray[np.float32]] = {}
        for number, file in group:
            try:
                batch[number] = session.prepare(file, invert)
            except UsageError as error:
                errors[number] = error
                _common.log_error(error)
        if not batch:
            continue
        import numpy as np

        stacked = np.stack(list(batch.values()))
        found = dict(zip(batch, session.predict(stacked, top, threshold), strict=True))
        results |= found
        if reconstruct is not None:
            limit = 2 if top is None and threshold is None else None
            drawn |= _draw(session, stacked, found, limit, sheet)
    if reconstruct is not None and sheet:
        write_sheet(reconstruct, sheet)
    if as_json:
        _print_json(session, files, results, errors, drawn, reconstruct)
    elif results:
        _print_table(session, files, results, drawn)
        if reconstruct is not None:
            _common.log(f"wrote {reconstruct}")
    if errors:
        _common.log(f"{len(errors)} of {len(files)} images could not be read")
        raise typer.Exit(int(ExitCode.USAGE))


def expand(names: Sequence[Path]) -> list[Path]:
    """Files as named; of a folder its images, sorted by name.

    Raises:
        UsageError: a folder has no images.
    """
    from capsedge.runtime.vision.images import SUFFIXES

    files: list[Path] = []
    for name in names:
        if not name.is_dir():
            files.append(name)
            continue
        try:
            inside = sorted(p for p in name.iterdir() if p.suffix.lower() in SUFFIXES)
        except OSError as error:
            raise UsageError(
                f"The folder {name} cannot be read.", f"{error.strerror}.", "Check its permissions."
            ) from error
        if not inside:
            raise UsageError(
                f"The folder {name} has no images.",
                f"Images are files named *{', *'.join(SUFFIXES)}; folders inside are not searched.",
                "Name a folder with images.",
            )
        files += inside
    return files


def _progress(files: Sequence[Path]) -> Iterator[list[tuple[int, Path]]]:
    """Groups of numbered files; for many of them a bar on a terminal, lines elsewhere."""
    numbered = list(enumerate(files))
    groups = [numbered[i : i + _GROUP] for i in range(0, len(numbered), _GROUP)]
    if len(files) < _MANY:
        yield from groups
        return
    import sys

    if not sys.stderr.isatty():
        tenth = max(1, len(groups) // 10)
        for done, group in enumerate(groups, 1):
            yield group
            if done % tenth == 0:
                _common.log(f"{group[-1][0] + 1} of {len(files)} images")
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(
        groups, description="classifying", console=Console(stderr=True), transient=True
    )


def _draw(
    session: Session,
    batch: NDArray[np.float32],
    found: dict[int, Prediction],
    limit: int | None,
    sheet: list[tuple[NDArray[np.uint8], NDArray[np.uint8]]],
) -> dict[int, dict[int, str]]:
    """Add a row an image to the sheet; returns the colour of each class drawn, by image."""
    from capsedge.runtime.vision.pictures import COLOURS, overlay, seen
    from capsedge.runtime.vision.prediction import choose

    assert session.metadata is not None  # predict has refused otherwise
    assert session.metadata.preprocessing is not None
    drawn: dict[int, dict[int, str]] = {}
    pictures = session.reconstruct(batch)
    for (number, prediction), prepared, picture in zip(found.items(), batch, pictures, strict=True):
        classes = [label.index for label in prediction.labels][: len(COLOURS)]
        if limit is not None:
            active = choose(prediction.scores, limit, _ACTIVE)
            classes = active if len(active) > 1 else classes
        classes = classes or choose(prediction.scores, 1, None)
        colours = ["own"] if len(classes) == 1 else list(COLOURS)
        drawn[number] = dict(zip(classes, colours, strict=False))
        sheet.append((seen(prepared, session.metadata.preprocessing), overlay(picture, classes)))
    return drawn


def _print_json(
    session: Session,
    files: Sequence[Path],
    results: dict[int, Prediction],
    errors: dict[int, CapsedgeError],
    drawn: dict[int, dict[int, str]],
    reconstruct: Path | None,
) -> None:
    lines: list[dict[str, Any]] = []
    for number, file in enumerate(files):
        line: dict[str, Any] = {"image": str(file)}
        if number in errors:
            error = errors[number]
            line |= {"error": error.what, "why": error.why, "fix": error.fix}
        else:
            line |= results[number].to_dict()
        if number in drawn:
            line["drawn"] = {session.class_name(j): colour for j, colour in drawn[number].items()}
        lines.append(line)
    _common.print_json(
        {
            "model": str(session.path),
            "ops": session.ops,
            "images": lines,
            "failed": len(errors),
            "reconstruction": str(reconstruct) if drawn else None,
        }
    )


def _print_table(
    session: Session,
    files: Sequence[Path],
    results: dict[int, Prediction],
    drawn: dict[int, dict[int, str]],
) -> None:
    from capsedge.cli._tables import print_table

    kind = next(iter(results.values())).score_kind
    columns = ["image", "class", kind] + (["drawn"] if drawn else [])
    rows: list[list[str]] = []
    for number, prediction in results.items():
        colours = drawn.get(number, {})
        # A class that is drawn is listed with its colour also where it was not asked for.
        classes = list(dict.fromkeys([label.index for label in prediction.labels] + list(colours)))
        if not classes:
            rows.append([str(files[number]), "-", ""])
        for position, j in enumerate(classes):
            row = [str(files[number]) if position == 0 else ""]
            row += [session.class_name(j), f"{prediction.scores[j]:.4f}"]
            rows.append(row + ([colours.get(j, "")] if drawn else []))
    print_table(f"{session.path.name}, {session.ops} operators", columns, rows)
