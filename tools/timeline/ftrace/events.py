"""Convert heads and payloads of ftrace's lines to rows of the tables of a `SchedTrace`.

Payloads repeat: the same thread is woken, switched in and interrupted again and again. So each distinct payload is
parsed once, by exact expressions, cached, and joined to all lines that have it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl

from whystall.tools.timeline.ftrace import payloads
from whystall.tools.timeline.ftrace.columns import TABLE_OF, of_the_row
from whystall.tools.timeline.ftrace.payloads import EVENT, Family
from whystall.tools.timeline.sched import TABLES

NAMES = pl.Schema({"row": pl.get_index_type(), "at_ns": pl.Int64, "tid": pl.Int32, "comm": pl.String})
"""A thread's name in an event, at its time."""
GROUPS = pl.Schema({"tid": pl.Int32, "pid": pl.Int32, "like": pl.Int32})
"""Thread groups in events: `pid`, or that of the thread `like`; -1: not that one."""

_THREAD = 0x10000  # CLONE_THREAD
_REMEMBERED = 200_000  # payloads of a family, and names
# Columns that hold a thread and its name. Other families name no thread, or seldom (`_names_in_tasks`).
_NAMED = {
    payloads.SWITCH: (("of", "comm"), ("next", "next_comm")),
    payloads.WAKE: (("of", "comm"),),
    payloads.MIGRATE: (("of", "comm"),),
}


@dataclass(frozen=True)
class Read:
    """Of one block: rows of the tables that have some; `names` (`NAMES`); `groups` (`GROUPS`); the number of each other
    event; and the rows of known events that could not be read (`row`, `event`)."""

    tables: dict[str, pl.DataFrame]
    names: pl.DataFrame
    groups: pl.DataFrame
    others: Counter[str]
    unread: pl.DataFrame


_COLUMNS = {
    family: [of_the_row(family).get(name, pl.col(name)).cast(kind).alias(name) for name, kind in TABLES[table].items()]
    for family, (table, _) in TABLE_OF.items()
}


class Decoder:
    """Reads blocks of events and caches their payloads; for one thread at a time."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._names: dict[tuple[int, str], int] = {}
        self._known = {family: _Known(family, self._names) for family in TABLE_OF}

    def read(self, events: pl.DataFrame) -> Read:
        """Read events (`heads.HEADS`)."""
        if len(self._names) > _REMEMBERED:
            self._forget()
        tables: dict[str, pl.DataFrame] = {}
        named, unread = list[pl.DataFrame](), [events.clear()]
        in_tasks, groups, strange = NAMES.to_frame(), GROUPS.to_frame(), events.clear()
        for family, starts in _families(events).items():
            part = events.filter(pl.col("start").is_in(starts) if len(starts) > 1 else pl.col("start") == starts[0])
            if family is None:
                strange = part
                continue
            rows = self._known[family].rows(part)
            if len(rows) < len(part):
                unread.append(part.join(rows, on="row", how="anti"))
            named += [rows.select("row", "at_ns", name=name) for name in _name_columns(family)]
            if family is payloads.WAKE and (rows.get_column("success") == 0).any():
                rows = rows.filter(pl.col("success").fill_null(1) != 0)  # of 3.x: the thread was awake
            if family is payloads.TASK:
                in_tasks, groups = _names_in_tasks(rows), _groups(rows)
            tables[TABLE_OF[family][0]] = rows.select(_COLUMNS[family])
        odd, others = _unreadable(unread, strange)
        names = pl.concat([self._changed_names(named), in_tasks]).sort("row", maintain_order=True)
        return Read(tables, names, groups, others, odd)

    def _changed_names(self, named: list[pl.DataFrame]) -> pl.DataFrame:
        """Return the names at these rows: a thread's first, and those that differ from the one before."""
        if not named:
            return NAMES.to_frame()
        known = pl.DataFrame(list(self._names), schema={"tid": pl.Int32, "comm": pl.String}, orient="row")
        known = known.with_row_index("name")
        first = pl.concat([one.filter(pl.col("name").is_first_distinct()) for one in named])
        first = first.drop_nulls().group_by("name").min().join(known, on="name")
        several = pl.col("tid").is_duplicated()
        names = first.filter(several).get_column("name").implode()
        changes = pl.concat([one.filter(pl.col("name").is_in(names)) for one in named]).sort("row")
        changes = renamed(changes.join(known, on="name", maintain_order="left").select(NAMES.names()))
        return pl.concat([first.filter(~several).select(NAMES.names()), changes])


