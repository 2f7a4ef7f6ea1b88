"""The scheduler's account of waits, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

from whystall.tools.collect.proc_run_queue import ThreadWaits
from whystall.tools.recording.collector import Capture

SECOND = 1_000_000_000


class Host:
    """A /proc of threads; each look takes place a second later."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = SECOND
        self.thread(1, 1, (5, 5, 5))
        (root / "self").mkdir()
        (root / "self" / "schedstat").write_text("100 0 1\n")
        self.waits = ThreadWaits(str(root), lambda: self.now)

    def thread(self, pid: int, tid: int, sched: tuple[int, int, int], state: str = "S", started: int = 7) -> None:
        base = self.root / str(pid) / "task" / str(tid)
        base.mkdir(parents=True, exist_ok=True)
        (base / "schedstat").write_text(" ".join(map(str, sched)) + "\n")
        fields = [str(tid), "(a b)", state, *["0"] * 18, str(started), *["0"] * 30]
        fields[21] = str(started)
        (base / "stat").write_text(" ".join(fields))

    def gone(self, pid: int, tid: int) -> None:
        for file in (self.root / str(pid) / "task" / str(tid)).iterdir():
            file.unlink()
        (self.root / str(pid) / "task" / str(tid)).rmdir()

    def look(self, *pids: int) -> None:
        self.waits.sample(pids)
        self.now += SECOND


def totals(capture: Capture) -> dict[int, tuple[int, int]]:
    """Thread -> how often, how long."""
    return {r["tid"]: (r["count"], r["total_ns"]) for r in capture.tables["totals"].iter_rows(named=True)}


def test_the_account_between_two_looks_is_the_threads_wait(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.thread(1, 2, (10, 10, 10))
    host.look(1)
    host.thread(1, 2, (500, 210, 14))
    host.thread(1, 3, (50, 40, 2))  # began meanwhile
    host.look(1)
    seen = host.waits.read()
    assert totals(seen) == {2: (4, 200), 3: (2, 40)}
    assert (seen.proven, seen.lost, seen.seen) == (True, 0, 6)
    assert seen.tables["latency"].is_empty()
    assert [code for code, _ in seen.not_seen] == ["no_single_waits"]


def test_a_thread_that_is_runnable_and_never_ran_waited_all_the_time(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.thread(1, 2, (10, 10, 10), "R")
    host.thread(1, 3, (10, 10, 10), "S")
    host.look(1)
    host.look(1)
    assert totals(host.waits.read()) == {}, "a CPU without a tick may not have told yet that it ran"
    host.look(1)
    assert totals(host.waits.read()) == {2: (1, 2 * SECOND)}


def test_a_wait_that_began_before_counts_from_the_first_look(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.thread(1, 2, (SECOND, 10, 10))
    host.look(1)
    host.thread(1, 2, (SECOND + SECOND // 4, 60 * SECOND, 11))
    host.look(1)
    assert totals(host.waits.read()) == {2: (1, SECOND - SECOND // 4)}


def test_a_thread_that_ended_is_a_loss_and_a_reused_number_is_another_thread(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.thread(1, 2, (10, 1000, 10))
    host.thread(1, 3, (10, 1000, 10))
    host.look(1)
    host.gone(1, 2)
    host.thread(1, 3, (20, 30, 4), started=8)
    host.look(1)
    seen = host.waits.read()
    assert totals(seen) == {3: (4, 30)}
    assert seen.lost == 2


def test_a_kernel_that_keeps_no_account_proves_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "self" / "schedstat").write_text("0 0 0\n")
    host.thread(1, 1, (0, 0, 0))
    host.look(1, 99)
    host.look(1, 99)
    seen = host.waits.read()
    assert not seen.proven
    assert totals(seen) == {}
