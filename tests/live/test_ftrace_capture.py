"""Captures of this kernel's scheduler: what is in the file, and that nothing stays behind, whatever ends them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from switching import busy_switching

from whystall.tools.collect.ftrace import trace_cmd
from whystall.tools.collect.ftrace.instance import Instance, orphans
from whystall.tools.collect.ftrace.options import GROUPS, Progress, Recorded, RecordOptions
from whystall.tools.collect.ftrace.recorder import record
from whystall.tools.collect.ftrace.session import END_MARK, HEAD_MARK, LOST_MARK
from whystall.tools.collect.ftrace.tracefs import Tracefs, find
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline import clocks
from whystall.tools.timeline.ftrace import text as ftrace_text

GLOBAL = ("trace_clock", "set_event", "set_event_pid", "tracing_cpumask", "tracing_on", "current_tracer")
# comm-tid (tgid) [cpu] flags seconds.micros: event:
EVENT = re.compile(
    r"^ *(?P<comm>.+)-(?P<tid>\d+) +\( *(?P<tgid>\d+|-+)\) \[(?P<cpu>\d+)\] \S+ +(?P<at>\d+\.\d+): (?P<event>\w+)[:(]"
)
PREPARED = "import sys\nfrom pathlib import Path\nfrom whystall.tools.collect.ftrace.recorder import *\n"


@pytest.fixture
def tracefs() -> Iterator[Tracefs]:
    if os.geteuid() != 0:
        pytest.skip("tracing needs root")
    found = find()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def nothing_left(tracefs: Tracefs) -> Iterator[None]:
    """No instance of ours is left, and the host's own tracing is as it was."""
    before = {name: (tracefs.root / name).read_text() for name in GLOBAL}
    yield
    assert [name for name in tracefs.instances() if name.startswith(f"whystall-{os.getpid()}-")] == []
    assert {name: (tracefs.root / name).read_text() for name in GLOBAL} == before


def instances_of(tracefs: Tracefs, pid: int) -> list[str]:
    return [name for name in tracefs.instances() if name.startswith(f"whystall-{pid}-")]


def comments(path: Path, mark: str) -> list[dict[str, Any]]:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.startswith(mark)]
    return [json.loads(line[len(mark) :]) for line in lines]


def is_whole(path: Path) -> bool:
    """A file with its head, its foot, and nothing but whole lines between."""
    data = path.read_bytes()
    points = comments(path, clocks.MARK)
    return data.endswith(b"\n") and len(points) == 2 and len(comments(path, HEAD_MARK)) == 1


def events(path: Path) -> list[re.Match[str]]:
    lines = path.read_text(errors="replace").splitlines()
    return [match for line in lines if (match := EVENT.match(line))]


def quick(output: Path, seconds: float = 0.3, **options: Any) -> Recorded:
    return record(RecordOptions(duration_s=seconds, **options), output)


def around(work: Callable[[], object], output: Path, **options: Any) -> Recorded:
    """Record while `work` runs in a thread of its own."""
    thread = threading.Thread(target=work)

    def over() -> bool:
        if thread.ident is None:
            thread.start()
        return not thread.is_alive()

    return record(RecordOptions(duration_s=60, **options), output, stop=over)


# --- what is in the file ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ring", "stream"])
def test_a_capture_tells_a_sleep_of_ours_and_when_it_was(tmp_path: Path, mode: str) -> None:
    slept: list[tuple[int, int, int]] = []

    def sleeper() -> None:
        for _ in range(20):
            since = time.monotonic_ns()
            time.sleep(0.005)
            slept.append((threading.get_native_id(), since, time.monotonic_ns()))

    done = around(sleeper, tmp_path / "t.txt", mode=mode)
    assert (done.stopped_by, done.engine, done.lost) == ("asked", "tracefs", 0)
    assert done.why in ("", "tracefs was not mounted: mounted for this process alone")
    assert len(slept) == 20
    assert done.files == (tmp_path / "t.txt",)
    assert done.bytes == (tmp_path / "t.txt").stat().st_size
    assert is_whole(tmp_path / "t.txt")
    trace = ftrace_text.read(tmp_path / "t.txt")
    assert trace.odd.count == 0
    assert trace.clock == "mono"
    assert trace.table("clocks")["mono"].to_list() == [done.start_ns, done.end_ns]
    assert done.start_ns <= slept[0][1] < slept[-1][2] <= done.end_ns
    assert done.start_ns - 1000 <= trace.start_ns <= trace.end_ns <= done.end_ns + 1000
    switches = trace.table("switches")
    for tid, since, until in slept:
        left = switches.filter((switches["prev_tid"] == tid) & switches["at_ns"].is_between(since - 1000, until))
        assert "S" in left["prev_state"].to_list()
    (about,) = comments(tmp_path / "t.txt", HEAD_MARK)
    assert about["cpus"] == list(done.cpus)
    assert about["groups"] == ["irq", "sched", "softirq"]
    assert comments(tmp_path / "t.txt", END_MARK) == [{"stopped_by": "asked"}]
    assert [loss["cpu"] for loss in comments(tmp_path / "t.txt", LOST_MARK)] == list(done.cpus)


