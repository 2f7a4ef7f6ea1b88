"""Samples of py-spy beside ours."""

from __future__ import annotations

import os
import sys
import time
from array import array
from pathlib import Path

import polars as pl
import pytest

from whystall.bpf.capture import Thread
from whystall.bpf.samples import Place, Samples
from whystall.tools.collect.frames import Call
from whystall.tools.collect.py_spy import EVENT, PySpy, parsed
from whystall.tools.collect.samples_decode import sample_tables
from whystall.tools.stacks.model import NO_TIME, StackProfile

TEXT = "<module> (job.py:4);work (job.py:3) 70\n<module> (job.py:4);fsync (libc.so.6) 7\nodd line\n 5\nx 1e9\n"


def test_folded_text_is_parsed_and_other_lines_are_left_out() -> None:
    first, second = parsed(9, TEXT)
    assert (first.pid, first.samples) == (9, 70)
    assert [(frame.name, frame.file, frame.line, frame.kind) for frame in first.frames] == [
        ("<module>", "job.py", 4, "python"),
        ("work", "job.py", 3, "python"),
    ]
    assert second.frames[-1].kind == "native"


def test_they_are_a_separate_event_without_times() -> None:
    samples = Samples(array("q", [100, 200]), array("i", [0, 0]), [Place(9, 9, 0, 1, 0)], 1)
    threads = {9: Thread(9, 9, b"python", False)}
    tables = sample_tables(samples, threads, lambda place: [Call("main", "/bin/x", 0, "native")], 10, parsed(9, TEXT))
    profile = StackProfile(tables, "ebpf", "mono")
    assert profile.events["name"].to_list() == ["cpu-clock", EVENT]
    assert profile.events["unit"].to_list() == ["ns", "samples"]
    by_event = dict(profile.samples.group_by("event").agg(weight=pl.col("weight").sum()).iter_rows())
    assert by_event == {0: 20.0, 1: 77.0}
    assert profile.samples["at_ns"].to_list() == [100, 200, NO_TIME, NO_TIME]


STAND_IN = """#!{python} -IS
# like py-spy, it writes its samples when it is interrupted; Python, as a shell cannot trap a SIGINT that CI ignores
import signal, sys, time
given = dict(zip(sys.argv, sys.argv[1:]))
def end(*_):
    open(given["--output"], "w").write(f"of_{{given['--pid']}} (a.py:1) 3\\n")
    sys.exit()
signal.signal(signal.SIGINT, {handler})
open(f"{folder}/ready_{{given['--pid']}}", "w")
time.sleep(60)
"""


def _start(folder: Path, pids: list[int], handler: str = "end") -> PySpy:
    """Start stand-ins, and wait until they have their signal handlers."""
    program = folder / "py-spy"
    program.write_text(STAND_IN.format(python=sys.executable, folder=folder, handler=handler))
    program.chmod(0o755)
    spy = PySpy(str(program), pids, 99)
    until = time.monotonic() + 30
    while not all((folder / f"ready_{pid}").exists() for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.01)
    return spy


def test_it_runs_until_it_is_stopped_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.tools.collect.py_spy._END_S", 30.0)
    spy = _start(tmp_path, [11, 12])
    folder, running = Path(spy._folder.name), [process.pid for process in spy._running.values()]
    assert sorted((one.pid, one.frames[0].name, one.samples) for one in spy.stop()) == [
        (11, "of_11", 3),
        (12, "of_12", 3),
    ]
    assert not folder.exists()
    for pid in running:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    spy.close()


def test_without_samples_the_result_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystall.tools.collect.py_spy._END_S", 0.2)
    assert _start(tmp_path, [1], "signal.SIG_DFL").stop() == []
    assert _start(tmp_path, [2, 3], "signal.SIG_IGN").stop() == []
    assert PySpy(str(tmp_path / "missing"), [1], 99).stop() == []
