"""Which column of a work order holds what, and the report that a row becomes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.ticketing.work_orders.reading import Row
from whystall.knowledge_base.classify.report import TEXT_LIMIT, TITLE_LIMIT, Report
from whystall.knowledge_base.classify.rules import UNKNOWN, categories
from whystall.knowledge_base.classify.wording import wording
from whystall.knowledge_base.tickets import human
from whystall.knowledge_base.times import moment, rfc3339
from whystall.knowledge_base.tokens import plain
from whystall.prompts.files import LANGS
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError

_KEPT = 40  # labels of a ticket
_VALUE = 300  # characters of a label
_HEADLINE = 120  # characters of a text that make a title
# "2026/1/2 10:33[:04]", "2026-1-2", "2026.1.2" and the same with the signs for year, month and day.
_DAY = re.compile(
    r"\s*(\d{4})[-/.\u5e74](\d{1,2})[-/.\u6708](\d{1,2})\u65e5?(?:[T\s]+(\d{1,2})[:\u65f6](\d{2})(?:[:\u5206](\d{2}))?)?"
)
_SECONDS = re.compile(r"\d{9,10}(?:\.\d+)?|\d{12,13}")


class Columns(BaseModel):
    """Names of columns; None: taken by its usual names, where there is one. `keep`: further ones, which become labels
    of the ticket (those that say where it is always do). `category`: of the label that somebody gave, for the report;
    `classes`: what such labels mean, by their words.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str | None = None
    title: str | None = None
    text: str | None = None
    created: str | None = None
    severity: str | None = None
    category: str | None = None
    keep: Sequence[str] = ()
    classes: Mapping[str, str] = Field(default_factory=dict)

    def found(self, header: Collection[str]) -> Columns:
        """These columns in a table with `header`; `ToolError` (bad_argument) names one that is not there, or says that
        nothing in it tells what a work order is about.
        """
        given = [self.id, self.title, self.text, self.created, self.severity, self.category, *self.keep]
        shown = ", ".join(repr(name) for name in list(header)[:20])
        for name in given:
            if name is not None and name not in header:
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"there is no column {name!r}", f"there are {shown}")
        by_name = {plain(name).strip(): name for name in reversed(list(header))}
        usual = wording().columns
        taken = {
            field: getattr(self, field)
            or next((by_name[name] for name in getattr(usual, field) if name in by_name), None)
            for field in ("id", "title", "text", "created", "severity")
        }
        if taken["title"] is None and taken["text"] is None:
            message = f"no column says what a work order is about; there are {shown}"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "name one with --title or --text")
        places = [name for name in header if plain(name).strip() in wording().sameness.places]
        used = set(taken.values())
        keep = [name for name in dict.fromkeys([*self.keep, *places]) if name in self.keep or name not in used]
        return self.model_copy(update={**taken, "keep": keep[:_KEPT]})

    @property
    def fixed(self) -> bool:
        """Whether `found` has been asked already or everything is named: lines of JSON have no header."""
        return self.title is not None or self.text is not None


def report_of(row: Row, columns: Columns, now: datetime) -> Report | None:
    """The report that `row` becomes; None where it says nothing. `now`: when it began, where the row does not tell."""
    title = human.line(_cell(row, columns.title), TITLE_LIMIT)
    text = human.lines(_cell(row, columns.text), TEXT_LIMIT)
    if not title:
        title = human.line(text.partition("\n")[0], _HEADLINE)
        text = "" if title == text else text
    if not title:
        return None
    labels = {human.line(name, 100): human.line(row.cells.get(name, ""), _VALUE) for name in columns.keep}
    return Report(
        origin="work_order",
        title=title,
        description=text,
        labels={name: value for name, value in labels.items() if value},
        source_severity=human.line(_cell(row, columns.severity), 100),
        created=created(_cell(row, columns.created), now),
        sinks=[],
    )


def key_of(row: Row, columns: Columns) -> str:
    """What a row is known by when it comes again: its id, else a hash of all its cells."""
    id = human.line(_cell(row, columns.id), 200)
    if id:
        return f"id:{id}"
    whole = "\0".join(f"{name}\0{value}" for name, value in sorted(row.cells.items()))
    return f"sha:{hashlib.sha256(whole.encode('utf-8', 'replace')).hexdigest()}"


def text_hash(row: Row, columns: Columns) -> str:
    """A hash of what a row says."""
    said = f"{_cell(row, columns.title)}\0{_cell(row, columns.text)}"
    return hashlib.sha256(said.encode("utf-8", "replace")).hexdigest()[:32]


def truth_of(row: Row, columns: Columns) -> str:
    """The category that `row` was labelled with; empty without a label, ``?LABEL`` for one that means none of ours."""
    label = plain(_cell(row, columns.category)).strip()
    if not label:
        return ""
    given = {plain(word).strip(): category for word, category in columns.classes.items()}
    meant = given.get(label) or _called().get(label, label)
    return meant if meant == UNKNOWN or meant in categories() else f"?{human.line(label, 60)}"


@cache
def _called() -> Mapping[str, str]:
    """What our categories are called in both languages, to their names."""
    return {
        plain(str(word)): id for lang in LANGS for id, word in words(lang)["categories"].items() if id in categories()
    }


def created(text: str, now: datetime) -> str:
    """The moment that `text` tells, in any of the usual ways, as RFC 3339; `now` where it tells none or one to come."""
    found = moment(text) if text else None
    if found is None and (day := _DAY.match(text)):
        try:
            found = datetime(*(int(part or 0) for part in day.groups()), tzinfo=timezone.utc)  # type: ignore[misc,arg-type]
        except ValueError:
            found = None
    if found is None and _SECONDS.fullmatch(text.strip()):
        seconds = float(text)
        found = datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, timezone.utc)
    return rfc3339(found if found is not None and found <= now else now)


def _cell(row: Row, column: str | None) -> str:
    return row.cells.get(column, "") if column is not None else ""
