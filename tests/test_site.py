"""The documentation site: complete, whole, and without a word to other servers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import capsedge
from capsedge.cli import app
from tests.conftest import ROOT
from tools.docs.commands import verbs

CODE = ("*.py", "*.h", "*.hpp", "*.c", "*.cpp", "*.cu", "*.txt")
FOLDERS = ("capsedge", "benchmarks", "tests", "tools")


# As `python -m mkdocs`, but without the finder of an editable installation, which leads back to ROOT.
MKDOCS = """
import runpy, sys
sys.meta_path = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
runpy.run_module("mkdocs", run_name="__main__")
"""


def build(output: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    command = [sys.executable, "-c", MKDOCS, "build", "--strict", "-d", str(output)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def git(*arguments: str, cwd: Path = ROOT, **options: Any) -> bytes:
    done = subprocess.run(["git", *arguments], cwd=cwd, capture_output=True, check=True, **options)
    return done.stdout


def clone(folder: Path) -> None:
    """A clean clone with the changes of the working tree, and nothing that git ignores."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout of git")
    git("clone", "--quiet", "--shared", str(ROOT), str(folder))
    if changes := git("diff", "--binary", "HEAD"):
        git("apply", "--whitespace=nowarn", cwd=folder, input=changes)
    for name in git("ls-files", "--others", "--exclude-standard", "-z").decode().split("\0"):
        if name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built from a clean clone, as users do."""
    source, output = (tmp_path_factory.mktemp(name) for name in ("clone", "site"))
    clone(source)
    done = build(output, source)
    assert done.returncode == 0, done.stdout + done.stderr
    return output


class Tags(HTMLParser):
    """Anchors of a page, and what a browser fetches for it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors.add(found.get("id") or "")
        if tag in ("script", "img", "iframe", "source"):
            self.fetched.add(found.get("src") or "")
        if tag == "link":
            self.fetched.add(found.get("href") or "")


@pytest.mark.thorough
def test_examples_are_code(site: Path) -> None:
    """Not quotations, as which Markdown reads ``>>>``, with references where an output is a list."""
    text = (site / "reference/api.html").read_text(encoding="utf-8")
    assert (
        text.count('capsedge</span><span class="o">.</span><span class="n">deploy_web</span>') == 1
    )
    assert "&gt;&gt;&gt;" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL)
    assert "<blockquote>" not in text


@pytest.mark.thorough
def test_every_command_and_option_is_there(site: Path) -> None:
    text = (site / "reference/commands.html").read_text(encoding="utf-8")
    anchors = Tags(site / "reference/commands.html").anchors
    for verb, command in verbs(app):
        assert verb.replace(" ", "-") in anchors
        for parameter in command.params:
            for option in parameter.opts:
                assert option in text or option.upper() in text, f"{verb} {option}"


@pytest.mark.thorough
def test_every_public_name_is_there(site: Path) -> None:
    anchors = Tags(site / "reference/api.html").anchors
    names = [f"capsedge.{name}" for name in capsedge.__all__ if name != "__version__"]
    packages = ("datasets", "models", "ops", "viz")
    wanted = {name for name in names if name.rpartition(".")[2] not in packages}
    wanted |= {f"capsedge.{p}.{name}" for p in packages for name in getattr(capsedge, p).__all__}
    wanted |= {
        f"capsedge.{k}.{name}" for k in ("Session", "Ensemble") for name in ("predict", "stream")
    }
    assert not wanted - anchors


@pytest.mark.thorough
def test_every_c_function_is_there(site: Path) -> None:
    header = (ROOT / "capsedge/runtime/native/libcapsedge/include/capsedge.h").read_text()
    functions = re.findall(r"^CAPSEDGE_API [^;(]*?(capsedge_\w+)\(", header, re.MULTILINE)
    text = "".join(re.findall(r"<h3[^>]*>.*?</h3>", (site / "reference/c.html").read_text()))
    assert len(functions) > 20
    assert not [name for name in functions if f">{name}<" not in text]


@pytest.mark.thorough
def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        assert not [url for url in Tags(page).fetched if re.match(r"(https?:)?//", url)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", style.read_text()), style


@pytest.mark.thorough
def test_search_has_its_index_as_a_script(site: Path) -> None:
    script = (site / "search/search_index.js").read_text(encoding="utf-8")
    index = json.loads(script.removeprefix("var __index = "))
    places = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {"tutorial.html", "reference/commands.html", "reference/api.html"} <= places


@pytest.mark.thorough
def test_search_works_from_a_folder(site: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no browser: apt-get install chromium")
    address = f"{(site / 'index.html').as_uri()}?q=quantize"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    shown = subprocess.run(
        [browser, *flags, "--dump-dom", address], capture_output=True, text=True, timeout=120
    )
    assert re.search(r"\d+ matching documents", shown.stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("link", ["missing.md", "tutorial.md#missing"])
def test_a_broken_link_fails_the_build(link: str, tmp_path: Path) -> None:
    for name in ("tools", "capsedge", "SECURITY.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/tutorial.md").write_text("# Tutorial\n")
    (tmp_path / "docs/index.md").write_text(f"# Home\n\n[broken]({link})\n")
    whole = (ROOT / "mkdocs.yml").read_text()
    settings = whole.partition("nav:\n")[0].replace("extra_css: [assets/site.css]\n", "")
    (tmp_path / "mkdocs.yml").write_text(f"{settings}nav:\n  - index.md\n  - tutorial.md\n")
    done = build(tmp_path / "site", tmp_path)
    assert done.returncode != 0
    assert "missing" in done.stderr


def test_messages_and_comments_name_pages_that_exist() -> None:
    missing = [
        f"{path.relative_to(ROOT)}: {page}"
        for folder in FOLDERS
        for pattern in CODE
        for path in (ROOT / folder).resolve().rglob(pattern)
        for page in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text(encoding="utf-8"))
        if not (ROOT / page).exists()
    ]
    assert missing == []
