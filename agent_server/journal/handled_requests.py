"""What was taken already: the memory against replays and repetitions."""

from __future__ import annotations

from whystall.knowledge_base.database import Database


class HandledRequests:
    """Keys per source, in `file`."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def first(self, source: str, key: str, now: float) -> bool:
        """Whether `key` of `source` comes for the first time; it is kept. `now`: seconds since the epoch.

        Call it in the transaction that stores what follows from it, or a crash between both loses the latter.
        """
        with self._file.write() as db:
            row = db.execute(
                "INSERT INTO seen (source, key, at) VALUES (?, ?, ?) ON CONFLICT (source, key) DO NOTHING RETURNING 1",
                [source, key, now],
            ).fetchone()
        return row is not None

    def forget(self, before: float) -> int:
        """Forget what was seen before that time (and could no longer be taken for new); how much that was."""
        with self._file.write() as db:
            return db.execute("DELETE FROM seen WHERE at < ?", [before]).rowcount
