"""The capture from within a program, as a training process would use it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from whystall.tools.collect.ftrace import ftrace_record, ftrace_record_start, ftrace_record_stop
from whystall.tools.collect.ftrace.tracefs import find
from whystall.tools.contract.errors import ErrorCode, ToolError

PREPARED = (
    "import os, sys, time\n"
    "from whystall.tools.collect.ftrace import ftrace_record, ftrace_record_start, ftrace_record_stop\n"
)


def instances_of(pid: int) -> list[str]:
    tracefs = find()
    try:
        return [name for name in tracefs.instances() if name.startswith(f"whystall-{pid}-")]
    finally:
        tracefs.close()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("tracing needs root")
    yield
    assert instances_of(os.getpid()) == []


def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `code` and see that it left nothing."""
    argv = [sys.executable, "-c", PREPARED + code, *map(str, arguments)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=60)
    assert instances_of(process.pid) == []
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def naps(text: str, tid: int) -> int:
    return len(re.findall(rf"sched_switch: prev_comm=.* prev_pid={tid} .* prev_state=S ", text))


def test_start_and_stop_around_any_code(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    ftrace_record_start(cpu=cpus)
    for _ in range(10):
        time.sleep(0.002)
    done = ftrace_record_stop(output=tmp_path / "ftrace.txt")
    assert done.cpus == tuple(cpus)
    assert done.lost == 0
    assert naps((tmp_path / "ftrace.txt").read_text(), threading.get_native_id()) >= 10


def test_a_block_is_recorded_also_when_it_raises(tmp_path: Path) -> None:
    threads = threading.active_count()

    def work() -> None:
        with ftrace_record(str(tmp_path / "t.txt"), "0", ["sched"]):
            assert threading.active_count() == threads  # none of ours beside the program's
            time.sleep(0.01)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    text = (tmp_path / "t.txt").read_text()
    assert text.count("# whystall-clocks: ") == 2
    assert '"cpus":[0]' in text


def test_only_this_process_and_what_it_starts(tmp_path: Path) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.001)"])
    try:
        with ftrace_record(tmp_path / "t.txt", only_self=True):
            thread = threading.Thread(target=lambda: [time.sleep(0.002) for _ in range(20)])
            thread.start()
            thread.join()
    finally:
        stranger.kill()
        stranger.wait()
    text = (tmp_path / "t.txt").read_text()
    assert thread.native_id is not None
    assert naps(text, thread.native_id) >= 20
    # a stranger is told of only where it is switched with us
    strangers = re.findall(rf"sched_switch: .*_pid={stranger.pid} .*", text)
    assert [line for line in strangers if f"_pid={thread.native_id} " not in line and "python" not in line] == []


def test_one_capture_per_process_but_blocks_nest(tmp_path: Path) -> None:
    ftrace_record_start(cpu=0)
    with pytest.raises(ToolError) as caught:
        ftrace_record_start()
    assert caught.value.code is ErrorCode.BUSY
    with ftrace_record(tmp_path / "inner.txt"):
        time.sleep(0.01)
    ftrace_record_stop(tmp_path / "outer.txt")
    assert (tmp_path / "inner.txt").stat().st_size > 0
    assert (tmp_path / "outer.txt").stat().st_size > 0
    with pytest.raises(ToolError) as caught:
        ftrace_record_stop(tmp_path / "more.txt")
    assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    "bad", [{"cpu": "1-"}, {"cpu": [8191]}, {"groups": ["x"]}, {"clock": "x"}, {"buffer_kb": 1}, {"buffer_kb": -5}]
)
def test_a_bad_wish_leaves_nothing(bad: dict[str, object]) -> None:
    with pytest.raises(ToolError) as caught:
        ftrace_record_start(**bad)  # type: ignore[arg-type]
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_a_place_that_cannot_be_written_ends_the_capture_all_the_same(tmp_path: Path) -> None:
    ftrace_record_start()
    with pytest.raises(ToolError) as caught:
        ftrace_record_stop(tmp_path / "missing" / "t.txt")
    assert caught.value.code is ErrorCode.IO_ERROR
    with pytest.raises(ToolError) as caught:
        ftrace_record_stop(tmp_path / "t.txt")
    assert caught.value.code is ErrorCode.NOT_FOUND


def test_a_capture_that_nobody_stops_ends_with_the_program(tmp_path: Path) -> None:
    assert run("ftrace_record_start()").returncode == 0
    assert run("ftrace_record_start(); 1 / 0").returncode == 1
    assert run("ftrace_record_start(); sys.exit(3)").returncode == 3


FORKS = """
from whystall.tools.collect.ftrace.tracefs import find
ftrace_record_start()
child = os.fork()
if child == 0:
    try:
        ftrace_record_stop(sys.argv[1] + ".child")
    except Exception as error:
        print(error.code.value, flush=True)
    {child}
time.sleep(0.05)
done = ftrace_record_stop(sys.argv[1])
print(done.events > 0, [n for n in find().instances() if f"-{{os.getpid()}}-" in n], flush=True)
os.kill(child, 9)
os.waitpid(child, 0)
"""


@pytest.mark.parametrize("child", ["time.sleep(60)", "sys.exit(0)"])
def test_forked_workers_neither_stop_it_nor_hold_it(tmp_path: Path, child: str) -> None:
    done = run(FORKS.format(child=child), tmp_path / "t.txt")
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["not_found", "True []"]
    assert [path.name for path in tmp_path.iterdir()] == ["t.txt"]


def test_a_worker_forked_inside_a_block_does_not_write_it(tmp_path: Path) -> None:
    code = (
        "with ftrace_record(sys.argv[1]):\n"
        "    child = os.fork()\n"
        "    if child: os.waitpid(child, 0)\n"
        "print(os.path.exists(sys.argv[1]), flush=True)\n"
    )
    done = run(code, tmp_path / "t.txt")
    assert done.stdout.splitlines() == ["False", "True"]


def test_a_ring_that_is_too_small_keeps_the_newest_and_says_so(tmp_path: Path) -> None:
    with ftrace_record(tmp_path / "t.txt", groups=["sched", "syscalls"], buffer_kb=64):
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            os.getppid()
        for _ in range(8):  # more than are asked for: a kernel may not tell each switch
            time.sleep(0.002)
    text = (tmp_path / "t.txt").read_text()
    assert re.search(r"^CPU:\d+ \[LOST \d+ EVENTS\]$", text, re.MULTILINE)
    assert re.search(r'# whystall-lost: {"cpu":\d+,"overrun":[1-9]', text)
    assert naps(text, threading.get_native_id()) >= 3
