"""Imported work orders, each once, however often its file is imported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.models import Model

Outcome = Literal["new", "again"]


class FiledOrder(Model):
    """The result of a work order: its ticket, whether that is new or a repetition, what decided its category, its label
    (empty: none), and a hash of its text.
    """

    ticket: int
    outcome: Outcome
    category: str
    by: str
    severity: str
    truth: str = ""
    linked: int = 0
    text: str


class WorkOrders:
    def __init__(self, file: Database) -> None:
        self._file = file

    def known(self, source: str, keys: Iterable[str]) -> Mapping[str, FiledOrder]:
        """Return those of `keys` that were imported from `source` before."""
        asked = "SELECT key, body FROM work_orders WHERE source = ? AND key IN (SELECT value FROM json_each(?))"
        with self._file.read() as db:
            rows = db.execute(asked, [source, json.dumps(list(keys))]).fetchall()
        return {key: self._file.record(FiledOrder, body) for key, body in rows}

    def put(self, source: str, filed: Sequence[tuple[str, FiledOrder]]) -> None:
        """Store `filed`. Call it in the transaction that files their tickets."""
        rows = [(source, key, one.ticket, one.model_dump_json()) for key, one in filed]
        with self._file.write() as db:
            db.executemany("INSERT INTO work_orders (source, key, ticket, body) VALUES (?, ?, ?, ?)", rows)
