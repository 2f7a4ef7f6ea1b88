"""What a process waits for now: shares of the last seconds, and the wait in progress."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from whystall.agent_server.presentation.top_table import top_table
from whystall.agent_server.watch.jobs import WatchedJob
from whystall.agent_server.watch.now import NS, RecentWaits, Spot
from whystall.bpf.layout import OFF_R, OFF_S
from whystall.bpf.syscalls import names
from whystall.tools.collect.objects_proc import Proc
from whystall.tools.collect.slice_scan import OpenWait, Waits

NUMBERS = {name: number for number, name in names().items()}
PID, WORKER = 70, 71
READ, FSYNC = 1, 2
PLACES = {READ: (NUMBERS["read"], "load (train.py:7)"), FSYNC: (NUMBERS["fsync"], "")}


class Files:
    """The files of one process below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for tid in (PID, WORKER):
            (root / str(PID) / "task" / str(tid)).mkdir(parents=True)
        (root / str(PID) / "fd").mkdir()
        (root / str(PID) / "fd" / "5").symlink_to("/data/shard\x1b-3")
        self.set(PID, 0, 0)

    def set(self, tid: int, ran_ms: int, without_ms: int, call: str = "running") -> None:
        task = self.root / str(PID) / "task" / str(tid)
        (task / "schedstat").write_text(f"{ran_ms}000000 {without_ms}000000 9\n")
        (task / "syscall").write_text(f"{call}\n")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture
def recent(files: Files) -> RecentWaits:
    made = RecentWaits(lambda place: PLACES[place], Proc(str(files.root)))
    made.follow([PID])
    made.feed(Waits(), 10 * NS)
    return made


def waits(*rows: tuple[int, int, int, int, int]) -> Waits:
    """Rows of thread, place, start, end (ms after 10 s), state."""
    found = Waits()
    for tid, place, start, end, state in rows:
        found.tgid.append(PID)
        found.tid.append(tid)
        found.place.append(place)
        found.start_ns.append(10 * NS + start * 1_000_000)
        found.end_ns.append(10 * NS + end * 1_000_000)
        found.runnable_ns.append(0)
        found.state.append(state)
    return found


def test_shares_are_of_the_seconds_that_were_seen(files: Files, recent: RecentWaits) -> None:
    files.set(PID, 500, 250)
    recent.feed(
        waits((PID, READ, 0, 800, OFF_S), (PID, READ, 900, 1300, OFF_S), (PID, READ, 1300, 1400, OFF_R)), 12 * NS
    )
    now = recent.of(PID, {}, 12 * NS)
    assert now is not None
    assert (now.running, now.without_cpu, now.waiting) == (0.25, 0.125, 0.625)
    assert [tuple(one) for one in now.waits] == [(0.6, Spot("read", "load (train.py:7)"))]
    assert now.longest_s == 0.8
    assert (now.waiting_s, now.object) == (0.0, "")


def test_a_wait_in_progress_counts_with_its_object(files: Files, recent: RecentWaits) -> None:
    files.set(PID, 100, 0, f"{NUMBERS['fsync']} 0x5 0x0 0x0 0x0 0x0 0x0 0x7ffc 0x7f1e")
    recent.feed(waits((PID, READ, 0, 100, OFF_S)), 13 * NS)
    now = recent.of(PID, {PID: OpenWait(FSYNC, 10 * NS + 200_000_000)}, 13 * NS)
    assert now is not None
    assert now.waits[0].spot == Spot("fsync", "")
    assert (now.waiting_s, now.longest_s) == (2.8, 2.8)
    assert "shard" in now.object
    assert "\x1b" not in now.object
    ended = recent.of(PID, {PID: OpenWait(READ, 10 * NS + 50_000_000)}, 13 * NS)
    assert ended is not None
    assert ended.waiting_s == 0.0, "a wait of the slice before, which has ended"


def test_the_thread_that_works_is_shown_if_the_main_thread_only_waits(files: Files, recent: RecentWaits) -> None:
    files.set(WORKER, 0, 0)
    recent.feed(waits((WORKER, READ, 0, 10, OFF_S)), 11 * NS)
    files.set(WORKER, 600, 0)
    recent.feed(waits((WORKER, READ, 1000, 1200, OFF_S)), 12 * NS)
    now = recent.of(PID, {}, 12 * NS)
    assert now is not None
    assert now.tid == WORKER


def test_a_process_that_has_ended_is_left_out(files: Files, recent: RecentWaits) -> None:
    (files.root / str(PID) / "task" / str(PID) / "schedstat").unlink()
    recent.feed(Waits(), 12 * NS)
    assert recent.of(PID, {}, 12 * NS) is None


@pytest.mark.parametrize(("lang", "heading"), [("en", "waits in"), ("zh", "等待位置")])
def test_the_table_names_job_rank_and_place(files: Files, recent: RecentWaits, lang: str, heading: str) -> None:
    files.set(PID, 500, 0)
    recent.feed(waits((PID, READ, 0, 1600, OFF_S)), 12 * NS)
    now = recent.of(PID, {}, 12 * NS)
    assert now is not None
    job = WatchedJob("run:1", "llama[red]", {PID: 1}, {PID: 3})
    console = Console(width=140, record=True)
    with console.capture() as captured:
        console.print(top_table([job], {PID: now}, 0.012, "zh" if lang == "zh" else "en"))
    text = captured.get()
    assert heading in text
    for part in ("llama[red]", str(PID), "3", "80 % read", "load (train.py:7)", "1.6 s", "1.2 %"):
        assert part in text
