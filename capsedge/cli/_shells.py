"""``--install-completion`` and ``--show-completion``: the script by which a shell asks this command."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from capsedge.cli._common import log, say
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.files import opening
from capsedge.runtime.files.writing import make_folder, write_bytes, write_text

_NAME, _VARIABLE = "capsedge", "_CAPSEDGE_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


def show(program: click.Command) -> None:
    """Print the script of the current shell."""
    say(*_script(program, _shell()).splitlines())


def install(program: click.Command) -> None:
    """Write the script of the current shell to where it is read from.

    Raises:
        EnvironmentProblem: the shell is not known.
        UsageError: a file cannot be written.
    """
    shell, home = _shell(), Path.home()
    if shell == "fish":
        place = home / ".config/fish/completions/capsedge.fish"
    elif shell == "zsh":
        place = home / ".zfunc/_capsedge"
    else:
        place = home / ".bash_completions/capsedge.sh"
    make_folder(place.parent)
    write_text(place, _script(program, shell) + "\n")
    if shell == "bash":
        _add(home / ".bashrc", f"source '{place}'")
    elif shell == "zsh":
        _add(home / ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    log(f"wrote {place}; completion works in new shells")


def _add(settings: Path, line: str) -> None:
    """Add a line to a shell's settings, once."""
    text, new = b"", line.encode()
    if opening.kind(settings) is not None:
        with opening.opened(settings) as file:
            text = file.read()
    if new not in text.splitlines():
        end = b"" if text.endswith(b"\n") or not text else b"\n"
        write_bytes(settings, text + end + new + b"\n")


def _shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name in _SHELLS:
        return name
    raise EnvironmentProblem(
        "The shell is not known.",
        f"SHELL is {name or 'not set'}; completion is for {', '.join(_SHELLS)}.",
        "Name it: SHELL=bash capsedge --install-completion.",
    )


def _script(program: click.Command, shell: str) -> str:
    made = get_completion_class(shell)
    assert made is not None
    return made(program, {}, _NAME, _VARIABLE).source().strip()
