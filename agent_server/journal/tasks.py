"""Background tasks, each done once even if processes crash.

A task is taken under a lease. It must be idempotent, since it may be started again; its completion is stored in the
transaction of its result. Tasks whose payload has the same ``conversation`` run in order: the caller of `take` passes
the `busy` ones.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.times import now as stamp

_NOT_BUSY = "coalesce(json_extract(payload, '$.conversation'), '') NOT IN (SELECT value FROM json_each(?))"
FARTHEST_S = 7200.0
"""Maximum delay of a task."""
TaskState = Literal["queued", "running", "done", "failed"]


class Task(BaseModel):
    """A task. `key`: deduplication key. `attempts`: starts, including the current one. `due`, `lease` (of the owner):
    seconds since the epoch.
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
    def __init__(self, file: Database) -> None:
        self._file = file

    def add(self, kind: str, key: str, payload: dict[str, Any], due: float = 0.0) -> int | None:
        """Queue a task for `due`; return its number, or None if `key` was queued before."""
        with self._file.write() as db:
            row = db.execute(
                "INSERT INTO tasks (kind, key, state, payload, result, attempts, due, owner, lease, created, updated)"
                " VALUES (?, ?, 'queued', ?, '', 0, ?, '', 0, ?, ?) ON CONFLICT (key) DO NOTHING RETURNING id",
                [kind, key, json.dumps(payload, ensure_ascii=False), due, stamp(), stamp()],
            ).fetchone()
        return None if row is None else int(row[0])

    def take(
        self, kinds: Sequence[str], owner: str, now: float, lease: float, busy: Collection[str] = ()
    ) -> Task | None:
        """Give the longest due task of `kinds` to `owner` until `now` + `lease` seconds; return it, or None if none is
        due.

        A task with an expired lease is given again; so is one whose lease is too far ahead, since the clock was set
        back. Tasks of the conversations `busy` are skipped.
        """
        with self._file.write() as db:
            row = db.execute(
                "UPDATE tasks SET state = 'running', attempts = attempts + 1, owner = ?, lease = ?, updated = ?"  # noqa: S608
                " WHERE id = (SELECT id FROM tasks WHERE kind IN (SELECT value FROM json_each(?))"
                " AND ((state = 'queued' AND due <= ?) OR (state = 'running' AND (lease <= ? OR lease > ?)))"
                f" AND {_NOT_BUSY} ORDER BY due, id LIMIT 1) RETURNING *",
                [owner, now + lease, stamp(), _listed(kinds), now, now, now + 2 * lease, _listed(busy)],
            ).fetchone()
        return None if row is None else _task(row)

    def release(self, owner_before: str, now: float) -> int:
        """Release all tasks of the dead `owner_before`; return their number."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE tasks SET state = 'queued', due = ?, owner = '', lease = 0"
                " WHERE state = 'running' AND owner = ?",
                [now, owner_before],
            ).rowcount

    def release_all(self, now: float) -> int:
        """Release all tasks; return their number. The caller is the only process that takes tasks. A task delayed for
        longer than `FARTHEST_S` dates from before the clock was set back, and is due.
        """
        with self._file.write() as db:
            return db.execute(
                "UPDATE tasks SET state = 'queued', due = min(due, ?), owner = '', lease = 0 WHERE state = 'running'"
                " OR (state = 'queued' AND due > ?)",
                [now, now + FARTHEST_S],
            ).rowcount

    def set_back(self, by: float, now: float) -> int:
        """Move due times back by `by` seconds, as the clock was, to `now`; return their number."""
        with self._file.write() as db:
            return db.execute("UPDATE tasks SET due = due - ? WHERE state = 'queued' AND due > ?", [by, now]).rowcount

    def give_back(self, id: int, owner: str) -> None:
        """Release task `id`, which `owner` was ordered to stop; the attempt is not counted."""
        with self._file.write() as db:
            db.execute(
                "UPDATE tasks SET state = 'queued', attempts = attempts - 1, owner = '', lease = 0"
                " WHERE id = ? AND state = 'running' AND owner = ?",
                [id, owner],
            )

    def done(self, id: int, result: str = "") -> None:
        """Record that task `id` is done. Call it in the transaction of its result."""
        self._end(id, "done", result)

    def failed(self, id: int, why: str) -> None:
        """Record that task `id` failed; `why` is for people."""
        self._end(id, "failed", why)

    def retry(self, id: int, due: float, why: str, *, counted: bool = True) -> None:
        """Retry task `id` at `due`; `counted`: as an attempt."""
        with self._file.write() as db:
            db.execute(
                "UPDATE tasks SET state = 'queued', due = ?, owner = '', lease = 0, result = ?, updated = ?,"
                " attempts = attempts - ? WHERE id = ?",
                [due, why, stamp(), int(not counted), id],
            )

    def get(self, id: int) -> Task | None:
        with self._file.read() as db:
            row = db.execute("SELECT * FROM tasks WHERE id = ?", [id]).fetchone()
        return None if row is None else _task(row)

    def by_key(self, key: str) -> Task | None:
        with self._file.read() as db:
            row = db.execute("SELECT * FROM tasks WHERE key = ?", [key]).fetchone()
        return None if row is None else _task(row)

    def next_due(self, kinds: Sequence[str], busy: Collection[str] = ()) -> float | None:
        """Return when the next task of `kinds` is due or its lease expires; None: there is none. `busy`: see `take`."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT min(CASE state WHEN 'queued' THEN due ELSE lease END) FROM tasks"  # noqa: S608
                " WHERE kind IN (SELECT value FROM json_each(?)) AND state IN ('queued', 'running')"
                f" AND {_NOT_BUSY}",
                [_listed(kinds), _listed(busy)],
            ).fetchone()
        return None if row[0] is None else float(row[0])

    def waiting(self, kind: str) -> int:
        """Return how many tasks of `kind` are queued."""
        with self._file.read() as db:
            row = db.execute("SELECT count(*) FROM tasks WHERE state = 'queued' AND kind = ?", [kind]).fetchone()
        return int(row[0])

    def ended(self, kind: str, since: str) -> list[Task]:
        """Return tasks of `kind` done at `since` (RFC 3339) or later, oldest first; at most 10,000."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT * FROM tasks WHERE state = 'done' AND kind = ? AND updated >= ? ORDER BY id DESC LIMIT 10000",
                [kind, since],
            ).fetchall()
        return [_task(row) for row in reversed(rows)]

    def forget(self, before: str) -> int:
        """Delete tasks that ended before `before` (RFC 3339), with their keys; return their number."""
        with self._file.write() as db:
            return db.execute("DELETE FROM tasks WHERE state IN ('done', 'failed') AND updated < ?", [before]).rowcount

    def _end(self, id: int, state: TaskState, result: str) -> None:
        with self._file.write() as db:
            db.execute(
                "UPDATE tasks SET state = ?, result = ?, owner = '', lease = 0, updated = ? WHERE id = ?",
                [state, result, stamp(), id],
            )


def _listed(words: Collection[str]) -> str:
    return json.dumps(list(words), ensure_ascii=False)


def _task(row: Sequence[Any]) -> Task:
    values = dict(zip(Task.model_fields, row, strict=True))  # the columns in their order
    return Task(**{**values, "payload": json.loads(values["payload"])})
