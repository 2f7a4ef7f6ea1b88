"""Matrices of ranks as SVG: cells are one embedded picture, so that its size is bounded and it needs no script.

The opacity of colours grows with the value: the picture reads alike on light and on dark ground. Looks are classes of
assets/rank_figure.css.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from whystall.tools.views.figure import ROUND, Figure, cells_image, colour_bar
from whystall.tools.views.page import escape
from whystall.tools.views.png import Colour, data_uri
from whystall.tools.views.rank_cells import Matrix
from whystall.tools.views.rank_labels import (
    MOST_MARKS,
    TEXT,
    Mark,
    bar_width,
    group_lines,
    marked_rows,
    row_labels,
    row_marks,
    row_name,
    short,
    spaced,
)

# Vermilion and blue of Okabe and Ito, between their light and their dark shade: distinguishable by the colour-blind,
# and legible on white and on black. A third hue for waiting, which has no opposite.
_SLOWER, _FASTER, _WAITED, _UNKNOWN = (224, 96, 16), (24, 128, 208), (132, 76, 200), (128, 128, 128)
_LEVELS = 40
_SCALES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Ends of the diverging scale. Ranks are not accused below a tenth, so less must not appear as much."""
_QUANTILE = 0.98  # a few extreme cells must not make all others pale
_WIDE, _WIDEST_CELL = 1060, 110
_FIGURES_FIT = 34  # a cell of this width has space for a number
_PLOT = 150, 62


def scale_of(shade: array[float]) -> float:
    """Return the end of the diverging scale, as a share."""
    known = sorted(abs(value) for value in shade if not math.isnan(value))
    if not known:
        return _SCALES[0]
    common = known[min(int(_QUANTILE * len(known)), len(known) - 1)]
    return next((one for one in _SCALES if one >= common), _SCALES[-1])


def step_figure(matrix: Matrix, marks: Sequence[Mark], words: Mapping[str, str]) -> Figure:
    """Draw ranks in rows, steps in columns; colour: own time relative to the peers'. Bars: the mean of each row."""
    rows, columns = len(matrix.rows.cells), len(matrix.columns)
    cell = min(_WIDE / max(columns, 1), _WIDEST_CELL), max(min(620 / max(rows, 1), 22.0), 1.25)
    x, y = _PLOT
    width, height = cell[0] * columns, cell[1] * rows
    scale = scale_of(matrix.shade)
    palette = [(*_UNKNOWN, 90)] + [_diverging(level) for level in range(-_LEVELS, _LEVELS + 1)]
    pixels = bytes(
        0 if math.isnan(value) else 1 + _LEVELS + round(max(-1.0, min(1.0, value / scale)) * _LEVELS)
        for value in matrix.shade
    )
    parts = [_legend(x, palette, (f"≤ -{scale:.0%}", "0", f"≥ +{scale:.0%}"), words["own_beside_peers"])]
    parts.append(_unknown(x + 470, words["not_known"]))
    parts += [_picture(x, y, width, height, (columns, rows), pixels, palette)]
    parts += _grid(x, y, cell, (columns, rows))
    parts += group_lines(matrix.rows, x, y, cell[1], width)
    parts += row_labels(matrix.rows, marks, x, y, cell[1])
    parts += _steps(matrix, x, y + height, cell[0], words)
    parts += row_marks(matrix.rows, marks, x, y, cell, width)
    parts += _slow_steps(matrix, marks, x, y, cell)
    parts += _begins(matrix, marks, x, y, cell[0], height, words)
    parts += _bars_right(
        matrix.means, x + width + 16, y, cell[1], words["own_mean"], "own", marked=marked_rows(matrix.rows, marks)
    )
    total = max(x + width + 16 + 150, x + 640)
    return Figure("rank", "".join(parts), total, y + height + 60, x, y, cell, wide=True)


