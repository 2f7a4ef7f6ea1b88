"""Lanes against schedules whose truth is known, whole and with events taken away."""

from __future__ import annotations

import random

import polars as pl
import pytest
from machine import Machine, changed

from whystall.tools.timeline.lanes.build import cpu_slices, interrupt_slices, thread_slices
from whystall.tools.timeline.sched import TABLES, SchedTrace

pytestmark = pytest.mark.thorough

SEEDS = range(8)


def check_shape(trace: SchedTrace) -> None:
    """No gap and no overlap anywhere, and both views agree on the time that threads ran."""
    cpus, threads = cpu_slices(trace), thread_slices(trace)
    assert set(cpus["cpu"]) == set(trace.cpus)
    for frame, lane in ((cpus, "cpu"), (threads, "tid")):
        for _, slices in frame.group_by(lane):
            assert slices["start_ns"][0] == trace.start_ns
            assert slices["end_ns"][-1] == trace.end_ns
            assert (slices["start_ns"] <= slices["end_ns"]).all()
            assert slices["end_ns"][:-1].to_list() == slices["start_ns"][1:].to_list()
    lasted = pl.col("end_ns") - pl.col("start_ns")
    ran = threads.filter(state="running").group_by("tid").agg(lasted.sum()).sort("tid")
    had = cpus.filter(pl.col("tid") > 0).group_by("tid").agg(lasted.sum()).sort("tid")
    assert ran.equals(had)


def check_claims(machine: Machine, trace: SchedTrace, exempt: pl.Expr | None = None) -> int:
    """What is claimed without reserve is true, `exempt` slices of threads aside. Returns how many claims there are."""
    claims = 0
    threads = thread_slices(trace).filter(~pl.col("inexact") & (pl.col("state") != "unknown"))
    if exempt is not None:
        threads = threads.filter(~exempt)
    for start, end, tid, state in threads.select("start_ns", "end_ns", "tid", "state").iter_rows():
        assert machine.states(tid, start, end) <= {state}, (start, end, tid, state)
        claims += 1
    cpus = cpu_slices(trace).filter(~pl.col("inexact"))
    for start, end, cpu, tid in cpus.select("start_ns", "end_ns", "cpu", "tid").iter_rows():
        assert machine.owners(cpu, start, end) <= {tid}, (start, end, cpu, tid)
        claims += 1
    return claims


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arrived", [False, True])
def test_all_reported(seed: int, arrived: bool) -> None:
    machine = Machine(seed)
    trace = machine.trace(arrived=arrived)
    check_shape(trace)
    assert check_claims(machine, trace) > 200
    threads = thread_slices(trace)
    exact = threads.filter(~pl.col("inexact"), state="running")
    first = exact.group_by("tid").agg(first=pl.col("start_ns").min())
    later = threads.join(first, on="tid").filter(pl.col("start_ns") > pl.col("first"))
    assert later.filter(pl.col("inexact") | (pl.col("state") == "unknown")).is_empty()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("whole", [False, True], ids=["one CPU", "all CPUs"])
def test_reported_holes(seed: int, whole: bool) -> None:
    machine, chance = Machine(seed), random.Random(seed)
    trace = machine.trace()
    holes, gone = [], pl.lit(False)
    for _ in range(chance.randrange(1, 5)):
        start = chance.randrange(trace.start_ns, trace.end_ns)
        end = min(trace.end_ns, start + chance.randrange(1, 40_000))
        cpu = -1 if whole else chance.choice(trace.cpus)
        holes.append((start, end, cpu, -1, "lost"))
        gone |= pl.col("at_ns").is_between(start, end) & (pl.lit(whole) | (pl.col("cpu") == cpu))
    tables = {
        name: trace.table(name).filter(~gone)
        for name in ("switches", "wakeups", "migrations", "interrupts", "syscalls", "tasks")
    }
    lossy = changed(trace, **tables, holes=pl.DataFrame(holes, schema=TABLES["holes"], orient="row").sort("start_ns"))
    check_shape(lossy)
    assert check_claims(machine, lossy) > 50
    unknown = thread_slices(lossy).filter(state="unknown")
    assert unknown.height > 0
    interrupt_slices(lossy)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arrived", [False, True])
