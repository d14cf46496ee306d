"""An image from the standard input, which the command line names ``-``."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

from capsedge.errors import UsageError
from capsedge.runtime.files import limits

_NAME = Path("-")


class Content(io.BytesIO):
    """What came from the standard input, under the name that errors give it."""

    name = "The standard input"


def contents(files: Sequence[Path]) -> dict[int, Content]:
    """What came from the standard input, by the number of the file that is named ``-``.

    Raises:
        UsageError: it is named twice, is a terminal, is closed, empty or cannot be read.
    """
    places = [number for number, file in enumerate(files) if file == _NAME]
    if len(places) > 1:
        raise UsageError(
            "- is given twice.", "The standard input holds one image.", "Give it once."
        )
    return {number: Content(_read()) for number in places}


def _read() -> bytes:
    """All bytes up to one over the limit, by which the decoder refuses more."""
    fix = "Send it an image: capsedge infer - < image.png."
    if sys.stdin is None:
        raise UsageError("The standard input is closed.", "- reads an image from it.", fix)
    if sys.stdin.isatty():
        raise UsageError("The standard input is a terminal.", "- reads an image from it.", fix)
    try:
        data = sys.stdin.buffer.read(limits.IMAGE_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(
            "The standard input cannot be read.", f"{error.strerror or error}.", fix
        ) from error
    if not data:
        why = "The command before the pipe has written nothing, or the file has 0 bytes."
        raise UsageError("The standard input is empty.", why, fix)
    return data
