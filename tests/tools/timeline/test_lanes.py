"""Lanes of traces written down by hand: one rule each."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from machine import Row, trace_of

from whystall.tools.timeline.lanes.build import (
    CPU_SLICES,
    INTERRUPT_SLICES,
    THREAD_SLICES,
    interrupt_slices,
    thread_slices,
)
from whystall.tools.timeline.lanes.build import cpu_slices as _cpu_slices
from whystall.tools.timeline.sched import SchedTrace

T, U, IDLE = 7, 8, 0


def switch(at: int, prev: int, following: int, state: str = "S", *, cpu: int = 0, arrived: int = 0) -> Row:
    return (at, cpu, prev, 120, state, state[0] == "R", arrived, following, 120)


def wake(
    at: int, tid: int = T, *, kind: str = "waking", by: int = 99, cpu: int = 3, context: str = "task", target: int = 0
) -> Row:
    return (at, cpu, kind, by, context, tid, 120, target)


def woken(at: int, tid: int = T, **more: Any) -> list[Row]:
    return [wake(at, tid, **more), wake(at + 5, tid, kind="wakeup", **more)]


def of(trace: SchedTrace, tid: int = T, *columns: str) -> list[Row]:
    """(start, end, state) of a thread, and what else is asked."""
    return thread_slices(trace).filter(tid=tid).select("start_ns", "end_ns", "state", *columns).rows()


def cpu_slices(trace: SchedTrace) -> list[Row]:
    return _cpu_slices(trace).select("start_ns", "end_ns", "tid", "inexact").rows()


def test_a_wait_a_queue_a_run() -> None:
    trace = trace_of(
        switches=[switch(100, T, IDLE), switch(330, IDLE, T, "R"), switch(400, T, IDLE, "D")],
        wakeups=woken(300),
        cpus=(0, 1),
    )
    assert of(trace, T, "cpu", "waker_tid", "woken_ns", "inexact") == [
        (0, 100, "running", 0, -1, 0, False),
        (100, 300, "sleeping", 0, 99, 300, False),
        (300, 330, "runnable", 0, 99, 300, False),
        (330, 400, "running", 0, -1, 0, False),
        (400, 1000, "uninterruptible", 0, -1, 0, False),
    ]
    ends = thread_slices(trace).filter(tid=T).select("open_start", "open_end").rows()
    assert (ends[0], ends[1], ends[-1]) == ((True, False), (False, False), (False, True))


@pytest.mark.parametrize(
    ("state", "name"),
    [("S", "sleeping"), ("D", "uninterruptible"), ("I", "idle"), ("T", "stopped"), ("t", "stopped"), ("P", "stopped"),
     ("R", "runnable"), ("R+", "runnable"), ("?", "unknown"), ("D|K", "uninterruptible")],
)  # fmt: skip
def test_states_are_distinguished(state: str, name: str) -> None:
    trace = trace_of(switches=[switch(100, T, U, state)], wakeups=woken(900, U))
    assert of(trace)[-1] == (100, 1000, name)


def test_the_preemptor_is_who_came_next() -> None:
    trace = trace_of(switches=[switch(100, T, U, "R+"), switch(200, U, T), switch(300, T, IDLE, "R+")])
    rows = thread_slices(trace).filter(tid=T, state="runnable").select("preempted", "preemptor_tid").rows()
    assert rows == [(True, U), (True, IDLE)]  # the second: no other thread ran, so it was throttled


def test_a_yield_is_no_preemption() -> None:
    call = (95, 0, T, True, -1, "sched_yield", -1, -1, -1, -1)
    done = (205, 0, T, False, -1, "sched_yield", -1, -1, -1, 0)
    switches = [switch(100, T, U, "R"), switch(200, U, T), switch(300, T, U, "R")]
    rows = thread_slices(trace_of(switches=switches, syscalls=[call, done])).filter(tid=T, state="runnable")
    assert rows.select("preempted", "preemptor_tid").rows() == [(False, -1), (True, U)]


def test_a_lone_wakeup_of_the_idle_thread_names_no_waker() -> None:
    queued = wake(300, kind="wakeup", by=IDLE, cpu=0)
    trace = trace_of(switches=[switch(100, T, IDLE), switch(330, IDLE, T, "R")], wakeups=[queued])
    assert of(trace, T, "waker_tid", "inexact")[1:3] == [
        (100, 300, "sleeping", -1, False),
        (300, 330, "runnable", -1, False),
    ]


def test_an_interrupt_is_not_the_thread_it_interrupts() -> None:
    trace = trace_of(
        switches=[switch(100, T, IDLE), switch(330, IDLE, T, "R")], wakeups=woken(300, by=U, context="hardirq")
    )
    assert of(trace, T, "waker_tid", "waker_context")[1] == (100, 300, "sleeping", -1, "hardirq")


def test_a_wakeup_of_who_runs_is_ignored() -> None:
    trace = trace_of(
        switches=[switch(100, IDLE, T, "R"), switch(500, T, IDLE)], wakeups=[*woken(90), *woken(200, by=T)]
    )
    assert of(trace)[:3] == [(0, 90, "unknown"), (90, 100, "runnable"), (100, 500, "running")]


def test_woken_on_the_way_into_sleep() -> None:
    """The waker is quicker than the switch: the thread is ready from the moment it leaves."""
    trace = trace_of(
        switches=[switch(100, IDLE, T, "R"), switch(200, T, IDLE), switch(240, IDLE, T, "R")],
        wakeups=[*woken(90), wake(199), wake(205, kind="wakeup")],
    )
    assert of(trace, T, "woken_ns", "inexact")[3:5] == [
        (200, 240, "runnable", 200, False),
        (240, 1000, "running", 0, False),
    ]


def test_no_waker_was_recorded() -> None:
    trace = trace_of(switches=[switch(100, T, IDLE), switch(330, IDLE, T, "R")], wakeups=woken(10, U))
    assert of(trace, T, "woken_ns", "inexact")[1] == (100, 330, "sleeping", 0, True)


def test_woken_twice_means_it_ran_without_an_event() -> None:
    trace = trace_of(switches=[switch(100, T, IDLE), switch(800, IDLE, T, "R")], wakeups=[*woken(200), *woken(700)])
    assert of(trace, T, "inexact")[1:4] == [
        (100, 200, "sleeping", False), (200, 700, "unknown", False), (700, 800, "runnable", True),
    ]  # fmt: skip


def test_migrated_while_runnable() -> None:
    trace = trace_of(
        switches=[switch(100, T, U, "R+"), switch(150, IDLE, T, "R", cpu=1)],
        migrations=[(140, 1, T, 0, 1)],
        cpus=(0, 1),
    )
    assert of(trace, T, "cpu", "from_cpu") == [
        (0, 100, "running", 0, -1), (100, 150, "runnable", 0, -1), (150, 1000, "running", 1, 0),
    ]  # fmt: skip


def test_born_buried_and_born_again() -> None:
    trace = trace_of(
        switches=[switch(120, U, T, "R+"), switch(200, T, U, "X"), switch(520, U, T, "R+")],
        wakeups=[wake(110, kind="new", by=U, cpu=0), wake(510, kind="new", by=U, cpu=0)],
        tasks=[(105, 0, "fork", U, T, ""), (190, 0, "exit", T, -1, ""), (505, 0, "fork", U, T, "")],
    )
    assert of(trace, T, "inexact", "from_cpu") == [
        (0, 110, "dead", False, -1), (110, 120, "runnable", False, -1), (120, 200, "running", False, -1),
        (200, 510, "dead", False, -1), (510, 520, "runnable", False, -1), (520, 1000, "running", False, -1),
    ]  # fmt: skip


def test_a_broken_chain_is_bounded_by_evidence() -> None:
    """U came untold: not before T's last event (200), at its own first at the latest; the earliest is taken."""
    calls = [(at, 0, tid, True, -1, "read", -1, -1, -1, -1) for at, tid in ((150, T), (200, T), (300, U))]
    trace = trace_of(switches=[switch(100, IDLE, T, "R"), switch(400, U, IDLE)], syscalls=calls)
    assert cpu_slices(trace) == [
        (0, 100, IDLE, False),
        (100, 200, T, True),
        (200, 400, U, True),
        (400, 1000, IDLE, False),
    ]
    assert of(trace, T) == [(0, 100, "unknown"), (100, 200, "running"), (200, 1000, "unknown")]


