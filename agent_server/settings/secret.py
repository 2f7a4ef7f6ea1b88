"""Secrets: in a file of their own or an environment variable, never in the settings themselves."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from whystall.agent_server.settings.paths import Located
from whystall.tools.contract.errors import ErrorCode, ToolError

_LIMIT = 16_384  # bytes; the longest kind is a key in PEM


class Secret(BaseModel):
    """The location of a secret: ``{file = "/etc/whystall/token"}`` (mode 0600; relative to the settings file) or
    ``{env = "GITLAB_TOKEN"}``; exactly one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    file: Located | None = None
    env: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_plain_secret(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError('a secret does not belong in the settings: write {file = "PATH"} or {env = "NAME"}')
        return value

    @model_validator(mode="after")
    def _one_place(self) -> Secret:
        if (self.file is None) == (self.env is None):
            raise ValueError("give one of file and env")
        return self

    def read(self, name: str) -> str:
        """Read the secret, stripped. Not cached, so that it can change while we run.

        `name`: of the setting, for errors. Raises `ToolError` (bad_argument), which never holds the secret: it is
        missing, empty, too long, or others may read the file.
        """
        if self.env is not None:
            value = os.environ.get(self.env, "").strip()
            if not value:
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: the variable {self.env} is not set", "set it")
            return _printable(name, value)
        assert self.file is not None  # noqa: S101 - `_one_place`
        return _printable(name, _of_file(name, self.file))


def _of_file(name: str, path: Path) -> str:
    raw = read_private(name, path, _LIMIT + 1)
    if len(raw) > _LIMIT:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: {path} is too long for a secret", "store the secret alone")
    return raw.decode("utf-8", "replace").strip()


def read_private(name: str, path: Path, limit: int, code: ErrorCode = ErrorCode.BAD_ARGUMENT) -> bytes:
    """Return the first `limit` bytes of the regular file `path`, which only its owner may read.

    `name`: of the setting, for errors. Raises `ToolError` of `code` if there is no such file, or others may read it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ToolError(code, f"{name}: {path} is no regular file", "give a file")
            if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                message = f"{name}: others may read {path} (mode {stat.S_IMODE(status.st_mode):04o})"
                raise ToolError(code, message, f"chmod 600 {path}")
            return file.read(limit)
    except OSError as error:
        message = f"{name}: cannot read {path}: {error.strerror}"
        raise ToolError(code, message, "give a file that you can read") from None


def _printable(name: str, value: str) -> str:
    if not value or not value.isprintable():
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name}: not one printable line", "store it alone")
    return value
