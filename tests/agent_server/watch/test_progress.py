"""The rhythm of a job: healthy sequences with phases give no deviation, a stall gives exactly one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from whystall.agent_server.watch.pause_account import Wait
from whystall.agent_server.watch.process_progress import ProcessProgress
from whystall.agent_server.watch.progress import Stall

S = 1_000_000_000
MAIN, HELPER = 100, 101
LOADER, BARRIER, LOG, CHECKPOINT, EVALUATION, LOCK, RETRY = 11, 12, 13, 14, 15, 16, 17
LEARN_NS = 15 * S


class Job:
    """Generates the waits of a training loop. `now`: simulated time, ns."""

    def __init__(self, seed: int, step_s: float = 0.3, jitter: float = 0.1) -> None:
        self.chance, self.step_s, self.jitter, self.now = random.Random(seed), step_s, jitter, 1000 * S
        self.waits: list[Wait] = []
        self.steps = 0

    def wait(self, place: int, seconds: float, runnable: float = 0.0, tid: int = MAIN) -> None:
        start, self.now = self.now, self.now + int(seconds * S)
        self.waits.append(Wait(tid, place, start, self.now, int(runnable * S)))

    def sleep(self, place: int, seconds: float) -> None:
        self.wait(place, seconds)
        self.waits[-1] = self.waits[-1]._replace(timed=True)

    def preempted(self, seconds: float) -> None:
        start, self.now = self.now, self.now + int(seconds * S)
        self.waits.append(Wait(MAIN, 0, start, self.now, int(seconds * S), preempted=True))

    def run(self, seconds: float) -> None:
        self.now += int(seconds * S)

    def step(self, stretch: float = 1.0) -> None:
        factor = stretch * max(0.3, self.chance.gauss(1, self.jitter))
        self.wait(LOADER, self.step_s * 0.2 * factor)
        for _ in range(3):
            self.run(self.step_s * 0.2 * factor)
            self.wait(BARRIER, self.step_s * 0.05 * factor)
        if self.steps % 10 == 0:
            self.wait(LOG, 0.002)
        self.steps += 1

    def checkpoint(self, seconds: float = 3.0) -> None:
        self.wait(CHECKPOINT, seconds * self.chance.uniform(0.9, 1.1))

    def evaluation(self, batches: int = 60) -> None:
        for _ in range(batches):
            self.run(0.03)
            self.wait(EVALUATION, 0.02 * self.chance.uniform(0.8, 1.2))


def watched(job: Job, progress: ProcessProgress, every_s: float = 1.0, calls: Calls | None = None) -> list[Stall]:
    """Return what a watcher that polls every `every_s` finds in the job's waits, up to its `now`."""
    found: list[Stall] = []
    if not job.waits:
        return found
    at, rest = job.waits[0].start_ns, iter(job.waits)
    pending = next(rest, None)
    while at < job.now:
        at += int(every_s * S)
        batch = []
        while pending is not None and pending.end_ns <= at:
            batch.append(pending)
            pending = next(rest, None)
        now = min(at, job.now)
        found += progress.feed(batch, now, partial(counted, calls, now) if calls is not None else None)
    job.waits = [] if pending is None else [pending, *rest]
    return found


def counted(calls: Calls, now: int, tid: int) -> int:
    """Return the calls of the main thread."""
    assert tid == MAIN
    return calls.at(now)


def new() -> ProcessProgress:
    return ProcessProgress(MAIN, LEARN_NS)


@pytest.mark.parametrize("step_s", [0.02, 0.3, 2.0])
@pytest.mark.parametrize("jitter", [0.02, 0.3])
def test_a_healthy_loop_gives_no_deviation(step_s: float, jitter: float) -> None:
    job = Job(1, step_s, jitter)
    for _ in range(int(600 / step_s) if step_s > 0.1 else 3000):
        job.step()
    assert watched(job, new()) == []


