"""Write a drawing in Chrome's Trace Event Format, for MindStudio Insight, the Perfetto UI and chrome://tracing.

Google, "Trace Event Format" (2016): ``X`` complete events, ``M`` metadata, ``s``/``f`` flows bound to the slice around
them, ``i`` instants, ``C`` counters; ``ts`` and ``dur`` in microseconds, here with all three decimals. Where doubles
cannot hold them (`beyond_doubles`: on the wall clock) they are strings, as in Ascend's own profiles, which MindStudio
reads as integers. Perfetto's importer reads both forms as doubles: an instant is then off by up to 125 ns, and it drops
slices that seem to overlap (observed in version 52): for it there is `writers.perfetto`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import polars as pl

from whystall.tools.timeline.drawing.build import Drawing
from whystall.tools.timeline.drawing.names import joined, json_text, microseconds

_EXACT_NS = 1 << 53
"""Beyond, a double has no nanoseconds: after 104 days, and on the wall clock."""
_BATCH = 25_000


def write(drawing: Drawing, out: IO[bytes]) -> int:
    """Write `drawing` and return the number of events. At most one batch of them is held as text."""
    count = 0
    out.write(b"[")
    for lines in _lines(drawing):
        if lines.is_empty():
            continue
        out.write(b",\n" if count else b"\n")
        out.write(lines.str.join(",\n").item().encode())
        count += len(lines)
    out.write(b"\n]\n")
    return count


def _lines(drawing: Drawing) -> Iterator[pl.Series]:
    """Yield the events, each as its JSON. Within a lane in an order that viewers may rely on: the enclosing slice
    before the enclosed, slices before what is bound to them, the start of an arrow before its end."""
    quoted = beyond_doubles(drawing)
    lanes = drawing.lanes.select(
        "lane", where=joined('"pid":%,"tid":%', json_text(pl.col("group")), json_text(pl.col("key")))
    )
    yield _groups(drawing)
    yield from _lane_names(drawing)
    for batch in drawing.batches(_BATCH):
        line = joined(
            '{"ph":"X","name":%,"cat":"%",%,"ts":%,"dur":%,"args":%}',
            json_text(pl.col("name")),
            "cat",
            "where",
            _time("start_ns", quoted),
            _time(pl.col("end_ns") - pl.col("start_ns"), quoted),
            "args",
        )
        yield batch.join(lanes, on="lane", maintain_order="left").select(line).to_series()
    for batch in drawing.instants.iter_slices(_BATCH):
        line = joined(
            '{"ph":"i","s":"t","name":%,"cat":"%",%,"ts":%,"args":%}',
            json_text(pl.col("name")),
            "cat",
            "where",
            _time("start_ns", quoted),
            "args",
        )
        yield batch.join(lanes, on="lane", maintain_order="left").select(line).to_series()
    for batch in drawing.counters.iter_slices(_BATCH):
        line = joined(
            '{"ph":"C","name":%,"pid":%,"ts":%,"args":{"value":%}}',
            json_text(pl.col("name")),
            json_text(pl.col("group")),
            _time("at_ns", quoted),
            pl.col("value").cast(pl.String),
        )
        yield batch.select(line).to_series()
    flows = drawing.flows.with_row_index("id", offset=1)
    for phase, end in (('"s"', "from"), ('"f","bp":"e"', "to")):
        line = joined(
            '{"ph":' + phase + ',"id":%,"name":"%","cat":"%",%,"ts":%}',
            "id",
            "cat",
            "cat",
            "where",
            _time(f"{end}_ns", quoted),
        )
        for batch in flows.iter_slices(_BATCH):
            rows = batch.join(lanes, left_on=f"{end}_lane", right_on="lane", maintain_order="left")
            yield rows.select(line).to_series()


def _groups(drawing: Drawing) -> pl.Series:
    groups = drawing.lanes.select(pl.col("group").unique(maintain_order=True)).with_row_index("order")
    note = pl.col("group").replace_strict(list(drawing.notes), list(drawing.notes.values()), default=None)
    rows = groups.with_columns(group=json_text(pl.col("group")), note=json_text(note.cast(pl.String)))
    event = '{"ph":"M","name":"process_'
    return rows.select(
        pl.concat_list(
            joined(event + 'name","pid":%,"args":{"name":%}}', "group", "group"),
            joined(event + 'sort_index","pid":%,"args":{"sort_index":%}}', "group", "order"),
            joined(event + 'labels","pid":%,"args":{"labels":%}}', "group", "note"),
        ).alias("line")
    ).explode("line")["line"].drop_nulls()  # fmt: skip


def _lane_names(drawing: Drawing) -> Iterator[pl.Series]:
    lanes = drawing.lanes.with_row_index("order").select(
        "order", label=json_text(pl.col("label")),
        where=joined('"pid":%,"tid":%', json_text(pl.col("group")), json_text(pl.col("key"))),
    )  # fmt: skip
    event = '{"ph":"M","name":"thread_'
    for batch in lanes.iter_slices(_BATCH):
        yield batch.select(joined(event + 'name",%,"args":{"name":%}}', "where", "label")).to_series()
        yield batch.select(joined(event + 'sort_index",%,"args":{"sort_index":%}}', "where", "order")).to_series()


def _time(nanoseconds: str | pl.Expr, quoted: bool) -> pl.Expr:
    text = microseconds(pl.col(nanoseconds) if isinstance(nanoseconds, str) else nanoseconds)
    return joined('"%"', text) if quoted else text


def beyond_doubles(drawing: Drawing) -> bool:
    """Return whether its instants are too large for a double to hold their nanoseconds."""
    ends = [source["end_ns"].max() for source, _ in drawing.sources]
    return max((end for end in ends if isinstance(end, int)), default=0) > _EXACT_NS
