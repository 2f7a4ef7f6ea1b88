"""Calls of MCP tools that go on after they were answered with an id, by which the client fetches the result later."""

from __future__ import annotations

import json
import secrets
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.database import Database
from whystall.tools.contract.errors import ErrorCode, ToolError

ClientTaskState = Literal["working", "completed", "failed", "cancelled", "interrupted"]
TTL_S = 4 * 3600
"""How long a task can be fetched after its creation."""
RUNNING = 4
"""Maximum number of tasks of a client that run at the same time."""
STORED = 300
"""Maximum number of stored tasks of all clients. None is deleted before its time."""


class ClientTask(BaseModel):
    """A call of `tool`. Only `client` may see it. Times are seconds since the epoch.

    `server`: the server that runs it, see `mcp.presence`. `interrupted`: it stopped before the call ended; after it was
    killed the task is still stored as `working`.
    `step`: the latest progress in words; not stored. `outcome`: the result as ``CallToolResult`` if completed, the
    JSON-RPC error if failed, else None.
    """

    model_config = ConfigDict(extra="forbid")

    id: str
    client: str
    server: str
    tool: str
    state: ClientTaskState
    created: float
    updated: float
    outcome: dict[str, Any] | None = None
    step: str = ""


_COLUMNS = "id, client, server, tool, state, created, updated, outcome"


class ClientTasks:
    def __init__(self, file: Database) -> None:
        self._file = file

    def add(self, client: str, server: str, tool: str, now: float) -> ClientTask:
        """Store a new task under an id that cannot be guessed. Raises `ToolError` (busy) if there are too many."""
        id = secrets.token_hex(16)
        with self._file.write() as db:
            self.forget(now)
            if db.execute("SELECT count(*) FROM client_tasks").fetchone()[0] >= STORED:
                message = f"{STORED} results of earlier calls are stored"
                raise ToolError(ErrorCode.BUSY, message, f"each is deleted {TTL_S // 3600} hours after its call")
            running = "SELECT count(*) FROM client_tasks WHERE state = 'working' AND client = ? AND server = ?"
            if db.execute(running, [client, server]).fetchone()[0] >= RUNNING:
                raise ToolError(ErrorCode.BUSY, f"{RUNNING} calls are running already", "wait for one, or cancel it")
            db.execute(
                f"INSERT INTO client_tasks ({_COLUMNS}) VALUES (?, ?, ?, ?, 'working', ?, ?, 'null')",  # noqa: S608
                [id, client, server, tool, now, now],
            )
        return ClientTask(id=id, client=client, server=server, tool=tool, state="working", created=now, updated=now)

    def get(self, id: str, client: str, now: float) -> ClientTask | None:
        """Return task `id` if it belongs to `client` and has not expired."""
        with self._file.read() as db:
            row = db.execute(
                f"SELECT {_COLUMNS} FROM client_tasks WHERE id = ? AND client = ? AND created > ?",  # noqa: S608
                [id, client, now - TTL_S],
            ).fetchone()
        if row is None:
            return None
        values = dict(zip(_COLUMNS.split(", "), row, strict=True))
        return ClientTask(**values | {"outcome": json.loads(values["outcome"])})

    def end(self, task: ClientTask) -> None:
        """Store the final state and outcome of `task`."""
        with self._file.write() as db:
            db.execute(
                "UPDATE client_tasks SET state = ?, updated = ?, outcome = ? WHERE id = ?",
                [task.state, task.updated, json.dumps(task.outcome), task.id],
            )

    def forget(self, now: float) -> int:
        """Delete expired tasks; return their number."""
        with self._file.write() as db:
            return db.execute("DELETE FROM client_tasks WHERE created <= ?", [now - TTL_S]).rowcount
