"""A backlog of work orders becomes tickets: each once, classified, the same ones counted in one ticket.

Rows are taken in batches, each in one transaction with the memory of what was taken: killed at any moment, an import
that is begun again goes on where it was, and comes to the same. What was decided is kept with it, so that the report of
a second run is that of the first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING

from pydantic import Field

from whystall.agent_server.journal.work_orders import FiledOrder
from whystall.agent_server.ticketing.ticket_service import TicketService
from whystall.agent_server.ticketing.work_orders.columns import Columns, key_of, report_of, text_hash, truth_of
from whystall.agent_server.ticketing.work_orders.reading import BadRow, Row, Table
from whystall.knowledge_base.classify.scoring import Score, Tally
from whystall.knowledge_base.models import Model
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

BATCH = 100
"""Rows of one transaction, which lasts 0.1 to 0.5 s: others wait no longer. It may not change while an import that was
killed is to be gone on with: examples are learnt at its ends."""
_SHOWN = 20  # rows that are named
_UNKNOWN_LABELS = 10
# What is behind such a line cannot be told from what is in its cell.
_LOST = ("too_large",)


class LeftOut(Model):
    """A row that was not taken: the line it begins in, and why (`BadRow.why`)."""

    line: int
    why: str
    detail: str = ""


class Imported(Model):
    """What became of an import. Of the `rows` read, `new` made a ticket, `again` were counted in one, `known` were
    taken before, of which `changed` say something else now (their tickets are left as they are). `left_out`: no rows.

    `linked`: links to tickets that read alike. `by`, `categories`, `severities`: of all rows, known ones too. `score`:
    where there are labels; `foreign`: labels that mean no category of ours, the most frequent first, and the count of
    all rows that have such.
    """

    rows: int = 0
    new: int = 0
    again: int = 0
    known: int = 0
    changed: int = 0
    left_out: int = 0
    linked: int = 0
    refused: list[LeftOut] = Field(default_factory=list)
    by: dict[str, int] = Field(default_factory=dict)
    categories: dict[str, int] = Field(default_factory=dict)
    severities: dict[str, int] = Field(default_factory=dict)
    labelled: int = 0
    learnt: int = 0
    foreign: dict[str, int] = Field(default_factory=dict)
    foreign_count: int = 0
    score: Score | None = None
    encoding: str = ""
    columns: dict[str, str] = Field(default_factory=dict)
    dry_run: bool = False
    seconds: float = 0.0


@dataclass
class _Sums:
    done: Imported = field(default_factory=Imported)
    tally: Tally = field(default_factory=Tally)
    by: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    severities: Counter[str] = field(default_factory=Counter)
    foreign: Counter[str] = field(default_factory=Counter)

    def add(self, taken: FiledOrder) -> None:
        self.by[taken.by.partition(":")[0]] += 1
        self.categories[taken.category] += 1
        self.severities[taken.severity] += 1
        if taken.truth.startswith("?"):
            if taken.truth in self.foreign or len(self.foreign) < 1000:
                self.foreign[taken.truth] += 1
        elif taken.truth:
            self.tally.add(taken.truth, taken.category, taken.by)


def import_work_orders(
    kb: Stores,
    ticket_service: TicketService,
    table: Table,
    columns: Columns,
    *,
    source: str = "work_orders",
    by: str = "",
    skip: bool = False,
    learn: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Imported:
    """File the work orders of `table`, whose ids are unique within `source`.

    `skip`: leave out rows that are none, and name them; else the first ends the import with `ToolError` (bad_argument),
    which says its line; what came before it is stored, and not taken again. `learn`: labelled ones become examples of
    their category. `progress`: called with the rows and bytes done.
    """
    begun = time.monotonic()
    if table.form == "csv":
        columns = columns.found(table.columns)
    sums = _Sums()
    rows = table.rows()
    while batch := list(islice(rows, BATCH)):
        if table.form == "jsonl" and not columns.fixed:
            columns = columns.found(list(dict.fromkeys(n for row in batch if isinstance(row, Row) for n in row.cells)))
        good, bad = _sorted_out(batch, columns, skip)
        _take(kb, ticket_service, good, columns, source, by, learn, sums)
        for row in bad:
            sums.done.left_out += 1
            if len(sums.done.refused) < _SHOWN:
                sums.done.refused.append(LeftOut(line=row.line, why=row.why, detail=row.detail))
        if bad and (not skip or (bad[-1].why in _LOST and table.form == "csv")):
            raise _refusal(bad[-1], sums.done)
        if progress is not None:
            progress(sums.done.rows, table.done)
    return _summed(sums, table, columns, time.monotonic() - begun)


def _sorted_out(batch: list[Row | BadRow], columns: Columns, skip: bool) -> tuple[list[Row], list[BadRow]]:
    """The rows of `batch` and what is none; up to the first of the latter, unless they are to be left out."""
    good: list[Row] = []
    bad: list[BadRow] = []
    for row in batch:
        if isinstance(row, Row) and _empty(row, columns):
            row = BadRow(row.line, "empty")
        if isinstance(row, Row):
            good.append(row)
            continue
        bad.append(row)
        if not skip or row.why in _LOST:
            break
    return good, bad


def _empty(row: Row, columns: Columns) -> bool:
    return not any(row.cells.get(name or "", "").strip() for name in (columns.title, columns.text))


def _take(
    kb: Stores,
    ticket_service: TicketService,
    rows: list[Row],
    columns: Columns,
    source: str,
    by: str,
    learn: bool,
    sums: _Sums,
) -> None:
    """File `rows` in one transaction; those that were taken before, also in this batch, are only counted."""
    now = datetime.now(timezone.utc)
    fresh: dict[str, Row] = {}
    hashes: list[tuple[str, str]] = []
    for row in rows:
        key = key_of(row, columns)
        hashes.append((key, text_hash(row, columns)))
        fresh.setdefault(key, row)
    before = kb.work_orders.known(source, fresh)
    prepared = []
    memory = kb.classifier.memory()  # for one batch: a card that somebody changes meanwhile counts in the next
    for key, row in fresh.items():
        report = report_of(row, columns, now) if key not in before else None
        if report is not None:
            prepared.append((key, row, report, kb.classifier.classify(report, memory)))
    taken: dict[str, FiledOrder] = {}
    with kb.transaction():
        for key, row, report, found in prepared:
            # of one that is counted in another's ticket, this is all that is told there
            detail = f"{key.removeprefix('id:')}: {report.title}" if key.startswith("id:") else report.title
            filed = ticket_service.file(report, by, now, found, detail)
            told = found.classification
            taken[key] = FiledOrder(
                ticket=int(filed.ticket.id),
                outcome="new" if filed.new else "again",
                category=told.category.value,
                by=told.category.by,
                severity=told.severity.value,
                truth=truth_of(row, columns),
                linked=len(filed.ticket.links) if filed.new else 0,
                text=text_hash(row, columns),
            )
            if learn and taken[key].truth and not taken[key].truth.startswith("?"):
                sums.done.learnt += 1
                kb.classifier.centroids.learn(f"{report.title}\n{report.description}", taken[key].truth)
        kb.work_orders.put(source, list(taken.items()))
    _count(hashes, before, taken, sums)


def _count(
    hashes: list[tuple[str, str]], before: Mapping[str, FiledOrder], taken: Mapping[str, FiledOrder], sums: _Sums
) -> None:
    first = set(taken)
    for key, text in hashes:
        sums.done.rows += 1
        one = taken.get(key) or before.get(key)
        if one is None:
            continue
        if key in first:
            first.discard(key)
            sums.done.new += one.outcome == "new"
            sums.done.again += one.outcome == "again"
            sums.done.linked += one.linked
        else:
            sums.done.known += 1
            sums.done.changed += text != one.text
        sums.add(one)


def _refusal(row: BadRow, done: Imported) -> ToolError:
    said = words("en")["work_orders"]["why"][row.why]
    detail = f" ({row.detail})" if row.detail else ""
    stored = f"; the {done.rows} rows before it are stored" if done.rows else ""
    remedy = "correct it and import again: what is stored is not taken twice"
    if row.why not in _LOST:
        remedy += "; or leave such rows out with --skip"
    return ToolError(ErrorCode.BAD_ARGUMENT, f"line {row.line}: {said}{detail}{stored}", remedy)


def _summed(sums: _Sums, table: Table, columns: Columns, seconds: float) -> Imported:
    named = ("id", "title", "text", "created", "severity", "category")
    return sums.done.model_copy(
        update={
            "by": dict(sums.by.most_common()),
            "categories": dict(sums.categories.most_common()),
            "severities": dict(sums.severities.most_common()),
            "labelled": sums.tally.count + sums.foreign.total(),
            "foreign_count": sums.foreign.total(),
            "foreign": {name[1:]: count for name, count in sums.foreign.most_common(_UNKNOWN_LABELS)},
            "score": sums.tally.score() if sums.tally.count else None,
            "encoding": table.encoding,
            "columns": {name: value for name in named if (value := getattr(columns, name)) is not None},
            "seconds": round(seconds, 3),
        }
    )
