"""Numbers of tickets and diagnoses, for metrics, and the diagnoses to export."""

from __future__ import annotations

import json

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Diagnosis

_NEWEST = 30  # diagnoses that are searched for findings
_LATENESS = """SELECT json_extract(f.value, '$.subject.rank'), json_extract(f.value, '$.subject.host'),
        json_extract(f.value, '$.kind'), json_extract(f.value, '$.metrics')
    FROM (SELECT body, created FROM diagnoses WHERE created >= ? ORDER BY created DESC LIMIT ?) AS d,
        json_each(d.body, '$.findings') AS f
    WHERE json_extract(f.value, '$.kind') IN ('rank.late', 'rank.enters_last') ORDER BY d.created"""


class Figures:
    """Counts in `file`. Methods raise `ToolError` (database)."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def tickets(self) -> list[tuple[str, str, int]]:
        """Return state, severity and number of tickets."""
        with self._file.read() as db:
            rows = db.execute("SELECT state, severity, count(*) FROM tickets GROUP BY 1, 2 ORDER BY 1, 2").fetchall()
        return [(str(state), str(severity), int(n)) for state, severity, n in rows]

    def diagnoses(self) -> list[tuple[str, str, int]]:
        """Return verdict, cause (empty: none) and number of diagnoses, the largest first."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT verdict, coalesce(cause, ''), count(*) FROM diagnoses GROUP BY 1, 2 ORDER BY 3 DESC, 1, 2"
            ).fetchall()
        return [(str(verdict), str(cause), int(n)) for verdict, cause, n in rows]

    def lateness(self, since: str) -> dict[tuple[int, str], float]:
        """Return by rank and host how late a rank enters collectives, s, by the newest of the diagnoses since then
        (RFC 3339) that found one: what it makes the others lose per step, or its median lag behind the last but one.
        """
        found: dict[tuple[int, str], float] = {}
        with self._file.read() as db:
            for rank, host, kind, metrics in db.execute(_LATENESS, [since, _NEWEST]).fetchall():
                late = json.loads(metrics).get("lost_ms" if kind == "rank.late" else "late_ms")
                if isinstance(rank, int) and isinstance(late, int | float):
                    found[rank, str(host or "")] = late / 1000
        return found

    def last_diagnosis(self) -> int:
        """Return the position of the diagnosis that was stored last; 0 without any."""
        with self._file.read() as db:
            return int(db.execute("SELECT coalesce(max(rowid), 0) FROM diagnoses").fetchone()[0])

    def diagnoses_between(self, after: int, upto: int, limit: int) -> list[tuple[int, Diagnosis]]:
        """Return at most `limit` diagnoses stored behind the position `after` up to `upto`, the oldest first."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT rowid, body FROM diagnoses WHERE rowid > ? AND rowid <= ? ORDER BY rowid LIMIT ?",
                [after, upto, limit],
            ).fetchall()
            return [(int(row), self._file.record(Diagnosis, body)) for row, body in rows]
