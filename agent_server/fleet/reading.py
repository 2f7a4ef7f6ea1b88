"""Read what each host answered: the part of a judgement that needs no other host, in parallel where there is much.

Replies are foreign: each finding is validated against our own vocabulary, and one that is not of it is only counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from whystall.agent_server.fleet.answers import Answer, line
from whystall.agent_server.fleet.comparable import unused
from whystall.agent_server.fleet.joint import JOINT, read_part
from whystall.agent_server.fleet.joint_path import TOOL as PATH_TOOL
from whystall.knowledge_base.models import Verdict
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.result import Status
from whystall.tools.ranks.traces.parallel import in_parallel

_PER_HOST = 500
_DIAGNOSED = {Verdict.CONFIRMED.value, Verdict.LIKELY.value}
_UNDECIDED = {Verdict.INCONCLUSIVE.value, "cannot_tell"}
# Of a reply, what is needed after it was read.
_KEPT = ("status", "coverage")


@dataclass
class Reported:
    """What one host reports. `findings`: abnormal ones; `unread`: findings that are not valid, or too many; `in_part`:
    it could not observe everything, or did not decide; `diagnosed`: a cause was found; `diagnosis`: verdict and cause.
    """

    findings: list[Finding] = field(default_factory=list)
    unread: int = 0
    in_part: bool = False
    diagnosed: bool = False
    diagnosis: str = ""


def read(tool: str, arguments: Mapping[str, Any], answer: Answer) -> Answer:
    """Return an answer to ``tool(arguments)`` with its `part`, or marked if it cannot be used; unchanged if it was read
    already, or there is nothing to read.

    `part`: as `joint.read_part` gives it for a tool that is judged once for all hosts, else `Reported`.
    """
    if answer.status != "answered" or answer.part is not None:
        return answer
    answer = read_part(tool, arguments, answer) if tool in JOINT else replace(answer, part=_reported(answer.reply))
    kept = (*_KEPT, "data") if tool == PATH_TOOL else _KEPT
    reply = {name: value for name, value in (answer.reply or {}).items() if name in kept}
    return replace(answer, reply=reply, content=b"")


def read_all(tool: str, arguments: Mapping[str, Any], answers: Sequence[Answer]) -> list[Answer]:
    """Return `answers` as `read` does, by processes of this machine if they are large. Blocks."""
    return in_parallel(_read_one, [_Given(tool, arguments, answer) for answer in answers], _failed)


@dataclass(frozen=True)
class _Given:
    tool: str
    arguments: Mapping[str, Any]
    answer: Answer

    @property
    def size(self) -> int:
        """Bytes of a recording; results of tools are read within milliseconds."""
        return len(self.answer.content)


def _read_one(given: _Given) -> Answer:
    return read(given.tool, given.arguments, given.answer)


def _failed(given: _Given, why: str) -> Answer:
    return unused(replace(given.answer, content=b""), "invalid", line(why))


def _reported(reply: Mapping[str, Any] | None) -> Reported:
    """Return what a reply reports: of a tool, or a diagnosis."""
    found = Reported()
    if reply is None:
        return found
    data = reply.get("data")
    verdict = reply.get("verdict", data.get("verdict") if isinstance(data, dict) else None)
    verdict = verdict if isinstance(verdict, str) else None
    if verdict is not None and "cause" in reply:
        found.diagnosed = verdict in _DIAGNOSED
        found.diagnosis = f"{verdict}: {reply['cause']}" if reply["cause"] else verdict
    listed = reply.get("findings")
    raw = listed if isinstance(listed, list) else [listed]  # None is no finding
    for one in raw[:_PER_HOST]:
        try:
            # A fingerprint is computed here, never taken from the host.
            finding = Finding.model_validate({k: v for k, v in dict(one or {}).items() if k != "fingerprint"})
        except (ValidationError, ValueError, TypeError):
            found.unread += 1
            continue
        if finding.polarity is Polarity.ABNORMAL:
            found.findings.append(finding)
    found.unread += max(0, len(raw) - _PER_HOST)
    found.in_part = verdict in _UNDECIDED or in_part(reply) or bool(found.unread)
    return found


def in_part(reply: Mapping[str, Any] | None) -> bool:
    """Return whether a tool reports that it could not observe everything."""
    return (reply or {}).get("status") == Status.PARTIAL.value
