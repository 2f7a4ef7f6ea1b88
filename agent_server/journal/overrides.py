"""Overrides of on-call schedules, made by people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.times import now as stamp
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean


class Override(BaseModel):
    """An exception from `schedule` between `begins` and `ends`: `add` is on call too, `remove` is not, or `add`
    replaces `remove` if both are given. With `only`, a temporary schedule of one shift, exactly those are on call, or
    no one. Later overrides take precedence.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: int
    schedule: str
    begins: AwareDatetime
    ends: AwareDatetime
    add: str = ""
    remove: str = ""
    only: tuple[str, ...] | None = None
    reason: str = ""
    by: str = ""
    at: str = Field(default="", description="when it was made, RFC 3339")

    @property
    def code(self) -> str:
        """Return the code that names it as the reason of a decision."""
        return f"override:{self.id}" if self.only is None else f"temporary:{self.id}"


class Overrides:
    def __init__(self, file: Database) -> None:
        self._file = file

    def put(
        self,
        schedule: str,
        begins: datetime,
        ends: datetime,
        *,
        add: str = "",
        remove: str = "",
        only: Sequence[str] | None = None,
        reason: str = "",
        by: str = "",
    ) -> Override:
        """Store an override; the caller validates the names."""
        fields: dict[str, Any] = {
            "schedule": schedule,
            "begins": begins,
            "ends": ends,
            "add": add,
            "remove": remove,
            "only": None if only is None else tuple(only),
            "reason": clean(reason, 500),
            "by": clean(by, 200),
            "at": stamp(),
        }
        with self._file.write() as db:
            number = db.execute(
                "INSERT INTO overrides (schedule, ends, body) VALUES (?, ?, '') RETURNING id",
                [schedule, ends.timestamp()],
            ).fetchone()[0]
            made = Override(id=int(number), **fields)
            self._store(db, made)
        return made

    def get(self, id: int) -> Override:
        """Return the override `id`; raise `ToolError` (not_found) if there is none."""
        with self._file.read() as db:
            row = db.execute("SELECT body FROM overrides WHERE id = ?", [id]).fetchone() if 0 < id < 2**62 else None
        if row is None:
            raise ToolError(ErrorCode.NOT_FOUND, f"there is no override {id}", "see `whystall oncall override list`")
        return self._file.record(Override, row[0])

    def end(self, id: int, now: datetime) -> Override:
        """End override `id` now, or delete it if it has not begun."""
        with self._file.write() as db:
            found = self.get(id)
            if found.ends <= now:
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"override {id} is over", "it needs no end")
            if found.begins >= now:
                db.execute("DELETE FROM overrides WHERE id = ?", [id])
                return found
            ended = found.model_copy(update={"ends": now})
            db.execute("UPDATE overrides SET ends = ? WHERE id = ?", [now.timestamp(), id])
            self._store(db, ended)
        return ended

    def all(self, after: datetime | None = None, schedule: str | None = None) -> list[Override]:
        """Return overrides in order of creation; `after`: only those that end later."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT body FROM overrides WHERE ends > ? AND (? IS NULL OR schedule = ?) ORDER BY id",
                [after.timestamp() if after else 0.0, schedule, schedule],
            ).fetchall()
        return [self._file.record(Override, row[0]) for row in rows]

    def _store(self, db: Any, override: Override) -> None:
        db.execute("UPDATE overrides SET body = ? WHERE id = ?", [override.model_dump_json(), override.id])
