"""Read a TOML file within limits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from capsedge.errors import EnvironmentProblem
from capsedge.runtime.files.json_documents import MalformedJson, check
from capsedge.runtime.files.reading import open_regular_file
from capsedge.spec import limits

_MOST = 4 * limits.MIB  # tomllib takes seconds for it


def read_toml(path: Path | str, fix: str) -> dict[str, Any]:
    """The plain values of a file: no dates, no infinite numbers, and not too many.

    Args:
        fix: what to do if it is no file.

    Raises:
        UsageError: it cannot be opened.
        MalformedJson: it is not TOML, too large, or has other values.
        EnvironmentProblem: Python is older than 3.11 and tomli is not installed.
    """
    with open_regular_file(path, fix) as file:
        data = file.read(_MOST + 1)
    if len(data) > _MOST:
        raise MalformedJson(f"it has over {_MOST // limits.MIB} MiB")
    try:
        return dict(check(_parsed(data)))
    except (ValueError, RecursionError) as error:
        raise MalformedJson(f"{error}") from error


def _parsed(data: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise EnvironmentProblem(
                "TOML files need tomli.", f"{error}.", "pip install 'capsedge[build]'"
            ) from error
    return tomllib.loads(data.decode())
