"""Classify what one thread did, or what kept it from running, at every instant.

Codes of the column ``what``:

==============  ====================================================================================================
``running``     on its CPU
``interrupt``   on its CPU, or about to be, while an interrupt or softirq (`by`) had that CPU
``no_cpu``      ready, while thread `by_tid` had the CPU it was queued on
``moved``       ready, while the kernel's migration thread took it to another CPU
``idle_exit``   ready, while its CPU was idle, for no longer than leaving an idle state takes
``throttled``   ready, with its CPU idle for longer than that, and its cgroup throttled by a quota
``held``        ready, with its CPU idle for longer than that, without a quota
``sleep``       waiting for a time or a device; ended by an interrupt
``lock``        in a futex or file lock
``io``          uninterruptible, or in a system call on a file
``poll``        waiting for events or a child (poll, epoll, select, wait4)
``driver``      in an ioctl
``call``        in another system call (`by`)
``colleague``   waiting for thread `by_tid`, which woke it; system calls were not traced
``stopped``     by a signal or tracer
``gone``        not yet created, or ended
``unknown``     not recorded, or uncertain
==============  ====================================================================================================

Whatever has inexact bounds in the trace is ``unknown``.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

import polars as pl

from whystall.tools.host.common.file_operations import ON_FILES
from whystall.tools.host.common.wait_syscalls import IDLE_SYSCALLS, LOCK_SYSCALLS
from whystall.tools.host.host_bound.host_info import Host, Quota
from whystall.tools.host.host_bound.intervals import conform, overlay

HISTORY = pl.Schema(
    {
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "state": pl.String,
        "what": pl.String,
        "by_tid": pl.Int32,
        "by": pl.String,
        "cpu": pl.Int32,
        # Number of the wait for a CPU that this is part of, else -1; whether the wait began with a preemption.
        "wait": pl.Int32,
        "preempted": pl.Boolean,
    }
)
_DEFAULTS = {"by_tid": -1, "by": "", "wait": -1, "preempted": False}
CODES = (
    *("running", "interrupt", "no_cpu", "moved", "idle_exit", "throttled", "held"),
    *("sleep", "lock", "io", "poll", "driver", "call", "colleague", "stopped", "gone", "unknown"),
)
"""Every code of ``what``, as in the table above."""
READY = ("no_cpu", "moved", "idle_exit", "throttled", "held")
"""Ready to run but kept from it by the scheduler."""

# Longer than the exit of any idle state in intel_idle's tables for servers and desktops (C10 of Skylake: 890 us).
IDLE_EXIT_NS = 1_000_000

# A quota is refilled once per period, plus or minus the wait for a turn. Waits shorter than a tenth of the period occur
# whenever CPUs are shared.
_PHASE = 0.05
_LONG_WAIT = 0.1
# By chance one in ten waits ends at a given phase; three of them that are a majority are hardly by chance.
_LEAST_ALIKE = 3
# Tolerance: the kernel counts throttled time to the end of the period, the trace until the thread runs.
_COUNTED = 1.5
_SLEEPS = frozenset({"nanosleep", "clock_nanosleep", "pause", "rt_sigtimedwait", "rt_sigsuspend"})


def history(host: Host, tid: int) -> pl.DataFrame:
    """Return the history of `tid` (`HISTORY`), sorted, over the whole window; empty if it is not in the trace."""
    slices = host.slices.filter((pl.col("tid") == tid) & (pl.col("end_ns") > pl.col("start_ns")))
    parts = [_running(host, slices, tid), _ready(host, slices, tid), _waiting(host, slices, tid)]
    return pl.concat([conform(part, HISTORY, _DEFAULTS) for part in parts]).sort("start_ns")


def _outermost(host: Host) -> pl.DataFrame:
    """Return the outermost interrupts, which do not overlap on one CPU."""
    return host.interrupts.filter(pl.col("depth") == 0).select("cpu", "start_ns", "end_ns", "tid", "label")


def _running(host: Host, slices: pl.DataFrame, tid: int) -> pl.DataFrame:
    """Return the time on a CPU. If its start is inexact, it is the earliest possible one: a wait may be included."""
    marks = _outermost(host).filter(pl.col("tid") == tid).drop("tid")
    pieces = overlay(slices.filter(pl.col("state") == "running"), marks, "cpu")
    broken = pl.col("label").is_not_null()
    what = (
        pl.when(broken).then(pl.lit("interrupt")).when("inexact").then(pl.lit("unknown")).otherwise(pl.lit("running"))
    )
    return pieces.with_columns(what=what, by=pl.col("label")).drop("preempted")


def _ready(host: Host, slices: pl.DataFrame, tid: int) -> pl.DataFrame:
    """Return the waits for a CPU, cut where the queue, interrupts or the thread on that CPU change."""
    waits = (
        slices.filter(pl.col("state") == "runnable").with_row_index("wait").with_columns(pl.col("wait").cast(pl.Int32))
    )
    pieces = overlay(_located(host, waits, tid), _outermost(host).drop("tid"), "cpu")
    tenures = host.tenures.select("cpu", "start_ns", "end_ns", has="tid", loose="inexact")
    pieces = overlay(pieces, tenures, "cpu").join(
        host.labels.rename({"by_tid": "has"}), on="has", how="left", suffix="_of", maintain_order="left"
    )
    name = pl.col("label_of").fill_null("")
    known = ~pl.col("inexact") & (pl.col("cpu") >= 0) & pl.col("has").is_not_null()
    certain = known & ~pl.col("loose") & (pl.col("has") >= 0) & (pl.col("has") != tid)
    idle = certain & (pl.col("has") == 0)
    handler = name.str.starts_with("ksoftirqd/") | name.str.contains(r"^irq/[0-9]")  # a threaded handler
    what = (
        pl.when(pl.col("inexact") | (pl.col("cpu") < 0))
        .then(pl.lit("unknown"))
        .when(pl.col("label").is_not_null())
        .then(pl.lit("interrupt"))
        .when(~certain)
        .then(pl.lit("unknown"))
        .when(idle)
        .then(pl.lit("idle"))
        .when(handler)
        .then(pl.lit("interrupt"))
        .when(name.str.starts_with("migration/"))
        .then(pl.lit("moved"))
        .otherwise(pl.lit("no_cpu"))
    )
    pieces = pieces.with_columns(what=what).with_columns(
        by=pl.when(pl.col("what") == "interrupt")
        .then(pl.coalesce("label", name))
        .when(pl.col("what").is_in(["no_cpu", "moved"]))
        .then(name),
        by_tid=pl.when(pl.col("what").is_in(["no_cpu", "moved"])).then("has"),
    )
    return _idle(pieces, host.quota_of(host.thread(tid).pid))


def _located(host: Host, waits: pl.DataFrame, tid: int) -> pl.DataFrame:
    """Return `waits` cut where the thread was moved to another CPU's queue."""
    moves = host.migrations.filter(pl.col("tid") == tid).sort("at_ns")
    stays = moves.select(
        pl.col("tid"),
        start_ns="at_ns",
        end_ns=pl.col("at_ns").shift(-1).fill_null(host.end_ns),
        moved_ns="at_ns",
        moved_to="to_cpu",
    )
    pieces = overlay(waits.with_columns(began_ns=pl.col("start_ns")), stays, "tid")
    within = pl.col("moved_ns") >= pl.col("began_ns")
    return pieces.with_columns(cpu=pl.when(within).then("moved_to").otherwise("cpu"))


