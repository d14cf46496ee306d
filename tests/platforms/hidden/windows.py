"""The parts of Windows that the package calls, as far as its tests need them: the registry, job objects."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace, TracebackType
from typing import Any

CPU = "A processor from the registry"


def limit_event_loops() -> None:
    """Handlers of signals are for the event loops of Unix."""
    from asyncio import unix_events

    def add_signal_handler(*_arguments: Any) -> None:
        raise NotImplementedError

    unix_events._UnixSelectorEventLoop.add_signal_handler = add_signal_handler  # type: ignore[method-assign]


class _Key:
    def __enter__(self) -> _Key:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None: ...


def _open_key(root: str, path: str) -> _Key:
    if (root, path) != ("HKLM", r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"):
        raise FileNotFoundError(2, "The system cannot find the file specified", path)
    return _Key()


WINREG = SimpleNamespace(
    HKEY_LOCAL_MACHINE="HKLM",
    OpenKey=_open_key,
    QueryValueEx=lambda key, name: ({"ProcessorNameString": f"{CPU}  "}[name], 1),
)


class _Function:
    """A function of a DLL; it writes what it is given to standard error if CAPSEDGE_CALLS is set."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any) -> int:
        if os.environ.get("CAPSEDGE_CALLS"):
            given = [bytes(a._obj).hex() if hasattr(a, "_obj") else str(a) for a in arguments]
            print(self._name, *given, file=sys.stderr)
        return int(self._name != os.environ.get("CAPSEDGE_FAILING_CALL"))


class WinDLL:
    """``kernel32``, whose functions all succeed except the one that CAPSEDGE_FAILING_CALL names."""

    def __init__(self, name: str, use_last_error: bool = False) -> None:
        assert name == "kernel32"
        assert use_last_error

    def __getattr__(self, name: str) -> _Function:
        function = _Function(name)
        setattr(self, name, function)
        return function


CTYPES = {
    "WinDLL": WinDLL,
    "get_last_error": lambda: 5,
    "WinError": lambda code: PermissionError(13, f"Access is denied ({code})"),
}
