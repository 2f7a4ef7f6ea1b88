"""Silences: while one holds, alerts that match it are kept and not told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Model
from whystall.tools.contract.errors import ErrorCode, ToolError


class Silence(Model):
    """`matchers`: as they are written, all of which must hold. `starts`, `ends`: seconds since the epoch. `by`: who
    wanted it; `expired_by`: who ended it early.
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
        """What it is at `now`."""
        return "expired" if now >= self.ends else "pending" if now < self.starts else "active"


class Silences:
    """The silences in `file`."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def add(self, silence: Silence) -> Silence:
        """Store `silence`, numbered."""
        with self._file.write() as db:
            number = db.execute("INSERT INTO silences (ends, body) VALUES (?, '')", [silence.ends]).lastrowid
            return self._put(silence.model_copy(update={"id": str(number)}))

    def get(self, id: str) -> Silence:
        """The silence `id`; `ToolError` (not_found) when there is none."""
        number = int(id) if id.isascii() and id.isdigit() and len(id) < 16 else -1
        with self._file.read() as db:
            row = db.execute("SELECT body FROM silences WHERE id = ?", [number]).fetchone()
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"there is no silence {id!r}", "see `whystall silence list`")
        return self._file.record(Silence, row[0])

    def list(self, now: float | None = None, limit: int = 1000) -> Sequence[Silence]:
        """The silences that are not over at `now` (None: all), the youngest first."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT body FROM silences WHERE ? IS NULL OR ends > ? ORDER BY id DESC LIMIT ?", [now, now, limit]
            ).fetchall()
        return [self._file.record(Silence, row[0]) for row in rows]

    def expire(self, id: str, now: float, by: str) -> Silence:
        """End the silence `id` now; `ToolError`: not_found, bad_argument when it is over already."""
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
