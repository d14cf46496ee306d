"""A folder whose images are read as they arrive."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from capsedge.errors import UsageError
from capsedge.runtime.files import reading
from capsedge.runtime.images.headers import is_image_name

_POLL = 0.2  # seconds between two looks; a file is complete when two looks find it unchanged


class WatchedFolder:
    """The images of a folder, sorted by name, and then every new one as it arrives, without end.

    A file is given once it has not changed for a fifth of a second, and again if it changes later. Programs
    that write slowly should write under another name, such as ``*.part``, and rename.

    Args:
        folder: the folder; its subfolders are not searched.

    Raises:
        UsageError: while iterating: the folder cannot be read, or vanishes.

    Example:
        >>> with capsedge.load("model.onnx") as session:
        ...     for prediction in session.stream(capsedge.WatchedFolder("arriving")):
        ...         print(prediction)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if reading.path_kind(self.folder) != reading.FOLDER:
            raise UsageError(
                f"{folder} cannot be watched.", "It is not a folder.", "Name a folder."
            )

    def __iter__(self) -> Iterator[Path]:
        given: dict[str, tuple[int, int]] = {}
        before: dict[str, tuple[int, int]] | None = None
        while True:
            now = self._look()
            given = {name: state for name, state in given.items() if name in now}
            for name, state in now.items():
                # What is there at the start is taken as it is.
                if given.get(name) != state and (before is None or before.get(name) == state):
                    given[name] = state
                    yield self.folder / name
            before = now
            time.sleep(_POLL)

    def _look(self) -> dict[str, tuple[int, int]]:
        """Time of the last change and size of every image."""
        found = {}
        for name in reading.list_folder(self.folder):
            if is_image_name(name):
                try:
                    status = os.stat(self.folder / name)
                except OSError:  # gone in the meantime
                    continue
                found[name] = status.st_mtime_ns, status.st_size
        return found
