"""Convert links between files of the repository to links between pages of the site."""

from __future__ import annotations

import posixpath
import re

# Pages of the repository outside docs/, and their places in the site.
ELSEWHERE = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "capsedge/zoo/digits-dynamic.md": "reference/models/digits-dynamic.md",
    "capsedge/zoo/digits-em.md": "reference/models/digits-em.md",
    "capsedge/zoo/digits-attention.md": "reference/models/digits-attention.md",
}
_SOURCES = {place: source for source, place in ELSEWHERE.items()}
_LINK = re.compile(
    r"\[(?P<label>[^\]]*)\]\((?!https?:|mailto:|#)(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)


def rewritten(markdown: str, place: str) -> str:
    """The page at ``place`` in the site, with its links converted.

    A link to a file that the site does not have (a source file) becomes its label.
    """
    source = _SOURCES.get(place, f"docs/{place}")

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found["path"]))
        if target == "docs/README.md":  # for writers of pages; mkdocs.yml omits it
            return found["label"]
        if target.startswith("docs/"):
            goal = target.removeprefix("docs/")
        elif target in ELSEWHERE:
            goal = ELSEWHERE[target]
        else:
            return found["label"]
        relative = posixpath.relpath(goal, posixpath.dirname(place) or ".")
        return f"[{found['label']}]({relative}{found['anchor'] or ''})"

    return _LINK.sub(link, markdown)
