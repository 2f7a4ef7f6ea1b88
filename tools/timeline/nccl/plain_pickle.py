"""Read pickles of plain data without executing anything: a pickle is a program, and here it may only build values.

Python's unpickler with a refusing `find_class` is not enough: it reserves memory for announced sizes (``BINBYTES8``,
``LONG_BINPUT``) and overflows its stack when a deep tuple is a key. So `pickletools` decodes the opcodes, and only
those that make None, booleans, numbers, texts, bytes, lists, tuples and dictionaries with text keys are executed.
Memory grows with the length of the pickle only, and the result is a tree of bounded size: no value contains itself, and
what is used twice counts twice.
"""

from __future__ import annotations

import io
import pickletools
from collections.abc import Callable, Iterable
from typing import Any

from whystall.tools.contract.text import clean

NODES = 100_000_000
"""Limit of the resulting tree; a dump of a ring of 2000 entries with stacks has a million."""

_MARK = object()
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_NEW: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list}
_NUMBERS = frozenset({"INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"})
_TEXTS = frozenset(
    {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)
_VALUES = _NUMBERS | _TEXTS | {"BINBYTES", "SHORT_BINBYTES", "BINBYTES8"}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_STORE = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_LOAD = frozenset({"GET", "BINGET", "LONG_BINGET"})
_SKIPPED = frozenset({"PROTO", "FRAME"})
_IMPORTS = frozenset({"GLOBAL", "INST", "STACK_GLOBAL"})
_FORBIDDEN = {
    "PERSID": "an object kept elsewhere",
    "BINPERSID": "an object kept elsewhere",
    "EXT1": "a registered extension",
    "EXT2": "a registered extension",
    "EXT4": "a registered extension",
}


class PickleRefused(ValueError):
    """The reason why a pickle is refused, one line."""


def loads(data: bytes) -> object:
    """Return the value of a pickle of any protocol. Raises `PickleRefused`."""
    try:
        return _Machine().run(data)
    except PickleRefused:
        raise
    # pickletools: ValueError for any damage; the others: stack or memo lack what is requested
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise PickleRefused(f"damaged ({clean(str(error), 80)})") from None


class _Machine:
    """The stack and memo of one pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        # Nodes of each container, by its id (none is freed meanwhile), and the completed ones: a container that is used
        # again may not grow any more, so that it never contains itself.
        self.nodes: dict[int, int] = {}
        self.complete: set[int] = set()

    def run(self, data: bytes) -> object:
        stack, memo = self.stack, self.memo
        argument: Any
        for opcode, argument, _ in pickletools.genops(io.BytesIO(data)):
            name = opcode.name
            if name in _LOAD:
                stack.append(self._again(memo[int(argument)]))
            elif name in _STORE:
                memo[len(memo) if name == "MEMOIZE" else int(argument)] = self._top()
            elif name in _VALUES:
                stack.append(argument)
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name == "MARK":
                stack.append(_MARK)
            elif name in _NEW:
                self._push(_NEW[name](), ())
            elif name in ("APPENDS", "APPEND"):
                items = self._marked() if name == "APPENDS" else [self._pop()]
                self._filled(list, items).extend(items)
            elif name in ("SETITEMS", "SETITEM"):
                items = self._marked() if name == "SETITEMS" else self._taken(2)
                _set(self._filled(dict, items), items)
            elif name in _TUPLES or name == "TUPLE":
                items = self._marked() if name == "TUPLE" else self._taken(_TUPLES[name])
                self._push(tuple(items), items)
            elif name == "LIST":
                items = self._marked()
                self._push(items, items)
            elif name == "DICT":
                items = self._marked()
                made: dict[str, Any] = {}
                _set(made, items)
                self._push(made, items)
            elif name == "STOP":
                return self._pop()
            elif name not in _SKIPPED:
                raise PickleRefused(self._why(name, argument))
        raise PickleRefused("it ends in the middle")

    def _push(self, container: object, items: Iterable[object]) -> None:
        self.stack.append(container)
        self.nodes[id(container)] = 1
        self._count(container, items)

    def _count(self, container: object, items: Iterable[object]) -> None:
        """Add the nodes of what is placed in a container."""
        number = 0
        for item in items:
            if isinstance(item, (list, dict, tuple)):
                number += self.nodes[id(item)]
                self.complete.add(id(item))
            else:
                number += 1
        self.nodes[id(container)] += number
        if self.nodes[id(container)] > NODES:
            raise PickleRefused("it uses the same values so often that they would fill the memory")

    def _again(self, value: object) -> object:
        if isinstance(value, (list, dict, tuple)):
            self.complete.add(id(value))
        return value

    def _filled(self, kind: type[Any], items: list[Any]) -> Any:
        """Return the container on top, which takes the items."""
        container = self.stack[-1]
        if type(container) is not kind:
            raise PickleRefused(f"damaged (no {kind.__name__} to fill)")
        if id(container) in self.complete:
            raise PickleRefused(f"it uses a {kind.__name__} before that is complete")
        self._count(container, items)
        return container

    def _top(self) -> object:
        if self.stack[-1] is _MARK:
            raise PickleRefused("damaged (a mark for a value)")
        return self.stack[-1]

    def _pop(self) -> object:
        self._top()
        return self.stack.pop()

    def _taken(self, number: int) -> list[Any]:
        return [self._pop() for _ in range(number)][::-1]

    def _marked(self) -> list[Any]:
        """Return the values above the last mark, removed from the stack."""
        stack = self.stack
        place = len(stack) - 1
        while stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise PickleRefused("damaged (no mark)")
        items = stack[place + 1 :]
        del stack[place:]
        return items

    def _why(self, name: str, argument: object) -> str:
        if name in _IMPORTS:
            # GLOBAL and INST carry "module name"; STACK_GLOBAL takes both from the stack
            parts = self.stack[-2:] if name == "STACK_GLOBAL" else str(argument).split(" ", 1)
            return "it tries to import " + clean(".".join(part for part in parts if isinstance(part, str)), 120)
        return f"it asks for {_FORBIDDEN.get(name, f'the operation {name}')}, which plain data never needs"


def _set(target: dict[str, Any], items: list[Any]) -> None:
    if len(items) % 2:
        raise PickleRefused("damaged (a key without a value)")
    for key, value in zip(items[::2], items[1::2], strict=True):
        # Other keys may be made to collide, or be too deep to be hashed.
        if type(key) is not str:
            raise PickleRefused(f"it has a key that is no text, but {type(key).__name__}")
        target[key] = value
