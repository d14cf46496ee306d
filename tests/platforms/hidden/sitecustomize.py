"""Python as the package meets it on another system: loaded by every process that has this folder on its path.

Only the package's own imports are changed; the standard library and other packages see what there is. Names
and modules that the other system lacks are absent, nothing below ``/proc`` can be opened, and, as on Windows,
a file that is open is neither removed nor renamed. Reading or writing text without an encoding is an error.
"""

from __future__ import annotations

import builtins
import importlib
import json
import os
import sys
import warnings
from contextlib import suppress
from types import ModuleType
from typing import Any

import windows

PLATFORM: dict[str, Any] = json.loads(os.environ["CAPSEDGE_PLATFORM"])
_import = builtins.__import__


class Changed(ModuleType):
    """A module without some names, and with others replaced."""

    def __init__(self, real: ModuleType, hidden: frozenset[str], replaced: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__["_real"], self.__dict__["_hidden"] = real, hidden
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        if name in self._hidden:
            raise AttributeError(f"module '{self.__name__}' has no attribute '{name}' here")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)


def _open_files() -> list[os.stat_result]:
    found = []
    for handle in range(64):
        with suppress(OSError):
            found.append(os.fstat(handle))
    return found


def _refusing_open_files(name: str) -> Any:
    real = getattr(os, name)

    def guarded(*places: Any) -> Any:
        for place in places:
            with suppress(FileNotFoundError):
                found = os.stat(place)
                if any(os.path.samestat(found, other) for other in _open_files()):
                    raise PermissionError(13, "The file is open", str(place))
        return real(*places)

    return guarded


def _modules() -> dict[str, Changed]:
    replaced: dict[str, dict[str, Any]] = {
        "sys": {"platform": PLATFORM["platform"]},
        "platform": {
            "system": lambda: PLATFORM["system"],
            "machine": lambda: PLATFORM["machine"],
            "processor": lambda: "",
            "mac_ver": lambda: ("14.5", ("", "", ""), PLATFORM["machine"]),
        },
    }
    if PLATFORM["platform"] == "win32":
        replaced["os"] = {n: _refusing_open_files(n) for n in ("replace", "rename", "unlink")}
        replaced["os"]["name"] = "nt"
        replaced["ctypes"] = windows.CTYPES
    return {
        name: Changed(
            importlib.import_module(name),
            frozenset(PLATFORM["hidden"].get(name, ())),
            replaced.get(name, {}),
        )
        for name in {*PLATFORM["hidden"], *replaced}
    }


_MODULES = _modules()


def _importing(
    name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
) -> Any:
    module = globals or {}
    # What runs as `__main__` has its package's name.
    importer = str(module.get("__package__") or module.get("__name__"))
    ours = importer.partition(".")[0] == "capsedge"
    if ours and name.partition(".")[0] in PLATFORM["absent"]:
        raise ModuleNotFoundError(f"No module named '{name}' here", name=name)
    if ours and PLATFORM["platform"] == "win32":
        if name == "winreg":
            return windows.WINREG
        if name == "asyncio":
            windows.limit_event_loops()
    if ours and name in _MODULES:
        return _MODULES[name]
    return _import(name, globals, locals, fromlist, level)


def _no_proc(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/", "/etc/nv")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])


builtins.__import__ = _importing
sys.addaudithook(_no_proc)
warnings.filterwarnings("error", category=EncodingWarning, module=r"capsedge\.")
