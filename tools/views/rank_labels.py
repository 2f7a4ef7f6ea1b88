"""Labels and marks of rows of ranks, which all drawings of ranks share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from whystall.tools.views.page import escape
from whystall.tools.views.rank_cells import Rows

TEXT = 11
"""Size of the letters, in pixels."""
MOST_MARKS = 64


@dataclass(frozen=True)
class Mark:
    """A rank that is accused: its label, the first slow step (-1: from the start), and its slow steps if those are only
    some."""

    rank: int
    label: str
    began_step: int = -1
    slow_steps: tuple[int, ...] = ()


def row_name(ranks: tuple[int, ...]) -> str:
    """Return ``3``, or of several ranks in a row the first and the last, ``4-7``."""
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def marked_rows(rows: Rows, marks: Sequence[Mark]) -> dict[int, Mark]:
    """Return the accused by row; the first of a row stands for it."""
    places = rows.places()
    found: dict[int, Mark] = {}
    for mark in marks:
        if mark.rank in places:
            found.setdefault(places[mark.rank], mark)
    return found


def spaced(wanted: Sequence[int], marked: Sequence[int], size: float, least: float) -> list[int]:
    """Return the rows or columns, `size` apart, to label so that labels are `least` apart; `marked` ones come first."""
    taken: list[int] = []
    gap = max(math.ceil(least / size), 1)
    for place in [*sorted(marked), *wanted]:
        if all(abs(place - other) >= gap for other in taken):
            taken.append(place)
    return taken


def row_labels(rows: Rows, marks: Sequence[Mark], x: float, y: float, high: float) -> list[str]:
    """Return the names of rows, as many as there is space for; the accused in any case."""
    accused = marked_rows(rows, marks)
    cells = rows.cells
    gap = max(math.ceil(TEXT * 1.15 / high), 1)
    out = []
    for row in spaced(range(0, len(cells), gap), list(accused), high, TEXT * 1.15):
        look = "row accused" if row in accused else "row"
        out.append(
            f'<text class="{look}" x="{x - 16}" y="{y + (row + 0.5) * high + 4:.1f}">{row_name(cells[row])}</text>'
        )
    return out


def group_lines(rows: Rows, x: float, y: float, high: float, width: float) -> list[str]:
    """Return the names of the groups, and a line between them."""
    if len(rows.groups) < 2:
        return []
    out, row = [], 0
    labelled = -math.inf
    for place, (label, size) in enumerate(rows.groups):
        top, bottom = y + row * high, y + (row + size) * high
        if place:
            out.append(f'<path class="between" d="M{x - 14} {top:.2f}H{x + width:.2f}"/>')
        middle = (top + bottom) / 2 + 4
        if label and middle - labelled >= TEXT * 1.15:
            labelled = middle
            text = label if len(label) <= 12 else label[:11] + "…"
            out.append(
                f'<text class="group" x="{x - 62}" y="{middle:.1f}">{escape(text)}<title>{escape(label)}</title></text>'
            )
        row += size
    return out


def row_marks(
    rows: Rows, marks: Sequence[Mark], x: float, y: float, cell: tuple[float, float], width: float
) -> list[str]:
    """Return a triangle at both ends of an accused row, and a frame where the row is high enough to see it."""
    out = []
    for row, mark in list(marked_rows(rows, marks).items())[:MOST_MARKS]:
        middle = y + (row + 0.5) * cell[1]
        title = f"<title>{escape(mark.label)}</title>"
        out.append(f'<path class="mark" d="M{x - 12} {middle - 5:.1f}l9 5l-9 5z">{title}</path>')
        out.append(f'<path class="mark" d="M{x + width + 12:.1f} {middle - 5:.1f}l-9 5l9 5z">{title}</path>')
        if cell[1] >= 6:
            top = y + row * cell[1]
            out.append(f'<rect class="accused_row" x="{x}" y="{top:.2f}" width="{width:.2f}" height="{cell[1]:.2f}"/>')
    return out


def bar_width(size: float) -> float:
    """Return the thickness of a bar beside cells of `size`, with space between bars if possible."""
    return min(size * 0.6, 10.0) if size >= 4 else size + 0.3  # no hairlines between them


def short(value: float) -> str:
    """Return a figure in few characters."""
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.3f}" if size > 0 else "0"
