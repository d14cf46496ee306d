"""Run the user's code on the CPU, and find the lines behind errors, nodes and random draws. Needs torch."""

from __future__ import annotations

import contextlib
import inspect
import linecache
import random
import re
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_PACKAGE = str(Path(__file__).resolve().parents[2])
_LIBRARIES = tuple(
    {str(Path(sysconfig.get_paths()[k]).resolve()) for k in ("stdlib", "purelib", "platlib")}
    | {str(Path(torch.__file__).resolve().parent)}
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class OnCpu(TorchFunctionMode):
    """Keeps tensors on the CPU if code uses ``.cuda()`` or ``device="cuda"``; ``.data`` is a plain alias.

    Otherwise ``torch.export`` would see neither a move to a missing device nor a write through ``.data``.
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
    """Within this context, `OnCpu` applies, old names make plain tensors, and prints go to standard error."""

    def same(_: type, data: Tensor, *__: Any, **___: Any) -> Tensor:
        return data

    cuda = [(torch.cuda, name, getattr(torch, name)) for name in _TYPES]
    with (
        contextlib.redirect_stdout(sys.stderr),
        warnings.catch_warnings(),
        _replaced((torch.autograd.Variable, "__new__", same), *cuda),
        OnCpu(),
    ):
        warnings.simplefilter("ignore")  # warnings about what the code has always done
        yield


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the random numbers of Python, NumPy and PyTorch within this context."""
    python, arrays = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


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
    """Replace the values of attributes within this context."""
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
    """The last line of the user's code that an error passed through, as ``file.py:7: code``; empty if there
    is none.

    Causes are followed, because torch raises its own errors from the user's.
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
    """A line of code as text."""
    code = linecache.getline(filename, number).strip()
    return f"{Path(filename).name}:{number}" + (f": {code}" if code else "")


def innermost_line() -> str:
    """The line of the user's code that is running; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            return code_location(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ""


def lines_with(module: nn.Module, words: str) -> list[str]:
    """The first line of the module's own classes that contains these words without assigning to them."""
    ahead = r"(?<![\w.])" if words[0].isidentifier() else ""
    for kind in {type(each) for each in module.modules()}:
        try:
            filename = inspect.getsourcefile(kind) or ""
            lines, start = inspect.getsourcelines(kind)
        except (OSError, TypeError):
            continue
        if is_user_code(filename):
            for number, line in enumerate(lines, start):
                match = re.search(rf"{ahead}{re.escape(words)}", line)
                if match and not re.match(r"\s*=[^=]", line[match.end() :]):
                    return [code_location(filename, number)]
    return []


def is_user_code(filename: str) -> bool:
    """Whether a file belongs neither to this package nor to a library, and is a real file."""
    if filename.startswith("<"):
        return False
    path = str(Path(filename).resolve())
    return not any(path.startswith(f"{place}/") for place in (_PACKAGE, *_LIBRARIES))


def first_message_line(error: BaseException) -> str:
    """The first line of an error's message, or its type."""
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def error_with_user_line(error: BaseException) -> str:
    """An error's type, the first line of its message, and the user's line."""
    parts = [f"{type(error).__name__}: {first_message_line(error)}", line_of(error)]
    return "; ".join(part for part in parts if part)


class _Watch(TorchFunctionMode):
    """Records the lines that reduce over the first axis of a batch."""

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
    """Records the random operations of a run, and the user's lines that call them.

    Args:
        stream: a source of other random numbers; None for those that the code draws.
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
