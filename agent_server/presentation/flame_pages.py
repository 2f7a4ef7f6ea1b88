"""Flame graphs of tool results, as page and picture. They are drawn here since tools have no texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from whystall.agent_server.presentation.headlines import headline_of
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.profiles.common.off_cpu import stacks_of_waits
from whystall.tools.stacks.layers import fold_layers
from whystall.tools.stacks.tree import Part, call_tree
from whystall.tools.views.flame_layout import FlameTree, layout
from whystall.tools.views.flame_page import Row, flame_page
from whystall.tools.views.flame_svg import MOST_SVG_NODES, flame_svg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from whystall.tools.profiles.flamegraph_diff.comparison import Difference
    from whystall.tools.recording.store import Recording
    from whystall.tools.stacks.tree import CallTree

Lang = Literal["en", "zh"]
_PAGE_LEAST = 1e-5  # pages can be zoomed


def flame_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """Draw the samples of flame_graph; `judged.basis` is their `CallTree`, None without any."""
    counted = _counted(recording, judged)
    return _pages("flame_graph", cast("CallTree | None", judged.basis), counted, judged, lang, "heading")


def cpu_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """Draw the samples of cpu_profile; `judged.basis` is their `CallTree`, None without any."""
    counted = _counted(recording, judged)
    return _pages("cpu_profile", cast("CallTree | None", judged.basis), counted, judged, lang, "heading_cpu")


def difference_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """Draw the comparison of flamegraph_diff; `judged.basis` is the `Difference`."""
    difference = cast("Difference | None", judged.basis)
    if difference is None:
        return []
    counted = _counted(recording, judged)
    return _pages("flamegraph_diff", difference.tree, counted, judged, lang, "heading_diff", difference.proven)


def waiting_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """Draw where the threads of `recording` waited; empty if they did not."""
    try:
        waits = stacks_of_waits(recording)
    except ToolError as error:
        if error.code is not ErrorCode.BAD_TRACE:
            raise
        return []
    return _pages("offcputime", call_tree(Part(waits), roots="thread"), ("ns", 0.0), judged, lang, "heading_off_cpu")


def _counted(recording: Recording, judged: Judgement[Any]) -> tuple[str, float]:
    """Return the unit of the weights, and what one sample stands for, of the judged event."""
    events = recording.table("samples.events").sort("event").to_dicts()
    name = getattr(judged.data, "event", "")
    row = next((one for one in events if one["name"] == name), events[0] if events else {})
    return str(row.get("unit") or "samples"), float(row.get("period") or 0.0)


def _pages(
    tool: str,
    tree: CallTree | None,
    counted: tuple[str, float],
    judged: Judgement[Any],
    lang: Lang,
    heading: str,
    proven: NDArray[np.bool_] | None = None,
) -> list[ArtifactContent]:
    if tree is None or not tree.sums.any():
        return []
    texts: dict[str, str] = words(lang)["flame_page"]
    lines = [str(line).strip().removeprefix("- ") for line in headline_of(tool, judged.data, lang)] or [""]
    return drawn_as(tree, texts, str(texts[heading]), counted, lines, lang, proven)


def drawn_as(
    tree: CallTree,
    texts: Mapping[str, str],
    title: str,
    counted: tuple[str, float],
    lines: Sequence[str],
    lang: Lang,
    proven: NDArray[np.bool_] | None = None,
) -> list[ArtifactContent]:
    """Return `tree` as page and picture. `texts`: the words of both; `counted`: unit of the weights, and what a sample
    stands for; `lines`: the verdict, and notes below it."""
    unit, period = counted
    verdict, *notes = lines
    drawn = drawable(tree, proven)
    if proven is None:
        drawn = _folded(drawn)
    everything, rest = str(texts["all"]), str(texts["rest"])
    page = flame_page(
        layout(drawn, root=everything, rest=rest, least=_PAGE_LEAST),
        _rows(tree, drawn.codes, proven),
        texts,
        lang=lang,
        heading=title,
        unit=unit,
        period=period,
        verdict=verdict,
        notes=notes,
    )
    picture = layout(drawn, root=everything, rest=rest, most=MOST_SVG_NODES)
    svg = flame_svg(picture, texts, heading=title, unit=unit, notes=[verdict, *notes])
    return [
        ArtifactContent(name="flame.html", title=title, media_type="text/html", text=page),
        ArtifactContent(name="flame.svg", title=texts["picture"].format(title), media_type="image/svg+xml", text=svg),
    ]


def drawable(tree: CallTree, proven: NDArray[np.bool_] | None = None) -> FlameTree:
    """Return `tree` for drawing; `proven`: of a difference, whether the change of each node is significant."""
    frames = tree.frames.select("file", "line").rows()
    return FlameTree(
        parent=tree.parent,
        depth=tree.depth,
        frame=tree.frame,
        own=tree.own,
        total=tree.total,
        labels=tree.labels,
        kinds=tree.frames["kind"].to_list(),
        codes=[f"{file}:{line}" if file and line else file for file, line in frames],
        proven=proven,
    )


def _folded(tree: FlameTree) -> FlameTree:
    """Return `tree` with like layers as one frame with a count."""
    found = fold_layers(tree.parent, tree.frame, tree.own, tree.total, tree.labels, tree.kinds)
    if found is None:
        return tree
    return FlameTree(
        parent=found.parent,
        depth=found.depth,
        frame=found.frame,
        own=found.own,
        total=found.total,
        labels=found.names,
        kinds=[*tree.kinds, *(tree.kinds[of] for of in found.kind_of)],
        codes=[*tree.codes, *("" for _ in found.kind_of)],
    )


def _rows(tree: CallTree, codes: Sequence[str], proven: NDArray[np.bool_] | None) -> list[Row]:
    """Return the frames by weight; of a difference, significant changes first, then by size."""
    scale = np.divide(1.0, tree.sums, out=np.zeros_like(tree.sums), where=tree.sums > 0)[:, None]
    own, total = tree.frame_own * scale, tree.frame_total * scale
    height = tree.frames.height
    if proven is None:
        sure = np.ones(height, bool)
        order = np.lexsort((-total[0], -own[0]))
    else:
        sure = np.bincount(tree.frame, proven, height)[:height] > 0
        order = np.lexsort((-np.abs(total[1] - total[0]), -np.abs(own[1] - own[0]), ~sure))
    kinds = tree.frames["kind"].to_list()
    return [
        Row(
            label=tree.labels[n],
            kind=kinds[n],
            code=codes[n].rpartition("/")[2],
            own=tuple(own[:, n].tolist()),
            total=tuple(total[:, n].tolist()),
            proven=bool(sure[n]),
        )
        for n in order.tolist()
    ]
