"""Hooks for building the site with MkDocs: generated pages, and links that lead out of ``docs/``."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs import api, commands, files, links

ROOT = Path(__file__).resolve().parents[2]
_RANGE = re.compile(r"(?<=\d) - (?=\d[\d.]* \|)")  # in a cell of a table: stays on one line
GENERATED = {
    "<!-- generated: commands -->": commands.markdown,
    "<!-- generated: api -->": api.markdown,
    "<!-- generated: files -->": files.markdown,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are elsewhere in the repository."""
    for source, place in links.ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the generated parts, and turn links in the repository into links in the site."""
    for marker, generate in GENERATED.items():
        if marker in markdown:
            markdown = markdown.replace(marker, generate())
    return links.rewritten(_RANGE.sub("\u00a0-\u00a0", markdown), page.file.src_uri)
