"""Complete names in a shell; the shell itself completes files, by suffix if a parameter has one.

It runs at every press of the Tab key, so nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from capsedge.cli._output import log, say
from capsedge.errors import EnvironmentProblem
from capsedge.runtime.files import reading
from capsedge.runtime.files.writing import make_folder, write_bytes, write_text
from capsedge.spec import vocabularies as words

# --- Names that a verb knows; the shell completes files ---

Known = tuple[str, ...] | Callable[[click.Context], Iterable[str]]


# Written out, because the modules that define them need numpy; a test compares.
_MODELS = (
    *("capsnet-mnist", "capsnet-multimnist", "capsnet-cifar10", "capsnet-smallnorb"),
    *(
        "capsnet-svhn",
        "dynamic-cifar10-simple",
        "dynamic-cifar100-simple",
        "dynamic-cifar10-resnet",
    ),
    *("dynamic-cifar100-resnet", "em-cifar10-simple", "em-cifar100-simple", "em-cifar10-resnet"),
    *("em-cifar100-resnet", "attention-cifar10-simple", "attention-cifar100-simple"),
    *("attention-cifar10-resnet", "attention-cifar100-resnet"),
    *("attention-diversemultimnist-vector", "attention-diversemultimnist-matrix"),
    *(
        "dynamic-diversemultimnist",
        "em-smallnorb",
        "em-smallnorb-small",
        "photos",
        "digits-dynamic",
    ),
    *("digits-small", "digits-overlap", "digits-em", "digits-attention"),
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


# By parameter name; if verbs differ, by verb and parameter.
NAMES: Mapping[str, Known] = {
    "describe": tuple(f"{name}=" for name in words.DESCRIPTION_FIELDS[6:]),
    "device": _devices,
    "family": tuple(_VARIANTS),
    "ops": words.OPS,
    "routing": words.ZOO_ROUTINGS,
    "variant": _variants,
    "batch cluster": ("auto",),
    "batch model": _trained,
    "build device": (),
    "deploy kserve name": (),
    "deploy triton models": _trained,
    "deploy web models": _trained,
    "export checkpoint": _MODELS,
    "infer model": _trained,
    "inspect device": _boards,
    "optimize batch": ("free", "keep"),
    "prune checkpoint": _trained,
    "see model": _trained,
    "serve batch": ("auto",),
    "serve models": _trained,
    "sweep checkpoint": _trained,
    "train model": _MODELS,
    "verify checkpoint": _trained,
    "verify models": _trained,
}
# Parameters that take a file although they are not paths: a name or a file, a file and a class in it, an
# address.
FILES = frozenset(
    (
        *(
            "module",
            "reference_code",
            "describe",
            "batch model",
            "batch output",
            "batch source",
            "infer model",
        ),
        *("prune checkpoint", "export checkpoint", "sweep checkpoint", "verify models"),
        *("see model", "train model"),
    )
)

# Suffixes of the files that a parameter takes; without any, a shell offers all files.
_MODEL_FILES = ("onnx", "engine")
_CHECKPOINTS = ("safetensors", "pt")
_IMAGES = ("png", "jpg", "jpeg", "gif", "bmp", "tif", "tiff", "webp")
SUFFIXES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("model", "models", "peer_model"), _MODEL_FILES),
    **dict.fromkeys(("small", "large", "deploy web models", "optimize model"), ("onnx",)),
    **dict.fromkeys(("quantize model", "build model"), ("onnx",)),
    **dict.fromkeys(("checkpoint", "init", "train model"), _CHECKPOINTS),
    **dict.fromkeys(("infer images", "see images"), _IMAGES),
    **dict.fromkeys(("module", "reference_code"), ("py",)),
    "files": ("pt", "pth", "tar", "chkpt", "ckpt", "bin", "safetensors", "npz", "h5", "keras"),
    "file": (*_MODEL_FILES, "safetensors"),
    **dict.fromkeys(("inputs", "check_inputs"), ("npz", "npy")),
    **dict.fromkeys(("key_map", "describe"), ("toml",)),
    "weights": ("pt", "pth", "tar", "chkpt", "ckpt", "bin", "safetensors"),
}


def offered(
    verb: str, parameter: click.Parameter, ctx: click.Context, incomplete: str
) -> list[CompletionItem]:
    """The completions for the text typed so far for a parameter."""
    keys = (f"{verb} {parameter.name}", str(parameter.name))
    is_path = getattr(parameter.type, "kind", None) is Path
    choices: Known = getattr(parameter.type, "choices", ())
    known = choices or next((NAMES[k] for k in keys if k in NAMES), ())
    listed = getattr(parameter.type, "listed", False)
    before, comma, start = incomplete.rpartition(",") if listed else ("", "", incomplete)
    found = [
        CompletionItem(before + comma + name)
        for name in (known if isinstance(known, tuple) else known(ctx))
        if name.startswith(start) and name not in before.split(",")
    ]
    if not (is_path or FILES & {*keys}):
        return found
    suffixes = next((SUFFIXES[k] for k in keys if k in SUFFIXES), ())
    if suffixes:
        return [CompletionItem("|".join(suffixes), type="suffix"), *found]
    # This comes first, since bash forgets the names before it; it completes files if no name is left.
    return [CompletionItem(incomplete, type="file"), *found]


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


# What click's scripts do with a file, and our additions for files with certain suffixes.
_OF_SUFFIX = {
    "bash": (
        "        elif [[ $type == 'file' ]]; then\n",
        "        elif [[ $type == 'suffix' ]]; then\n"
        "            compopt -o filenames\n"
        '            COMPREPLY+=($(compgen -d -- "${COMP_WORDS[COMP_CWORD]}"))\n'
        "            for suffix in ${value//|/$'\\n'}; do\n"
        '                COMPREPLY+=($(compgen -f -X "!*.$suffix" -- "${COMP_WORDS[COMP_CWORD]}"))\n'
        "            done\n",
    ),
    "zsh": (
        '        elif [[ "$type" == "file" ]]; then\n',
        '        elif [[ "$type" == "suffix" ]]; then\n'
        '            _files -g "*.(${key}|${key})"\n',  # a single one in brackets would be a qualifier
    ),
    "fish": (
        '        else if test $metadata[1] = "file";\n',
        '        else if test $metadata[1] = "suffix";\n'
        "            __fish_complete_path (commandline -ct) | "
        "string match -r '.*(?:/|\\.(?:'$metadata[2]'))(?:\\t.*)?$';\n",
    ),
}


def _script(program: click.Command, shell: str) -> str:
    """click's script of a shell, which also completes files by suffix."""
    made = get_completion_class(shell)
    assert made is not None
    before, added = _OF_SUFFIX[shell]
    return made(program, {}, _NAME, _VARIABLE).source().strip().replace(before, added + before)
