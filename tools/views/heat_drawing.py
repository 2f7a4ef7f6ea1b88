"""A heat map as SVG: a column per second, its cells from top to bottom; bands outlined, unobserved cells hatched.

The colours go from dark (idle) to bright (busy) on a scale of evenly rising lightness, readable without distinguishing
hues. Bands differ by dashes as well as colours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystall.tools.views.figure import ROUND, Figure, cells_image, colour_bar
from whystall.tools.views.page import escape
from whystall.tools.views.png import Colour

UNKNOWN = 255
"""The level of a cell that was not observed; the others are 0 to 254."""
MOST_OUTLINES = 3000
"""Limit of outlined pieces of bands; a band across the end of a column has two."""
# Red, green and blue from idle to busy, evenly spaced.
_SCALE = ((22, 14, 46), (47, 40, 104), (43, 82, 132), (33, 124, 140), (58, 165, 124), (139, 201, 93), (252, 232, 97))
_LEFT, _TOP, _BOTTOM = 62.0, 44.0, 44.0
_ROW = 7.0
_WIDE, _NARROW, _WANTED = 64.0, 2.0, 1120.0
_OUTLINE_WIDTH = 5.0  # narrower columns have no space for frames
_LABEL_GAP = 54.0

Levels = NDArray[np.uint8]


@dataclass(frozen=True)
class Bands:
    """Bands of one period: `starts` and `ends`, ns on the clock of the columns; `label`: their description. `lines`:
    more about them, such as what is waited for."""

    label: str
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    lines: Sequence[str] = ()


@dataclass(frozen=True)
class Heat:
    """Cells to draw. `columns`: the start of each, ns, ascending; where they are further apart than a column, time was
    cut out. `value`: columns x rows, shares, NaN where nothing was observed. `scale`: the share of the brightest."""

    columns: NDArray[np.int64]
    cell_ns: int
    value: NDArray[np.float64]
    scale: float
    bands: Sequence[Bands] = ()

    @property
    def rows(self) -> int:
        """Number of cells in a column."""
        return int(self.value.shape[1])

    @property
    def column_ns(self) -> int:
        """Length of a column."""
        return self.cell_ns * self.rows

    @property
    def levels(self) -> Levels:
        """Columns x rows: 0 to 254, or `UNKNOWN`."""
        share = np.clip(np.nan_to_num(self.value, nan=0.0) / self.scale, 0.0, 1.0)
        level = np.rint(share * (UNKNOWN - 1)).astype(np.uint8)
        return np.where(np.isnan(self.value), np.uint8(UNKNOWN), level).astype(np.uint8)

    @property
    def gaps(self) -> list[int]:
        """Columns before which time was cut out."""
        return [int(at) + 1 for at in np.flatnonzero(np.diff(self.columns) > self.column_ns)]


def scale_of(value: NDArray[np.float64]) -> float:
    """Return a round share that nearly all cells stay below."""
    known = value[~np.isnan(value)]
    top = float(np.quantile(known, 0.999)) if len(known) else 0.0
    steps = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
    return next((step for step in steps if step >= top * 0.98), 1.0)


def heat_figure(heat: Heat, words: Mapping[str, str]) -> Figure:
    """Return the drawing of `heat`, at least one column. `words`: seconds, within, busy, not_observed, cut_out."""
    count = len(heat.columns)
    wide = min(max(_WANTED / count, _NARROW), _WIDE)
    size = wide * count, _ROW * heat.rows
    parts = [hatch(), _legend(heat, words)]
    parts.append(f'<rect class="unknown" x="{_LEFT}" y="{_TOP}" width="{size[0]:.2f}" height="{size[1]:.2f}"/>')
    pixels = np.ascontiguousarray(heat.levels.T).tobytes()
    parts.append(cells_image(_LEFT, _TOP, size, (count, heat.rows), pixels, palette()))
    parts += _rows(heat, words, size)
    parts += _columns(heat, words, wide, size[1])
    parts += [_outline(heat, band, at, wide) for at, band in enumerate(heat.bands)]
    width = max(_LEFT + size[0] + 24, 420.0)
    return Figure("heat", "".join(parts), width, _TOP + size[1] + _BOTTOM, _LEFT, _TOP, (wide, _ROW))


def palette() -> list[Colour]:
    """Return the colours of the levels; the last one, `UNKNOWN`, is transparent."""
    steps = np.linspace(0, len(_SCALE) - 1, UNKNOWN)
    low = np.minimum(steps.astype(int), len(_SCALE) - 2)
    table = np.array(_SCALE, dtype=float)
    mixed = np.rint(table[low] + (table[low + 1] - table[low]) * (steps - low)[:, None]).astype(int)
    return [(int(red), int(green), int(blue), 255) for red, green, blue in mixed] + [(0, 0, 0, 0)]


def hatch() -> str:
    """Return the pattern of cells that were not observed, which show it through."""
    return (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="hatch_ground" width="6" height="6"/><path class="hatch_line" d="M0 0V6"/></pattern></defs>'
    )


def _legend(heat: Heat, words: Mapping[str, str]) -> str:
    x = _LEFT
    return (
        f'<text class="tick start" x="{x}" y="16">{escape(words["busy"])}</text>'
        f'<text class="tick end" x="{x + 18}" y="32">0</text>'
        f"{colour_bar(x + 24, 23, 150, palette()[:UNKNOWN])}"
        f'<text class="tick start" x="{x + 180}" y="32">{100 * heat.scale:g} %</text>'
        f'<rect class="unknown" x="{x + 240}" y="23" width="18" height="10"/>'
        f'<rect class="frame" x="{x + 240}" y="23" width="18" height="10"/>'
        f'<text class="tick start" x="{x + 264}" y="32">{escape(words["not_observed"])}</text>'
    )


def _rows(heat: Heat, words: Mapping[str, str], size: tuple[float, float]) -> list[str]:
    whole = heat.column_ns / 1e6
    out = [f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{size[0]:.2f}" height="{size[1]:.2f}"/>']
    for at in range(6):
        y = _TOP + size[1] * at / 5
        out.append(f'<text class="tick end" x="{_LEFT - 8}" y="{y + 4:.1f}">{whole * at / 5:g}</text>')
        out.append(f'<path class="frame" d="M{_LEFT - 5} {y:.1f}h5"/>')
    middle = _TOP + size[1] / 2
    out.append(
        f'<text class="axis" transform="translate(14 {middle:.1f}) rotate(-90)">{escape(words["within"])}</text>'
    )
    return out


def _columns(heat: Heat, words: Mapping[str, str], wide: float, high: float) -> list[str]:
    foot = _TOP + high
    seconds = heat.columns / 1e9
    step = next((one for one in ROUND if one * wide >= _LABEL_GAP * heat.column_ns / 1e9), ROUND[-1])
    step = max(step, heat.column_ns / 1e9)
    out, last = [], -math.inf
    gaps = set(heat.gaps)
    for at, second in enumerate(seconds.tolist()):
        x = _LEFT + at * wide
        if at in gaps:
            out.append(
                f'<path class="cut" d="M{x:.2f} {_TOP - 5}v{high + 10:.2f}"><title>{escape(words["cut_out"])}</title>'
                f'</path><text class="cut_sign" x="{x:.2f}" y="{_TOP - 8}">≈</text>'
            )
        near = abs(second / step - round(second / step)) * step
        due = near < heat.column_ns / 2e9 and second >= round(second / step) * step - 1e-9
        if (due or at in gaps or at == 0) and x - last >= _LABEL_GAP * 0.9:
            last = x
            out.append(f'<path class="frame" d="M{x:.2f} {foot:.2f}v5"/>')
            out.append(f'<text class="tick" x="{x:.2f}" y="{foot + 18:.1f}">{second:.6g}</text>')
    middle = _LEFT + max(wide * len(seconds) / 2, 40)
    out.append(f'<text class="axis" x="{middle:.1f}" y="{foot + 36:.1f}">{escape(words["seconds"])}</text>')
    return out


def _outline(heat: Heat, band: Bands, number: int, wide: float) -> str:
    """Return all bands of a period as one path, cut at the ends of columns."""
    path: list[str] = []
    for start, end in zip(band.starts.tolist(), band.ends.tolist(), strict=True):
        if len(path) >= MOST_OUTLINES:
            break
        at = max(int(np.searchsorted(heat.columns, start, side="right")) - 1, 0)
        while at < len(heat.columns) and int(heat.columns[at]) < end:
            origin = int(heat.columns[at])
            low, high = max(start - origin, 0), min(end - origin, heat.column_ns)
            if high > low:
                y, size = _TOP + low / heat.cell_ns * _ROW, max((high - low) / heat.cell_ns * _ROW, 1.0)
                x = _LEFT + at * wide
                if wide >= _OUTLINE_WIDTH:
                    path.append(f"M{x + 1:.1f} {y:.1f}h{wide - 2:.1f}v{size:.1f}h{2 - wide:.1f}z")
                else:  # only where it begins and ends
                    path.append(f"M{x:.1f} {y:.1f}h{wide:.1f}M{x:.1f} {y + size:.1f}h{wide:.1f}")
            at += 1
    look = number % 3 + 1
    drawn = "".join(path)
    halo = f'<path class="halo" d="{drawn}"/>' if wide >= _OUTLINE_WIDTH else ""
    return f'{halo}<path class="band band{look}" d="{drawn}"><title>{escape(band.label)}</title></path>'