def test_who_came_without_an_event_came_after_it_was_woken() -> None:
    trace = trace_of(switches=[switch(100, IDLE, T, "R"), switch(400, U, IDLE)], wakeups=woken(350, U))
    assert cpu_slices(trace)[1:3] == [(100, 350, T, True), (350, 400, U, True)]


def test_who_came_without_an_event_came_after_it_ran_elsewhere() -> None:
    trace = trace_of(
        switches=[switch(100, IDLE, T, "R"), switch(300, U, IDLE, "R+", cpu=1), switch(400, U, IDLE)], cpus=(0, 1)
    )
    assert cpu_slices(trace)[1:3] == [(100, 300, T, True), (300, 400, U, True)]


def test_the_scheduler_accounts_who_came_without_an_event() -> None:
    trace = trace_of(switches=[switch(100, IDLE, T, "R"), switch(400, U, IDLE, arrived=390)])
    assert cpu_slices(trace)[1:3] == [(100, 390, T, True), (390, 400, U, False)]


def test_the_scheduler_accounts_an_absence_nothing_else_shows() -> None:
    far = 1_000_000
    trace = trace_of(switches=[switch(100, IDLE, T, "R"), switch(4 * far, T, IDLE, arrived=3 * far)], end=5 * far)
    assert cpu_slices(trace)[1:4] == [(100, 100, T, True), (100, 3 * far, -1, True), (3 * far, 4 * far, T, False)]


