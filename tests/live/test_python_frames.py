"""Python frames at samples and at switches, against programs that log which line did what."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kernel_sessions import KernelSession, kernel_session
from pythons import interpreters
from scripted import child

from whystall.bpf import layout, python_offsets, syscalls
from whystall.bpf.capture import Capture
from whystall.bpf.python_code import Frame

JOB = Path(__file__).parent / "workloads" / "python_job.py"
LINES = {
    found[1]: number
    for number, line in enumerate(JOB.read_text().splitlines(), 1)
    if (found := re.search(r"# LINE (\w+)", line))
}
OLD_WAYS = dict.fromkeys(
    ("task_storage", "pt_regs_helper", "current_btf", "loop_helper", "plain_loads", "switch_has_state"), False
)
# Of these, the ones that are here; .ci/install-test-pythons fetches what it can and says what it cannot.
WALKED = [name for name in ("3.10", "3.11", "3.11 system", "3.12", "3.13", "3.14") if name in interpreters()]
OWN = f"3.{sys.version_info[1]}"


@contextmanager
def job(command: list[str], folder: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The program, when it is about to begin."""
    with subprocess.Popen(
        [*command, str(JOB), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def watch(process: subprocess.Popen[str], config: partial[KernelSession]) -> tuple[Capture, dict[str, Any]]:
    assert process.stdin is not None
    assert process.stdout is not None
    with config() as session:
        process.stdin.write("go\n")
        process.stdin.flush()
        while not select.select([process.stdout], [], [], 0.1)[0]:
            session.poll()
        truth = json.loads(process.stdout.readline())
        return session.read(), truth


def stack(seen: Capture, number: int, tgid: int) -> list[Frame]:
    return seen.python.frames(seen.stacks[number].addresses, tgid) if number else []


def brief(frames: list[Frame]) -> list[tuple[str, int]]:
    """Last part of each name (3.10 knows no others) and line, of frames in the program's own files."""
    return [(frame.name.split(".")[-1], frame.line) for frame in frames if frame.file == str(JOB)]


@pytest.mark.parametrize(
    ("name", "variants"), [*((name, {}) for name in WALKED), (OWN, OLD_WAYS)], ids=[*WALKED, "oldest kernel"]
)
def test_every_version_says_which_line_runs_and_which_one_waits(
    name: str, variants: dict[str, bool], tmp_path: Path
) -> None:
    with job(interpreters()[name], tmp_path) as (process, started):
        pid, tids = process.pid, started["tids"]
        config = partial(
            kernel_session, targets=frozenset({pid}), python=True, syscalls=False, sample_ns=4_000_000, switch_min_ns=0,
            variants=variants,
        )  # fmt: skip
        seen, truth = watch(process, config)
    assert seen.lost == {}
    assert seen.python.refused == {}
    assert seen.python.processes == {pid: int(name.split()[0].split(".")[1])}
    assert seen.seen["python_broken"] <= 0.02 * seen.seen["python_walks"]

    # what runs
    places: Counter[int] = Counter(seen.samples.place)
    counts: Counter[str] = Counter()
    for number, count in places.items():
        place = seen.samples.places[number]
        if place.tid != pid:
            continue
        frames = [frame for frame in brief(stack(seen, place.pystack, pid)) if frame[0] != "burn"]
        if not frames:
            counts["other"] += count
            continue
        tail = [("main", frames[-2][1]), ("<module>", LINES_MODULE)] if len(frames) > 1 else []
        if frames[0] == ("heavy", LINES["heavy"]):
            mapped = [("<lambda>", LINES["mapped"]), ("sorted_by_python", LINES["mapped"])]
            assert frames == [("heavy", LINES["heavy"]), *mapped, *tail]
            counts["heavy"] += count
        elif frames[0] == ("light", LINES["light"]):
            assert frames == [("light", LINES["light"]), *[("light", LINES["deeper"])] * 4, *tail]
            counts["light"] += count
        else:
            counts["other"] += count
    total = sum(counts.values())
    assert total > 50
    assert counts["other"] <= 0.1 * total
    share = truth["heavy"] / (truth["heavy"] + truth["light"])
    hits = counts["heavy"] / (counts["heavy"] + counts["light"])
    assert abs(hits - share) < 4 * (share * (1 - share) / total) ** 0.5 + 0.02

    # what waits, some of it from before the window until behind it
    waits = {thread: [s for s in seen.segments if s.tid == tid and s.off_class != "R"] for thread, tid in tids.items()}
    for thread, inner in (("lock", ("holds_up", LINES["lock"])), ("pipe", ("reads", LINES["pipe"]))):
        (wait,) = waits[thread]
        assert wait.flags & layout.RECORD_OPEN
        assert wait.flags & layout.RECORD_SEEDED
        assert brief(stack(seen, wait.pystack, pid))[0] == inner
    naps = [
        wait
        for wait in waits["nap"]
        if syscalls.name(wait.nr) in ("clock_nanosleep", "pselect6") and truth["began"] < wait.end < truth["ended"]
    ]
    assert abs(len(naps) - truth["naps"]) <= 1
    sleeps = [brief(stack(seen, wait.pystack, pid)) for wait in naps if not wait.flags & layout.RECORD_SEEDED]
    assert set(map(tuple, sleeps)) == {(("napping", LINES["nap"]), ("naps_on", LINES["generator"]))}
    for thread, file, inner in (
        ("exec", "<string>", ("inner", 4)),
        ("zip", str(tmp_path / "packed.zip" / "träumt_夢.py"), ("schläft", 4)),
    ):
        begun = [w for w in waits[thread] if w.pystack or not w.flags & layout.RECORD_SEEDED]
        long = [w for w in begun if w.end - w.start > 15_000_000]
        assert len(long) > 2
        for wait in long:
            frames = stack(seen, wait.pystack, pid)
            assert (frames[0].file, (frames[0].name, frames[0].line)) == (file, inner)
            assert {"exec": "executes", "zip": "from_zip"}[thread] in [frame[0] for frame in brief(frames)]
    looping = [stack(seen, w.pystack, pid) for w in waits["loop"] if w.pystack and w.end - w.start > 15_000_000]
    assert looping
    assert all(frames[0].name.split(".")[-1] == "select" for frames in looping)
    assert all(("loops", LINES["loop"]) in brief(frames) for frames in looping)


LINES_MODULE = len(JOB.read_text().splitlines())  # the last line calls main

# Functions that differ in name and line, each freed before the next is made: all in the same memory. Then
# code in another interpreter of the same thread.
FRESH = """
import json, sys, time
now = time.monotonic_ns
def busy(end):
    while now() < end: pass
print(json.dumps({}), flush=True)
sys.stdin.readline()
log = []
for turn in range(400):
    gap = turn % 5
    fresh = {}
    name = f"fresh{turn % 7}"
    text = f"def {name}(now, end):\\n" + "\\n" * gap + " while now() < end: pass\\n"
    exec(compile(text, "<fresh>", "exec"), fresh)
    began = now()
    fresh[name](now, began + 1_000_000)
    log.append((began + 50_000, began + 950_000, name, 2 + gap))
    fresh.clear()
try:
    import _interpreters as inner
except ImportError:
    import _xxsubinterpreters as inner
number = inner.create()
began = now()
busy(began + 40_000_000)
log.append((began + 50_000, began + 39_000_000, "busy", 5))
began = now()
source = f"import time\\ndef inside():\\n while time.monotonic_ns() < {began + 60_000_000}: pass\\ninside()"
(inner.exec if hasattr(inner, "exec") else inner.run_string)(number, source)
log.append((began + 20_000_000, began + 59_000_000, "inside", 3))
began = now()
busy(began + 40_000_000)
log.append((began + 50_000, began + 39_000_000, "busy", 5))
print(json.dumps(log), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("name", WALKED)
def test_code_in_memory_that_is_used_again_and_in_another_interpreter(name: str) -> None:
    with subprocess.Popen(
        [*interpreters()[name], "-c", FRESH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            config = partial(
                kernel_session,
                targets=frozenset({process.pid}),
                python=True,
                syscalls=False,
                switches=False,
                sample_ns=500_000,
            )
            seen, truth = watch(process, config)
        finally:
            process.kill()
    checked: Counter[str] = Counter()
    for at, number in zip(seen.samples.at, seen.samples.place, strict=True):
        place = seen.samples.places[number]
        said = [(function, line) for begin, end, function, line in truth if begin < at < end]
        if place.pystack and said:
            frame = stack(seen, place.pystack, process.pid)[0]
            assert (frame.name, frame.line) == said[0]
            checked[frame.name.rstrip("0123456")] += 1
    assert checked["fresh"] > 100
    assert checked["busy"] > 20
    assert checked["inside"] > 10


FORKS = """
import ctypes
def in_child():
    time.sleep(0.15)
def burst():
    end = time.thread_time() + 0.1
    while time.thread_time() < end: pass
go()
pids = []
for _ in range(3):
    pid = os.fork()
    if not pid:
        burst()
        in_child()
        os._exit(0)
    pids.append(pid)
    os.waitpid(pid, 0)
log(what="done", pids=pids)
sys.stdin.readline()
"""


def test_children_that_are_gone_at_the_end_have_names() -> None:
    with child(FORKS) as subject:
        config = partial(
            kernel_session, targets=frozenset({subject.pid}), follow=True, python=True, syscalls=False,
            sample_ns=5_000_000, switch_min_ns=10_000_000,
        )  # fmt: skip
        with config() as session:
            subject.go()
            (done,) = [line for line in subject.until("done") if line["what"] == "done"]
            seen = session.read()
    assert seen.lost == {}
    for pid in done["pids"]:
        (sleep,) = [s for s in seen.segments if s.tgid == pid and s.end - s.start > 100_000_000 and s.off_class == "S"]
        assert [frame.name for frame in stack(seen, sleep.pystack, pid)] == ["in_child", "<module>"]
        names = {
            frames[0].name
            for place in seen.samples.places
            if place.tgid == pid and (frames := stack(seen, place.pystack, pid))
        }
        assert "burst" in names


def test_a_process_that_executes_python_during_the_window_is_found(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text("import time\ndef late():\n    time.sleep(0.1)\nfor _ in range(18): late()\n")
    starter = subprocess.Popen(["sh", "-c", f"sleep 0.3; exec {sys.executable} {script}"])
    try:
        config = partial(
            kernel_session,
            targets=frozenset({starter.pid}),
            python=True,
            syscalls=False,
            switch_min_ns=50_000_000,
            follow=True,
        )
        with config() as session:
            for _ in range(16):
                time.sleep(0.1)
                session.poll()
            seen = session.read()
    finally:
        starter.kill()
        starter.wait()
    stacks = [stack(seen, s.pystack, s.tgid) for s in seen.segments if s.tgid == starter.pid and s.pystack]
    assert len(stacks) >= 3
    assert {(frames[0].name, frames[0].line, frames[-1].name) for frames in stacks} == {("late", 3, "<module>")}


def test_numbers_of_another_pid_namespace(tmp_path: Path) -> None:
    script = tmp_path / "inside.py"
    script.write_text(
        "import threading, time\ndef naps():\n    while True: time.sleep(0.05)\n"
        "threading.Thread(target=naps, daemon=True).start()\nnaps()\n"
    )
    outer = subprocess.Popen(["unshare", "--pid", "--fork", sys.executable, str(script)])
    try:
        inner = _until(lambda: _children(outer.pid), "unshare made no namespace")[0]
        _until(lambda: len(os.listdir(f"/proc/{inner}/task")) == 2, "no thread")
        time.sleep(0.1)
        config = partial(
            kernel_session, targets=frozenset({inner}), python=True, syscalls=False, switch_min_ns=20_000_000
        )
        with config() as session:
            time.sleep(0.4)
            seen = session.read()
    finally:
        for pid in _children(outer.pid):
            os.kill(pid, signal.SIGKILL)
        outer.wait()
    assert seen.python.processes == {inner: sys.version_info[1]}
    by_thread = {
        tid: {brief_of(stack(seen, s.pystack, inner)) for s in seen.segments if s.tid == tid}
        for tid in {s.tid for s in seen.segments}
    }
    assert len(by_thread) == 2
    assert {stacks for found in by_thread.values() for stacks in found} == {
        ("naps", "<module>"),
        ("naps", "run", "_bootstrap_inner", "_bootstrap"),
    }


def brief_of(frames: list[Frame]) -> tuple[str, ...]:
    return tuple(frame.name.split(".")[-1] for frame in frames)


def _children(pid: int) -> list[int]:
    try:
        return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _until(found: Callable[[], Any], otherwise: str) -> Any:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if result := found():
            return result
        time.sleep(0.02)
    raise AssertionError(otherwise)


def test_a_version_that_cannot_be_walked_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for table in ("_BY_MINOR", "_PUBLISHED"):  # as if the own interpreter were of a version not known yet
        monkeypatch.setattr(python_offsets, table, {})
    script = tmp_path / "old.py"
    script.write_text("import time\nprint(1, flush=True)\nwhile True: time.sleep(0.02)\n")
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            config = partial(
                kernel_session, targets=frozenset({process.pid}), python=True, syscalls=False, switch_min_ns=0
            )
            with config() as session:
                time.sleep(0.2)
                seen = session.read()
        finally:
            process.kill()
    assert seen.python.refused == {process.pid: f"CPython {OWN}"}
    assert seen.segments
    assert all(not s.pystack for s in seen.segments)


SWITCHES = """
def many(n):
    if n: return many(n - 1)
    r, w = os.pipe(); s, t = os.pipe()
    def echo():
        while os.read(r, 1): os.write(t, b"x")
    threading.Thread(target=echo, daemon=True).start()
    def turn(n):
        if n: turn(n - 1)
        else:
            os.write(w, b"x"); os.read(s, 1)
    end, n = time.monotonic() + 1.5, 0
    while time.monotonic() < end:
        n += 1
        turn(n % 40)  # elsewhere each time: a place that was left shortly before is not walked again
    log(what="done")
go()
many(60)
sys.stdin.readline()
"""


def test_walking_at_switches_is_bounded_and_what_was_skipped_is_counted() -> None:
    with child(SWITCHES) as subject:
        config = partial(
            kernel_session, targets=frozenset({subject.pid}), python=True, syscalls=False, switch_min_ns=10**9
        )
        with config() as session:
            subject.go()
            subject.until("done")
            seen = session.read()
    waits = sum(total.count for total in seen.off_totals if total.off_class == "S")
    assert seen.seen["python_skipped"] > 100
    assert seen.seen["python_walks"] > 100
    reused = seen.seen["stacks_reused"]
    assert waits * 0.98 <= seen.seen["python_walks"] + seen.seen["python_skipped"] + reused <= waits * 1.02 + 10
    walked = sum(total.count for total in seen.off_totals if total.off_class == "S" and total.pystack)
    assert abs(walked - seen.seen["python_walks"] - reused) <= 0.02 * walked + 10


TURNS = """
import queue
def here(q): return q.get()
def there(q): return q.get()
there_, back = queue.SimpleQueue(), queue.SimpleQueue()
def answer():
    while True: back.put(there_.get())
threading.Thread(target=answer, daemon=True).start()
go()
end = time.monotonic() + 0.5
count = 0
while time.monotonic() < end:
    there_.put(1); (here if count % 3 else there)(back); count += 1
log(what="done", count=count)
sys.stdin.readline()
"""


def test_waits_that_follow_closely_have_their_own_lines() -> None:
    with child(TURNS) as subject:
        config = partial(
            kernel_session, targets=frozenset({subject.pid}), python=True, syscalls=False, switch_min_ns=10**9
        )
        with config() as session:
            subject.go()
            count = subject.until("done")[-1]["count"]
            seen = session.read()
    names: Counter[str] = Counter()
    for total in seen.off_totals:
        if total.tid == subject.pid and total.pystack:
            names[stack(seen, total.pystack, subject.pid)[0].name] += total.count
    assert seen.seen["stacks_reused"] > 0.5 * count
    assert 1.7 < names["here"] / names["there"] < 2.3


REUSED = """
go()
for number in range(300):
    scope = {"time": time}
    exec(compile(chr(10) * number + f"def made_{number}(): time.sleep(0.001)", f"/made/{number}.py", "exec"), scope)
    scope.popitem()[1]()
log(what="done")
sys.stdin.readline()
"""


def test_code_made_where_other_code_was_is_told_apart() -> None:
    with child(REUSED) as subject:
        config = partial(kernel_session, targets=frozenset({subject.pid}), python=True, syscalls=False, switch_min_ns=0)
        with config() as session:
            subject.go()
            subject.until("done")
            seen = session.read()
    made = []
    for segment in seen.segments:
        for frame in stack(seen, segment.pystack, subject.pid)[:1]:
            if frame.name.startswith("made_"):
                number = frame.name.removeprefix("made_")
                assert (frame.file, frame.line) == (f"/made/{number}.py", int(number) + 1)
                made.append(number)
    assert len(set(made)) >= 290
