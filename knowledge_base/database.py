"""The SQLite file of the knowledge base: opening, schema, transactions, errors with a remedy.

It uses a rollback journal, not a write-ahead log: writes are few and small, readers need no write permission (a log
needs its shared-memory file), and the knowledge base stays one file.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from whystall.knowledge_base import schema
from whystall.knowledge_base.data import ModelT
from whystall.tools.contract.errors import ErrorCode, ToolError

_APPLICATION_ID = 0x57485953  # "WHYS"
_MAGIC = b"SQLite format 3\0"
# Long enough for a large import or another diagnosis; a timeout would lose an observation.
_BUSY_S = 30.0
# Shorter on an event loop, which blocks all its tasks meanwhile and can retry.
_LOOP_S = 2.0
_CACHE_KIB = 16 * 1024
_ELSEWHERE = "move the file away, or set WHYSTALL_HOME to another directory"


class Database:
    """The open file `path`. With `read_only`, `write` raises `ToolError` (database).

    Thread-safe: one thread at a time holds a transaction.
    """

    def __init__(self, path: Path) -> None:
        """Open `path`, creating it (mode 0600) if missing, and migrate its schema.

        Raises `ToolError`: database (foreign, damaged, newer, locked, not accessible), disk_full.
        """
        self.path = path
        self._lock = threading.RLock()
        self._depth = 0  # nested transactions
        self._callbacks: list[Callable[[], None]] = []
        self._busy_ms = int(_BUSY_S * 1000)
        with self._errors():
            _check_header(path)
            if not path.exists():
                # Diagnoses name files and commands of this host: keep them private.
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._file = _identity(path)
            self.read_only = not (_writable(path) and _writable(path.parent))
            mode = "ro" if self.read_only else "rw"
            self._connection = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=_BUSY_S,
                check_same_thread=False,
                isolation_level=None,  # transactions are begun here only
            )
            try:
                # The default of 2 MiB makes a match over 100,000 cards a quarter slower.
                self._connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
                # Without it REPLACE would not call the triggers that keep the index in step.
                self._connection.execute("PRAGMA recursive_triggers = on")
                self._bring_up_to_date()
            except BaseException:
                self._connection.close()
                raise

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), self._held():
            yield self._connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction: all is stored, or nothing.

        The write lock is taken at once, so that reads inside stay valid until the end. A nested block is part of the
        outer transaction; if it fails, only its own writes are undone.
        """
        if self.read_only:
            raise ToolError(
                ErrorCode.DATABASE,
                f"{self.path} cannot be written",
                "run as its owner, or set WHYSTALL_HOME to a directory you can write",
            )
        with self._errors(), self._held():
            inner = self._depth > 0
            if inner and not self._connection.in_transaction:
                raise sqlite3.OperationalError("transaction rolled back: the disk is full, or the file damaged")
            self._connection.execute("SAVEPOINT inner" if inner else "BEGIN IMMEDIATE")
            changes = self._connection.total_changes
            self._depth += 1
            try:
                yield self._connection
                self._connection.execute("RELEASE inner" if inner else "COMMIT")
            except BaseException:
                if not inner:
                    self._connection.rollback()
                elif self._connection.in_transaction:  # on a full disk SQLite rolls back by itself
                    self._connection.execute("ROLLBACK TO inner")
                    self._connection.execute("RELEASE inner")
                raise
            finally:
                self._depth -= 1
            if not inner and self._connection.total_changes != changes:
                for callback in tuple(self._callbacks):
                    callback()

    @contextmanager
    def after_commit(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` after every transaction of this process that changed something, in the thread that committed
        it, within the block.
        """
        self._callbacks.append(callback)
        try:
            yield
        finally:
            self._callbacks.remove(callback)

    def version(self) -> int:
        """Return a number that changes when another process commits. Raises `ToolError` (database) if the file at its
        path was replaced or removed.
        """
        with self.read():
            if _identity(self.path) != self._file:
                raise _moved(self.path)
            return int(self._connection.execute("PRAGMA data_version").fetchone()[0])

    def record(self, model: type[ModelT], body: str) -> ModelT:
        """Parse a stored `body` as `model`; raise `ToolError` (database) if this version cannot read it."""
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            raise ToolError(
                ErrorCode.DATABASE,
                f"{self.path} has a record that cannot be read: {error.errors()[0]['msg']}",
                "upgrade whystall if a newer one wrote it, else restore a copy",
            ) from None

    def close(self) -> None:
        """Close the file; idempotent."""
        with self._lock:
            self._connection.close()

    def _bring_up_to_date(self) -> None:
        tables = self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        owner = self._connection.execute("PRAGMA application_id").fetchone()[0]
        if tables and owner != _APPLICATION_ID:
            raise ToolError(ErrorCode.DATABASE, f"{self.path} belongs to another program", _ELSEWHERE)
        applied = schema.applied(self._connection)
        if applied - schema.MIGRATIONS.keys():
            raise ToolError(
                ErrorCode.DATABASE,
                f"{self.path} was written by a newer whystall",
                "upgrade whystall, or set WHYSTALL_HOME to another directory",
            )
        if applied != schema.MIGRATIONS.keys():
            with self.write() as db:
                self._connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                schema.migrate(db)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the file for this thread. The total wait for other threads and processes is bounded by `_patience`."""
        patience = _patience()
        until = time.monotonic() + patience
        if not self._lock.acquire(timeout=patience):
            raise sqlite3.OperationalError("database is locked")
        try:
            if not self._depth:
                left = max(0, int((until - time.monotonic()) * 10 + 0.5) * 100)
                if left != self._busy_ms:
                    self._connection.execute(f"PRAGMA busy_timeout = {left}")
                    self._busy_ms = left
            yield
        finally:
            self._lock.release()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if "readonly" in str(error) and not self.read_only and _identity(self.path) != self._file:
                raise _moved(self.path) from None
            raise _explained(self.path, error) from None
        except UnicodeDecodeError:  # SQLite's message quotes the schema of a damaged file
            raise _explained(self.path, sqlite3.DatabaseError("malformed database schema")) from None
        except OSError as error:
            full = error.errno == errno.ENOSPC
            raise ToolError(
                ErrorCode.DISK_FULL if full else ErrorCode.DATABASE,
                f"cannot open {self.path}: {error.strerror}",
                "free space on that file system" if full else "set WHYSTALL_HOME to a directory you can write",
            ) from None


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _patience() -> float:
    """Seconds that the caller may wait; whether it runs an event loop is checked only if asyncio was imported."""
    loops = sys.modules.get("asyncio")
    return _BUSY_S if loops is None or loops._get_running_loop() is None else min(_LOOP_S, _BUSY_S)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of `path`; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _moved(path: Path) -> ToolError:
    message = f"{path} was moved, deleted or replaced while it was open"
    return ToolError(ErrorCode.DATABASE, message, "restore it there, or restart whystall")


def _check_header(path: Path) -> None:
    """Refuse a file without SQLite's header, before SQLite writes to it."""
    if path.is_dir():
        raise ToolError(ErrorCode.DATABASE, f"{path} is a directory", "give the path of a file")
    if path.exists():
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
        if head and head != _MAGIC:
            raise ToolError(ErrorCode.DATABASE, f"{path} is no SQLite database", _ELSEWHERE)


def _explained(path: Path, error: sqlite3.Error) -> ToolError:
    text = str(error)
    if "disk is full" in text:
        return ToolError(
            ErrorCode.DISK_FULL, f"no space to write {path}", "free space on that file system; nothing was lost"
        )
    if "locked" in text:
        return ToolError(ErrorCode.DATABASE, f"{path} is in use by another process", "try again when it has finished")
    if "malformed" in text or "not a database" in text or "corrupt" in text:
        return ToolError(
            ErrorCode.DATABASE,
            f"{path} is damaged: {text}",
            f"restore a copy, or rescue its rows with `sqlite3 {path.name} .recover`, then move it away",
        )
    if "readonly" in text:
        return ToolError(ErrorCode.DATABASE, f"{path} cannot be written", "run as its owner")
    return ToolError(ErrorCode.DATABASE, f"{path}: {text}", _ELSEWHERE)
