"""A sandboxed process as a fork of this one, on Linux: it has at once what its parent imported."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

if sys.platform == "linux":

    class Fork:
        """A fork of this process in which a module's ``main`` runs."""

        def __init__(self, arguments: Sequence[str], files: Sequence[IO[bytes]]) -> None:
            self._code: int | None = None
            with warnings.catch_warnings():
                # Python 3.12 warns that other threads may hold locks. The fork takes none but those that
                # Python and the C library renew in it; for any other, the time limit ends the wait.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._number = os.fork()
            if not self._number:
                _run(arguments, files)

        def wait(self, timeout: float | None = None) -> int:
            """The exit code, negative for a signal.

            Raises:
                subprocess.TimeoutExpired: it still runs.
            """
            end, pause = time.monotonic() + (timeout or 0), 0.0005
            while self._code is None:
                try:
                    number, status = os.waitpid(
                        self._number, os.WNOHANG if timeout is not None else 0
                    )
                except ChildProcessError:  # a program that ignores SIGCHLD is not told
                    number, status = self._number, 0
                if number:
                    self._code = os.waitstatus_to_exitcode(status)
                    break
                if time.monotonic() >= end:
                    raise subprocess.TimeoutExpired("fork", timeout or 0)
                time.sleep(pause)
                pause = min(2 * pause, 0.05)
            return self._code

        def kill(self) -> None:
            """End it."""
            if self._code is None:
                os.kill(self._number, signal.SIGKILL)

    def _run(arguments: Sequence[str], files: Sequence[IO[bytes]]) -> NoReturn:
        """Run in the fork: with none of the parent's open files, and without cleaning up its objects at
        the end.
        """
        code = 1
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            held = [os.dup(file.fileno()) for file in files]  # whatever numbers they have
            for target, own in enumerate(held):
                os.dup2(own, target)
            for name in os.listdir("/proc/self/fd"):
                if int(name) >= len(held):
                    with suppress(OSError):  # the listing itself is closed already
                        os.close(int(name))
            gc.disable()  # the parent cleans up its own garbage
            sys.argv = ["", *arguments]
            import_module(arguments[0]).main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            os.write(2, traceback.format_exc().encode(errors="replace"))
        finally:
            os._exit(code)

    def address_space() -> int:
        """Bytes of this process's address space."""
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        return pages * os.sysconf("SC_PAGE_SIZE")
