"""The release script: what must hold before it builds, each refusal in words, and what it puts together."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tools import plugin_libraries, release, release_checks, wheels

VERSION = "1.2.3"
LOCK = f'{{\n  "name": "capsedge",\n  "version": "{VERSION}",\n}}\n'


def git(root: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", root, *identity, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository that is ready for release 1.2.3."""
    root = tmp_path / "checkout"
    contents = {
        "pyproject.toml": f'[project]\nversion = "{VERSION}"\n',
        "capsedge/spec/version.py": f'VERSION = "{VERSION}"\n',
        "capsedge/runtime/native/libcapsedge/include/capsedge.h": f'#define CAPSEDGE_VERSION "{VERSION}"\n',
        "capsedge/runtime/web/package.json": f'{{\n  "version": "{VERSION}",\n}}\n',
        "capsedge/runtime/web/package-lock.json": LOCK,
        "capsedge/runtime/web/page/package-lock.json": LOCK,
        "CHANGELOG.md": f"# Changelog\n\n## [Unreleased]\n\n## [{VERSION}] - 2026-01-31\n\n- Words.\n",
    }
    assert set(release_checks.PLACES) < set(contents)
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root.parent, "init", "-q", str(root))
    git(root, "add", ".")
    git(root, "commit", "-qm", "a")
    git(root, "tag", f"v{VERSION}")
    return root


@pytest.fixture(autouse=True)
def headers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Path]:
    """TensorRT's headers, by major version."""
    here = {major: Path() for major in plugin_libraries.MAJORS}
    monkeypatch.setattr(plugin_libraries, "headers", lambda: here)
    return here


def test_a_release_in_order_has_no_problems(checkout: Path) -> None:
    assert release_checks.version(checkout) == VERSION
    assert release_checks.problems(checkout, VERSION) == []


def test_no_release_without_the_plugin_libraries(checkout: Path, headers: dict[int, Path]) -> None:
    del headers[11]
    (found,) = release_checks.problems(checkout, VERSION)
    assert found.startswith("The TensorRT plugin libraries for TensorRT 11 are left out")


def test_this_version_is_stated_alike_everywhere() -> None:
    assert release_checks.version(ROOT)


@pytest.mark.parametrize("place", release_checks.PLACES)
def test_versions_that_differ(checkout: Path, place: str) -> None:
    file = checkout / place
    file.write_text(file.read_text().replace(VERSION, "1.2.4"))
    with pytest.raises(SystemExit, match=f"{place}: 1.2.4"):
        release_checks.version(checkout)
    file.write_text("")
    with pytest.raises(SystemExit, match=f"{place}: none"):
        release_checks.version(checkout)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"new.txt": ""}, "uncommitted changes, such as `?? new.txt`"),
        ({"CHANGELOG.md": "## [Unreleased]\n\n- Words.\n"}, "no section 1.2.3"),
        ({"CHANGELOG.md": f"## [{VERSION}]\n"}, "does not date 1.2.3"),
        ({"CHANGELOG.md": f"## [{VERSION}] - soon\n"}, "does not date 1.2.3"),
        (
            {"CHANGELOG.md": f"## [Unreleased]\n\n- New.\n\n## [{VERSION}] - 2026-01-31\n"},
            "unreleased changes: move them to 1.2.3",
        ),
    ],
)
def test_what_has_to_be_mended(checkout: Path, changes: dict[str, str], said: str) -> None:
    for name, text in changes.items():
        (checkout / name).write_text(text)
    found = release_checks.problems(checkout, VERSION)
    assert [line for line in found if said in line], found
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "b")
    found = release_checks.problems(checkout, VERSION)
    assert any("git tag -a v1.2.3" in line for line in found)
    assert not any("uncommitted" in line for line in found)


def test_no_checkout(checkout: Path) -> None:
    (checkout / ".git").rename(checkout / "git")
    (found,) = release_checks.problems(checkout, VERSION)
    assert "not a git checkout" in found


def test_missing_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(release_checks.TOOLS, "no_such_tool", "no-such-tool")
    with pytest.raises(SystemExit, match=r"no-such-tool\nRun: pip install -e '.\[release\]'"):
        release_checks.check_tools()


