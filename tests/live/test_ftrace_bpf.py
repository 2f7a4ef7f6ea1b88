"""The ebpf engine of the collector ``ftrace``, against what a child did and logged in the trace's own clock."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import polars as pl
import pytest
from scripted import Child, child

from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import program_ids
from whystall.bpf.trace import GROUPS, RECORD_BYTES, TraceConfig, TraceSession
from whystall.tools.collect.ftrace.bpf_decode import tables
from whystall.tools.collect.ftrace.bpf_engine import EVENT_TABLES, FtraceBpfEngine
from whystall.tools.collect.options import FtraceOptions
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import TargetParams
from whystall.tools.recording.collector import Capture, Need
from whystall.tools.recording.target import Target, resolve
from whystall.tools.recording.window import observe
from whystall.tools.timeline.clocks import ClockPoint
from whystall.tools.timeline.ftrace.holes import unseen_holes
from whystall.tools.timeline.sched import TABLES

MS = 1_000_000
ROOM = 1 << 26  # of a ring buffer: others may be busy on this machine, and we late to empty it
EVERYONE = Target(everything=True)
OLD_WAYS = dict.fromkeys(("current_btf", "switch_has_state", "pt_regs_helper"), False)
Row = dict[str, Any]


def asked(**options: int) -> FtraceOptions:
    """Groups of events by their names, and other options."""
    groups = frozenset(name for name in options if name in GROUPS)
    return FtraceOptions(groups, **{name: value for name, value in options.items() if name not in groups})  # type: ignore[arg-type]


def trace(
    subject: Child, target: Target = EVERYONE, until: str = "done", **options: int
) -> tuple[Capture, list[dict[str, Any]]]:
    """Trace from before the child's ``go`` until it logs ``until``; instants stay absolute, like the child's."""
    engine = FtraceBpfEngine()
    engine.load({"ftrace": asked(buffer_kb=ROOM >> 11, **options)}, target)
    try:
        with polled(engine.poll):
            subject.go()
            lines = subject.until(until)
        capture = engine.read()["ftrace"]
        assert capture.lost == 0
        return capture, lines
    finally:
        engine.close()


def raw(subject: Child, **config: Any) -> tuple[dict[str, pl.DataFrame], list[dict[str, Any]]]:
    """The same with a session of our own."""
    with TraceSession(TraceConfig(**config, ring_bytes=ROOM)) as session:
        with polled(session.poll):
            subject.go()
            lines = subject.until("done")
        seen = session.read()
    found = tables(seen.records, seen.losses, [], str)
    assert found["holes"].is_empty()
    return found, lines


@contextmanager
def polled(poll: Callable[[], object]) -> Iterator[None]:
    """Empty the ring buffer meanwhile, like the window does."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            poll()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def rows(capture: Capture, table: str, *where: pl.Expr) -> list[Row]:
    return capture.tables[table].filter(*where).rows(named=True) if where else capture.tables[table].rows(named=True)


def well_formed(capture: Capture) -> None:
    """What holds for every capture."""
    assert {name: frame.schema for name, frame in capture.tables.items()} == TABLES
    for name, frame in capture.tables.items():
        assert frame.null_count().sum_horizontal().sum() == 0, name
        by = next(column for column in ("at_ns", "start_ns", "mono") if column in frame.columns)
        assert frame[by].is_sorted(), name
    assert capture.proven
    assert capture.kept == sum(capture.tables[name].height for name in EVENT_TABLES)