class _Known:
    """Parsed payloads of one family: the columns of their table, and the threads they name as numbers of `names`."""

    def __init__(self, family: Family, names: dict[tuple[int, str], int]) -> None:
        self._family, self._names = family, names
        self._known = self._read(pl.Series(dtype=pl.String))

    def rows(self, part: pl.DataFrame) -> pl.DataFrame:
        """Return the events that can be read, in their order, with their parsed payloads."""
        distinct = part.select(EVENT.unique())
        known = self._known
        if self._family.repeats:
            distinct = distinct.join(known, on="event", how="anti")
        if not distinct.is_empty():
            new = self._read(distinct.get_column("event"))
            known = pl.concat([known, new], rechunk=True) if self._family.repeats else new
        if self._family.repeats:
            self._known = known if len(known) <= _REMEMBERED else known.clear()
        rows = part.join(known, on="event", how="inner", maintain_order="left")
        if self._family is payloads.SWITCH and (rows.get_column("prev_tid") != rows.get_column("tid")).any():
            # a switch happens in the thread that leaves: else the line was torn, or a name was ambiguous
            rows = rows.filter((pl.col("prev_tid") == pl.col("tid")) | (pl.col("tid") < 0))
        return rows

    def _read(self, texts: pl.Series) -> pl.DataFrame:
        parsed = self._family.parse(texts)
        columns = TABLE_OF[self._family][1](parsed)
        ids = [self._numbered(parsed, *pair).alias(name) for name, pair in _name_columns(self._family).items()]
        # a copy of the text, which would keep the whole block in memory
        return columns.with_columns(pl.concat_str(EVENT, pl.lit("")).alias("event"), *ids)

    def _numbered(self, parsed: pl.DataFrame, tid: str, comm: str) -> pl.Series:
        pairs = parsed.select(tid, comm)
        distinct = pairs.unique().drop_nulls().filter(pl.col(tid) > 0)
        numbers = [self._names.setdefault(pair, len(self._names)) for pair in distinct.iter_rows()]
        distinct = distinct.with_columns(name=pl.Series(numbers, dtype=pl.UInt32))
        return pairs.join(distinct, on=[tid, comm], how="left", maintain_order="left").get_column("name")


def _name_columns(family: Family) -> dict[str, tuple[str, str]]:
    """Return columns with numbers of names, and the thread and the name they stand for."""
    return {f"name{index}": pair for index, pair in enumerate(_NAMED.get(family, ()))}


def _families(events: pl.DataFrame) -> dict[Family | None, list[int]]:
    """Return the families that occur, with the starts of their events (None: of no family)."""
    found: dict[Family | None, list[int]] = {}
    for start in events.get_column("start").unique():
        text = start.to_bytes(8, "little").decode("latin1")
        families = (family for family in TABLE_OF if text.startswith(family.prefixes))
        found.setdefault(next(families, None), []).append(start)
    return found


def _unreadable(unread: list[pl.DataFrame], strange: pl.DataFrame) -> tuple[pl.DataFrame, Counter[str]]:
    """Return known events that could not be read, and the number of each other event."""
    name = EVENT.str.extract(r"^([^\s:(]+)", 1).fill_null("")
    named = pl.concat(unread).with_columns(name=name.replace("0", "tracing_mark_write"))  # its name before 3.2
    known_events = pl.col("name").str.contains("^(?:" + "|".join(family.names for family in TABLE_OF) + ")$")
    count = Counter(named.filter(~known_events).get_column("name").to_list()) if len(named) else Counter[str]()
    if len(strange):
        name = EVENT.str.slice(0, EVENT.str.find(":", literal=True))  # a function's line has none: all of it
        for text, times in strange.select(name).to_series().value_counts(name="count").iter_rows():
            count[text.split(" ", 1)[0]] += times
    return named.filter(known_events).select("row", "event"), count


def _names_in_tasks(tasks: pl.DataFrame) -> pl.DataFrame:
    renames = pl.col("kind") == "rename"
    pairs = (
        (pl.when(~renames).then("of"), pl.col("comm")),
        (pl.when(renames).then(pl.coalesce("of", "tid")), pl.col("name")),
        (pl.col("other_tid"), pl.col("name")),
    )
    every = pl.concat([tasks.select("row", "at_ns", tid=tid, comm=comm) for tid, comm in pairs])
    return renamed(every.filter(pl.col("tid") > 0, pl.col("comm").is_not_null()).sort("row", maintain_order=True))


def renamed(names: pl.DataFrame) -> pl.DataFrame:
    """Return the names that differ from the thread's previous one, in the order of time; sorted by thread."""
    names = names.sort("tid", maintain_order=True)
    same = (pl.col("tid") == pl.col("tid").shift(1)) & (pl.col("comm") == pl.col("comm").shift(1))
    return names.filter(~same.fill_null(False))


def _groups(rows: pl.DataFrame) -> pl.DataFrame:
    kind, thread = pl.col("kind"), pl.col("clone") & _THREAD != 0
    made = kind == "newtask"
    return rows.filter(made | (kind == "exec")).select(
        tid=pl.when(made).then("other_tid").otherwise("of"),
        pid=pl.when(made).then(pl.when(thread).then(-1).otherwise("other_tid")).otherwise("of"),
        like=pl.when(made & thread).then("tid").otherwise(-1),
    )
