"""What threads waited for over time, as SVG: a row per wait, columns of time; colour: seconds of waiting per second.

The scale is that of the square root, so that short waits stay visible beside long ones; the legend has its values.
Time that was not recorded is hatched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

import numpy as np
from numpy.typing import NDArray

from whystall.tools.views.figure import Figure, cells_image, colour_bar
from whystall.tools.views.heat_drawing import UNKNOWN, hatch, palette
from whystall.tools.views.page import escape

_LEFT, _TOP, _BOTTOM, _RIGHT = 470.0, 62.0, 46.0, 110.0
_ROW, _WIDTH = 32.0, 900.0
_LABEL_GAP = 90.0
_STEPS_S = (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
_LETTERS, _QUIET_LETTERS = 68, 76
_QUANTILE = 0.995


@dataclass(frozen=True)
class WaitRow:
    """One row. `label`, `more`: two lines of text; `full`: all of it, shown on demand; `total`: the figure at the
    right; `marks`: stretches that changed, ns on the clock of the columns, each with its description."""

    label: str
    more: str
    full: str
    total: str
    marks: Sequence[tuple[int, int, str]] = ()


@dataclass(frozen=True)
class WaitMap:
    """Rows to draw, at least one, and as many columns of `column_ns` from `start_ns` (CLOCK_REALTIME) as `rate` has:
    rows x columns, seconds of waiting per second, NaN where nothing was recorded. `most`: the rate of the brightest."""

    rows: Sequence[WaitRow]
    start_ns: int
    column_ns: int
    rate: NDArray[np.float64]
    most: float


def most_of(*rates: NDArray[np.float64]) -> float:
    """Return a round rate that nearly all cells stay below."""
    known = np.concatenate([one[~np.isnan(one)] for one in rates])
    top = float(np.quantile(known[known > 0], _QUANTILE)) if (known > 0).any() else 0.0
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return float(f"{next(power * m for m in (1, 2, 5, 10) if power * m >= top * 0.98):.6g}")


def wait_figure(waits: WaitMap, words: Mapping[str, str]) -> Figure:
    """Return the drawing. `words`: legend, not_recorded, time, total."""
    count, columns = waits.rate.shape
    cell = _WIDTH / columns, _ROW
    high = _ROW * count
    share = np.sqrt(np.clip(np.nan_to_num(waits.rate) / waits.most, 0.0, 1.0))
    level = np.where(np.isnan(waits.rate), UNKNOWN, np.rint(share * (UNKNOWN - 1))).astype(np.uint8)
    parts = [hatch(), _legend(waits.most, words)]
    parts.append(f'<rect class="unknown" x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{high}"/>')
    parts.append(cells_image(_LEFT, _TOP, (_WIDTH, high), (columns, count), level.tobytes(), palette()))
    parts.append(f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{_WIDTH}" height="{high}"/>')
    for at, row in enumerate(waits.rows):
        parts += _row(waits, row, _TOP + at * _ROW, columns)
    parts += _times(waits, _TOP + high, columns, words["time"])
    parts.append(f'<text class="axis start" x="{_LEFT + _WIDTH + 10}" y="{_TOP - 8}">{escape(words["total"])}</text>')
    return Figure("wait", "".join(parts), _LEFT + _WIDTH + _RIGHT, _TOP + high + _BOTTOM, _LEFT, _TOP, cell, wide=True)


def _legend(most: float, words: Mapping[str, str]) -> str:
    x = _LEFT
    return (
        f'<text class="tick start" x="{x}" y="16">{escape(words["legend"])}</text>'
        f"{colour_bar(x, 23, 200, palette()[:UNKNOWN])}"
        f'<text class="tick start" x="{x}" y="45">0</text><text class="tick" x="{x + 100}" y="45">{most / 4:g}</text>'
        f'<text class="tick end" x="{x + 200}" y="45">{most:g}</text>'
        f'<rect class="unknown" x="{x + 250}" y="23" width="18" height="10"/>'
        f'<rect class="frame" x="{x + 250}" y="23" width="18" height="10"/>'
        f'<text class="tick start" x="{x + 274}" y="32">{escape(words["not_recorded"])}</text>'
    )


def _row(waits: WaitMap, row: WaitRow, y: float, columns: int) -> list[str]:
    out = [
        f'<g><title>{escape(row.full)}</title><text class="label end" x="{_LEFT - 8}" y="{y + 14}">'
        f'{escape(_short(row.label, _LETTERS))}</text><text class="more end" x="{_LEFT - 8}" y="{y + 27}">'
        f"{escape(_short(row.more, _QUIET_LETTERS))}</text></g>",
        f'<text class="tick start" x="{_LEFT + _WIDTH + 10}" y="{y + 20}">{escape(row.total)}</text>',
        f'<path class="grid" d="M{_LEFT} {y}h{_WIDTH}"/>',
    ]
    for start, end, text in row.marks:
        first, last = (
            min(max((at - waits.start_ns) / waits.column_ns, 0.0), float(columns)) * _WIDTH / columns
            for at in (start, end)
        )
        if last > first:
            box = f'x="{_LEFT + first:.1f}" y="{y + 2}" width="{max(last - first, 2):.1f}" height="{_ROW - 4}"'
            out.append(f'<rect class="halo" {box}/><rect class="mark" {box}><title>{escape(text)}</title></rect>')
    return out


def _short(text: str, most: int) -> str:
    """Return `text` within about `most` narrow letters, the middle left out; wide letters count twice."""
    width = [2 if ord(letter) > 0x2E80 else 1 for letter in text]
    if sum(width) <= most:
        return text
    half = most // 2 - 1
    head = next((at for at in range(len(text)) if sum(width[:at]) >= half), len(text))
    tail = next((at for at in range(len(text), 0, -1) if sum(width[at:]) >= half), 0)
    return f"{text[:head]}…{text[tail:]}"


def _times(waits: WaitMap, foot: float, columns: int, word: str) -> list[str]:
    length = columns * waits.column_ns / 1e9
    step = next((one for one in _STEPS_S if one * _WIDTH >= _LABEL_GAP * length), _STEPS_S[-1])
    first = waits.start_ns / 1e9
    out, day = [], ""
    at = math.ceil(first / step) * step
    while at <= first + length:
        x = _LEFT + (at - first) / length * _WIDTH
        moment = datetime.fromtimestamp(at, timezone.utc)
        out.append(f'<path class="frame" d="M{x:.1f} {foot}v5"/>')
        text = moment.strftime("%H:%M:%S" if step < 60 else "%H:%M")
        out.append(f'<text class="tick" x="{x:.1f}" y="{foot + 17}">{text}</text>')
        if (date := moment.strftime("%Y-%m-%d")) != day:
            day = date
            out.append(f'<text class="axis" x="{x:.1f}" y="{foot + 31}">{date}</text>')
        at += step
    out.append(f'<text class="axis start" x="{_LEFT + _WIDTH + 10}" y="{foot + 17}">{escape(word)}</text>')
    return out
