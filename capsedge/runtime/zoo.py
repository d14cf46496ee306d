"""Find the trained models and the sample images that come with the package."""

from __future__ import annotations

import shlex
from pathlib import Path

from capsedge.errors import UsageError
from capsedge.spec.vocabularies import ZOO_ROUTINGS as ROUTINGS

# --- Trained models: small networks for digits, also in clutter, and one for photographs ---

DIGITS = (*(f"digits-{routing}" for routing in ROUTINGS), "digits-overlap", "digits-small")
MODELS = (*DIGITS, "digits-clutter", "photos")
FILES = (*MODELS, "digits-clutter-int8")  # all but one model have one file
DEFAULT = MODELS[0]
_LOOKED_AT = 100  # files of a folder in which a checkpoint is looked for
_HERE = Path(__file__).parents[1] / "zoo"


def zoo_checkpoint(name: str) -> Path:
    """The trained checkpoint of a model of the zoo, such as ``digits-em``."""
    if name not in MODELS:
        raise unknown_model(name)
    return _HERE / f"{name}.safetensors"


def checkpoint_of_routing(routing: str) -> Path:
    """The trained checkpoint of a routing, such as ``em``. Raises UsageError if there is no such routing."""
    if routing not in ROUTINGS:
        raise UsageError(
            f"Unknown routing '{routing}'.", "", f"Choose one of: {', '.join(ROUTINGS)}."
        )
    return zoo_checkpoint(f"digits-{routing}")


def zoo_checkpoints() -> list[Path]:
    """The trained checkpoints that this installation holds."""
    return [path for path in map(zoo_checkpoint, MODELS) if path.is_file()]


def checkpoint_of_model(name: str) -> Path | None:
    """The trained checkpoint of a model by its name, such as ``digits-em``; None if there is none."""
    path = zoo_checkpoint(name) if name in MODELS else None
    return path if path is not None and path.is_file() else None


def checkpoint_by_sha256(sha256: str) -> Path | None:
    """The trained checkpoint with this checksum; None if there is none."""
    from capsedge.runtime.files.writing import sha256 as checksum

    return next((path for path in zoo_checkpoints() if checksum(path) == sha256), None)


def checkpoint_option(model: Path, sha256: str) -> str:
    """The option by which `capsedge verify` takes a file's checkpoint; empty if it is of the package."""
    from capsedge.runtime.files.reading import list_folder
    from capsedge.runtime.files.writing import sha256 as checksum

    if checkpoint_by_sha256(sha256) is not None:
        return ""
    folder = model.parent
    files = [
        folder / name for name in list_folder(folder) if name.endswith((".safetensors", ".pt"))
    ]
    matching = (file for file in files[:_LOOKED_AT] if file.is_file() and checksum(file) == sha256)
    return f" --checkpoint {shlex.quote(str(next(matching, 'CHECKPOINT')))}"


def zoo_model(name: str) -> Path | None:
    """The ONNX file of a name of the zoo, such as ``digits-em``; None for any other name."""
    return _HERE / f"{name}.onnx" if name in FILES else None


def default_model() -> Path:
    """The ONNX file that ``capsedge.load()`` and ``capsedge infer`` use by default."""
    return _HERE / f"{DEFAULT}.onnx"


def unknown_model(name: str) -> UsageError:
    """The error for a name that is neither a file nor a model of the zoo."""
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), FILES, n=1)
    return UsageError(
        f"Unknown model '{name}'.",
        f"It is neither a file nor a zoo model: {', '.join(FILES)}.",
        f"Did you mean '{near[0]}'?" if near else "Pass an ONNX file or one of these models.",
    )


# --- Sample images, drawn by `tools.draw_samples` ---


def samples_folder() -> Path:
    """The folder with the sample images."""
    return _HERE / "samples"
