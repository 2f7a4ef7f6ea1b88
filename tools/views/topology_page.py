"""The topology of a cluster as one offline page, and as a picture. Every word is passed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whystall.tools.views.page import escape, page
from whystall.tools.views.topology_drawing import MOST_FULL, HostView, figure

_MOST_ROWS = 1024


@dataclass(frozen=True)
class Table:
    """A table below the drawing; nothing is drawn without rows."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]


def topology_page(
    hosts: Sequence[HostView],
    tables: Sequence[Table],
    words: Mapping[str, Any],
    *,
    lang: str,
    heading: str,
    verdict: str,
    notes: Sequence[str],
) -> str:
    """Return the HTML of the page. Many hosts are drawn small; those with a mark also in full, `MOST_FULL` of them."""
    few = len(hosts) <= MOST_FULL
    marked = [host for host in hosts if is_marked(host)]
    sections = [f'<div class="scroll">{figure(hosts, words).inline("hosts", heading)}</div>'] if hosts else []
    if not few:
        sections.insert(0, f'<p class="note">{escape(words["small"])}</p>')
    if not few and marked:
        more = words["marked_cut"].format(MOST_FULL, len(marked)) if len(marked) > MOST_FULL else ""
        drawn = figure(marked[:MOST_FULL], words, full=True).inline("marked", words["marked"])
        sections.append(
            f'<h2>{escape(words["marked"])}</h2><p class="note">{escape(more)}</p><div class="scroll">{drawn}</div>'
        )
    sections += [_table(one, words) for one in tables if one.rows]
    body = f"""<header><div class="top"><div><h1>{escape(heading)}</h1>
<p class="verdict">{escape(verdict)}</p>{"".join(f"<p>{escape(note)}</p>" for note in notes)}</div>
<button id="theme" type="button">{escape(words["theme"])}</button></div></header>
<main>{"".join(f'<p class="note">{escape(line)}</p>' for line in words["legend"].values())}
{"".join(sections)}</main>"""
    also = ("page_frame", "topology_figure")
    return page(lang=lang, title=heading, body=body, data={}, name="topology_page", also=also)


def topology_svg(
    hosts: Sequence[HostView], words: Mapping[str, Any], *, heading: str, notes: Sequence[str] = ()
) -> str:
    """Return the drawing as one SVG file, without script."""
    return figure(hosts, words).alone(heading, notes)


def is_marked(host: HostView) -> bool:
    """Return whether a host or one of its devices has a mark."""
    return bool(host.mark) or any(one.mark for node in host.nodes for one in (*node.gpus, *node.nics))


def _table(table: Table, words: Mapping[str, Any]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows[:_MOST_ROWS])
    left = len(table.rows) - _MOST_ROWS
    more = f'<p class="note">{escape(words["cut"].format(left))}</p>' if left > 0 else ""
    return (
        f'<h2>{escape(table.title)}</h2><div class="scroll table" tabindex="0" role="region" '
        f'aria-label="{escape(table.title)}"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{more}'
    )
