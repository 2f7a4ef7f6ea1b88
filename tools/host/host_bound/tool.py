"""host_bound: why an accelerator waits for the host: where the time of the threads that feed it goes."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl
from pydantic import Field

from whystall.tools.collect.options import FtraceOptions
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.host.host_bound.account import Account, account, dispatcher_row, loss_rows, wait_rows
from whystall.tools.host.host_bound.activity import history
from whystall.tools.host.host_bound.data import Data
from whystall.tools.host.host_bound.dispatch_threads import choose
from whystall.tools.host.host_bound.findings import Judge
from whystall.tools.host.host_bound.gaps import Bubbles, bubbles, device_rows, gap_rows, reason_rows
from whystall.tools.host.host_bound.host_info import Host, prepare
from whystall.tools.host.host_bound.remedies import others_ns, remedies
from whystall.tools.host.host_bound.steps import step_rows
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

# A larger share of time that is unknown, or taken by the recording process, is reported.
_UNKNOWN_PCT = 1.0


class Params(LiveParams):
    """Parameters of host_bound."""

    tid: int | None = Field(default=None, ge=1, le=4194304, description="thread id, the only one to judge")
    profile: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description="path of an accelerator profile",
    )
    syscalls: bool = Field(default=False, description="also trace system calls: what threads block in")
    # Holistic Trace Analysis and msprof-analyze both call a launch delay above 100 us long.
    gap_us: float = Field(default=100.0, ge=1, le=1e9, description="list device gaps longer than, us")
    min_pct: float = Field(default=5.0, ge=0.1, le=100, description="a smaller share of time is normal, %")
    # A woken thread waits at most about one slice of the running thread: base_slice_ns, 0.7 to 2.8 ms by default.
    late_ms: float = Field(default=1.0, ge=0.01, le=10_000, description="a slower wakeup is late, ms")


def _needs(params: Params) -> list[Need]:
    groups = {"irq", "softirq", *(["syscalls"] if params.syscalls else [])}
    needs = [Need("ftrace", FtraceOptions(frozenset(groups))), Need("proc", optional=True)]
    return [*needs, Need("profile")] if params.profile else needs


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Judge what kept the dispatch threads of `recording` from feeding the device, and how long the device waited.

    The device is judged if the recording holds a profile; tables of /proc are optional.
    """
    facts = extract(recording, params)
    host, accounts = facts.host, facts.accounts
    rows = [dispatcher_row(a, others_ns(a)) for a in accounts]
    judges = Judge(params.min_pct, params.late_ms, recording.manifest.saw_everything("ftrace"))
    findings = judges.threads(accounts, {row.tid: row.others_pct for row in rows})
    losses = sorted((row for a in accounts for row in loss_rows(a)), key=lambda row: -row.total_ms)
    waits = sorted((row for a in accounts for row in wait_rows(a)), key=lambda row: -row.total_ms)
    data = Data(dispatchers=rows, losses=losses[: params.top], waits=waits[: params.top])
    totals = {"dispatchers": len(rows), "losses": len(losses), "waits": len(waits)}
    if facts.bubbles is not None:
        data.devices = device_rows(facts.bubbles)
        reasons = reason_rows(facts.bubbles, host.end_ns)
        gaps, count = gap_rows(facts.bubbles, int(params.gap_us * 1e3), params.top)
        steps = step_rows(recording.table("profile.steps"), facts.bubbles, accounts[0].history if accounts else None)
        data.reasons, data.gaps, data.steps = reasons[: params.top], gaps, steps[: params.top]
        totals |= {"devices": len(data.devices), "reasons": len(reasons), "gaps": count, "steps": len(steps)}
        findings += judges.devices(data.devices, reasons, host, {a.thread.tid: a.fair for a in accounts})
    every = remedies(host, accounts, findings)
    data.remedies = every[: params.top]
    return Judgement(
        findings=findings,
        data=data,
        seen=int(host.tenures.filter(pl.col("tid") > 0).height),
        totals=totals | {"remedies": len(every)},
        not_seen=_blind_spots(recording, params, facts),
        basis=facts,
    )


