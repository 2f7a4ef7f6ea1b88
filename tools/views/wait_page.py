"""What threads waited for over time as one offline page, and as a picture. Every word is passed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from whystall.tools.views.flame_data import packed
from whystall.tools.views.page import escape, page
from whystall.tools.views.topology_page import Table
from whystall.tools.views.wait_drawing import WaitMap, wait_figure

WORDS = frozenset({"legend", "not_recorded", "time", "total", "keys", "theme", "needs_script", "at_cell", "rate"})
"""The words the caller passes; ``{}`` stands for a time or number: at_cell (from, to), rate (seconds per second)."""


def wait_page(
    maps: Sequence[tuple[str, WaitMap]],
    tables: Sequence[Table],
    words: Mapping[str, str],
    *,
    lang: str,
    heading: str,
    verdict: str,
    notes: Sequence[str] = (),
) -> str:
    """Return the HTML of the page: `maps` with their titles, then `tables`. `verdict` and `notes`: lines on top."""
    texts = {key: words[key] for key in WORDS}
    sections, data = [], {}
    for number, (title, one) in enumerate(maps):
        figure = wait_figure(one, texts)
        key = f"map{number}"
        sections.append(
            f'<section><h2>{escape(title)}</h2><div class="scroll">{figure.inline(key, title)}</div></section>'
        )
        data[key] = {
            "x": figure.x,
            "y": figure.y,
            "cell": list(figure.cell),
            "rows": [row.full for row in one.rows],
            "start": one.start_ns // 1_000_000,
            "column": one.column_ns / 1e6,
            "columns": one.rate.shape[1],
            "rate": packed(np.ascontiguousarray(one.rate).ravel(), "<f4"),
        }
    body = f"""<header><div class="top"><div><h1>{escape(heading)}</h1>
<p class="verdict">{escape(verdict)}</p>{"".join(f"<p>{escape(note)}</p>" for note in notes)}</div>
<div class="buttons"><button id="theme" type="button">{escape(texts["theme"])}</button></div></div>
<noscript><p class="warning">{escape(texts["needs_script"])}</p></noscript></header>
<main><p class="note">{escape(texts["keys"])}</p>{"".join(sections)}{"".join(map(_table, tables))}</main>
<div id="tip" role="tooltip" hidden></div><div id="live" class="unseen" aria-live="polite"></div>"""
    content = {"words": {key: texts[key] for key in ("at_cell", "rate", "not_recorded")}, "maps": data}
    also = ("page_frame", "flame_colours", "wait_figure")
    return page(lang=lang, title=heading, body=body, data=content, name="wait_page", also=also, images=True)


def wait_svg(waits: WaitMap, words: Mapping[str, str], *, heading: str, notes: Sequence[str] = ()) -> str:
    """Return the drawing as one SVG file, without script."""
    return wait_figure(waits, words).alone(heading, notes)


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="scroll table" tabindex="0" role="region" '
        f'aria-label="{escape(table.title)}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        "</section>"
    )
