"""Answers of many hosts about one job, judged once as one job. Pure.

Of a rank whose host gave no answer nothing is known: it is absent for the judge, never late. Two hosts that report one
rank contradict each other, and none of them is believed about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.comparable import Joint
from whystall.agent_server.fleet.joint_hang import judge_hang, read_hang
from whystall.agent_server.fleet.joint_ranks import judge_collectives, judge_slow, read_collectives, read_slow

_Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class _Tool:
    """`read`: what one answer reports, without the others; `judge`: of all that were read."""

    read: Callable[[_Arguments, Answer], Answer]
    judge: Callable[[_Arguments, Sequence[Answer]], Joint]


_TOOLS = {
    "hang": _Tool(read_hang, judge_hang),
    "slow_node_check": _Tool(read_slow, judge_slow),
    "collective_live": _Tool(read_collectives, judge_collectives),
}
JOINT = frozenset(_TOOLS)
"""Tools whose answers are judged together."""


def read_part(tool: str, arguments: _Arguments, answer: Answer) -> Answer:
    """Return an answer to `tool`, one of `JOINT`, with its `part`; one that cannot be used is marked."""
    return _TOOLS[tool].read(arguments, answer)


def judged(tool: str, arguments: _Arguments, answers: Sequence[Answer]) -> Joint | None:
    """Return the joint judgement of `tool`, which was called with `arguments`, on `answers` that were read; None for a
    tool without one."""
    return _TOOLS[tool].judge(arguments, answers) if tool in _TOOLS else None
