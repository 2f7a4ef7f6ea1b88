"""hang on real gloo jobs in which nothing was enabled: each rank's own log names the rank and the function."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from running import Running

WHYSTALL = str(Path(sys.executable).with_name("whystall"))
RANKS = 4
# What the odd rank is found to do; a program that computes is on a CPU, or waits for one.
DOING = {
    "sleeps": "sleep",
    "wants_lock": "lock",
    "reads_file": "pipe",
    "is_stopped": "stopped",
    "computes": "running",
}

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="reading the memory of other processes needs root"),
    pytest.mark.thorough,
]


@contextmanager
def job(directory: Path, fault: str, *options: str) -> Iterator[dict[str, Any]]:
    """A running job whose odd rank is in the fault (or has made steps, if it is slow only): what that rank logged."""
    rank = sum(map(ord, fault)) % RANKS
    arguments = ["--directory", directory, "--ranks", RANKS, "--rank", rank, *options, fault]
    with Running("hanging_job.py", *arguments) as program:
        logged = program.until("step", count=5) if fault == "is_slow" else program.until("fault")
        time.sleep(1)  # the others reach what they wait in
        yield {"launcher": program.pid, **logged}


def answer(launcher: int, home: Path) -> dict[str, Any]:
    command = [WHYSTALL, "run", "hang", "--pid", str(launcher), "--children", "--duration", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "WHYSTALL_HOME": str(home)})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("fault", "ddp"), [(fault, number % 2 > 0) for number, fault in enumerate(DOING)])
def test_the_odd_rank_is_named_with_its_function(tmp_path: Path, fault: str, ddp: bool) -> None:
    with job(tmp_path, fault, *(["--ddp"] if ddp else [])) as truth:
        found = answer(truth["launcher"], tmp_path)
    (late,) = found["data"]["late"]
    assert found["data"]["verdict"] == ("computing" if fault == "computes" else "late")
    assert (late["rank"], late["pid"]) == (truth["rank"], truth["rank_pid"])
    assert late["line"].startswith(f"Faults.{truth['function']} (hanging_job.py:")
    assert late["doing"] == DOING[fault]
    assert [one["subject"]["rank"] for one in found["findings"]] == [truth["rank"]]


def test_a_rank_in_another_collective_is_named(tmp_path: Path) -> None:
    with job(tmp_path, "takes_other_branch") as truth:
        found = answer(truth["launcher"], tmp_path)
    assert found["data"]["verdict"] == "mismatch"
    assert [one["rank"] for one in found["data"]["late"]] == [truth["rank"]]
    (finding,) = found["findings"]
    assert (finding["attributes"]["found"], finding["attributes"]["expected"]) == ("all_gather", "all_reduce")


@pytest.mark.parametrize(
    ("fault", "how", "code"),
    [("raises", "exited", 1), ("is_killed", "killed", 9), ("raises_and_stays", "raised", None)],
)
def test_a_rank_that_has_failed_is_named(tmp_path: Path, fault: str, how: str, code: int | None) -> None:
    with job(tmp_path, fault) as truth:
        found = answer(truth["launcher"], tmp_path)
    data = found["data"]
    assert (data["verdict"], data["late"]) == ("first_failure", [])
    (failed,) = data["failed"]
    assert (failed["rank"], failed["pid"], failed["how"], failed["code"]) == (
        truth["rank"],
        truth["rank_pid"],
        how,
        code,
    )
    if fault != "is_killed":
        assert failed["exception"] == "ValueError: no label in sample 17"
        assert failed["line"].startswith(f"{truth['function']} (hanging_job.py:")
        assert failed["log"] == str(tmp_path / "log")
    assert data["waiting"] == ", ".join(str(rank) for rank in range(RANKS) if rank != truth["rank"]) or data["waiting"]
    assert 0 < data["waited_s"] < 60
    assert [one["kind"] for one in found["findings"]] == ["rank.failed"]


@pytest.mark.parametrize("ddp", [False, True])
def test_a_healthy_slow_job_is_not_hung(tmp_path: Path, ddp: bool) -> None:
    with job(tmp_path, "is_slow", *(["--ddp"] if ddp else [])) as truth:
        found = answer(truth["launcher"], tmp_path)
    assert (found["data"]["verdict"], found["data"]["late"], found["findings"]) == ("moving", [], [])
    assert {row["rank"] for row in found["data"]["rows"]} == set(range(RANKS))