ORPHANS = """
os.sched_setaffinity(0, {0}); go()
for i in range(400):
    if not (pid := os.fork()): os._exit(0 if os.fork() else time.sleep(0.002) or 0)
    os.waitpid(pid, 0); time.sleep(0.002)
"""
SLEEPS = """
import resource
os.sched_setaffinity(0, {0}); go(); rows = []
def reading(): return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw, time.monotonic_ns()
for i in range(1000): before = reading(); time.sleep(0.001); after = reading(); rows.append(before + after[::-1])
log(what="done", rows=rows); sys.stdin.readline()
"""


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_every_sleep_has_its_switches_and_its_waking(variants: dict[str, bool]) -> None:
    """Orphans make pid 1 run on the same CPU: some kernels do not tell switches from its threads. Then the thread's
    next switch away says since when it ran.
    """
    with child(ORPHANS) as noise, child(SLEEPS) as subject:
        noise.go()
        found, lines = raw(subject, variants=variants)
    tid = subject.pid
    story = found["switches"].filter((pl.col("prev_tid") == tid) | (pl.col("next_tid") == tid)).rows(named=True)
    wakings = found["wakeups"].filter(pl.col("tid") == tid).rows(named=True)
    holes = unseen_holes(found["switches"]).filter(pl.col("cpu") == 0)
    unseen = holes.select("start_ns", "end_ns").rows()
    slept = whole = 0
    for blocked, start, end, blocked_after in lines[-1]["rows"]:
        aways = [
            at for at, row in enumerate(story) if row["prev_state"] == "S" and row["prev_tid"] == tid
            and start <= row["at_ns"] <= end
        ]  # fmt: skip
        assert len(aways) == blocked_after - blocked
        if not aways:  # the timer came before the switch
            continue
        slept += 1
        away, back = story[aways[0]], story[aways[0] + 1]
        assert away["cpu"] == 0
        assert not away["preempted"]
        told = back["next_tid"] == tid
        arrived = back["at_ns"] if told else back["prev_arrived_ns"]
        slack = 0 if told else MS  # the scheduler's clock is read a while before the switch
        assert start + MS - slack <= arrived <= end + slack
        woken = [row for row in wakings if away["at_ns"] < row["at_ns"] < arrived + slack]
        if any(hole_start < arrived and hole_end > away["at_ns"] for hole_start, hole_end in unseen):
            assert [row["kind"] for row in woken] in ([], ["wakeup"], ["waking", "wakeup"])
            continue  # nothing that happens in the context of such a thread is told, wakings by a timer neither
        whole += 1
        assert [row["kind"] for row in woken] == ["waking", "wakeup"]
        assert {row["context"] for row in woken} <= {"hardirq", "softirq"}  # a timer's, not the thread's it came upon
        assert {row["target_cpu"] for row in woken} == {0}
        assert {row["prio"] for row in woken} == {120}
    assert slept > 900
    assert whole > 450


def test_arrivals_by_the_schedulers_account_agree_with_the_switches_told() -> None:
    with child(SLEEPS) as subject:
        capture, _ = trace(subject)
    well_formed(capture)
    chain = capture.tables["switches"].with_columns(
        before=pl.col("next_tid").shift(1).over("cpu"), since=pl.col("at_ns").shift(1).over("cpu")
    )
    told = chain.filter(pl.col("before") == pl.col("prev_tid"))
    running = told.filter(pl.col("prev_tid") != 0)
    error = (running["prev_arrived_ns"] - running["since"]).abs()
    assert running.height > 900
    assert error.quantile(0.9) < MS / 5  # type: ignore[operator]
    assert error.median() < MS / 20  # type: ignore[operator]
    assert set(told.filter(pl.col("prev_tid") == 0)["prev_arrived_ns"]) <= {0}  # the idle thread is not accounted
    broken = chain.filter(pl.col("before").is_not_null() & (pl.col("before") != pl.col("prev_tid")))
    assert capture.tables["holes"].filter(pl.col("why") == "unseen").height == broken.height


def test_switches_agree_with_the_kernels_own_count() -> None:
    """Voluntary and involuntary ones, two threads of one process in a fight for a CPU."""
    code = """
import resource
os.sched_setaffinity(0, {0})
def count(): r = resource.getrusage(resource.RUSAGE_THREAD); return r.ru_nvcsw, r.ru_nivcsw
def spin():
    while not over: sum(range(1000))
over = False
go()
threading.Thread(target=spin).start()
before, start = count(), time.monotonic_ns()
for i in range(100): time.sleep(0.002); sum(range(200000))
end, after = time.monotonic_ns(), count()
over = True
log(what="done", start=start, end=end, before=before, after=after); sys.stdin.readline()
"""
    with child(code) as subject:
        capture, lines = trace(subject)
    truth = lines[-1]
    mine = (pl.col("prev_tid") == subject.pid) & pl.col("at_ns").is_between(truth["start"], truth["end"])
    away = rows(capture, "switches", mine)
    voluntary = sum(not row["preempted"] for row in away)
    # between the count and the clock there may have been one more
    assert abs(voluntary - (truth["after"][0] - truth["before"][0])) <= 1
    assert abs(len(away) - voluntary - (truth["after"][1] - truth["before"][1])) <= 1
    assert voluntary >= 90


