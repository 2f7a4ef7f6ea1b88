"""Ranks observed while they run: who enters last, and who slow_node_check names, on windows made by hand."""

from __future__ import annotations

import polars as pl
import pytest
from collective_windows import PID, Job

from whystall.tools.contract.errors import ToolError
from whystall.tools.ranks.collective_live import tool as collective_live
from whystall.tools.ranks.slow_node_check import tool as slow_node_check
from whystall.tools.ranks.traces.window import window_of, with_ranks
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.tables import TABLES

pytestmark = pytest.mark.thorough

SLOW = slow_node_check.Params(live=True)


def entered(recording: Recording) -> collective_live.Data:
    return collective_live.judge(recording, collective_live.Params(top=100)).data


@pytest.mark.parametrize("library", ["gloo", "mpi"])
def test_the_late_rank_is_named_by_both_tools(library: str) -> None:
    recording = Job(late_ms={2: 8}, library=library, environment=library == "mpi").recording()
    found = entered(recording)
    assert found.verdict == "late"
    (late,) = found.late
    assert (late.rank, late.pid, late.op, late.size_bytes) == (2, PID + 2, "all_reduce", 4096)
    assert (late.last, late.compared) == (80, 80)
    # between the bounds of what it sleeps, less what the last of the others differs from it by chance
    assert 6 < late.low_ms <= late.late_ms <= late.high_ms < 9
    judged = slow_node_check.judge(recording, SLOW)
    assert judged.data.verdict == "rank"
    (accused,) = judged.data.accused
    # it sleeps, which its host is not to blame for
    assert (accused.rank, accused.pid, accused.slow_class) == (2, PID + 2, "unattributed")
    (blocked,) = [row for row in accused.evidence if row.what == "blocked"]
    assert blocked.mine - blocked.peers == pytest.approx(8, rel=0.15)
    assert accused.lost_ms_per_step == pytest.approx(8, rel=0.15)
    assert ("steps_estimated", "") in judged.not_seen
    (following,) = judged.data.next  # there are no traces to compare
    assert (following.tool, following.rank, following.peer) == ("diagnose", 2, None)
    assert following.arguments == {"pid": PID + 2}


def test_a_rank_that_computes_longer_is_slow_in_computing() -> None:
    recording = Job(late_ms={1: 8}).recording()
    away = recording.table("switches.segments").filter(pl.col("pid") != PID + 1)  # never off the CPU
    own = recording.table("switches.segments").filter(
        (pl.col("pid") == PID + 1) & (pl.col("end_ns") - pl.col("start_ns") < 8_000_000)
    )
    tables = recording.tables() | {"switches.segments": pl.concat([away, own])}
    judged = slow_node_check.judge(Recording.in_memory(recording.manifest, tables), SLOW)
    assert [(row.rank, row.slow_class) for row in judged.data.accused] == [(1, "compute_slow")]


@pytest.mark.parametrize("changed", [{"state": "R"}, {"runnable_ns": 8_000_000}])
def test_a_rank_that_is_ready_but_gets_no_cpu_is_slow_on_its_host(changed: dict[str, str | int]) -> None:
    """Preempted, or ready for long after it was woken."""
    recording = Job(late_ms={1: 8}).recording()
    long = (pl.col("pid") == PID + 1) & (pl.col("end_ns") - pl.col("start_ns") >= 8_000_000)
    segments = recording.table("switches.segments").with_columns(
        **{name: pl.when(long).then(pl.lit(value)).otherwise(pl.col(name)) for name, value in changed.items()}
    )
    tables = recording.tables() | {"switches.segments": segments}
    judged = slow_node_check.judge(Recording.in_memory(recording.manifest, tables), SLOW)
    assert [(row.rank, row.slow_class) for row in judged.data.accused] == [(1, "host_slow")]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("library", ["gloo", "mpi", "nccl"])
def test_nobody_is_accused_in_a_healthy_job(seed: int, library: str) -> None:
    recording = Job(seed=seed, library=library, environment=True).recording()
    found = entered(recording)
    assert (found.verdict, found.late) == ("even", [])
    judged = slow_node_check.judge(recording, SLOW)
    assert judged.data.accused == []
    assert judged.data.verdict == ("cannot_tell" if library == "nccl" else "none")


def test_operations_that_were_only_enqueued_show_who_enqueues_late_and_accuse_nobody() -> None:
    recording = Job(library="nccl", late_ms={3: 6}, environment=True).recording()
    found = entered(recording)
    assert found.verdict == "late"
    assert [(row.rank, row.compared, row.last) for row in found.late] == [(3, 80, 80)]
    judged = slow_node_check.judge(recording, SLOW)
    assert (judged.data.verdict, judged.data.accused) == ("cannot_tell", [])


