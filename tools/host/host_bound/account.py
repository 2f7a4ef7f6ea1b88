"""Sum up where the time of one dispatch thread went."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.collect.ftrace.cpus import format_cpus
from whystall.tools.host.common.latency import quantile
from whystall.tools.host.host_bound.activity import READY, history
from whystall.tools.host.host_bound.data import Dispatcher, Loss, Wait
from whystall.tools.host.host_bound.dispatch_threads import Chosen
from whystall.tools.host.host_bound.host_info import Cpu, Host, Thread

_WAITS = ("sleep", "lock", "io", "poll", "driver", "call", "colleague", "stopped")
_LENGTH = pl.col("end_ns") - pl.col("start_ns")


@dataclass(frozen=True)
class Moves:
    """Migrations: all, to another core, to another NUMA node (None: unknown), and `forced`: changes of affinity.

    `wait_ns`: waits for a CPU that ended on another one.
    """

    count: int
    cross_core: int | None
    cross_node: int | None
    forced: int
    wait_ns: int
    example: str


@dataclass(frozen=True)
class Account:
    """One dispatch thread. `history`: see `activity.history`; `latencies`: ns from woken to running, sorted; `stolen`:
    interrupts while it ran (label, vector, soft, ns, count, max_ns, cpus)."""

    chosen: Chosen
    thread: Thread
    history: pl.DataFrame
    latencies: list[int]
    wakes: int
    involuntary: int
    moves: Moves
    stolen: pl.DataFrame
    host: Host

    def ns(self, *what: str) -> int:
        """Return the time with these codes of `what`, ns."""
        return int(self.history.filter(pl.col("what").is_in(what)).select(_LENGTH.sum()).item())

    @property
    def unknown_ns(self) -> int:
        """Return the time in which it is unknown, or uncertain, what the thread did."""
        covered = int(self.history.select(_LENGTH.sum()).item())
        return self.ns("unknown") + max(self.host.end_ns - covered, 0)

    @property
    def fair(self) -> float:
        """Return the share of the waits behind other threads that a quota cannot explain.

        A throttled thread waits even behind others, and its cgroup may have been throttled longer than idle CPUs
        showed.
        """
        waited = self.ns("no_cpu")
        elsewhere = max(self.host.throttled_ns(self.thread.pid) - self.ns("throttled"), 0)
        return max(waited - elsewhere, 0) / waited if waited else 1.0

    @property
    def observed_ns(self) -> int:
        """Return the time it waited behind the recording process."""
        ours = [tid for tid, thread in self.host.names.items() if thread.pid == self.host.observer > 0]
        behind = (pl.col("what") == "no_cpu") & pl.col("by_tid").is_in(ours)
        return int(self.history.filter(behind).select(_LENGTH.sum()).item())

    @property
    def cpus(self) -> list[int]:
        """Return the CPUs it ran on, longest first."""
        ran = self.history.filter(pl.col("what") == "running").group_by("cpu").agg(_LENGTH.sum().alias("ns"))
        return ran.sort("ns", "cpu", descending=[True, False])["cpu"].to_list()

    @property
    def allowed(self) -> tuple[int, ...]:
        """Return the last recorded CPU affinity; empty if it was not recorded."""
        masks = self.host.masks.get(self.thread.tid)
        return masks[-1].cpus if masks else ()

    @property
    def pinned(self) -> bool | None:
        """Return whether its affinity excludes an online CPU; None if unknown."""
        return not set(self.host.online) <= set(self.allowed) if self.allowed else None

    def losses(self) -> pl.DataFrame:
        """Return what kept it from running, longest first: what, by, by_tid, ns, preempted_ns, max_ns, count, cpus."""
        ready = self.history.filter(pl.col("state") == "runnable")
        put_off = pl.when("preempted").then("ns").otherwise(0)
        each = ready.group_by("what", "by", "by_tid", "wait").agg(
            _LENGTH.sum().alias("ns"), pl.col("preempted").first(), pl.col("cpu").unique().alias("cpus")
        )
        return (
            each.group_by("what", "by", "by_tid")
            .agg(
                pl.col("ns").sum(),
                put_off.sum().alias("preempted_ns"),
                pl.col("ns").max().alias("max_ns"),
                pl.len().alias("count"),
                pl.col("cpus").explode().unique().sort(),
            )
            .sort("ns", "what", "by", descending=[True, False, False])
        )


def account(host: Host, chosen: Chosen) -> Account:
    """Return the account of a dispatch thread over the whole window."""
    tid = chosen.tid
    slices = host.slices.filter(pl.col("tid") == tid).sort("start_ns")
    ends_running = (pl.col("state").shift(-1) == "running") & (pl.col("start_ns").shift(-1) == pl.col("end_ns"))
    woken = slices.filter(
        (pl.col("state") == "runnable")
        & ~pl.col("preempted")
        & ~pl.col("inexact")
        & ~pl.col("open_start")
        & (pl.col("woken_ns") > 0)
        & ends_running
    )
    slept = slices.filter(pl.col("state").is_in(["sleeping", "uninterruptible"]) & ~pl.col("open_end"))
    return Account(
        chosen=chosen,
        thread=host.thread(tid),
        history=history(host, tid),
        latencies=sorted(woken.select(pl.col("end_ns") - pl.col("woken_ns")).to_series().to_list()),
        wakes=slept.height,
        involuntary=slices.filter((pl.col("state") == "runnable") & pl.col("preempted")).height,
        moves=_moves(host, slices, tid),
        stolen=_stolen(host, tid),
        host=host,
    )


def _moves(host: Host, slices: pl.DataFrame, tid: int) -> Moves:
    before = slices.with_columns(
        waited=pl.when(pl.col("state").shift(1) == "runnable").then(_LENGTH.shift(1)).otherwise(0)
    )
    moved = before.filter((pl.col("state") == "running") & (pl.col("from_cpu") >= 0))
    pairs = list(moved.select("from_cpu", "cpu").iter_rows())
    places = [(host.topology.get(a), host.topology.get(b)) for a, b in pairs]
    known = [(a, b) for a, b in places if a is not None and b is not None]
    cores = [_core(a) != _core(b) for a, b in known if min(a.core, b.core) >= 0]
    nodes = [a.node != b.node for a, b in known if min(a.node, b.node) >= 0]
    masks = host.masks.get(tid, [])
    return Moves(
        count=len(pairs),
        cross_core=sum(cores) if len(cores) == len(pairs) else None,
        cross_node=sum(nodes) if len(nodes) == len(pairs) else None,
        forced=max(len(masks) - 1, 0),
        wait_ns=int(moved["waited"].sum()),
        example=f"{pairs[0][0]} > {pairs[0][1]}" if pairs else "",
    )


def _core(cpu: Cpu) -> tuple[int, int]:
    return cpu.package, cpu.core


def _stolen(host: Host, tid: int) -> pl.DataFrame:
    own = host.interrupts.filter(pl.col("tid") == tid)
    return (
        own.group_by("label", "soft", "vector")
        .agg(
            pl.col("self_ns").sum().alias("ns"),
            pl.len().alias("count"),
            pl.col("self_ns").max().alias("max_ns"),
            pl.col("cpu").unique().sort().alias("cpus"),
        )
        .sort("ns", "label", descending=[True, False])
    )


# --- as rows --------------------------------------------------------------------------------------------------


def dispatcher_row(a: Account, others_ns: int) -> Dispatcher:
    """Return the table row. `others_ns`: time that other threads ran on the CPUs it may use."""
    host, us = a.host, [ns / 1e3 for ns in a.latencies]
    capacity = max(len(a.allowed or a.cpus), 1) * max(host.end_ns, 1)
    return Dispatcher(
        pid=a.thread.pid,
        tid=a.thread.tid,
        comm=a.thread.comm,
        chosen_by=",".join(a.chosen.why),
        sure=a.chosen.sure,
        running_pct=host.pct(a.ns("running")),
        ready_pct=host.pct(a.ns(*READY)),
        interrupt_pct=host.pct(a.ns("interrupt")),
        blocked_pct=host.pct(a.ns(*_WAITS, "gone")),
        unknown_pct=host.pct(a.unknown_ns),
        wakes=a.wakes,
        latency_p50_us=quantile(us, 0.5) if us else None,
        latency_p99_us=quantile(us, 0.99) if us else None,
        latency_max_us=us[-1] if us else None,
        involuntary=a.involuntary,
        migrations=a.moves.count,
        cross_core=a.moves.cross_core,
        cross_node=a.moves.cross_node,
        cpus=format_cpus(a.allowed or a.cpus),
        pinned=a.pinned,
        others_pct=100.0 * others_ns / capacity,
    )


def loss_rows(a: Account) -> list[Loss]:
    """Return what kept it from running, longest first."""
    ready = [
        Loss(
            tid=a.thread.tid,
            what=r["what"],
            who=r["by"],
            who_pid=pid if r["by_tid"] > 0 and (pid := a.host.thread(r["by_tid"]).pid) > 0 else None,
            window_pct=a.host.pct(r["ns"]),
            total_ms=r["ns"] / 1e6,
            preempted_ms=r["preempted_ns"] / 1e6,
            max_ms=r["max_ns"] / 1e6,
            count=r["count"],
            cpus=format_cpus(cpu for cpu in r["cpus"] if cpu >= 0),
        )
        for r in a.losses().iter_rows(named=True)
    ]
    stolen = [
        Loss(
            tid=a.thread.tid,
            what="stolen",
            who=r["label"],
            who_pid=None,
            window_pct=a.host.pct(r["ns"]),
            total_ms=r["ns"] / 1e6,
            preempted_ms=0.0,
            max_ms=r["max_ns"] / 1e6,
            count=r["count"],
            cpus=format_cpus(r["cpus"]),
        )
        for r in a.stolen.iter_rows(named=True)
    ]
    return sorted(ready + stolen, key=lambda row: -row.total_ms)


def wait_rows(a: Account) -> list[Wait]:
    """Return what it waited for voluntarily, longest first."""
    waits = a.history.filter(pl.col("what").is_in(_WAITS)).with_columns(ns=_LENGTH)
    groups = waits.group_by("what", "by").agg(pl.col("ns").sum().alias("total"), pl.col("ns").max(), pl.len())
    return [
        Wait(
            tid=a.thread.tid,
            what=r["what"],
            who=r["by"],
            window_pct=a.host.pct(r["total"]),
            total_ms=r["total"] / 1e6,
            max_ms=r["ns"] / 1e6,
            count=r["len"],
        )
        for r in groups.sort("total", "what", "by", descending=[True, False, False]).iter_rows(named=True)
    ]
