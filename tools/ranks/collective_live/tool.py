"""collective_live: which rank of a running job enters which operation last, and who has not returned."""

from __future__ import annotations

import re
from typing import Annotated

import polars as pl
from pydantic import Field

from whystall.tools.contract.findings import Finding, Interval, Polarity, Severity, Subject
from whystall.tools.contract.params import JobParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.ranks.collective_live.judge import Kind, Lateness, OpenCall, lateness_of
from whystall.tools.ranks.traces.hosts import Hosts
from whystall.tools.ranks.traces.window import Member, Window, window_of
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list

_CRITICAL_PCT, _MAJOR_PCT = 40.0, 10.0
_NAMED = 8
# all_reduce (torch/distributed/distributed_c10d.py:2934)
_INSIDE = re.compile(r"^(\w+) \((?:.*/)?torch/distributed/distributed_c10d\.py")


class Params(JobParams):
    """Parameters of collective_live."""

    duration: Annotated[float, Field(ge=0.5, le=600, description="seconds to observe")] = 10.0


class KindRow(Model):
    """Equal operations. `group`: its name; `size_bytes`: payload, None: not seen."""

    library: str
    group: str
    op: str
    size_bytes: int | None


class LateRow(KindRow):
    """How a rank entered them. `calls`, of which `open` have not returned; `compared`: matched on all ranks here;
    `last`: how often it was the last, by `late_ms` (median, with 95 % bounds) behind the last but one, which is
    `lost_ms` in all; `after_ms`: median behind the first. `host`: empty for the observed one."""

    rank: int
    host: str = ""
    pid: int
    calls: int
    open: int
    compared: int
    last: int
    after_ms: float
    late_ms: float
    low_ms: float
    high_ms: float
    lost_ms: float


class OpenRow(KindRow):
    """An operation in progress at the end. `seq` None: not seen; `inside`, `outside`: ranks in it, and ranks of the
    group that have not entered it; `open_s`: since the first entered."""

    seq: int | None
    inside: str
    outside: str
    open_s: float


class BeforeRow(Model):
    """A rank without any call in the window that is inside a function of torch.distributed, by its stack."""

    rank: int
    host: str = ""
    pid: int
    function: str