def test_the_process_of_a_thread_is_told(tmp_path: Path) -> None:
    tids: list[str] = []

    def work() -> None:
        tids.append(str(threading.get_native_id()))
        for _ in range(20):
            time.sleep(0.01)

    around(work, tmp_path / "t.txt")
    assert {match["tgid"] for match in events(tmp_path / "t.txt") if match["tid"] == tids[0]} == {str(os.getpid())}


def test_only_the_chosen_cpus_are_recorded(tmp_path: Path) -> None:
    last = max(os.sched_getaffinity(0))
    done = quick(tmp_path / "t.txt", cpus=(last,))
    assert done.cpus == (last,)
    assert {int(match["cpu"]) for match in events(tmp_path / "t.txt")} == {last}


def test_every_group_brings_its_events(tmp_path: Path) -> None:
    def work() -> None:
        for _ in range(20):
            with (tmp_path / "data").open("wb") as file:
                file.write(b"x" * 65536)
                file.flush()
                os.fsync(file.fileno())
            time.sleep(0.01)

    done = around(work, tmp_path / "t.txt", groups=GROUPS, mode="ring")
    told = {match["event"] for match in events(tmp_path / "t.txt")}
    assert {"sched_switch", "sched_waking", "sched_wakeup", "softirq_entry", "softirq_exit", "sys_enter"} <= told
    (about,) = comments(tmp_path / "t.txt", HEAD_MARK)
    assert about["groups"] == sorted(GROUPS)
    assert told <= {name.rpartition("/")[2] for name in about["events"]}
    assert {note[1] for note in done.notes if note[0] == "event_absent"} == set(about["missing"])


def test_futex_calls_can_be_traced_alone(tmp_path: Path) -> None:
    never = threading.Event()
    around(lambda: never.wait(0.1), tmp_path / "t.txt", groups=("futex",))
    text = (tmp_path / "t.txt").read_text()
    assert re.search(r"sys_futex\(|NR (202|98) \(", text)
    assert "sys_read" not in text


@pytest.mark.parametrize("clock", ["mono", "mono_raw", "boot", "local"])
def test_the_clock_is_the_one_asked_for(tmp_path: Path, clock: str) -> None:
    before = clocks.now()
    quick(tmp_path / "t.txt", 0.1, clock=clock)
    (about,) = comments(tmp_path / "t.txt", HEAD_MARK)
    assert about["clock"] == clock
    if clock != "local":
        first = float(events(tmp_path / "t.txt")[0]["at"])
        assert 0 < first - getattr(before, clock) / 1e9 < 5


def test_an_unknown_clock_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"no trace clock 'sundial'.*mono_raw"):
        quick(tmp_path / "t.txt", clock="sundial")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["ring", "stream"])
def test_lost_events_are_counted_per_cpu_and_marked_where_they_are_missing(tmp_path: Path, mode: str) -> None:
    cpu = min(os.sched_getaffinity(0))
    with busy_switching(cpu):
        done = quick(tmp_path / "t.txt", 0.5, mode=mode, buffer_kb=64)
    losses = {loss.cpu: loss for loss in done.losses}
    assert losses[cpu].overrun > 0
    marks = re.findall(rf"^CPU:{cpu} \[LOST (\d+) EVENTS\]$", (tmp_path / "t.txt").read_text(), re.MULTILINE)
    assert sum(map(int, marks)) == losses[cpu].overrun
    counts = {loss["cpu"]: loss["overrun"] for loss in comments(tmp_path / "t.txt", LOST_MARK)}
    assert counts == {loss.cpu: loss.overrun for loss in done.losses}
    assert len(events(tmp_path / "t.txt")) == done.events
    assert done.lost == sum(loss.overrun for loss in done.losses)


