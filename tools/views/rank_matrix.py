"""Ranks of a job on one page: the verdict, where each is (of a hang), their table, the parts of their steps, the worst
step as a time line, own time by rank and step, and which waited for which.

Nothing is judged here: the accused, since when, and every word are passed in.
"""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from whystall.tools.views.figure import Figure
from whystall.tools.views.page import escape, page
from whystall.tools.views.rank_cells import Group, Matrix, known, step_matrix, wait_matrix
from whystall.tools.views.rank_drawing import step_figure, wait_figure
from whystall.tools.views.rank_labels import Mark
from whystall.tools.views.rank_parts import PARTS, parts_figure, rank_parts
from whystall.tools.views.rank_places import STATES, places_figure, places_of
from whystall.tools.views.rank_timeline import Timeline, entries, timeline_figure, timeline_rows

MOST_LINES = 1024
"""Rows of the table of ranks; the accused come first."""
WORDS = frozenset(
    {"own_by_step", "who_waits", "own_beside_peers", "not_known", "own_mean", "step", "steps_binned"}
    | {"ranks_binned", "began", "waited_per_step", "waits", "waited_for", "sum_waited", "sum_caused", "no_waits"}
    | {"rank", "host", "peers", "remark", "own", "step_time", "wait", "work", "gap", "ranks_left_out"}
    | {"theme", "keys", "needs_script", "at_cell", "own_of", "beside", "beside_share", "waited_of", "parts_of"}
    | {"one_waits", "nobody", "means", "parts_by_rank", "step_mean", "part_of", "at_rank", "worst_step", "blur"}
    | {"since_start", "at_instant", "lasts", "waits_in_it", "like_ones", "own_work", "who_is_where", "last_operation"}
    | {"at_place", "columns_left_out"}
    | {f"part_{part}" for part in PARTS}
    | {f"state_{state}" for state in STATES}
)
"""The words the caller passes. ``{}`` in them stands for a number or name: steps_binned, ranks_binned, began,
ranks_left_out, at_cell (ranks, step), own_of (ms), beside (median of the peers in ms, difference in %), beside_share
(difference in %), waited_of (ms, of how long a step), parts_of (work, gap), one_waits (waiting, awaited, ms), part_of
(part, ms, %), at_rank, worst_step (step), blur (ms), at_instant (rank, ms), lasts (operation, ms), waits_in_it (ms),
like_ones (number), at_place (rank, group), columns_left_out (number)."""
_CELL_WORDS = ("at_cell", "own_of", "beside", "beside_share", "waited_of", "parts_of", "not_known")
_PAIR_WORDS = ("one_waits", "nobody")
_BAR_WORDS = ("part_of", "at_rank", "at_instant", "lasts", "waits_in_it", "like_ones", "own_work", "at_place")
_MEANS = ("step_ns", "own_ns", "wait_ns", "compute_ns", "gap_ns")