def _idle(pieces: pl.DataFrame, quota: Quota | None) -> pl.DataFrame:
    """Classify per wait whether an idle CPU was leaving its idle state, or stayed idle.

    If an idle CPU did not run a throttled thread, the whole wait was for the quota, including time others ran.
    """
    idle = pl.when(pl.col("what") == "idle").then(pl.col("end_ns") - pl.col("start_ns")).otherwise(0)
    pieces = pieces.with_columns(long=idle.sum().over("wait") > IDLE_EXIT_NS)
    waits = pieces.filter("long")["wait"] if quota is not None and quota.throttled_ns else pl.Series([], dtype=pl.Int32)
    throttled = _throttled(pieces, set(waits.to_list()), quota)
    spent = pl.col("wait").is_in(sorted(throttled)) & pl.col("what").is_in(["idle", "no_cpu", "interrupt"])
    kept = pl.when(~spent)
    return pieces.with_columns(
        what=pl.when(spent)
        .then(pl.lit("throttled"))
        .when((pl.col("what") == "idle") & pl.col("long"))
        .then(pl.lit("held"))
        .when(pl.col("what") == "idle")
        .then(pl.lit("idle_exit"))
        .otherwise("what"),
        by=kept.then("by"),
        by_tid=kept.then("by_tid"),
    )


