"""Import a backlog of work orders as classified tickets; equal ones are counted in one ticket.

Crash-safe: each batch is stored in one transaction together with the keys of its rows and the decisions on them, so
that a repeated import continues where the first one ended and reports the same.
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
"""Rows per transaction, which blocks other writers for 0.1 to 0.5 s. It also decides when examples are learnt: do not
change it while an interrupted import is to be continued."""
_SHOWN = 20  # invalid rows listed
_UNKNOWN_LABELS = 10
# After such a row of CSV it is unknown where the next one begins.
_UNRECOVERABLE = ("too_large",)


class LeftOut(Model):
    """An invalid row that was skipped; see `BadRow`."""

    line: int
    why: str
    detail: str = ""


class Imported(Model):
    """The result of an import. Of the `rows` read, `new` created a ticket, `again` were counted in one, `known` were
    imported before, and `changed` of these have another text now (their tickets are unchanged). `left_out`: invalid.

    `linked`: links to similar tickets. `by`, `categories`, `severities`: counts over all rows, known ones too. `score`:
    if people gave categories; `foreign`: the most frequent of these that are none of ours, of `foreign_count` rows.
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
    result: Imported = field(default_factory=Imported)
    tally: Tally = field(default_factory=Tally)
    by: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    severities: Counter[str] = field(default_factory=Counter)
    foreign: Counter[str] = field(default_factory=Counter)

    def add(self, order: FiledOrder) -> None:
        self.by[order.by.partition(":")[0]] += 1
        self.categories[order.category] += 1
        self.severities[order.severity] += 1
        if order.truth.startswith("?"):
            if order.truth in self.foreign or len(self.foreign) < 1000:
                self.foreign[order.truth] += 1
        elif order.truth:
            self.tally.add(order.truth, order.category, order.by)


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

    `skip`: skip and list invalid rows; else the first one ends the import with `ToolError` (bad_argument), and the rows
    before it stay stored. `learn`: rows with a category given by people become examples of it. `progress`: called with
    the rows and bytes read.
    """
    started = time.monotonic()
    if table.form == "csv":
        columns = columns.resolve(table.columns)
    sums = _Sums()
    rows = table.rows()
    while batch := list(islice(rows, BATCH)):
        if table.form == "jsonl" and not columns.resolved:
            valid = [row for row in batch if isinstance(row, Row)]
            columns = columns.resolve(list(dict.fromkeys(name for row in valid for name in row.cells)))
        good, bad = _split(batch, columns, skip)
        _file(kb, ticket_service, good, columns, source, by, learn, sums)
        for row in bad:
            sums.result.left_out += 1
            if len(sums.result.refused) < _SHOWN:
                sums.result.refused.append(LeftOut(line=row.line, why=row.why, detail=row.detail))
        if bad and (not skip or (bad[-1].why in _UNRECOVERABLE and table.form == "csv")):
            raise _refusal(bad[-1], sums.result)
        if progress is not None:
            progress(sums.result.rows, table.done)
    return _summed(sums, table, columns, time.monotonic() - started)


def _split(batch: list[Row | BadRow], columns: Columns, skip: bool) -> tuple[list[Row], list[BadRow]]:
    """Return the valid and the invalid rows of `batch`; up to the first that ends the import."""
    good: list[Row] = []
    bad: list[BadRow] = []
    for row in batch:
        if isinstance(row, Row) and _empty(row, columns):
            row = BadRow(row.line, "empty")
        if isinstance(row, Row):
            good.append(row)
            continue
        bad.append(row)
        if not skip or row.why in _UNRECOVERABLE:
            break
    return good, bad


def _empty(row: Row, columns: Columns) -> bool:
    return not any(row.cells.get(name or "", "").strip() for name in (columns.title, columns.text))


def _file(
    kb: Stores,
    ticket_service: TicketService,
    rows: list[Row],
    columns: Columns,
    source: str,
    by: str,
    learn: bool,
    sums: _Sums,
) -> None:
    """File `rows` in one transaction; those imported before, also in this batch, are only counted."""
    now = datetime.now(timezone.utc)
    fresh: dict[str, Row] = {}
    hashes: list[tuple[str, str]] = []
    for row in rows:
        key = key_of(row, columns)
        hashes.append((key, text_hash(row, columns)))
        fresh.setdefault(key, row)
    before = kb.work_orders.known(source, fresh)
    prepared = []
    memory = kb.classifier.memory()  # of the whole batch: a card changed meanwhile counts in the next
    for key, row in fresh.items():
        report = report_of(row, columns, now) if key not in before else None
        if report is not None:
            prepared.append((key, row, report, kb.classifier.classify(report, memory)))
    filed: dict[str, FiledOrder] = {}
    with kb.transaction():
        for key, row, report, found in prepared:
            # The only trace of a row that is counted in the ticket of another one.
            detail = f"{key.removeprefix('id:')}: {report.title}" if key.startswith("id:") else report.title
            occurrence = ticket_service.file(report, by, now, found, detail)
            decided = found.classification
            filed[key] = FiledOrder(
                ticket=int(occurrence.ticket.id),
                outcome="new" if occurrence.new else "again",
                category=decided.category.value,
                by=decided.category.by,
                severity=decided.severity.value,
                truth=truth_of(row, columns),
                linked=len(occurrence.ticket.links) if occurrence.new else 0,
                text=text_hash(row, columns),
            )
            if learn and filed[key].truth and not filed[key].truth.startswith("?"):
                sums.result.learnt += 1
                kb.classifier.centroids.learn(f"{report.title}\n{report.description}", filed[key].truth)
        kb.work_orders.put(source, list(filed.items()))
    _count(hashes, before, filed, sums)


def _count(
    hashes: list[tuple[str, str]], before: Mapping[str, FiledOrder], filed: Mapping[str, FiledOrder], sums: _Sums
) -> None:
    first = set(filed)
    for key, text in hashes:
        sums.result.rows += 1
        one = filed.get(key) or before.get(key)
        if one is None:
            continue
        if key in first:
            first.discard(key)
            sums.result.new += one.outcome == "new"
            sums.result.again += one.outcome == "again"
            sums.result.linked += one.linked
        else:
            sums.result.known += 1
            sums.result.changed += text != one.text
        sums.add(one)


def _refusal(row: BadRow, result: Imported) -> ToolError:
    why = words("en")["work_orders"]["why"][row.why]
    detail = f" ({row.detail})" if row.detail else ""
    stored = f"; the {result.rows} rows before it are stored" if result.rows else ""
    remedy = "correct it and import again: stored rows are not imported twice"
    if row.why not in _UNRECOVERABLE:
        remedy += "; or skip such rows with --skip"
    return ToolError(ErrorCode.BAD_ARGUMENT, f"line {row.line}: {why}{detail}{stored}", remedy)


def _summed(sums: _Sums, table: Table, columns: Columns, seconds: float) -> Imported:
    named = ("id", "title", "text", "created", "severity", "category")
    return sums.result.model_copy(
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
