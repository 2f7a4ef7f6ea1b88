"""Where each rank of a hanging job is: a row per rank, a column per kind of group, its last operation in the cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from whystall.tools.views.figure import Figure
from whystall.tools.views.page import escape
from whystall.tools.views.rank_cells import Rows, rows_of
from whystall.tools.views.rank_labels import Mark, row_labels, row_marks

STATES = ("behind", "waits", "done", "unknown")
"""Others of the group have entered a later operation; it waits in the operation; it has finished the group's last one;
its dump has nothing of the group. The first of a row with several ranks is shown."""
MOST_COLUMNS = 12
_X, _Y, _WIDE = 150.0, 84.0, 1160.0
_LETTER = 6.8


@dataclass(frozen=True)
class Places:
    """`cells`: by row and column (row by row), the state, the group and the operation; None where a rank is in no such
    group. `left_out`: columns that are not shown."""

    rows: Rows
    columns: list[str]
    cells: list[tuple[str, str, str] | None]
    left_out: int = 0


def places_of(frame: pl.DataFrame) -> Places:
    """Return the cells of `frame`: rank, column, group, seq (below 0: no number), op, state (of `STATES`)."""
    rows = rows_of(frame["rank"].unique().to_list(), ())
    order = pl.col("state").replace_strict({state: at for at, state in enumerate(STATES)}, return_dtype=pl.Int32)
    number = pl.when(pl.col("seq") >= 0).then(pl.format(" #{}", "seq")).otherwise(pl.lit(""))
    shown = frame.with_columns(
        order=order,
        row=pl.col("rank").replace_strict(rows.places(), return_dtype=pl.Int64),
        text=pl.concat_str("op", number).str.strip_chars(),
    ).sort("row", "column", "order", "rank")
    kinds = (
        shown.group_by("column")
        .agg(pl.col("order").min(), pl.len())
        .sort("order", "len", "column", descending=[False, True, False])
    )
    columns = kinds["column"].to_list()
    kept = columns[:MOST_COLUMNS]
    first = shown.unique(["row", "column"], keep="first", maintain_order=True)
    found = {
        (row, column): (state, group, text)
        for row, column, state, group, text in first.select("row", "column", "state", "group", "text").iter_rows()
    }
    cells = [found.get((row, column)) for row in range(len(rows.cells)) for column in kept]
    return Places(rows, kept, cells, len(columns) - len(kept))


def places_figure(places: Places, marks: Sequence[Mark], words: Mapping[str, str]) -> Figure:
    """Draw `places`. `words`: state_behind, state_waits, state_done, state_unknown, last_operation."""
    count, columns = len(places.rows.cells), len(places.columns)
    high = max(min(620 / max(count, 1), 26.0), 1.25)
    wide = _WIDE / max(columns, 1)
    out = [f'<text class="label" x="{_X}" y="14">{escape(words["last_operation"])}</text>']
    x = _X
    for state in STATES:
        text = words[f"state_{state}"]
        out.append(f'<rect class="place_{state}" x="{x:.0f}" y="26" width="14" height="11"/>')
        out.append(f'<text class="tick start" x="{x + 19:.0f}" y="36">{escape(text)}</text>')
        x += 44 + sum(12.0 if ord(letter) > 0x2E80 else _LETTER for letter in text)
    for at, column in enumerate(places.columns):
        name = _cut(column, wide)
        out.append(
            f'<text class="column" x="{_X + (at + 0.5) * wide:.1f}" y="{_Y - 12}">{escape(name)}'
            f"<title>{escape(column)}</title></text>"
        )
    gap = 2.0 if high >= 8 else 0.0
    paths: dict[str, list[str]] = {}
    for at, cell in enumerate(places.cells):
        if cell is None:
            continue
        row, place = divmod(at, columns)
        left, top = _X + place * wide, _Y + row * high
        paths.setdefault(cell[0], []).append(
            f"M{left + 1:.1f} {top + gap / 2:.2f}h{wide - 2:.1f}v{high - gap:.2f}h{2 - wide:.1f}z"
        )
        if high >= 13 and cell[2]:
            text = escape(_cut(cell[2], wide))
            out.append(
                f'<text class="on_{cell[0]}" x="{left + wide / 2:.1f}" y="{top + high / 2 + 4:.1f}">{text}</text>'
            )
    drawn = [f'<path class="place_{state}" d="{"".join(path)}"/>' for state, path in paths.items()]
    out = [*out[:1], *drawn, *out[1:]]
    out += row_labels(places.rows, marks, _X, _Y, high)
    out += row_marks(places.rows, marks, _X, _Y, (wide, high), _WIDE)
    return Figure("rank", "".join(out), _X + _WIDE + 40, _Y + high * count + 16, _X, _Y, (wide, high), wide=True)


def _cut(text: str, wide: float) -> str:
    most = max(int((wide - 8) / _LETTER), 1)
    return text if len(text) <= most else text[: most - 1] + "…"
