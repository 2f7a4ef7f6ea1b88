"""Where /proc does not show every process, nothing is said of the host's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whystall.tools.collect import procfs_engine
from whystall.tools.collect.procfs_engine import ProcfsEngine
from whystall.tools.node import vantage
from whystall.tools.recording.collector import Options
from whystall.tools.recording.target import Target

EVERYTHING = Target(everything=True)
OURSELVES = Target(everything=False, pid=os.getpid(), comm="x", pids=[os.getpid()])
OF_PROCESSES = {"proc", "syscalls", "switches", "run_queue"}


def told(target: Target) -> set[str]:
    """The collectors that say that processes are hidden."""
    engine = ProcfsEngine()
    engine.load({name: Options() for name in (*OF_PROCESSES, "block", "interrupts")}, target)
    captures = engine.read()
    return {name for name, seen in captures.items() if [code for code, _ in seen.not_seen].count("hidden_processes")}


def test_what_goes_through_processes_says_that_some_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs_engine, "hidden_processes", lambda: "hidepid")
    assert told(EVERYTHING) == OF_PROCESSES
    assert told(OURSELVES) == set()


def test_where_all_are_shown_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(procfs_engine, "hidden_processes", lambda: None)
    assert told(EVERYTHING) == set()


def test_what_hides_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vantage, "pids_are_the_hosts", lambda _proc: True)
    assert vantage.hidden_processes(tmp_path) == "hidepid"
    (tmp_path / "1").mkdir()
    (tmp_path / "1/stat").write_text("1 (init) S 0")
    assert vantage.hidden_processes(tmp_path) is None
    monkeypatch.setattr(vantage, "pids_are_the_hosts", lambda _proc: False)
    assert vantage.hidden_processes(tmp_path) == "an own PID namespace"


def test_a_proc_of_processes_only_is_no_place_to_count(tmp_path: Path) -> None:
    assert not vantage.proc_is_whole(tmp_path)
    (tmp_path / "stat").touch()
    assert vantage.proc_is_whole(tmp_path)