def test_a_thread_shows_itself_in_anothers_time() -> None:
    calls = [(at, 0, tid, True, -1, "read", -1, -1, -1, -1) for at, tid in ((200, T), (300, U), (350, T))]
    trace = trace_of(switches=[switch(100, IDLE, T, "R"), switch(400, T, IDLE)], syscalls=calls)
    assert cpu_slices(trace)[1:4] == [(100, 200, T, True), (200, 300, U, True), (300, 400, T, True)]


def test_no_thread_is_on_two_cpus() -> None:
    """What is known of T on CPU 1 ends what was supposed of it on CPU 0."""
    call = (300, 0, T, True, -1, "read", -1, -1, -1, -1)
    trace = trace_of(
        switches=[switch(100, IDLE, T, "R"), switch(320, IDLE, T, "R", cpu=1), switch(900, U, IDLE)],
        syscalls=[call], wakeups=woken(600, U), cpus=(0, 1),
    )  # fmt: skip
    assert [row[:3] for row in of(trace)] == [
        (0, 100, "unknown"), (100, 320, "running"), (320, 1000, "running"),
    ]  # fmt: skip
    assert cpu_slices(trace)[1:4] == [(100, 320, T, True), (320, 600, -1, True), (600, 900, U, True)]


def test_within_a_reported_hole_nothing_is_known_but_of_other_cpus() -> None:
    trace = trace_of(
        switches=[switch(100, IDLE, T, "R"), switch(110, IDLE, U, "R", cpu=1), switch(150, 9, 10, "S", cpu=2)],
        wakeups=[wake(50), wake(60, U), wake(800, 9, target=2)],
        holes=[(200, 300, 0, 5, "lost")],
        cpus=(0, 1, 2),
    )
    assert cpu_slices(trace)[1:4] == [(100, 200, T, True), (200, 1000, -1, True), (0, 110, IDLE, False)]
    assert of(trace, U)[-1] == (110, 1000, "running")
    assert of(trace, 9, "inexact")[1:] == [
        (150, 200, "sleeping", False), (200, 300, "unknown", False), (300, 800, "sleeping", True),
        (800, 1000, "runnable", False),
    ]  # fmt: skip


def test_a_thread_accounted_through_a_hole_was_there() -> None:
    trace = trace_of(
        switches=[switch(100, IDLE, T, "R"), switch(400, T, IDLE, arrived=99)], holes=[(200, 300, 0, -1, "lost")]
    )
    assert cpu_slices(trace)[1] == (100, 400, T, False)


