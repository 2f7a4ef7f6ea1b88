"""Input of the commands of ``whystall kb``: the user, and cards in files."""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
import yaml
from pydantic import ValidationError

from whystall.knowledge_base.models import Incident
from whystall.tools.contract.errors import ErrorCode, ToolError

_LIMIT = 1 << 20  # bytes of an incident's file

ByOption = Annotated[
    Optional[str],  # noqa: UP045  typer reads this at run time, also on Python 3.10
    typer.Option("--by", metavar="NAME", help="who answers for it (the user who is logged in)"),
]


def who(by: str | None) -> str:
    """Return the name given, else that of the user behind this process, before it became root."""
    if by is not None and by.strip():
        return by.strip()
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return f"uid {os.getuid()}"


def read_incident(file: str) -> Incident:
    """Read the incident in `file` (``-``: standard input). Raises `ToolError` (io_error, bad_argument)."""
    try:
        return Incident.model_validate(read_document(file))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _no_card(file, f"{'.'.join(map(str, first['loc'])) or 'document'}: {first['msg']}") from None


def read_document(file: str) -> Any:
    """Read the JSON or YAML in `file` (``-``: standard input). Raises `ToolError` (io_error, bad_argument)."""
    try:
        if file == "-":
            raw = sys.stdin.buffer.read(_LIMIT + 1)
        else:
            with Path(file).open("rb") as stream:
                raw = stream.read(_LIMIT + 1)
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise ToolError(ErrorCode.IO_ERROR, message, "give a readable file, or -") from None
    if len(raw) > _LIMIT:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{file} is larger than {_LIMIT} bytes", "give one incident")
    try:
        return yaml.safe_load(raw.decode("utf-8"))  # JSON is read as YAML, which contains it
    except UnicodeDecodeError:
        fault = "it is not UTF-8"
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        fault = " ".join(str(error).split())
    raise _no_card(file, fault)


def _no_card(file: str, fault: str) -> ToolError:
    return ToolError(
        ErrorCode.BAD_ARGUMENT, f"{file} is no incident: {fault}", "`whystall kb show ID --json` shows the shape"
    )
