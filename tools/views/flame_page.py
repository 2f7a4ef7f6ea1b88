"""A flame graph, of one profile or of the difference of two, as one offline page with the frames in a table.

Nothing is judged here: which change is significant, how frames are ranked, and every word are passed in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whystall.tools.views.flame_data import flame_data
from whystall.tools.views.flame_layout import Layout
from whystall.tools.views.page import escape, page

STYLES = ("flame_colours", "flame", "page_frame")
SCRIPTS = ("flame_parts", "flame")
"""Scripts of a page with a flame graph; its styles are `STYLES`."""
MOST_ROWS = 200
"""Rows of the table."""
_KINDS = ("python", "native", "kernel", "operator", "annotation", "launch", "device", "idle", "thread", "other", "rest")
SCRIPT_WORDS = (
    frozenset(
        {"tools", "search", "search_hint", "matches", "no_match", "plain", "root_below", "reset", "path", "graph"}
    )
    | {
        "legend",
        "unit_sample",
        "unit_samples",
        "total_of",
        "self_of",
        "of_zoomed",
        "rest_is",
        "widths",
        "before_widths",
    }
    | {"after_widths", "total_two", "self_two", "amounts_two", "change", "proven", "not_proven", "same", "change_is"}
    | {f"kind_{kind}" for kind in _KINDS}
)
"""The words used by ``assets/flame.js``."""
WORDS = SCRIPT_WORDS | (
    frozenset({"all", "rest", "theme", "help", "close", "needs_script", "nothing", "frames", "frame", "kind", "self"})
    | {"total", "before", "after", "change_head", "total_change", "cut", "rows_cut", "mouse", "direction_help"}
    | {"key_move", "key_zoom", "key_out", "key_reset", "key_search", "key_next", "key_turn", "key_side", "key_theme"}
    | {"key_help"}
)
"""The words the caller passes. ``{}`` in them stands for a name or number: matches (frames, share), unit_sample,
unit_samples, total_of and self_of (amount, share), of_zoomed, total_two, self_two and amounts_two (before, after),
change (points), cut (frames, share), rows_cut (two)."""


@dataclass(frozen=True)
class Row:
    """A frame in the table: of `Layout.labels`, drawn or not. Shares of the sum, a number per side; `proven`: of a
    difference, whether its change is significant."""

    label: str
    kind: str
    code: str
    own: tuple[float, ...]
    total: tuple[float, ...]
    proven: bool = True


def flame_page(
    shown: Layout | None,
    rows: Sequence[Row],
    words: Mapping[str, str],
    *,
    lang: str,
    heading: str,
    unit: str,
    period: float = 0.0,
    verdict: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Return the HTML of the page; `shown` None: nothing was sampled. `rows`: in ranked order, the first `MOST_ROWS`
    are listed. `unit`: of the weights: ``samples``, ``ns``, ``bytes`` or a name; `period`: the value of one sample in
    the unit, 0 if unknown or not constant. `verdict` and `notes` are lines on top. `words` holds all of `WORDS`; a
    KeyError for one that is missing."""
    texts = {key: words[key] for key in sorted(WORDS)}
    body = f"""<header>
<div class="top"><div><h1>{escape(heading)}</h1>
{f'<p class="verdict">{escape(verdict)}</p>' if verdict else ""}
{"".join(f"<p>{escape(line)}</p>" for line in notes)}</div>
<div class="buttons"><button id="theme" type="button">{escape(texts["theme"])}</button>
<button id="help" type="button" aria-haspopup="dialog">{escape(texts["help"])}</button></div></div>
<noscript><p class="warning">{escape(texts["needs_script"])}</p></noscript>
</header>
<main>
{_graph(shown, texts)}
{_table(shown, rows, texts)}
</main>
{help_dialog(texts, sides=0 if shown is None else shown.sides)}"""
    data = {
        "words": {key: texts[key] for key in sorted(SCRIPT_WORDS)},
        "tree": None if shown is None else flame_data(shown),
        "unit": unit,
        "period": period,
    }
    return page(lang=lang, title=heading, body=body, data=data, name="flame_page", also=STYLES, scripts=SCRIPTS)


def cut_note(shown: Layout, words: Mapping[str, str]) -> str:
    """Return the note on frames that are not drawn, empty when all are."""
    if not shown.cut:
        return ""
    digits = max(0, 1 - math.floor(math.log10(100 * shown.least)))
    return words["cut"].format(f"{shown.cut:,}", f"{100 * shown.least:.{digits}f}")