def _throttled(pieces: pl.DataFrame, proven: set[int], quota: Quota | None) -> set[int]:
    """Return the waits for a quota: those `proven`, and long ones that began with a preemption and ended at the same
    phase of the period, when the quota is refilled.

    On a CPU that is never idle none is proven; then the phase at which most of them end is used. The result is limited
    by the throttled time that the kernel counted.
    """
    if quota is None or not quota.throttled_ns or quota.period_ns <= 0:
        return proven
    period = quota.period_ns
    spans: dict[int, tuple[int, int]] = {}
    long: set[int] = set()
    for wait, start, end, put_off in pieces.select("wait", "start_ns", "end_ns", "preempted").iter_rows():
        first, last = spans.get(wait, (start, end))
        spans[wait] = first, last = min(first, start), max(last, end)
        if put_off and last - first >= _LONG_WAIT * period:
            long.add(wait)

    def near(origin: int) -> set[int]:
        """Return the waits that ended at about the phase of `origin`."""
        return {w for w in long if abs((spans[w][1] - origin + period // 2) % period - period // 2) <= _PHASE * period}

    if proven:
        origin = spans[min(proven)][1]
        phases = ((spans[wait][1] - origin + period // 2) % period - period // 2 for wait in proven)
        found = near(origin + round(median(phases)))
    else:
        found = max((near(spans[wait][1]) for wait in sorted(long)), key=len, default=set())
        if len(found) < _LEAST_ALIKE or 2 * len(found) <= len(long):
            return set()
    total = sum(spans[wait][1] - spans[wait][0] for wait in found | proven)
    return found | proven if total <= _COUNTED * quota.throttled_ns else proven


def _waiting(host: Host, slices: pl.DataFrame, tid: int) -> pl.DataFrame:
    waits = slices.filter(~pl.col("state").is_in(["running", "runnable"])).sort("start_ns")
    calls = host.calls.filter(pl.col("tid") == tid).select(start_ns="start_ns", returned_ns="end_ns", call="name")
    waits = waits.join_asof(calls.sort("start_ns"), on="start_ns", strategy="backward").join(
        host.labels.rename({"by_tid": "waker_tid", "label": "waker"}), on="waker_tid", how="left", maintain_order="left"
    )
    inside = (pl.col("returned_ns") > pl.col("start_ns")).fill_null(False)
    call = pl.when(inside).then("call").otherwise(pl.lit(""))
    woken = (pl.col("waker_context") == "task") & (pl.col("waker_tid") > 0)
    blocked = pl.col("state") == "uninterruptible"
    asleep = pl.col("state") == "sleeping"
    what = (
        pl.when(pl.col("state") == "dead")
        .then(pl.lit("gone"))
        .when((pl.col("state") == "unknown") | pl.col("inexact"))
        .then(pl.lit("unknown"))
        .when(pl.col("state") == "stopped")
        .then(pl.lit("stopped"))
        .when(_among(call, LOCK_SYSCALLS))
        .then(pl.lit("lock"))
        .when(blocked | _among(call, ON_FILES))
        .then(pl.lit("io"))
        .when(_among(call, _SLEEPS))
        .then(pl.lit("sleep"))
        .when(_among(call, IDLE_SYSCALLS - _SLEEPS))
        .then(pl.lit("poll"))
        .when(call == "ioctl")
        .then(pl.lit("driver"))
        .when(call != "")
        .then(pl.lit("call"))
        .when(asleep & woken)
        .then(pl.lit("colleague"))
        .otherwise(pl.lit("sleep"))
    )
    return (
        waits.with_columns(what=what)
        .with_columns(
            by=pl.when(pl.col("what").is_in(["colleague", "lock"]) & woken)
            .then("waker")
            .when(pl.col("what").is_in(["io", "driver", "call", "poll"]))
            .then(call),
            by_tid=pl.when(pl.col("what").is_in(["colleague", "lock"]) & woken).then("waker_tid"),
        )
        .drop("preempted")
    )


def _among(call: pl.Expr, names: Collection[str]) -> pl.Expr:
    return call.is_in(sorted(names))
