"""New knowledge bases, filled from one that was seeded before.

To index the curated incidents takes 0.15 s, and hundreds of tests begin with a new file.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Hashable
from contextlib import closing
from pathlib import Path

from whystall.knowledge_base import seeding, store
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.indexing import compact

TABLES = ("incidents", "features", "hashes", "state")
"""What `seeding.seed` writes to a new file; triggers fill the index tables."""
_seed = seeding.seed


class SeededFiles:
    """Seeds as `seeding.seed` does, and keeps in `directory` what that wrote to a new file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: dict[Hashable, Path] = {}

    def install(self) -> None:
        """Seed with this from now on, in this process."""
        store.seed = self.seed

    def seed(self, file: Database) -> None:
        """Fill `file` if it is new, else update it."""
        if not file.read_only and _new(file):
            _copy(self.kept(), file)
        _seed(file)  # does nothing to an up-to-date file

    def kept(self) -> Path:
        """Return a file with the incidents of this version, or of the one that a test pretends."""
        version = (seeding.curated, seeding.curated_hash(), seeding.index_hash())
        if version not in self._kept:
            path = self._directory / f"{len(self._kept)}.db"
            with closing(Database(path)) as made:
                _seed(made)
            self._kept[version] = path
        return self._kept[version]


def _new(file: Database) -> bool:
    with file.read() as db:
        return not any(db.execute(f"SELECT EXISTS (SELECT 1 FROM {name})").fetchone()[0] for name in TABLES)


def _copy(kept: Path, file: Database) -> None:
    with closing(sqlite3.connect(kept)) as source, file.write() as db:
        if not _new(file):
            return  # another process was faster
        for name in TABLES:
            rows = source.execute(f"SELECT * FROM {name}").fetchall()
            if rows:
                db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        compact(db, db.execute("SELECT count(*) FROM incidents").fetchone()[0])