def test_switches_not_recorded(seed: int, arrived: bool) -> None:
    """Single switches are missing without a mark: neither the first nor the last of a CPU, nor two in a row."""
    machine, chance = Machine(seed), random.Random(seed)
    trace = machine.trace(arrived=arrived)
    kept = trace.table("switches").with_row_index("row")
    drop = []
    for _, rows in kept.group_by("cpu"):
        order = rows["row"].to_list()
        drop += [order[i] for i in range(2, len(order) - 1, 3) if chance.random() < 0.5]
    lossy = changed(trace, switches=kept.filter(~pl.col("row").is_in(drop)).drop("row"))
    check_shape(lossy)
    assert check_claims(machine, lossy) > 100
    assert cpu_slices(lossy)["inexact"].sum() >= len(drop)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gone", ["a wake-up", "half of one", "waking", "wakeup", "waking wakeup new"])
def test_wakeups_not_recorded(seed: int, gone: str) -> None:
    """Some whole wake-ups, at most half of one of each thread, or all of a kind (`gone` names the kinds)."""
    machine, chance = Machine(seed), random.Random(seed)
    trace = machine.trace()
    wakeups = trace.table("wakeups").with_row_index("row").sort("tid", "row")
    drop: list[int] = []
    for _, rows in wakeups.group_by("tid"):
        order = rows["row"].to_list()
        if gone == "half of one":
            drop.append(chance.choice(order))
        elif gone == "a wake-up":
            pairs = [i for i, kind in enumerate(rows["kind"]) if kind == "waking" and i + 1 < len(order)]
            drop += [order[i + k] for i in pairs if chance.random() < 0.3 for k in (0, 1)]
        else:
            drop += [row for row, kind in zip(order, rows["kind"], strict=True) if kind in gone.split()]
    lossy = changed(trace, wakeups=wakeups.filter(~pl.col("row").is_in(drop)).sort("row").drop("row"))
    check_shape(lossy)
    if gone != "waking":  # then it begins at wakeup by definition
        # nothing can show that the very last wake-up of a thread is missing, unless all are
        lost_last = None if "new" in gone else pl.col("open_end")
        assert check_claims(machine, lossy, lost_last) > 50


@pytest.mark.parametrize("seed", SEEDS)
def test_some_cpus_traced(seed: int) -> None:
    machine = Machine(seed)
    trace = machine.trace()
    own = pl.col("cpu") < 2
    tables = {name: trace.table(name).filter(own) for name in TABLES if "cpu" in TABLES[name]}
    part = SchedTrace({**trace.tables, **tables}, trace.start_ns, trace.end_ns, (0, 1))
    check_shape(part)
    abroad = {tid for tid, changes in machine.truth.items() if any(c == 2 and s == "running" for _, s, c in changes)}
    check_claims(machine, part, pl.col("tid").is_in(abroad))


@pytest.mark.parametrize("seed", SEEDS)
def test_coarse_and_skewed_clocks(seed: int) -> None:
    """Instants rounded to microseconds, and CPUs whose clocks differ: the shape holds, whatever the claims."""
    trace = Machine(seed).trace()
    for instant in (pl.col("at_ns") // 1_000 * 1_000, pl.col("at_ns") + pl.col("cpu") * 1_500):
        tables = {
            name: frame.with_columns(at_ns=instant.clip(trace.start_ns, trace.end_ns)).sort(
                "at_ns", maintain_order=True
            )
            for name, frame in trace.tables.items()
            if {"at_ns", "cpu"} <= set(frame.columns)
        }
        recorded = changed(trace, **tables)
        threads = thread_slices(recorded)
        for _, slices in threads.group_by("tid"):
            assert slices["end_ns"][:-1].to_list() == slices["start_ns"][1:].to_list()
            assert slices["end_ns"][-1] == trace.end_ns
        cpu_slices(recorded)
        interrupt_slices(recorded)
