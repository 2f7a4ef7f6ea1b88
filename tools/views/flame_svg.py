"""A flame graph as one SVG file: complete without script (in a page's ``<img>``, in a viewer), and with search, zoom
and keys when a browser opens it by itself.

A difference is drawn twice, with the widths of after and below with those of before, so that vanished frames are
visible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from whystall.tools.views.flame_data import short_labels
from whystall.tools.views.flame_layout import REST_KIND, ROOT_KIND, Layout
from whystall.tools.views.flame_looks import (
    ADVANCE,
    LETTERS,
    PATTERNS,
    STEPS,
    change_looks,
    columns,
    cut,
    kinds_in,
    scale_of,
)
from whystall.tools.views.flame_page import cut_note
from whystall.tools.views.page import asset, escape

WIDTH, MARGIN, ROW, FONT = 1200, 10, 17, 12
MOST_SVG_NODES = 20_000
"""Nodes in one file, about: then it has 4 MB. More are for the page."""
SVG_WORDS = frozenset({"search", "reset", "root_below", "matches", "no_match", "plain", "total_of", "self_of"}) | (
    frozenset({"total_two", "change", "not_proven", "rest_is", "widths", "before_widths", "after_widths", "same"})
    | {"nothing", "cut", "unit_sample", "unit_samples", "change_is"}
)
"""Words of the page (`flame_page.WORDS`) that the file uses besides the kinds."""
_INNER = WIDTH - 2 * MARGIN
_SCRIPT_WORDS = ("search", "reset", "root_below", "matches", "no_match", "plain")
_TITLE = 300
_DRAWN = 0.05  # pixels; a rest may be as narrow as that
_LEAST_SCALE = 0.005  # points; less than that is shown as 0.00


def flame_svg(
    shown: Layout | None,
    words: Mapping[str, str],
    *,
    heading: str,
    unit: str,
    notes: Sequence[str] = (),
) -> str:
    """Return the file. `shown` None: nothing was sampled. `unit` and `words` as of `flame_page`."""
    lines = [note for note in notes if note]
    if shown is None:
        return _file(heading, [*lines, words["nothing"]], "", 0, {}, words)
    lines += [note for note in [cut_note(shown, words)] if note]
    top = 40 + 16 * len(lines)
    legend, low = _legend(shown, words, top)
    looks = change_looks(shown) if shown.sides > 1 else [shown.kinds[frame] for frame in shown.frame.tolist()]
    titles = list(_titles(shown, words, unit))
    parts, y = [legend], low + 8
    for side in range(shown.sides - 1, -1, -1):
        if shown.sides > 1:
            name = words["after_widths"] if side else words["before_widths"]
            parts.append(f'<text class="side" x="{MARGIN}" y="{y + 12}">{escape(name)}</text>')
            y += 20
        high = shown.levels * ROW
        frames = "".join(_frames(shown, side, y, looks, titles))
        parts.append(f'<g class="graph" data-y="{y}" data-h="{high}">{frames}</g>')
        y += high + 14
    return _file(heading, lines, "\n".join(parts), y, dict.fromkeys(looks), words)


def _file(
    heading: str, lines: Sequence[str], parts: str, height: int, looks: Mapping[str, None], words: Mapping[str, str]
) -> str:
    height = max(height, 34 + 16 * len(lines)) + 6
    notes = "".join(
        f'<text class="note" x="{MARGIN}" y="{44 + 16 * n}">{_line(one)}</text>' for n, one in enumerate(lines)
    )
    script_words = escape(json.dumps({key: words[key] for key in _SCRIPT_WORDS}, ensure_ascii=False))
    script = asset("flame_svg.js")
    if "]]>" in script:
        raise ValueError("the script holds the end of a CDATA section")
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"
 viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(heading)}" data-words="{script_words}">
<style>{asset("flame_colours.css")}{asset("flame_svg.css")}</style>
<defs>{_patterns(looks)}</defs>
<rect class="ground" width="100%" height="100%"/>
<text class="heading" x="{MARGIN}" y="24">{_line(heading, 15)}</text>
{notes}
{parts}
<script><![CDATA[{script}]]></script>
</svg>
"""


def _frames(shown: Layout, side: int, top: int, looks: Sequence[str], titles: Sequence[str]) -> Iterator[str]:
    """Yield one group per frame: its title, its bar, and its label where it fits."""
    left = (MARGIN + shown.x[side] * _INNER).tolist()
    wide = (shown.width[side] * _INNER).tolist()
    rows = (top + shown.depth * ROW).tolist()
    frames = shown.frame.tolist()
    changed, short = shown.sides > 1, short_labels(shown)
    for node in np.nonzero(shown.width[side] * _INNER >= _DRAWN)[0].tolist():
        x, width, y, look = left[node], wide[node], rows[node], looks[node]
        mark = "" if not changed else "▲ " if look.startswith("up") else "▼ " if look.startswith("down") else ""
        label = short.get(frames[node], shown.labels[frames[node]])
        room = int((width - 6) / (FONT * ADVANCE))
        text = cut((mark + label)[: room + 1], room) if room >= 3 else ""
        text = f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(text)}</text>' if text else ""
        fill = f' fill="url(#{look})"' if look in PATTERNS else ""
        yield (
            f'<g><title>{titles[node]}</title><rect class="{look}" x="{x:.2f}" y="{y}" width="{width:.2f}"'
            f' height="{ROW - 1}"{fill}/>{text}</g>'
        )


