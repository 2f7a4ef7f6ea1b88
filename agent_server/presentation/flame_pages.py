"""Flame graphs that go with a tool's answer, as a page and as a picture: tools know no words, both need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from whystall.agent_server.presentation.headlines import headline_of
from whystall.prompts.render import words
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.profiles.common.off_cpu import stacks_of_waits
from whystall.tools.stacks.tree import Part, call_tree
from whystall.tools.views.flame_layout import FlameTree, layout
from whystall.tools.views.flame_page import Row, flame_page
from whystall.tools.views.flame_svg import MOST_SVG_NODES, flame_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from whystall.tools.profiles.flamegraph_diff.comparison import Difference
    from whystall.tools.recording.store import Recording
    from whystall.tools.stacks.tree import CallTree
    from whystall.tools.views.flame_layout import FlameTree
    from whystall.tools.views.flame_page import Row

Lang = Literal["en", "zh"]
_PAGE_LEAST = 1e-5  # the page can be zoomed; the picture shows a tenth of a pixel


def flame_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """The samples that flame_graph judged, in `lang`; `judged.basis` is their `CallTree`, None without any."""
    counted = _counted(recording, judged)
    return _drawn("flame_graph", cast("CallTree | None", judged.basis), counted, judged, lang, "heading")


def cpu_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """The samples that cpu_profile took, in `lang`; `judged.basis` is their `CallTree`, None without any."""
    counted = _counted(recording, judged)
    return _drawn("cpu_profile", cast("CallTree | None", judged.basis), counted, judged, lang, "heading_cpu")


def difference_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """The two profiles that flamegraph_diff compared over one another, in `lang`; `judged.basis` is the
    `Difference`.
    """
    seen = cast("Difference | None", judged.basis)
    if seen is None:
        return []
    counted = _counted(recording, judged)
    return _drawn("flamegraph_diff", seen.tree, counted, judged, lang, "heading_diff", seen.proven)


def waiting_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """Where the threads of `recording` waited, in `lang`; none when nobody did."""
    try:
        waits = stacks_of_waits(recording)
    except ToolError as error:
        if error.code is not ErrorCode.BAD_TRACE:
            raise
        return []
    return _drawn("offcputime", call_tree(Part(waits), roots="thread"), ("ns", 0.0), judged, lang, "heading_off_cpu")


def _counted(recording: Recording, judged: Judgement[Any]) -> tuple[str, float]:
    """The unit of the weights, and what one sample stands for: of the event that was judged."""
    events = recording.table("samples.events").sort("event").to_dicts()
    name = getattr(judged.data, "event", "")
    row = next((one for one in events if one["name"] == name), events[0] if events else {})
    return str(row.get("unit") or "samples"), float(row.get("period") or 0.0)


def _drawn(
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
    said: dict[str, str] = words(lang)["flame_page"]
    title = str(said[heading])
    unit, period = counted
    verdict, *notes = [str(line).strip().removeprefix("- ") for line in headline_of(tool, judged.data, lang)] or [""]
    drawn = drawable(tree, proven)
    everything, rest = str(said["all"]), str(said["rest"])
    page = flame_page(
        layout(drawn, root=everything, rest=rest, least=_PAGE_LEAST),
        _rows(tree, drawn.codes, proven),
        said,
        lang=lang,
        heading=title,
        unit=unit,
        period=period,
        verdict=verdict,
        notes=notes,
    )
    picture = layout(drawn, root=everything, rest=rest, most=MOST_SVG_NODES)
    svg = flame_svg(picture, said, heading=title, unit=unit, notes=[verdict, *notes])
    return [
        ArtifactContent(name="flame.html", title=title, media_type="text/html", text=page),
        ArtifactContent(name="flame.svg", title=said["picture"].format(title), media_type="image/svg+xml", text=svg),
    ]


def drawable(tree: CallTree, proven: NDArray[np.bool_] | None = None) -> FlameTree:
    """`tree` as what draws takes it; `proven`: of a difference, whether a node's change is more than chance."""
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


def _rows(tree: CallTree, codes: Sequence[str], proven: NDArray[np.bool_] | None) -> list[Row]:
    """The frames by what was seen at them; of a difference, those whose change is proven first, by its size."""
    import numpy as np

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
