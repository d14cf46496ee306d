"""Complete names in a shell, by click; the shell itself completes files.

It runs at every press of the Tab key, so nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from capsedge.cli._output import log, say
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.files import reading
from capsedge.runtime.files.writing import make_folder, write_bytes, write_text

# --- Names that parameters take; each declares which (`Option.complete`) ---

# Written out, because the modules that define them need numpy; a test compares.
_MODELS = (
    *("capsnet-mnist", "capsnet-multimnist", "capsnet-cifar10", "capsnet-smallnorb"),
    *("capsnet-svhn", "dynamic-cifar10-simple", "dynamic-cifar100-simple"),
    *("dynamic-cifar10-resnet", "dynamic-cifar100-resnet", "em-cifar10-simple"),
    *("em-cifar100-simple", "em-cifar10-resnet", "em-cifar100-resnet", "attention-cifar10-simple"),
    *("attention-cifar100-simple", "attention-cifar10-resnet", "attention-cifar100-resnet"),
    *("attention-diversemultimnist-vector", "attention-diversemultimnist-matrix"),
    *("dynamic-diversemultimnist", "em-smallnorb", "em-smallnorb-small", "segcaps"),
    *("digits-clutter", "photos", "digits-dynamic", "digits-small", "digits-overlap", "digits-em"),
    "digits-attention",
)
_VARIANTS: Mapping[str, tuple[str, ...]] = {  # by family
    "xifengguo": ("pixels", "channels"),
    "danielhavir": ("pixels", "channels"),
    "adambielski": (),
    "gram-ai": (),
    "laubonghaudoi": (),
    "laubonghaudoi-2017": (),
    "cedrickchee": ("poses", "parents", "children"),
    "jindongwang": (),
    "timomernick": (),
    "fixcaps": (),
    "hr-semobilecapsnet": (),
    "q-capsnets": (),
    "pscapsnet": ("k-means", "dynamic"),
    "yl-1993": ("new", "old"),
    "yuxianmeng": (),
    "apple": ("concurrent", "sequential"),
    "yaohungt": ("concurrent", "sequential"),
    "akhdanfadh": (),
    "escvm": (),
    "escvm-smallnorb": (),
    "fsanet": ("omasaht", "vietlinhtspt", "vietlinhtspt-2020"),
    "fsanet-keras": (),
    "fsanet-keras-no-mapping": (),
    "fsanet-keras-metric": (),
    "fsanet-keras-netvlad": (),
    "fsanet-ensemble": ("omasaht", "vietlinhtspt", "vietlinhtspt-2020"),
    "fsanet-keras-ensemble": (),
    "xifengguo-keras": (),
    "keras-capsule": ("replaced", "replaced-half", "added", "added-half"),
    "hopefulrational": (),
    "ugenteraan": (),
    "brjathu": ("2019-11", "2019-08", "2019-03"),
    "textbook": (),
}


def _trained(_: click.Context) -> Iterable[str]:
    from capsedge.runtime.zoo import MODELS

    return MODELS


def _zoo(_: click.Context) -> Iterable[str]:
    from capsedge.runtime.zoo import FILES

    return FILES


def _variants(ctx: click.Context) -> Iterable[str]:
    """The variants of the family given by ``--family``; of all families without it."""
    chosen = ctx.params.get("family")
    known = [v for name, of in _VARIANTS.items() if chosen in (None, name) for v in of]
    return dict.fromkeys(known)


def _devices(_: click.Context) -> Iterable[str]:
    gpus = sorted(n for n in os.listdir("/dev") if n.startswith("nvidia") and n[6:].isdigit())
    return ["cpu", "cuda", *(f"cuda:{name[6:]}" for name in gpus[1:])]


def _boards(_: click.Context) -> Iterable[str]:
    from capsedge.runtime.onnx_file.forecast import DEVICES

    return DEVICES


def _ports(_: click.Context) -> Iterable[str]:
    return _VARIANTS


def _models(_: click.Context) -> Iterable[str]:
    return _MODELS


SOURCES: Mapping[str, Callable[[click.Context], Iterable[str]]] = {
    "boards": _boards,
    "devices": _devices,
    "families": _ports,
    "models": _models,
    "trained": _trained,
    "variants": _variants,
    "zoo": _zoo,
}


def offered(parameter: Any, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """What click offers by the type of a parameter, and the names that the parameter declares.

    Files come first: bash forgets the names before them, and completes files if no name is left.
    """
    complete = parameter.declared.complete
    known = SOURCES[complete](ctx) if isinstance(complete, str) else complete
    names = [CompletionItem(name) for name in known if name.startswith(incomplete)]
    if parameter.takes_path:
        return [CompletionItem(incomplete, type="file"), *names]
    return [*parameter.type.shell_complete(ctx, parameter, incomplete), *names]


# --- ``--install-completion`` and ``--show-completion`` ---

_NAME, _VARIABLE = "capsedge", "_CAPSEDGE_COMPLETE"
_SHELLS = ("bash", "zsh", "fish")


def show(program: click.Command) -> None:
    """Print the script of the current shell."""
    say(*_script(program, _shell()).splitlines())


def install(program: click.Command) -> None:
    """Install the script of the current shell where the shell reads it.

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
    log(f"wrote {place}; open a new shell to use completion")


def _add(settings: Path, line: str) -> None:
    """Add a line to a shell's settings, once."""
    text, new = b"", line.encode()
    if reading.path_kind(settings) is not None:
        with reading.open_regular_file(settings) as file:
            text = file.read()
    if new not in text.splitlines():
        end = b"" if text.endswith(b"\n") or not text else b"\n"
        write_bytes(settings, text + end + new + b"\n")


def _shell() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name in _SHELLS:
        return name
    raise EnvironmentProblem(
        "Completion is not available for this shell.",
        f"SHELL is {name or 'not set'}; supported: {', '.join(_SHELLS)}.",
        "Set the shell: SHELL=bash capsedge --install-completion.",
    )


def _script(program: click.Command, shell: str) -> str:
    """click's script of a shell."""
    made = get_completion_class(shell)
    assert made is not None
    return made(program, {}, _NAME, _VARIABLE).source().strip()
