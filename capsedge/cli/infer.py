"""``capsedge infer``: classifies images, with poses and pictures; or computes outputs for arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from capsedge.cli import _options, _output
from capsedge.cli._masks import MaskResults
from capsedge.cli._options import Argument, grouped
from capsedge.cli._paths import (
    READS,
    READS_IMAGES,
    READS_MODEL_OR_NAME,
    WRITES,
    WRITES_FILE_OR_FOLDER,
    WRITES_MASKS,
)
from capsedge.errors import ExitCode, UsageError
from capsedge.options import LARGEST_COUNT, Option
from capsedge.runtime.progress import Progress, silent
from capsedge.runtime.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from capsedge.runtime.session.classify import Classified
    from capsedge.runtime.session.ensemble import Ensemble
    from capsedge.runtime.session.predictions import Prediction
    from capsedge.runtime.session.session import Session

ATYPICAL = "nothing to see"
_ROWS, _NUMBERS = 10, 8  # for arrays: output rows shown, and numbers per row
_MANY = 100  # progress is shown from this number of images on
Images = Annotated[
    list[Path] | None,
    Argument(
        help="PNG, JPEG, GIF, BMP, TIFF or WebP files, or folders of them; - is standard input. Or one "
        "video, such as clip.mp4, or one camera: /dev/video0, or 0."
    ),
    READS_IMAGES,
]
Inputs = Annotated[
    Path | None,
    Option(
        "--inputs",
        help="Instead of images: .npz or .npy with an array for each input, by name, batch first; the answer "
        "is the outputs of the file.",
    ),
    READS,
]
Output = Annotated[
    Path | None,
    Option(
        "-o",
        "--output",
        help="With --inputs: write the outputs to this .npz file. For a segmentation: write the mask of each "
        "image into this folder, as an indexed PNG. Of moving pictures: a video with predictions drawn on it "
        "(.mp4, .mkv, .mov), lines of JSON (.jsonl), or else a folder of PNG files.",
    ),
    WRITES_FILE_OR_FOLDER,
]
Overlay = Annotated[
    Path | None,
    Option(
        "--overlay",
        help="For a segmentation: write each image with its mask over it into this folder.",
    ),
    WRITES_MASKS,
]
Watch = Annotated[
    bool, Option("--watch", help="Stay, and classify new images of the folder as they arrive.")
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
        complete="zoo",
    ),
    READS_MODEL_OR_NAME,
]
Top = Annotated[
    int | None, Option("--top", min=1, max=LARGEST_COUNT, help="Show the K best classes.")
]
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
    options: RuntimeOptions,
    images: Images = None,
    inputs: Inputs = None,
    model: Models = None,
    top: Top = None,
    threshold: Threshold = None,
    invert: Invert = False,
    reconstruct: Reconstruct = None,
    output: Output = None,
    overlay: Overlay = None,
    watch: Watch = False,
    as_json: _options.Json = False,
) -> None:
    """Classify or segment images, compute the values of a regression, or the outputs for arrays.

    If an image cannot be read, it is reported, the others are classified, and the exit code is 2.
    Of a video, a camera or a watched folder, one frame after another is classified until it ends, or
    Ctrl-C; with --json, each is one line.
    """
    from capsedge.cli._process import read_standard_input
    from capsedge.runtime.images.inputs import image_files
    from capsedge.runtime.load import load
    from capsedge.runtime.session.classify import classify_files
    from capsedge.runtime.video.frames import is_moving
    from capsedge.runtime.zoo import DEFAULT

    if is_moving(images or [], watch):
        from capsedge.cli import _moving

        _moving.check_moving(
            images or [], watch, output, inputs=inputs, reconstruct=reconstruct, overlay=overlay
        )
        chosen = _moving.Choices(top, threshold, invert, output, as_json)
        _moving.infer_moving(images[0], watch, model or [DEFAULT], options, chosen)  # type: ignore[index]
        return
    _check_choice(
        images, inputs, top=top, threshold=threshold, invert=invert, reconstruct=reconstruct,
        overlay=overlay,
    )  # fmt: skip
    if inputs is not None:
        _infer_arrays(inputs, model or [], options, output, as_json)
        return
    files = image_files(images or [])
    opened = read_standard_input(files)
    given = model or [DEFAULT]
    session = load(given if len(given) > 1 else given[0], options)
    masks = MaskResults.of(session, files, opened, output, overlay, as_json)
    with _progress(len(files)) as progress:
        found = classify_files(
            session, files, opened=opened, top_k=top, threshold=threshold, invert=invert,
            reconstruct=reconstruct, failed=_output.log_error, progress=progress,
            each=masks.take if masks else None,
        )  # fmt: skip
    if as_json:
        _print_json(session, found, reconstruct, masks)
    else:
        _print(session, found, reconstruct, masks)
    _log_graphs(session, options)
    _log_hints(found)
    _output.warn(*found.warnings)
    if found.errors:
        _output.log(f"{len(found.errors)} of {len(files)} images could not be read")
        raise SystemExit(int(ExitCode.USAGE))


def _print(
    session: Session | Ensemble,
    found: Classified,
    reconstruct: Path | None,
    masks: MaskResults | None,
) -> None:
    """The predictions as text, and what was written."""
    if masks is not None:
        masks.print_table(f"{session.name}, {session.ops} operators")
        masks.log_written()
    elif found.predictions:
        _print_table(session, found)
        if reconstruct is not None:
            _output.log(f"wrote {reconstruct}")
    if found.escalated is not None:
        escalated = sum(p.escalated is True for p in found.predictions.values())
        _output.say(
            f"escalated: {escalated} of {len(found.predictions)} images, {found.escalated:.1%}, "
            "decided by the large network"
        )


def _check_choice(images: list[Path] | None, inputs: Path | None, **of_images: object) -> None:
    """Refuse images together with arrays, neither of them, and options that apply to the other."""
    if (inputs is None) == (not images):
        raise UsageError(
            "infer takes images or --inputs.",
            f"Both were given; {images[0]} is taken for an image."
            if images
            else "Neither was given.",
            "Name image files, or pass --inputs FILE.npz with an array for each input. The model is --model.",
        )
    if inputs is None:
        return
    for name, value in of_images.items():
        if value:
            raise UsageError(
                f"--{name} is for images.",
                "With --inputs, infer returns the outputs of the file unchanged.",
                f"Leave out --{name}.",
            )


def _infer_arrays(
    inputs: Path, model: list[str], options: RuntimeOptions, output: Path | None, as_json: bool
) -> None:
    """Print, or write, the outputs for arrays."""
    import io
    import zipfile

    import numpy as np

    from capsedge.datasets.array_files import arrays_by_input, read_arrays
    from capsedge.runtime.files.writing import atomic_writer, check_apart
    from capsedge.runtime.load import load
    from capsedge.runtime.onnx_file.stored_values import find_not_finite_in, why_of
    from capsedge.runtime.session.classify import run_rows

    if len(model) != 1:
        raise UsageError(
            "--inputs needs one --model.",
            f"{len(model)} were given.",
            "Add --model FILE.onnx, the file that takes these inputs.",
        )
    if output is not None:
        check_apart([output], [inputs, model[0]])
    arrays = read_arrays(inputs)
    with load(model[0], options) as session:
        names = [port.name for port in session.inputs]
        values = arrays_by_input(arrays, names, str(inputs))
        found = run_rows(session, dict(zip(names, values, strict=True)))
        ops, path = session.backend.ops, session.path
        _log_graphs(session, options)
    if any(value.dtype.kind == "f" and np.isnan(value).any() for value in found.values()):
        wrong = find_not_finite_in(path)
        _output.warn("outputs are NaN" + (f", so are weights. {why_of(wrong)}" if wrong else ""))
    if output is not None:
        # numpy's own function takes names as keywords, and cannot take the name `file`.
        with atomic_writer(output) as stream, zipfile.ZipFile(stream, "w") as archive:
            for name, value in found.items():
                member = io.BytesIO()
                np.lib.format.write_array(member, value, allow_pickle=False)
                archive.writestr(f"{name}.npy", member.getbuffer())
    if as_json:
        _output.print_json(
            {
                "model": str(path),
                "ops": ops,
                "inputs": str(inputs),
                "outputs": {name: value.tolist() for name, value in found.items()},
            }
        )
    else:
        _print_arrays(f"{path.name}, {ops} operators", found)
    if output is not None:
        _output.log(f"wrote {output}")


def _print_arrays(title: str, found: dict[str, Any]) -> None:
    """Print the first rows: values of an output or, if rows hold vectors, their lengths."""
    import numpy as np

    columns = ["row"]
    for name, value in found.items():
        of = f", lengths of {value.shape[-1]}" if value.ndim > 2 else ""
        columns.append(f"{name} {list(value.shape)}{of}")
    shown = {n: np.linalg.norm(v, axis=-1) if v.ndim > 2 else v for n, v in found.items()}
    rows = min(_ROWS, *(len(v) for v in shown.values()))
    cells = [
        [str(k), *(_short(np.atleast_1d(value[k]).reshape(-1)) for value in shown.values())]
        for k in range(rows)
    ]
    _output.print_table(title, columns, cells)


def _short(values: Any) -> str:
    """The first numbers of a row."""
    text = " ".join(f"{v:.4g}" for v in values[:_NUMBERS])
    return f"{text} ..." if len(values) > _NUMBERS else text


@contextmanager
def _progress(count: int) -> Iterator[Progress]:
    """For many files, a bar on a terminal and lines elsewhere."""
    if count < _MANY:
        yield silent
        return
    if not sys.stderr.isatty():
        tenths = 0

        def line(_stage: str, done: int = 0, total: int | None = None) -> None:
            nonlocal tenths
            assert total is not None
            if 10 * done // total > tenths:
                tenths = 10 * done // total
                _output.log(f"{done} of {total} images")

        yield line
        return
    with _output.bar() as update:
        yield update


def _print_json(
    session: Session | Ensemble,
    found: Classified,
    reconstruct: Path | None,
    masks: MaskResults | None,
) -> None:
    files = list(map(str, session.paths))
    lines: list[dict[str, Any]] = []
    for number, file in enumerate(found.files):
        line: dict[str, Any] = {"image": str(file)}
        if number in found.errors:
            error = found.errors[number]
            line |= {"error": error.what, "why": error.why, "fix": error.fix}
        elif masks is not None and masks.values is not None:
            line |= masks.values[number]
        else:
            line |= found.predictions[number].to_dict()
        if number in found.drawn:
            colours = found.drawn[number]
            line["drawn"] = {session.class_name(j): colour for j, colour in colours.items()}
        lines.append(line)
    _output.print_json(
        {
            **({"model": files[0]} if len(files) == 1 else {"models": files}),
            "ops": session.ops,
            "images": lines,
            "failed": len(found.errors),
            **({"warnings": list(found.warnings)} if found.warnings else {}),
            **({} if found.escalated is None else {"escalated_share": found.escalated}),
            "reconstruction": str(reconstruct) if found.drawn else None,
        }
    )


def _log_graphs(model: Session | Ensemble, options: RuntimeOptions) -> None:
    """Why there were no CUDA graphs, unless they were switched off."""
    from capsedge.runtime.backends.backend import missing_graphs

    for session in model.sessions:
        if why := missing_graphs(session.backend, options.graphs):
            _output.log(f"{session.path.name} {why}")


def _log_hints(found: Classified) -> None:
    """Why there is nothing to see in an image, and what to try."""
    for number, prediction in found.predictions.items():
        name = found.files[number]
        if prediction.atypical:
            _output.log(f"{name}: {ATYPICAL}: {prediction.atypical}")
        if prediction.hint:
            _output.log(f"hint: {name} is {prediction.hint}")


def _print_table(session: Session | Ensemble, found: Classified) -> None:
    """The predictions, those of an atypical image marked as such."""
    from capsedge.cli._output import print_table

    title = f"{session.name}, {session.ops} operators"
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
        cells = [
            [session.class_name(j), f"{prediction.scores[j]:.4f}", colours.get(j, "")]
            for j in classes
        ] or [["-", "", ""]]
        if prediction.atypical:
            cells[0][0] += f" ({ATYPICAL})"
        for position, row in enumerate(cells):
            name = str(found.files[number]) if position == 0 else ""
            rows.append([name, *row][: len(columns)])
    print_table(title, columns, rows)


def _values(prediction: Prediction) -> str:
    """The values of a regression."""
    estimated = ", ".join(map(str, prediction.values))
    return f"{estimated} ({ATYPICAL})" if prediction.atypical else estimated
