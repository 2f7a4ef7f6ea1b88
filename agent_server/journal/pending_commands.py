"""Commands in chats that wait for confirmation, and the latest topic of a conversation.

Both belong to one person in one conversation: no one can confirm another person's command.
"""

from __future__ import annotations

import json
from typing import Any

from whystall.knowledge_base.database import Database

# Maximum life of a command, so that setting the clock back does not extend it.
_LONGEST_S = 3600.0


class PendingCommands:
    """The commands in `file`, as JSON objects of the caller. Times are seconds since the epoch."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def put(self, channel: str, conversation: str, sender: str, command: dict[str, Any], expires: float) -> None:
        """Store `command` until `expires`, replacing an earlier one."""
        with self._file.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO wishes (channel, conversation, sender, expires, body) VALUES (?, ?, ?, ?, ?)",
                [channel, conversation, sender, expires, json.dumps(command, ensure_ascii=False)],
            )

    def get(self, channel: str, conversation: str, sender: str, now: float) -> dict[str, Any] | None:
        """Return the pending command, or None."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT body FROM wishes WHERE channel = ? AND conversation = ? AND sender = ?"
                " AND expires > ? AND expires <= ?",
                [channel, conversation, sender, now, now + _LONGEST_S],
            ).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def take(self, channel: str, conversation: str, sender: str, now: float) -> dict[str, Any] | None:
        """Return and delete the pending command, so that it runs at most once. Call it in the transaction of its
        effect.
        """
        with self._file.write():
            command = self.get(channel, conversation, sender, now)
            self.drop(channel, conversation, sender)
        return command

    def drop(self, channel: str, conversation: str, sender: str) -> None:
        with self._file.write() as db:
            db.execute(
                "DELETE FROM wishes WHERE channel = ? AND conversation = ? AND sender = ?",
                [channel, conversation, sender],
            )

    def forget(self, now: float) -> int:
        """Delete expired commands, and topics older than a day; return their number."""
        with self._file.write() as db:
            dropped = db.execute("DELETE FROM wishes WHERE expires <= ?", [now]).rowcount
            return dropped + db.execute("DELETE FROM talks WHERE at < ?", [now - 86_400.0]).rowcount

    def put_topic(self, channel: str, conversation: str, sender: str, topic: dict[str, Any], now: float) -> None:
        """Store the latest topic."""
        with self._file.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO talks (channel, conversation, sender, at, body) VALUES (?, ?, ?, ?, ?)",
                [channel, conversation, sender, now, json.dumps(topic, ensure_ascii=False)],
            )

    def topic(self, channel: str, conversation: str, sender: str, since: float) -> dict[str, Any]:
        """Return the topic stored at `since` or later; empty without one."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT body FROM talks WHERE channel = ? AND conversation = ? AND sender = ? AND at >= ?",
                [channel, conversation, sender, since],
            ).fetchone()
        return {} if row is None else dict(json.loads(row[0]))
