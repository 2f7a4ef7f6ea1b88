"""Where settings come from: one TOML file, and variables ``WHYSTALL_<SECTION>__<FIELD>`` over it. No ``.env``: who
starts us in a directory that others write to shall not be sent to their servers.
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whystall.tools.contract.errors import ErrorCode, ToolError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATH_VARIABLE = "WHYSTALL_CONFIG"
PREFIX = "WHYSTALL_"
SEPARATOR = "__"
_LIMIT = 1_048_576  # bytes of the file
_DEPTH = 8  # tables within tables that a variable may name
_CORRECT = "correct it; `whystall config check` looks at all of it"

Place = tuple[str, ...]
"""A field: its tables and its name."""


@dataclass(frozen=True)
class Given:
    """What was given: `values` of the file with the variables laid over them; `variables` which variable set which
    place. `path`: the file; None where there is none.
    """

    path: Path | None
    values: dict[str, Any]
    variables: Mapping[Place, str] = field(default_factory=dict)

    def origin(self, place: Place) -> str:
        """The variable that set `place` or the table around it; else the file."""
        for end in range(len(place), 0, -1):
            if place[:end] in self.variables:
                return self.variables[place[:end]]
        return str(self.path) if self.path else "environment"


def config_path() -> tuple[Path, bool]:
    """The settings file, and whether it was asked for (then it has to be there): ``WHYSTALL_CONFIG``, else
    ``/etc/whystall/whystall.toml`` for root, else ``$XDG_CONFIG_HOME/whystall/whystall.toml``
    (``~/.config/whystall/whystall.toml``).
    """
    chosen = os.environ.get(PATH_VARIABLE)
    if chosen:
        return Path(chosen), True
    if os.geteuid() == 0:
        return Path("/etc/whystall/whystall.toml"), False
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "whystall/whystall.toml", False


def given(sections: frozenset[str]) -> Given:
    """What file and environment say. `sections`: all that there are, to tell a variable that is ours from another's.

    Raises `ToolError` (bad_argument): no such file where one was asked for, one that others may write, no TOML, too
    long; a variable of an unknown section.
    """
    path, asked = config_path()
    found = _of_file(path)
    if found is None and asked:
        raise _missing(path)
    values = found or {}
    set_by: dict[Place, str] = {}
    for variable, place, text in _variables(sections):
        set_by[_lay(values, place, _value(text), variable)] = variable
    return Given(path if found is not None else None, values, set_by)


def table(section: str) -> dict[str, Any]:
    """What file and environment say in the table `section` alone, unchecked; empty where that is nothing.

    For what is read on its own, so that it does not depend on the rest. Raises `ToolError` as `given` does.
    """
    path, asked = config_path()
    found = _of_file(path)
    if found is None and asked:
        raise _missing(path)
    values = {section: (found or {}).get(section, {})}
    if not isinstance(values[section], dict):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path}: {section} is no table", f"write [{section}]")
    for variable, place, text in _variables(frozenset({section}), others=True):
        _lay(values, place, _value(text), variable)
    return dict(values[section])


def _of_file(path: Path) -> dict[str, Any] | None:
    raw = _read(path)
    if raw is None:
        return None
    try:
        values: dict[str, Any] = tomllib.loads(raw.decode("utf-8-sig"))
        return values
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path}: line {line} is not UTF-8", "save it as UTF-8") from None
    except RecursionError:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path}: too many lists within lists", _CORRECT) from None
    except (tomllib.TOMLDecodeError, ValueError) as error:  # a number or date that Python does not take is a ValueError
        message = f"{path}: no TOML: {_lower(str(error))}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, _hint(raw, str(error))) from None


def _hint(raw: bytes, message: str) -> str:
    """What is to be done about a line that is no TOML: the slips of keyboards and editors are named."""
    found = re.search(r"\(at line (\d+), column \d+\)", message)
    lines = raw.decode("utf-8-sig", "replace").splitlines()
    line = lines[int(found[1]) - 1] if found is not None and int(found[1]) <= len(lines) else ""
    bare = re.sub(r'"[^"]*"|#.*', "", line)
    if odd := re.findall("[“”‘’„＝：，［］｛｝＂＇　\u00a0]", bare):
        return f'that line holds {odd[0]!r}: write plain " = , [ ] {{ }}'
    if re.search(r"[^\x00-\x7f]", bare):
        return 'names of tables and settings are A to Z, digits, _ and -; how people are called stands in name = "..."'
    if re.match(r"\s*[\w-]+\s*:", bare):
        return "write NAME = VALUE, with = in place of :"
    return "correct that line; text stands in quotes" if "value" in message or "\\n" in message else "correct that line"


def _read(path: Path) -> bytes | None:
    """What the file holds; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    try:
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path} is no regular file", "give a file")
            if status.st_mode & stat.S_IWOTH:  # it says where tickets and messages go
                message = f"everybody may write {path} (mode {stat.S_IMODE(status.st_mode):04o})"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"chmod o-w {path}")
            raw = file.read(_LIMIT + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(raw) > _LIMIT:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path} is too long for settings", f"at most {_LIMIT} bytes are read")
    return raw


def _missing(path: Path) -> ToolError:
    message = f"{PATH_VARIABLE}: there is no file {path}"
    return ToolError(ErrorCode.BAD_ARGUMENT, message, "correct it, or unset the variable")


def _unreadable(path: Path, error: OSError | ValueError) -> ToolError:
    why = error.strerror if isinstance(error, OSError) else "no path"
    return ToolError(ErrorCode.BAD_ARGUMENT, f"cannot read {path}: {why}", f"let us read it, or set {PATH_VARIABLE}")


def _variables(sections: frozenset[str], others: bool = False) -> Iterator[tuple[str, Place, str]]:
    """Variables that set something: name, place and value; empty ones do not count. `others`: there are more sections
    than these.
    """
    for name in sorted(os.environ):
        section, separator, rest = name[len(PREFIX) :].partition(SEPARATOR)
        if not name.startswith(PREFIX) or not separator or not os.environ[name]:
            continue
        if section.lower() not in sections and others:
            continue
        if section.lower() not in sections:
            valid = ", ".join(f"{PREFIX}{each.upper()}{SEPARATOR}..." for each in sorted(sections))
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: there is no section {section.lower()!r}", valid)
        place = (section.lower(), *rest.split(SEPARATOR))
        if not all(place) or len(place) > _DEPTH:
            message = f"{name}: no name of a setting"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"write {PREFIX}SECTION{SEPARATOR}FIELD")
        yield name, place, os.environ[name]


def _value(text: str) -> Any:
    """Lists and tables are JSON; everything else is taken as text, from which numbers and the like are made."""
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _lay(values: dict[str, Any], place: Place, value: Any, variable: str) -> Place:
    """Put `value` at `place`; the place as the file spells it."""
    spelled: list[str] = []
    for part in place[:-1]:
        key = _spelled(values, part)
        spelled.append(key)
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            message = f"{variable}: {'.'.join(spelled)} is no table"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"set {_name(tuple(spelled))} as a whole, as JSON")
        values = inner
    key = _spelled(values, place[-1])
    values[key] = value
    return (*spelled, key)


def _spelled(values: Mapping[str, Any], part: str) -> str:
    """`part` of a variable's name as the table has it: variables are in capitals and hold neither - nor a dot."""
    wanted = _plain(part)
    return next((key for key in values if _plain(key) == wanted), part.lower())


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _name(place: Place) -> str:
    return PREFIX + SEPARATOR.join(_plain(part).upper() for part in place)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
