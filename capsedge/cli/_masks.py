"""What ``capsedge infer`` writes and prints of a segmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsedge.cli import _output
from capsedge.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self

    from capsedge.runtime.images.decoding import SupportsRead
    from capsedge.runtime.session.ensemble import Ensemble
    from capsedge.runtime.session.predictions import Prediction
    from capsedge.runtime.session.session import Session

_OPTIONS = ("--output", "--overlay")


@dataclass
class MaskResults:
    """Masks, written as they come, and what is printed of them; none is kept in memory.

    Attributes:
        files: the images.
        opened: those that are open already, by number.
        masks, overlays: the file of each image's mask and picture; empty where none is written.
        rows: of the table, by the number of the image.
        values: JSON values, by the number of the image; None where no JSON is printed.
    """

    files: Sequence[Path]
    opened: Mapping[int, SupportsRead]
    masks: Sequence[Path] = ()
    overlays: Sequence[Path] = ()
    rows: dict[int, list[list[str]]] = field(default_factory=dict)
    values: dict[int, dict[str, Any]] | None = None

    @classmethod
    def of(
        cls,
        model: Session | Ensemble,
        files: Sequence[Path],
        opened: Mapping[int, SupportsRead],
        output: Path | None,
        overlay: Path | None,
        as_json: bool,
    ) -> Self | None:
        """Where the masks of images go; None for a model that makes none.

        Raises:
            UsageError: the model makes no masks, and a folder for them is given; or the folder cannot be
                written.
        """
        from capsedge.runtime.files.writing import check_apart, make_folder
        from capsedge.runtime.session.masks import mask_names

        folders = dict(zip(_OPTIONS, (output, overlay), strict=True))
        if not model.sessions[0].roles.segmentation:
            for option, folder in folders.items():
                if folder is not None:
                    raise UsageError(
                        f"{option} {folder} is a folder for masks.",
                        f"{model.name} does not segment images; its predictions are printed.",
                        "Use --json for predictions as JSON, or `capsedge batch` for a table of them.",
                    )
            return None
        names = [[] if each is None else mask_names(files, each) for each in folders.values()]
        for folder in filter(None, folders.values()):
            make_folder(folder)
        check_apart([*names[0], *names[1]], [file for file in files if str(file) != "-"])
        return cls(files, opened, masks=names[0], overlays=names[1], values={} if as_json else None)

    def take(self, number: int, prediction: Prediction) -> Prediction:
        """Write the mask of an image, and note what is printed; the prediction without its mask."""
        from capsedge.runtime.files.writing import write_bytes
        from capsedge.runtime.session.masks import mask_png, picture_png

        mask = prediction.mask
        assert mask is not None  # the model segments images
        if self.masks:
            write_bytes(self.masks[number], mask_png(mask, prediction.mask_classes))
        if self.overlays:
            source: Any = self.opened.get(number, self.files[number])
            if number in self.opened:
                source.seek(0)
            write_bytes(self.overlays[number], picture_png(prediction.overlay(source)))
        if self.values is not None:
            self.values[number] = prediction.to_dict()
        size = f"{mask.shape[1]}x{mask.shape[0]}"
        cells = [[area.name, f"{area.share:.1%}"] for area in prediction.areas if area.pixels]
        unknown = mask.size - sum(area.pixels for area in prediction.areas)
        if unknown:
            cells.append(["not seen", f"{unknown / mask.size:.1%} of the image"])
        first = [str(self.files[number]), size]
        self.rows[number] = [[*(first if k == 0 else ["", ""]), *c] for k, c in enumerate(cells)]
        return replace(prediction, mask=None)

    def print_table(self, title: str) -> None:
        """The share of each class."""
        rows = [row for number in sorted(self.rows) for row in self.rows[number]]
        _output.print_table(title, ["image", "pixels", "class", "share"], rows)

    def log_written(self) -> None:
        """What was written."""
        for what, names in (("mask", self.masks), ("picture", self.overlays)):
            if names and self.rows:
                several = "" if len(self.rows) == 1 else "s"
                _output.log(f"wrote {len(self.rows)} {what}{several} to {names[0].parent}")
