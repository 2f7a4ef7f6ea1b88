"""Choose remedies, largest possible gain first, with commands for this host. Nothing is run.

Sources: binding to cores, pipelined dispatch, another memory allocator (Ascend's guide to host-bound training;
PyTorch's performance tuning guide), moving interrupts (Documentation/core-api/irq/irq-affinity.rst and
Documentation/admin-guide/kernel-per-CPU-kthreads.rst of the kernel), quotas (sched-bwc.rst).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence

import polars as pl

from whystall.tools.collect.ftrace.cpus import format_cpus
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.host.host_bound.account import Account
from whystall.tools.host.host_bound.data import Remedy
from whystall.tools.host.host_bound.findings import groups
from whystall.tools.host.host_bound.host_info import Host, Quota

CODES = (
    "pin_cores",
    "pipeline_dispatch",
    "allocator",
    "move_irqs",
    "steer_softirqs",
    "isolate_neighbour",
    "kernel_threads",
    "fewer_threads",
    "raise_quota",
    "one_placement",
    "stay_on_node",
    "shallow_idle",
    "more_cpus",
)
"""In the order of remedies with equal gain."""

# A core is free for a thread if others use less than this of each of its CPUs.
_QUIET_PCT = 20.0
# With less use by others a thread may stay on its CPU.
_STILL_PCT = 5.0
_COMMANDS = 4
_HARD = re.compile(r"irq ([0-9]+)\b")
_LENGTH = pl.col("end_ns") - pl.col("start_ns")


def loads(host: Host, without: Collection[int]) -> dict[int, float]:
    """Return the load of each traced CPU, percent, without the threads `without`; unknown time counts as busy."""
    taken = host.tenures.filter((pl.col("tid") != 0) & ~pl.col("tid").is_in(list(without)))
    theirs = pl.col("tid").is_in([0, *without])  # interrupts in other threads are in those threads' time
    served = host.interrupts.filter(theirs & (pl.col("depth") == 0))
    busy = dict.fromkeys(host.cpus, 0)
    for frame in (taken, served):
        for cpu, ns in frame.group_by("cpu").agg(_LENGTH.sum()).iter_rows():
            busy[cpu] = busy.get(cpu, 0) + ns
    return {cpu: host.pct(ns) for cpu, ns in busy.items()}


def others_ns(a: Account) -> int:
    """Return the time others ran on the CPUs the thread may use, or did use if its affinity is unknown."""
    cpus = list(a.allowed or a.cpus)
    theirs = a.host.tenures.filter(
        (pl.col("tid") > 0) & (pl.col("tid") != a.thread.tid) & pl.col("cpu").is_in(cpus) & ~pl.col("inexact")
    )
    return int(theirs.select(_LENGTH.sum()).item())


def remedies(host: Host, accounts: Sequence[Account], findings: Iterable[Finding]) -> list[Remedy]:
    """Return the remedies for the abnormal `findings`, largest gain first."""
    by_tid = {a.thread.tid: a for a in accounts}
    free_cpus = _free_cpus(host, accounts)
    kept = _kept(host, accounts, free_cpus)
    found: dict[tuple[str, str], Remedy] = {}
    for finding in findings:
        a = by_tid.get(finding.subject.tid or -1)
        if finding.polarity is Polarity.ABNORMAL and a is not None:
            for remedy in _for(finding, a, free_cpus, kept):
                old = found.get((remedy.code, remedy.who))
                if old is None or (remedy.pct or 0.0) > (old.pct or 0.0):
                    found[remedy.code, remedy.who] = remedy
    return sorted(found.values(), key=lambda r: (r.pct is None, -(r.pct or 0.0), CODES.index(r.code), r.who))


def _for(finding: Finding, a: Account, free_cpus: Mapping[int, int], kept: Collection[int]) -> list[Remedy]:
    """Return the remedies for a finding. `free_cpus`: a quiet CPU by tid; `kept`: CPUs of cores in use by or assigned
    to dispatch threads."""
    pct = finding.window_pct
    if finding.kind == "sched.preempted_by":
        return [*_pin(a, free_cpus, pct), *_neighbour(finding, a, kept, pct)]
    if finding.kind == "sched.migrations":
        made = [
            *_pin(a, free_cpus, pct),
            Remedy(code="one_placement", pct=pct, who=a.thread.label, cpus="", command=""),
        ]
        return made + _node(a, pct) if finding.metrics.get("cross_node") else made
    if finding.kind == "irq.steal":
        return _interrupt(finding, a, kept, pct) + _pin(a, free_cpus, pct)
    if finding.kind == "sched.throttled":
        return _quota(a.host.quota_of(a.thread.pid), pct)
    if finding.kind == "sched.wakeup_latency" and finding.attributes.get("mostly") in ("idle_exit", "held"):
        cpus = format_cpus(a.cpus)
        command = f"cpupower -c {cpus} idle-set -D 10"
        return [Remedy(code="shallow_idle", pct=pct, who="", cpus=cpus, command=command)]
    if finding.kind == "accel.host_bound" and finding.attributes.get("reason") == "running":
        allocator = Remedy(code="allocator", pct=None, who="", cpus="", command="")
        return [Remedy(code="pipeline_dispatch", pct=pct, who=a.thread.label, cpus="", command=""), allocator]
    return []


# --- cores ----------------------------------------------------------------------------------------------------


def _free_cpus(host: Host, accounts: Sequence[Account]) -> dict[int, int]:
    """Return a quiet CPU per dispatch thread as far as possible: on a core that others hardly use, on the node where
    the thread ran most; its present one first if that is quiet enough."""
    load = loads(host, [a.thread.tid for a in accounts])
    free = [cpu for cpu in host.online if all(load.get(c, 100.0) < _QUIET_PCT for c in host.siblings(cpu))]
    taken: set[int] = set()
    free_cpus = {}
    for a in accounts:
        home = a.cpus[0] if a.cpus else -1
        node = host.topology[home].node if home in host.topology else -1
        left = [cpu for cpu in free if cpu not in taken]
        if left:
            best = min(
                left, key=lambda cpu: (_node_of(host, cpu) != node, load[cpu] >= _STILL_PCT, cpu != home, load[cpu])
            )
            free_cpus[a.thread.tid] = best
            taken.update(host.siblings(best))
    return free_cpus


def _kept(host: Host, accounts: Sequence[Account], free_cpus: Mapping[int, int]) -> set[int]:
    """Return the CPUs of the cores that dispatch threads have or get; only those they have if that would be all."""
    have = {c for a in accounts for cpu in a.cpus[:1] for c in host.siblings(cpu)}
    get = {c for cpu in free_cpus.values() for c in host.siblings(cpu)}
    return have | get if set(host.online) - have - get else have


def _node_of(host: Host, cpu: int) -> int:
    place = host.topology.get(cpu)
    return place.node if place is not None else -1


def _pin(a: Account, free_cpus: Mapping[int, int], pct: float) -> list[Remedy]:
    cpu = free_cpus.get(a.thread.tid)
    if cpu is None:
        return [
            Remedy(code="more_cpus", pct=pct, who=a.thread.label, cpus=format_cpus(a.allowed or a.cpus), command="")
        ]
    if a.allowed == (cpu,):
        return []  # it already runs there
    command = f"taskset -cp {cpu} {a.thread.tid}"
    return [Remedy(code="pin_cores", pct=pct, who=a.thread.label, cpus=str(cpu), command=command)]


def _node(a: Account, pct: float) -> list[Remedy]:
    node = _node_of(a.host, a.cpus[0]) if a.cpus else -1
    if node < 0:
        return []
    cpus = format_cpus(cpu for cpu, place in a.host.topology.items() if place.node == node)
    command = f"numactl --cpunodebind={node} --membind={node} COMMAND"
    return [Remedy(code="stay_on_node", pct=pct, who=a.thread.label, cpus=cpus, command=command)]


# --- disturbers -----------------------------------------------------------------------------------------------


def _neighbour(finding: Finding, a: Account, kept: Collection[int], pct: float) -> list[Remedy]:
    name, own = finding.attributes["neighbour"], finding.attributes["own"] == "yes"
    if own:
        return [Remedy(code="fewer_threads", pct=pct, who=name, cpus="", command="")]
    group = next((g for g in groups(a) if not g.own and g.comm == name), None)
    if group is None or group.kernel:
        return [Remedy(code="kernel_threads", pct=pct, who=name, cpus="", command="")]
    rest = [cpu for cpu in a.host.online if cpu not in kept]
    moves = [f"taskset -acp {format_cpus(rest)} {pid}" for pid in group.pids] if rest else []
    return [
        Remedy(
            code="isolate_neighbour", pct=pct, who=name, cpus=format_cpus(rest), command=" && ".join(moves[:_COMMANDS])
        )
    ]


def _interrupt(finding: Finding, a: Account, kept: Collection[int], pct: float) -> list[Remedy]:
    name = finding.attributes["interrupt"]
    away = [cpu for cpu in a.host.online if cpu not in kept]
    cpus = format_cpus(away)
    if match := _HARD.match(name):
        command = f"echo {cpus} > /proc/irq/{match[1]}/smp_affinity_list" if away else ""
        return [Remedy(code="move_irqs", pct=pct, who=name, cpus=cpus, command=command)]
    return [Remedy(code="steer_softirqs", pct=pct, who=name, cpus=cpus, command="")]


def _quota(quota: Quota | None, pct: float) -> list[Remedy]:
    if quota is None:
        return []
    path = quota.cgroup.strip("/")
    if quota.version == 2:
        command = f"echo max > {shlex.quote(f'/sys/fs/cgroup/{path}/cpu.max')}"
    else:
        command = f"echo -1 > {shlex.quote(f'/sys/fs/cgroup/cpu/{path}/cpu.cfs_quota_us')}"
    return [Remedy(code="raise_quota", pct=pct, who=quota.cgroup, cpus="", command=command)]
