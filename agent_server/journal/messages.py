"""Outgoing chat messages, kept until the vendor accepted them; within a conversation they are sent in order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.times import now as stamp

MessageState = Literal["queued", "sending", "sent", "failed"]

FARTHEST = 7200.0
"""Maximum delay of a retry in seconds; a longer one dates from before the clock was set back."""

# The first message of each conversation; only waiting messages are read, however many were sent.
_FIRST = (
    "n IN (SELECT min(n) FROM messages WHERE state IN ('queued', 'sending')"
    " AND (:channel IS NULL OR channel = :channel) GROUP BY channel, conversation)"
)
# Ready: due, or its lease expired. `+` makes SQLite look up the few rows of `_FIRST` instead of searching by state.
_TAKE = (
    "UPDATE messages SET state = 'sending', attempts = attempts + 1, lease = :until WHERE n = ("  # noqa: S608 - constants
    "SELECT n FROM messages WHERE " + _FIRST + " AND ((+state = 'queued' AND (due <= :now OR due > :far))"
    " OR (+state = 'sending' AND (lease <= :now OR lease > :long))) ORDER BY due, n LIMIT 1) RETURNING *"
)
_NEXT = "SELECT min(CASE state WHEN 'queued' THEN due ELSE lease END) FROM messages WHERE " + _FIRST  # noqa: S608


class Message(BaseModel):
    """A message. `channel`: the chat's name in the settings; `conversation`: a vendor's group or person; `place` and
    `message`: see `chat.wire`. `attempts`: including the current one. `due`, `lease`: seconds since the epoch; the
    lease is the sender's. `error`: the latest. `created`: RFC 3339.
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
    def __init__(self, file: Database) -> None:
        self._file = file

    def put(
        self, key: str, channel: str, place: Mapping[str, Any], message: Mapping[str, Any], due: float = 0.0
    ) -> int | None:
        """Queue a message for `due`; return its number, or None if `key` was queued before.

        `place`: as JSON; its ``conversation`` determines the order. Call it in the transaction that stores what the
        message reports.
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
        """Take the longest due message (of `channel` if given) until `now` + `lease` seconds; return None if there is
        none.

        A message waits for the earlier ones of its conversation. One with an expired lease is taken again, although it
        may have been sent.
        """
        values = {"now": now, "far": now + FARTHEST, "long": now + 2 * lease, "channel": channel}
        with self._file.write() as db:
            row = db.execute(_TAKE, {**values, "until": now + lease}).fetchone()
        return None if row is None else _message(row)

    def sent(self, n: int) -> None:
        """Record that the vendor accepted message `n`."""
        self._end(n, "sent", "")

    def retry(self, n: int, due: float, why: str) -> None:
        """Retry message `n` at `due` after the error `why`."""
        with self._file.write() as db:
            db.execute("UPDATE messages SET state = 'queued', due = ?, lease = 0, error = ? WHERE n = ?", [due, why, n])

    def failed(self, n: int, why: str) -> None:
        """Give up message `n`; the next one of its conversation may be sent."""
        self._end(n, "failed", why)

    def release(self, now: float) -> int:
        """Release all messages of dead senders; return their number."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE messages SET state = 'queued', due = ?, lease = 0 WHERE state = 'sending'", [now]
            ).rowcount

    def set_back(self, by: float, now: float) -> int:
        """Move due times back by `by` seconds, as the clock was, to `now`; return their number."""
        with self._file.write() as db:
            return db.execute(
                "UPDATE messages SET due = due - ? WHERE state = 'queued' AND due > ?", [by, now]
            ).rowcount

    def waiting(self) -> Sequence[str]:
        """Return the channels with waiting messages."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT DISTINCT channel FROM messages WHERE state IN ('queued', 'sending') ORDER BY channel"
            ).fetchall()
        return [str(row[0]) for row in rows]

    def next_due(self, channel: str | None = None) -> float | None:
        """Return when the next message (of `channel` if given) is due or its lease expires; None: none waits."""
        with self._file.read() as db:
            row = db.execute(_NEXT, {"channel": channel}).fetchone()
        return None if row[0] is None else float(row[0])

    def by_key(self, key: str) -> Message | None:
        with self._file.read() as db:
            row = db.execute("SELECT * FROM messages WHERE key = ?", [key]).fetchone()
        return None if row is None else _message(row)

    def latest(self, limit: int = 100, channel: str | None = None) -> Sequence[Message]:
        """Return the newest `limit` messages (of `channel` if given), oldest first."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT * FROM messages WHERE ? IS NULL OR channel = ? ORDER BY n DESC LIMIT ?",
                [channel, channel, limit],
            ).fetchall()
        return [_message(row) for row in reversed(rows)]

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return per channel the numbers of waiting and of failed messages."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT channel, sum(state IN ('queued', 'sending')), sum(state = 'failed') FROM messages"
                " GROUP BY channel ORDER BY channel"
            ).fetchall()
        return {str(name): (int(waiting), int(failed)) for name, waiting, failed in rows}

    def troubled(self, channel: str, limit: int = 5) -> Sequence[Message]:
        """Return the newest `limit` messages of `channel` with an error and not sent, oldest first."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT * FROM messages WHERE channel = ? AND error <> '' AND state <> 'sent' ORDER BY n DESC LIMIT ?",
                [channel, limit],
            ).fetchall()
        return [_message(row) for row in reversed(rows)]

    def forget(self, before: str) -> int:
        """Delete messages created before `before` (RFC 3339) that were sent or failed; return their number."""
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
