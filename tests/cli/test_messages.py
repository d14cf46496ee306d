"""Every message of the package is in a list that is read as a whole: a change of words is seen there."""

from __future__ import annotations

import difflib

import pytest

from tools.docs import messages

ROOMS = messages.rooms()
REFRESH = "To accept the change: python -m tools.docs.messages"


@pytest.fixture(scope="module")
def listed() -> dict[str, str]:
    return messages.sections(messages.LIST.read_text(encoding="utf-8"))


def compare(listed: str, now: str) -> None:
    lines = difflib.unified_diff(
        listed.splitlines(), now.splitlines(), "messages.txt", "now", "", "", 1
    )
    changes = "\n".join(lines)
    assert not changes, f"{changes}\n{REFRESH}"


@pytest.mark.parametrize("room", ROOMS)
def test_messages_of_a_room_are_listed(room: str, listed: dict[str, str]) -> None:
    compare(listed.get(room, ""), messages.section(room, ROOMS[room]))


def test_usage_errors_are_listed(listed: dict[str, str]) -> None:
    compare(listed["usage"], messages.usage_errors())


def test_no_room_is_left_over(listed: dict[str, str]) -> None:
    assert {*listed} == {*ROOMS, "usage"}


CODE = """
LIMIT = "At most {} files."

def refuse(why, fix):
    raise UsageError(f"{path} cannot be read.", why, fix, command="capsedge doctor")

def read(path):
    where = "in the folder" if path else "at the address"
    try:
        refuse("It is empty " + where + ".", "Write it again.")
    except KeyError as error:
        raise ArtefactError("It is damaged.", f"{error} in {path.name}.") from error
    warnings.append(f"{len(path)} files were left out")
    log("next:", f"  capsedge infer {path}")
    raise UsageError("Too many files.", LIMIT)
"""
FOUND = """\
UsageError: {path} cannot be read.
    why: {why}
    fix: {fix}
    command: capsedge doctor
refuse: It is empty (in the folder|at the address).
    then: Write it again.
ArtefactError: It is damaged.
    why: {error} in {name}.
warning: {path} files were left out
log:   capsedge infer {path}
UsageError: Too many files.
    why: At most {} files."""


def test_python() -> None:
    assert "\n".join(map(str, messages.python_messages(CODE))) == FOUND


def test_cpp() -> None:
    code = 'Failure(CODE, path + " is empty.", "It has " + std::to_string(size) + " bytes.", "Copy it.");'
    (found,) = messages.cpp_messages(code)
    assert found.parts == (
        ("", "{path} is empty."), ("why", "It has {size} bytes."), ("fix", "Copy it.")
    )  # fmt: skip


def test_typescript() -> None:
    code = 'throw new CapsedgeError("file", `It has ${source.bytes} bytes.`, "Fetch it again.");'
    (found,) = messages.typescript_messages(code)
    assert (found.kind, found.parts) == (
        "file",
        (("", "It has {bytes} bytes."), ("hint", "Fetch it again.")),
    )
