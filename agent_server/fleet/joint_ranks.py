"""`slow_node_check` and `collective_live` on many hosts: what each recorded, judged once as one job. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

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
from whystall.tools.ranks.traces.gather import disputed, regather
from whystall.tools.ranks.traces.window import Window, window_of
from whystall.tools.recording.packed import unpack
from whystall.tools.recording.store import Recording

_Arguments = Mapping[str, Any]
T = TypeVar("T")
_RANKS, _WINDOWS = ("ranks",), ("collectives", "objects")


def judge_slow(arguments: _Arguments, answers: Sequence[Answer]) -> Joint:
    """Return one judgement of `slow_node_check` on the ranks that all hosts read, or observed."""
    params = SlowParams.model_validate({k: v for k, v in arguments.items() if k in SlowParams.model_fields})
    if (observed := params.observed()) is not None:
        answers = together(of_one_job(answers), observed.duration, stored=False)
    marked, recordings = _unpacked(answers, _RANKS, _possible)
    sizes = {host: one.table("ranks.ranks")["world_size"].max() for host, one in recordings.items()}
    marked = of_one_size(marked, {host: size for host, size in sizes.items() if isinstance(size, int)})
    recordings = {one.host: recordings[one.host] for one in marked if one.status == "answered"}
    undecided = Joint(slow.Data(reasons=["few_ranks"]), None, marked)
    if not recordings:
        return undecided
    try:
        claims = disputed(recordings)
        rows = [Disputed(rank=rank, hosts=hosts) for rank, hosts in claims.items()]
        undecided = replace(undecided, disputed=rows)
        recording = regather(recordings, without=claims.keys())
        recording = windows.of_common_time(recording) if params.live else recording
    except ToolError as error:
        return replace(undecided, data=slow.Data(reasons=[error.message]))
    found = judge_slow_node(recording, params)
    return Joint(
        found.data.model_copy(update={"next": []}),  # the traces are on the hosts
        None if found.data.verdict == "cannot_tell" else found.data.verdict != "none",
        marked,
        _of_hosts(found.findings, recordings),
        rows,
        {host: 1 for host, one in recordings.items() if _in_part(one)},
    )


def judge_collectives(arguments: _Arguments, answers: Sequence[Answer]) -> Joint:
    """Return one judgement of `collective_live` on the calls that all hosts observed."""
    fields = collectives.Params.model_fields
    params = collectives.Params.model_validate({k: v for k, v in arguments.items() if k in fields})
    answers = together(of_one_job(answers), params.duration, stored=False)
    longest_ns = int((2 * params.duration + 60) * 1e9)

    def read(recording: Recording) -> tuple[Recording, Window]:
        part = windows.checked(recording, longest_ns)
        return part, window_of(part)

    marked, seen = _unpacked(answers, _WINDOWS, read)
    sizes = {host: max([0, *(one.world_size for one in window.members)]) for host, (_, window) in seen.items()}
    marked = of_one_size(marked, sizes)
    used = [one for one in marked if one.status == "answered"]
    if not used:
        return Joint(collectives.Data(), None, marked)
    seen = {one.host: seen[one.host] for one in used}
    claims = windows.claims({host: window for host, (_, window) in seen.items()})
    first_end = min(one.began + seen[one.host][0].manifest.window_ns / 1e9 for one in used)
    apart_ns = int(max(0.0, max(one.ended for one in used) - first_end) * 1e9)
    found = collectives.judge_hosts(windows.joined(seen, claims.keys(), apart_ns), params)
    return Joint(
        found.data,
        {LATE: True, EVEN: False}.get(found.data.verdict),
        marked,
        [([one.subject.host or ""], one) for one in found.findings],
        [Disputed(rank=rank, hosts=hosts) for rank, hosts in claims.items()],
    )


def live(tool: str, arguments: _Arguments) -> JobParams | None:
    """Return what each host has to observe for `tool`; None if it reads files, or is another tool."""
    models: dict[str, type[Params]] = {"slow_node_check": SlowParams, "collective_live": collectives.Params}
    if (model := models.get(tool)) is None or "recording" in arguments:
        return None
    observed = model.model_validate({k: v for k, v in arguments.items() if k in model.model_fields}).observed()
    return observed if isinstance(observed, JobParams) else None


def _unpacked(
    answers: Sequence[Answer], collectors: Sequence[str], read: Callable[[Recording], T]
) -> tuple[list[Answer], dict[str, T]]:
    """Return the answers, those that cannot be used marked, and what was `read` of the recording of each host in them.
    Several pods of a job on one host give it several times: the first counts."""
    schemas = {name: COLLECTORS[name] for name in collectors}
    found: dict[str, T] = {}
    marked = []
    for answer in answers:
        if answer.status == "answered" and answer.host not in found:
            try:
                recording = unpack(answer.content, schemas)
                stated = recording.manifest.host
                if answer.identity and not same_host(stated, answer.host):
                    answer = unused(answer, "wrong_host", f"it calls itself {stated}")
                else:
                    found[answer.host] = read(recording)
            except ToolError as error:
                answer = unused(answer, "invalid", f"its ranks cannot be read: {error.message}")
        marked.append(replace(answer, content=b""))
    return marked, found


def _of_hosts(findings: Iterable[Finding], recordings: Mapping[str, Recording]) -> list[tuple[list[str], Finding]]:
    """Return abnormal findings with the host that gave the rank; of several ranks, with all hosts."""
    of_rank = {rank: host for host, one in recordings.items() for rank in one.table("ranks.ranks")["rank"].to_list()}
    found = []
    for one in findings:
        host = of_rank.get(one.subject.rank) if one.subject.rank is not None else None
        if one.polarity is Polarity.ABNORMAL:
            placed = one.model_copy(update={"subject": one.subject.model_copy(update={"host": host})})
            found.append(([host] if host else list(recordings), placed))
    return found


def _possible(recording: Recording) -> Recording:
    """Return `recording`. Raises `ToolError` (bad_recording) if a rank is none of a job of its size."""
    ranks = recording.table("ranks.ranks")
    odd = ranks.filter((pl.col("world_size") > 1) & (pl.col("rank") >= pl.col("world_size")))
    if odd.height:
        rank, size = odd.select("rank", "world_size").row(0)
        raise ToolError(ErrorCode.BAD_RECORDING, f"rank {rank} of {size}", "read again")
    return recording


def _in_part(recording: Recording) -> bool:
    return any(spot.code == "ranks_unread" for spot in recording.manifest.collectors["ranks"].not_seen)