@pytest.mark.parametrize("step_s", [0.02, 0.3, 1.0])
def test_a_stall_is_one_gap_with_its_bounds(step_s: float) -> None:
    job, progress = Job(2, step_s), new()
    for _ in range(int(40 / step_s)):
        job.step()
    before = job.now
    job.wait(LOCK, 2.2)
    after = job.now
    for _ in range(int(20 / step_s)):
        job.step()
    found = [one for one in watched(job, progress) if not one.ongoing]
    assert len(found) == 1
    gap = found[0]
    assert gap.kind == "gap"
    assert gap.place == LOCK
    assert before - 2 * step_s * S < gap.start_ns <= before
    assert gap.end_ns is not None
    assert after <= gap.end_ns < after + 2 * step_s * S
    assert not gap.phase


def test_a_gap_is_reported_while_it_lasts_and_once() -> None:
    job, progress = Job(3), new()
    for _ in range(100):
        job.step()
    job.wait(LOCK, 30)
    before_end = [one for one in watched(job, progress) if one.ongoing]
    assert len(before_end) == 1
    assert before_end[0].kind == "gap"


def test_a_running_pause_has_the_place_of_running() -> None:
    job, progress = Job(4), new()
    for _ in range(100):
        job.step()
    job.run(2.5)
    for _ in range(30):
        job.step()
    (gap,) = (one for one in watched(job, progress) if not one.ongoing)
    assert gap.place == 0
    assert gap.waited_ns < S


def test_a_slow_step_in_which_other_places_are_visited_is_late() -> None:
    job, progress = Job(5), new()
    for _ in range(200):
        job.step()
    job.wait(LOADER, 0.05)
    for _ in range(25):  # throttled: the thread gets on a little in each period
        job.run(0.01)
        job.wait(BARRIER, 0.09, 0.09)
    for _ in range(50):
        job.step()
    (late,) = watched(job, progress)
    assert late.kind == "late"
    assert late.runnable_ns > 1.5 * S


def test_a_place_whose_waits_become_too_short_to_be_recorded_is_not_late() -> None:
    job, progress = Job(20), new()

    def stretch(count: int, logged: bool) -> None:
        for at in range(count):
            job.run(0.2 if at % 4 == 0 else 0.01)  # no step of its own
            job.wait(LOADER, 0.06)
            if at % 8 == 0:
                job.wait(LOG, 0.003 if logged else 0.0)
                job.waits = [one for one in job.waits if one.end_ns > one.start_ns]

    stretch(600, logged=True)
    stretch(80, logged=False)
    stretch(100, logged=True)
    assert watched(job, progress) == []
    assert progress.thread is not None
    assert progress.thread.step_ns > S // 2, "the log is taken for the step"


def test_regular_checkpoints_are_learnt() -> None:
    job, progress = Job(6), new()
    for step in range(1200):
        job.step()
        if step % 100 == 99:
            job.checkpoint()
    found = [one for one in watched(job, progress) if not one.ongoing]
    assert len(found) <= 2  # until the third
    assert all(one.place == CHECKPOINT for one in found)


def test_a_stall_elsewhere_is_found_although_checkpoints_are_as_long() -> None:
    job, progress = Job(7), new()
    for step in range(630):
        job.step()
        if step % 100 == 99:
            job.checkpoint()
    watched(job, progress)
    job.wait(LOCK, 2.5)
    for _ in range(40):
        job.step()
    (gap,) = (one for one in watched(job, progress) if not one.ongoing)
    assert gap.place == LOCK


def test_an_evaluation_is_a_phase() -> None:
    job, progress = Job(8), new()
    for step in range(1200):
        job.step()
        if step % 200 == 199:
            job.evaluation()
    found = [one for one in watched(job, progress) if not one.ongoing]
    assert all(one.phase or one.place in (0, EVALUATION) for one in found)
    assert len(found) <= 3


