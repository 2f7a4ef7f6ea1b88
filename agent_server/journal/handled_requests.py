"""Keys of requests that were handled, against replays and repetitions."""

from __future__ import annotations

from whystall.knowledge_base.database import Database


class HandledRequests:
    def __init__(self, file: Database) -> None:
        self._file = file

    def first(self, source: str, key: str, now: float) -> bool:
        """Record `key` of `source`; return whether it is new. `now`: seconds since the epoch.

        Call it in the transaction that stores the result: a crash between both would lose the result.
        """
        with self._file.write() as db:
            row = db.execute(
                "INSERT INTO seen (source, key, at) VALUES (?, ?, ?) ON CONFLICT (source, key) DO NOTHING RETURNING 1",
                [source, key, now],
            ).fetchone()
        return row is not None

    def forget(self, before: float) -> int:
        """Delete keys recorded before `before`, which can no longer arrive; return their number."""
        with self._file.write() as db:
            return db.execute("DELETE FROM seen WHERE at < ?", [before]).rowcount
