"""What was said in a conversation and still matters: a question that we asked back, and what was last spoken of.

Both belong to one person in one place: nobody confirms what another one asked for.
"""

from __future__ import annotations

import json
from typing import Any

from whystall.knowledge_base.database import Database

# A clock that was set back does not keep a wish alive: none is given longer than this.
_LONGEST_S = 3600.0


class PendingCommands:
    """The wishes in `file`: plain JSON objects of whoever puts them. Times are seconds since the epoch."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def put(self, channel: str, conversation: str, sender: str, wish: dict[str, Any], expires: float) -> None:
        """Keep `wish` until `expires`, instead of an earlier one."""
        with self._file.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO wishes (channel, conversation, sender, expires, body) VALUES (?, ?, ?, ?, ?)",
                [channel, conversation, sender, expires, json.dumps(wish, ensure_ascii=False)],
            )

    def get(self, channel: str, conversation: str, sender: str, now: float) -> dict[str, Any] | None:
        """The wish that waits; None where none does, or no longer."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT body FROM wishes WHERE channel = ? AND conversation = ? AND sender = ?"
                " AND expires > ? AND expires <= ?",
                [channel, conversation, sender, now, now + _LONGEST_S],
            ).fetchone()
        return None if row is None else dict(json.loads(row[0]))

    def take(self, channel: str, conversation: str, sender: str, now: float) -> dict[str, Any] | None:
        """The wish that waits, which then does so no more: it is granted once, or never. Call it in the transaction of
        what it asks for.
        """
        with self._file.write():
            wish = self.get(channel, conversation, sender, now)
            self.drop(channel, conversation, sender)
        return wish

    def drop(self, channel: str, conversation: str, sender: str) -> None:
        """Forget what waits."""
        with self._file.write() as db:
            db.execute(
                "DELETE FROM wishes WHERE channel = ? AND conversation = ? AND sender = ?",
                [channel, conversation, sender],
            )

    def forget(self, now: float) -> int:
        """Drop every wish that has expired, and what was spoken of more than a day ago; how many that were."""
        with self._file.write() as db:
            dropped = db.execute("DELETE FROM wishes WHERE expires <= ?", [now]).rowcount
            return dropped + db.execute("DELETE FROM talks WHERE at < ?", [now - 86_400.0]).rowcount

    def remember(self, channel: str, conversation: str, sender: str, talk: dict[str, Any], now: float) -> None:
        """Keep what was last spoken of."""
        with self._file.write() as db:
            db.execute(
                "INSERT OR REPLACE INTO talks (channel, conversation, sender, at, body) VALUES (?, ?, ?, ?, ?)",
                [channel, conversation, sender, now, json.dumps(talk, ensure_ascii=False)],
            )

    def spoken(self, channel: str, conversation: str, sender: str, since: float) -> dict[str, Any]:
        """What was last spoken of, after `since`; empty where nothing was."""
        with self._file.read() as db:
            row = db.execute(
                "SELECT body FROM talks WHERE channel = ? AND conversation = ? AND sender = ? AND at >= ?",
                [channel, conversation, sender, since],
            ).fetchone()
        return {} if row is None else dict(json.loads(row[0]))
