"""The rule driver: chooses what to look at next from the causes that are still open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from whystall.knowledge_base.models import Assessment, Cause, CauseState, Verdict
from whystall.tools.contract.registry import Tool

if TYPE_CHECKING:
    from whystall.agent_server.diagnosis.case import Case

FIRST_TOOL = "host_snapshot"
_FIRST_LOOK_S = 2.0


async def first_observation(case: Case) -> None:
    """Look at a new case with what costs least; nothing where that was done."""
    if FIRST_TOOL not in case.results and FIRST_TOOL not in case.tried:
        await case.observe([FIRST_TOOL], _first_seconds(case), "first_look")


async def finish(case: Case) -> None:
    """Look until the causes of `case` are decided or nothing is left that could tell; from wherever it stands.

    A new case takes a first look, then, in one window, the tools that tell its open causes apart and those that are
    wanted anyhow, and once more with wakers where the victim waits for a colleague. Where all that was done, nothing
    happens.
    """
    await first_observation(case)
    chosen = next_tools(case.causes, case.assess(), case.tools, list(case.tried), case.signs())
    chosen += sorted(case.wanted.intersection(case.tools) - case.tried - {*chosen})
    if chosen:
        spent = _first_seconds(case) if len(case.steps) <= 1 else 0.0
        await case.observe(chosen, case.duration - spent, "separates_causes")
    undecided = case.observer.live and case.conclude().verdict is not Verdict.CONFIRMED
    if undecided and case.waits_for_a_colleague() and not case.options("offcputime").get("waker"):
        await case.observe([], case.duration / 2, "who_wakes_the_victim", {"offcputime": {"waker": True}})


def _first_seconds(case: Case) -> float:
    return min(_FIRST_LOOK_S, case.duration / 4) if case.observer.live else 0.0


def next_tools(
    causes: Mapping[str, Cause],
    assessments: Sequence[Assessment],
    tools: Mapping[str, Tool[Any, Any]],
    ran: Sequence[str],
    signs: Collection[str] | None = None,
) -> list[str]:
    """The tools that can still tell causes apart, the best separation per cost first; empty when nothing is open.

    A tool's worth is the number of open causes it speaks for or against, over its cost. One window runs all of them at
    the price of the dearest, and a cause needs a second mechanism to be confirmed, so all that are useful are named. A
    tool that decides none of the open causes is not run only because it could corroborate one: its window may be dear.
    `signs`: of the causes that want a sign before a closer look, those of which one was seen; None: nobody has looked.
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
    """Whether `tool` can find something that speaks for or against `cause`."""
    patterns = (*cause.primary, *cause.required, *cause.supporting, *cause.against, *cause.refuted)
    return not tool.kinds.isdisjoint(p.kind for p in patterns)


def _open(assessment: Assessment) -> bool:
    """Supported or not examined; also what only the first look excludes: it is short, and stalls recur."""
    excluded = assessment.state in (CauseState.RULED_OUT, CauseState.UNSUPPORTED)
    return not excluded or set(assessment.by) <= {FIRST_TOOL}
