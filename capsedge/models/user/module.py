"""Load a module from the user's own code and weights, as given by ``--module``. Needs torch.

The code runs like any program that the user starts, and only the command line can name it. It runs on the
CPU, whatever device it requests, and errors show its own lines.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn

from capsedge.errors import CapsedgeError, UsageError
from capsedge.models.user.code import (
    code_location,
    error_with_user_line,
    is_user_code,
    on_cpu,
    seeded,
)
from capsedge.models.user.example_inputs import in_order, in_order_of
from capsedge.models.user.unsaved_tensors import check_saved
from capsedge.models.user.weights import load_weights
from capsedge.runtime.files.documents import MalformedJson, parse
from capsedge.runtime.files.writing import sha256

_LINES = 20  # maximum number of lines of a message, after the first


@dataclass(frozen=True)
class UserModuleSpec:
    """The module, weights and arguments that the user specified.

    Attributes:
        module: ``file.py:Name`` or ``package.module:Name``, a class or a function that returns a module.
        weights: the file with its weights; empty for weights that the code itself sets.
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
        name: name of the class or function.
        code: the file that defines it; None if unknown.
        notes: remarks on the weights for the user.
        again: the module built with other random numbers, with the same weights; None without weights, or
            if it cannot be built again.
        unchecked: why not all tensors can be checked by building it again; empty if they can.
    """

    module: nn.Module
    spec: UserModuleSpec
    name: str
    code: Path | None
    notes: tuple[str, ...] = ()
    again: nn.Module | None = None
    unchecked: str = ""

    def check_saved(
        self, inputs: Sequence[Tensor] | Mapping[str, Tensor], batch: int = 0
    ) -> tuple[str, ...]:
        """Refuse values that come neither from the weights nor are equal each time the module is built.

        Args:
            inputs: an example, in order or by name; batch first.
            batch: the size of a batch that the module takes; 0 if it is not known.

        Returns:
            A note on what could not be checked, if anything.

        Raises:
            UnsupportedModelError: it names them.
        """
        if self.weights is None:
            return ()
        if self.again is None:
            return (self._not_checked(self.unchecked),)
        both = [self.module, self.again]
        if isinstance(inputs, Mapping):
            both = [in_order(each, tuple(inputs)) for each in both]
            inputs = tuple(inputs.values())
        failed = check_saved(both[0], both[1], inputs, self.weights.name, batch)
        return tuple(self._not_checked(why) for why in (self.unchecked, failed) if why)

    def _not_checked(self, why: str) -> str:
        return f"not checked whether {Path(self.spec.weights).name} holds all tensors: {why}"

    def ordered(self, names: Sequence[str]) -> UserModule:
        """The same, taking inputs with these names of a file in this order."""
        again = None if self.again is None else in_order_of(self.again, names)
        return replace(self, module=in_order_of(self.module, names), again=again)

    @property
    def weights(self) -> Path | None:
        """The file of the weights."""
        return Path(self.spec.weights) if self.spec.weights else None

    def facts(self) -> dict[str, Any]:
        """The facts that a certificate records."""
        return {
            "user_module": True,
            "code": f"{self.code.name if self.code else '?'}:{self.name}",
            "code_sha256": sha256(self.code) if self.code else "",
            "weights": self.weights.name if self.weights else "",
            "parameters": sum(p.numel() for p in self.module.parameters()),
        }


def load_user_module(spec: UserModuleSpec, *, twice: bool = True) -> UserModule:
    """Run the user's code, build the module, and load its weights.

    Args:
        twice: whether the module is built once more, for `UserModule.check_saved`.

    Raises:
        UsageError: there is no such file or name, the code fails (the error shows the user's lines), or the
            weights belong to another network.
        ArtefactError: the weights are damaged or hold code.
    """
    where, _, name = spec.module.rpartition(":")
    if not where or not name:
        raise UsageError(
            f"'{spec.module}' does not name a module.",
            "The format is the path of the code, a colon, and a class or function in it.",
            "Use --module capsnet.py:CapsNet, or --module package.module:CapsNet.",
        )
    positional, keywords = _arguments(spec.args)
    before = set(sys.modules)
    with seeded(0):
        with _running(spec.module):
            code = _imported(where)
        made = _attribute(code, where, name)
        with _running(spec.module, made):
            module = made if isinstance(made, nn.Module) else made(*positional, **keywords)
    if not isinstance(module, nn.Module):
        raise UsageError(
            f"{spec.module} is not a PyTorch module.",
            f"It is {_described(module)}.",
            "Name a subclass of torch.nn.Module, or a function that returns an instance.",
        )
    notes: tuple[str, ...] = ()
    again, unchecked = None, ""
    if spec.weights:
        if twice:  # before the weights are loaded, because both may share layers
            arguments = (positional, keywords)
            again, unchecked = _built_again(where, name, made, module, arguments, before)
        loaded = load_weights(module, spec.weights)
        location = f"weights read from {Path(spec.weights).name}{loaded.location}"
        notes = (*([location] if loaded.location else []), *loaded.notes)
        if again is not None and (differs := _load_state(again, module)):
            again, unchecked = None, differs
    code_file = None
    with contextlib.suppress(TypeError, OSError):
        found = inspect.getsourcefile(made if callable(made) else type(made))
        code_file = Path(found) if found else None
    return UserModule(module.eval(), spec, name, code_file, notes, again, unchecked)


def _built_again(
    where: str,
    name: str,
    made: Any,
    first: nn.Module,
    arguments: tuple[list[Any], dict[str, Any]],
    before: set[str],
) -> tuple[nn.Module | None, str]:
    """The module built once more with other random numbers, and what of it is not new.

    The code is imported anew, because it may draw numbers outside the class. If that fails, as where it
    registers something, the class that was imported is called again.

    Args:
        made: the class or function that made the first module, or that module.
        first: the first module.
        before: the names of the Python modules that were there before the code was imported.

    Returns:
        The module, and why tensors that the import makes are not new; or None, and why it cannot be built.
    """
    positional, keywords = arguments
    own = {
        key: sys.modules.pop(key)
        for key in list(sys.modules)
        if key not in before and is_user_code(getattr(sys.modules[key], "__file__", None) or "<")
    }
    old = ""
    try:
        with seeded(1), on_cpu():
            made = _attribute(_imported(where), where, name)
    except (Exception, SystemExit) as error:  # of any kind, from the user's code
        old = f"its code cannot be imported twice ({error_with_user_line(error)})"
        if isinstance(made, nn.Module):
            return None, old
    finally:
        sys.modules.update(own)
    try:
        with seeded(1), on_cpu():
            built = made if isinstance(made, nn.Module) else made(*positional, **keywords)
    except (Exception, SystemExit) as error:
        return None, f"it cannot be created twice ({error_with_user_line(error)})"
    if not isinstance(built, nn.Module) or built is first:
        return None, "its code returns the same module each time"
    return built.eval(), old


def _load_state(again: nn.Module, module: nn.Module) -> str:
    """Load the weights of the first module into the second; returns how its tensors differ, if they do."""
    try:
        again.load_state_dict(module.state_dict())
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        return f"it has other tensors when it is created a second time ({said})"
    return ""


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
    except MalformedJson as error:
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
    """Import from this folder first, as for a script in it; nothing is written there."""
    path, arguments, bytecode = sys.path[:], sys.argv, sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.argv, sys.dont_write_bytecode = [arguments[0]], True
    try:
        yield
    finally:
        sys.path[:], sys.argv, sys.dont_write_bytecode = path, arguments, bytecode


def _attribute(code: ModuleType, where: str, name: str) -> Any:
    """The object with this name.

    Raises:
        UsageError: there is none; the error suggests names of modules.
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
            "Name a subclass of torch.nn.Module, or a function that returns an instance.",
        )
    return value


@contextlib.contextmanager
def _running(what: str, made: Any = None) -> Iterator[None]:
    """Report errors of the user's code with the user's lines.

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
        return f"Install {error.name}, or make it importable (PYTHONPATH)."
    if isinstance(error, TypeError) and made is not None and not inside:
        with contextlib.suppress(TypeError, ValueError):
            return f"Its arguments are {inspect.signature(made)}: give them with --args as JSON."
    if isinstance(error, SystemExit):
        return "It exits during import: guard that code with if __name__ == '__main__'."
    return "Run it by itself to see where: python -c 'import ...'."
