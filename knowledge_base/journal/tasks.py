"""Tasks of the background: each is done, also when whoever does it is killed and another begins again.

A task is taken under a lease. What it does must bear being begun twice; that it is done is stored in the same
transaction as what it made, so that it is never done twice.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.times import now as stamp

TaskState = Literal["queued", "running", "done", "failed"]


class Task(BaseModel):
    """One task. `key` says what is to be done: the same key is queued once. `attempts`: begun so often, this one
    included. `due` and `lease` (until when its owner has it) in seconds since the epoch.
    """

    model_config = ConfigDict(extra="forbid")

    id: int
    kind: str
    key: str
    state: TaskState
    payload: dict[str, Any]
    result: str
    attempts: int
    due: float
    owner: str
    lease: float
    created: str
    updated: str


class Tasks:
    """The queue in `file`."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def add(self, kind: str, key: str, payload: dict[str, Any], due: float = 0.0) -> int | None:
        """Queue a task for the time `due`; its number, or None where one of this `key` was queued before."""
        with self._file.write() as db:
            row = db.execute(
                "INSERT INTO tasks (kind, key, state, payload, result, attempts, due, owner, lease, created, updated)"
                " VALUES (?, ?, 'queued', ?, '', 0, ?, '', 0, ?, ?) ON CONFLICT (key) DO NOTHING RETURNING id",
                [kind, key, json.dumps(payload, ensure_ascii=False), due, stamp(), stamp()],
            ).fetchone()
        return None if row is None else int(row[0])

    def take(self, kinds: Sequence[str], owner: str, now: float, lease: float) -> Task | None:
        """The task of `kinds` that is due longest, given to `owner` until `now` + `lease` seconds; None: nothing is
        due. A task whose lease has run out is given again. So is one whose lease lies further ahead than any can: the
        clock was set back.
        """
        with self._file.write() as db:
            row = db.execute(
                "UPDATE tasks SET state = 'running', attempts = attempts + 1, owner = ?, lease = ?, updated = ?"
                " WHERE id = (SELECT id FROM tasks WHERE kind IN (SELECT value FROM json_each(?))"
                " AND ((state = 'queued' AND due <= ?) OR (state = 'running' AND (lease <= ? OR lease > ?)))"
                " ORDER BY due, id LIMIT 1) RETURNING *",
                [owner, now + lease, stamp(), json.dumps(list(kinds)), now, now, now + 2 * lease],
            ).fetchone()
        return None if row is None else _task(row)

    def release(self, owner_before: str, now: float) -> int:
        """Give back everything that `owner_before` had taken (it is gone); how much that was."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE tasks SET state = 'queued', due = ?, owner = '', lease = 0"
                " WHERE state = 'running' AND owner = ?",
                [now, owner_before],
            ).rowcount

    def done(self, id: int, result: str = "") -> None:
        """Task `id` is done. Call it in the transaction that stores what it made."""
        self._end(id, "done", result)

    def failed(self, id: int, why: str) -> None:
        """Task `id` cannot be done; `why` for people."""
        self._end(id, "failed", why)

    def again(self, id: int, due: float, why: str) -> None:
        """Task `id` is to be tried again at `due`."""
        with self._file.write() as db:
            db.execute(
                "UPDATE tasks SET state = 'queued', due = ?, owner = '', lease = 0, result = ?, updated = ?"
                " WHERE id = ?",
                [due, why, stamp(), id],
            )

    def get(self, id: int) -> Task | None:
        """The task `id`."""
        with self._file.read() as db:
            row = db.execute("SELECT * FROM tasks WHERE id = ?", [id]).fetchone()
        return None if row is None else _task(row)

    def by_key(self, key: str) -> Task | None:
        """The task that was queued as `key`."""
        with self._file.read() as db:
            row = db.execute("SELECT * FROM tasks WHERE key = ?", [key]).fetchone()
        return None if row is None else _task(row)

    def next_due(self, kinds: Sequence[str]) -> float | None:
        """When the next task of `kinds` is due or its lease runs out; None: there is none."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT min(CASE state WHEN 'queued' THEN due ELSE lease END) FROM tasks"
                " WHERE kind IN (SELECT value FROM json_each(?)) AND state IN ('queued', 'running')",
                [json.dumps(list(kinds))],
            ).fetchone()
        return None if row[0] is None else float(row[0])

    def _end(self, id: int, state: TaskState, result: str) -> None:
        with self._file.write() as db:
            db.execute(
                "UPDATE tasks SET state = ?, result = ?, owner = '', lease = 0, updated = ? WHERE id = ?",
                [state, result, stamp(), id],
            )


def _task(row: Sequence[Any]) -> Task:
    values = dict(zip(Task.model_fields, row, strict=True))  # the columns in their order
    return Task(**{**values, "payload": json.loads(values["payload"])})
