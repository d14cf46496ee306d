"""``capsedge see``: draws what a network sees."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from capsedge.cli import _options, _output
from capsedge.cli._options import Argument, Only, grouped
from capsedge.cli._paths import READS_DATA, READS_IMAGES, READS_MODEL_OR_NAME, WRITES
from capsedge.errors import UsageError
from capsedge.options import LARGEST_COUNT, Option, comma_separated
from capsedge.runtime.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from capsedge.viz.figure import Picture

Model = Annotated[
    str,
    Argument(
        help="ONNX file, TensorRT engine, or a name from the zoo (digits-em).",
        complete="zoo",
    ),
    READS_MODEL_OR_NAME,
]
Images = Annotated[
    list[Path] | None,
    Argument(help="PNG, JPEG, GIF, BMP, TIFF or WebP files, or folders of them."),
    READS_IMAGES,
]
Output = Annotated[
    Path | None,
    Option("-o", "--output", help="The picture: *.png, *.svg, or *.html for several."),
    WRITES,
]
# Written out, because the module that draws them needs numpy; a test compares.
PICTURES = (
    *("reconstructions", "segmentation", "dimensions", "masks", "iterations", "couplings"),
    *("agreement", "responsibilities", "capsules", "hardest"),
)
What = Annotated[
    tuple[str, ...],
    Option(
        "--what",
        help=(
            "Pictures, for example segmentation,capsules. By default the first that the file supports; with "
            "*.html all of them."
        ),
        choices=PICTURES,
    ),
]
Labels = Annotated[
    list[str] | None,
    Option(
        "--label",
        help=(
            "For segmentation: the two true classes of an image, for example 2,4; once per image, "
            "in order."
        ),
    ),
]
Forced = Annotated[
    tuple[str, ...],
    Option(
        "--force",
        help="For segmentation: two classes to draw regardless of the prediction, for example 5,7.",
    ),
]
Of = Annotated[
    str,
    Option(
        "--class",
        help=(
            "For dimensions and responsibilities: the class to draw; by default the best class of "
            "each image."
        ),
    ),
]
Layer = Annotated[
    str,
    Option(
        "--layer",
        help=(
            "For agreement and masks: the routed layer to draw; by default that of the classes, or the last."
        ),
    ),
]
Data = Annotated[
    Path | None,
    Option(
        "--data",
        help=(
            "For hardest: labelled images, or a folder with images/ and masks/; of a data set folder, the "
            "test split."
        ),
    ),
    READS_DATA,
]
Count = Annotated[
    int, Option("--count", min=1, max=100, help="For hardest: number of images to show.")
]
Limit = Annotated[
    int | None,
    Option(
        "--limit",
        min=1,
        max=LARGEST_COUNT,
        help="For hardest: use only the first N images of the data.",
    ),
]
Invert = Annotated[bool, Option("--invert", help="Dark ink on a light background, as on paper.")]


@grouped
def command(
    model: Model,
    runtime: Annotated[RuntimeOptions, Only("device", "ops")],
    images: Images = None,
    output: Output = None,
    what: What = (),
    label: Labels = None,
    force: Forced = (),
    of: Of = "",
    layer: Layer = "",
    data: Data = None,
    count: Count = 30,
    limit: Limit = None,
    invert: Invert = False,
    as_json: _options.Json = False,
) -> None:
    """Draw what a network sees.

    Pictures show reconstructions, pose dimensions, overlapping objects, masks, routing, and the hardest
    images.
    """
    from capsedge.runtime.images.inputs import image_files
    from capsedge.runtime.load import load
    from capsedge.viz import figure_kinds
    from capsedge.viz.figure import check_picture, save

    if output is None and not as_json:
        raise UsageError("No output file was given.", "", "Add -o picture.png (or .svg, .html).")
    if output is not None:
        check_picture(output)
    options = figure_kinds.FigureOptions(
        images=image_files(images or []),
        invert=invert,
        labels=[comma_separated(pair) for pair in label or ()],
        forced=force,
        of=of,
        layer=layer,
        data=data,
        limit=limit,
        count=count,
    )
    session = load(model, runtime)
    several = output is not None and output.suffix.lower() == ".html"
    names = figure_kinds.chosen(session, options, what, several)
    if output is not None:
        check_picture(output, len(names))
    pictures = [figure_kinds.KINDS[name].compute(session, options) for name in names]
    if output is not None:
        missing = save(pictures, output)
        if missing:
            _output.log(f"note: {missing}")
    _report(dict(zip(names, pictures, strict=True)), output, as_json)


def _report(pictures: dict[str, Picture], output: Path | None, as_json: bool) -> None:
    if as_json:
        _output.print_json(
            {
                "output": None if output is None else str(output),
                "pictures": {name: picture.to_dict() for name, picture in pictures.items()},
            }
        )
        return
    for name, picture in pictures.items():
        _output.say(f"{name}: {picture.description}")
        for note in picture.notes:
            _output.log(f"note: {name}: {note}")
    _output.log(f"wrote {output}")
