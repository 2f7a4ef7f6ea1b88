"""Heat maps of tool results, as page and picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from whystall.agent_server.presentation.flame_pages import drawable
from whystall.agent_server.presentation.headlines import headline_of
from whystall.prompts.quantities import quantity
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.profiles.heat_map.stacks import stack_cells
from whystall.tools.profiles.heat_map.tool import heat_map_of, period_rows
from whystall.tools.views.heat_drawing import MOST_OUTLINES, Bands, Heat, scale_of
from whystall.tools.views.heat_page import Stacks, heat_page, heat_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.tools.profiles.heat_map.tool import Found, HeatMap, PeriodRow
    from whystall.tools.profiles.heat_map.waits import WaitRow
    from whystall.tools.recording.store import Recording

Lang = Literal["en", "zh"]
_WAITS = 3
# Samples of a second or two have too few columns to compare.
_LEAST_COLUMNS = 2


def heat_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """Draw the heat map of the tool heat_map; `judged.basis` is its `HeatMap`. Empty without samples."""
    return _pages(recording, cast("HeatMap", judged.basis), judged, lang)


def sample_heat_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """Draw the heat map of samples judged by another tool; empty if they have no times."""
    try:
        window = heat_map_of(recording, judged.data.event)
    except ToolError as error:
        if error.code is not ErrorCode.BAD_TRACE:
            raise
        return []
    return _pages(recording, window, None, lang) if len(window.grid.columns) >= _LEAST_COLUMNS else []


def _pages(recording: Recording, window: HeatMap, judged: Judgement[Any] | None, lang: Lang) -> list[ArtifactContent]:
    if window.series.samples.is_empty() or not len(window.grid.columns):
        return []
    texts: dict[str, Any] = words(lang)["heat_page"]
    heading = str(texts["heading"])
    rows = period_rows(window, recording, _WAITS)
    heat = _heat(window, rows, texts)
    facts = texts["facts" if window.series.points else "spans"].format(
        event=window.series.name,
        samples=quantity(window.series.samples.height, "count"),
        span=quantity((window.grid.last - window.grid.first) / 1e9, "s"),
        lanes=window.grid.lanes,
    )
    notes = [str(facts)]
    if any(len(band.starts) > MOST_OUTLINES for band in heat.bands):
        notes.append(str(texts["bands_cut"]).format(f"{MOST_OUTLINES:,}"))
    verdict = str(next(iter(headline_of("heat_map", judged.data, lang)), "")).strip() if judged else ""
    flame_words: dict[str, str] = words(lang)["flame_page"]
    stacks = _stacks(window)
    page = heat_page(heat, stacks, texts, flame_words, lang=lang, heading=heading, verdict=verdict, notes=notes)
    svg = heat_svg(heat, texts, heading=heading, notes=[verdict, *notes] if verdict else notes)
    return [
        ArtifactContent(name="heat.html", title=heading, media_type="text/html", text=page),
        ArtifactContent(name="heat.svg", title=str(texts["picture"]), media_type="image/svg+xml", text=svg),
    ]


def _heat(window: HeatMap, rows: Sequence[PeriodRow], texts: dict[str, Any]) -> Heat:
    grid = window.grid
    bands = tuple(_bands(found, row, texts) for found, row in zip(window.found, rows, strict=True))
    return Heat(grid.columns, grid.cell_ns, grid.value, scale_of(grid.value), bands)


def _bands(found: Found, row: PeriodRow, texts: dict[str, Any]) -> Bands:
    label = str(texts["band"]).format(
        what=texts["what"][row.what],
        period=quantity(row.period_s, "s"),
        band=quantity(row.band_ms, "ms"),
        count=row.count,
        share=quantity(row.window_pct, "pct"),
        who=f"{row.comm} ({row.tid})" if row.tid >= 0 else texts["everybody"],
    )
    bands = found.period.bands
    return Bands(label, bands.starts, bands.ends, [_wait(wait, texts) for wait in row.waits])


def _wait(row: WaitRow, texts: dict[str, Any]) -> str:
    place = " ".join(text for text in (row.syscall, row.path) if text)
    return str(texts["waits"]).format(
        who=f"{row.comm} ({row.tid})",
        place=place or texts["states"].get(row.state, row.state),
        inside=quantity(row.band_pct, "pct"),
        outside=quantity(row.outside_pct, "pct"),
    )


def _stacks(window: HeatMap) -> Stacks:
    found = stack_cells(window.series, window.grid)
    events = window.series.profile.events
    return Stacks(
        tree=drawable(found.tree),
        cell=found.cell,
        node=found.node,
        weight=found.weight,
        together=found.together,
        unit=window.series.unit or "samples",
        period=float(events["period"][window.series.event]) if events.height else 0.0,
        per_sample=found.per_sample,
    )
