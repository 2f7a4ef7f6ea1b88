"""Samples of threads in a /proc of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whystall.bpf.python_code import Frame
from whystall.bpf.syscalls import names
from whystall.tools.collect.proc_python import PythonStacks, Stack, agreed
from whystall.tools.collect.proc_sampler import ThreadSampler

MS = 1_000_000
NUMBERS = {name: number for number, name in names("x86_64").items()}
READ = f"{NUMBERS['read']} 0x3 0x7f00 0x10 0x0 0x0 0x0 0x7f10 0x7f20"


class Proc:
    """One process, 7, whose threads are as `set` says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "7/fd").mkdir(parents=True)
        (root / "7/fd/3").symlink_to("pipe:[41]")

    def set(self, tid: int, state: str, call: str, run_ms: int, wait_ms: int, slices: int) -> None:
        base = self.root / f"7/task/{tid}"
        base.mkdir(parents=True, exist_ok=True)
        (base / "stat").write_text(f"{tid} (w;x) {state} 1 " + " ".join(["0"] * 48))
        (base / "syscall").write_text(call)
        (base / "schedstat").write_text(f"{run_ms * MS} {wait_ms * MS} {slices}")
        (base / "io").write_text("syscr: 0\nsyscw: 0\n")
        (base / "stack").write_text("[<0>] pipe_read+0x1f/0x40\n" if state != "R" else "")


class Lines(PythonStacks):
    """Every thread is in the line of its number; `moves` is called as a stack is read."""

    moves: Any = None

    def waiting(self, pid: int, tid: int, memory: Any) -> Stack | None:
        if self.moves is not None:
            self.moves()
        return (Frame("wait", "/job/w.py", tid, True),)

    def running(self, pid: int, tid: int, memory: Any) -> Stack:
        return (Frame("work", "/job/w.py", tid, True),)


class NoMemory:
    """Memory that nothing is read from."""

    def __init__(self, pid: int) -> None: ...

    def close(self) -> None: ...


def sampler(proc: Proc, now: list[int], python: PythonStacks | None = None) -> ThreadSampler:
    return ThreadSampler(
        20 * MS,
        blocked_only=False,
        runs=True,
        python=python,
        root=str(proc.root),
        clock=lambda: now[0],
        memory=NoMemory,  # type: ignore[arg-type]
    )


def test_waits_and_runs_of_threads_fill_the_window(tmp_path: Path) -> None:
    proc, now = Proc(tmp_path), [0]
    sampling = sampler(proc, now, Lines())
    for scan in range(6):
        now[0] = 20 * scan * MS
        proc.set(8, "S", READ, 0, 0, 1)  # waits all along
        proc.set(9, "R", "running", 15 * scan + 1, 5 * scan, scan)
        proc.set(10, "S", READ, scan, 0, scan + 1)  # short waits
        sampling.scan([7])
    sampling.stop()
    segments = sampling.switch_tables()["segments"].rows(named=True)
    stacks = {row["stack"]: row["frames"] for row in sampling.switch_tables()["stacks"].rows(named=True)}
    (long,) = [row for row in segments if row["tid"] == 8]
    assert (long["start_ns"], long["end_ns"], long["sightings"], long["open"]) == (0, 100 * MS, 6, True)
    assert (long["object"], long["fd"], long["syscall"]) == ("pipe:[41]", 3, "read")
    assert stacks[long["ustack"]] == ["wait (w.py:8)"]
    short = [row for row in segments if row["tid"] == 10]
    assert [(row["end_ns"] - row["start_ns"], row["sightings"]) for row in short] == [(20 * MS, 1)] * 5
    waiting = [row for row in segments if row["tid"] == 9]
    assert {(row["state"], row["runnable_ns"]) for row in waiting} == {("R", 5 * MS)}
    totals = {row["tid"]: row for row in sampling.switch_tables()["totals"].rows(named=True)}
    assert (totals[8]["count"], totals[8]["max_ns"]) == (1, 100 * MS)
    assert (totals[10]["count"], totals[10]["total_ns"], totals[10]["max_ns"]) == (-1, 100 * MS, -1)
    tables = sampling.sample_tables(20 * MS)
    assert tables["samples"]["weight"].to_list() == [15 * MS] * 5
    assert tables["frames"].select("name", "line", "kind").rows() == [("work", 9, "python")]
    assert tables["threads"].rows() == [(0, 7, 9, "w;x")]


def test_nothing_is_kept_of_a_thread_that_ran_while_it_was_read(tmp_path: Path) -> None:
    proc, now, lines = Proc(tmp_path), [0], Lines()
    lines.moves = lambda: proc.set(8, "S", READ, 1, 0, 2)
    sampling = sampler(proc, now, lines)
    proc.set(8, "S", READ, 0, 0, 1)
    sampling.scan([7])
    lines.moves = None
    now[0] = 20 * MS
    sampling.scan([7])
    sampling.scan([7])
    sampling.stop()
    first = sampling.switch_tables()["segments"].row(0, named=True)
    assert (first["object"], first["fd"], first["ustack"]) == ("", -1, -1)


def word(code: int, instruction: int) -> int:
    return code << 24 | instruction


def test_two_readings_of_a_running_thread_agree_on_its_outer_frames() -> None:
    outer = [word(2, 5), word(1, 9)]
    assert agreed([word(3, 1), *outer], [word(3, 7), *outer]) == [word(3, 1), *outer]
    assert agreed([word(3, 1), *outer], [word(4, 1), word(2, 6), word(1, 9)]) == outer
    assert agreed([word(3, 1)], outer) == []
