"""The files of a first installation: settings, token, and the unit of the service. What exists is never overwritten."""

from __future__ import annotations

import json
import os
import secrets
import string
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whystall.agent_server.settings.load import model_faults, validate
from whystall.agent_server.settings.sources import RawSettings, config_path
from whystall.tools.contract.errors import ErrorCode, ToolError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_UNIT = Path("/etc/systemd/system/whystall.service")
_USERS = Path("/etc/sysusers.d/whystall.conf")
_PROGRAM_IN_UNIT = "/opt/whystall/bin/whystall"
_TOKEN_IN_UNIT = "/etc/whystall/token"  # noqa: S105 - a path
_PLAIN = {ord(char): None for char in f"{string.ascii_letters}{string.digits}/._+-"}


@dataclass(frozen=True)
class Choices:
    """What is wanted. `watch`: follow jobs beside the server; `names`: of the followed jobs, none: all that look like
    training or serving; `serve`: a token for HTTP; `unit`: a systemd service; `model_url`, `model`, `model_key_file`:
    of the language model, empty without one."""

    watch: bool = True
    names: tuple[str, ...] = ()
    serve: bool = True
    unit: bool = False
    model_url: str = ""
    model: str = ""
    model_key_file: str = ""


@dataclass(frozen=True)
class SetupFile:
    """A file to write, and for what: ``settings``, ``token``, ``unit`` or ``users``."""

    purpose: str
    path: Path
    content: str
    mode: int

    def write(self, root: Path = Path("/")) -> bool:
        """Write the file below `root`; return False if it exists already. Raises OSError."""
        path = root / self.path.relative_to("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self.mode)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(self.content)
        return True


def setup_files(choices: Choices, program: Path) -> list[SetupFile]:
    """Return the files for `choices`. `program`: the absolute path of ``whystall``.

    Raises `ToolError` (bad_argument): a choice is no valid setting.
    """
    settings = config_path()[0].absolute()
    text = settings_text(choices)
    raw = RawSettings(settings, tomllib.loads(text))
    if faults := [*validate(raw)[0], *model_faults(raw)]:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "; ".join(faults), "correct the answer and call again")
    found = [SetupFile("settings", settings, text, 0o644)]
    token = settings.with_name("token")
    if choices.serve or choices.unit:
        found.append(SetupFile("token", token, f"{secrets.token_hex(32)}\n", 0o600))
    if choices.unit:
        shipped = Path(__file__).parents[2] / "deploy"
        unit = (shipped / "whystall.service").read_text("utf-8")
        unit = unit.replace(_PROGRAM_IN_UNIT, _word(str(program))).replace(_TOKEN_IN_UNIT, _escaped(str(token)))
        found.append(SetupFile("unit", _UNIT, unit, 0o644))
        found.append(SetupFile("users", _USERS, (shipped / "whystall.sysusers.conf").read_text("utf-8"), 0o644))
    return found


def settings_text(choices: Choices) -> str:
    """Return the settings file for `choices`."""
    lines = ["# Written by `whystall setup`. `whystall config show` lists all settings with their values.", ""]
    lines += ["[watch]", f"on = {str(choices.watch).lower()}"]
    if choices.names:
        lines.append(f"names = {_list(choices.names)}")
    if choices.model_url or choices.model:
        lines += ["", "[llm]", f"base_url = {_text(choices.model_url)}", f"model = {_text(choices.model)}"]
        if choices.model_key_file:
            lines.append(f"api_key_file = {_text(choices.model_key_file)}")
    return "\n".join([*lines, ""])


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"


def _text(value: str) -> str:
    """Return a TOML string; the escapes of JSON are among those of TOML, but for DEL."""
    return json.dumps(value).replace("\x7f", "\\u007f")


def _word(path: str) -> str:
    """Return a word of ``ExecStart=`` (systemd.service(5), COMMAND LINES)."""
    text = _escaped(path).replace("$", "$$")
    return text if text.translate(_PLAIN) == "" else _text(text)


def _escaped(path: str) -> str:
    """Return a value of a unit without its specifiers (systemd.unit(5))."""
    return path.replace("%", "%%")