def wait_figure(matrix: Matrix, marks: Sequence[Mark], words: Mapping[str, str]) -> Figure:
    """Draw waiting ranks in rows, awaited ones in columns; sums at the right (waited) and at the foot (waited for)."""
    count = len(matrix.rows.cells)
    side = max(min(600 / max(count, 1), 44.0), 1.25)
    cell, extent = (side, side), side * count
    x, y = _PLOT[0], _PLOT[1] + 24
    most = _nice(max(matrix.shade, default=0.0))
    pixels = bytes(round(min(value / most, 1.0) * _LEVELS) for value in matrix.shade)
    palette = [(*_WAITED, round(230 * (level / _LEVELS) ** 0.8)) for level in range(_LEVELS + 1)]
    parts = [_legend(x, palette, ("0", "", f"{most:g} ms"), words["waited_per_step"])]
    parts += [_picture(x, y, extent, extent, (count, count), pixels, palette)]
    parts += _grid(x, y, cell, (count, count))
    parts.append(f'<path class="diagonal" d="M{x} {y}l{extent:.2f} {extent:.2f}"/>')
    parts.append(f'<rect class="frame" x="{x}" y="{y}" width="{extent:.2f}" height="{extent:.2f}"/>')
    if side >= _FIGURES_FIT:
        parts += _figures(matrix, x, y, side, most)
    marked = marked_rows(matrix.rows, marks)
    parts += row_labels(matrix.rows, marks, x, y, side)
    parts += _column_labels(matrix, marked, x, y, side)
    middle = y + extent / 2
    parts.append(
        f'<text class="axis" transform="translate({x - 56} {middle:.1f}) rotate(-90)">{escape(words["waits"])}</text>'
    )
    parts.append(f'<text class="axis" x="{x + extent / 2:.1f}" y="{y - 22}">{escape(words["waited_for"])}</text>')
    waited = [sum(matrix.shade[row * count : (row + 1) * count]) for row in range(count)]
    caused = [sum(matrix.shade[column::count]) for column in range(count)]
    parts += _bars_right(waited, x + extent + 16, y, side, words["sum_waited"], "wait", marked=marked)
    parts += _bars_foot(caused, x, y + extent + 12, side, words["sum_caused"], marked)
    return Figure("rank", "".join(parts), max(x + extent + 180, x + 560), y + extent + 150, x, y, cell)


# --- colours -------------------------------------------------------------------------------------------------


def _diverging(level: int) -> Colour:
    share = abs(level) / _LEVELS
    return (*(_SLOWER if level > 0 else _FASTER), round(235 * share**0.85))


