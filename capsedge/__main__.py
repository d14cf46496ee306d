"""``python -m capsedge`` is the ``capsedge`` command."""

from __future__ import annotations

from capsedge.cli import main

if __name__ == "__main__":
    main()