def help_dialog(words: Mapping[str, str], *, sides: int) -> str:
    """Return the list of keys, as a dialog with the id ``keys``."""
    keys = (
        ("← ↑ → ↓", "key_move"),
        ("Enter", "key_zoom"),
        ("Esc ⌫", "key_out"),
        ("0", "key_reset"),
        ("/", "key_search"),
        ("N ⇧N", "key_next"),
        ("I", "key_turn"),
        *([("D", "key_side")] if sides > 1 else []),
        ("T", "key_theme"),
        ("?", "key_help"),
    )
    rows = "".join(f"<dt><kbd>{sign}</kbd></dt><dd>{escape(words[key])}</dd>" for sign, key in keys)
    return f"""<dialog id="keys" aria-label="{escape(words["help"])}"><dl>{rows}</dl><p>{escape(words["mouse"])}</p>
<button>{escape(words["close"])}</button></dialog>"""


def _graph(shown: Layout | None, words: Mapping[str, str]) -> str:
    if shown is None:
        return f'<p class="nothing">{escape(words["nothing"])}</p>'
    note = cut_note(shown, words)
    line = f'<p class="note">{escape(note)}</p>' if note else ""
    more = f'<p class="note">{escape(words["direction_help"])}</p>' if shown.sides > 1 else ""
    return f'<section id="graph" aria-label="{escape(words["graph"])}"></section>{line}{more}'


def _table(shown: Layout | None, rows: Sequence[Row], words: Mapping[str, str]) -> str:
    if shown is None or not rows:
        return ""
    number = {frame: at for at, frame in enumerate(zip(shown.labels, shown.kinds, strict=True))}
    heads = (
        [words["self"], words["total"]]
        if shown.sides == 1
        else [words["before"], words["after"], words["change_head"], words["total_change"]]
    )
    columns = "".join(f'<th class="number"><button type="button">{escape(head)}</button></th>' for head in heads)
    lines = "".join(_line(row, number.get((row.label, row.kind)), words) for row in rows[:MOST_ROWS])
    cut = len(rows) - MOST_ROWS
    note = f'<p class="note">{escape(words["rows_cut"].format(MOST_ROWS, f"{len(rows):,}"))}</p>' if cut > 0 else ""
    return f"""<section aria-labelledby="frames"><h2 id="frames">{escape(words["frames"])}</h2>
<div class="table" tabindex="0" role="region" aria-labelledby="frames"><table><thead><tr>{columns}
<th>{escape(words["frame"])}</th><th>{escape(words["kind"])}</th></tr></thead><tbody>{lines}</tbody></table></div>{note}
</section>"""


def _line(row: Row, at: int | None, words: Mapping[str, str]) -> str:
    if len(row.total) == 1:
        figures = _share(row.own[0]) + _share(row.total[0])
    else:
        figures = (
            _share(row.own[0]) + _share(row.own[1]) + _change(row.own, row, words) + _change(row.total, row, words)
        )
    label = escape(row.label)
    name = label if at is None else f'<button type="button" aria-pressed="false">{label}</button>'
    code = f" <span>{escape(row.code)}</span>" if row.code and row.code not in row.label else ""
    frame = "" if at is None else f' data-frame="{at}"'
    return f'<tr{frame}>{figures}<td class="name">{name}{code}</td><td>{escape(words[f"kind_{row.kind}"])}</td></tr>'


def _share(share: float) -> str:
    figure = "< 0.01" if 0 < share < 5e-5 else f"{100 * share:.2f}"
    return f'<td class="number" data-value="{share:.9g}">{escape(figure)} %</td>'


def _change(shares: Sequence[float], row: Row, words: Mapping[str, str]) -> str:
    points = round(100 * (shares[1] - shares[0]), 9)
    none = round(points, 2) == 0
    look = "quiet" if none or not row.proven else "up" if points > 0 else "down"
    sign = "" if none else "+" if points > 0 else "−"
    mark = {"up": "▲ ", "down": "▼ "}.get(look, "")
    texts = "" if row.proven else f' title="{escape(words["not_proven"])}"'
    return f'<td class="number {look}" data-value="{points:.9g}"{texts}>{mark}{sign}{abs(points):.2f}</td>'
