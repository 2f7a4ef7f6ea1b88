"""Read SQLite databases of profilers without trust: tables only, nothing written, no lock taken."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

_BATCH = 100_000


class Database:
    """Reads tables, never views: a view in an untrusted file may run for ever."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        self.tables = {str(name) for (name,) in rows}

    def columns(self, table: str) -> set[str]:
        """Return the columns of a table; none when it is missing. `table`: a constant."""
        return {str(row[1]) for row in self._connection.execute(f'PRAGMA table_info("{table}")')}

    def read(self, table: str, *wanted: str) -> Iterator[list[tuple[object, ...]]]:
        """Yield batches of rows of columns; nothing when the table or one of them is missing."""
        if table not in self.tables or not set(wanted) <= self.columns(table):
            return
        names = ", ".join(f'"{name}"' for name in wanted)
        cursor = self._connection.execute(f'SELECT {names} FROM "{table}"')  # noqa: S608 - names are constants
        while rows := cursor.fetchmany(_BATCH):
            yield rows

    def mapping(self, table: str, key: str, value: str) -> dict[object, object]:
        """Return two columns of a table as a dictionary."""
        return {row[0]: row[1] for rows in self.read(table, key, value) for row in rows}


@contextmanager
def opened_database(path: Path) -> Iterator[Database]:
    """Open the tables of a file. Raises OSError, `sqlite3.Error`."""
    with open(path, "rb"):
        pass  # raises the system's error
    # immutable: no lock is taken and no journal written next to the user's file
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True)) as connection:
        connection.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
        yield Database(connection)
