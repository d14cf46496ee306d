"""``python -m capsedge`` is the ``capsedge`` command."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command; a signal while it loads also ends it without a traceback."""
    try:
        import signal

        # An exception during an import is not always passed on, and there is nothing to clean up yet.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda number, _: os._exit(128 + number))
        from capsedge.cli import _memory
    except KeyboardInterrupt:
        os._exit(130)
    try:
        from capsedge.cli import main as command

        command()
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        _memory.end(error)
        raise


if __name__ == "__main__":
    main()
