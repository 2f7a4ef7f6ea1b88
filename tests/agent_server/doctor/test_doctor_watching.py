"""What `doctor` tells of the watcher."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from whystall.agent_server.doctor.report_model import State
from whystall.agent_server.doctor.watching import watching


def written(home: Path, **changed: Any) -> None:
    cost = {"cpu_share": 0.004, "disk_bytes": 1 << 20, "min_ns": 1_000_000, "lost": 0, "reasons": []}
    job = {"id": "run:1", "name": "llama\x1b[2J", "processes": [{"pid": 1}, {"pid": 2}]}
    status = {
        "pid": os.getpid(),
        "running": True,
        "written": time.time(),
        "jobs": [job],
        "cost": cost,
        "memory_mib": 61.2,
        "counts": {"tickets": 1},
        **changed,
    }
    (home / "watch").mkdir(exist_ok=True)
    (home / "watch/status.json").write_text(json.dumps(status))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    return tmp_path


def test_a_running_watcher_is_shown_with_its_cost_and_inert_names(home: Path) -> None:
    written(home)
    check = watching()
    assert check.state is State.OK
    assert "llama" in check.found
    assert "\x1b" not in check.found
    assert "0.40 % of a core" in check.found


def test_processes_with_less_detail_are_shown_with_what_is_lost(home: Path) -> None:
    why = "40 s: less detail of process 812 at 2.10 % of its CPU time"
    cost = {"cpu_share": 0.004, "disk_bytes": 1 << 20, "min_ns": 5_000_000, "lost": 0, "reasons": [why]}
    written(home, cost={**cost, "lowered": {"812": 1_000_000_000, "815": 5_000_000}})
    assert "process 812, waits from 1000 ms; process 815, waits from 5 ms" in watching().found
    assert why in watching().found


def test_calls_of_accelerators_are_shown_with_what_was_lowered(home: Path) -> None:
    cost = {"cpu_share": 0.004, "disk_bytes": 1 << 20, "min_ns": 1_000_000, "lost": 0, "reasons": []}
    calls = {"detail": "waits", "functions": 9, "processes": 2, "cpu_share": 0.021}
    written(home, cost={**cost, "calls": calls})
    assert "only waits, as launches cost too much: 9 functions probed, used by 2 processes, 2.10 %" in watching().found
    written(home, cost={**cost, "calls": None})
    assert "accelerators" not in watching().found


def test_what_is_not_as_wanted_is_shown(home: Path) -> None:
    cost = {"cpu_share": 0.004, "disk_bytes": 0, "min_ns": 1_000_000, "lost": 0, "reasons": []}
    cost["notes"] = ["kept in memory only: /x: No space left on device\x1b[31m"]
    signs = [{"name": "/runs/1/beat", "unreadable": True}, {"name": "/runs/1/log", "unreadable": False}]
    written(home, cost=cost, progress=signs)
    found = watching().found
    assert "kept in memory only: /x: No space left on device" in found
    assert "cannot be read: /runs/1/beat" in found
    assert "/runs/1/log" not in found
    assert "\x1b" not in found


def test_profiles_that_are_not_stored_are_shown(home: Path) -> None:
    pushed = {"spans_sent": 4, "spans_lost": 2, "error": "server_error: HTTP 507\x1b[31m"}
    written(home, profiles=pushed)
    check = watching()
    assert check.state is State.LIMITED
    assert "4 spans sent, 2 lost" in check.found
    assert "HTTP 507" in check.found
    assert "\x1b" not in check.found
    written(home, profiles={**pushed, "error": ""})
    assert watching().state is State.OK


def test_no_watcher_is_no_fault(home: Path) -> None:
    assert watching().state is State.OK


@pytest.mark.parametrize("changed", [{"written": 1.0}, {"pid": 2**22 + 1}, {"cost": None}, {"jobs": 7}])
def test_a_dead_or_malformed_watcher_is_told(home: Path, changed: dict[str, Any]) -> None:
    written(home, **changed)
    assert watching().state is State.LIMITED
