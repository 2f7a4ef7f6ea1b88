"""What is looked at because somebody in a chat asked. A process is looked at once at a time: who asks meanwhile listens
to the same answer.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from whystall.knowledge_base.database import Database

InquiryState = Literal["running", "done", "failed", "cancelled"]
LISTENERS = 100
"""People who are told of one look."""


class Listener(BaseModel):
    """Who wants to know: the person, the place as `integrations.messages` has it, and the language."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sender: str
    place: dict[str, Any]
    lang: Literal["en", "zh"] = "en"

    def same(self, other: Listener) -> bool:
        """Whether it is the same person in the same conversation."""
        mine, theirs = self.place, other.place
        same_place = all(mine.get(name) == theirs.get(name) for name in ("channel", "conversation"))
        return same_place and self.sender == other.sender


class ObservationRequest(BaseModel):
    """One look. `process`: ``PID:START_TICKS``, or ``host``. `job`, `program`, `rank`: what is shown of it.
    `step`: what was last told of its progress.
    """

    model_config = ConfigDict(extra="forbid")

    id: int
    process: str
    state: InquiryState
    created: str
    pid: int | None = None
    rank: int | None = None
    job: str = ""
    program: str = ""
    symptom: str = ""
    step: str = ""
    listeners: list[Listener] = Field(default_factory=list)


class ObservationRequests:
    """The inquiries in `file`."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def join(self, wanted: ObservationRequest, listener: Listener) -> tuple[ObservationRequest, bool]:
        """The running inquiry into the process of `wanted`, to which `listener` now listens; and whether it is a new
        one.
        """
        with self._file.write() as db:
            row = db.execute(
                "SELECT * FROM inquiries WHERE process = ? AND state = 'running'", [wanted.process]
            ).fetchone()
            if row is not None:
                found = _inquiry(row)
                if not any(one.same(listener) for one in found.listeners) and len(found.listeners) < LISTENERS:
                    found.listeners.append(listener)
                    self._put(found)
                return found, False
            made = wanted.model_copy(update={"state": "running", "listeners": [listener]})
            number = db.execute(
                "INSERT INTO inquiries (process, state, created, body) VALUES (?, 'running', ?, ?) RETURNING id",
                [made.process, made.created, _body(made)],
            ).fetchone()[0]
            return made.model_copy(update={"id": int(number)}), True

    def get(self, id: int) -> ObservationRequest | None:
        """The inquiry `id`."""
        with self._file.read() as db:
            row = db.execute("SELECT * FROM inquiries WHERE id = ?", [id]).fetchone()
        return None if row is None else _inquiry(row)

    def running(self) -> list[ObservationRequest]:
        """All that run or wait to."""
        with self._file.read() as db:
            rows = db.execute("SELECT * FROM inquiries WHERE state = 'running' ORDER BY id").fetchall()
        return [_inquiry(row) for row in rows]

    def at(self, id: int, step: str) -> None:
        """It has come to `step`."""
        with self._file.write():
            found = self.get(id)
            if found is not None:
                self._put(found.model_copy(update={"step": step}))

    def leave(self, listener: Listener) -> list[ObservationRequest]:
        """`listener` no longer wants to know anything; the inquiries it listened to. Those that nobody listens to any
        more are cancelled.
        """
        left = []
        with self._file.write():
            for found in self.running():
                kept = [one for one in found.listeners if not one.same(listener)]
                if len(kept) < len(found.listeners):
                    state: InquiryState = "running" if kept else "cancelled"
                    changed = found.model_copy(update={"listeners": kept, "state": state})
                    self._put(changed)
                    left.append(changed)
        return left

    def end(self, id: int, state: InquiryState) -> None:
        """It is over."""
        with self._file.write():
            found = self.get(id)
            if found is not None:
                self._put(found.model_copy(update={"state": state}))

    def forget(self, before: str) -> int:
        """Forget what is over and was begun before `before` (RFC 3339); how much that was."""
        with self._file.write() as db:
            return db.execute("DELETE FROM inquiries WHERE state != 'running' AND created < ?", [before]).rowcount

    def _put(self, inquiry: ObservationRequest) -> None:
        with self._file.write() as db:
            db.execute(
                "UPDATE inquiries SET state = ?, body = ? WHERE id = ?", [inquiry.state, _body(inquiry), inquiry.id]
            )


_COLUMNS = ("id", "process", "state", "created")


def _body(inquiry: ObservationRequest) -> str:
    return json.dumps(inquiry.model_dump(mode="json", exclude=set(_COLUMNS)), ensure_ascii=False)


def _inquiry(row: Any) -> ObservationRequest:
    values = dict(zip((*_COLUMNS, "body"), row, strict=True))
    return ObservationRequest(**json.loads(values.pop("body")), **values)
