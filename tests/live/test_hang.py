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
from hanging_table import DUE, score
from running import Running

from whystall.tools.timeline.rank_data.rank_list import rank_list

WHYSTALL = str(Path(sys.executable).with_name("whystall"))
RANKS = 4
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="reading the memory of other processes needs root")


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


LATE = [fault for fault, due in DUE.items() if due.doing and due.ddp]


@pytest.mark.parametrize(("fault", "ddp"), [(fault, number % 2 > 0) for number, fault in enumerate(LATE)])
def test_the_odd_rank_is_named_with_its_function(tmp_path: Path, fault: str, ddp: bool) -> None:
    with job(tmp_path, fault, *(["--ddp"] if ddp else [])) as truth:
        found = answer(truth["launcher"], tmp_path)
    assert score(fault, truth, found["data"]).right, found["data"]
    assert [one["subject"]["rank"] for one in found["findings"]] == [truth["rank"]]


def test_a_rank_in_another_collective_is_named(tmp_path: Path) -> None:
    with job(tmp_path, "takes_other_branch") as truth:
        found = answer(truth["launcher"], tmp_path)
    assert found["data"]["verdict"] == "mismatch"
    assert [one["rank"] for one in found["data"]["late"]] == [truth["rank"]]
    (finding,) = found["findings"]
    assert (finding["attributes"]["found"], finding["attributes"]["expected"]) == ("all_gather", "all_reduce")


@pytest.mark.parametrize("fault", ["raises", "is_killed", "raises_and_stays"])
def test_a_rank_that_has_failed_is_named(tmp_path: Path, fault: str) -> None:
    with job(tmp_path, fault) as truth:
        found = answer(truth["launcher"], tmp_path)
    data = found["data"]
    assert score(fault, truth, data).right, data
    assert data["failed"][0]["log"] == ("" if fault == "is_killed" else str(tmp_path / "log"))
    assert data["waiting"] == rank_list(rank for rank in range(RANKS) if rank != truth["rank"])
    assert 0 < data["waited_s"] < 60
    assert [one["kind"] for one in found["findings"]] == ["rank.failed"]


@pytest.mark.parametrize("ddp", [False, True])
def test_a_healthy_slow_job_is_not_hung(tmp_path: Path, ddp: bool) -> None:
    with job(tmp_path, "is_slow", *(["--ddp"] if ddp else [])) as truth:
        found = answer(truth["launcher"], tmp_path)
    assert (found["data"]["verdict"], found["data"]["late"], found["findings"]) == ("moving", [], [])
    assert {row["rank"] for row in found["data"]["rows"]} == set(range(RANKS))