class Data(Model):
    """`verdict`: a constant of `judge`. `late`: of each rank that is usually last, the operation in which it costs
    most; `matched`: calls compared between ranks; `cost_pct`: what observing took of the time of the rank that it cost
    most. `absent`: ranks of the job that were not observed. Of several hosts: a rank that is later by less than
    `clock_ms` counts as last of nothing; `no_clock`: ranks whose hosts share no operation with the others."""

    verdict: str = "no_calls"
    ranks: str = ""
    absent: str = ""
    clock_ms: float | None = None
    no_clock: str = ""
    cost_pct: float = 0.0
    calls: int = 0
    matched: int = 0
    late: list[LateRow] = Field(default_factory=list)
    rows: list[LateRow] = Field(default_factory=list)
    open: list[OpenRow] = Field(default_factory=list)
    before: list[BeforeRow] = Field(default_factory=list)


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return who enters operations last in `recording`."""
    return judge_hosts(Hosts(recording), params)


def judge_hosts(hosts: Hosts, params: Params) -> Judgement[Data]:
    """Return who enters operations last on all `hosts`."""
    recording = hosts.recording
    window = window_of(recording)
    found = lateness_of(hosts, window)
    ns = recording.manifest.window_ns
    rows = [_row(row, window, hosts) for row in found.rows]
    open_rows = [_open(one, window, ns) for one in found.open]
    before = _before(window, hosts)
    residuals = {one.host: found.clocks.residual_ns.get(one.rank) for one in window.members}
    known = sorted(ns for ns in residuals.values() if ns is not None)
    data = Data(
        verdict=found.verdict,
        ranks=rank_list(one.rank for one in window.members),
        absent=rank_list(window.missing),
        clock_ms=sum(known[-2:]) / 1e6 if len(residuals) > 1 and len(known) > 1 else None,
        no_clock=rank_list(one.rank for one in window.members if residuals[one.host] is None),
        cost_pct=100 * max([0, *recording.table("collectives.processes")["cost_ns"].to_list()]) / max(1, ns),
        calls=window.calls.height,
        matched=found.matched,
        late=[_row(row, window, hosts) for row in found.late][: params.top],
        rows=rows[: params.top],
        open=open_rows[: params.top],
        before=before[: params.top],
    )
    return Judgement(
        findings=[_finding(row, window, hosts) for row in found.late],
        data=data,
        seen=window.calls.height,
        totals={"late": len(found.late), "rows": len(rows), "open": len(open_rows), "before": len(before)},
        not_seen=[("ranks_unknown", _strangers(window, hosts))] if window.strangers else [],
        basis=found,
    )


def _strangers(window: Window, hosts: Hosts) -> str:
    places = [hosts.place(pid) for pid in window.strangers[:_NAMED]]
    return f"pid {', '.join(f'{pid} on {host}' if host else str(pid) for host, pid in places)}"


def _member(window: Window, rank: int) -> Member:
    return next(one for one in window.members if one.rank == rank)


def _kind(kind: Kind, window: Window) -> dict[str, object]:
    group = window.groups.get(kind.key)
    size = kind.bytes if kind.bytes >= 0 else None
    return {"library": kind.library, "group": group.name if group else "", "op": kind.op, "size_bytes": size}


def _row(row: Lateness, window: Window, hosts: Hosts) -> LateRow:
    host, pid = hosts.place(_member(window, row.rank).pid)
    return LateRow(
        **_kind(row.kind, window),  # type: ignore[arg-type]
        rank=row.rank,
        host=host,
        pid=pid,
        calls=row.calls,
        open=row.open,
        compared=row.compared,
        last=row.last,
        after_ms=row.after_ns / 1e6,
        late_ms=row.margin_ns / 1e6,
        low_ms=row.low_ns / 1e6,
        high_ms=row.high_ns / 1e6,
        lost_ms=row.cost_ns / 1e6,
    )


def _open(one: OpenCall, window: Window, window_ns: int) -> OpenRow:
    return OpenRow(
        **_kind(one.kind, window),  # type: ignore[arg-type]
        seq=one.seq if one.seq >= 0 else None,
        inside=rank_list(one.inside),
        outside=rank_list(one.outside),
        open_s=(window_ns - one.since_ns) / 1e9,
    )


def _before(window: Window, hosts: Hosts) -> list[BeforeRow]:
    """Return the ranks that began no call, and are inside one that began before the window."""
    recording = hosts.recording
    quiet = {one.pid: one for one in window.members} if recording.has("objects") else {}
    for pid in window.calls["pid"].unique().to_list():
        quiet.pop(pid, None)
    if not quiet:
        return []
    stacks = dict(recording.table("objects.stacks").select("stack", "frames").iter_rows())
    found = {}
    threads = recording.table("objects.threads").filter(pl.col("pid").is_in(list(quiet))).sort("at_ns")
    for pid, stack in threads.select("pid", "pystack").iter_rows():
        functions = [match[1] for frame in stacks.get(stack, ()) if (match := _INSIDE.match(frame))]
        if functions:  # the outermost is the one that the program called
            host, own = hosts.place(pid)
            found[pid] = BeforeRow(rank=quiet[pid].rank, host=host, pid=own, function=functions[-1])
    return sorted(found.values(), key=lambda row: row.rank)


def _finding(row: Lateness, window: Window, hosts: Hosts) -> Finding:
    member, group = _member(window, row.rank), window.groups.get(row.kind.key)
    (host, pid), window_ns = hosts.place(member.pid), hosts.recording.manifest.window_ns
    window_pct = min(100.0, 100 * row.cost_ns / max(1, window_ns))
    severity = Severity.MAJOR if window_pct >= _MAJOR_PCT else Severity.MINOR
    metrics = {"late_ms": row.margin_ns / 1e6, "low_ms": row.low_ns / 1e6, "high_ms": row.high_ns / 1e6}
    metrics |= {"last_calls": row.last, "compared_calls": row.compared, "window_pct": window_pct}
    return Finding(
        kind="rank.enters_last",
        subject=Subject(type="rank", host=host or None, pid=pid, comm=member.comm, rank=row.rank),
        interval=Interval(start_ns=0, end_ns=window_ns),
        metrics=metrics,
        attributes={"operation": row.kind.op, **({"name": group.name} if group else {})},
        severity=Severity.CRITICAL if window_pct >= _CRITICAL_PCT else severity,
        polarity=Polarity.ABNORMAL,
    )


TOOL = Tool(
    name="collective_live",
    title="Collectives, live",
    description=(
        "Which rank of a running job enters which collective (gloo, NCCL, RCCL, HCCL, MPI) last, how often and by "
        "how much; calls that did not return."
    ),
    params=Params,
    data=Data,
    needs=lambda params: [Need("collectives"), Need("objects", optional=True)],
    judge=judge,
    kinds=frozenset({"rank.enters_last"}),
    cost=1.5,
)
