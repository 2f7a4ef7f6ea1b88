"""A heat map as one offline page: a selected span is drawn as a flame graph, compared with the rest.

Nothing is judged here: the bands, their periods and every word are passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystall.tools.views.figure import Figure
from whystall.tools.views.flame_data import flame_data, packed
from whystall.tools.views.flame_layout import REST_KIND, FlameTree, Layout, layout
from whystall.tools.views.flame_page import SCRIPT_WORDS as FLAME_WORDS
from whystall.tools.views.flame_page import SCRIPTS, STYLES
from whystall.tools.views.heat_drawing import Heat, heat_figure
from whystall.tools.views.page import escape, page

MOST_NODES = 8000
"""Limit of the frames of the flame graphs in the page, about."""
_LEAST_SHARE = 1e-4
_SCRIPT = ("at_cell", "busy_is", "unseen_is", "chosen_is", "chosen_bands", "chosen_none", "samples_few")
WORDS = frozenset(_SCRIPT) | (
    frozenset({"seconds", "seconds_of", "within", "within_of", "busy", "not_observed", "cut_out", "map", "periods"})
    | {"no_periods", "choose_bands", "chosen", "whole", "difference", "difference_help", "clear"}
    | {"theme", "keys", "needs_script", "together", "cut_note", "rest_widths", "chosen_widths", "total_two", "self_two"}
    | {"amounts_two"}
)
"""The words the caller passes. ``{}`` in them stands for a number or text: at_cell (from, to), busy_is (share),
chosen_is (from, to, share of all, busy), chosen_bands (bands, share of all), seconds_of and within_of (length of a
column), together (ms), cut_note (times), total_two, self_two and amounts_two (rest, chosen)."""


@dataclass(frozen=True)
class Stacks:
    """Weights of nodes of `tree` in cells, by cell; `together` cells count as one. `unit`, `period`: of the weights, as
    of a flame graph; `per_sample`: the mean weight of a sample."""

    tree: FlameTree
    cell: NDArray[np.int64]
    node: NDArray[np.int64]
    weight: NDArray[np.float64]
    together: int
    unit: str
    period: float
    per_sample: float


def heat_page(
    heat: Heat,
    stacks: Stacks,
    words: Mapping[str, str],
    flame_words: Mapping[str, str],
    *,
    lang: str,
    heading: str,
    verdict: str = "",
    notes: Sequence[str] = (),
) -> str:
    """Return the HTML of the page. `words` holds all of `WORDS`, `flame_words` those of a flame graph, with ``all`` and
    ``rest``; a KeyError for one that is missing. `verdict` and `notes` are lines on top."""
    texts = {key: words[key] for key in sorted(WORDS)}
    figure = _figure(heat, texts)
    shown = layout(stacks.tree, root=flame_words["all"], rest=flame_words["rest"], least=_LEAST_SHARE, most=MOST_NODES)
    lines = [*notes, *_remarks(heat, stacks, texts)]
    body = f"""<header>
<div class="top"><div><h1>{escape(heading)}</h1>
{f'<p class="verdict">{escape(verdict)}</p>' if verdict else ""}
{"".join(f"<p>{escape(line)}</p>" for line in lines)}</div>
<div class="buttons"><button id="theme" type="button">{escape(texts["theme"])}</button></div></div>
<noscript><p class="warning">{escape(texts["needs_script"])}</p></noscript>
</header>
<main>
{_periods(heat, texts)}
<section aria-labelledby="map-title"><h2 id="map-title">{escape(texts["map"])}</h2>
<p class="note">{escape(texts["keys"])}</p>
<div class="scroll">{figure.inline("map", texts["map"], role="application")}</div>
<p class="chosen-line"><output id="chosen" aria-live="polite">{escape(texts["chosen_none"])}</output>
<button id="clear" type="button" disabled>{escape(texts["clear"])}</button></p></section>
<section aria-labelledby="flame-title"><h2 id="flame-title" data-whole="{escape(texts["whole"])}"
 data-chosen="{escape(texts["chosen"])}">{escape(texts["whole"])}</h2><div id="flame"></div></section>
