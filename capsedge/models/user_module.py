"""`--module file.py:Class`: a user's code on the CPU, its own lines in errors.

The code runs as any program does that the user starts. Its name comes from the command line only.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import json
import linecache
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from capsedge.datasets.array_files import read_arrays
from capsedge.errors import CapsedgeError, UsageError
from capsedge.models.weights import load_weights
from capsedge.runtime.files.json_documents import Malformed, parse
from capsedge.runtime.files.writing import sha256

# Running the code of others: on the CPU, wherever it says otherwise, and with its own lines in
# errors


_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple(
    {str(Path(sysconfig.get_paths()[k]).resolve()) for k in ("stdlib", "purelib", "platlib")}
    | {str(Path(torch.__file__).resolve().parent)}
)


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class OnCpu(TorchFunctionMode):
    """Tensors stay on the CPU where code says ``.cuda()`` or ``device="cuda"``; ``.data`` is a plain alias.

    ``torch.export`` sees neither a move to a device that is not there nor a write past it by ``.data``.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.cuda:
            return args[0]
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]
            return args[0].detach()
        if func == Tensor.data.__set__ and args[0].shape == args[1].shape:  # type: ignore[attr-defined]
            return args[0].detach().copy_(args[1])
        kwargs = {k: _here(v) for k, v in (kwargs or {}).items()}
        return func(*map(_here, args), **kwargs)


def _here(value: Any) -> Any:
    """A device of any kind becomes the CPU."""
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """While it lasts, `OnCpu` holds, old names make plain tensors, and prints go to standard error."""

    def same(_: type, data: Tensor, *__: Any, **___: Any) -> Tensor:
        return data

    cuda = [(torch.cuda, name, getattr(torch, name)) for name in _TYPES]
    with (
        contextlib.redirect_stdout(sys.stderr),
        warnings.catch_warnings(),
        _replaced((torch.autograd.Variable, "__new__", same), *cuda),
        OnCpu(),
    ):
        warnings.simplefilter("ignore")  # of what the code has always done
        yield


_TYPES = (
    "FloatTensor",
    "DoubleTensor",
    "HalfTensor",
    "LongTensor",
    "IntTensor",
    "ByteTensor",
    "BoolTensor",
)


@contextlib.contextmanager
def _replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes have other values while it lasts."""
    before = [(place, name, vars(place).get(name)) for place, name, _ in changes]
    for place, name, value in changes:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, name, value in before:
            if value is None:
                delattr(place, name)
            else:
                setattr(place, name, value)


def line_of(error: BaseException) -> str:
    """The last line of the user's code that an error passed through, as ``file.py:7: code``; empty for none.

    Causes are followed: torch raises its own errors from the user's.
    """
    seen: BaseException | None = error
    found = ""
    while seen is not None:
        for frame in traceback.extract_tb(seen.__traceback__):
            if is_user_code(frame.filename):
                found = code_location(frame.filename, frame.lineno or 0)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return found


def node_lines(node: torch.fx.Node) -> Iterator[str]:
    """The user's lines of a captured node, the innermost first."""
    for match in reversed(list(_FRAME.finditer(node.meta.get("stack_trace") or ""))):
        if is_user_code(match["file"]):
            yield code_location(match["file"], int(match["line"]))


def code_location(filename: str, number: int) -> str:
    """A line of code for a person."""
    code = linecache.getline(filename, number).strip()
    return f"{Path(filename).name}:{number}" + (f": {code}" if code else "")


def lines_with(module: nn.Module, words: str) -> list[str]:
    """The first line of the module's own classes that says these words, other than to set them."""
    ahead = r"(?<![\w.])" if words[0].isidentifier() else ""
    for kind in {type(each) for each in module.modules()}:
        try:
            filename = inspect.getsourcefile(kind) or ""
            lines, start = inspect.getsourcelines(kind)
        except (OSError, TypeError):
            continue
        if is_user_code(filename):
            for number, line in enumerate(lines, start):
                said = re.search(rf"{ahead}{re.escape(words)}", line)
                if said and not re.match(r"\s*=[^=]", line[said.end() :]):
                    return [code_location(filename, number)]
    return []


def is_user_code(filename: str) -> bool:
    """Whether a file is neither of this package, nor of a library, nor made up."""
    if filename.startswith("<"):
        return False
    path = str(Path(filename).resolve())
    return not any(path.startswith(f"{place}/") for place in (_PACKAGE, *_LIBRARIES))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its kind."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


class _Watch(TorchFunctionMode):
    """Notes the lines that reduce over the first axis of a batch."""

    def __init__(self, batch: int, lines: list[str]) -> None:
        super().__init__()
        self.batch, self.lines = batch, lines

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "batch_norm" and (
            kwargs.get("training") or True in args[5:6]
        ):  # the batch's statistics
            self._note()
        if name in _REDUCING and args and isinstance(args[0], Tensor):
            axes = kwargs.get("dim", args[1] if len(args) > 1 else None)
            axes = axes if isinstance(axes, (tuple, list)) else (axes,)
            x = args[0]
            first = None in axes or 0 in axes or -x.ndim in axes
            if x.ndim > 1 and x.shape[0] == self.batch and first:
                self._note()
        return func(*args, **kwargs)

    def _note(self) -> None:
        frames = [f for f in traceback.extract_stack() if is_user_code(f.filename)]
        if frames:
            self.lines.append(code_location(frames[-1].filename, frames[-1].lineno or 0))


