"""Read plain values from a pickle without unpickling: nothing in it is imported or called.

The opcodes are interpreted here, over the bytes of the file: a size that exceeds the file is refused
before anything is allocated. An import in the pickle becomes a `Name`; a call is passed to the reader
of the format, which builds the objects that it knows (an array of bytes, a tensor) and refuses
everything else. Opcodes: https://github.com/python/cpython/blob/3.13/Lib/pickletools.py.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capsedge.spec import limits


class BadPickle(ValueError):
    """A pickle is damaged, exceeds the limits, or contains more than plain values."""


class NotPlain(BadPickle):
    """A pickle contains objects that could only be obtained by running its code."""


@dataclass(frozen=True)
class Name:
    """A name that a pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True)
class Format:
    """How the parts of a pickle that are not plain values are built.

    All functions raise BadPickle for anything unknown.

    Attributes:
        call: returns the result of calling a name with arguments.
        set_state: sets the state of an object that `call` returned.
        stored: returns the object that a reference out of the pickle stands for.
    """

    call: Callable[[Name, tuple[Any, ...]], Any]
    set_state: Callable[[Any, Any], None]
    stored: Callable[[Any], Any] | None = None


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TEXTS = frozenset(("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"))
_BYTES = frozenset(("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"))
_STRINGS = frozenset(("STRING", "BINSTRING", "SHORT_BINSTRING"))  # strings of Python 2
_NUMBERS = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "INT", "LONG", "FLOAT", "BINFLOAT")
)
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_INTEGERS = range(-(2**63), 2**64)


def loads(data: bytes, form: Format) -> Any:
    """The value of a pickle. Python 2 strings become bytes.

    Raises:
        BadPickle: it is damaged, exceeds the limits, or contains more than plain values and the format's
            objects.
    """
    return read(io.BytesIO(data), form)


def read(data: io.BytesIO, form: Format) -> Any:
    """As `loads`, for one of several consecutive pickles; afterwards ``data`` is positioned behind it.

    ``data`` must be in memory: any other file would allocate the requested size before it finds less to read.
    """
    machine = _Machine(form)
    opcodes = pickletools.genops(data)
    for _ in range(limits.PICKLE_OPCODES):
        try:
            opcode, argument, _at = next(opcodes)
        except (ValueError, StopIteration) as error:
            raise BadPickle(f"it is damaged: {error}") from error
        if opcode.name == "STOP":
            return machine.pop()
        machine.step(opcode.name, argument)
    raise BadPickle(f"it has over {limits.PICKLE_OPCODES:,} opcodes")


class _Machine:
    """The stack and the memo."""

    def __init__(self, form: Format) -> None:
        self._form = form
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks under the marks
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Execute one opcode."""
        if name in _NUMBERS:
            if type(argument) is int and argument not in _INTEGERS:
                raise BadPickle("it has a number of over 64 bits")
            self._stack.append(argument)
        elif name in _TEXTS:
            self._stack.append(argument)
        elif name in _BYTES:
            self._stack.append(bytes(argument))
        elif name in _STRINGS:
            self._stack.append(argument.encode("latin-1"))
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _TUPLES:
            items = [self.pop() for _ in range(_TUPLES[name])]
            self._stack.append(tuple(reversed(items)))
        elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = self._top(object)
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            if argument not in self._memo:
                raise BadPickle(f"it has no object {argument}")
            self._stack.append(self._memo[argument])
        elif name not in ("PROTO", "FRAME"):
            action = _ACTIONS.get(name)
            if action is None:
                raise BadPickle(f"it uses the opcode {name}")
            action(self, argument)

    def pop(self) -> Any:
        """Take the top of the stack."""
        if not self._stack:
            raise BadPickle("it takes more values than it has created")
        return self._stack.pop()

    def _top(self, kind: type) -> Any:
        if not self._stack or not isinstance(self._stack[-1], kind):
            raise BadPickle(f"it has no {kind.__name__} where it needs one")
        return self._stack[-1]

    def _mark(self, _: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def _marked(self) -> list[Any]:
        """Take everything above the last mark."""
        if not self._below:
            raise BadPickle("it has no mark where it needs one")
        items, self._stack = self._stack, self._below.pop()
        return items

    def _list(self, _: Any) -> None:
        items = self._marked()
        self._stack.append(items)

    def _tuple(self, _: Any) -> None:
        items = self._marked()
        self._stack.append(tuple(items))

    def _dict(self, _: Any) -> None:
        items = self._marked()
        self._stack.append({})
        self._set(items)

    def _append(self, _: Any) -> None:
        item = self.pop()
        self._top(list).append(item)

    def _appends(self, _: Any) -> None:
        items = self._marked()
        self._top(list).extend(items)

    def _set_item(self, _: Any) -> None:
        value, key = self.pop(), self.pop()
        self._set([key, value])

    def _set_items(self, _: Any) -> None:
        self._set(self._marked())

    def _set(self, items: list[Any]) -> None:
        target = self._top(dict)
        if len(items) % 2 or not {type(key) for key in items[::2]} <= {str, bytes, int}:
            raise BadPickle("it has keys that are neither strings nor whole numbers")
        target.update(zip(items[::2], items[1::2], strict=True))

    def _global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self._stack.append(Name(module, name))

    def _stack_global(self, _: Any) -> None:
        name, module = self.pop(), self.pop()
        if type(name) is not str or type(module) is not str:
            raise BadPickle("it imports something other than a name")
        self._stack.append(Name(module, name))

    def _reduce(self, _: Any) -> None:
        arguments, name = self.pop(), self.pop()
        if type(arguments) is not tuple or type(name) is not Name:
            raise BadPickle("it calls something other than a name")
        self._stack.append(self._form.call(name, arguments))

    def _build(self, _: Any) -> None:
        state = self.pop()
        self._form.set_state(self._top(object), state)

    def _stored(self, _: Any) -> None:
        if self._form.stored is None:
            raise BadPickle("it refers to objects outside of it")
        self._stack.append(self._form.stored(self.pop()))


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine._mark,
    "EMPTY_LIST": lambda machine, _: machine._stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine._stack.append({}),
    "LIST": _Machine._list,
    "TUPLE": _Machine._tuple,
    "DICT": _Machine._dict,
    "APPEND": _Machine._append,
    "APPENDS": _Machine._appends,
    "SETITEM": _Machine._set_item,
    "SETITEMS": _Machine._set_items,
    "GLOBAL": _Machine._global,
    "STACK_GLOBAL": _Machine._stack_global,
    "REDUCE": _Machine._reduce,
    "NEWOBJ": _Machine._reduce,  # to a reader of the format, creating an object is also a call
    "BUILD": _Machine._build,
    "BINPERSID": _Machine._stored,
}
