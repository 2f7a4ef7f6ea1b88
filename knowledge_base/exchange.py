"""Export and import of cards as lines of JSON.

A line is an `Incident` without its history. Imported cards are untrusted: bounded, made inert, and drafts until
reviewed here.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, BinaryIO

from pydantic import Field, ValidationError

from whystall.knowledge_base import card_life
from whystall.knowledge_base.database import Database
from whystall.knowledge_base.indexing import compact, stored_cards
from whystall.knowledge_base.models import HistoryEntry, Incident, Model
from whystall.knowledge_base.ticket_models import LESSON
from whystall.knowledge_base.times import moment, now
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from sqlite3 import Connection

# Four texts in two languages at their limits, in Chinese, and as much again for lists and notes.
_LINE = 1 << 20  # bytes
_LINES = 1_000_000
_BYTES = 4 << 30
_SHOWN = 20  # refused lines listed
_IN_MEMORY = 8 << 20
_OWN = "card-"


class Refused(Model):
    """A refused line (counted from 1) and the reason."""

    line: int
    why: str


class Imported(Model):
    """Numbers of cards added, of cards already known (by content), and of refused lines, with the first of those."""

    added: int = 0
    duplicates: int = 0
    left_out: int = 0
    refused: list[Refused] = Field(default_factory=list)


@dataclass(frozen=True)
class Lines:
    """The validated cards of an import, and the refused lines."""

    spool: IO[bytes]
    count: int
    left_out: int
    refused: list[Refused]

    def cards(self) -> Iterator[tuple[str, Incident]]:
        """Yield content hash and card, one at a time."""
        self.spool.seek(0)
        for line in self.spool:
            hash, _, body = line.partition(b" ")
            yield hash.decode("ascii"), Incident.model_validate_json(body)


def export(file: Database, write: Callable[[str], object]) -> int:
    """Write every card as a line of JSON with `write`, in order of creation; return their number.

    No lock is held during `write`: a card changed meanwhile is written in either version.
    """
    count = 0
    for card in stored_cards(file):
        write(card.model_dump_json(exclude={"history"}) + "\n")
        count += 1
    return count


@contextmanager
def read(stream: BinaryIO, *, skip: bool = False) -> Iterator[Lines]:
    """Yield the cards of `stream`, one per line, after reading and validating all of it.

    Blank lines are skipped. Raises `ToolError`: bad_argument for the first invalid line unless `skip`, for a stream
    without cards or above the bounds; disk_full, io_error.
    """
    refused: list[Refused] = []
    count = left_out = size = 0
    try:
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
            for number, raw in enumerate(iter(lambda: stream.readline(_LINE + 1), b""), 1):
                size += len(raw)
                if number > _LINES or size > _BYTES:
                    what = f"more than {_LINES} lines" if number > _LINES else f"more than {_BYTES} bytes"
                    raise ToolError(ErrorCode.BAD_ARGUMENT, what, "split the file; nothing was imported")
                line = raw.removeprefix(b"\xef\xbb\xbf").strip() if number == 1 else raw.strip()
                if not line:
                    continue
                try:
                    if len(raw) > _LINE:
                        _skip_line(stream)
                        raise ValueError(f"longer than {_LINE} bytes")
                    spool.write(_checked(line))
                    count += 1
                except ValueError as error:
                    left_out += 1
                    if len(refused) < _SHOWN:
                        refused.append(Refused(line=number, why=clean(str(error), 300)))
            if refused and not skip:
                more = f" (and {left_out - 1} more)" if left_out > 1 else ""
                first = refused[0]
                remedy = "nothing was imported; correct the lines, or skip them with --skip"
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"line {first.line}: {first.why}{more}", remedy)
            if not count:
                remedy = "`whystall kb export` writes cards, one a line"
                raise ToolError(ErrorCode.BAD_ARGUMENT, "the input has no card", remedy)
            yield Lines(spool, count, left_out, refused)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        code = ErrorCode.DISK_FULL if full else ErrorCode.IO_ERROR
        raise ToolError(code, f"cannot read the cards: {error.strerror}", "nothing was imported; try again") from None


def store_imported(
    db: Connection, lines: Lines, put: Callable[[Connection, Incident], None], *, reviewed: bool, by: str
) -> Imported:
    """Store the cards of `lines` with `put`, within the open transaction.

    A card is a duplicate if any card here has or had its content, or if it is a curated one of the same id. Cards
    become drafts unless `reviewed` and reviewed in the file; retired ones stay retired. An id that is taken or reserved
    for tickets is replaced by one made from the content.
    """
    at, added, duplicates = now(), 0, 0
    for hash, card in lines.cards():
        if card_with_content(db, hash) is not None:
            duplicates += 1
            continue
        taken = db.execute("SELECT origin FROM incidents WHERE id = ?", [card.id]).fetchone()
        if taken is not None and taken[0] == card.origin == "curated":
            duplicates += 1
            continue
        id = content_id(hash) if taken is not None or card.id.startswith((LESSON, _OWN)) else card.id
        trusted = reviewed and card.state == "reviewed"
        update = {
            "id": id,
            "origin": "user",
            "state": card.state if trusted or card.state == "retired" else "draft",
            "created": card.created if moment(card.created) else at,
            "updated": at,
            "notes": [note.model_copy(update={"reviewed": trusted}) for note in card.notes],
            "history": [HistoryEntry(what="imported", by=clean(by, card_life.NAME), at=at, because=f"as {card.id}")],
        }
        put(db, card.model_copy(update=update))
        added += 1
    compact(db, added)
    return Imported(added=added, duplicates=duplicates, left_out=lines.left_out, refused=lines.refused)


def card_with_content(db: Connection, hash: str) -> str | None:
    """Return the id of the card that has or had the content `hash`."""
    row = db.execute(
        "SELECT i.id FROM hashes h JOIN incidents i ON i.id = h.incident WHERE h.hash = ?", [hash]
    ).fetchone()
    return str(row[0]) if row is not None else None


def remember_content(db: Connection, card: Incident) -> None:
    """Remember the content of `card`, within the open transaction."""
    hash = card_life.content_hash(card)
    db.execute("INSERT OR REPLACE INTO hashes (hash, incident) VALUES (?, ?)", [hash, card.id])


def content_id(hash: str) -> str:
    """Return an id made from the content `hash`."""
    return f"{_OWN}{hash.partition(':')[2][:16]}"


def _checked(line: bytes) -> bytes:
    """Return the spool line of a card: content hash and JSON; ValueError has the fault."""
    try:
        read = Incident.model_validate_json(line)
        if "origin" not in read.model_fields_set:  # exports of curated cards contain it
            read = read.model_copy(update={"origin": "user"})
        card = card_life.checked(read)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}" if where else first["msg"]) from None
    except ToolError as error:
        raise ValueError(error.message) from None
    return f"{card_life.content_hash(card)} {card.model_dump_json()}\n".encode()


def _skip_line(stream: BinaryIO) -> None:
    while (rest := stream.readline(_LINE)) and not rest.endswith(b"\n"):
        pass
