"""Map the columns of work orders, and convert rows to reports."""

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
_HEADLINE = 120  # characters of a title taken from the text
# "2026/1/2 10:33[:04]", "2026-1-2", "2026.1.2", and with the Chinese characters for year, month, day, hour, minute.
_DAY = re.compile(
    r"\s*(\d{4})[-/.\u5e74](\d{1,2})[-/.\u6708](\d{1,2})\u65e5?(?:[T\s]+(\d{1,2})[:\u65f6](\d{2})(?:[:\u5206](\d{2}))?)?"
)
_SECONDS = re.compile(r"\d{9,10}(?:\.\d+)?|\d{12,13}")


class Columns(BaseModel):
    """Names of columns; None: detected by their usual names. `keep`: columns that become labels of the ticket, besides
    those of places. `category`: the column of a category given by people, to measure ours against; `classes`: our
    category by its values.
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

    def resolve(self, header: Collection[str]) -> Columns:
        """Return these columns with the missing ones detected in `header`.

        Raises `ToolError` (bad_argument) for a column that does not exist, or without a column for title or text.
        """
        given = [self.id, self.title, self.text, self.created, self.severity, self.category, *self.keep]
        shown = ", ".join(repr(name) for name in list(header)[:20])
        for name in given:
            if name is not None and name not in header:
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"there is no column {name!r}", f"there are {shown}")
        by_name = {plain(name).strip(): name for name in reversed(list(header))}
        usual = wording().columns
        resolved = {
            field: getattr(self, field)
            or next((by_name[name] for name in getattr(usual, field) if name in by_name), None)
            for field in ("id", "title", "text", "created", "severity")
        }
        if resolved["title"] is None and resolved["text"] is None:
            message = f"no column for the title or the text of a work order was found; there are {shown}"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "name one with --title or --text")
        places = [name for name in header if plain(name).strip() in wording().sameness.places]
        used = set(resolved.values())
        keep = [name for name in dict.fromkeys([*self.keep, *places]) if name in self.keep or name not in used]
        return self.model_copy(update={**resolved, "keep": keep[:_KEPT]})

    @property
    def resolved(self) -> bool:
        """Whether title or text are known: JSON has no header, so that the first rows with one decide."""
        return self.title is not None or self.text is not None


def report_of(row: Row, columns: Columns, now: datetime) -> Report | None:
    """Convert `row` to a report; None if title and text are empty. `now`: its time of creation if the row has none."""
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
    """Return the deduplication key of a row: its id, else a hash of all its cells."""
    id = human.line(_cell(row, columns.id), 200)
    if id:
        return f"id:{id}"
    whole = "\0".join(f"{name}\0{value}" for name, value in sorted(row.cells.items()))
    return f"sha:{hashlib.sha256(whole.encode('utf-8', 'replace')).hexdigest()}"


def text_hash(row: Row, columns: Columns) -> str:
    """Return a hash of a row's title and text."""
    text = f"{_cell(row, columns.title)}\0{_cell(row, columns.text)}"
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def truth_of(row: Row, columns: Columns) -> str:
    """Return the category that people gave `row`; empty without a label, ``?LABEL`` if it is none of ours."""
    label = plain(_cell(row, columns.category)).strip()
    if not label:
        return ""
    given = {plain(word).strip(): value for word, value in columns.classes.items()}
    category = given.get(label) or _category_names().get(label, label)
    return category if category == UNKNOWN or category in categories() else f"?{human.line(label, 60)}"


@cache
def _category_names() -> Mapping[str, str]:
    """Return our categories by their names in all languages."""
    return {
        plain(str(word)): id for lang in LANGS for id, word in words(lang)["categories"].items() if id in categories()
    }


def created(text: str, now: datetime) -> str:
    """Parse a time in any usual format (``2026/1/2 10:33``, ``1790000000``, RFC 3339) and return it as RFC 3339; `now`
    if it is no time or in the future.
    """
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
