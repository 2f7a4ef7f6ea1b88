"""Answers of many hosts about one job, judged once as one job. Pure.

Of a rank whose host gave no answer nothing is known: it is absent for the judge, never late. Two hosts that report one
rank contradict each other, and none of them is believed about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.comparable import Joint
from whystall.agent_server.fleet.joint_hang import judge_hang
from whystall.agent_server.fleet.joint_ranks import judge_collectives, judge_slow

_JUDGES: dict[str, Callable[[Mapping[str, Any], Sequence[Answer]], Joint]] = {
    "hang": judge_hang,
    "slow_node_check": judge_slow,
    "collective_live": judge_collectives,
}
JOINT = frozenset(_JUDGES)
"""Tools whose answers are judged together."""


def judged(tool: str, arguments: Mapping[str, Any], answers: Sequence[Answer]) -> Joint | None:
    """Return the joint judgement of `tool`, which was called with `arguments`; None for a tool without one."""
    judge = _JUDGES.get(tool)
    return judge(arguments, answers) if judge else None
