"""The worst moments of host_bound as a page: tools know no words, the page needs them."""

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

# The colour of a piece of a moment, by the code of its reason; of the others the thread waits.
_LOOKS = {
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
    """A self-contained page of the ten worst moments in `recording`, in `lang`; None when there is none."""
    facts = cast("Facts", judged.basis)
    worst = moments(facts)
    if not worst:
        return None
    said = words(lang)["moments"]
    reasons = {**words(lang)["reasons"], **said["reasons"]}

    def label(share: Share) -> str:
        return f"{reasons[share.reason]}: {share.who}" if share.who else str(reasons[share.reason])

    def title(moment: Moment) -> str:
        waits = said["gap"].format(moment.device) if moment.device >= 0 else said["wait"]
        return f"{waits} - {label(moment.shares[0])}" if moment.shares else str(waits)

    def bubble(moment: Moment) -> Bubble:
        parts = tuple(Part(label(share), share.ns, _LOOKS.get(share.reason, "sleeping")) for share in moment.shares)
        return Bubble(moment.start_ns, moment.end_ns, title(moment), moment.tids, parts)

    heading = str(said["gaps"] if worst[0].device >= 0 else said["waits"])
    target = clean(f"{recording.manifest.target.describe()}, {recording.manifest.host}", 300)
    drawn = [bubble(moment) for moment in worst]
    shown: Mapping[str, str] = words(lang)["bubbles_page"]
    text = bubbles_page(timeline(recording, facts), drawn, shown, lang=lang, heading=heading, notes=[target])
    return ArtifactContent(name="moments.html", title=heading, media_type="text/html", text=text)