def names(version: str = VERSION) -> list[str]:
    tags = ["any", *wheels.TAGS.values()]
    wheel = (f"capsedge-{version}-py3-none-{tag}.whl" for tag in tags)
    return [f"capsedge-{version}.tar.gz", *wheel, f"capsedge_cuda-{version}-py3-none-any.whl"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files with the right names; twine accepts all."""
    monkeypatch.setattr(release, "_python", lambda *words, **_: "")
    monkeypatch.setattr(wheels, "judged_tag", lambda file: file.name[:-4].split("-")[-1])
    made = tmp_path / "dist"
    made.mkdir()
    for name in names():
        (made / name).write_text(name)
    return made


def test_distributions_that_are_in_order(folder: Path) -> None:
    release.check_distributions(release.distributions(folder), VERSION)


def test_a_distribution_is_missing(folder: Path) -> None:
    (folder / names()[0]).unlink()
    count = len(wheels.KINDS)
    with pytest.raises(SystemExit, match=f"{count} distributions wanted, {count - 1} made"):
        release.check_distributions(release.distributions(folder), VERSION)


def test_a_distribution_of_another_version(folder: Path) -> None:
    (folder / names()[1]).rename(folder / names("1.2.30")[1])
    with pytest.raises(SystemExit, match=r"1\.2\.30.* is not of version 1\.2\.3"):
        release.check_distributions(release.distributions(folder), VERSION)


def test_a_tag_that_the_libraries_do_not_deserve(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "judged_tag", lambda _: "linux_x86_64")
    with pytest.raises(SystemExit, match=r"do not agree with its tag: they need linux_x86_64"):
        release.check_distributions(release.distributions(folder), VERSION)


def test_the_speed_of_the_wheel_for_this_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone can run here; what the benchmark refuses is not released."""
    asked: list[object] = []
    monkeypatch.setattr(release, "_python", lambda *words: asked.append(words) or "")
    monkeypatch.setattr(release.platform, "machine", lambda: "aarch64")
    release.check_speed(release.distributions(folder))
    assert asked == [("benchmarks.wheel", folder / names()[3])]


def test_checksums_are_what_sha256sum_reads(folder: Path) -> None:
    lines = release.write_checksums(folder).read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == sorted(names())
    assert lines[0].split()[0] == hashlib.sha256(sorted(names())[0].encode()).hexdigest()
    assert release.write_checksums(folder).read_text().splitlines() == lines


def test_a_module_that_fails() -> None:
    with pytest.raises(SystemExit, match="`python -m no_such_module check` failed"):
        release._python("no_such_module", "check")


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def build(kind: str, folder: Path) -> Path:
        folder.mkdir(exist_ok=True)
        (folder / "half").write_text("")
        raise subprocess.CalledProcessError(1, ["build"])

    monkeypatch.setattr(wheels, "make", build)
    with pytest.raises(SystemExit, match="the build failed"):
        release.make(tmp_path / "dist", VERSION)
    assert not (tmp_path / "dist").exists()


def called(
    monkeypatch: pytest.MonkeyPatch, folder: Path, problems: list[str], option: str
) -> list[str]:
    """Run the script without building; what it did."""
    did: list[str] = []
    monkeypatch.setattr(sys, "argv", ["release", option, "--into", str(folder)])
    monkeypatch.setattr(release_checks, "check_tools", lambda: None)
    monkeypatch.setattr(release_checks, "version", lambda _: VERSION)
    monkeypatch.setattr(release_checks, "problems", lambda *_: problems)
    monkeypatch.setattr(release, "make", lambda *_: did.append("make"))
    monkeypatch.setattr(release, "check_speed", lambda _: did.append("speed"))
    monkeypatch.setattr(release, "_python", lambda *words, **_: did.append(str(words[1])))
    release.main()
    return did


def test_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert called(monkeypatch, tmp_path / "a", [], "--upload") == ["make", "speed", "upload"]
    assert called(monkeypatch, tmp_path / "a", [], "--dry-run") == ["make", "speed"]
    assert "`--upload` would upload" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"would refuse 1\.2\.3:\nNo tag\."):
        called(monkeypatch, tmp_path / "a", ["No tag."], "--dry-run")
    with pytest.raises(SystemExit, match=r"1\.2\.3 cannot be released:\nNo tag\."):
        called(monkeypatch, tmp_path / "a", ["No tag."], "--upload")
    (tmp_path / "full").write_text("")
    with pytest.raises(SystemExit):
        called(monkeypatch, tmp_path, [], "--dry-run")
    assert "is not an empty folder" in capsys.readouterr().err