@dataclass(frozen=True)
class Facts:
    """The facts of a recording that are judged. `bubbles`: None without a profile of a device."""

    host: Host
    accounts: list[Account]
    bubbles: Bubbles | None


def extract(recording: Recording, params: Params) -> Facts:
    """Return the host, its dispatch threads, and the gaps of the devices."""
    host = prepare(recording)
    activities = _activities(recording)
    launches = activities.filter(pl.col("kind") == "launch") if activities is not None else None
    accounts = [account(host, one) for one in choose(host, launches, _target(recording, params, host), params.tid)]
    return Facts(host, accounts, None if activities is None else _bubbles(recording, host, activities, accounts))


def _target(recording: Recording, params: Params, host: Host) -> list[int]:
    """Return the processes to judge: those requested, else those recorded."""
    target = recording.manifest.target
    if params.pid is not None and not params.children:
        return [params.pid]
    pids = set(target.pids)
    if target.follow and recording.has("proc"):
        pids |= set(recording.table("proc.threads")["pid"].to_list())
    if not pids and params.comm is not None:
        pids = {max(one.pid, 0) or one.tid for one in host.names.values() if one.comm == params.comm}
    return sorted(pids)


def _activities(recording: Recording) -> pl.DataFrame | None:
    """Return the profile's activities; None without device work."""
    if not recording.has("profile"):
        return None
    activities = recording.table("profile.activities")
    return activities if activities.filter(pl.col("device") >= 0).height else None


def _bubbles(recording: Recording, host: Host, activities: pl.DataFrame, accounts: list[Account]) -> Bubbles:
    """Return the gaps, explained by the next launching thread, whether or not it counts as a dispatch thread."""
    histories = {a.thread.tid: a.history for a in accounts}
    traced = set(host.slices["tid"].unique().to_list())
    for tid in activities.filter(pl.col("kind") == "launch")["tid"].unique().to_list():
        if tid in traced and tid not in histories:
            histories[tid] = history(host, tid)
    residual = recording.manifest.collectors["profile"].options.get("residual_ns", 0)
    return bubbles(activities, histories, residual)


def _blind_spots(recording: Recording, params: Params, facts: Facts) -> list[tuple[str, str]]:
    host, accounts = facts.host, facts.accounts
    spots = []
    if not accounts:
        searched = f"thread {params.tid}" if params.tid is not None else recording.manifest.target.describe()
        spots.append(("no_dispatch_thread", searched))
    if not recording.has("profile"):
        spots.append(("no_profile", ""))
    elif facts.bubbles is None:
        spots.append(("no_device_work", ""))
    elif accounts and accounts[0].chosen.why not in (("launches",), ("asked",)):
        spots.append(("profile_threads", ""))
    if guessed := [a.thread.label for a in accounts if a.chosen.sure == "guess"]:
        spots.append(("dispatch_guessed", ", ".join(guessed)))
    if host.calls.is_empty():
        spots.append(("calls_not_traced", ""))
    if not host.topology:
        spots.append(("no_topology", ""))
    for a in accounts:
        if (ours := host.pct(a.observed_ns)) >= _UNKNOWN_PCT:
            spots.append(("observer", f"{a.thread.label}: {ours:.0f} %"))
        if (unknown := host.pct(a.unknown_ns)) >= _UNKNOWN_PCT:
            spots.append(("trace_dark", f"{a.thread.label}: {unknown:.0f} %"))
    return spots


TOOL = Tool(
    name="host_bound",
    title="Host-bound accelerator",
    description=(
        "Why an accelerator (GPU, NPU) idles: waits of the threads that feed it for a CPU and who had it, wakeup "
        "latency, migrations, interrupts, quota; with a profile, the device's gaps by what those threads did."
    ),
    params=Params,
    data=Data,
    needs=_needs,
    judge=judge,
    kinds=frozenset(
        {
            *("sched.preempted_by", "sched.wakeup_latency", "sched.migrations", "sched.throttled"),
            *("sched.affinity_crowded", "irq.steal", "accel.idle", "accel.host_bound"),
        }
    ),
    cost=6.0,
)
