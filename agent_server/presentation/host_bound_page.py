"""The worst moments of host_bound as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from whystall.prompts.render import words
from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.contract.text import clean
from whystall.tools.host.host_bound.moments import moments, timeline
from whystall.tools.views.bubble_data import Bubble, Part
from whystall.tools.views.bubbles import bubbles_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from whystall.tools.host.host_bound.moments import Moment, Share
    from whystall.tools.host.host_bound.tool import Facts
    from whystall.tools.recording.store import Recording

# Colour of a part of a moment by its reason; for other reasons the thread waits.
_COLOURS = {
    "running": "running",
    "interrupt": "interrupt",
    **dict.fromkeys(("no_cpu", "moved", "idle_exit", "throttled", "held"), "runnable"),
    **dict.fromkeys(("lock", "io", "driver", "call", "colleague"), "uninterruptible"),
    "sync": "sync",
    "launch": "launch",
    "ahead": "idle",
    "unlinked": "unknown",
    "stopped": "stopped",
    "gone": "dead",
    "unknown": "unknown",
}


def moments_page(recording: Recording, judged: Judgement[Any], lang: Literal["en", "zh"]) -> ArtifactContent | None:
    """Return a self-contained page of the ten worst moments in `recording`; None without any."""
    facts = cast("Facts", judged.basis)
    worst = moments(facts)
    if not worst:
        return None
    texts = words(lang)["moments"]
    reasons = {**words(lang)["reasons"], **texts["reasons"]}

    def label(share: Share) -> str:
        return f"{reasons[share.reason]}: {share.who}" if share.who else str(reasons[share.reason])

    def title(moment: Moment) -> str:
        waits = texts["gap"].format(moment.device) if moment.device >= 0 else texts["wait"]
        return f"{waits} - {label(moment.shares[0])}" if moment.shares else str(waits)

    def bubble(moment: Moment) -> Bubble:
        parts = tuple(Part(label(share), share.ns, _COLOURS.get(share.reason, "sleeping")) for share in moment.shares)
        return Bubble(moment.start_ns, moment.end_ns, title(moment), moment.tids, parts)

    heading = str(texts["gaps"] if worst[0].device >= 0 else texts["waits"])
    target = clean(f"{recording.manifest.target.describe()}, {recording.manifest.host}", 300)
    drawn = [bubble(moment) for moment in worst]
    shown: Mapping[str, str] = words(lang)["bubbles_page"]
    text = bubbles_page(timeline(recording, facts), drawn, shown, lang=lang, heading=heading, notes=[target])
    return ArtifactContent(name="moments.html", title=heading, media_type="text/html", text=text)
