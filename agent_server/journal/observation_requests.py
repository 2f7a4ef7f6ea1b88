"""Observations requested in chats. A process is observed once at a time; further requesters become listeners."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from whystall.knowledge_base.database import Database

RequestState = Literal["running", "done", "failed", "cancelled"]
LISTENERS = 100
"""Maximum number of listeners of an observation."""


class Listener(BaseModel):
    """A person to notify of the result: sender, place (see `chat.wire`) and language."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sender: str
    place: dict[str, Any]
    lang: Literal["en", "zh"] = "en"

    def same(self, other: Listener) -> bool:
        """Return whether it is the same person in the same conversation."""
        own, others = self.place, other.place
        same_place = all(own.get(name) == others.get(name) for name in ("channel", "conversation"))
        return same_place and self.sender == other.sender


class ObservationRequest(BaseModel):
    """A requested observation. `process`: ``PID:START_TICKS``, or ``host``. `job`, `program`, `rank`: shown to people.
    `step`: the latest reported progress.
    """

    model_config = ConfigDict(extra="forbid")

    id: int
    process: str
    state: RequestState
    created: str
    pid: int | None = None
    rank: int | None = None
    job: str = ""
    program: str = ""
    symptom: str = ""
    step: str = ""
    listeners: list[Listener] = Field(default_factory=list)


class ObservationRequests:
    def __init__(self, file: Database) -> None:
        self._file = file

    def join(self, wanted: ObservationRequest, listener: Listener) -> tuple[ObservationRequest, bool]:
        """Add `listener` to the running observation of the process of `wanted`, or create one; return it and whether it
        is new.
        """
        with self._file.write() as db:
            row = db.execute(
                "SELECT * FROM inquiries WHERE process = ? AND state = 'running'", [wanted.process]
            ).fetchone()
            if row is not None:
                found = _request(row)
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
        with self._file.read() as db:
            row = db.execute("SELECT * FROM inquiries WHERE id = ?", [id]).fetchone()
        return None if row is None else _request(row)

    def running(self) -> list[ObservationRequest]:
        """Return all running or queued ones."""
        with self._file.read() as db:
            rows = db.execute("SELECT * FROM inquiries WHERE state = 'running' ORDER BY id").fetchall()
        return [_request(row) for row in rows]

    def set_step(self, id: int, step: str) -> None:
        """Store the progress of observation `id`."""
        with self._file.write():
            found = self.get(id)
            if found is not None:
                self._put(found.model_copy(update={"step": step}))

    def leave(self, listener: Listener) -> list[ObservationRequest]:
        """Remove `listener` everywhere; return the observations that it left. Those without listeners are cancelled."""
        left = []
        with self._file.write():
            for found in self.running():
                kept = [one for one in found.listeners if not one.same(listener)]
                if len(kept) < len(found.listeners):
                    state: RequestState = "running" if kept else "cancelled"
                    changed = found.model_copy(update={"listeners": kept, "state": state})
                    self._put(changed)
                    left.append(changed)
        return left

    def end(self, id: int, state: RequestState) -> None:
        with self._file.write():
            found = self.get(id)
            if found is not None:
                self._put(found.model_copy(update={"state": state}))

    def forget(self, before: str) -> int:
        """Delete ended observations created before `before` (RFC 3339); return their number."""
        with self._file.write() as db:
            return db.execute("DELETE FROM inquiries WHERE state != 'running' AND created < ?", [before]).rowcount

    def _put(self, request: ObservationRequest) -> None:
        with self._file.write() as db:
            db.execute(
                "UPDATE inquiries SET state = ?, body = ? WHERE id = ?", [request.state, _body(request), request.id]
            )


_COLUMNS = ("id", "process", "state", "created")


def _body(request: ObservationRequest) -> str:
    return json.dumps(request.model_dump(mode="json", exclude=set(_COLUMNS)), ensure_ascii=False)


def _request(row: Any) -> ObservationRequest:
    values = dict(zip((*_COLUMNS, "body"), row, strict=True))
    return ObservationRequest(**json.loads(values.pop("body")), **values)
