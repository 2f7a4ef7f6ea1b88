"""Judge the accounts: which disturbances hurt a dispatch thread, and which were measured as normal.

A share below `min_pct` of the thread's time is normal (5 %: step times vary by that on a healthy host; a tightly
coupled job may be more sensitive, see K. Ferreira, P. Bridges, R. Brightwell, "Characterizing application sensitivity
to OS interference using kernel-level noise injection", SC'08). A normal finding is made only if no event was missed and
the unknown time could not have made it abnormal. Between the two there is no finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from whystall.tools.collect.ftrace.cpus import format_cpus
from whystall.tools.contract.findings import Finding, Interval, Severity, Subject
from whystall.tools.host.common.findings import finding, severity, window
from whystall.tools.host.common.latency import quantile
from whystall.tools.host.host_bound.account import Account
from whystall.tools.host.host_bound.data import Device, Reason
from whystall.tools.host.host_bound.gaps import OFF_HOST
from whystall.tools.host.host_bound.host_info import Host, Thread

# The scheduler's own estimate of what a migration costs a cache-hot thread: sysctl_sched_migration_cost,
# kernel/sched/fair.c. An upper bound: it can show that migrations are harmless, not that they hurt.
MIGRATION_NS = 500_000
# Neither a launcher or CPU manager that changes a running thread's affinity every second, nor a scheduler that moves it
# to another NUMA node, away from its memory, every second is normal.
FORCED_RATE = 1.0
_FEW = 3
# With fewer wakes there is no 99th percentile.
_WAKES = 20
# A pinned thread is crowded if others use a fifth of its CPUs and it waits.
CROWDED_PCT = 20.0
# Interrupts with at least a fifth of the stolen time are named.
_NAMED = 0.2
_GONE_PCT = 50.0
# Voluntary waits: a server without requests leaves its device idle although the host is healthy. Reported as what the
# device waited for, with low severity.
_BY_CHOICE = ("sleep", "poll", "colleague", "call", "stopped")
_WORKERS = "kworker"
_DEVICE_PARTS = ("idle", "host", "ahead", "launch", "unknown")
_LENGTH = pl.col("end_ns") - pl.col("start_ns")


@dataclass(frozen=True)
class Group:
    """Threads of one name that kept a dispatch thread from its CPU. `own`: of its process; `kernel`: the kernel's."""

    comm: str
    own: bool
    kernel: bool
    pids: tuple[int, ...]
    tids: tuple[int, ...]
    ns: int
    count: int
    max_ns: int
    cpus: tuple[int, ...]


def groups(a: Account) -> list[Group]:
    """Return the threads that kept it from running, by name, longest first, without the recording process: that one is
    gone when the finding is read."""
    found: dict[tuple[str, bool], list[dict[str, object]]] = {}
    for row in a.losses().filter(pl.col("what") == "no_cpu").iter_rows(named=True):
        other = a.host.thread(row["by_tid"])
        if other.pid != a.host.observer or other.pid <= 0:
            own = other.pid == a.thread.pid and other.pid > 0
            found.setdefault((neighbour_name(a.host, other, own), own), []).append(row)
    made = [_group(a.host, name, own, rows) for (name, own), rows in found.items()]
    return sorted(made, key=lambda group: -group.ns)


def neighbour_name(host: Host, thread: Thread, own: bool) -> str:
    """Return the name of a neighbour: that of its process if known, of the thread itself within the same process.

    All kernel workers are one neighbour.
    """
    if thread.comm.startswith(f"{_WORKERS}/"):
        return _WORKERS
    process = host.thread(thread.pid).comm if thread.pid > 0 and not own else ""
    return process or thread.comm or "?"


def _group(host: Host, comm: str, own: bool, rows: Sequence[dict[str, object]]) -> Group:
    frame = pl.DataFrame(rows)
    tids = sorted(set(frame["by_tid"].to_list()))
    pids = sorted({pid for tid in tids if (pid := host.thread(tid).pid) > 0})
    return Group(
        comm=comm,
        own=own,
        kernel=comm == _WORKERS or any(host.thread(tid).kernel for tid in tids),
        pids=tuple(pids),
        tids=tuple(tids),
        ns=int(frame["ns"].sum()),
        count=int(frame["count"].sum()),
        max_ns=int(frame["max_ns"].max()),  # type: ignore[arg-type]
        cpus=tuple(sorted(set(frame["cpus"].explode().to_list()))),
    )


