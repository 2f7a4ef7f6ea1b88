"""The rule driver: choose the next tools from the causes that are still open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.causes import FIRST_TOOL
from whystall.knowledge_base.models import Assessment, Cause, CauseState, Verdict
from whystall.tools.contract.registry import Tool

_FIRST_WINDOW_S = 2.0


async def first_observation(case: Case) -> None:
    """Run the cheapest tool on a new case; do nothing if it was tried already."""
    if FIRST_TOOL not in case.tried:
        await case.observe([FIRST_TOOL], _first_seconds(case), "first_look")


async def finish(case: Case) -> None:
    """Observe until the causes of `case` are decided or no tool is left that could decide one. Idempotent.

    1. The cheapest tool, in a short window.
    2. In one window, the tools that separate the causes still open, and those in `case.wanted`.
    3. If the victim waits for another thread and nothing is confirmed: all tools again, recording who wakes it.
    """
    await first_observation(case)
    chosen = next_tools(case.causes, case.assess(), case.tools, case.tried, case.signs())
    chosen += sorted(case.wanted.intersection(case.tools) - case.tried - {*chosen})
    if chosen:
        spent = _first_seconds(case) if len(case.steps) <= 1 else 0.0
        await case.observe(chosen, case.duration - spent, "separates_causes")
    undecided = case.observer.live and case.conclude().verdict is not Verdict.CONFIRMED
    if undecided and case.waits_for_other_thread() and not case.options("offcputime").get("waker"):
        await case.observe([], case.duration / 2, "who_wakes_the_victim", {"offcputime": {"waker": True}})


def _first_seconds(case: Case) -> float:
    return min(_FIRST_WINDOW_S, case.duration / 4) if case.observer.live else 0.0


def next_tools(
    causes: Mapping[str, Cause],
    assessments: Sequence[Assessment],
    tools: Mapping[str, Tool[Any, Any]],
    ran: Collection[str],
    signs: Collection[str] | None = None,
) -> list[str]:
    """Return the tools that can decide open causes, most causes per cost first; empty when none is open.

    All useful tools are named: one window runs them together, and a cause is confirmed only by a second mechanism. A
    tool that would only corroborate is not run. `signs`: as `Case.signs`; causes that require a sign and show none are
    skipped.
    """
    worth: dict[str, float] = {}
    wanted = [a for a in assessments if _open(a) and (signs is None or not causes[a.cause].signs or a.cause in signs)]
    deciding = {name for assessment in wanted for name in causes[assessment.cause].examined_by}
    for assessment in wanted:
        for name, tool in tools.items():
            if name in deciding and name not in ran and is_relevant(tool, causes[assessment.cause]):
                worth[name] = worth.get(name, 0.0) + 1 / tool.cost
    return sorted(worth, key=lambda name: (-worth[name], name))


def is_relevant(tool: Tool[Any, Any], cause: Cause) -> bool:
    """Return whether `tool` can find evidence for or against `cause`."""
    patterns = (*cause.primary, *cause.required, *cause.supporting, *cause.against, *cause.refuted)
    return not tool.kinds.isdisjoint(p.kind for p in patterns)


def _open(assessment: Assessment) -> bool:
    """Return whether a cause is undecided. The first window alone is too short to exclude one: stalls recur."""
    excluded = assessment.state in (CauseState.RULED_OUT, CauseState.UNSUPPORTED)
    return not excluded or set(assessment.by) <= {FIRST_TOOL}
