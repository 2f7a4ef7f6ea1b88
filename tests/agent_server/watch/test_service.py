"""The loop of the watcher in simulated time: suspended hosts, jumps of the date, restarts, jobs that vanish."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from whystall.agent_server.watch import service
from whystall.agent_server.watch.cases import Case
from whystall.agent_server.watch.investigation import Investigation
from whystall.agent_server.watch.jobs import WatchedJob
from whystall.agent_server.watch.memory import FILE, Identity, Learnt, Memory
from whystall.agent_server.watch.progress import Stall
from whystall.agent_server.watch.progress_sources import SourceNames
from whystall.agent_server.watch.service import WatchOptions, WatchService
from whystall.bpf.layout import OFF_S
from whystall.tools.collect.continuous_budget import Cost
from whystall.tools.collect.slice_scan import Waits
from whystall.tools.contract.errors import ErrorCode, ToolError

S = 1_000_000_000
LOADER, BARRIER = 11, 12
STEP_NS = S // 5


class Host:
    """Simulated time, and jobs of one process each that make a step each 0.2 s, but for `stalls` (pid: end)."""

    def __init__(self) -> None:
        self.now = 5_000 * S
        self.date = 1_800_000_000.0
        self.suspended = 0
        self.pids = [100]
        self.stalled_until: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.ended: set[int] = set()  # threads
        self.busy_ns = 0  # for so long the next look at the recorder waits for a disk

    def monotonic(self) -> float:
        return self.now / S

    def monotonic_ns(self) -> int:
        return self.now

    def time(self) -> float:
        return self.date + self.now / S

    def waits(self) -> Waits:
        found = Waits()
        for pid in self.pids:
            at = max(self.done.get(pid, self.now - S), self.stalled_until.get(pid, 0))
            while at + STEP_NS <= self.now:
                for place, begin, end in ((LOADER, 0, 3), (BARRIER, 4, 5)):
                    found.tgid.append(pid)
                    found.tid.append(pid)
                    found.place.append(place)
                    found.start_ns.append(at + begin * STEP_NS // 5)
                    found.end_ns.append(at + end * STEP_NS // 5)
                    found.runnable_ns.append(0)
                    found.state.append(OFF_S)
                    found.timed.append(False)
                at += STEP_NS
            self.done[pid] = at
        return found


class Recorder:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.targets: frozenset[int] = frozenset()

    def start(self) -> None: ...

    def close(self) -> None: ...

    def flush(self) -> None: ...

    def retarget(self, pids: frozenset[int], jobs: object = None) -> None:
        self.targets = pids

    def min_ns_of(self, pid: int) -> int:
        return 1_000_000

    def poll(self) -> Waits:
        self._host.now, self._host.busy_ns = self._host.now + self._host.busy_ns, 0
        return self._host.waits()

    def cost(self) -> Cost:
        return Cost(0.001, 0.001, 0.0, 0.0, 0, 0, 10.0, 0, 1_000_000, 19.0, 1_000_000, 1.0, (), ())


class Jobs:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.jobs: list[WatchedJob] = []
        self.beyond = 0

    def renew(self, now_s: float) -> bool:
        before = self.jobs
        self.jobs = [WatchedJob(f"process:{pid}", "train", {pid: 7}, {}, frozenset({pid})) for pid in self._host.pids]
        return before != self.jobs


class Watcher(WatchService):
    """Records what would be investigated."""

    def __init__(self, host: Host, options: WatchOptions, directory: Path) -> None:
        self.notes: list[str] = []
        super().__init__(options, directory, self.notes.append)
        self.found: list[Stall] = []
        self.host = host
        self._jobs = Jobs(host)  # type: ignore[assignment]

    def _started(self, case: Case, final: bool, now: int) -> Investigation:
        self.found.append(case.main()[1])
        raise ToolError(ErrorCode.NO_OVERLAP, "a test", "none")

    def watch(self, seconds: float, *events: tuple[float, Callable[[], None]]) -> None:
        """Watch for `seconds`; `events`: when something happens, s, and what."""
        begin, left = self.host.now, list(events)

        def stopped(wait: float) -> bool:
            self.host.now += max(int(wait * S), S // 100)
            while left and self.host.now - begin >= left[0][0] * S:
                left.pop(0)[1]()
            return self.host.now - begin >= seconds * S

        self.run(stopped)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    made = Host()
    monkeypatch.setattr(service, "time", made)
    monkeypatch.setattr(service, "ContinuousRecorder", lambda *args: Recorder(made))
    monkeypatch.setattr(service, "suspended_ns", lambda: made.suspended)
    monkeypatch.setattr(service, "run_delay_s", lambda: 0.0)
    monkeypatch.setattr(service, "io_calls", lambda pid, tid: None)
    monkeypatch.setattr(service, "used_ns", lambda pid, tid: 0)
    monkeypatch.setattr(service, "thread_ended", lambda pid, tid, ticks: tid in made.ended)
    monkeypatch.setattr(service, "yield_memory", lambda: None)
    monkeypatch.setattr(service, "identity_of", lambda pid, ticks, rank: Identity(f"job{pid}", f"run{pid}"))
    return made


OPTIONS = WatchOptions(learn_s=60)


def stall(host: Host, seconds: float = 2.2) -> Callable[[], None]:
    """Return an event: all jobs stall."""

    def begin() -> None:
        for pid in host.pids:
            host.stalled_until[pid] = host.now + int(seconds * S)

    return begin


def test_a_suspended_host_is_no_stall_and_a_stall_after_it_is_found(host: Host, tmp_path: Path) -> None:
    watcher, begin = Watcher(host, OPTIONS, tmp_path), host.now

    def suspend() -> None:
        host.suspended += 600 * S

    watcher.watch(200, (100, suspend), (150, stall(host)))
    assert watcher.notes.count("the host was suspended or paused") == 1
    assert len(watcher.found) == 1
    assert abs(watcher.found[0].start_ns - (begin + 150 * S)) < S


def test_a_paused_virtual_machine_is_no_stall(host: Host, tmp_path: Path) -> None:
    watcher = Watcher(host, OPTIONS, tmp_path)

    def pause() -> None:
        host.now += 30 * S
        host.done[100] = host.now

    watcher.watch(200, (100, pause))
    assert watcher.found == []


def test_a_stall_is_found_in_which_the_watcher_waited_for_its_own_disk(host: Host, tmp_path: Path) -> None:
    watcher, begin = Watcher(host, OPTIONS, tmp_path), host.now

    def freeze() -> None:
        stall(host, 10)()
        host.busy_ns = 10 * S

    watcher.watch(160, (100, freeze))
    assert "the host was suspended or paused" not in watcher.notes
    assert [one.kind for one in watcher.found] == ["gap"]
    assert abs(watcher.found[0].start_ns - (begin + 100 * S)) < S


def test_a_thread_that_ends_is_no_stall(host: Host, tmp_path: Path) -> None:
    watcher = Watcher(host, OPTIONS, tmp_path)

    def end() -> None:
        host.stalled_until[100] = host.now + 600 * S
        host.ended.add(100)

    watcher.watch(200, (100, end))
    assert watcher.found == []
    assert not (tmp_path / "stalls.jsonl").exists()


def test_a_disk_that_takes_no_files_is_reported_once_and_stops_nothing(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    watcher = Watcher(host, OPTIONS, tmp_path / "file" / "watch")
    watcher.watch(200, (150, stall(host)))
    assert len(watcher.found) == 1
    assert [note.startswith("warning: recordings of stalls cannot be kept in ") for note in watcher.notes[:1]] == [True]
    assert watcher.notes.count("warning: files of the watcher cannot be written: Not a directory") == 1


def test_a_selection_that_matches_nothing_is_reported_once(host: Host, tmp_path: Path) -> None:
    host.pids = []
    watcher = Watcher(host, OPTIONS, tmp_path)
    watcher.watch(30)
    assert watcher.notes == [
        "no job that looks like training or serving runs now; each is watched 10 s after its start"
    ]


def test_jumps_of_the_date_change_nothing(host: Host, tmp_path: Path) -> None:
    watcher = Watcher(host, OPTIONS, tmp_path)

    def jump(seconds: float) -> Callable[[], None]:
        return lambda: setattr(host, "date", host.date + seconds)

    watcher.watch(180, (90, jump(86400)), (110, jump(-7 * 86400)), (130, stall(host)))
    assert [one.kind for one in watcher.found] == ["gap"]


def test_a_restarted_watcher_knows_the_job_and_does_not_report_the_restart(host: Host, tmp_path: Path) -> None:
    Watcher(host, OPTIONS, tmp_path).watch(120)
    host.now += 20 * S
    again, begin = Watcher(host, OPTIONS, tmp_path), host.now
    again.watch(50, (25, stall(host)))
    assert len(again.found) == 1, "long before the time to learn is over"
    assert abs(again.found[0].start_ns - (begin + 25 * S)) <= S
    assert again.notes[0].startswith("watching")


def test_a_restart_during_a_stall_is_no_alarm(host: Host, tmp_path: Path) -> None:
    Watcher(host, OPTIONS, tmp_path).watch(120)
    stall(host, 30)()
    again = Watcher(host, OPTIONS, tmp_path)
    again.watch(60)
    assert again.found == []


def test_another_run_of_a_job_is_learnt_for_as_long_as_the_first(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Watcher(host, OPTIONS, tmp_path).watch(120)
    monkeypatch.setattr(service, "identity_of", lambda pid, ticks, rank: Identity("job100", "another run"))
    again = Watcher(host, OPTIONS, tmp_path)
    again.watch(50, (25, stall(host, 15)))
    assert again.found == [], "it may compile first"


_DAMAGED = [
    b"",
    b"{",
    b"[" * 100_000,
    b'{"version":99,"jobs":[]}',
    b'{"version":1,"jobs":[{}]}',
    b'{"version":1,"jobs":[{"job":"job100","run":"run100","seen":1e999,"tid":0,"places":{},"pauses":{},"step":0,"steps":[]}]}',
]


@pytest.mark.parametrize("content", _DAMAGED, ids=range(len(_DAMAGED)))
def test_a_damaged_memory_is_learnt_again_with_a_warning(host: Host, tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    watcher, begin = Watcher(host, OPTIONS, tmp_path), host.now
    watcher.watch(120, (30, stall(host)), (90, stall(host)))
    assert "learning again" in watcher.notes[0]
    assert [one.start_ns > begin + 80 * S for one in watcher.found] == [True], "the first was in the time to learn"


def test_what_is_no_file_of_ours_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "other").write_text('{"version":1,"jobs":[]}')
    (tmp_path / FILE).symlink_to(tmp_path / "other")
    assert Memory(tmp_path).load()
    (tmp_path / FILE).unlink()
    os.mkfifo(tmp_path / FILE)
    assert Memory(tmp_path).load()


def test_the_memory_is_bounded_and_keeps_the_latest_jobs(tmp_path: Path) -> None:
    memory = Memory(tmp_path)
    for number in range(400):
        memory.keep(Identity(f"job{number}", "r"), Learnt("r", time.time(), 0, {n: (99, [S] * 32) for n in range(16)}))
    assert memory.save() == ""
    assert (tmp_path / FILE).stat().st_size < 4 << 20
    again = Memory(tmp_path)
    assert again.load() == ""
    assert again.find(Identity("job399", "r")) is not None
    assert again.find(Identity("job0", "r")) is None


@pytest.mark.thorough
def test_five_hundred_processes_of_which_half_vanish_in_a_stall(host: Host, tmp_path: Path) -> None:
    host.pids = list(range(1000, 1500))
    watcher = Watcher(host, WatchOptions(learn_s=10), tmp_path)

    def hold() -> None:
        for pid in host.pids[:300]:
            host.stalled_until[pid] = host.now + 1000 * S

    def vanish() -> None:
        host.pids = host.pids[250:]  # their containers were removed

    watcher.watch(36, (28, hold), (31, vanish))
    assert 0 < len(watcher.found) <= 50
    assert all(one.tid >= 1250 for one in watcher.found)


def test_jobs_that_start_and_end_each_second_are_no_stall(host: Host, tmp_path: Path) -> None:
    watcher = Watcher(host, OPTIONS, tmp_path)

    def replaced() -> None:
        host.pids = [100, 2000 + host.now // S]

    watcher.watch(150, *((second, replaced) for second in range(1, 150)))
    assert watcher.found == []


def test_a_heartbeat_that_stays_away_is_a_stall_although_threads_go_on(host: Host, tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    beat.touch()
    options = WatchOptions(learn_s=30, progress=SourceNames(heartbeats=(str(beat),)))
    watcher, begin = Watcher(host, options, tmp_path), host.now
    beats = [*range(1, 100), *range(107, 150)]
    watcher.watch(150, *((second, lambda: os.utime(beat, ns=(host.now, host.now))) for second in beats))
    assert {one.kind for one in watcher.found} == {"signal"}
    assert len(watcher.found) <= 2, "while it lasts, and after it"
    assert abs(watcher.found[-1].start_ns - (begin + 99 * S)) <= 2 * S
