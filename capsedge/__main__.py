"""``python -m capsedge`` is the ``capsedge`` command."""

from __future__ import annotations


def main() -> None:
    """The command; an interrupt while it is loaded ends it without a traceback, too."""
    try:
        from capsedge.cli import main as command
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    command()


if __name__ == "__main__":
    main()
