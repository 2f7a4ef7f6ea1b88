"""A PyTorch job profiled by Kineto and captured by ftrace at the same time: the two lie right on each other.

Two truths that know neither profile nor alignment: what the job read from the trace's clock as the first and last thing
inside of its marked ranges, and the context switches of the sleeps in them. A range begins before its first reading and
ends after its last, so over all ranges the smallest distance at each edge bounds the error of the alignment from both
sides, whatever delays a busy machine adds to some.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from running import HERE

from whystall.tools.collect.ftrace import ftrace_record
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.alignment.align import Alignment, align, apply
from whystall.tools.timeline.alignment.check import evidence
from whystall.tools.timeline.ftrace import text as ftrace_text
from whystall.tools.timeline.lanes.build import thread_slices
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profiles import open_profile
from whystall.tools.timeline.sched import SchedTrace

BOUND_NS = 300_000  # entering a range takes the profiler 30 to 130 us, by machine
READ_NS = 5_000
"""What clocks read one after another may disagree."""


@dataclass
class Run:
    """One job: its trace and profile, and its own account."""

    trace: SchedTrace
    profile: Profile
    alignment: Alignment
    tid: int
    marks: list[tuple[int, int]]

    def ranges(self) -> pl.DataFrame:
        """The marked ranges on the trace's clock, by the profile."""
        frame = apply(self.profile, self.alignment).activities.filter(pl.col("name") == "marked")
        return frame.sort("start_ns")


def capture(directory: Path, clock: str) -> tuple[SchedTrace, Profile, dict[str, Any]]:
    """Trace, profile and log of one job."""
    with ftrace_record(directory / "trace.txt", clock=clock):
        command = [sys.executable, str(HERE / "torch_job.py"), str(directory / "trace.json.gz")]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
    return ftrace_text.read(directory / "trace.txt"), open_profile(directory), json.loads(done.stdout)


@pytest.fixture(scope="module", params=["mono", "mono_raw"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    clock: str = request.param
    trace, profile, log = capture(tmp_path_factory.mktemp(clock), clock)
    marks = [(entered[clock], leaving[clock]) for entered, leaving in log["marks"]]
    return Run(trace, profile, align(trace, profile), log["tid"], marks)


def test_aligned_edges_are_where_the_job_says_they_were(run: Run) -> None:
    ranges = run.ranges()
    assert ranges.height == len(run.marks) >= 20
    before = [entered - start for (entered, _), start in zip(run.marks, ranges["start_ns"], strict=True)]
    after = [end - leaving for (_, leaving), end in zip(run.marks, ranges["end_ns"], strict=True)]
    # the truth lies between -min(before) and min(after)
    assert -READ_NS <= min(before) <= BOUND_NS
    assert -READ_NS <= min(after) <= BOUND_NS
    assert run.alignment.residual_ns <= BOUND_NS


def test_the_sleeps_inside_are_in_the_trace(run: Run) -> None:
    slices = thread_slices(run.trace).filter((pl.col("tid") == run.tid) & (pl.col("state") == "sleeping"))
    entering, leaving = [], []
    for start, end in run.ranges().select("start_ns", "end_ns").rows():
        inside = slices.filter(
            pl.col("start_ns").is_between(start - READ_NS, end) & (pl.col("end_ns") <= end + READ_NS)
        )
        longest = inside.sort(pl.col("end_ns") - pl.col("start_ns")).tail(1)
        if longest.is_empty():
            continue  # this kernel does not tell every switch
        entering.append(longest["start_ns"].item() - start)
        leaving.append(end - longest["end_ns"].item())
    assert len(entering) >= len(run.marks) // 2
    assert -READ_NS <= min(entering) <= BOUND_NS
    assert -READ_NS <= min(leaving) <= BOUND_NS


def test_the_content_confirms_it(run: Run) -> None:
    assert run.alignment.notes == ()
    assert run.alignment.method == f"real > {run.trace.clock}"
    found = evidence(run.trace, apply(run.profile, run.alignment))
    assert found.points > 500
    assert found.kappa > 0.9


def test_a_clock_that_is_wrong_by_less_than_the_overlap_is_found_out(run: Run) -> None:
    """As if the wall clock had been read 6 ms late at both ends: within each sleep."""
    clocks = run.trace.table("clocks").with_columns(pl.col("real") + 6_000_000)
    wrong = replace(run.trace, tables={**run.trace.tables, "clocks": clocks})
    with pytest.raises(ToolError, match="did not run") as caught:
        align(wrong, run.profile)
    assert caught.value.code is ErrorCode.CLOCK_MISMATCH


def test_another_hour_is_no_overlap(run: Run) -> None:
    clocks = run.trace.table("clocks").with_columns(pl.col("real") + 3_600_000_000_000)
    wrong = replace(run.trace, tables={**run.trace.tables, "clocks": clocks})
    with pytest.raises(ToolError) as caught:
        align(wrong, run.profile)
    assert caught.value.code is ErrorCode.NO_OVERLAP


def test_the_tracers_default_clock_is_refused(tmp_path: Path, run: Run) -> None:
    with ftrace_record(tmp_path / "trace.txt", clock="local"):
        subprocess.run(["true"], check=True)
    with pytest.raises(ToolError, match="--clock mono_raw") as caught:
        align(ftrace_text.read(tmp_path / "trace.txt"), run.profile)
    assert caught.value.code is ErrorCode.CLOCK_MISMATCH


def test_a_profile_of_the_cpu_has_its_operators_steps_and_threads(run: Run) -> None:
    profile = run.profile
    assert (profile.source, profile.clock) == ("kineto", "real")
    assert ("no_device_work", "") in profile.notes
    assert {"aten::matmul", "aten::tanh"} <= set(profile.activities.filter(kind="operator")["name"])
    assert profile.steps.height == len(run.marks)
    assert set(profile.activities["tid"]) == {run.tid}
    assert set(run.ranges()["step"]) == set(profile.steps["step"])
