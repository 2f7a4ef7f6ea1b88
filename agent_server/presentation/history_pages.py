"""The history of the watch as page and picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whystall.agent_server.presentation.history_lines import (
    change_text,
    place_text,
    seconds_text,
    target_text,
    what_text,
    who_text,
)
from whystall.agent_server.presentation.path_change_lines import numbers_text, part_text, path_text, thread_text
from whystall.agent_server.presentation.template_values import TemplateValues
from whystall.knowledge_base.models import Lang
from whystall.prompts.render import words
from whystall.tools.collect.slice_history import RUNNING, Place
from whystall.tools.contract.registry import ArtifactContent
from whystall.tools.contract.result import ToolResult
from whystall.tools.history.data import HistoryData, HistoryPlace, WaitChange, WaitPlace
from whystall.tools.history.grid import Grid, RowKey
from whystall.tools.history.summary import Spans, at_text, ns_of
from whystall.tools.views.topology_page import Table
from whystall.tools.views.wait_drawing import WaitMap, WaitRow, most_of
from whystall.tools.views.wait_page import wait_page, wait_svg

_MOST_ROWS = 30
_MOST_COLUMNS = 360


def history_pages(result: ToolResult[HistoryData], spans: Spans, lang: Lang) -> list[ArtifactContent]:
    """Return the page and the picture; empty without a row."""
    data = result.data
    running = data.running[: _MOST_ROWS // 3]
    rows = [*data.rows[: _MOST_ROWS - len(running)], *running]
    if not rows:
        return []
    texts: dict[str, Any] = words(lang)["history"]
    page_words = {key: str(text) for key, text in texts["page"].items()}
    grids = [spans.now, *([spans.before] if spans.before is not None else [])]
    rates = [_rates(grid, rows) for grid in grids]
    most = most_of(*rates)
    titles = [page_words["map"], page_words["baseline"]]
    maps = [
        (f"{title}: {_from_to(grid)}", _map(grid, rate, rows, data.changes if not at else (), most, lang))
        for at, (title, grid, rate) in enumerate(zip(titles, grids, rates, strict=False))
    ]
    heading = page_words["heading"].format(target_text(result, lang))
    verdict = verdict_text(data, lang)
    blind = [str(line) for line in TemplateValues("txt", lang, result.coverage.target).blind([result.coverage])]
    facts = page_words["facts" if data.ran_s is None else "facts_ran"].format(
        minutes=f"{data.minutes:g}", waited=seconds_text(data.waited_s), ran=seconds_text(data.ran_s or 0.0)
    )
    path = path_text(data.path, lang, 0)
    notes = [facts, *(path.head if path is not None else []), *blind]
    page = wait_page(
        maps, _tables(data, page_words, lang), page_words, lang=lang, heading=heading, verdict=verdict, notes=notes
    )
    svg = wait_svg(maps[0][1], page_words, heading=heading, notes=[verdict, *notes])
    return [
        ArtifactContent(name="history.html", title=heading, media_type="text/html", text=page),
        ArtifactContent(name="history.svg", title=page_words["picture"], media_type="image/svg+xml", text=svg),
    ]


def verdict_text(data: HistoryData, lang: Lang) -> str:
    """Return how many rows changed beyond chance."""
    texts: dict[str, Any] = words(lang)["history"]
    number = len(data.changes) + data.changes_left_out
    if data.tested is None:
        return str(texts["untested"])
    return str(texts["changed" if number else "unchanged"].format(changed=number, tested=data.tested))


def _key(place: WaitPlace) -> RowKey:
    return RowKey(place.job, Place(**place.model_dump(include=set(Place._fields))))


def _per(grid: Grid) -> int:
    return -(-len(grid.recorded) // _MOST_COLUMNS)


def _rates(grid: Grid, rows: Sequence[HistoryPlace]) -> NDArray[np.float64]:
    """Return the rates of `rows` in at most `_MOST_COLUMNS` columns, NaN where nothing was recorded."""
    place = {key: at for at, key in enumerate(grid.keys)}
    edges = np.arange(0, len(grid.recorded), _per(grid))
    recorded = np.add.reduceat(grid.recorded, edges)
    found = np.zeros((len(rows), len(edges)))
    for number, row in enumerate(rows):
        if (at := place.get(_key(row))) is not None:
            found[number] = np.add.reduceat(grid.waited[at], edges)
    return np.asarray(np.where(recorded > 0, found / np.where(recorded > 0, recorded, 1.0), np.nan))


def _map(
    grid: Grid,
    rate: NDArray[np.float64],
    rows: Sequence[HistoryPlace],
    changes: Sequence[WaitChange],
    most: float,
    lang: Lang,
) -> WaitMap:
    marks: dict[RowKey, list[tuple[int, int, str]]] = {}
    for one in changes:
        marks.setdefault(_key(one), []).append((ns_of(one.since), ns_of(one.until), change_text(one, lang)))
    totals = dict(zip(grid.keys, grid.totals, strict=True))
    made = [
        WaitRow(
            what_text(row, lang),
            who_text(row, lang),
            place_text(row, lang),
            seconds_text(float(totals.get(_key(row), 0.0))),
            marks.get(_key(row), ()),
        )
        for row in rows
    ]
    return WaitMap(made, grid.start_ns, grid.column_ns * _per(grid), rate, most)


def _tables(data: HistoryData, texts: dict[str, str], lang: Lang) -> list[Table]:
    rows = [
        (
            place_text(row, lang),
            seconds_text(row.waited_s),
            *([seconds_text(row.before_s or 0.0)] if data.baseline_since else []),
            str(row.count) if row.state != RUNNING else "",
            f"{row.longest_ms:.4g} ms" if row.state != RUNNING else "",
            ", ".join(map(str, row.pids)),
        )
        for row in (*data.rows, *data.running)
    ]
    baseline = [texts["baseline_total"]] if data.baseline_since else []
    columns = (texts["what"], texts["total"], *baseline, texts["count"], texts["longest"], texts["pids"])
    changed = [
        (place_text(one, lang), change_text(one, lang), f"{one.since} - {one.until}", f"{one.p_value:.2g}")
        for one in data.changes
    ]
    head = (texts["what"], texts["change"], texts["when"], "p")
    tables = [Table(texts["changes"], head, changed), Table(texts["rows"], columns, rows)]
    return [*_path_tables(data, texts, lang), *tables]


def _path_tables(data: HistoryData, texts: dict[str, str], lang: Lang) -> list[Table]:
    if data.path is None:
        return []
    own: dict[str, Any] = words(lang)["history"]["path"]
    rows = [(part_text(row, lang), numbers_text(row, lang)) for row in data.path.rows]
    return [Table(own["title"].format(who=thread_text(data.path)), (str(own["part"]), texts["change"]), rows)]


def _from_to(grid: Grid) -> str:
    return " - ".join(map(at_text, (grid.start_ns, grid.start_ns + len(grid.recorded) * grid.column_ns)))