def test_enqueued_operations_of_unclear_order_are_not_compared() -> None:
    # each rank calls the same thing all the time, and the window of one begins half a period later
    recording = Job(library="nccl", environment=True, ops=(("all_reduce", 64),)).recording()
    calls = recording.table("collectives.calls").with_columns(
        pl.when(pl.col("pid") == PID + 1).then(pl.col(name) + 10_300_000).otherwise(pl.col(name)).alias(name)
        for name in ("start_ns", "end_ns", "queued_ns")
    )
    moved = Recording.in_memory(recording.manifest, recording.tables() | {"collectives.calls": calls})
    assert (entered(moved).verdict, entered(moved).matched) == ("unmatched", 0)


def test_calls_that_do_not_return_are_shown_with_who_is_outside() -> None:
    found = entered(Job(hangs_on=2).recording())
    (stuck,) = found.open
    assert (stuck.inside, stuck.outside, stuck.op, stuck.seq) == ("0-1, 3", "2", "all_reduce", 260)
    assert stuck.open_s > 0.19
    assert sum(row.open for row in found.rows) == 3


def test_a_rank_inside_a_call_since_before_is_found_by_its_stack() -> None:
    job = Job(steps=30).recording()
    calls = job.table("collectives.calls").filter(pl.col("pid") != PID + 1)
    stack = ["wait (threading.py:5)", "all_reduce (torch/distributed/distributed_c10d.py:2934)"]
    stack += ["wrapper (torch/distributed/c10d_logger.py:81)", "train (train.py:9)"]
    objects = job.tables()
    thread = {
        name: "" if kind == pl.String() else False if kind == pl.Boolean() else -1
        for name, kind in objects["objects.threads"].schema.items()
    }
    thread |= {"pid": PID + 1, "tid": PID + 1, "pystack": 0, "at_ns": 1}
    more = {
        "collectives.calls": calls,
        "objects.threads": pl.DataFrame([thread], objects["objects.threads"].schema),
        "objects.stacks": pl.DataFrame([(0, False, stack)], objects["objects.stacks"].schema, orient="row"),
    }
    found = entered(Recording.in_memory(job.manifest, objects | more))
    assert [(row.rank, row.function) for row in found.before] == [(1, "all_reduce")]


def test_numbers_that_also_count_sends_are_not_compared() -> None:
    """Ranks of a pipeline count different numbers of sends: equal numbers are then different operations."""
    recording = Job(sends=(0, 1, 2, 0), late_ms={1: 8}).recording()
    assert (window_of(recording).calls["seq"] == -1).all()
    assert [row.rank for row in entered(recording).late] == [1]
    assert [row.rank for row in slow_node_check.judge(recording, SLOW).data.accused] == [1]


def test_groups_of_torch_are_told_apart() -> None:
    recording = Job(pair=True, late_ms={0: 8}).recording()
    window = window_of(recording)
    assert {key: group.members for key, group in window.groups.items()} == {
        "gloo 0|0,1,2,3": (0, 1, 2, 3),
        "gloo 7|0,1": (0, 1),
    }
    found = entered(recording)
    assert [(row.rank, row.group) for row in found.late] == [(0, "0")]
    assert {row.group for row in found.rows} == {"0", "7"}


def test_two_jobs_in_one_window_are_refused() -> None:
    recording = Job(environment=True, library="mpi").recording()
    rows = recording.table("collectives.processes").with_columns(rank=pl.lit(0, pl.Int64))
    with pytest.raises(ToolError, match="several of these processes are rank 0"):
        entered(Recording.in_memory(recording.manifest, recording.tables() | {"collectives.processes": rows}))


def test_processes_without_a_rank_are_reported() -> None:
    recording = Job(library="mpi").recording()
    judged = collective_live.judge(recording, collective_live.Params())
    assert (judged.data.verdict, judged.data.calls) == ("no_calls", 0)
    assert judged.not_seen == [("ranks_unknown", f"pid {PID}, {PID + 1}, {PID + 2}, {PID + 3}")]


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_few_calls_are_no_evidence(steps: int) -> None:
    recording = Job(steps=steps, late_ms={1: 50}).recording()
    found = entered(recording)
    assert (found.verdict, found.late) == ("few" if steps else "no_calls", [])
    assert slow_node_check.judge(recording, SLOW).data.verdict == "cannot_tell"


def test_the_tables_of_ranks_have_their_columns_and_recorded_ranks_stay() -> None:
    recording = with_ranks(Job(steps=12).recording())
    for name, schema in TABLES.items():
        assert recording.table(f"ranks.{name}").schema == schema
    assert recording.table("ranks.ranks")["source"].to_list() == ["live"] * 4
    assert with_ranks(recording) is recording
