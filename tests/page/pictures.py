"""Draw the screenshots of docs/how-to/page: ``python -m tests.page.pictures``, after ``make web``."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image

import capsedge
from capsedge.deploy.preview_server import FolderServer
from tests.conftest import ROOT
from tests.page import browser

PLACE = ROOT / "docs" / "how-to" / "page"
COLOURS = 128  # of the palette, which keeps the files small


def main() -> None:
    """Deploy the default model, take the screenshots, and reduce their colours."""
    reason = browser.missing()
    if reason:
        sys.exit(reason)
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        made = capsedge.deploy_web("digits-dynamic", Path(name, "folder"))
        with FolderServer(made.output, [file.path for file in made.files]) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            browser.play("pictures", server.url, into=name)
            server.shutdown()
        for picture in sorted(Path(name).glob("*.png")):
            with Image.open(picture) as image:
                image.convert("RGB").quantize(COLOURS).save(PLACE / picture.name, optimize=True)


if __name__ == "__main__":
    main()
