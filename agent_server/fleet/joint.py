"""Answers of many hosts about one job, judged once as one job. Pure, but for pages that are stored.

Of a rank whose host gave no answer nothing is known: it is absent for the judge, never late. Two hosts that report one
rank contradict each other, and none of them is believed about it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.comparable import Joint
from whystall.tools.contract.params import JobParams

_Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class _Tool:
    """`read`: what one answer reports, without the others; `judge`: of all that were read."""

    read: Callable[[_Arguments, Answer], Answer]
    judge: Callable[[_Arguments, Sequence[Answer]], Joint]


# each imported on first use: a question about one needs none of the others


def _hang() -> _Tool:
    from whystall.agent_server.fleet.joint_hang import judge_hang, read_hang

    return _Tool(read_hang, judge_hang)


def _slow_node_check() -> _Tool:
    from whystall.agent_server.fleet.joint_ranks import judge_slow, read_slow

    return _Tool(read_slow, judge_slow)


def _collective_live() -> _Tool:
    from whystall.agent_server.fleet.joint_ranks import judge_collectives, read_collectives

    return _Tool(read_collectives, judge_collectives)


def _cluster_topology() -> _Tool:
    from whystall.agent_server.fleet.joint_topology import judge_topology, read_topology

    return _Tool(read_topology, judge_topology)


_TOOLS = {
    "hang": _hang,
    "slow_node_check": _slow_node_check,
    "collective_live": _collective_live,
    "cluster_topology": _cluster_topology,
}
JOINT = frozenset(_TOOLS)
"""Tools whose answers are judged together."""
_OF_RESULTS = frozenset({"hang", "cluster_topology"})  # whose hosts send a result of the tool


def live(tool: str, arguments: _Arguments) -> JobParams | None:
    """Return what each host has to observe for `tool` and send as a recording; None if it reads files, or sends its
    result."""
    if tool not in JOINT - _OF_RESULTS:
        return None
    from whystall.agent_server.fleet.joint_ranks import observed

    return observed(tool, arguments)


def read_part(tool: str, arguments: _Arguments, answer: Answer) -> Answer:
    """Return an answer to `tool`, one of `JOINT`, with its `part`; one that cannot be used is marked."""
    return _TOOLS[tool]().read(arguments, answer)


def judged(tool: str, arguments: _Arguments, answers: Sequence[Answer]) -> Joint | None:
    """Return the joint judgement of `tool`, which was called with `arguments`, on `answers` that were read; None for a
    tool without one."""
    return _TOOLS[tool]().judge(arguments, answers) if tool in _TOOLS else None
