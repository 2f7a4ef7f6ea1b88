"""What a job waited for over time, as rows of a heat map for templates. Pure."""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from whystall.agent_server.presentation.history_lines import change_text, what_text, who_text
from whystall.agent_server.presentation.history_pages import verdict_text
from whystall.agent_server.presentation.template_values import TemplateValues
from whystall.agent_server.watch.history import HistoryParams
from whystall.knowledge_base.models import Lang
from whystall.tools.contract.params import parse_params
from whystall.tools.contract.result import Coverage
from whystall.tools.history.data import HistoryData, HistoryPlace, WaitChange, WaitPlace
from whystall.tools.history.summary import at_text, ns_of
from whystall.tools.views.wait_drawing import most_of

LEVELS = 20
SPANS = ("1h", "6h", "1d", "7d")
_PARTS, _ROWS, _SPOTS = 60, 15, 20


class Cells(NamedTuple):
    """Equal cells side by side, `at` and `width` in parts. `level`: 0 to `LEVELS`; -1: nothing was recorded."""

    at: int
    width: int
    level: int


class Mark(NamedTuple):
    """A stretch that changed, in parts, and by how much."""

    at: float
    width: float
    text: str


class HeatRow(NamedTuple):
    """A row. `peak`: its largest rate, seconds of waiting per second; `when`: the begin of that part."""

    place: HistoryPlace
    who: str
    what: str
    cells: list[Cells]
    marks: list[Mark]
    peak: float
    when: str


class HeatMap(NamedTuple):
    """`parts`: of the span; `most`: the rate of the darkest cells; `changes`: the row and how it changed; `blind`: what
    was not recorded."""

    data: HistoryData
    parts: int
    most: float
    rows: list[HeatRow]
    changes: list[tuple[str, WaitChange, str]]
    verdict: str
    blind: list[str]


def asked(job: str, since: str) -> HistoryParams:
    """Return what to ask ``history`` for. `since`: one of `SPANS`, else the first of them. Raises `ToolError`."""
    since = since if since in SPANS else SPANS[0]
    return parse_params(HistoryParams, {"since": since, "job": job, "top": _ROWS, "parts": _PARTS})


def heat_map(reply: dict[str, Any], lang: Lang) -> HeatMap:
    """Return the rows of what the tool ``history`` answered; the scale is that of `views.wait_drawing`.

    Raises ValueError, KeyError or OverflowError if the answer, which may be of another host, is no history.
    """
    data, coverage = HistoryData.model_validate(reply["data"]), Coverage.model_validate(reply["coverage"])
    rows, changes, parts = data.rows[:_ROWS], data.changes[:_ROWS], len(data.recorded_s)
    if not 0 < parts <= _PARTS:
        raise ValueError(f"{parts} parts of the span")
    recorded = np.array(data.recorded_s)
    waited = np.array([row.parts_s for row in rows]).reshape(len(rows), parts)
    if not (np.isfinite(recorded).all() and np.isfinite(waited).all()):
        raise ValueError("the parts of the span are not numbers")
    rate = np.where(recorded > 0, waited / np.where(recorded > 0, recorded, 1.0), np.nan)
    most = most_of(rate)
    share = np.sqrt(np.clip(np.nan_to_num(rate) / most, 0.0, 1.0))
    level = np.where(np.isnan(rate), -1, np.rint(LEVELS * share)).astype(int)
    start, end = ns_of(data.since), ns_of(data.until)
    part_ns = max(end - start, 1) / parts
    marks: dict[tuple[object, ...], list[Mark]] = {}
    for one in changes:
        first, last = (min(max((ns_of(at) - start) / part_ns, 0.0), parts) for at in (one.since, one.until))
        if last > first:
            marks.setdefault(_key(one), []).append(Mark(first, last - first, change_text(one, lang)))
    peaks = np.nan_to_num(rate)
    return HeatMap(
        data,
        parts,
        most,
        [
            HeatRow(
                row,
                who_text(row, lang),
                what_text(row, lang),
                _cells(level[at].tolist()),
                marks.get(_key(row), []),
                float(peaks[at].max()),
                at_text(int(start + int(peaks[at].argmax()) * part_ns)),
            )
            for at, row in enumerate(rows)
        ],
        [(what_text(one, lang), one, change_text(one, lang)) for one in changes],
        verdict_text(data, lang),
        [str(text) for text in TemplateValues("md", lang, coverage.target).blind([coverage])[:_SPOTS]],
    )


def _key(place: WaitPlace) -> tuple[object, ...]:
    return place.job, place.comm, place.main, place.state, place.call, place.line, place.object


def _cells(levels: list[int]) -> list[Cells]:
    found, at = [], 0
    for level, same in groupby(levels):
        width = len(list(same))
        found.append(Cells(at, width, level))
        at += width
    return found
