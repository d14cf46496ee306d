"""``python -m capsedge`` is the ``capsedge`` command."""

from __future__ import annotations

import os


def main() -> None:
    """The command; a signal while it is loaded ends it without a traceback, too."""
    try:
        import signal

        # An exception amid an import is not always passed on, and there is nothing to clean up yet.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
        from capsedge.cli import main as command

        command()
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