def test_forced_migrations_are_told() -> None:
    code = """
go(); moves = []
for i in range(20):
    start = time.monotonic_ns(); os.sched_setaffinity(0, {i % 2}); moves.append((start, time.monotonic_ns(), i % 2))
    time.sleep(0.001)
log(what="done", moves=moves); sys.stdin.readline()
"""
    with child(code) as subject:
        capture, lines = trace(subject)
    moved = rows(capture, "migrations", pl.col("tid") == subject.pid)
    ran = rows(capture, "switches", pl.col("prev_tid") == subject.pid)
    for start, end, to in lines[-1]["moves"][1:]:
        here = [row for row in moved if start <= row["at_ns"] <= end]
        assert [(row["from_cpu"], row["to_cpu"]) for row in here] == [(1 - to, to)]
        assert [row["cpu"] for row in ran if end <= row["at_ns"]][:1] == [to]


def test_names_and_the_life_of_threads() -> None:
    code = r"""
import subprocess
go()
with open("/proc/self/comm", "wb") as comm: comm.write(b"\x1b[31m evil: 1")
done = subprocess.Popen(["sleep", "0.01"]); done.wait()
other = []
def named():
    open("/proc/thread-self/comm", "w").write("second"); time.sleep(0.01); other.append(threading.get_native_id())
worker = threading.Thread(target=named); worker.start(); worker.join(); time.sleep(0.1)
log(what="done", other=other, sleep=done.pid); sys.stdin.readline()
"""
    with child(code) as subject:
        capture, lines = trace(subject)
    well_formed(capture)
    (thread,), sleep = lines[-1]["other"], lines[-1]["sleep"]
    life = rows(capture, "tasks", pl.col("tid").is_in([subject.pid, thread, sleep]))
    mine = [(row["kind"], row["other_tid"], row["text"]) for row in life if row["tid"] == subject.pid]
    assert mine[0] == ("rename", -1, r"\x1b[31m evil: 1")
    assert ("fork", thread, "") in mine
    assert [(row["kind"], row["text"]) for row in life if row["tid"] == thread] == [("rename", "second"), ("exit", "")]
    assert [row["kind"] for row in life if row["tid"] == sleep] == ["rename", "exec", "exit"]

    def names(tid: int) -> list[tuple[int, str]]:
        return [(row["pid"], row["comm"]) for row in rows(capture, "names", pl.col("tid") == tid)]

    python = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    assert names(os.getpid()) == [(os.getpid(), python)]
    assert names(subject.pid)[-1] == (subject.pid, r"\x1b[31m evil: 1")
    assert len(names(subject.pid)) == 2
    assert names(thread)[-1] == (subject.pid, "second")
    assert names(sleep)[-1] == (sleep, "sleep")
    # every thread that ran has a name, and all but those of which nothing but a switch was told a process
    ran = set(capture.tables["switches"]["next_tid"]) - {0}
    assert ran <= set(capture.tables["names"]["tid"])
    homeless = set(capture.tables["names"].filter(pl.col("pid") == -1)["tid"])
    assert not homeless & (set(capture.tables["wakeups"]["tid"]) | {os.getpid(), subject.pid, thread, sleep})


