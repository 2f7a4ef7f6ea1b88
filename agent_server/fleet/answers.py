"""What one host answered, or why it did not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from whystall.agent_server.fleet.inventory import Host
from whystall.tools.contract.text import clean

Status = Literal[
    "answered",  # with a result
    "absent",  # nothing of the job runs there
    "refused",  # by an error of the tool or of the server: a wrong token, an argument, a busy host
    "unreachable",  # no connection, or it ended
    "slow",  # no answer before the deadline
    "not_asked",  # the deadline of all came before its turn, or it is not in the inventory, or its pod does not run
    "wrong_host",  # the reply states another host
    "too_large",  # the reply is over the limit
    "invalid",  # the reply is no MCP, or no result of this tool
    "apart",  # its ranks cannot be compared with the others': it observed at another time
    "other_job",  # its processes are of another job
]
MISSING: tuple[Status, ...] = (
    *("slow", "unreachable", "refused", "wrong_host", "too_large", "invalid", "apart", "other_job", "not_asked"),
)
"""Statuses of hosts of which nothing is known, in the order in which they are reported."""
DETAIL_LIMIT = 300


@dataclass(frozen=True)
class Target:
    """A host to ask. `locate`: words by which its own `find_job` finds the process; `pid`: the process; None: the
    arguments name one, or none is needed.
    """

    host: Host
    locate: str | None = None
    pid: int | None = None


@dataclass(frozen=True)
class Located:
    """The process that a host found for the job, the id of that job, and the ranks of the job there by pid."""

    pid: int
    rank: int | None = None
    ranks: Mapping[int, int] | None = None
    job: str = ""


@dataclass(frozen=True)
class Answer:
    """The answer of one host. `detail`: one inert line; `reply`: the structured result, all texts inert; `content`: of
    a resource; `part`: what was read of these (`reading.read`), which then are left out; `identity`: it must state this
    host. `began`, `ended`: of the call of the tool alone, on the monotonic clock of this process.
    """

    host: str
    status: Status
    detail: str = ""
    reply: Mapping[str, Any] | None = None
    content: bytes = b""
    located: Located | None = None
    began: float = 0.0
    ended: float = 0.0
    seconds: float = 0.0
    bytes: int = 0
    identity: bool = False
    part: Any = None

    def of_known_job(self) -> Answer:
        """Return it for a job that was looked for by its id: which one a host found is not in question."""
        return replace(self, located=replace(self.located, job="")) if self.located else self


def line(text: str) -> str:
    """Return foreign text as one inert line."""
    return clean(" ".join(text.split()), DETAIL_LIMIT)


def stated_host(reply: Mapping[str, Any]) -> str:
    """Return the host that a result says it is of; empty if it states none."""
    coverage = reply.get("coverage")
    for one in coverage if isinstance(coverage, list) else [coverage]:
        if isinstance(one, dict) and isinstance(name := one.get("host"), str) and name:
            return name
    return ""