def _titles(shown: Layout, words: Mapping[str, str], unit: str) -> Iterator[str]:
    """Yield the title of each frame, escaped: the label on the first line."""
    change = shown.change.tolist() if shown.sides > 1 else []
    own, total, width = shown.own.tolist(), shown.total.tolist(), shown.width.tolist()
    for node, frame in enumerate(shown.frame.tolist()):
        label, kind = shown.labels[frame], shown.kinds[frame]
        lines = [cut(label, _TITLE)]
        if shown.sides > 1:
            lines.append(words["total_two"].format(_percent(width[0][node]), _percent(width[1][node])))
            if kind not in (ROOT_KIND, REST_KIND):
                unsure = shown.proven is not None and not shown.proven[node] and abs(change[node]) > 1e-9
                lines.append(
                    words["change"].format(_points(change[node])) + (f" {words['not_proven']}" if unsure else "")
                )
        else:
            lines.append(words["total_of"].format(_amount(total[0][node], unit, words), _percent(width[0][node])))
            if kind not in (ROOT_KIND, REST_KIND):
                share = _percent(own[0][node] / total[0][0])
                lines.append(words["self_of"].format(_amount(own[0][node], unit, words), share))
            if shown.codes[frame] and shown.codes[frame] not in label:
                lines.append(cut(shown.codes[frame], _TITLE))
        if kind == REST_KIND:
            lines.append(words["rest_is"])
        yield escape("\n".join(lines))


def _legend(shown: Layout, words: Mapping[str, str], top: int) -> tuple[str, int]:
    """Return the legend of the looks in use, in lines of the picture's width; and where it ends."""
    if shown.sides > 1:
        most = scale_of(shown)
        edges = [most * n / STEPS for n in range(STEPS + 1)]
        steps = STEPS if most >= _LEAST_SCALE else 0  # nothing is coloured if nothing is significant
        items = [(f"down{n}", "▼", f"{_points(-edges[n - 1])} … {_points(-edges[n])}") for n in range(steps, 0, -1)]
        items.append(("same", "=", words["same"]))
        items += [(f"up{n}", "▲", f"{_points(edges[n - 1])} … {_points(edges[n])}") for n in range(1, steps + 1)]
        items += [("unproven", "?", words["not_proven"])] if shown.proven is not None else []
    else:
        items = [(kind, LETTERS[kind], words[f"kind_{kind}"]) for kind in kinds_in(shown)]
    drawn, x, y = [], float(MARGIN), top
    for look, letter, text in items:
        wide = 30 + columns(text) * ADVANCE * FONT + 16
        if x + wide > WIDTH - MARGIN and x > MARGIN:
            x, y = float(MARGIN), y + 20
        fill = f' fill="url(#{look})"' if look in PATTERNS else ""
        drawn.append(
            f'<rect class="{look} swatch" x="{x:.1f}" y="{y}" width="24" height="15"{fill}/>'
            f'<text class="letter" x="{x + 12:.1f}" y="{y + 12}">{escape(letter)}</text>'
            f'<text x="{x + 30:.1f}" y="{y + 12}">{escape(text)}</text>'
        )
        x += wide
    y += 24
    if shown.sides > 1:
        drawn.append(f'<text class="note" x="{MARGIN}" y="{y + 10}">{_line(words["change_is"])}</text>')
        y += 20
    return f'<g class="legend">{"".join(drawn)}</g>', y


def _patterns(looks: Mapping[str, None]) -> str:
    strokes = {
        "stripes": "M-2,2 2,-2M-2,10 10,-2M6,10 10,6",
        "cross": "M-2,2 2,-2M-2,10 10,-2M6,10 10,6M-2,6 2,10M-2,-2 10,10M6,-2 10,2",
        "bars": "M4,0V8",
        "dots": "M1,2h2M5,6h2",
    }
    return "".join(
        f'<pattern id="{look}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect class="{look}" width="8" height="8"/>'
        f'<path class="{PATTERNS[look]}" d="{strokes[PATTERNS[look]]}"/></pattern>'
        for look in looks
        if look in PATTERNS
    )


def _line(text: str, size: int = FONT) -> str:
    return escape(cut(text, int(_INNER / (size * ADVANCE))))


def _percent(share: float) -> str:
    value = 100 * share
    if 0 < value < 0.01:
        return "< 0.01 %"
    return f"{value:.{0 if value == 0 or value >= 99.995 else 1 if value >= 9.995 else 2}f} %"


def _points(value: float) -> str:
    sign = "+" if value > 0 else "−" if value < 0 else ""
    return f"{sign}{abs(value):.{1 if abs(value) >= 9.995 else 2}f}"


def _amount(value: float, unit: str, words: Mapping[str, str]) -> str:
    scales = {
        "ns": (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)),
        "bytes": (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)),
    }
    if unit in scales:
        name, size = next(((name, size) for name, size in scales[unit] if value >= size), scales[unit][-1])
        return f"{value / size:.3g} {name}" if value / size < 1000 else f"{value / size:,.0f} {name}"
    number = f"{value:,.0f}" if value == round(value) else f"{value:,.3g}" if value < 1000 else f"{value:,.1f}"
    return (
        words["unit_sample" if value == 1 else "unit_samples"].format(number)
        if unit == "samples"
        else f"{number} {unit}"
    )
