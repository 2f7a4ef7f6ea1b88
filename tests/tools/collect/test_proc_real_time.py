"""Real-time threads of a host, from stat files as /proc has them."""

from __future__ import annotations

import os

import pytest

from whystall.tools.collect import proc_real_time
from whystall.tools.collect.proc_parse import PidStat, pid_stat
from whystall.tools.collect.proc_real_time import OwnCpuTime, RealTimeThreads

TASKS = {10: ["10"], 20: ["20", "21"], 30: ["30"], 40: ["40"]}


def stat(tid: int, policy: int, start: int, threads: int = 1) -> bytes:
    head = f"{tid} (a b) R 1 9 9 0 -1 0 1 0 0 0 5 0 0 0 20 0 {threads} 0 {start} 1 1"
    return f"{head} {'0 ' * 15}{40 if policy else 0} {policy} 0 0 0\n".encode()


class Proc:
    """Files below /proc; `runs`: CPU time in ns by thread."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def put(self, pid: int, tid: int, policy: int, run_ns: int, start: int = 100) -> None:
        self.files[f"{pid}/task/{tid}/stat"] = stat(tid, policy, start, len(TASKS.get(pid, ["1"])))
        self.files[f"{pid}/task/{tid}/schedstat"] = f"{run_ns} 0 1\n".encode()

    def read(self, name: str) -> bytes:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def processes(self, *pids: int) -> list[PidStat]:
        return [pid_stat(self.files[f"{pid}/task/{pid}/stat"]) for pid in pids]


def test_policies_are_read_and_only_the_time_of_the_window_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = {21: 2 | 0x40000000}  # round robin, reset on fork
    monkeypatch.setattr(os, "sched_getscheduler", lambda tid: policies.get(tid, 0), raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda tid: {0, 1}, raising=False)
    proc = Proc()
    proc.put(10, 10, 1, 5_000_000_000)
    proc.put(20, 20, 0, 1)
    proc.put(20, 21, 2, 7_000_000_000)
    proc.put(30, 30, 1, 1_000)
    found = RealTimeThreads(proc.read, lambda pid: TASKS[pid], lambda: 99)
    assert found.look(proc.processes(10, 20, 30)) == []
    proc.put(10, 10, 1, 8_000_000_000)
    proc.put(20, 21, 2, 7_500_000_000)
    proc.put(40, 40, 6, 300_000_000, start=101)  # began in the window
    rows = found.look(proc.processes(10, 20, 30, 40))
    assert [(row[1], row[2], row[4], row[5], row[6], row[7]) for row in rows] == [
        (10, 10, "fifo", 40, 3_000_000_000, "0-1"),
        (20, 21, "rr", 40, 500_000_000, "0-1"),
        (40, 40, "deadline", 40, 300_000_000, "0-1"),
    ]
    assert not found.cut


def test_a_thread_that_became_one_within_the_window_has_no_known_time() -> None:
    proc = Proc()
    proc.put(10, 10, 0, 5_000_000_000)
    found = RealTimeThreads(proc.read, lambda pid: TASKS[pid])
    found.look(proc.processes(10))
    proc.put(10, 10, 1, 6_000_000_000)
    (row,) = found.look(proc.processes(10))
    assert row[6] == -1


def test_too_many_threads_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc_real_time, "_MOST_ASKED", 3)
    monkeypatch.setattr(os, "sched_getscheduler", lambda tid: 0, raising=False)
    proc = Proc()
    proc.put(20, 20, 0, 1)
    found = RealTimeThreads(proc.read, lambda pid: [str(20 + n) for n in range(9)])
    found.look(proc.processes(20))
    assert found.cut


def test_our_own_starvation_is_noticed() -> None:
    times = [b"0 0 0\n", b"300000000 2700000000 5\n"]
    pid = os.getpid()
    own = OwnCpuTime(lambda name: times[0], lambda _: [str(pid)])
    assert own.starved() is None
    times[0] = times[1]
    assert own.starved() == pytest.approx(10)
    times[0] = b"3000000000 2700000000 5\n"
    assert own.starved() is None
