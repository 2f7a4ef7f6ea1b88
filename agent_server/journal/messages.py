"""What is to be said in chats. A message is kept until its vendor has taken it; within a conversation one comes after
the other, in the order in which they were put.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.times import now as stamp

MessageState = Literal["queued", "sending", "sent", "failed"]

FARTHEST = 7200.0
"""Seconds: no message is put off for longer. One that seems to be was put off before the clock was set back."""

# What comes first in each conversation: only what waits is looked at, however much was said before.
_FIRST = (
    "n IN (SELECT min(n) FROM messages WHERE state IN ('queued', 'sending')"
    " AND (:channel IS NULL OR channel = :channel) GROUP BY channel, conversation)"
)
# Ready: its time has come, or whoever took it has lost it. The few of `_FIRST` are looked up, not searched for (+).
_TAKE = (
    "UPDATE messages SET state = 'sending', attempts = attempts + 1, lease = :until WHERE n = ("  # noqa: S608 - our own words
    "SELECT n FROM messages WHERE " + _FIRST + " AND ((+state = 'queued' AND (due <= :now OR due > :far))"
    " OR (+state = 'sending' AND (lease <= :now OR lease > :long))) ORDER BY due, n LIMIT 1) RETURNING *"
)
_NEXT = "SELECT min(CASE state WHEN 'queued' THEN due ELSE lease END) FROM messages WHERE " + _FIRST  # noqa: S608


class Message(BaseModel):
    """One message. `channel` is the chat's name in the settings, `conversation` a vendor's group or person. `place` and
    `message` are types of `integrations.messages`. `attempts`: begun so often, this one included. `due`, `lease`
    (until when whoever took it has it): seconds since the epoch. `error`: what went wrong last. `created`: RFC 3339.
    """

    model_config = ConfigDict(extra="forbid")

    n: int
    key: str
    channel: str
    conversation: str
    state: MessageState
    place: dict[str, Any]
    message: dict[str, Any]
    attempts: int
    due: float
    lease: float
    error: str
    created: str


class Messages:
    """The queue in `file`."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def put(
        self, key: str, channel: str, place: Mapping[str, Any], message: Mapping[str, Any], due: float = 0.0
    ) -> int | None:
        """Queue a message for the time `due`; its number, or None where one of this `key` was put before.

        `place`: as JSON; its ``conversation`` says which others it comes after. Call it in the transaction that stores
        what the message tells.
        """
        body = json.dumps({"place": dict(place), "message": dict(message)}, ensure_ascii=False)
        conversation = str(place.get("conversation", ""))
        with self._file.write() as db:
            row = db.execute(
                "INSERT INTO messages (key, channel, conversation, state, body, attempts, due, lease, error, created)"
                " VALUES (?, ?, ?, 'queued', ?, 0, ?, 0, '', ?) ON CONFLICT (key) DO NOTHING RETURNING n",
                [key, channel, conversation, body, due, stamp()],
            ).fetchone()
        return None if row is None else int(row[0])

    def take(self, now: float, lease: float, channel: str | None = None) -> Message | None:
        """The message, of `channel` or of any, that is due longest, the caller's until `now` + `lease` seconds; None:
        nothing can be sent.

        A message is not taken while an earlier one of its conversation is not sent. One whose lease has run out is
        taken again: it may have been sent already.
        """
        values = {"now": now, "far": now + FARTHEST, "long": now + 2 * lease, "channel": channel}
        with self._file.write() as db:
            row = db.execute(_TAKE, {**values, "until": now + lease}).fetchone()
        return None if row is None else _message(row)

    def sent(self, n: int) -> None:
        """Message `n` was taken by its vendor."""
        self._end(n, "sent", "")

    def again(self, n: int, due: float, why: str) -> None:
        """Message `n` is to be tried again at `due`; `why`: what went wrong."""
        with self._file.write() as db:
            db.execute("UPDATE messages SET state = 'queued', due = ?, lease = 0, error = ? WHERE n = ?", [due, why, n])

    def put_off(self, n: int, due: float) -> None:
        """Message `n` was not tried, and is to be at `due`: the attempt is not counted."""
        with self._file.write() as db:
            db.execute(
                "UPDATE messages SET state = 'queued', due = ?, lease = 0, attempts = attempts - 1 WHERE n = ?",
                [due, n],
            )

    def failed(self, n: int, why: str) -> None:
        """Message `n` cannot be said; the next one of its conversation is no longer held up."""
        self._end(n, "failed", why)

    def release(self, now: float) -> int:
        """Give back all that were taken: whoever took them is gone. How many that were."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE messages SET state = 'queued', due = ?, lease = 0 WHERE state = 'sending'", [now]
            ).rowcount

    def set_back(self, by: float, now: float) -> int:
        """The clock was set back by so many seconds, to `now`: so is what is put off. How many that were."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE messages SET due = due - ? WHERE state = 'queued' AND due > ?", [by, now]
            ).rowcount

    def waiting(self) -> Sequence[str]:
        """The channels for which messages wait."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT DISTINCT channel FROM messages WHERE state IN ('queued', 'sending') ORDER BY channel"
            ).fetchall()
        return [str(row[0]) for row in rows]

    def next_due(self, channel: str | None = None) -> float | None:
        """When the next message, of `channel` or of any, is due or its lease runs out; None: none waits."""
        with self._file.read() as db:
            row = db.execute(_NEXT, {"channel": channel}).fetchone()
        return None if row[0] is None else float(row[0])

    def by_key(self, key: str) -> Message | None:
        """The message that was put as `key`."""
        with self._file.read() as db:
            row = db.execute("SELECT * FROM messages WHERE key = ?", [key]).fetchone()
        return None if row is None else _message(row)

    def latest(self, limit: int = 100, channel: str | None = None) -> Sequence[Message]:
        """The newest `limit` messages, oldest first; only of `channel` where one is named."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT * FROM messages WHERE ? IS NULL OR channel = ? ORDER BY n DESC LIMIT ?",
                [channel, channel, limit],
            ).fetchall()
        return [_message(row) for row in reversed(rows)]

    def counts(self) -> dict[str, tuple[int, int]]:
        """Per channel, how many messages wait, and how many could not be said."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT channel, sum(state IN ('queued', 'sending')), sum(state = 'failed') FROM messages"
                " GROUP BY channel ORDER BY channel"
            ).fetchall()
        return {str(name): (int(waiting), int(failed)) for name, waiting, failed in rows}

    def troubled(self, channel: str, limit: int = 5) -> Sequence[Message]:
        """The newest `limit` messages of `channel` that could not be said, or not yet for an error; oldest first."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT * FROM messages WHERE channel = ? AND error <> '' AND state <> 'sent' ORDER BY n DESC LIMIT ?",
                [channel, limit],
            ).fetchall()
        return [_message(row) for row in reversed(rows)]

    def forget(self, before: str) -> int:
        """Forget what was put before `before` (RFC 3339) and is sent or failed; how many that were."""
        with self._file.write() as db:
            return db.execute(
                "DELETE FROM messages WHERE state IN ('sent', 'failed') AND created < ?", [before]
            ).rowcount

    def _end(self, n: int, state: MessageState, error: str) -> None:
        with self._file.write() as db:
            db.execute("UPDATE messages SET state = ?, lease = 0, error = ? WHERE n = ?", [state, error, n])


_COLUMNS = ("n", "key", "channel", "conversation", "state", "body", "attempts", "due", "lease", "error", "created")


def _message(row: Sequence[Any]) -> Message:
    values = dict(zip(_COLUMNS, row, strict=True))
    body = json.loads(values.pop("body"))
    return Message(**values, **body)