_REDUCING = frozenset(("mean", "sum", "softmax", "max", "amax", "norm", "std", "var", "prod"))


@contextlib.contextmanager
def reductions_over_batch(batch: int) -> Iterator[list[str]]:
    """Collects the user's lines that reduce a tensor of this batch over its first axis."""
    lines: list[str] = []
    with _Watch(batch, lines):
        yield lines


class Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the random operations of a run, and the user's lines that call them.

    Args:
        stream: of other random numbers to draw; None for those that the code draws.
    """

    def __init__(self, stream: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.stream, self.names, self.lines = stream, list[str](), list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        self.names.append(str(func).partition(".")[2].partition(".")[0].rstrip("_"))
        frames = [f for f in traceback.extract_stack() if is_user_code(f.filename)]
        if frames:
            line = code_location(frames[-1].filename, frames[-1].lineno or 0)
            self.lines += [line] if line not in self.lines else []
        if self.stream is None:
            return func(*args, **kwargs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7919 * (self.stream + 1) + len(self.names))
            if kwargs.get("generator") is not None:
                kwargs["generator"] = None
            return func(*args, **kwargs)


# --- A user's own code and weights made a module: what ``--module`` names. Needs torch ---


_LARGEST = 2**28  # elements of an example
_LINES = 20  # of a message, after the first


@dataclass(frozen=True)
class UserModuleSpec:
    """What a user names.

    Attributes:
        module: ``file.py:Name`` or ``package.module:Name``, a class or a function that returns a module.
        weights: the file of its weights; empty for those that the code itself makes.
        args: a JSON object of keyword arguments, or an array of positional ones.
    """

    module: str
    weights: str = ""
    args: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class UserModule:
    """A user's module with its weights, in evaluation mode.

    Attributes:
        module: the module.
        spec: what the user named.
        name: of the class or function.
        code: the file that it stands in; None where Python does not know.
        notes: what a person should know of the weights.
    """

    module: nn.Module
    spec: UserModuleSpec
    name: str
    code: Path | None
    notes: tuple[str, ...] = ()

    @property
    def weights(self) -> Path | None:
        """The file of the weights."""
        return Path(self.spec.weights) if self.spec.weights else None

    def facts(self) -> dict[str, Any]:
        """What a certificate says of it."""
        return {
            "user_module": True,
            "code": f"{self.code.name if self.code else '?'}:{self.name}",
            "code_sha256": sha256(self.code) if self.code else "",
            "weights": self.weights.name if self.weights else "",
            "parameters": sum(p.numel() for p in self.module.parameters()),
        }


def load_user_module(spec: UserModuleSpec) -> UserModule:
    """Run the user's code, build the module, and load its weights.

    Raises:
        UsageError: there is no such file or name, the code fails (the error shows the user's lines), or the
            weights are those of another network.
        ArtefactError: the weights are damaged or hold code.
    """
    where, _, name = spec.module.rpartition(":")
    if not where or not name:
        raise UsageError(
            f"'{spec.module}' names no module.",
            "It wants the place of the code and, after a colon, a class or a function in it.",
            "Use --module capsnet.py:CapsNet, or --module package.module:CapsNet.",
        )
    positional, keywords = _arguments(spec.args)
    with _running(spec.module):
        code = _imported(where)
    made = _attribute(code, where, name)
    torch.manual_seed(0)
    with _running(spec.module, made):
        module = made if isinstance(made, nn.Module) else made(*positional, **keywords)
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"{spec.module} is not a PyTorch module.",
            f"It gives {_described(module)}.",
            "Name a class of torch.nn.Module, or a function that returns one.",
        )
    notes: tuple[str, ...] = ()
    if spec.weights:
        loaded = load_weights(module, spec.weights)
        notes = (
            (f"weights read from {Path(spec.weights).name}{loaded.location}",)
            if loaded.location
            else ()
        ) + loaded.notes
    with contextlib.suppress(TypeError, OSError):
        found = inspect.getsourcefile(made if callable(made) else type(made))
        return UserModule(module.eval(), spec, name, Path(found) if found else None, notes)
    return UserModule(module.eval(), spec, name, None, notes)


def _described(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments.

    Raises:
        UsageError: the text is not JSON, or is a single value.
    """
    if not text:
        return [], {}
    try:
        value = parse(text)
    except Malformed as error:
        raise UsageError(
            f"--args {text[:80]} is not JSON.",
            f"{error}.",
            """Use for example --args '{"classes": 10, "bias": true}' or --args '[10, 3]'.""",
        ) from None
    if isinstance(value, dict):
        return [], value
    return (value if isinstance(value, list) else [value]), {}


def _imported(where: str) -> ModuleType:
    if not where.endswith(".py"):
        with _importable(Path.cwd()):
            return importlib.import_module(where)
    path = Path(where)
    if not path.is_file():
        raise UsageError(f"There is no file {where}.", "", "Check the name after --module.")
    path = path.resolve()
    name = path.stem if path.stem not in sys.modules and path.stem.isidentifier() else "user_module"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None  # a .py file has one
    code = importlib.util.module_from_spec(spec)
    sys.modules[name] = code
    with _importable(path.parent):
        spec.loader.exec_module(code)
    return code


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """The folder is the first to import from, as it is for a script in it; nothing is written there."""
    path, arguments, bytecode = sys.path[:], sys.argv, sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.argv, sys.dont_write_bytecode = [arguments[0]], True
    try:
        yield
    finally:
        sys.path[:], sys.argv, sys.dont_write_bytecode = path, arguments, bytecode


def _attribute(code: ModuleType, where: str, name: str) -> Any:
    """What has this name.

    Raises:
        UsageError: nothing; it offers names that stand for modules.
    """
    value: Any = code
    try:
        for part in name.split("."):
            value = getattr(value, part)
    except AttributeError:
        kinds = [
            k for k, v in vars(code).items() if isinstance(v, type) and issubclass(v, nn.Module)
        ]
        kinds = [k for k in kinds if getattr(code, k).__module__ == code.__name__]
        close = difflib.get_close_matches(name, kinds, 1)
        raise UsageError(
            f"There is no {name} in {where}.",
            f"Modules in it: {', '.join(kinds) or 'none'}.",
            f"Use --module {where}:{(close or kinds or ['NAME'])[0]}.",
        ) from None
    if not isinstance(value, nn.Module) and not callable(value):
        raise UsageError(
            f"{where}:{name} is not a PyTorch module.",
            f"It is {_described(value)}.",
            "Name a class of torch.nn.Module, or a function that returns one.",
        )
    return value


@contextlib.contextmanager
def _running(what: str, made: Any = None) -> Iterator[None]:
    """Errors of the user's code are told with the user's lines.

    Args:
        made: the class or function that is called, for its arguments.
    """
    try:
        with on_cpu():
            yield
    except CapsedgeError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [
            code_location(f.filename, f.lineno or 0) for f in frames if is_user_code(f.filename)
        ]
        if isinstance(error, SyntaxError) and error.filename:
            lines.append(code_location(error.filename, error.lineno or 0))
        said, *more = f"{type(error).__name__}: {error}".split("\n")
        advice = _advice(error, made, bool(lines))
        raise UsageError(
            f"The code of {what} fails.", said, advice, details=[*more[:_LINES], *lines]
        ) from error


def _advice(error: BaseException, made: Any, inside: bool) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"Install {error.name}, or start where it can be imported (PYTHONPATH)."
    if isinstance(error, TypeError) and made is not None and not inside:
        with contextlib.suppress(TypeError, ValueError):
            return f"Its arguments are {inspect.signature(made)}: give them with --args as JSON."
    if isinstance(error, SystemExit):
        return (
            "It ends the program while it is imported: keep that behind if __name__ == '__main__'."
        )
    return "Run it alone to see where: python -c 'import ...'."


def read_example(text: str, module: nn.Module) -> tuple[Tensor, ...]:
    """Inputs of the shapes ``1x28x28,10`` (without the batch), or those in an ``.npy`` or ``.npz`` file.

    Returns:
        Batch first: two of each shape; or the file's arrays that are named like the parameters of the
        module's ``forward``, in their order, and all where none is.

    Raises:
        UsageError: it is neither.
    """
    if text.endswith((".npy", ".npz")):
        stored = read_arrays(Path(text))
        parameters = inspect.signature(module.forward).parameters
        arrays = {name: stored[name] for name in parameters if name in stored} or stored
        if not arrays or any(a.ndim == 0 or not len(a) for a in arrays.values()):
            raise UsageError(f"{text} holds no inputs.", "", "Give arrays with the batch first.")
        return tuple(torch.from_numpy(a.copy()) for a in arrays.values())
    try:
        shapes = [[int(n) for n in part.split("x")] for part in text.lower().split(",")]
        elements = [torch.Size(shape).numel() for shape in shapes]
    except ValueError:
        shapes, elements = [], []
    if not shapes or not all(0 < n <= _LARGEST for n in elements) or min(map(min, shapes)) < 1:
        raise UsageError(
            f"'{text}' is not the shape of an input.",
            "It is the size of one image, channels first.",
            "Use --example 1x28x28, --example 1x28x28,10 for two inputs, or an .npy or .npz file.",
        )
    generator = torch.Generator().manual_seed(1)
    return tuple(torch.rand((2, *shape), generator=generator) for shape in shapes)
