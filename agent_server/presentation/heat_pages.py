"""Heat maps that go with a tool's answer, as a page and as a picture: tools know no words, both need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from whystall.agent_server.presentation.headlines import headline_of
from whystall.prompts.quantities import quantity
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.profiles.heat_map.stacks import stack_cells
from whystall.tools.profiles.heat_map.tool import look, period_rows
from whystall.tools.views.flame_layout import FlameTree
from whystall.tools.views.heat_drawing import MOST_OUTLINES, Bands, Heat, scale_of
from whystall.tools.views.heat_page import Stacks, heat_page, heat_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from whystall.tools.profiles.heat_map.tool import Found, HeatLook, PeriodRow
    from whystall.tools.profiles.heat_map.waits import WaitRow
    from whystall.tools.recording.store import Recording
    from whystall.tools.views.heat_drawing import Bands, Heat
    from whystall.tools.views.heat_page import Stacks

Lang = Literal["en", "zh"]
_WAITS = 3
# A second or two of samples have no columns to compare.
_LEAST_COLUMNS = 2


def heat_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """The heat map that was judged, in `lang`; `judged.basis` is its `HeatLook`. None without samples."""
    return _drawn(recording, cast("HeatLook", judged.basis), judged, lang)


def heat_beside(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """The heat map of samples that another tool judged; none where they do not say when they were taken."""
    try:
        seen = look(recording, judged.data.event)
    except ToolError as error:
        if error.code is not ErrorCode.BAD_TRACE:
            raise
        return []
    return _drawn(recording, seen, None, lang) if len(seen.grid.columns) >= _LEAST_COLUMNS else []


def _drawn(recording: Recording, seen: HeatLook, judged: Judgement[Any] | None, lang: Lang) -> list[ArtifactContent]:
    if seen.series.samples.is_empty() or not len(seen.grid.columns):
        return []
    said: dict[str, Any] = words(lang)["heat_page"]
    heading = str(said["heading"])
    rows = period_rows(seen, recording, _WAITS)
    heat = _heat(seen, rows, said)
    facts = said["facts" if seen.series.points else "spans"].format(
        event=seen.series.name,
        samples=quantity(seen.series.samples.height, "count"),
        span=quantity((seen.grid.last - seen.grid.first) / 1e9, "s"),
        lanes=seen.grid.lanes,
    )
    notes = [str(facts)]
    if any(len(band.starts) > MOST_OUTLINES for band in heat.bands):
        notes.append(str(said["bands_cut"]).format(f"{MOST_OUTLINES:,}"))
    verdict = str(next(iter(headline_of("heat_map", judged.data, lang)), "")).strip() if judged else ""
    flame_words: dict[str, str] = words(lang)["flame_page"]
    page = heat_page(heat, _stacks(seen), said, flame_words, lang=lang, heading=heading, verdict=verdict, notes=notes)
    svg = heat_svg(heat, said, heading=heading, notes=[verdict, *notes] if verdict else notes)
    return [
        ArtifactContent(name="heat.html", title=heading, media_type="text/html", text=page),
        ArtifactContent(name="heat.svg", title=str(said["picture"]), media_type="image/svg+xml", text=svg),
    ]


def _heat(seen: HeatLook, rows: Sequence[PeriodRow], said: dict[str, Any]) -> Heat:
    grid = seen.grid
    bands = tuple(_bands(found, row, said) for found, row in zip(seen.found, rows, strict=True))
    return Heat(grid.columns, grid.cell_ns, grid.value, scale_of(grid.value), bands)


def _bands(found: Found, row: PeriodRow, said: dict[str, Any]) -> Bands:
    label = str(said["band"]).format(
        what=said["what"][row.what],
        period=quantity(row.period_s, "s"),
        band=quantity(row.band_ms, "ms"),
        count=row.count,
        share=quantity(row.window_pct, "pct"),
        who=f"{row.comm} ({row.tid})" if row.tid >= 0 else said["everybody"],
    )
    bands = found.period.bands
    return Bands(label, bands.starts, bands.ends, [_wait(wait, said) for wait in row.waits])


def _wait(row: WaitRow, said: dict[str, Any]) -> str:
    place = " ".join(text for text in (row.syscall, row.path) if text)
    return str(said["waits"]).format(
        who=f"{row.comm} ({row.tid})",
        place=place or said["states"].get(row.state, row.state),
        inside=quantity(row.band_pct, "pct"),
        outside=quantity(row.outside_pct, "pct"),
    )


def _stacks(seen: HeatLook) -> Stacks:
    found = stack_cells(seen.series, seen.grid)
    tree = found.tree
    events = seen.series.profile.events
    drawn = FlameTree(
        parent=tree.parent,
        depth=tree.depth,
        frame=tree.frame,
        own=tree.own,
        total=tree.total,
        labels=tree.labels,
        kinds=tree.frames["kind"].to_list(),
        codes=[f"{file}:{line}" if file and line else file for file, line in tree.frames.select("file", "line").rows()],
    )
    return Stacks(
        tree=drawn,
        cell=found.cell,
        node=found.node,
        weight=found.weight,
        together=found.together,
        unit=seen.series.unit or "samples",
        period=float(events["period"][seen.series.event]) if events.height else 0.0,
        per_sample=found.per_sample,
    )