<section id="beside" aria-labelledby="beside-title" hidden><h2 id="beside-title">{escape(texts["difference"])}</h2>
<p class="note">{escape(texts["difference_help"])}</p><div id="difference"></div></section>
</main>
<div id="tip" role="tooltip" hidden></div>
<div id="live" class="unseen" aria-live="polite"></div>"""
    flame_texts = {key: flame_words[key] for key in sorted(FLAME_WORDS)}
    data = {
        "words": {key: texts[key] for key in _SCRIPT},
        "flame_words": flame_texts,
        "difference_words": flame_texts
        | {"before_widths": texts["rest_widths"], "after_widths": texts["chosen_widths"]}
        | {key: texts[key] for key in ("total_two", "self_two", "amounts_two")},
        "map": _map(heat, figure),
        "stacks": None if shown is None else _entries(stacks, shown),
    }
    return page(
        lang=lang,
        title=heading,
        body=body,
        data=data,
        name="heat_page",
        also=(*STYLES, "heat_figure"),
        scripts=SCRIPTS,
        images=True,
    )


def heat_svg(heat: Heat, words: Mapping[str, str], *, heading: str, notes: Sequence[str] = ()) -> str:
    """Return the heat map as one SVG file, without script; words as of the page."""
    figure = _figure(heat, words)
    return figure.alone(heading, [*notes, *(band.label for band in heat.bands)])


def _figure(heat: Heat, words: Mapping[str, str]) -> Figure:
    length = heat.column_ns / 1e9
    texts = dict(words)
    if length != 1.0:
        texts["seconds"] = words["seconds_of"].format(f"{length:g}")
        texts["within"] = words["within_of"].format(f"{length:g}")
    return heat_figure(heat, texts)


def _remarks(heat: Heat, stacks: Stacks, words: Mapping[str, str]) -> list[str]:
    found = []
    if heat.gaps:
        found.append(words["cut_note"].format(len(heat.gaps)))
    if stacks.together > 1:
        found.append(words["together"].format(f"{stacks.together * heat.cell_ns / 1e6:g}"))
    return found


def _periods(heat: Heat, words: Mapping[str, str]) -> str:
    if not heat.bands:
        return f'<p class="note">{escape(words["no_periods"])}</p>'
    rows = []
    for at, band in enumerate(heat.bands):
        sign = (
            f'<svg class="sign" width="34" height="14"><path class="band band{at % 3 + 1}" d="M2 2h30v10h-30z"/></svg>'
        )
        more = "".join(f"<p>{escape(line)}</p>" for line in band.lines)
        rows.append(
            f"<li>{sign}<div><strong>{escape(band.label)}</strong>{more}</div>"
            f'<button type="button" data-band="{at}">{escape(words["choose_bands"])}</button></li>'
        )
    return (
        f'<section aria-labelledby="periods-title"><h2 id="periods-title">{escape(words["periods"])}</h2>'
        f'<ul class="periods">{"".join(rows)}</ul></section>'
    )


def _map(heat: Heat, figure: Figure) -> dict[str, Any]:
    """Return the script's input for the map: times in ns as 64-bit floats, exact below 104 days."""
    return {
        "x": figure.x,
        "y": figure.y,
        "cell": list(figure.cell),
        "rows": heat.rows,
        "cell_ns": heat.cell_ns,
        "scale": heat.scale,
        "columns": packed(heat.columns, "<f8"),
        "levels": packed(heat.levels.ravel(), "<u1"),
        "bands": [[packed(band.starts, "<f8"), packed(band.ends, "<f8")] for band in heat.bands],
    }


def _entries(stacks: Stacks, shown: Layout) -> dict[str, Any]:
    place = _places(stacks.tree, shown)
    keys = stacks.cell * len(shown) + place[stacks.node]
    once, at = np.unique(keys, return_inverse=True)
    return {
        "tree": flame_data(shown),
        "unit": stacks.unit,
        "period": stacks.period,
        "per_sample": stacks.per_sample,
        "together": stacks.together,
        "cell": packed(once // len(shown), "<i4"),
        "node": packed(once % len(shown), "<i4"),
        "weight": packed(np.bincount(at, stacks.weight, len(once)), "<f4"),
    }


def _places(tree: FlameTree, shown: Layout) -> NDArray[np.int64]:
    """Return where each node of `tree` is drawn: as itself, or in the rest beside its siblings."""
    number = {(label, kind): at for at, (label, kind) in enumerate(zip(shown.labels, shown.kinds, strict=True))}
    height = len(shown.labels)
    frame = np.array([number.get(key, -1) for key in zip(tree.labels, tree.kinds, strict=True)], dtype=np.int64)[
        tree.frame
    ]
    keys = (shown.parent.astype(np.int64) + 1) * height + shown.frame
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    rest_frame = next((at for at, kind in enumerate(shown.kinds) if kind == REST_KIND), -1)
    is_rest = np.array([kind == REST_KIND for kind in shown.kinds], dtype=bool)[shown.frame]

    def find(parent: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        sought = (parent + 1) * height + wanted
        at = np.minimum(np.searchsorted(ordered, sought), len(ordered) - 1)
        return np.where((ordered[at] == sought) & (wanted >= 0), order[at], -1).astype(np.int64)

    place = np.zeros(len(tree.parent), dtype=np.int64)
    for depth in range(int(tree.depth.max(initial=-1)) + 1):
        nodes = np.flatnonzero(tree.depth == depth)
        above = np.where(tree.parent[nodes] < 0, 0, place[tree.parent[nodes]])
        itself = find(above, frame[nodes])
        left_out = find(above, np.full(len(nodes), rest_frame, dtype=np.int64))
        place[nodes] = np.where(
            is_rest[above], above, np.where(itself >= 0, itself, np.where(left_out >= 0, left_out, above))
        )
    return place
