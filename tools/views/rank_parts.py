"""Where the mean step of each rank goes, as bars: compute, gap, data, transfer, waiting, one after the other.

The means of a rank's parts add up to its mean step, so that bars of equal length differ in colour only.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from whystall.tools.views.figure import ROUND, Figure
from whystall.tools.views.page import escape
from whystall.tools.views.rank_cells import Group, Rows, known, rows_of
from whystall.tools.views.rank_labels import TEXT, Mark, group_lines, marked_rows, row_labels, row_marks, short, spaced

PARTS = ("work", "gap", "loader", "own", "transfer", "wait", "rest")
"""In the order of drawing. ``gap`` is without the loader's part; ``own`` is all that is not waiting, where the traces
have no work; ``rest``: what no part explains."""
_X, _Y, _WIDE = 150.0, 58.0, 1160.0
_LEAST_REST = 0.005  # less of it is rounding
_TICKS = 110.0  # pixels between them, at least


@dataclass(frozen=True)
class Parts:
    """`values`: of each part of `PARTS` that any rank has, ms per row, 0 where a rank has none; means over the steps
    and the ranks of the row. `step`: their sums."""

    rows: Rows
    values: dict[str, array[float]]
    step: array[float]


def rank_parts(own: pl.DataFrame, groups: Sequence[Group]) -> Parts:
    """Return the parts of the mean step of each rank. `own`: rank, step_ns, own_ns and any of wait_ns, compute_ns,
    gap_ns, loader_ns, exposed_comm_ns (negative: unknown)."""
    rows = rows_of(own["rank"].unique().to_list(), groups)
    optional = [name for name in ("compute_ns", "gap_ns", "loader_ns", "exposed_comm_ns") if name in own.columns]
    missing = [name for name in ("compute_ns", "gap_ns", "loader_ns", "exposed_comm_ns") if name not in own.columns]
    whole = own.with_columns(known(*optional)) if optional else own
    whole = whole.with_columns(pl.lit(None, pl.Float64).alias(name) for name in missing)
    wait = pl.col("wait_ns").fill_null(0) if "wait_ns" in own.columns else pl.lit(0)
    works = pl.col("compute_ns").is_not_null() & pl.col("gap_ns").is_not_null()
    loader = pl.min_horizontal(pl.col("loader_ns").fill_null(0), pl.col("gap_ns").fill_null(0))
    parts = whole.select(
        pl.col("rank").replace_strict(rows.places(), return_dtype=pl.Int64).alias("row"),
        pl.col("step_ns"),
        work=pl.when(works).then("compute_ns").otherwise(0),
        gap=pl.when(works).then(pl.col("gap_ns") - loader).otherwise(0),
        loader=pl.when(works).then(loader).otherwise(0),
        own=pl.when(works).then(0).otherwise(pl.col("step_ns") - wait),
        transfer=pl.when(works).then((pl.col("exposed_comm_ns").fill_null(wait) - wait).clip(0)).otherwise(0),
        wait=wait,
    )
    parts = parts.with_columns(rest=(pl.col("step_ns") - pl.sum_horizontal(*PARTS[:-1])).clip(0))
    means = parts.group_by("row").agg(pl.col(*PARTS).mean() * 1e-6).sort("row")
    step = array("f", means.select(pl.sum_horizontal(*PARTS)).to_series().to_list())
    least = {"rest": _LEAST_REST * max(step, default=0.0)}
    shown = (name for name in PARTS if float(str(means[name].max() or 0.0)) > least.get(name, 0.0))
    values = {name: array("f", means[name].to_list()) for name in shown}
    return Parts(rows, values, step)


def parts_figure(parts: Parts, marks: Sequence[Mark], words: Mapping[str, str]) -> Figure:
    """Draw a bar per row. `words`: one of each part, named ``part_work`` and so on, and step_mean."""
    count = len(parts.rows.cells)
    high = max(min(620 / max(count, 1), 26.0), 1.25)
    most = max(parts.step, default=0.0) or 1.0
    scale, height = _WIDE / most, high * count
    out = [f'<text class="label" x="{_X}" y="14">{escape(words["step_mean"])}</text>']
    out += _legend(parts, words)
    out += _ticks(most, scale, height)
    left = [0.0] * count
    gap = 2.0 if high >= 8 else 0.0
    for name, values in parts.values.items():
        path = "".join(
            f"M{_X + left[row] * scale:.1f} {_Y + row * high + gap / 2:.2f}"
            f"h{value * scale:.1f}v{high - gap:.2f}h{-value * scale:.1f}z"
            for row, value in enumerate(values)
            if value * scale >= 0.05
        )
        out.append(f'<path class="part_{name}" d="{path}"/>')
        left = [start + value for start, value in zip(left, values, strict=True)]
    out += group_lines(parts.rows, _X, _Y, high, _WIDE)
    out += row_labels(parts.rows, marks, _X, _Y, high)
    out += row_marks(parts.rows, marks, _X, _Y, (_WIDE, high), _WIDE)
    accused = list(marked_rows(parts.rows, marks))
    every = max(math.ceil(TEXT * 1.15 / high), 1)
    for row in spaced(range(0, count, every), accused, high, TEXT * 1.15):
        at = _Y + (row + 0.5) * high + 4
        out.append(f'<text class="tick start" x="{_X + _WIDE + 18}" y="{at:.1f}">{short(parts.step[row])} ms</text>')
    return Figure("rank", "".join(out), _X + _WIDE + 96, _Y + height + 34, _X, _Y, (_WIDE, high), wide=True)


def _legend(parts: Parts, words: Mapping[str, str]) -> list[str]:
    out, x = [], _X
    for name in parts.values:
        text = words[f"part_{name}"]
        out.append(f'<rect class="part_{name}" x="{x:.0f}" y="26" width="14" height="11"/>')
        out.append(f'<text class="tick start" x="{x + 19:.0f}" y="36">{escape(text)}</text>')
        x += 44 + sum(12.0 if ord(letter) > 0x2E80 else 6.6 for letter in text)
    return out


def _ticks(most: float, scale: float, height: float) -> list[str]:
    step = next((one for one in ROUND if one * scale >= _TICKS), ROUND[-1])
    out = []
    for number in range(int(most / step * 1.0001) + 1):
        x = _X + number * step * scale
        out.append(f'<path class="ruler" d="M{x:.1f} {_Y - 4}v{height + 8:.1f}"/>')
        out.append(f'<text class="column" x="{x:.1f}" y="{_Y + height + 20:.1f}">{number * step:g} ms</text>')
    return out
