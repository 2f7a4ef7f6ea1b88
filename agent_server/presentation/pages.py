"""Pages and pictures of tool results. They are drawn here since tools have no texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.recording.judging import judge

if TYPE_CHECKING:
    from whystall.tools.contract.params import Params
    from whystall.tools.contract.registry import Tool
    from whystall.tools.contract.result import ToolResult
    from whystall.tools.recording.store import Recording

Lang = Literal["en", "zh"]
Page = Callable[["Recording", Judgement[Any], Lang], Sequence[ArtifactContent]]
"""Draws a judged result (`Judgement.basis`: intermediate results of the tool); may return nothing."""


def page_for(tool: str) -> Page | None:
    """Return the function that draws the pages of `tool`, or None."""
    return _PAGES.get(tool)


def judged(tool: Tool[Any, Any], recording: Recording, params: Params, lang: Lang) -> ToolResult[Any]:
    """Return the result of `tool`, with its pages."""
    page = page_for(tool.name)
    return judge(tool, recording, params, (lambda recording, judged: page(recording, judged, lang)) if page else None)


def _host_bound(recording: Recording, judged: Judgement[Any], lang: Lang) -> Sequence[ArtifactContent]:
    from whystall.agent_server.presentation.host_bound_page import moments_page

    page = moments_page(recording, judged, lang)
    return [page] if page else []


def _slow_node(recording: Recording, judged: Judgement[Any], lang: Lang) -> Sequence[ArtifactContent]:
    from whystall.agent_server.presentation.rank_pages import rank_pages

    return rank_pages(recording, judged, lang)


def _flame_graph(recording: Recording, judged: Judgement[Any], lang: Lang) -> Sequence[ArtifactContent]:
    from whystall.agent_server.presentation.flame_pages import flame_pages

    return flame_pages(recording, judged, lang)


def _cpu_profile(recording: Recording, judged: Judgement[Any], lang: Lang) -> Sequence[ArtifactContent]:
    from whystall.agent_server.presentation.flame_pages import cpu_pages
    from whystall.agent_server.presentation.heat_pages import sample_heat_pages

    return [*cpu_pages(recording, judged, lang), *sample_heat_pages(recording, judged, lang)]


def _heat_map(recording: Recording, judged: Judgement[Any], lang: Lang) -> Sequence[ArtifactContent]:
    from whystall.agent_server.presentation.heat_pages import heat_pages

    return heat_pages(recording, judged, lang)


def _flamegraph_diff(recording: Recording, judged: Judgement[Any], lang: Lang) -> Sequence[ArtifactContent]:
    from whystall.agent_server.presentation.flame_pages import difference_pages

    return difference_pages(recording, judged, lang)


def _offcputime(recording: Recording, judged: Judgement[Any], lang: Lang) -> Sequence[ArtifactContent]:
    from whystall.agent_server.presentation.flame_pages import waiting_pages

    return waiting_pages(recording, judged, lang)


def _critical_path(recording: Recording, judged: Judgement[Any], lang: Lang) -> Sequence[ArtifactContent]:
    from whystall.agent_server.presentation.path_pages import path_pages

    return path_pages(recording, judged, lang)


def _topology(recording: Recording, judged: Judgement[Any], lang: Lang) -> Sequence[ArtifactContent]:
    from whystall.agent_server.presentation.topology_pages import topology_pages

    return topology_pages(judged, lang)


_PAGES: dict[str, Page] = {
    "cluster_topology": _topology,
    "cpu_profile": _cpu_profile,
    "critical_path": _critical_path,
    "flame_graph": _flame_graph,
    "flamegraph_diff": _flamegraph_diff,
    "heat_map": _heat_map,
    "host_bound": _host_bound,
    "offcputime": _offcputime,
    "slow_node_check": _slow_node,
}