@dataclass(frozen=True)
class Judge:
    """Thresholds, and whether no event was missed (`whole`)."""

    min_pct: float
    late_ms: float
    whole: bool

    def threads(self, accounts: Iterable[Account], others_pct: dict[int, float]) -> list[Finding]:
        """Return findings about dispatch threads; `others_pct`: by tid, how much of its CPUs others used."""
        found = []
        for a in accounts:
            found += self._preempted(a)
            found += self._latency(a)
            found += self._migrations(a)
            found += self._interrupts(a)
            found += self._throttled(a)
            found += self._crowded(a, others_pct.get(a.thread.tid, 0.0))
        return found

    def devices(
        self, devices: Iterable[Device], reasons: Sequence[Reason], host: Host, fair: Mapping[int, float]
    ) -> list[Finding]:
        """Return findings about accelerators and the threads they waited for; `fair`: `Account.fair` by tid."""
        found = []
        for device in devices:
            idle = device.idle_pct / 100
            own, unsure = device.host_pct * idle, device.unknown_pct * idle
            bad = self._bad(own)
            normal = self.whole and own + unsure < self.min_pct
            if bad is None and not normal:
                continue
            metrics = {f"{part}_pct": getattr(device, f"{part}_pct") for part in _DEVICE_PARTS} | {
                "count": device.gaps,
                "total_ms": idle * device.span_s * 1e3,
                "max_ms": device.gap_max_us / 1e3,
            }
            subject = Subject(type="accelerator", device=str(device.device))
            found.append(finding("accel.idle", subject, window(host.end_ns), metrics, bad))
            found += self._host_bound(device, bad is not None, reasons, host, fair)
        return found

    # --- one kind each ------------------------------------------------------------------------------------

    def _bad(self, pct: float) -> Severity | None:
        return severity(pct) if pct >= self.min_pct else None

    def _normal(self, a: Account, ns: int) -> bool:
        """Return whether `ns` of the thread's time is small, even with all unknown time added."""
        present = a.host.pct(a.ns("gone")) < _GONE_PCT
        return self.whole and present and a.host.pct(ns + a.unknown_ns) < self.min_pct

    def _preempted(self, a: Account) -> list[Finding]:
        """Return the neighbours on its CPU, without the part that a quota may explain."""
        host, total = a.host, a.ns("no_cpu")
        found = []
        for group in groups(a):
            bad = self._bad(host.pct(group.ns) * a.fair)
            if bad is not None:
                attributes = {"neighbour": group.comm, "cpus": format_cpus(group.cpus)}
                attributes["processes"] = ", ".join(map(str, group.pids)) if not group.own else ""
                attributes["own"] = "yes" if group.own else "no"
                metrics = _time(a, group.ns, group.count, group.max_ns)
                found.append(_finding("sched.preempted_by", a, metrics, attributes, bad, "no_cpu"))
        if not found and self._normal(a, total):
            found.append(_finding("sched.preempted_by", a, {"window_pct": host.pct(total)}, {}, None))
        return found

    def _latency(self, a: Account) -> list[Finding]:
        waits = a.latencies
        if len(waits) < _WAKES:
            return []
        late = sum(ns >= self.late_ms * 1e6 for ns in waits)
        pct = a.host.pct(sum(waits))
        p99 = quantile(waits, 0.99) / 1e6
        bad = self._bad(pct)
        if bad is None and not (self._normal(a, sum(waits)) and p99 < self.late_ms):
            return []
        metrics = {
            "count": float(len(waits)),
            "p50_ms": quantile(waits, 0.5) / 1e6,
            "p99_ms": p99,
            "max_ms": waits[-1] / 1e6,
            "late": float(late),
            "window_pct": pct,
        }
        mostly = _mostly(a) if bad else None
        return [_finding("sched.wakeup_latency", a, metrics, {"mostly": mostly} if mostly else {}, bad)]

    def _migrations(self, a: Account) -> list[Finding]:
        moves, seconds = a.moves, max(a.host.end_ns / 1e9, 1e-9)
        forced, crossed = moves.forced, moves.cross_node or 0
        driven = forced >= _FEW and forced / seconds >= FORCED_RATE and moves.count >= _FEW
        torn = crossed >= _FEW and crossed / seconds >= FORCED_RATE
        bad = None
        cost = a.host.pct(moves.count * MIGRATION_NS)
        if driven or torn:
            bad = severity(min(cost, 100.0))
        elif not self._normal(a, moves.count * MIGRATION_NS):
            return []
        metrics = {
            "count": float(moves.count),
            "rate": moves.count / seconds,
            "cross_core": moves.cross_core,
            "cross_node": moves.cross_node,
            "forced": forced,
            "window_pct": a.host.pct(moves.wait_ns),
        }
        return [_finding("sched.migrations", a, metrics, {"moves": moves.example} if bad else {}, bad)]

    def _interrupts(self, a: Account) -> list[Finding]:
        waited = a.losses().filter(pl.col("what") == "interrupt").select("by", "ns", "count", "max_ns", "cpus")
        stolen = a.stolen.select("label", "ns", "count", "max_ns", "cpus").rename({"label": "by"})
        both = pl.concat([waited, stolen], how="vertical_relaxed").group_by("by")
        rows = both.agg(
            pl.col("ns", "count").sum(), pl.col("max_ns").max(), pl.col("cpus").explode().unique().sort()
        ).sort("ns", "by", descending=[True, False])
        total = int(rows["ns"].sum())
        bad = self._bad(a.host.pct(total))
        if bad is None:
            metrics = {"window_pct": a.host.pct(total)}
            return [_finding("irq.steal", a, metrics, {}, None)] if self._normal(a, total) else []
        return [
            _finding(
                "irq.steal",
                a,
                _time(a, r["ns"], r["count"], r["max_ns"]),
                {"interrupt": r["by"], "cpus": format_cpus(cpu for cpu in r["cpus"] if cpu >= 0)},
                bad,
                "interrupt",
            )
            for r in rows.iter_rows(named=True)
            if r["ns"] >= _NAMED * total
        ]

    def _throttled(self, a: Account) -> list[Finding]:
        quota = a.host.quota_of(a.thread.pid)
        ns = a.ns("throttled")
        bad = self._bad(a.host.pct(ns))
        if quota is None or (bad is None and not (quota.throttled_ns == 0 and self._normal(a, 0))):
            return []
        rows = a.losses().filter(pl.col("what") == "throttled")
        count, longest = int(rows["count"].sum()), int(rows["max_ns"].sum())
        metrics = _time(a, ns, count, longest) | {"throttled_s": quota.throttled_ns / 1e9}
        return [_finding("sched.throttled", a, metrics, {}, bad, "throttled", cgroup=quota.cgroup)]

    def _crowded(self, a: Account, others_pct: float) -> list[Finding]:
        if not a.pinned or a.moves.forced:
            return []  # not pinned, or only for a time
        waited = a.ns("no_cpu") - a.observed_ns
        bad = self._bad(a.host.pct(waited) * a.fair) if others_pct >= CROWDED_PCT else None
        if bad is None and not (others_pct < CROWDED_PCT and self._normal(a, waited)):
            return []
        metrics = {"allowed_cpus": float(len(a.allowed)), "others_pct": others_pct}
        attributes = {"cpus": format_cpus(a.allowed)}
        if bad and (ranked := groups(a)):
            attributes["neighbour"] = ranked[0].comm
        return [_finding("sched.affinity_crowded", a, metrics, attributes, bad)]

    def _host_bound(
        self, device: Device, bad: bool, reasons: Sequence[Reason], host: Host, fair: Mapping[int, float]
    ) -> list[Finding]:
        """Return findings per thread and reason, with neighbours of one name merged; if the device hardly waits, the
        normal finding per thread."""
        own = [row for row in reasons if row.device == device.device]
        if not bad:
            return [
                _on_device(host, tid, device.device, {"window_pct": _host_pct(own, tid)}, {}, None)
                for tid in sorted({row.tid for row in own if row.tid > 0})
            ]
        merged: dict[tuple[int, str, str], list[Reason]] = {}
        for row in own:
            if 0 < host.observer == host.thread(row.who_tid).pid:
                continue
            merged.setdefault((row.tid, row.reason, _blamed(host, row)), []).append(row)
        found = []
        for (tid, reason, who), rows in merged.items():
            idle_pct = sum(row.idle_pct for row in rows)
            part = fair.get(tid, 1.0) if reason == "no_cpu" else 1.0
            grade = self._bad(part * idle_pct * device.idle_pct / 100)
            if grade is None or tid <= 0 or reason in (*OFF_HOST, "unknown"):
                continue
            if reason in _BY_CHOICE:
                grade = Severity.MINOR
            metrics = {
                "window_pct": sum(row.window_pct for row in rows),
                "of_idle_pct": idle_pct,
                "total_ms": sum(row.total_ms for row in rows),
                "count": float(max(row.gaps for row in rows)),
            }
            attributes = {"reason": reason, "by": who} if who else {"reason": reason}
            found.append(_on_device(host, tid, device.device, metrics, attributes, grade))
        return found


