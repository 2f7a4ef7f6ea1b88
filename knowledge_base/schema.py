"""The tables of the knowledge base. A record is kept whole as JSON in `body`; columns beside it are for
finding it.

A migration that has been released is never changed: a later one is added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlite_utils import Database
    from sqlite_utils.migrations import Migrations

_V1 = (
    "CREATE TABLE state (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE incidents (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, origin TEXT NOT NULL, body TEXT NOT NULL,
        words TEXT NOT NULL, grams TEXT NOT NULL)""",
    """CREATE TABLE signatures (
        value TEXT NOT NULL, incident TEXT NOT NULL, PRIMARY KEY (value, incident)) WITHOUT ROWID""",
    "CREATE INDEX signatures_incident ON signatures (incident)",
    # words and grams are terms made in Python, separated by spaces: unicode61 only has to split them again.
    """CREATE VIRTUAL TABLE incidents_fts USING fts5 (
        words, grams, content='incidents', content_rowid='n',
        tokenize="unicode61 remove_diacritics 0 tokenchars '_'")""",
    """CREATE TRIGGER incidents_ai AFTER INSERT ON incidents BEGIN
        INSERT INTO incidents_fts (rowid, words, grams) VALUES (new.n, new.words, new.grams); END""",
    """CREATE TRIGGER incidents_ad AFTER DELETE ON incidents BEGIN
        INSERT INTO incidents_fts (incidents_fts, rowid, words, grams)
        VALUES ('delete', old.n, old.words, old.grams); END""",
    """CREATE TRIGGER incidents_au AFTER UPDATE ON incidents BEGIN
        INSERT INTO incidents_fts (incidents_fts, rowid, words, grams)
        VALUES ('delete', old.n, old.words, old.grams);
        INSERT INTO incidents_fts (rowid, words, grams) VALUES (new.n, new.words, new.grams); END""",
    """CREATE TABLE diagnoses (
        id TEXT PRIMARY KEY, created TEXT NOT NULL, verdict TEXT NOT NULL, cause TEXT, ticket INTEGER,
        body TEXT NOT NULL)""",
    """CREATE TABLE tickets (
        id INTEGER PRIMARY KEY AUTOINCREMENT, dedup_key TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL,
        updated TEXT NOT NULL, body TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX tickets_open ON tickets (dedup_key) WHERE state = 'open'",
)

_V2 = (
    "ALTER TABLE incidents ADD COLUMN state TEXT NOT NULL DEFAULT 'reviewed'",
    "ALTER TABLE incidents ADD COLUMN cause TEXT",
    "ALTER TABLE incidents ADD COLUMN updated TEXT NOT NULL DEFAULT ''",
    # An inverted table: which cards (`n`) have a typed feature. Weights come from `feature_counts`.
    "CREATE TABLE features (feature TEXT NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (feature, n)) WITHOUT ROWID",
    "CREATE INDEX features_card ON features (n)",
    "CREATE TABLE feature_counts (feature TEXT PRIMARY KEY, cards INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TABLE occurrences (
        incident TEXT NOT NULL, key TEXT NOT NULL, seen TEXT NOT NULL, host TEXT NOT NULL,
        PRIMARY KEY (incident, key)) WITHOUT ROWID""",
    """CREATE TABLE feedback (
        incident TEXT NOT NULL, diagnosis TEXT NOT NULL, verdict TEXT NOT NULL, comment TEXT NOT NULL,
        at TEXT NOT NULL, PRIMARY KEY (incident, diagnosis)) WITHOUT ROWID""",
)


def migrations() -> tuple[Migrations, set[str]]:
    """The migrations in order, and their names."""
    from sqlite_utils.migrations import Migrations

    schema = Migrations("whystall")

    @schema(name="v1")
    def _v1(db: Database) -> None:
        for statement in _V1:
            db.conn.execute(statement)

    @schema(name="v2")
    def _v2(db: Database) -> None:
        for statement in _V2:
            db.conn.execute(statement)

    return schema, {"v1", "v2"}
