"""The rule driver: choose the next tools from the causes that are still open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.causes import FIRST_TOOL, FIRST_TOOLS, HARDWARE_TOOL
from whystall.knowledge_base.models import Assessment, Cause, CauseState
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import Tool

# The first window accounts for the victim's time; the second, longer one runs the tools that decide the causes.
_FIRST_SHARE, _FIRST_WINDOW_S = 1 / 3, 5.0


async def first_observation(case: Case) -> None:
    """Account for the victim's time, by tools that hook no system calls, and read what drivers reported; do nothing if
    this was done before."""
    if FIRST_TOOL not in case.tried:
        others = (*FIRST_TOOLS, *((HARDWARE_TOOL,) if case.hardware_first else ()))
        tools = [FIRST_TOOL, *(name for name in others if name in case.tools)]
        await case.observe(tools, _first_seconds(case), "first_look", case.window_options())


async def finish(case: Case) -> None:
    """Observe until the causes of `case` are decided or no tool is left that could decide one. Idempotent.

    1. In a short window, account for the victim's time.
    2. In one longer window, do the same, and run the tools that decide the open causes, and those in `case.wanted`.
    3. Observe once more if the longer window showed that further tools are needed.
    """
    await first_observation(case)
    once = len(case.steps) <= 1
    chosen = _chosen(case)
    if chosen or (once and case.observer.live):
        spent = _first_seconds(case) if once else 0.0
        await _observe_longer(case, chosen, case.duration - spent, "separates_causes" if chosen else "for_longer")
    if case.observer.live and not case.target_ended and (late := _chosen(case)):
        await _observe_longer(case, late, max(case.duration * _FIRST_SHARE, 1.0), "separates_causes")


async def _observe_longer(case: Case, tools: Sequence[str], seconds: float, why: str) -> None:
    """Observe once more; if the target has ended, set `target_ended`, so that the case is concluded from earlier
    windows."""
    try:
        await case.observe(tools, seconds, why, case.window_options())
    except ToolError as error:
        if error.code is not ErrorCode.NO_SUCH_PROCESS or not case.results:
            raise
        case.target_ended = True


def _chosen(case: Case) -> list[str]:
    """Return the tools to run next: those that can decide a cause and are worth their hooks, then those in `wanted`."""
    chosen = next_tools(case.causes, case.assess(), case.tools, case.tried | case.unneeded_tools(), case.signs())
    return chosen + sorted(case.wanted.intersection(case.tools) - case.tried - {*chosen})


def _first_seconds(case: Case) -> float:
    return min(_FIRST_WINDOW_S, case.duration * _FIRST_SHARE) if case.observer.live else 0.0


def next_tools(
    causes: Mapping[str, Cause],
    assessments: Sequence[Assessment],
    tools: Mapping[str, Tool[Any, Any]],
    ran: Collection[str],
    signs: Collection[str] | None = None,
) -> list[str]:
    """Return the tools that can decide open causes, most causes per cost first; empty when none is open.

    All useful tools are named: one window runs them together, and a cause is confirmed only by a second mechanism. A
    tool that would only corroborate is not run, nor one that decides by what a cheaper one finds too. `signs`: as
    `Case.signs`; causes that require a sign and show none are skipped.
    """
    worth: dict[str, float] = {}
    wanted = [a for a in assessments if _open(a) and (signs is None or not causes[a.cause].signs or a.cause in signs)]
    deciding = {name for a in wanted for name in _deciding(causes[a.cause], tools)}
    for assessment in wanted:
        for name, tool in tools.items():
            if name in deciding and name not in ran and is_relevant(tool, causes[assessment.cause]):
                worth[name] = worth.get(name, 0.0) + 1 / tool.cost
    return sorted(worth, key=lambda name: (-worth[name], name))


def _deciding(cause: Cause, tools: Mapping[str, Tool[Any, Any]]) -> list[str]:
    """Return the tools that examine a cause, without those of which a cheaper one finds all that decides it."""
    kinds = {p.kind for p in (*cause.primary, *cause.required, *cause.against)}
    able = [tools[name] for name in cause.examined_by if name in tools]

    def is_covered(tool: Tool[Any, Any]) -> bool:
        found = tool.kinds & kinds
        return bool(found) and any(found <= other.kinds and other.cost < tool.cost for other in able)

    return [tool.name for tool in able if not is_covered(tool)]


def is_relevant(tool: Tool[Any, Any], cause: Cause) -> bool:
    """Return whether `tool` can find evidence for or against `cause`."""
    patterns = (*cause.primary, *cause.required, *cause.supporting, *cause.against, *cause.refuted)
    return not tool.kinds.isdisjoint(p.kind for p in patterns)


def _open(assessment: Assessment) -> bool:
    """Return whether a cause is undecided. The first window alone is too short to exclude one: stalls recur."""
    excluded = assessment.state in (CauseState.RULED_OUT, CauseState.UNSUPPORTED)
    return not excluded or set(assessment.by) <= {FIRST_TOOL, *FIRST_TOOLS}