def _blamed(host: Host, row: Reason) -> str:
    """Return the name to blame for the idle time of `row`."""
    other = host.thread(row.who_tid)
    if row.reason != "no_cpu" or row.who_tid <= 0:
        return row.who
    return neighbour_name(host, other, own=other.pid == host.thread(row.tid).pid and other.pid > 0)


def _host_pct(rows: Iterable[Reason], tid: int) -> float:
    return sum(r.window_pct for r in rows if r.tid == tid and r.reason not in OFF_HOST)


def _mostly(a: Account) -> str | None:
    """Return what the thread waited for most after being woken."""
    waits = a.history.filter((pl.col("state") == "runnable") & ~pl.col("preempted") & (pl.col("what") != "unknown"))
    ranked = waits.group_by("what").agg(_LENGTH.sum().alias("ns")).sort("ns", "what", descending=[True, False])
    return str(ranked["what"][0]) if ranked.height else None


def _time(a: Account, ns: int, count: int, longest: int) -> dict[str, float]:
    return {"window_pct": a.host.pct(ns), "total_ms": ns / 1e6, "max_ms": longest / 1e6, "count": float(count)}


def _finding(
    kind: str,
    a: Account,
    metrics: Mapping[str, float | None],
    attributes: dict[str, str],
    bad: Severity | None,
    what: str | None = None,
    cgroup: str | None = None,
) -> Finding:
    """Return a finding about the account's thread; its interval is that of `what`, else the window."""
    span = a.history.filter(pl.col("what") == what) if what is not None else a.history.clear()
    first, last = (span["start_ns"].min(), span["end_ns"].max()) if span.height else (0, a.host.end_ns)
    # The thread is a guess: possibly nothing waits for it.
    if bad is not None and a.chosen.sure == "guess":
        bad = Severity.MINOR
    pid = a.thread.pid if a.thread.pid > 0 else None
    subject = Subject(type="thread", pid=pid, tid=a.thread.tid, comm=a.thread.comm, cgroup=cgroup)
    interval = Interval(start_ns=int(str(first)), end_ns=int(str(last)))
    return finding(kind, subject, interval, metrics, bad, attributes)


def _on_device(
    host: Host, tid: int, device: int, metrics: dict[str, float], attributes: dict[str, str], bad: Severity | None
) -> Finding:
    thread = host.thread(tid)
    subject = Subject(type="thread", pid=thread.pid if thread.pid > 0 else None, tid=tid, comm=thread.comm)
    attributes = attributes | {"accelerator": str(device)}
    return finding("accel.host_bound", subject, window(host.end_ns), metrics, bad, attributes)