def test_a_slowdown_that_stays_is_reported_once() -> None:
    job, progress = Job(9), new()
    for _ in range(600):
        job.step()
    for _ in range(800):
        job.step(1.6)
    (slow,) = watched(job, progress)
    assert slow.kind == "slowdown"
    assert 1.4 < slow.now_ns / slow.usual_ns < 1.8


def test_a_drift_is_reported() -> None:
    job, progress = Job(10, 1.0, 0.05), new()
    for _ in range(100):
        job.step()
    for step in range(1600):
        job.step(1 + step / 2600)
    found = watched(job, progress)
    assert found
    assert {one.kind for one in found} <= {"drift", "slowdown"}


def test_time_that_was_not_observed_is_no_gap() -> None:
    job, progress = Job(11), new()
    for _ in range(100):
        job.step()
    assert watched(job, progress) == []
    job.now += 300 * S
    progress.unobserved(job.now)
    for _ in range(100):
        job.step()
    assert watched(job, progress) == []


def test_a_thread_that_mostly_runs_is_reported_for_one_long_wait() -> None:
    job, progress = Job(12), new()
    for number in range(60):
        job.run(1.0)
        job.wait(1000 + number, 0.004, 0.004)  # preempted at any place
    job.wait(LOCK, 2.0)
    job.run(5)
    job.wait(2000, 0.004)
    (found,) = watched(job, progress)
    assert found.kind == "wait"
    assert found.place == LOCK


