"""`slow_node_check` and `collective_live` on many hosts: what each recorded, judged once as one job. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.comparable import Disputed, Joint, of_one_job, of_one_size, together, unused
from whystall.agent_server.fleet.inventory import same_host
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.params import JobParams, Params
from whystall.tools.ranks.collective_live import tool as collectives
from whystall.tools.ranks.collective_live.judge import EVEN, LATE
from whystall.tools.ranks.slow_node_check import tables as slow
from whystall.tools.ranks.slow_node_check.tool import Params as SlowParams
from whystall.tools.ranks.slow_node_check.tool import judge as judge_slow_node
from whystall.tools.ranks.traces import hosts as windows
from whystall.tools.ranks.traces.gather import HostRanks, disputed, host_ranks, regather
from whystall.tools.ranks.traces.window import Window, window_of
from whystall.tools.recording.packed import unpack
from whystall.tools.recording.store import Recording

_Arguments = Mapping[str, Any]
_RANKS, _WINDOWS = ("ranks",), ("collectives", "objects")


def read_slow(_arguments: _Arguments, answer: Answer) -> Answer:
    """Return `answer` with its `HostRanks`."""
    return _unpacked(answer, _RANKS, lambda recording: host_ranks(answer.host, _possible(recording)))


def judge_slow(arguments: _Arguments, answers: Sequence[Answer]) -> Joint:
    """Return one judgement of `slow_node_check` on the ranks that all hosts read, or observed (`read_slow`)."""
    params = SlowParams.model_validate({k: v for k, v in arguments.items() if k in SlowParams.model_fields})
    if (job := params.observed()) is not None:
        answers = together(of_one_job(answers), job.duration, stored=False)
    found: dict[str, HostRanks] = _by_host(answers)
    sizes = {host: max((int(str(one.head["world_size"])) for one in of.ranks), default=0) for host, of in found.items()}
    answers = of_one_size(answers, sizes)
    found = _by_host(answers)
    undecided = Joint(slow.Data(reasons=["few_ranks"]), None, answers)
    if not found:
        return undecided
    try:
        claims = disputed(found)
        rows = [Disputed(rank=rank, hosts=hosts) for rank, hosts in claims.items()]
        undecided = replace(undecided, disputed=rows)
        recording = regather(found, without=claims.keys())
        recording = windows.of_common_time(recording) if params.live else recording
    except ToolError as error:
        return replace(undecided, data=slow.Data(reasons=[error.message]))
    judged = judge_slow_node(recording, params)
    return Joint(
        judged.data.model_copy(update={"next": []}),  # the traces are on the hosts
        None if judged.data.verdict == "cannot_tell" else judged.data.verdict != "none",
        answers,
        _of_hosts(judged.findings, found),
        rows,
        {host: 1 for host, one in found.items() if any(code == "ranks_unread" for code, _ in one.spots)},
    )


def read_collectives(arguments: _Arguments, answer: Answer) -> Answer:
    """Return `answer` with its checked recording and the window in it."""
    longest_ns = int((2 * _collectives(arguments).duration + 60) * 1e9)

    def read(recording: Recording) -> tuple[Recording, Window]:
        part = windows.checked(recording, longest_ns)
        return part, window_of(part)

    return _unpacked(answer, _WINDOWS, read)


def judge_collectives(arguments: _Arguments, answers: Sequence[Answer]) -> Joint:
    """Return one judgement of `collective_live` on the calls that all hosts observed (`read_collectives`)."""
    params = _collectives(arguments)
    answers = together(of_one_job(answers), params.duration, stored=False)
    seen: dict[str, tuple[Recording, Window]] = _by_host(answers)
    sizes = {host: max([0, *(one.world_size for one in window.members)]) for host, (_, window) in seen.items()}
    answers = of_one_size(answers, sizes)
    used = [one for one in answers if one.status == "answered"]
    if not used:
        return Joint(collectives.Data(), None, answers)
    seen = _by_host(used)
    claims = windows.claims({host: window for host, (_, window) in seen.items()})
    first_end = min(one.began + seen[one.host][0].manifest.window_ns / 1e9 for one in used)
    apart_ns = int(max(0.0, max(one.ended for one in used) - first_end) * 1e9)
    found = collectives.judge_hosts(windows.joined(seen, claims.keys(), apart_ns), params)
    return Joint(
        found.data,
        {LATE: True, EVEN: False}.get(found.data.verdict),
        answers,
        [([one.subject.host or ""], one) for one in found.findings],
        [Disputed(rank=rank, hosts=hosts) for rank, hosts in claims.items()],
    )


def observed(tool: str, arguments: _Arguments) -> JobParams | None:
    """Return what each host has to observe for one of these tools; None if it reads files."""
    model: type[Params] = SlowParams if tool == "slow_node_check" else collectives.Params
    if "recording" in arguments:
        return None
    asked = model.model_validate({k: v for k, v in arguments.items() if k in model.model_fields}).observed()
    return asked if isinstance(asked, JobParams) else None


def _collectives(arguments: _Arguments) -> collectives.Params:
    fields = collectives.Params.model_fields
    return collectives.Params.model_validate({k: v for k, v in arguments.items() if k in fields})


def _unpacked(answer: Answer, collectors: Sequence[str], read: Callable[[Recording], object]) -> Answer:
    """Return `answer` with what was `read` of the recording in it, or marked if that cannot be used."""
    try:
        recording = unpack(answer.content, {name: COLLECTORS[name] for name in collectors})
        stated = recording.manifest.host
        if answer.identity and not same_host(stated, answer.host):
            return unused(answer, "wrong_host", f"it calls itself {stated}")
        return replace(answer, part=read(recording))
    except ToolError as error:
        return unused(answer, "invalid", f"its ranks cannot be read: {error.message}")


def _by_host(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return what was read of each host. Several pods of a job on one host give it several times: the first counts."""
    found: dict[str, Any] = {}
    for one in answers:
        if one.status == "answered":
            found.setdefault(one.host, one.part)
    return found


def _of_hosts(findings: Iterable[Finding], hosts: Mapping[str, HostRanks]) -> list[tuple[list[str], Finding]]:
    """Return abnormal findings with the host that gave the rank; of several ranks, with all hosts."""
    of_rank = {one.rank: host for host, of in hosts.items() for one in of.ranks}
    found = []
    for one in findings:
        host = of_rank.get(one.subject.rank) if one.subject.rank is not None else None
        if one.polarity is Polarity.ABNORMAL:
            placed = one.model_copy(update={"subject": one.subject.model_copy(update={"host": host})})
            found.append(([host] if host else list(hosts), placed))
    return found


def _possible(recording: Recording) -> Recording:
    """Return `recording`. Raises `ToolError` (bad_recording) if a rank is none of a job of its size."""
    ranks = recording.table("ranks.ranks")
    odd = ranks.filter((pl.col("world_size") > 1) & (pl.col("rank") >= pl.col("world_size")))
    if odd.height:
        rank, size = odd.select("rank", "world_size").row(0)
        raise ToolError(ErrorCode.BAD_RECORDING, f"rank {rank} of {size}", "read again")
    return recording
