"""Read a YAML file value by value, so that every error names its line and field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import yaml

from whystall.tools.contract.errors import ErrorCode, ToolError

FILE_LIMIT = 1 << 20  # bytes
_ITEMS = 20_000
"""Maximum values: with anchors (``&x``) a small file can expand to an enormous one."""
_DURATION = re.compile("".join(rf"(?:(\d{{1,9}}){unit})?" for unit in ("y", "w", "d", "h", "m", "s", "ms")), re.ASCII)
_SECONDS = (365 * 86_400.0, 7 * 86_400.0, 86_400.0, 3600.0, 60.0, 1.0, 0.001)


class Source:
    """The file's name and the number of values that may still be read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.left = _ITEMS


class Item:
    """One value of the file. Every method raises `ToolError` (bad_argument) on a value of another kind."""

    def __init__(self, node: yaml.Node, path: str, source: Source) -> None:
        self._node = node
        self.path = path
        self._source = source
        source.left -= 1
        if source.left < 0:
            self.fail(f"the file holds more than {_ITEMS} values")

    @property
    def line(self) -> int:
        """Return its line, from 1."""
        return int(self._node.start_mark.line) + 1

    def fail(self, message: str, remedy: str = "correct the file; `whystall route show` reads it") -> NoReturn:
        """Raise a `ToolError` that names file, line and field."""
        where = f"{self._source.name}:{self.line}: " + (f"{self.path}: " if self.path else "")
        raise ToolError(ErrorCode.BAD_ARGUMENT, where + message, remedy)

    def table(self, known: set[str] | None = None) -> dict[str, Item]:
        """Return its fields; reject those not in `known`, if given."""
        if not isinstance(self._node, yaml.MappingNode):
            self.fail("fields are expected here: `name: value`")
        found: dict[str, Item] = {}
        for key, value in self._node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            item = Item(value, f"{self.path}.{name}" if self.path else name, self._source)
            if known is not None and name not in known:
                Item(key, item.path, self._source).fail("no such field", f"valid: {', '.join(sorted(known))}")
            if name in found:
                Item(key, item.path, self._source).fail("it is given twice")
            found[name] = item
        return found

    def items(self) -> list[Item]:
        if not isinstance(self._node, yaml.SequenceNode):
            self.fail("a list is expected here: `- value`")
        return [Item(node, f"{self.path}[{n}]", self._source) for n, node in enumerate(self._node.value)]

    def text(self) -> str:
        """Return a text or number; a bare word that YAML reads as a boolean or null is an error."""
        if not isinstance(self._node, yaml.ScalarNode):
            self.fail("one value is expected here, not a list or fields")
        if self._node.tag in ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:null"):
            self.fail(f"YAML takes {self._node.value or 'nothing'!r} for {self._node.tag.split(':')[-1]}", "quote it")
        return str(self._node.value)

    def texts(self) -> tuple[str, ...]:
        return tuple(item.text() for item in self.items())

    def flag(self) -> bool:
        if not (isinstance(self._node, yaml.ScalarNode) and self._node.tag == "tag:yaml.org,2002:bool"):
            self.fail("true or false is expected here")
        return self._node.value.lower() in ("yes", "true", "on")

    def word(self, known: tuple[str, ...]) -> str:
        """Return its text, which must be one of `known`."""
        if (text := self.text()) not in known:
            self.fail(f"{text!r} is none of {', '.join(known)}")
        return text

    def seconds(self, zero: bool = True) -> float:
        """Return a duration such as ``1h30m`` (Prometheus' syntax) in seconds; 0 only if `zero`."""
        text = self.text()
        found = _DURATION.fullmatch(text)
        if text != "0" and (found is None or not any(found.groups())):
            self.fail(f"{text!r} is no duration: write 30s, 5m, 1h30m or 2d")
        total = sum(int(n) * s for n, s in zip(found.groups(), _SECONDS, strict=True) if n) if found else 0.0
        if total > 10 * _SECONDS[0]:
            self.fail("longer than ten years")
        if total == 0 and not zero:
            self.fail("it cannot be zero")
        return total


def read(path: Path) -> Item:
    """Read the file `path`; raises `ToolError` (bad_argument)."""
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_LIMIT + 1)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "set alerts.routes to a YAML file") from None
    if len(raw) > FILE_LIMIT:
        message = f"{path} is larger than {FILE_LIMIT} bytes"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "a routing tree is smaller")
    return parse(raw, str(path))


def parse(raw: bytes, name: str) -> Item:
    """Parse the content `raw` of a file; `name` is for error messages."""
    try:
        node = yaml.compose(raw.decode("utf-8"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name} is no UTF-8", "save it as UTF-8") from None
    except RecursionError:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name} is nested too deeply", "nest it less") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "no YAML"
        remedy = "correct the file; what holds brackets, braces or `: ` stands in quotes: '...'"
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}{line}: {problem}", remedy) from None
    if node is None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name} is empty", "it holds `route` and `receivers`")
    return Item(node, "", Source(name))