def test_the_recorders_own_system_calls_do_not_feed_it(tmp_path: Path) -> None:
    quick(tmp_path / "t.txt", 0.4, mode="stream", groups=("syscalls",))
    own = str(threading.get_native_id())
    assert [m for m in events(tmp_path / "t.txt") if m["tid"] == own and m["event"].startswith("sys_")] == []


# --- whom to follow -----------------------------------------------------------------------------------------

FAMILY = """
import os, subprocess, sys, threading, time
def sleepy(): [time.sleep(0.002) for _ in range(100)]
input()
threads = [threading.Thread(target=sleepy) for _ in range(2)]
[t.start() for t in threads]
child = subprocess.Popen([sys.executable, "-c", "import time\\nfor _ in range(100): time.sleep(0.002)"])
print(*[t.native_id for t in threads], child.pid, flush=True)
[t.join() for t in threads]
child.wait()
"""


@pytest.mark.parametrize("mode", ["ring", "stream"])
def test_threads_and_children_born_later_are_followed_and_nobody_else(tmp_path: Path, mode: str) -> None:
    family = subprocess.Popen([sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.001)"])
    born = [family.pid]

    def live() -> None:
        out, _ = family.communicate("go\n")
        born.extend(int(word) for word in out.split())

    try:
        done = around(live, tmp_path / "t.txt", mode=mode, pids=(family.pid,))
    finally:
        other.kill()
        other.wait()
    switches = ftrace_text.read(tmp_path / "t.txt").table("switches")
    left = switches["prev_tid"].value_counts(sort=True)
    counts = dict(zip(left["prev_tid"].to_list(), left["count"].to_list(), strict=True))
    assert len(born) == 4
    for tid in born[1:]:
        assert counts[tid] > 50, tid
    concerned = switches.filter(~switches["prev_tid"].is_in(born) & ~switches["next_tid"].is_in(born))
    strangers = set(concerned["prev_tid"].to_list()) | set(concerned["next_tid"].to_list())
    assert other.pid not in strangers
    assert ("target_only", "") in done.notes
    (about,) = comments(tmp_path / "t.txt", HEAD_MARK)
    assert about["pids"] == [family.pid]


def test_children_that_live_already_are_followed_when_asked(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    inner = "import os, time\nprint(os.getpid(), flush=True)\nwhile True: time.sleep(0.002)"
    parent = subprocess.Popen([sys.executable, "-c", code, inner], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        for children in (False, True):
            quick(tmp_path / "t.txt", pids=(parent.pid,), children=children)
            seen = [m for m in events(tmp_path / "t.txt") if m["tid"] == str(child) and m["event"] == "sched_switch"]
            assert (len(seen) > 5) is children
    finally:
        os.kill(child, signal.SIGKILL)
        parent.wait()


def test_a_capture_ends_with_whom_it_follows(tmp_path: Path) -> None:
    short = subprocess.Popen(["sleep", "0.7"])
    threading.Thread(target=short.wait).start()
    done = quick(tmp_path / "t.txt", 30, pids=(short.pid,))
    assert done.stopped_by == "target_exited"
    assert done.end_ns - done.start_ns < 10e9
    assert is_whole(tmp_path / "t.txt")


CONTAINER = """
import threading, time, os
print(os.getpid(), flush=True)
input()
thread = threading.Thread(target=lambda: [time.sleep(0.002) for _ in range(200)])
thread.start(); thread.join()
print("done", flush=True)
input()
"""


@pytest.fixture
def container() -> Iterator[subprocess.Popen[str]]:
    """A PID namespace of its own, whose first process is a child of this `unshare`."""
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", CONTAINER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    yield process
    process.communicate("\n\n")


def inner_pid(container: subprocess.Popen[str]) -> int:
    """The host's number of the first process inside."""
    return int(Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().split()[0])


def test_a_pid_of_a_container_is_followed_with_its_later_threads(
    tmp_path: Path, container: subprocess.Popen[str]
) -> None:
    host = inner_pid(container)

    def work() -> None:
        assert container.stdin is not None
        assert container.stdout is not None
        container.stdin.write("\n")
        container.stdin.flush()
        assert container.stdout.readline() == "done\n"

    around(work, tmp_path / "t.txt", pids=(1,), in_namespace=True, namespace_of=host)
    (about,) = comments(tmp_path / "t.txt", HEAD_MARK)
    assert about["in_namespace"] == {str(host): 1}
    later = {int(m["tid"]) for m in events(tmp_path / "t.txt") if m["tgid"] == str(host)} - {host}
    assert len(later) == 1
    switches = ftrace_text.read(tmp_path / "t.txt").table("switches")
    assert switches["prev_tid"].to_list().count(later.pop()) > 100


def test_a_pid_that_several_containers_have_needs_a_name(tmp_path: Path, container: subprocess.Popen[str]) -> None:
    other = subprocess.Popen(["unshare", "--pid", "--fork", "sleep", "60"])
    try:
        while not Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text():
            time.sleep(0.01)
        with pytest.raises(ToolError) as caught:
            quick(tmp_path / "t.txt", pids=(1,), in_namespace=True)
        assert caught.value.code is ErrorCode.BAD_ARGUMENT
        assert str(inner_pid(container)) in caught.value.message
        assert str(inner_pid(other)) in caught.value.message
    finally:
        os.kill(inner_pid(other), signal.SIGKILL)
        other.wait()


def test_inside_a_container_a_pid_filter_is_refused_and_everything_can_be_recorded(tmp_path: Path) -> None:
    code = PREPARED + (
        "import os\n"
        "for pids in ((os.getpid(),), ()):\n"
        "    try: print(record(RecordOptions(duration_s=0.1, pids=pids), Path(sys.argv[1])).notes)\n"
        "    except Exception as error: print(error)\n"
    )
    argv = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code, str(tmp_path / "t.txt")]
    refused, recorded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert refused.startswith("no_privilege: ")
    assert "host_pids" in recorded


# --- ends ---------------------------------------------------------------------------------------------------


def recording(output: Path, options: str) -> subprocess.Popen[str]:
    """A process that records until a signal comes, and then says how it ended."""
    code = PREPARED + (
        f"told = []\ndef tell(now): told or (told.append(1), print('recording', flush=True))\n"
        f"done = record(RecordOptions({options}), Path(sys.argv[1]), progress=tell)\n"
        "print(done.stopped_by, done.events > 0, flush=True)\n"
    )
    argv = [sys.executable, "-c", code, str(output)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "recording\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mode", ["ring", "stream"])
def test_a_signal_ends_a_capture_well(tmp_path: Path, tracefs: Tracefs, number: signal.Signals, mode: str) -> None:
    process = recording(tmp_path / "t.txt", f"mode={mode!r}")
    assert len(instances_of(tracefs, process.pid)) == 1
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (out, err, process.returncode) == ("asked True\n", "", 0)
    assert is_whole(tmp_path / "t.txt")
    assert comments(tmp_path / "t.txt", END_MARK) == [{"stopped_by": "asked"}]
    assert instances_of(tracefs, process.pid) == []


def test_what_sigkill_leaves_records_no_more_and_goes_at_the_next_start(tmp_path: Path, tracefs: Tracefs) -> None:
    process = recording(tmp_path / "t.txt", "mode='stream', buffer_kb=4096")
    process.kill()
    process.communicate()
    (left,) = instances_of(tracefs, process.pid)
    instance = tracefs.root / "instances" / left
    assert (instance / "tracing_on").read_text() == "0\n"
    assert int((instance / "buffer_size_kb").read_text().split()[0]) < 64
    quick(tmp_path / "again.txt")
    assert instances_of(tracefs, process.pid) == []
    assert is_whole(tmp_path / "again.txt")


def test_only_orphans_of_ours_are_removed(tmp_path: Path, tracefs: Tracefs) -> None:
    def made(name: str) -> Path:
        path = tracefs.root / "instances" / name
        path.mkdir()
        return path

    reused = made(f"whystall-{os.getpid()}-1-0")  # our number, but of a process that began at another time
    foreign = made(f"ftrace-test-{os.getpid()}-1-0")
    held = made("whystall-4194305-1-0")  # a maker that cannot be seen from here, as one in a container
    hold = os.open(held / "free_buffer", os.O_WRONLY)
    living = Instance.make(tracefs)
    try:
        quick(tmp_path / "t.txt", 0.1)
        names = tracefs.instances()
        assert reused.name not in names
        assert {foreign.name, held.name, living.name} <= set(names)
    finally:
        os.close(hold)
        living.remove()
        for path in (reused, foreign, held):
            if path.exists():
                path.rmdir()


def test_an_exception_on_the_way_leaves_a_whole_file_and_no_instance(tmp_path: Path) -> None:
    class OwnError(Exception):
        pass

    def fail(progress: Progress) -> None:
        raise OwnError

    with pytest.raises(OwnError):
        record(RecordOptions(duration_s=30, mode="stream"), tmp_path / "t.txt", progress=fail)
    assert is_whole(tmp_path / "t.txt")
    assert comments(tmp_path / "t.txt", END_MARK) == [{"stopped_by": "error"}]
    assert len(events(tmp_path / "t.txt")) > 0


def test_progress_and_the_wish_to_stop(tmp_path: Path) -> None:
    told: list[Progress] = []
    done = record(RecordOptions(duration_s=0), tmp_path / "t.txt", stop=lambda: len(told) == 3, progress=told.append)
    assert done.stopped_by == "asked"
    recording = [step for step in told if step.phase == "recording"]
    assert [step.elapsed_s for step in recording] == sorted(step.elapsed_s for step in recording)
    assert len(recording) == 3
    assert recording[0].written < recording[-1].written <= done.bytes


def test_rotated_files_can_each_be_read(tmp_path: Path) -> None:
    told: list[Progress] = []
    options = RecordOptions(duration_s=60, rotate_bytes=1 << 20, keep=3)
    with busy_switching(min(os.sched_getaffinity(0))):
        done = record(
            options,
            tmp_path / "t.txt",
            stop=lambda: bool(told) and told[-1].written > 6 << 20,
            progress=told.append,
        )
    assert len(done.files) == 3
    assert sorted(tmp_path.iterdir()) == sorted(done.files)
    ends = []
    for path in done.files:
        assert path.stat().st_size < (1 << 20) + (1 << 19)
        trace = ftrace_text.read(path)
        assert trace.odd.count == 0
        assert is_whole(path)
        ends.append((trace.start_ns, trace.end_ns))
    assert ends == sorted(ends)
    assert all(a[1] <= b[0] for a, b in pairwise(ends))
    parts = [comments(path, HEAD_MARK)[0]["part"] for path in done.files]
    assert parts == list(range(parts[0], parts[0] + 3))
    assert parts[0] > 1
    assert done.bytes > sum(path.stat().st_size for path in done.files)
    assert [comments(path, END_MARK)[0]["stopped_by"] for path in done.files] == ["rotated", "rotated", "asked"]


def test_captures_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    results: dict[int, Recorded] = {}

    def capture(cpu: int) -> None:
        results[cpu] = quick(tmp_path / f"{cpu}.txt", 0.5, cpus=(cpu,))

    threads = [threading.Thread(target=capture, args=(cpu,)) for cpu in sorted(os.sched_getaffinity(0))[:2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == len(threads)
    for cpu, done in results.items():
        assert done.events == len(events(tmp_path / f"{cpu}.txt")) > 0
        assert {int(m["cpu"]) for m in events(tmp_path / f"{cpu}.txt")} == {cpu}


def test_a_second_capture_into_the_same_file_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    process = recording(tmp_path / "t.txt", "mode='stream'")
    with pytest.raises(ToolError) as caught:
        quick(tmp_path / "t.txt")
    assert caught.value.code is ErrorCode.BUSY
    process.terminate()
    assert process.communicate()[0] == "asked True\n"
    assert is_whole(tmp_path / "t.txt")


def test_trace_cmd_records_where_it_works_and_else_it_is_said_why_not(tmp_path: Path) -> None:
    why = trace_cmd.unavailable(RecordOptions())
    done = quick(tmp_path / "t", engine="trace-cmd")
    magic = (tmp_path / "t").read_bytes()[:10]
    if why is None:
        assert (done.engine, done.why, magic) == ("trace-cmd", "", b"\x17\x08\x44tracing")
    else:
        assert why.startswith("trace-cmd: ")
        assert (done.engine, done.why, magic) == ("tracefs", why, b"# tracer: ")
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_trace_cmd_is_not_asked_for_what_it_cannot_do(tmp_path: Path) -> None:
    done = quick(tmp_path / "t", engine="trace-cmd", mode="ring")
    assert done.engine == "tracefs"
    assert done.why.startswith("trace-cmd: ")


# --- disks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["ring", "stream"])
def test_a_capture_ends_well_before_the_disk_is_full(small_disk: Callable[[str], Path], mode: str) -> None:
    disk = small_disk("2m")
    with busy_switching(min(os.sched_getaffinity(0))):
        done = quick(disk / "t.txt", 3 if mode == "ring" else 60, mode=mode, min_free_bytes=1 << 20)
    assert done.stopped_by == "disk_guard"
    assert is_whole(disk / "t.txt")
    assert comments(disk / "t.txt", END_MARK) == [{"stopped_by": "disk_guard"}]
    assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize > 1 << 19


@pytest.mark.parametrize("mode", ["ring", "stream"])
def test_a_full_disk_leaves_a_whole_file_and_is_an_error(small_disk: Callable[[str], Path], mode: str) -> None:
    disk = small_disk("2m")
    with busy_switching(min(os.sched_getaffinity(0))), pytest.raises(ToolError) as caught:
        quick(disk / "t.txt", 3 if mode == "ring" else 60, mode=mode, min_free_bytes=0)
    assert caught.value.code is ErrorCode.DISK_FULL
    assert is_whole(disk / "t.txt")
    assert (disk / "t.txt").stat().st_size > 1 << 20
    assert ftrace_text.read(disk / "t.txt").odd.count == 0


def test_a_disk_without_room_is_refused_at_once(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("2m")
    with pytest.raises(ToolError) as caught:
        quick(disk / "t.txt", 30)
    assert caught.value.code is ErrorCode.DISK_FULL
    assert list(disk.iterdir()) == []


# --- hosts --------------------------------------------------------------------------------------------------


def test_without_tracefs_it_is_mounted_for_us_alone(tmp_path: Path) -> None:
    code = PREPARED + (
        "before = open('/proc/self/mounts').read()\n"
        "done = record(RecordOptions(duration_s=0.2), Path(sys.argv[1]))\n"
        "print(done.events > 0, done.why, 'tracefs' in before, open('/proc/self/mounts').read() == before)\n"
    )
    hidden = "umount /sys/kernel/debug/tracing 2>/dev/null; umount /sys/kernel/debug 2>/dev/null;"
    script = f'{hidden} while umount /sys/kernel/tracing 2>/dev/null; do :; done; exec "$@"'
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", code, str(tmp_path / "t.txt")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.stderr == ""
    # where the node has it mounted, who sees the node's processes has the node's
    node = any(os.path.exists(f"/sys/kernel/{place}/trace_clock") for place in ("tracing", "debug/tracing"))
    told = "" if node else "tracefs was not mounted: mounted for this process alone"
    assert done.stdout == f"True {told} False True\n"
    assert is_whole(tmp_path / "t.txt")


@pytest.mark.parametrize(("mounted", "code"), [(True, "no_privilege"), (False, "no_tracefs")])
def test_without_rights_one_line_says_so(tmp_path: Path, mounted: bool, code: str) -> None:
    program = PREPARED + (
        "import os\nos.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "try: record(RecordOptions(duration_s=0.2), Path(sys.argv[1]))\n"
        "except Exception as error: print(error)\n"
    )
    show = "mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing;"
    hide = show if mounted else "while umount /sys/kernel/tracing 2>/dev/null; do :; done;"
    script = f'umount /sys/kernel/debug/tracing /sys/kernel/debug 2>/dev/null; {hide} exec "$@"'
    tmp_path.chmod(0o777)
    argv = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-c", program, str(tmp_path / "t.txt")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{code}: ")
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_more_memory_than_there_is_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as caught:
        quick(tmp_path / "t.txt", buffer_kb=64 << 20)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert list(tmp_path.iterdir()) == []


def test_orphans_name_nobody_alive(tracefs: Tracefs) -> None:
    made = Instance.make(tracefs)
    try:
        assert made.name not in orphans(tracefs.instances())
    finally:
        made.remove()
        made.remove()