@dataclass(frozen=True)
class RankView:
    """A job's ranks.

    `own`: rank, step, own_ns and any of step_ns, wait_ns, compute_ns, gap_ns, loader_ns, exposed_comm_ns (negative:
    unknown); one row per rank and step. `waits`: waiter, last, wait_ns, sums over all steps. `groups`: ranks that are
    compared with each other. `marks`: the accused. `hosts`: names of the ranks' hosts, if known. `timeline`: of the
    worst step. `places`: where each rank is (see `rank_places.places_of`); empty or None: no hang.
    """

    own: pl.DataFrame
    waits: pl.DataFrame
    groups: tuple[Group, ...] = ()
    marks: tuple[Mark, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    timeline: Timeline | None = None
    places: pl.DataFrame | None = None

    @property
    def ranks(self) -> list[int]:
        """All ranks in the tables."""
        found: set[int] = set(self.own["rank"].to_list())
        return sorted(found | set(self.waits["waiter"].to_list()) | set(self.waits["last"].to_list()))

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.own["step"].n_unique()


def rank_page(
    view: RankView, words: Mapping[str, str], *, lang: str, heading: str, verdict: str, notes: Sequence[str] = ()
) -> str:
    """Return the HTML of one offline page. `heading`, `verdict` and `notes` (lines) are shown on top; `words` holds all
    of `WORDS`. Its size is bounded, and binned or omitted ranks are stated. Raises KeyError for a word that is missing.
    """
    texts = {key: words[key] for key in sorted(WORDS)}
    figures: dict[str, Any] = {}
    sections = []
    sections += _hang(view, texts, figures)
    if view.own.height:
        sections += [_table(view, texts), *_parts(view, texts, figures), *_timeline(view, texts, figures)]
        matrix, figure = _steps(view, texts)
        figures["steps"] = _data(matrix, figure)
        sections.append(_section("steps", texts["own_by_step"], figure, _binned(matrix, texts)))
    if view.waits.height:
        matrix, figure = _waits(view, texts)
        figures["waits"] = _data(matrix, figure)
        sections.append(_section("waits", texts["who_waits"], figure, _binned(matrix, texts)))
    elif view.own.height or not sections:
        sections.append(f"<p class='note'>{escape(texts['no_waits'])}</p>")
    body = f"""<header>
<h1>{escape(heading)}</h1>
<p class="verdict">{escape(verdict)}</p>
{"".join(f"<p>{escape(line)}</p>" for line in notes)}
<noscript><p class="warning">{escape(texts["needs_script"])}</p></noscript>
</header>
<nav><span>{escape(texts["keys"])}</span><span class="space"></span>
<button id="theme" type="button">{escape(texts["theme"])}</button></nav>
<main>
{"".join(sections)}
</main>
<div id="tip" role="tooltip" hidden></div>
<div id="live" class="unseen" aria-live="polite"></div>"""
    data = {"words": {key: texts[key] for key in (*_CELL_WORDS, *_PAIR_WORDS, *_BAR_WORDS)}, "figures": figures}
    return page(lang=lang, title=heading, body=body, data=data, name="rank_matrix", also=("rank_figure",), images=True)


def step_svg(view: RankView, words: Mapping[str, str]) -> str:
    """Return own time by rank and step as one SVG file, without script; words as of the page."""
    return _steps(view, words)[1].alone(words["own_by_step"])


def wait_svg(view: RankView, words: Mapping[str, str]) -> str:
    """Return which rank waited for which as one SVG file, without script; words as of the page."""
    return _waits(view, words)[1].alone(words["who_waits"])


def _steps(view: RankView, words: Mapping[str, str]) -> tuple[Matrix, Figure]:
    matrix = step_matrix(view.own, view.groups)
    return matrix, step_figure(matrix, view.marks, words)


def _waits(view: RankView, words: Mapping[str, str]) -> tuple[Matrix, Figure]:
    matrix = wait_matrix(view.waits, view.ranks, view.steps)
    return matrix, wait_figure(matrix, view.marks, words)


def _parts(view: RankView, words: Mapping[str, str], figures: dict[str, Any]) -> list[str]:
    if "step_ns" not in view.own.columns:
        return []
    parts = rank_parts(view.own, view.groups)
    figure = parts_figure(parts, view.marks, words)
    figures["parts"] = _place(figure, parts.rows.cells) | {
        "kind": "parts",
        "names": [words[f"part_{name}"] for name in parts.values],
        "parts": [_packed(values) for values in parts.values.values()],
    }
    note = words["ranks_binned"].format(parts.rows.binned) if parts.rows.binned > 1 else ""
    return [_section("parts", words["parts_by_rank"], figure, note)]


def _timeline(view: RankView, words: Mapping[str, str], figures: dict[str, Any]) -> list[str]:
    if view.timeline is None or view.timeline.spans.is_empty():
        return []
    rows = timeline_rows(view.timeline, view.groups)
    found = entries(view.timeline, rows)
    figure = timeline_figure(view.timeline, rows, found, view.marks, words)
    figures["timeline"] = _place(figure, rows.cells) | {
        "kind": "timeline",
        "ms": int(str(view.timeline.spans["end_ns"].max())) / 1e6,
        "labels": found.labels,
        "columns": [],
        "values": {
            name: _packed(array("f", getattr(found, name)))
            for name in ("row", "start", "took", "wait", "label", "count")
        },
    }
    title = words["worst_step"].format(view.timeline.step)
    return [_section("timeline", title, figure, words["blur"].format(f"{view.timeline.blur_ns / 1e6:.3g}"))]


def _hang(view: RankView, words: Mapping[str, str], figures: dict[str, Any]) -> list[str]:
    if view.places is None or view.places.is_empty():
        return []
    places = places_of(view.places)
    figure = places_figure(places, view.marks, words)
    figures["places"] = _place(figure, places.rows.cells) | {
        "kind": "places",
        "columns": places.columns,
        "cells": [None if cell is None else [STATES.index(cell[0]), cell[1], cell[2]] for cell in places.cells],
        "states": [words[f"state_{state}"] for state in STATES],
    }
    note = words["columns_left_out"].format(places.left_out) if places.left_out else ""
    return [_section("places", words["who_is_where"], figure, note)]


def _place(figure: Figure, cells: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return where the cells of `figure` are, and the first and last rank of each row."""
    rows = [[cell[0], cell[-1]] for cell in cells]
    return {"x": figure.x, "y": figure.y, "cell": list(figure.cell), "rows": rows, "columns": [0]}


def _binned(matrix: Matrix, words: Mapping[str, str]) -> str:
    return words["ranks_binned"].format(matrix.rows.binned) if matrix.rows.binned > 1 else ""


def _section(key: str, title: str, figure: Figure, note: str) -> str:
    line = f"<p class='note'>{escape(note)}</p>" if note else ""
    return f"""<section aria-labelledby="{key}-title"><h2 id="{key}-title">{escape(title)}</h2>{line}
<div class="scroll">{figure.inline(key, title)}</div></section>"""


def _data(matrix: Matrix, figure: Figure) -> dict[str, Any]:
    """Return the script's input for the figures of a cell: numbers as little-endian bytes in base64, shares as 16-bit
    integers in thousandths, with the least one for unknown, the rest as 32-bit floats."""
    return _place(figure, matrix.rows.cells) | {
        "kind": "steps" if matrix.values else "waits",
        "columns": list(matrix.columns),
        "share": _packed(_thousandths(matrix.shade) if matrix.values else array("h")),
        "values": {name: _packed(values) for name, values in (matrix.values or {"waits": matrix.shade}).items()},
    }


def _thousandths(shares: array[float]) -> array[int]:
    return array("h", (-32768 if math.isnan(x) else max(-32767, min(32767, round(x * 1000))) for x in shares))


def _packed(values: array[float] | array[int]) -> str:
    little = array(values.typecode, values)
    if sys.byteorder == "big":
        little.byteswap()
    return base64.b64encode(little.tobytes()).decode()


def _table(view: RankView, words: Mapping[str, str]) -> str:
    labels = {rank: group.label for group in view.groups for rank in group.ranks}
    remarks = {mark.rank: mark.label for mark in view.marks}
    columns = [name for name in _MEANS if name in view.own.columns]
    means = view.own.with_columns(known(*columns)).group_by("rank").agg(pl.col(columns).mean() * 1e-6)
    lines = sorted(means.to_dicts(), key=lambda row: (row["rank"] not in remarks, row["rank"]))
    heads = {"step_ns": "step_time", "own_ns": "own", "wait_ns": "wait", "compute_ns": "work", "gap_ns": "gap"}
    head = "".join(f'<th class="number">{escape(words[heads[name]])}</th>' for name in columns)
    body = "".join(_line(row, columns, labels, view.hosts, remarks) for row in lines[:MOST_LINES])
    cut = len(lines) - MOST_LINES
    note = f'<p class="note">{escape(words["ranks_left_out"].format(cut))}</p>' if cut > 0 else ""
    return f"""<p class="note">{escape(words["means"])}</p>
<div class="scroll table" tabindex="0" role="region" aria-label="{escape(words["rank"])}">
<table><thead><tr><th class="number">{escape(words["rank"])}</th><th>{escape(words["host"])}</th>
<th>{escape(words["peers"])}</th>{head}<th>{escape(words["remark"])}</th></tr></thead><tbody>{body}</tbody></table>
</div>{note}"""


def _line(
    row: Mapping[str, Any],
    columns: Sequence[str],
    labels: Mapping[int, str],
    hosts: Mapping[int, str],
    remarks: Mapping[int, str],
) -> str:
    rank = row["rank"]
    figures = ("" if row[name] is None else f"{row[name]:.2f} ms" for name in columns)
    numbers = "".join(f'<td class="number">{figure}</td>' for figure in figures)
    accused = ' class="accused"' if rank in remarks else ""
    return (
        f'<tr{accused}><td class="number">{rank}</td><td>{escape(hosts.get(rank, ""))}</td>'
        f"<td>{escape(labels.get(rank, ''))}</td>{numbers}<td>{escape(remarks.get(rank, ''))}</td></tr>"
    )
