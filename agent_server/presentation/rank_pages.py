"""The ranks of slow_node_check as a page and two pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import polars as pl

from whystall.agent_server.presentation.headlines import headline_of, loss_of
from whystall.prompts.render import voice, words
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.contract.text import clean
from whystall.tools.ranks.analysis.waits import wait_matrix
from whystall.tools.ranks.analysis.worst_step import worst_step
from whystall.tools.ranks.hangs.places import places
from whystall.tools.views.rank_cells import Group
from whystall.tools.views.rank_labels import Mark
from whystall.tools.views.rank_matrix import RankView, rank_page, step_svg, wait_svg
from whystall.tools.views.rank_timeline import Timeline

if TYPE_CHECKING:
    from typing import Any

    from whystall.tools.ranks.analysis.analyse import JobAnalysis
    from whystall.tools.ranks.slow_node_check.tables import AccusedRow, Data
    from whystall.tools.recording.store import Recording


def rank_pages(recording: Recording, judged: Judgement[Data], lang: Literal["en", "zh"]) -> list[ArtifactContent]:
    """Return a page of the ranks in `recording` and its two matrices as SVG; empty if the steps are unknown."""
    analysis, data = cast("JobAnalysis", judged.basis), judged.data
    where = places(analysis.job)
    if analysis.own.is_empty() and where.is_empty():
        return []
    all_texts: Mapping[str, Any] = words(lang)
    texts = {**all_texts["rank_page"], "groups": all_texts["ranks"]["groups"]}
    ranks = analysis.job.table("ranks").iter_rows(named=True)
    view = RankView(
        own=analysis.own,
        waits=wait_matrix(analysis.awaited),
        groups=tuple(Group(_label(one.label, texts["groups"]), one.ranks) for one in analysis.peers),
        marks=tuple(_mark(row, all_texts, lang) for row in data.accused),
        hosts={row["rank"]: clean(row["host"]) for row in ranks},
        timeline=_timeline(analysis),
        places=where.with_columns(_clean("column", "group", "op")) if data.hangs or data.reasons else None,
    )
    verdict, *notes = (str(line).strip().removeprefix("- ") for line in headline_of("slow_node_check", data, lang))
    about_job = (one for one in judged.findings if one.subject.type == "job" and one.polarity is Polarity.ABNORMAL)
    notes += [str(voice("txt", lang).finding(one)) for one in about_job]  # such as a slow stage or link
    heading = str(texts["heading"])
    page = rank_page(view, texts, lang=lang, heading=heading, verdict=verdict, notes=notes)
    whole = ArtifactContent(name="ranks.html", title=heading, media_type="text/html", text=page)
    if analysis.own.is_empty():
        return [whole]
    return [
        whole,
        _drawing("rank_step.svg", str(texts["own_by_step"]), step_svg(view, texts)),
        _drawing("wait_matrix.svg", str(texts["who_waits"]), wait_svg(view, texts)),
    ]


def _label(label: str, known: dict[str, str]) -> str:
    """Return the name of ranks that do the same work: the words of the check, as in ``stage 3``, are translated."""
    word, _, number = label.partition(" ")
    if number and not number.isdigit():
        return clean(label)
    return known[word].format(number).strip() if word in known else clean(label)


def _timeline(analysis: JobAnalysis) -> Timeline | None:
    worst = worst_step(analysis)
    if worst is None:
        return None
    return Timeline(worst.step, worst.spans, worst.operations.with_columns(_clean("label")), worst.blur_ns)


def _clean(*columns: str) -> list[pl.Expr]:
    return [pl.col(name).map_elements(clean, return_dtype=pl.String) for name in columns]


def _mark(row: AccusedRow, all_texts: Mapping[str, Any], lang: Literal["en", "zh"]) -> Mark:
    began = -1 if row.began_step is None else row.began_step
    return Mark(row.rank, _remark(row, all_texts, lang), began, tuple(row.slow_steps.steps) if row.slow_steps else ())


def _remark(row: AccusedRow, all_texts: Mapping[str, Any], lang: Literal["en", "zh"]) -> str:
    """Return the accusation of a rank and its cost."""
    kind, loss = str(all_texts["ranks"]["classes"][row.slow_class]), loss_of(row, lang)
    return f"{kind}{all_texts['marks']['semicolon']}{loss}" if loss else kind


def _drawing(name: str, title: str, text: str) -> ArtifactContent:
    return ArtifactContent(name=name, title=title, media_type="image/svg+xml", text=text)