def _nice(value: float) -> float:
    """Return the next round number; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return float(f"{next(power * m for m in (1, 1.5, 2, 3, 4, 5, 6, 8, 10) if power * m >= value * 0.999):.6g}")


def _legend(x: float, palette: Sequence[Colour], ends: tuple[str, str, str], label: str) -> str:
    first = 1 if len(palette) > 2 * _LEVELS else 0  # without the colour of the unknown
    low, middle, high = (escape(text) for text in ends)
    return (
        f'<text class="label" x="{x + 60}" y="14">{escape(label)}</text>'
        f"{colour_bar(x + 60, 22, 240, palette[first:])}"
        f'<text class="tick end" x="{x + 54}" y="31">{low}</text><text class="tick" x="{x + 180}" y="31">'
        f'{middle}</text><text class="tick start" x="{x + 306}" y="31">{high}</text>'
    )


def _unknown(x: float, label: str) -> str:
    colour = data_uri(1, 1, b"\0", [(*_UNKNOWN, 90)])
    return (
        f'<image x="{x}" y="22" width="14" height="10" preserveAspectRatio="none" href="{colour}"/>'
        f'<text class="tick start" x="{x + 20}" y="31">{escape(label)}</text>'
    )


# --- cells ---------------------------------------------------------------------------------------------------


def _picture(
    x: float, y: float, width: float, height: float, size: tuple[int, int], pixels: bytes, palette: Sequence[Colour]
) -> str:
    if not pixels:
        return ""
    frame = f'<rect class="frame" x="{x}" y="{y}" width="{width:.2f}" height="{height:.2f}"/>'
    return cells_image(x, y, (width, height), size, pixels, palette) + frame


def _grid(x: float, y: float, cell: tuple[float, float], size: tuple[int, int]) -> list[str]:
    """Return lines between cells that are large enough to be distinguished."""
    wide, high = size[0] * cell[0], size[1] * cell[1]
    lines = []
    if cell[0] >= 6:
        lines += [f"M{x + place * cell[0]:.2f} {y}v{high:.2f}" for place in range(1, size[0])]
    if cell[1] >= 6:
        lines += [f"M{x} {y + place * cell[1]:.2f}h{wide:.2f}" for place in range(1, size[1])]
    return [f'<path class="grid" d="{"".join(lines)}"/>'] if lines else []


def _figures(matrix: Matrix, x: float, y: float, side: float, most: float) -> list[str]:
    count = len(matrix.rows.cells)
    out = []
    for row in range(count):
        for column in range(count):
            value = matrix.shade[row * count + column]
            if row == column or value <= 0:
                continue
            look = "figure_on" if value > 0.9 * most else "figure_in"
            at = x + (column + 0.5) * side, y + (row + 0.5) * side + 4
            out.append(f'<text class="{look}" x="{at[0]:.1f}" y="{at[1]:.1f}">{short(value)}</text>')
    return out


# --- labels --------------------------------------------------------------------------------------------------


def _column_labels(matrix: Matrix, marked: Mapping[int, Mark], x: float, y: float, wide: float) -> list[str]:
    cells = matrix.rows.cells
    least = 11.0 * max((len(row_name(cell)) for cell in cells), default=1)
    gap = max(math.ceil(least / wide), 1)
    out = []
    for column in spaced(range(0, len(cells), gap), list(marked), wide, least):
        look = "column accused" if column in marked else "column"
        out.append(
            f'<text class="{look}" x="{x + (column + 0.5) * wide:.1f}" y="{y - 6}">{row_name(cells[column])}</text>'
        )
    return out


def _steps(matrix: Matrix, x: float, y: float, wide: float, words: Mapping[str, str]) -> list[str]:
    columns = matrix.columns
    least = 10.0 + 7.0 * max((len(str(step)) for step in columns), default=1)
    every = next(int(n) for n in ROUND if n >= 1 and n * wide >= least) if columns else 1
    out = [
        f'<text class="column" x="{x + (place + 0.5) * wide:.1f}" y="{y + 14}">{columns[place]}</text>'
        for place in range(0, len(columns), every)
    ]
    name = words["step"] if matrix.binned == 1 else words["steps_binned"].format(matrix.binned)
    out.append(f'<text class="axis" x="{x + wide * len(columns) / 2:.1f}" y="{y + 32}">{escape(name)}</text>')
    return out


# --- marks ---------------------------------------------------------------------------------------------------


def _slow_steps(matrix: Matrix, marks: Sequence[Mark], x: float, y: float, cell: tuple[float, float]) -> list[str]:
    """Return a bar below the cells in which a rank was slow, where those are only some."""
    out = []
    for row, mark in list(marked_rows(matrix.rows, marks).items())[:MOST_MARKS]:
        columns = sorted({bisect_right(matrix.columns, step) - 1 for step in mark.slow_steps} - {-1})
        line = "".join(f"M{x + column * cell[0]:.2f} {y + (row + 1) * cell[1]:.2f}h{cell[0]:.2f}" for column in columns)
        if line:
            out.append(f'<path class="slow_steps" d="{line}"><title>{escape(mark.label)}</title></path>')
    return out


def _begins(
    matrix: Matrix, marks: Sequence[Mark], x: float, y: float, wide: float, height: float, words: Mapping[str, str]
) -> list[str]:
    """Return a line at the step where a rank became slow; several at one step are one."""
    out, last = [], -math.inf
    for step in sorted({mark.began_step for mark in marks if mark.began_step >= 0})[:MOST_MARKS]:
        column = sum(first <= step for first in matrix.columns) - 1
        if column < 0:
            continue
        at = x + column * wide
        out.append(f'<path class="began" d="M{at:.2f} {y - 4}v{height + 8:.2f}"/>')
        if at - last >= 90:  # wide enough for the words
            last = at
            side = "start" if at < x + 120 else "end"
            out.append(
                f'<text class="began_label {side}" x="{at:.2f}" y="{y + height + 48:.1f}">'
                f"{escape(words['began'].format(step))}</text>"
            )
    return out


def _bars_right(
    values: Sequence[float], x: float, y: float, high: float, label: str, look: str, *, marked: Mapping[int, Mark]
) -> list[str]:
    most = max((value for value in values if not math.isnan(value)), default=0.0)
    out = [f'<text class="tick start" x="{x}" y="{y - 10}">{escape(label)}</text>']
    if most <= 0:
        return out
    thick = bar_width(high)
    for row, value in enumerate(values):
        if math.isnan(value):
            continue
        top = y + (row + 0.5) * high - thick / 2
        chosen = " chosen" if row in marked else ""
        out.append(
            f'<rect class="bar {look}{chosen}" x="{x}" y="{top:.2f}" width="{max(90 * value / most, 0):.2f}" '
            f'height="{thick:.2f}"/>'
        )
    gap = max(math.ceil(TEXT * 1.15 / high), 1)
    for row in spaced(range(0, len(values), gap), list(marked), high, TEXT * 1.15):
        if not math.isnan(values[row]):
            at = y + (row + 0.5) * high + 4
            out.append(f'<text class="tick start" x="{x + 94}" y="{at:.1f}">{short(values[row])}</text>')
    return out


def _bars_foot(
    values: Sequence[float], x: float, y: float, wide: float, label: str, marked: Mapping[int, Mark]
) -> list[str]:
    most = max(values, default=0.0)
    out = [f'<text class="tick end" x="{x - 8}" y="{y + 10}">{escape(label)}</text>']
    if most <= 0:
        return out
    thick = bar_width(wide)
    for column, value in enumerate(values):
        chosen = " chosen" if column in marked else ""
        out.append(
            f'<rect class="bar wait{chosen}" x="{x + (column + 0.5) * wide - thick / 2:.2f}" y="{y:.1f}" '
            f'width="{thick:.2f}" height="{80 * value / most:.2f}"/>'
        )
    numbered = range(len(values)) if wide >= _FIGURES_FIT else spaced((), list(marked), wide, 44.0)
    for column in numbered:
        if values[column] > 0:
            # under its own bar, or under all where neighbours' bars would overlap
            foot = 80 * values[column] / most if wide >= _FIGURES_FIT else 80
            look = "column accused" if column in marked else "column"
            at = x + (column + 0.5) * wide
            out.append(f'<text class="{look}" x="{at:.1f}" y="{y + foot + 13:.1f}">{short(values[column])}</text>')
    return out
