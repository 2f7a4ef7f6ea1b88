"""Which MCP servers live: each locks an empty file of its own beside the database until it ends, however it ends."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from whystall.agent_server.worker.lock import take_lock
from whystall.tools.contract.errors import ToolError


class Presence:
    """A server that lives until `close`. `id`: unique, also among servers of one process."""

    def __init__(self, database: Path) -> None:
        """Raises `ToolError` (io_error)."""
        self._database = database
        while True:
            self.id = secrets.token_hex(8)
            path = _path(database, self.id)
            descriptor = take_lock(path)
            # Another server may have removed the file, as one of a killed server, before it was locked.
            if descriptor is not None and _same(path, descriptor):
                self._descriptor = descriptor
                break
            if descriptor is not None:
                os.close(descriptor)
        prefix = _path(database, "").name
        for other in database.parent.glob(f"{prefix}*"):
            if not alive(database, other.name.removeprefix(prefix)):
                _remove(other)

    def close(self) -> None:
        """End; what `id` still runs counts as interrupted."""
        _remove(_path(self._database, self.id))
        os.close(self._descriptor)


def alive(database: Path, id: str) -> bool:
    """Return whether the server `id` lives; True if that cannot be found out."""
    path = _path(database, id)
    try:
        if not path.exists():
            return False
        descriptor = take_lock(path)
    except (OSError, ToolError):
        return True
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


def _path(database: Path, id: str) -> Path:
    return database.with_name(f"{database.name}.mcp-{id}")


def _remove(path: Path) -> None:
    with suppress(OSError):  # a leftover does no harm
        path.unlink()


def _same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
