"""What samples prove, and above all what they do not."""

from __future__ import annotations

from whystall.tools.collect.proc_calls import Sample, Span, Thread
from whystall.tools.collect.proc_parse import InSyscall

MS = 1_000_000


def sample(
    at_ms: int, state: str = "D", name: str = "fsync", args: tuple[int, ...] = (3, 0, 0, 0, 0, 0), **more: int
) -> Sample:
    """A sample; R has no call."""
    call = InSyscall(74, args) if name else None
    numbers = {"user_ns": 0, "run_ns": 0, "wait_ns": 0, "slices": 1, "finished": 0, **more}
    return Sample(at_ms * MS, state, call, name, **numbers)


def run(*samples: Sample, alive: bool = False) -> tuple[list[Span], list[Span]]:
    """Calls and waits of a thread that was sampled so."""
    thread = Thread(1, 1, "x", fresh=True)
    ended = [*[thread.feed(s) for s in samples], thread.end(alive)]
    return [e.call for e in ended if e.call], [e.wait for e in ended if e.wait]


def test_a_thread_that_never_ran_is_in_one_call_and_one_wait() -> None:
    calls, waits = run(*[sample(t, "S", "read") for t in range(0, 100, 20)], alive=True)
    assert [(c.wall_ns, c.open, c.seeded, c.samples) for c in calls] == [(80 * MS, True, True, 5)]
    assert [(w.wall_ns, w.open, w.seeded) for w in waits] == [(80 * MS, True, True)]


def test_a_long_sync_that_waits_many_times_is_one_call_and_many_waits() -> None:
    calls, waits = run(*[sample(20 * n, slices=n) for n in range(5)])
    assert [c.wall_ns for c in calls] == [80 * MS]
    assert [w.wall_ns for w in waits] == [0] * 5


def test_a_loop_of_write_and_sync_is_not_one_long_sync() -> None:
    calls, _ = run(*[sample(20 * n, slices=n, finished=n) for n in range(5)])
    assert [c.wall_ns for c in calls] == [0] * 5


def test_computing_between_two_syncs_parts_them() -> None:
    calls, _ = run(sample(0, slices=1), sample(20, slices=2), sample(40, slices=3, user_ns=50 * MS))
    assert [c.wall_ns for c in calls] == [20 * MS, 0]


def test_the_same_futex_waited_for_again_is_another_call() -> None:
    calls, waits = run(*[sample(20 * n, "S", "futex", slices=n) for n in range(3)])
    assert [c.wall_ns for c in calls] == [0, 0, 0]
    assert [w.wall_ns for w in waits] == [0, 0, 0]


def test_without_schedstat_and_io_counts_nothing_is_joined() -> None:
    calls, waits = run(*[sample(20 * n, slices=-1, finished=-1) for n in range(3)])
    assert max(c.wall_ns for c in calls) == 0
    assert max(w.wall_ns for w in waits) == 0


def test_other_arguments_are_another_call() -> None:
    calls, _ = run(sample(0), sample(20), sample(40, args=(4, 0, 0, 0, 0, 0), slices=2))
    assert [(c.wall_ns, c.first.call.args[0] if c.first.call else -1) for c in calls] == [(20 * MS, 3), (0, 4)]


def test_a_glimpse_of_running_inside_a_call_does_not_end_it() -> None:
    calls, _ = run(sample(0, slices=1), sample(20, "R", "", slices=2), sample(40, slices=2))
    assert [c.wall_ns for c in calls] == [40 * MS]


def test_the_split_adds_up_to_the_wall_time() -> None:
    (call,), _ = run(
        sample(0, "D", run_ns=0, wait_ns=0, slices=1),
        sample(20, "D", run_ns=2 * MS, wait_ns=1 * MS, slices=2),
        sample(40, "S", run_ns=5 * MS, wait_ns=3 * MS, slices=3),
    )
    oncpu, blocked, sleeping, runnable = call.split()
    assert (oncpu, runnable) == (5 * MS, 3 * MS)
    assert oncpu + blocked + sleeping + runnable == call.wall_ns
    assert blocked == (40 - 8) * MS * 2 // 3


def test_a_call_not_seen_in_the_last_sample_is_not_in_flight() -> None:
    (call,), _ = run(sample(0), sample(20), sample(40, "R", ""), alive=True)
    assert (call.open, call.wall_ns) == (False, 20 * MS)


def test_a_thread_that_began_during_the_window_is_not_seeded() -> None:
    thread = Thread(1, 1, "x")
    thread.feed(sample(0))
    call, wait, _ = thread.end(alive=False)
    assert call is not None
    assert wait is not None
    assert (call.seeded, wait.seeded, call.open) == (False, False, False)


def test_a_wait_stands_for_the_time_until_the_next_sample() -> None:
    _, waits = run(sample(0), sample(20), sample(45, "R", "", slices=2), sample(60, "S", slices=3))
    assert [(w.samples, w.wall_ns, w.held_ns) for w in waits] == [(2, 20 * MS, 45 * MS), (1, 0, 0)]


def runs(*samples: Sample) -> list[tuple[int, int]]:
    """Time held and time on a CPU, in ms, of the runnable samples."""
    thread = Thread(1, 1, "x", fresh=True)
    ended = [thread.feed(s).run for s in samples]
    return [(one.held_ns // MS, one.oncpu_ns // MS) for one in ended if one]


def test_the_cpu_time_of_a_runnable_thread_is_from_schedstat() -> None:
    computing = [sample(20 * n, "R", "", run_ns=15 * n * MS, wait_ns=5 * n * MS) for n in range(3)]
    assert runs(*computing) == [(20, 15), (20, 15)]
    assert runs(sample(0, "R", ""), sample(20, "R", "")) == [(20, 0)]  # it got no CPU
    assert runs(sample(0, "R", ""), sample(20, "S", run_ns=3 * MS)) == [(20, 20)]
    assert runs(sample(0, "R", "", run_ns=-1), sample(20, "R", "", run_ns=-1)) == [(20, 20)]  # no schedstat
