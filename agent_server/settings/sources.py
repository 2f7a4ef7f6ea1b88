"""Read the settings from one TOML file and, over it, variables ``WHYSTALL_<SECTION>__<FIELD>``.

Variables of the language model may also be written ``WHYSTALL_LLM_<FIELD>``, which has precedence. No ``.env`` is read:
the current directory may belong to another user, who could redirect us to their servers.
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
LLM_PREFIX = "WHYSTALL_LLM_"
"""Short form of the variables of the section ``llm``."""
_LIMIT = 1_048_576  # bytes of the file
_DEPTH = 8  # tables within tables that a variable may name
_CORRECT = "correct it; `whystall config check` checks all of it"

Key = tuple[str, ...]
"""A setting: its tables and its name."""


@dataclass(frozen=True)
class RawSettings:
    """Settings before validation: `values` of the file overridden by variables; `variables`: the variable that set each
    key; `path`: the file, None if there is none.
    """

    path: Path | None
    values: dict[str, Any]
    variables: Mapping[Key, str] = field(default_factory=dict)

    def origin(self, key: Key) -> str:
        """Return the variable that set `key` or a table around it; else the file, or ``environment``."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.variables:
                return self.variables[key[:end]]
        return str(self.path) if self.path else "environment"


def config_path() -> tuple[Path, bool]:
    """Return the path of the settings file, and whether ``WHYSTALL_CONFIG`` names it, so that it must exist.

    Otherwise it is ``/etc/whystall/whystall.toml`` for root, else ``$XDG_CONFIG_HOME/whystall/whystall.toml``
    (``~/.config/whystall/whystall.toml``).
    """
    chosen = os.environ.get(PATH_VARIABLE)
    if chosen:
        return Path(chosen), True
    if os.geteuid() == 0:
        return Path("/etc/whystall/whystall.toml"), False
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "whystall/whystall.toml", False


def read_settings(sections: frozenset[str]) -> RawSettings:
    """Return file and variables, unvalidated. `sections`: the names of all sections.

    Raises `ToolError` (bad_argument): the named file is missing, others may write it, no TOML, too long; a variable of
    an unknown section.
    """
    path, values = _file()
    return _with_variables(path, values or {}, values is not None, _variables(sections))


def read_section(section: str) -> RawSettings:
    """Return one section, unvalidated and independent of all others; ``values[section]`` is empty if nothing is set.

    Raises `ToolError` as `read_settings` does.
    """
    path, values = _file()
    table = (values or {}).get(section, {})
    if not isinstance(table, dict):
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path}: {section} is no table", f"write [{section}]")
    variables = _variables(frozenset({section}), others=True)
    return _with_variables(path, {section: table}, values is not None, variables)


def _file() -> tuple[Path, dict[str, Any] | None]:
    """Return the path of the settings file, and its content."""
    path, required = config_path()
    values = _of_file(path)
    if values is None and required:
        message = f"{PATH_VARIABLE}: there is no file {path}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "correct it, or unset the variable")
    return path, values


def _with_variables(
    path: Path, values: dict[str, Any], exists: bool, variables: Iterator[tuple[str, Key, Any]]
) -> RawSettings:
    set_by: dict[Key, str] = {}
    for variable, key, value in variables:
        set_by[_set(values, key, value, variable)] = variable
    return RawSettings(path if exists else None, values, set_by)


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
    """Return the remedy for a line that is no TOML: names common slips, such as typographic quotes."""
    found = re.search(r"\(at line (\d+), column \d+\)", message)
    lines = raw.decode("utf-8-sig", "replace").splitlines()
    line = lines[int(found[1]) - 1] if found is not None and int(found[1]) <= len(lines) else ""
    bare = re.sub(r'"[^"]*"|#.*', "", line)
    if odd := re.findall("[“”‘’„＝：，［］｛｝＂＇　\u00a0]", bare):
        return f'that line holds {odd[0]!r}: write plain " = , [ ] {{ }}'
    if re.search(r"[^\x00-\x7f]", bare):
        return 'names of tables and settings are A to Z, digits, _ and -; write the names of people in name = "..."'
    if re.match(r"\s*[\w-]+\s*:", bare):
        return "write NAME = VALUE, with = in place of :"
    return "correct that line; write text in quotes" if "value" in message or "\\n" in message else "correct that line"


def _read(path: Path) -> bytes | None:
    """Return the content of the file; None if it does not exist."""
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
            if status.st_mode & stat.S_IWOTH:  # it decides where tickets and messages go
                message = f"all users may write {path} (mode {stat.S_IMODE(status.st_mode):04o})"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"chmod o-w {path}")
            raw = file.read(_LIMIT + 1)
    except OSError as error:
        raise _unreadable(path, error) from None
    if len(raw) > _LIMIT:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{path} is too long for settings", f"at most {_LIMIT} bytes are read")
    return raw


def _unreadable(path: Path, error: OSError | ValueError) -> ToolError:
    why = error.strerror if isinstance(error, OSError) else "no path"
    return ToolError(ErrorCode.BAD_ARGUMENT, f"cannot read {path}: {why}", f"make it readable, or set {PATH_VARIABLE}")


def _variables(sections: frozenset[str], others: bool = False) -> Iterator[tuple[str, Key, Any]]:
    """Yield (variable, key, value) for each non-empty variable of `sections`, later ones over earlier ones.

    A variable of another section is an error, unless `others` exist.
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
        key = (section.lower(), *rest.split(SEPARATOR))
        if not all(key) or len(key) > _DEPTH:
            message = f"{name}: no name of a setting"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"write {PREFIX}SECTION{SEPARATOR}FIELD")
        yield name, key, _value(os.environ[name])
    if "llm" in sections:
        yield from _llm_variables()


def _llm_variables() -> Iterator[tuple[str, Key, Any]]:
    """Yield variables in the short form. The API key becomes a reference to its variable, as secrets are written."""
    for name, value in sorted(os.environ.items()):
        field = name.upper().removeprefix(LLM_PREFIX).lower()
        if value and name.upper().startswith(LLM_PREFIX) and field and not field.startswith("_"):
            yield name, ("llm", field), {"env": name} if field == "api_key" else value


def _value(text: str) -> Any:
    """Parse lists and tables as JSON; validation converts other texts."""
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


def _set(values: dict[str, Any], key: Key, value: Any, variable: str) -> Key:
    """Set `key` in `values`, and return it as the file spells it."""
    spelled: list[str] = []
    for part in key[:-1]:
        name = _spelled(values, part)
        spelled.append(name)
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            message = f"{variable}: {'.'.join(spelled)} is no table"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"set {_variable(tuple(spelled))} as a whole, as JSON")
        values = inner
    name = _spelled(values, key[-1])
    values[name] = value
    return (*spelled, name)


def _spelled(values: Mapping[str, Any], part: str) -> str:
    """Return the name in `values` that `part` of a variable stands for: variables have no small letters, - or dots."""
    wanted = _plain(part)
    return next((name for name in values if _plain(name) == wanted), part.lower())


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _variable(key: Key) -> str:
    return PREFIX + SEPARATOR.join(_plain(part).upper() for part in key)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
