"""Silences: alerts that match an active one are stored but not notified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Model
from whystall.tools.contract.errors import ErrorCode, ToolError


class Silence(Model):
    """`matchers`: as written, all of which must match. `starts`, `ends`: seconds since the epoch. `by`: who created it;
    `expired_by`: who ended it early.
    """

    id: str = ""
    matchers: list[str] = Field(min_length=1)
    starts: float
    ends: float
    by: str
    comment: str = ""
    created: float
    expired_by: str = ""

    def state(self, now: float) -> Literal["pending", "active", "expired"]:
        return "expired" if now >= self.ends else "pending" if now < self.starts else "active"


class Silences:
    def __init__(self, file: Database) -> None:
        self._file = file

    def add(self, silence: Silence) -> Silence:
        """Store `silence` and return it with its id."""
        with self._file.write() as db:
            number = db.execute("INSERT INTO silences (ends, body) VALUES (?, '')", [silence.ends]).lastrowid
            return self._put(silence.model_copy(update={"id": str(number)}))

    def get(self, id: str) -> Silence:
        """Return the silence `id`; raise `ToolError` (not_found) if there is none."""
        number = int(id) if id.isascii() and id.isdigit() and len(id) < 16 else -1
        with self._file.read() as db:
            row = db.execute("SELECT body FROM silences WHERE id = ?", [number]).fetchone()
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"there is no silence {id!r}", "see `whystall silence list`")
        return self._file.record(Silence, row[0])

    def list(self, now: float | None = None, limit: int = 1000) -> Sequence[Silence]:
        """Return the silences that end after `now` (None: all), newest first."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT body FROM silences WHERE ? IS NULL OR ends > ? ORDER BY id DESC LIMIT ?", [now, now, limit]
            ).fetchall()
        return [self._file.record(Silence, row[0]) for row in rows]

    def expire(self, id: str, now: float, by: str) -> Silence:
        """End the silence `id` now; raise `ToolError`: not_found, or bad_argument if it has ended."""
        with self._file.write():
            silence = self.get(id)
            if silence.state(now) == "expired":
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"silence {id} is over", "see `whystall silence list`")
            return self._put(silence.model_copy(update={"ends": now, "expired_by": by}))

    def _put(self, silence: Silence) -> Silence:
        with self._file.write() as db:
            db.execute(
                "UPDATE silences SET ends = ?, body = ? WHERE id = ?",
                [silence.ends, silence.model_dump_json(), int(silence.id)],
            )
        return silence
