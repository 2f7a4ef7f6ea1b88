"""Flame graphs of one rank of real jobs: all the time its threads were in something, as `json` alone adds it up."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.profiles.common.open_stacks import open_stacks
from whystall.tools.profiles.flame_graph.tool import Params, judge
from whystall.tools.stacks.recorded import recording_of

JOBS = sorted(path.parent for path in Path(__file__).parents[2].joinpath("recorded", "ranks").glob("*/truth.json"))


def busy_ns(path: Path) -> int:
    """For how long the threads of a trace were in anything: the union of each one's spans."""
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X" and "dur" in event]
    spans: dict[object, list[tuple[int, int]]] = {}
    for event in events:
        if event["cat"] != "Trace":
            start = int(Decimal(str(event["ts"])) * 1000)
            spans.setdefault((event["pid"], event["tid"]), []).append(
                (start, start + int(Decimal(str(event["dur"])) * 1000))
            )
    total = 0
    for of_thread in spans.values():
        until = 0
        for start, end in sorted(of_thread):
            total += max(end, until) - max(start, until)
            until = max(end, until)
    return total


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_rank_of_a_real_job(job: Path) -> None:
    profile = open_stacks(job, rank=3) if (job / "rank3.json.gz").exists() else open_stacks(job, rank=1)
    rank = 3 if (job / "rank3.json.gz").exists() else 1
    assert profile.samples["weight"].sum() == pytest.approx(busy_ns(job / f"rank{rank}.json.gz"), rel=1e-4)
    data = judge(recording_of(profile), Params(top=200)).data
    assert data.event == "host"
    assert {"annotation"} <= {row.kind for row in data.kinds}


def test_there_are_jobs() -> None:
    assert len(JOBS) > 5


def test_one_of_several_ranks_must_be_chosen() -> None:
    with pytest.raises(ToolError) as caught:
        open_stacks(JOBS[0])
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert "choose one by rank: 0, 1" in caught.value.remedy


def test_the_steps_of_a_rank_add_up_to_what_lies_in_steps() -> None:
    job = JOBS[0]
    with pytest.raises(ToolError) as caught:
        open_stacks(job, rank=1, step=10**6)
    numbers = [int(number) for number in caught.value.remedy.removeprefix("there are: ").split(", ...")[0].split(", ")]
    whole = open_stacks(job, rank=1).samples["weight"].sum()
    parts = [open_stacks(job, rank=1, step=number).samples["weight"].sum() for number in numbers]
    assert len(parts) > 3
    assert all(part > 0 for part in parts)
    assert sum(parts) <= whole
