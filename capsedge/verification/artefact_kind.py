"""What ``verify`` is given: a file, or a folder of C with the file that it was made from."""

from __future__ import annotations

from pathlib import Path

from capsedge.errors import UsageError
from capsedge.runtime.files import reading
from capsedge.runtime.zoo import zoo_model


def is_folder(artefact: object, made_from: Path | str | None) -> bool:
    """Whether it is a folder of C.

    Args:
        artefact: its path; what is not a path is not a folder either, and `load` refuses it. Without
            ``made_from``, the name of a bundled model is that model, as in `load`.
        made_from: the ONNX file that a folder was made from; None for any other artefact.

    Raises:
        UsageError: it is a folder without its file, or a file with another.
    """
    bundled = isinstance(artefact, str) and made_from is None and zoo_model(artefact) is not None
    path = artefact if isinstance(artefact, (str, Path)) and not bundled else None
    folder = path is not None and reading.path_kind(path) == reading.FOLDER
    if folder and made_from is None:
        raise UsageError(
            f"{artefact} is a folder.",
            "A folder of C is compared with the ONNX file that it was made from, or with a checkpoint or "
            "module of that file's network.",
            "Pass that file as made_from.",
            command="Add --reference MODEL.onnx.",
        )
    if made_from is not None and not folder:
        raise UsageError(
            f"{artefact} is not a folder of C.",
            "Only such a folder is verified with the file that it was made from.",
            "Leave out made_from.",
            command="Leave out --reference.",
        )
    return folder
