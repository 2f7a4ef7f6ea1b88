"""One step of a job as a time line: a row per rank, its own work, transfers and waiting side by side.

The states are one picture, so that its size is bounded however many operations a step has. Operations of one name that
follow each other, as those of like layers do, are one entry with a count where there are too many to list.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from whystall.tools.views.figure import ROUND, Figure, cells_image
from whystall.tools.views.page import escape
from whystall.tools.views.png import Colour, data_uri
from whystall.tools.views.rank_cells import Group, Rows, rows_of
from whystall.tools.views.rank_labels import Mark, group_lines, row_labels, row_marks

MOST_ENTRIES = 12_000
"""Operations of one figure that have figures of their own; the longest are kept."""
_X, _Y, _WIDE = 150.0, 58.0, 1160
_MOST_TEXTS = 300
_LETTER = 6.6
_OUTSIDE, _WORK, _TRANSFER, _WAIT = range(4)
# As the parts of a step in assets/rank_figure.css.
_PALETTE: tuple[Colour, ...] = ((0, 0, 0, 0), (64, 138, 196, 255), (0, 148, 120, 255), (152, 104, 212, 255))
_LOOKS = {"own": _WORK, "transfer": _TRANSFER, "wait": _WAIT}


@dataclass(frozen=True)
class Timeline:
    """A step. `spans`: rank, start_ns, end_ns; `operations`: rank, start_ns, end_ns, wait_ns (its first part, waiting),
    label; instants from the first start, right within `blur_ns` of each other on different ranks."""

    step: int
    spans: pl.DataFrame
    operations: pl.DataFrame
    blur_ns: int = 0


@dataclass(frozen=True)
class Entries:
    """Operations by row and start: row, start, duration and waiting in ms, label (row of `labels`), and how many like
    operations it stands for."""

    labels: list[str]
    row: array[int]
    start: array[float]
    took: array[float]
    wait: array[float]
    label: array[int]
    count: array[int]


def timeline_rows(timeline: Timeline, groups: Sequence[Group]) -> Rows:
    """Return the rows: one rank each, of several in a row the one that waits least stands for them."""
    return rows_of(timeline.spans["rank"].to_list(), groups)


def entries(timeline: Timeline, rows: Rows) -> Entries:
    """Return the operations of the rank that each row shows; like neighbours joined if there are too many."""
    places = {cell: row for row, cell in enumerate(_shown(timeline, rows))}
    frame = timeline.operations.filter(pl.col("rank").is_in(list(places)) & (pl.col("end_ns") > pl.col("start_ns")))
    frame = frame.with_columns(count=pl.lit(1)).sort("rank", "start_ns")
    if frame.height > MOST_ENTRIES:
        run = (pl.struct("rank", "label") != pl.struct("rank", "label").shift()).fill_null(value=True).cum_sum()
        frame = frame.group_by(run.alias("run"), maintain_order=True).agg(
            pl.col("rank", "label").first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            pl.col("wait_ns", "count").sum(),
        )
        frame = frame.sort(pl.col("end_ns") - pl.col("start_ns"), descending=True).head(MOST_ENTRIES)
        frame = frame.sort("rank", "start_ns")
    labels = sorted(set(frame["label"].to_list()))
    number = {label: at for at, label in enumerate(labels)}
    return Entries(
        labels=labels,
        row=array("i", [places[rank] for rank in frame["rank"].to_list()]),
        start=array("f", (frame["start_ns"] / 1e6).to_list()),
        took=array("f", ((frame["end_ns"] - frame["start_ns"]) / 1e6).to_list()),
        wait=array("f", (frame["wait_ns"] / 1e6).to_list()),
        label=array("i", [number[label] for label in frame["label"].to_list()]),
        count=array("i", frame["count"].to_list()),
    )


def timeline_figure(
    timeline: Timeline, rows: Rows, found: Entries, marks: Sequence[Mark], words: Mapping[str, str]
) -> Figure:
    """Draw `timeline`. `words`: since_start, part_own, part_transfer, part_wait."""
    count = len(rows.cells)
    high = max(min(620 / max(count, 1), 26.0), 1.25)
    most = int(str(timeline.spans["end_ns"].max() or 1)) / 1e6
    scale, height = _WIDE / most, high * count
    out = [f'<text class="label" x="{_X}" y="14">{escape(words["since_start"])}</text>', *_legend(words)]
    pixels = _pixels(timeline, rows, scale / 1e6)
    out.append(cells_image(_X, _Y, (_WIDE, height), (_WIDE, count), pixels, _PALETTE) if count else "")
    out.append(f'<rect class="frame" x="{_X}" y="{_Y}" width="{_WIDE}" height="{height:.2f}"/>')
    if high >= 6:
        lines = "".join(f"M{_X} {_Y + row * high:.2f}h{_WIDE}" for row in range(1, count))
        out.append(f'<path class="grid" d="{lines}"/>')
    out += _texts(found, scale, high)
    out += group_lines(rows, _X, _Y, high, _WIDE)
    out += row_labels(rows, marks, _X, _Y, high)
    out += row_marks(rows, marks, _X, _Y, (_WIDE, high), _WIDE)
    step = next((one for one in ROUND if one * scale >= 110), ROUND[-1])
    for number in range(int(most / step) + 1):
        x = _X + number * step * scale
        out.append(f'<path class="frame" d="M{x:.1f} {_Y + height:.1f}v5"/>')
        out.append(f'<text class="column" x="{x:.1f}" y="{_Y + height + 20:.1f}">{number * step:g} ms</text>')
    return Figure("rank", "".join(out), _X + _WIDE + 40, _Y + height + 34, _X, _Y, (_WIDE, high), wide=True)


def _shown(timeline: Timeline, rows: Rows) -> list[int]:
    """Return the rank that each row shows: of several the one that waits least, which the others wait for."""
    waits = dict(timeline.operations.group_by("rank").agg(pl.col("wait_ns").sum()).iter_rows())
    return [min(cell, key=lambda rank: (waits.get(rank, math.inf), rank)) for cell in rows.cells]


def _pixels(timeline: Timeline, rows: Rows, scale: float) -> bytes:
    """Return the state of each rank at each pixel: waiting covers transfers, and these cover work."""
    spans = {rank: (start, end) for rank, start, end in timeline.spans.select("rank", "start_ns", "end_ns").iter_rows()}
    shown = _shown(timeline, rows)
    lines = {rank: bytearray(_WIDE) for rank in shown}

    def paint(rank: int, start: float, end: float, state: int) -> None:
        low = min(max(int(start * scale), 0), _WIDE - 1)
        high = min(max(math.ceil(end * scale), low + 1), _WIDE)
        lines[rank][low:high] = bytes([state]) * (high - low)

    for rank in shown:
        if rank in spans:
            paint(rank, *spans[rank], _WORK)
    columns = ("rank", "start_ns", "end_ns", "wait_ns")
    operations = [one for one in timeline.operations.select(columns).iter_rows() if one[0] in lines]
    for rank, start, end, wait in operations:
        if end > start + wait:
            paint(rank, start + wait, end, _TRANSFER)
    for rank, start, _, wait in operations:
        if wait * scale >= 0.5:
            paint(rank, start, start + wait, _WAIT)
    return b"".join(bytes(lines[rank]) for rank in shown)


def _legend(words: Mapping[str, str]) -> list[str]:
    out, x = [], _X
    for name, state in _LOOKS.items():
        colour = data_uri(1, 1, b"\0", [_PALETTE[state]])
        text = words[f"part_{name}"]
        out.append(f'<image x="{x:.0f}" y="26" width="14" height="11" preserveAspectRatio="none" href="{colour}"/>')
        out.append(f'<text class="tick start" x="{x + 19:.0f}" y="36">{escape(text)}</text>')
        x += 44 + sum(12.0 if ord(letter) > 0x2E80 else _LETTER for letter in text)
    return out


def _texts(found: Entries, scale: float, high: float) -> list[str]:
    """Return the names of operations that have the space for them."""
    out: list[str] = []
    if high < 13:
        return out
    for at, label in enumerate(found.label):
        name = found.labels[label]
        if found.took[at] * scale >= len(name) * _LETTER + 8 and len(out) < _MOST_TEXTS:
            x = _X + (found.start[at] + found.took[at] / 2) * scale
            y = _Y + (found.row[at] + 0.5) * high + 4
            out.append(f'<text class="in_bar" x="{x:.1f}" y="{y:.1f}">{escape(name)}</text>')
    return out
