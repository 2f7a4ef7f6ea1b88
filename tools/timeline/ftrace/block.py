"""Read one block of ftrace's text: a pure function, so that blocks can be read in parallel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import polars as pl

from whystall.tools.timeline.ftrace import heads as ftrace_heads
from whystall.tools.timeline.ftrace import marks as ftrace_marks
from whystall.tools.timeline.ftrace import outliers
from whystall.tools.timeline.ftrace.events import Decoder
from whystall.tools.timeline.ftrace.outliers import Edges

_EXAMPLES = 5
_LINE_FEEDS = 3  # within a name, that are undone
_ROW_BYTES = 60
"""Memory of a row, bytes, about: no table has more than 88 or fewer than 32."""


@dataclass(frozen=True)
class Loss:
    """Events lost on `cpu`, `lost` of them (-1: not counted), between its events at `start` and `end`; None: beyond
    this block. `began`: no event of this CPU was kept before."""

    cpu: int
    lost: int
    began: bool
    start: int | None
    end: int | None


@dataclass(frozen=True)
class Block:
    """The content of a block of lines.

    `tables`: rows of the tables that have some, in the order of the trace. `first`, `last`: the instants of each CPU's
    first and last event. `edges`: the earliest and latest instants of all CPUs; `read_events`: before any was left out,
    `events`: those kept. `names`: `events.NAMES`; `threads`: `heads.THREADS`; `groups`: `events.GROUPS`. `head` and
    `tail`: comments before the first and after the last event. `seconds`: whether instants are nanoseconds, not the
    tracer's own units; None without events.
    """

    tables: dict[str, pl.DataFrame]
    first: dict[int, int]
    last: dict[int, int]
    edges: Edges
    read_events: int
    events: int
    seconds: bool | None
    names: pl.DataFrame
    threads: pl.DataFrame
    groups: pl.DataFrame
    others: Counter[str]
    losses: list[Loss]
    head: list[str]
    tail: list[str]
    odd: int
    examples: list[str]

    @property
    def bytes(self) -> int:
        """Memory of its rows, bytes, about."""
        return sum(map(len, self.tables.values())) * _ROW_BYTES


def read(
    lines: pl.DataFrame,
    decoder: Decoder,
    cpus: frozenset[int] | None = None,
    span_ns: tuple[int, int] | None = None,
) -> Block:
    """Read one frame of `Source.lines`; if given, only events on `cpus`, from `span_ns[0]` up to and without
    `span_ns[1]`. The result does not depend on what the decoder read before, which only makes it fast."""
    found = ftrace_heads.heads(lines)
    events, threads = found.events, found.threads
    marks = ftrace_marks.sort(found.rest)
    first, last = (_row(events, at) for at in (0, -1))
    row = pl.col("row")
    comments = marks.comments
    head = comments.filter(row < first) if len(events) else comments
    tail = comments.filter(row > last) if len(events) else comments.clear()
    read_events = len(events)
    events, odd = _continued(events, marks.odd, decoder)
    losses = _losses(events, marks.losses, cpus)
    if span_ns is not None:
        events = events.filter(pl.col("at_ns").is_between(*span_ns, closed="left"))
    edges = outliers.edges(events.get_column("at_ns"))
    if cpus is not None:
        events = events.filter(pl.col("cpu").is_in(list(cpus)))
    content = decoder.read(events)
    unread = pl.concat([odd, content.unread.select("row", line="event")]).sort("row").get_column("line")
    return Block(
        tables=content.tables,
        first=dict(events.select(pl.col("cpu", "at_ns").filter(pl.col("cpu").is_first_distinct())).iter_rows()),
        last=dict(events.select(pl.col("cpu", "at_ns").filter(pl.col("cpu").is_last_distinct())).iter_rows()),
        edges=edges,
        read_events=read_events,
        events=len(events),
        seconds=found.seconds if read_events else None,
        names=content.names,
        threads=threads,
        groups=content.groups,
        others=content.others,
        losses=losses,
        head=head.get_column("line").to_list(),
        tail=tail.get_column("line").to_list(),
        odd=len(unread),
        examples=[line[:1000] for line in unread.head(_EXAMPLES)],
    )


def _row(events: pl.DataFrame, at: int) -> int:
    return int(events.get_column("row")[at]) if len(events) else 0


def _continued(events: pl.DataFrame, odd: pl.DataFrame, decoder: Decoder) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Join events that line feeds within a command name or a message have cut; return the other unreadable lines."""
    if odd.is_empty() or events.is_empty():
        return events, odd
    run = pl.col("row").cast(pl.Int64) - pl.int_range(pl.len())  # the same for lines that follow each other
    runs = odd.group_by(run.alias("run")).agg(row=pl.col("row").min() - 1, rows="row", lines="line")
    cut = events.join(runs, on="row")
    message = pl.col("event").str.contains(r"^(?:print|tracing_mark_write|bprint|bputs|bprintk): ")
    parts = [cut.filter(message)]
    cut = cut.filter(~message)
    for count in range(1, _LINE_FEEDS + 1):
        if cut.is_empty():
            break
        first = cut.with_columns(pl.col("rows", "lines").list.head(count))
        whole = first.with_columns(event=pl.concat_str("event", pl.col("lines").list.join("\n"), separator="\n"))
        whole = whole.filter(pl.col("row").is_in(_readable(whole, decoder)))
        alone = pl.col("row").is_in(_readable(cut.join(whole, on="row", how="semi"), decoder))
        # other events need no further check
        parts.append(whole.filter(~alone | pl.col("event").str.contains(r"comm=[^=\n]*\n")))
        cut = cut.join(parts[-1], on="row", how="anti")
    mended = pl.concat(parts)
    if mended.is_empty():
        return events, odd
    rows = mended.get_column("rows").explode()
    events = events.update(mended.select("row", "event"), on="row")
    return events, odd.filter(~pl.col("row").is_in(rows.implode()))


def _readable(events: pl.DataFrame, decoder: Decoder) -> pl.Series:
    unread = decoder.read(events.select(ftrace_heads.HEADS.names())).unread
    rows: pl.Series = events.join(unread, on="row", how="anti").get_column("row").implode()
    return rows


def _losses(events: pl.DataFrame, losses: pl.DataFrame, cpus: frozenset[int] | None) -> list[Loss]:
    """Place each loss between the events of its CPU around it."""
    if cpus is not None:
        losses = losses.filter(pl.col("cpu").is_in(list(cpus)))
    if losses.is_empty():
        return []
    around = events.select("row", "cpu", at="at_ns")
    before = losses.join_asof(around, on="row", by="cpu", strategy="backward", check_sortedness=False)
    after = losses.join_asof(around, on="row", by="cpu", strategy="forward", check_sortedness=False)
    rows = before.select("cpu", "lost", "began", start="at").hstack(after.select(end="at"))
    return [Loss(**row) for row in rows.iter_rows(named=True)]