def test_other_threads_do_not_hide_a_gap_of_the_main_thread() -> None:
    job, progress = Job(13), new()
    for _ in range(200):
        job.step()
        job.waits.append(Wait(HELPER, 77, job.now - S // 10, job.now))
    start = job.now
    job.run(2.5)
    for part in range(25):
        at = start + part * S // 10
        job.waits.append(Wait(HELPER, 77, at, at + S // 10))
    for _ in range(30):
        job.step()
    gaps = [one for one in watched(job, progress) if not one.ongoing]
    assert [one.tid for one in gaps] == [MAIN]


def busy(job: Job, seconds: float) -> None:
    """Go on as before, but wait nowhere: its loader is ahead of it."""
    for _ in range(int(seconds / 0.05)):
        job.run(0.03)
        job.preempted(0.02)


class Calls:
    """Counts calls while a job makes progress: `stuck` are the times in which it makes none."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self.stuck: list[tuple[int, int]] = []

    def at(self, now: int) -> int:
        """Return the count at `now`: 20 in a second."""
        lost = sum(max(0, min(now, end) - start) for start, end in self.stuck if start < now)
        return 20 * (now - 1000 * S - lost) // S


@pytest.mark.parametrize("offset", [0.0, 3.0, 7.5, 9.5])
def test_a_thread_that_polls_for_the_interpreter_lock_is_stalled(offset: float) -> None:
    job, progress = Job(14, 0.12), new()
    for _ in range(int((40 + offset) / 0.12)):
        job.step()
    start = job.now
    while job.now < start + 2.2 * S:  # a timed wait each 5 ms, for a CPU in between
        job.wait(LOCK, 0.0052)
        job.wait(LOCK, 0.004, 0.004)
    end = job.now
    for _ in range(300):
        job.step()
    (gap,) = (one for one in watched(job, progress) if not one.ongoing)
    assert (gap.kind, gap.place, gap.phase) == ("gap", LOCK, False)
    assert abs(gap.start_ns - start) < S // 2
    assert gap.end_ns is not None
    assert abs(gap.end_ns - end) < S // 2
    assert gap.unusual_ns > S
    assert gap.starved < 2, "what it lacks is no CPU"


def test_a_job_that_need_not_wait_on_a_busy_host_is_no_stall_and_its_stall_is_found() -> None:
    job, progress = Job(15), new()
    calls = Calls(job)
    for _ in range(100):
        job.step()
    busy(job, 60)
    assert watched(job, progress, calls=calls) == []
    start = job.now
    job.wait(LOCK, 4)
    calls.stuck.append((start, job.now))
    busy(job, 20)
    found = watched(job, progress, calls=calls)
    (gap,) = (one for one in found if not one.ongoing)
    assert gap.place == LOCK
    assert abs(gap.start_ns - start) <= 1.5 * S


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("length", [1.9, 2.3])
def test_a_stall_after_which_a_job_catches_up_without_waiting_is_found(offset: float, length: float) -> None:
    job, progress = Job(18, 0.12), new()
    calls = Calls(job)
    for _ in range(int((60 + offset) / 0.12)):
        job.step()
    start = job.now
    job.wait(LOCK, length)
    end = job.now
    calls.stuck.append((start, end))
    busy(job, 1.5)  # its loader has filled the queue meanwhile
    for _ in range(100):
        job.step()
    (gap,) = (one for one in watched(job, progress, calls=calls) if not one.ongoing)
    assert (gap.place, gap.phase) == (LOCK, False)
    assert abs(gap.start_ns - start) < S // 5
    assert gap.end_ns is not None
    assert abs(gap.end_ns - end) < S // 5


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.6, 0.9])
def test_a_throttled_thread_that_catches_up_without_waiting_is_found(offset: float) -> None:
    job, progress = Job(21, 0.12), new()
    calls = Calls(job)
    for _ in range(int((60 + offset) / 0.12)):
        job.step()
    start = job.now
    while job.now < start + 2.2 * S:
        job.run(0.002)
        job.preempted(0.098)
    end = job.now
    calls.stuck.append((start, end))
    busy(job, 1.5)
    for _ in range(100):
        job.step()
    (gap,) = (one for one in watched(job, progress, calls=calls) if not one.ongoing)
    assert gap.kind == "gap"
    assert gap.starved > 2
    assert gap.end_ns is not None
    assert abs(gap.end_ns - end) < S // 5


def test_a_stall_just_before_an_evaluation_is_no_phase_of_the_program() -> None:
    job, progress = Job(19, 0.12), new()
    for _ in range(3):
        for _ in range(150):
            job.step()
        job.evaluation(20)
    for _ in range(150):
        job.step()
    job.wait(LOCK, 2)
    job.evaluation(20)
    for _ in range(50):
        job.step()
    last = [one for one in watched(job, progress) if not one.ongoing][-1]
    assert (last.place, last.phase) == (LOCK, False)


def test_without_a_count_of_calls_a_job_that_need_not_wait_is_a_pause_in_which_it_ran() -> None:
    job, progress = Job(15), new()
    for _ in range(100):
        job.step()
    busy(job, 30)
    for _ in range(20):
        job.step()
    gaps = [one for one in watched(job, progress) if not one.ongoing]
    assert all(one.place == 0 or one.phase for one in gaps)


def test_a_stall_is_found_although_a_rarer_place_is_not_overdue() -> None:
    job, progress = Job(16, 0.3, 0.5), new()
    for step in range(400):
        job.step()
        if step % 5 == 0:
            job.wait(LOG, 0.3)
    job.wait(LOCK, 2.4)
    for _ in range(20):
        job.step()
    (gap,) = (one for one in watched(job, progress) if not one.ongoing)
    assert gap.place == LOCK


def test_a_job_whose_steps_become_longer_is_slower_but_not_stalled() -> None:
    job, progress = Job(17, 0.2), new()
    for _ in range(600):
        job.step()
    for _ in range(300):
        job.step(4.0)  # a larger batch
    assert {one.kind for one in watched(job, progress)} <= {"slowdown"}


def _phases(chance: random.Random) -> Iterator[Callable[[Job], None]]:
    """Yield what a healthy job does, forever: steps, with checkpoints and evaluations at fixed distances."""
    every = chance.choice([50, 100, 150])
    while True:
        for _ in range(every):
            yield Job.step
        if chance.random() < 2:
            yield Job.checkpoint
            yield Job.evaluation


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("step_s", "jitter"), [(0.05, 0.0), (0.05, 0.3), (0.2, 0.1), (1.0, 0.2)])
def test_healthy_phases_are_learnt_whatever_their_lengths(seed: int, step_s: float, jitter: float) -> None:
    job, progress = Job(seed, step_s, jitter), new()
    todo = _phases(job.chance)
    for _ in range(1500):
        next(todo)(job)
    watched(job, progress)
    for _ in range(600):
        next(todo)(job)
    assert [one for one in watched(job, progress) if not one.ongoing and not one.phase] == []


def test_threads_that_come_and_go_do_not_hide_the_one_that_makes_progress() -> None:
    job, progress = Job(30, 0.1), new()
    worker = MAIN + 7

    def batch(number: int) -> None:
        for helper in range(20):  # each waits once, and ends
            at = job.now - S // 100
            job.waits.append(Wait(10_000 + 20 * number + helper, 50 + helper, at, job.now))

    for number in range(100):
        job.run(0.1)
        batch(number)
    watched(job, progress)
    for number in range(100, 500):  # a thread that begins only now
        job.wait(LOADER, 0.05, tid=worker)
        job.run(0.05)
        batch(number)
    watched(job, progress)
    assert progress.thread is not None
    assert progress.thread.tid == worker
    job.wait(LOCK, 3, tid=worker)
    for _ in range(50):
        job.wait(LOADER, 0.05, tid=worker)
        job.run(0.05)
    (gap,) = (one for one in watched(job, progress) if not one.ongoing)
    assert (gap.tid, gap.place) == (worker, LOCK)


def test_a_step_that_becomes_slower_and_fast_again_is_at_most_two_deviations() -> None:
    job, progress = Job(31, 0.1, 0.05), new()
    found = []
    for step_s, seconds in ((0.1, 120), (0.5, 300), (0.1, 300), (0.5, 300), (0.1, 120)):
        job.step_s = step_s
        for _ in range(int(seconds / step_s)):
            job.step()
        found += watched(job, progress)
    assert [one.kind for one in found] in (["slowdown"], ["slowdown", "slowdown"])


def test_the_waits_that_are_kept_of_many_threads_are_few() -> None:
    job, progress = Job(32), new()
    for _ in range(600):
        job.run(0.01)
        for helper in range(100):
            job.waits.append(Wait(MAIN + helper, helper, job.now - 5_000_000, job.now))
        job.run(0.05)
    watched(job, progress)
    kept = {tid: len(thread._recent) for tid, thread in progress._threads.items()}
    assert kept[MAIN] == 600
    assert max(count for tid, count in kept.items() if tid != MAIN) <= 500, "what came since they were last trimmed"


def test_sleeping_between_tries_is_a_stall_and_does_not_make_later_steps_one() -> None:
    """The busy handler of SQLite sleeps for 100 ms between two tries; a step waits for a device four times."""
    job, progress = Job(3), new()

    def step(tries: int = 0) -> None:
        for _ in range(4):
            job.wait(BARRIER, 0.49)
        for _ in range(tries):
            job.sleep(RETRY, 0.1)
        job.wait(LOG, 0.004)

    for _ in range(30):
        step()
    assert watched(job, progress) == []
    step(tries=45)
    for _ in range(20):
        step()
    found = watched(job, progress)
    assert [(one.kind, one.phase) for one in found if not one.ongoing] == [("gap", False)]
    assert found[-1].place == RETRY


@pytest.mark.parametrize("commits", [4, 40, 70])
def test_a_place_visited_often_at_the_end_of_long_steps_is_not_missed_within_them(commits: int) -> None:
    job, progress = Job(4), new()
    for _ in range(60):
        job.wait(BARRIER, 2.0 * job.chance.uniform(0.95, 1.05))
        for _ in range(commits):
            job.wait(LOG, 0.004)
    assert watched(job, progress) == []