def test_interrupts_come_in_pairs_and_say_which_thread_they_stole_from() -> None:
    code = """
import socket
os.sched_setaffinity(0, {0})
one, two = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
two.bind(("127.0.0.1", 0)); one.connect(two.getsockname())
go(); start = time.monotonic_ns()
for i in range(200): one.send(b"x" * 1000); two.recv(2000)
log(what="done", start=start, end=time.monotonic_ns()); sys.stdin.readline()
"""
    with child(code) as subject:
        capture, lines = trace(subject, irq=1, softirq=1)
    well_formed(capture)
    truth = lines[-1]
    sent = rows(
        capture, "interrupts", pl.col("at_ns").is_between(truth["start"], truth["end"]), pl.col("tid") == subject.pid
    )
    received = [row for row in sent if row["soft"] and row["name"] == "NET_RX"]
    assert len([row for row in received if row["entry"]]) >= 200
    assert {(row["vector"], row["cpu"]) for row in received} == {(3, 0)}
    for (_, soft, vector), each in capture.tables["interrupts"].group_by("cpu", "soft", "vector", maintain_order=True):
        entries = each["entry"].to_list()
        inside = entries[not entries[0] : len(entries) - entries[-1]]  # one may have begun before, one last longer
        if soft:
            assert inside == [True, False] * (len(inside) // 2), vector
        else:
            assert all(name for name, entry in each.select("name", "entry").iter_rows() if entry)


LOCKS = """
lock = threading.Lock(); lock.acquire(); tids = []
def wait(): tids.append(threading.get_native_id()); lock.acquire()
waiter = threading.Thread(target=wait); waiter.start(); time.sleep(0.05)
go()
for i in range(30): os.getppid()
start = time.monotonic_ns(); lock.release(); waiter.join()
log(what="done", start=start, waiter=tids[0]); sys.stdin.readline()
"""


def test_a_lock_is_told_by_futex_calls_and_who_woke_whom() -> None:
    with child(LOCKS) as subject:
        capture, lines = trace(subject, futex=1)
    waiter, start = lines[-1]["waiter"], lines[-1]["start"]
    calls = rows(capture, "syscalls", pl.col("tid").is_in([waiter, subject.pid]), pl.col("at_ns") >= start)
    assert {row["name"] for row in calls} == {"futex"}
    wake = next(row for row in calls if row["tid"] == subject.pid and row["entry"])
    assert wake["arg1"] & 0x7F == 1  # FUTEX_WAKE
    assert wake["arg2"] == 1
    left = next(row for row in calls if row["tid"] == waiter and not row["entry"])
    assert (left["nr"], left["result"]) == (wake["nr"], 0)
    (waking,) = rows(capture, "wakeups", pl.col("tid") == waiter, pl.col("kind") == "waking")[:1]
    assert (waking["waker_tid"], waking["context"]) == (subject.pid, "task")
    assert wake["at_ns"] < waking["at_ns"] < left["at_ns"]


@pytest.mark.parametrize("variants", [{}, OLD_WAYS], ids=["newest", "oldest"])
def test_every_system_call_on_request(variants: dict[str, bool]) -> None:
    with child(LOCKS) as subject:
        found, _ = raw(subject, groups=frozenset({"syscalls"}), targets=frozenset({subject.pid}), variants=variants)
    calls = found["syscalls"].filter(pl.col("name") == "getppid", pl.col("tid") == subject.pid)
    assert calls["entry"].to_list() == [True, False] * 30
    assert set(calls.filter(~pl.col("entry"))["result"]) == {os.getpid()}
    assert {"read", "write", "futex"} <= set(found["syscalls"]["name"])


def test_only_the_target_and_only_some_cpus() -> None:
    with child(LOCKS) as subject, child(SLEEPS) as other:
        other.go()
        target = resolve(TargetParams(pid=subject.pid))
        capture, lines = trace(subject, target, irq=1, softirq=1, syscalls=1, only_target=1)
    well_formed(capture)
    mine = {subject.pid, lines[-1]["waiter"]}
    assert capture.tables["switches"].height > 0
    assert (
        capture.tables["switches"].filter(~pl.col("prev_tid").is_in(mine) & ~pl.col("next_tid").is_in(mine)).is_empty()
    )
    assert capture.tables["wakeups"].filter(~pl.col("tid").is_in(mine) & ~pl.col("waker_tid").is_in(mine)).is_empty()
    assert set(capture.tables["syscalls"]["tid"]) == mine
    assert set(capture.tables["interrupts"]["tid"]) <= mine
    assert ("target_only", "") in capture.not_seen
    assert capture.tables["holes"].is_empty()
    with child(SLEEPS) as subject:
        capture, _ = trace(subject, cpus=1 << 1, irq=1, softirq=1)
    well_formed(capture)
    for name in ("switches", "wakeups", "interrupts", "migrations"):
        assert set(capture.tables[name]["cpu"]) <= {1}, name
    assert subject.pid not in capture.tables["switches"]["next_tid"]
    assert subject.pid in capture.tables["names"]["tid"]


def test_children_of_the_target_are_followed_on_request() -> None:
    code = """
go()
pid = os.fork()
if not pid: time.sleep(0.01); os._exit(0)
os.waitpid(pid, 0); log(what="done", pid=pid); sys.stdin.readline()
"""
    for follow in (True, False):
        with child(code) as subject:
            target = Target(everything=False, pid=subject.pid, pids=[subject.pid], follow=follow)
            capture, lines = trace(subject, target, only_target=1, syscalls=1)
        slept = rows(capture, "syscalls", pl.col("tid") == lines[-1]["pid"], pl.col("name") == "clock_nanosleep")
        assert bool(slept) == follow


def test_what_does_not_fit_is_counted_per_cpu_and_lies_in_a_hole() -> None:
    """Beside a ring buffer that holds everything: the same events of the same process, those lost in the holes."""
    code = """
go()
def work(cpu):
    os.sched_setaffinity(threading.get_native_id(), {cpu})
    for i in range(1500): os.sched_yield(); time.sleep(0)
    time.sleep(0.01)
for turn in range(2):
    threads = [threading.Thread(target=work, args=(cpu,)) for cpu in (0, 1)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    log(what="turn"); sys.stdin.readline()
log(what="done"); sys.stdin.readline()
"""
    with child(code) as subject:
        config = {"groups": frozenset({"syscalls"}), "targets": frozenset({subject.pid})}
        with (
            TraceSession(TraceConfig(**config)) as big,  # type: ignore[arg-type]
            TraceSession(TraceConfig(**config, ring_bytes=1 << 15)) as small,  # type: ignore[arg-type]
        ):
            for _ in range(2):  # in between there is room again
                subject.go()
                subject.until("turn")
                small.poll()
            subject.go()
            subject.until("done")
            time.sleep(0.2)  # the threads end for good
            some, everything = small.read(), big.read()
    assert everything.losses == []
    whole, part = (tables(seen.records, seen.losses, [], str) for seen in (everything, some))
    holes = part["holes"].filter(pl.col("why") == "lost")
    names = sorted(EVENT_TABLES)
    height = {table: (whole[table].height, part[table].height) for table in names}
    missing = sum(all_ - some_ for all_, some_ in height.values())
    assert missing == holes["lost"].sum() > 5000
    assert holes.height >= 3
    for cpu in (0, 1):
        spans = holes.filter(pl.col("cpu") == cpu).select("start_ns", "end_ns", "lost").rows()
        assert spans
        here = sum(
            whole[t].filter(pl.col("cpu") == cpu).height - part[t].filter(pl.col("cpu") == cpu).height for t in names
        )
        assert here == sum(lost for _, _, lost in spans)
        # the two programs read the clock one after the other
        told = part["syscalls"].filter(pl.col("cpu") == cpu)["at_ns"].to_list()
        inside = [at for at in told if any(start + MS / 10 < at < end - MS / 10 for start, end, _ in spans)]
        assert inside == []


def test_tracing_ends_when_the_memory_is_full() -> None:
    with child(SLEEPS) as subject, TraceSession(TraceConfig(max_bytes=200 * RECORD_BYTES)) as session:
        mine = programs()
        assert mine
        subject.go()
        for _ in range(100):
            session.poll()
            time.sleep(0.01)
        assert not mine & linked()
        subject.until("done")
        seen = session.read()
    assert seen.start < seen.stopped < seen.end
    engine = FtraceBpfEngine()
    found = engine._tables(seen)
    assert 0 < found["switches"].height < 20_000
    assert found["switches"]["at_ns"].max() <= seen.stopped + MS  # type: ignore[operator]
    hole = found["holes"].filter(pl.col("why") == "stopped").row(0, named=True)
    assert (hole["start_ns"], hole["end_ns"], hole["cpu"], hole["lost"]) == (seen.stopped, seen.end, -1, -1)
    assert "cut_short" in dict(engine._blind_spots(seen))


def held(kind: str) -> frozenset[int]:
    found = set()
    for info in Path("/proc/self/fdinfo").iterdir():
        try:
            text = info.read_text()
        except OSError:
            continue
        if kind == "link" and "link_id:" not in text:
            continue
        found |= {int(line.split()[1]) for line in text.splitlines() if line.startswith("prog_id:")}
    return frozenset(found)


def programs() -> frozenset[int]:
    """Programs this process holds."""
    return held("any")


def linked() -> frozenset[int]:
    """Programs this process has attached."""
    return held("link")


def gone(mine: frozenset[int]) -> bool:
    until = time.monotonic() + 5
    while mine & program_ids() and time.monotonic() < until:
        time.sleep(0.02)
    return not mine & program_ids()


def test_idle_cpus_on_request() -> None:
    """On a machine whose CPUs are all busy it may take a while until one is idle."""
    for _ in range(100):
        with child("go(); time.sleep(0.3); log(what='done'); sys.stdin.readline()") as subject:
            capture, _ = trace(subject, power=1)
        idle = capture.tables["power"].filter(pl.col("kind") == "idle")
        if idle.height > 2:
            break
    well_formed(capture)
    assert idle.height > 2
    for _, each in idle.group_by("cpu"):  # the switch to and from an idle thread that did not get so far is no entry
        entered = (each["value"] >= 0).to_list()
        assert all(one != two for one, two in itertools.pairwise(entered))
        assert set(each.filter(pl.col("value") < 0)["value"]) <= {-1}


def test_block_requests_on_request(loop_device: str) -> None:
    code = """
import mmap
buffer = mmap.mmap(-1, 65536)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
go()
for i in range(20): os.pwrite(fd, buffer, i * 65536)
for i in range(13): os.preadv(fd, [memoryview(buffer)[:4096]], i * 65536)
log(what="done"); sys.stdin.readline()
"""
    with child(code, loop_device) as subject:
        capture, _ = trace(subject, block=1)
    well_formed(capture)
    mine = capture.tables["block"].filter(pl.col("device") == os.path.basename(loop_device))
    for operation, size, count, step in (("sync_write", 65536, 20, 128), ("read", 4096, 13, 128)):
        for phase in ("issue", "complete"):
            told = mine.filter(pl.col("phase") == phase, pl.col("operation") == operation)
            assert told.select("sector", "bytes").rows() == [(i * step, size) for i in range(count)]
    assert set(mine.filter(pl.col("phase") == "issue", pl.col("operation") == "read")["tid"]) == {subject.pid}


def test_a_window_stores_the_trace_from_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    with child(SLEEPS) as subject:
        subject.go()
        need = Need("ftrace", asked(irq=1, softirq=1, futex=1))
        target = resolve(TargetParams(pid=subject.pid))
        recording = anyio.run(lambda: observe([need], target, 0.5, [FtraceBpfEngine]))
    entry = recording.manifest.collectors["ftrace"]
    assert (entry.engine, entry.proven, entry.lost) == ("ebpf", True, 0)
    assert "sched_switch" in entry.hooks
    window = recording.manifest.window_ns
    switches = recording.table("ftrace.switches")
    assert switches["at_ns"].is_between(0, window).all()
    assert switches["prev_arrived_ns"].is_between(0, window).all()
    first, last = (ClockPoint(**row) for row in recording.table("ftrace.clocks").rows(named=True))
    assert first.mono <= recording.manifest.start_ns < recording.manifest.start_ns + window <= last.mono
    assert max(first.error_ns, last.error_ns) < MS


def test_close_leaves_nothing_attached_and_may_be_repeated() -> None:
    before = programs()
    for end in (FtraceBpfEngine.close, FtraceBpfEngine.stop):
        engine = FtraceBpfEngine()
        engine.load({"ftrace": asked(irq=1, softirq=1, syscalls=1, block=1, power=1)}, EVERYONE)
        mine = programs() - before
        assert len(mine) >= 10
        end(engine)
        engine.close()
        engine.close()
        assert engine.read() == {}
        engine.poll()
        assert gone(mine)


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(BpfError) as failure:
        make()
    return failure.value.code


def test_bad_input_is_refused_before_anything_is_attached() -> None:
    for config in (
        TraceConfig(targets=frozenset()),
        TraceConfig(targets=frozenset(range(1, 2000))),
        TraceConfig(groups=frozenset({"net"})),
        TraceConfig(cpus=frozenset()),
        TraceConfig(cpus=frozenset({9000})),
    ):
        assert refused(TraceSession(config).load) == "bad_config"
    assert refused(TraceSession(TraceConfig()).read) == "read_failed"
    with pytest.raises(ToolError) as failure:
        FtraceBpfEngine().load({"ftrace": asked(cpus=1 << 9000)}, EVERYONE)
    assert failure.value.code is ErrorCode.BAD_ARGUMENT


def test_without_privilege_it_says_so() -> None:
    code = """
import os
from whystall.tools.collect.ftrace.bpf_engine import FtraceBpfEngine
from whystall.tools.contract.errors import ToolError
from whystall.tools.recording.target import Target
os.setgid(65534); os.setuid(65534)
try: FtraceBpfEngine().load({}, Target(everything=True))
except ToolError as error: print(error.code.value, "|", error.remedy)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("no_privilege | "), (done.stdout, done.stderr)