def test_a_cpu_without_a_switch() -> None:
    """A thread with an event there had the CPU all the time; without an event it is unknown."""
    call = (300, 0, T, True, -1, "read", -1, -1, -1, -1)
    trace = trace_of(syscalls=[call], cpus=(0, 1))
    assert cpu_slices(trace) == [(0, 1000, T, False), (0, 1000, -1, True)]


def test_a_kernel_that_hides_a_thread_does_not_make_it_wait() -> None:
    """T's leaving was not recorded once: without an event after its wake-up it may have run all the same."""
    trace = trace_of(
        switches=[switch(100, IDLE, T, "R"), switch(200, IDLE, U, "R"), switch(210, U, IDLE)], wakeups=woken(500)
    )
    assert of(trace, T, "open_end")[-1] == (500, 1000, "unknown", True)


def test_a_trace_without_threads_has_lanes_without_slices() -> None:
    trace = trace_of(cpus=())
    assert _cpu_slices(trace).schema == CPU_SLICES
    assert thread_slices(trace).schema == THREAD_SLICES
    assert interrupt_slices(trace).schema == INTERRUPT_SLICES
    assert _cpu_slices(trace).is_empty()
    assert thread_slices(trace).is_empty()
    assert interrupt_slices(trace).is_empty()


# --- interrupts -------------------------------------------------------------------------------------------


def irq(at: int, entry: bool, vector: int = 30, *, soft: bool = False, tid: int = T) -> Row:
    return (at, 0, tid, soft, entry, vector, "NET_RX" if soft else "eth0")


def interrupts(trace: SchedTrace) -> list[Row]:
    return (
        interrupt_slices(trace)
        .select("start_ns", "end_ns", "soft", "depth", "self_ns", "open_start", "open_end")
        .rows()
    )


def test_interrupts_nest() -> None:
    trace = trace_of(
        interrupts=[
            irq(100, True, 3, soft=True), irq(110, True), irq(115, True, 31), irq(117, False, 31), irq(120, False),
            irq(200, False, 3, soft=True), irq(210, True), irq(230, False),
        ]
    )  # fmt: skip
    assert interrupts(trace) == [
        (100, 200, True, 0, 90, False, False),
        (110, 120, False, 1, 8, False, False),
        (115, 117, False, 2, 2, False, False),
        (210, 230, False, 0, 20, False, False),
    ]


def test_interrupts_under_way_at_both_ends() -> None:
    trace = trace_of(
        interrupts=[irq(40, False), irq(50, False, 3, soft=True), irq(900, True, 3, soft=True), irq(950, True)]
    )
    assert interrupts(trace) == [
        (0, 50, True, 0, 10, True, False),
        (0, 40, False, 1, 40, True, False),
        (900, 1000, True, 0, 50, False, True),
        (950, 1000, False, 1, 50, False, True),
    ]


def test_of_a_half_lost_only_the_certain_part_is_kept() -> None:
    hole = [(200, 300, 0, 3, "lost")]
    lost_between = trace_of(interrupts=[irq(150, True), irq(350, False)], holes=hole)
    assert [row[:2] for row in interrupts(lost_between)] == [(150, 200), (300, 350)]
    without_a_word = trace_of(interrupts=[irq(150, True), irq(350, True), irq(360, False)])
    assert [row[:2] for row in interrupts(without_a_word)] == [(150, 150), (350, 360)]
    across_a_switch = trace_of(interrupts=[irq(150, True), irq(350, False)], switches=[switch(200, T, U)])
    assert [row[:2] for row in interrupts(across_a_switch)] == [(150, 150), (350, 350)]


def test_time_in_interrupts_is_counted_once() -> None:
    trace = trace_of(
        interrupts=[irq(100, True, 3, soft=True), irq(110, True), irq(120, False), irq(200, False, 3, soft=True)]
    )
    slices = interrupt_slices(trace)
    assert slices["self_ns"].sum() == 100
    assert slices.filter(pl.col("depth") == 0)["self_ns"].to_list() == [90]
