"""Pages in the reader's language that go with a tool's answer: tools know no words, pages need them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from whystall.tools.contract.registry import ArtifactContent, Judgement

if TYPE_CHECKING:
    from whystall.tools.recording.store import Recording

Lang = Literal["en", "zh"]
Page = Callable[["Recording", Judgement[Any], Lang], ArtifactContent | None]
"""Draws what was judged (`Judgement.basis`: what the tool worked out on the way); None when there is nothing."""


def page_for(tool: str) -> Page | None:
    """What draws the page of the tool called `tool`; None when it has none."""
    return _PAGES.get(tool)


def _host_bound(recording: Recording, judged: Judgement[Any], lang: Lang) -> ArtifactContent | None:
    from whystall.agent_server.moments import moments_page

    return moments_page(recording, judged, lang)


_PAGES: dict[str, Page] = {"host_bound": _host_bound}
