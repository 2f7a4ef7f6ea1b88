"""Who sent or changed what, and what came of it. Only ever appended to."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.times import now as stamp
from whystall.tools.contract.text import clean


class Entry(BaseModel):
    """One line of the log. `by`: a person, ``engine``, ``sink:NAME``, ``chat:NAME``; `what`: a code such as
    ``ticket.resolved``, ``sink.create``, ``message.sent``, ``silence.added``, ``request.refused``; `target`: of what;
    `outcome`: ``ok``, or the code of what went wrong; `detail`: typed facts without secrets.
    """

    model_config = ConfigDict(extra="forbid")

    n: int
    at: str
    by: str
    what: str
    target: str
    outcome: str
    detail: dict[str, Any]


class Audit:
    """The log in `file`."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def put(
        self, by: str, what: str, target: str, outcome: str = "ok", detail: Mapping[str, Any] | None = None
    ) -> None:
        """Append an entry. Callers hand over no secrets; call it in the transaction of what it tells."""
        with self._file.write() as db:
            db.execute(
                "INSERT INTO audit (at, by, what, target, outcome, detail) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    stamp(),
                    clean(by, 200),
                    what,
                    clean(target, 500),
                    clean(outcome, 200),
                    json.dumps(dict(detail or {}), ensure_ascii=False),
                ],
            )

    def entries(self, after: int = 0, limit: int = 100, what: str = "", by: str = "") -> Sequence[Entry]:
        """The newest `limit` entries with a number above `after`, oldest first; `what`: only codes that begin so; `by`:
        only of that one.
        """
        with self._file.read() as db:
            rows = db.execute(
                "SELECT n, at, by, what, target, outcome, detail FROM audit WHERE n > ? AND substr(what, 1, ?) = ?"
                " AND (? = '' OR by = ?) ORDER BY n DESC LIMIT ?",
                [after, len(what), what, by, by, limit],
            ).fetchall()
        names = ("n", "at", "by", "what", "target", "outcome", "detail")
        return [Entry(**{**dict(zip(names, row, strict=True)), "detail": json.loads(row[6])}) for row in reversed(rows)]
