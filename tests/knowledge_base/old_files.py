"""Compare a database before and after its migration."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from whystall.knowledge_base.schema import MIGRATIONS

# Tables whose rows are rewritten: the index of cards, and the states of code and catalogue. `sqlite_*` are SQLite's.
_REWRITTEN = ("incidents", "features", "feature_counts", "state", "sqlite_")
Rows = dict[str, list[tuple[Any, ...]]]


def rows(path: Path) -> Rows:
    """The rows of every table that a migration must not change, and the cards without their index terms."""
    with closing(sqlite3.connect(path)) as file:
        names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found: Rows = {
            name: file.execute(f"SELECT * FROM [{name}]").fetchall()
            for name in names
            if not name.startswith(_REWRITTEN)
        }
        cards = "SELECT id, origin, state, cause, updated, body FROM incidents ORDER BY n"
        found["cards"] = [row for row in file.execute(cards) if row[1] != "curated"]
        found["sequences"] = file.execute("SELECT * FROM sqlite_sequence").fetchall()
        return found


def lost(before: Rows, after: Rows) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of `before` that are missing in `after`, by table."""
    missing = {name: [row for row in kept if row not in set(after.get(name, ()))] for name, kept in before.items()}
    return {name: gone for name, gone in missing.items() if gone}


def sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        file.execute("INSERT INTO incidents_fts (incidents_fts, rank) VALUES ('integrity-check', 1)")
        applied = {name for (name,) in file.execute("SELECT name FROM _sqlite_migrations")}
    assert applied == set(MIGRATIONS)
