"""ftrace_capture on traces made by hand: every number is known."""

from __future__ import annotations

import csv
import io
from typing import Any

import polars as pl
import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import parse_params
from whystall.tools.contract.registry import Judgement
from whystall.tools.contract.result import Status
from whystall.tools.host import ftrace_capture
from whystall.tools.recording.collector import merge_needs
from whystall.tools.recording.judging import judge as envelope
from whystall.tools.recording.store import Recording
from whystall.tools.recording.target import Target
from whystall.tools.timeline.recorded import recording_of
from whystall.tools.timeline.sched import TABLES, SchedTrace

MS = 1_000_000
TRAIN, LOADER, SPINNER = 4000, 4001, 5000
Row = dict[str, Any]


def table(name: str, rows: list[Row]) -> pl.DataFrame:
    blank = {column: "" if kind == pl.String else kind == pl.Boolean and False for column, kind in TABLES[name].items()}
    return pl.DataFrame([blank | row for row in rows], schema=TABLES[name])


def switch(ms: float, cpu: int, prev: int, state: str, following: int) -> Row:
    return {
        "at_ns": int(ms * MS),
        "cpu": cpu,
        "prev_tid": prev,
        "prev_prio": 120,
        "prev_state": state,
        "preempted": state == "R" and prev > 0,
        "next_tid": following,
        "next_prio": 120,
    }


def trace(**tables: list[Row]) -> SchedTrace:
    """100 ms on two CPUs. On CPU 0 TRAIN until 40, SPINNER until 60, TRAIN until 100; on 1 LOADER from 50 to 80."""
    rows: dict[str, list[Row]] = {
        "switches": [
            switch(0, 0, 0, "R", TRAIN),
            switch(0, 1, LOADER, "S", 0),
            switch(40, 0, TRAIN, "R", SPINNER),
            switch(50, 1, 0, "R", LOADER),
            switch(60, 0, SPINNER, "S", TRAIN),
            switch(80, 1, LOADER, "S", 0),
            switch(100, 0, TRAIN, "S", 0),
            switch(100, 1, 0, "R", LOADER),
        ],
        "wakeups": [
            {"at_ns": 50 * MS, "cpu": 1, "kind": "waking", "waker_tid": 0, "context": "hardirq", "tid": LOADER},
        ],
        "names": [
            {"at_ns": 0, "tid": TRAIN, "pid": TRAIN, "comm": "train"},
            {"at_ns": 0, "tid": LOADER, "pid": TRAIN, "comm": "old"},
            {"at_ns": 50 * MS, "tid": LOADER, "pid": TRAIN, "comm": "=loader"},
        ],
    }
    frames = {name: table(name, (rows | tables).get(name, [])) for name in TABLES}
    return SchedTrace(frames, 0, 100 * MS, (0, 1), "mono")


def recording(target: Target | None = None, **tables: list[Row]) -> Recording:
    made = recording_of(trace(**tables))
    made.manifest.target = target or Target(everything=False, pid=TRAIN, comm="train", pids=[TRAIN])
    return made


def judged(top: int = 10, **tables: list[Row]) -> Judgement[ftrace_capture.Data]:
    return ftrace_capture.judge(recording(**tables), ftrace_capture.Params(top=top))


def test_each_cpu_has_its_shares() -> None:
    first, second = judged().data.cpus
    assert (first.cpu, first.busy_pct, first.idle_pct, first.unknown_pct) == (0, 100, 0, 0)
    assert (second.cpu, second.busy_pct, second.idle_pct, second.unknown_pct) == (1, 30, 70, 0)
    assert (first.switches, first.involuntary) == (4, 1)
    assert (second.switches, second.involuntary) == (4, 0)


def test_threads_are_sorted_by_what_they_used_and_carry_their_last_name() -> None:
    data = judged().data
    assert [(t.tid, t.comm, t.pid) for t in data.threads] == [
        (TRAIN, "train", TRAIN),
        (LOADER, "=loader", TRAIN),
        (SPINNER, "", -1),
    ]
    train, loader, spinner = data.threads
    assert (train.running_ms, train.runnable_ms, train.voluntary, train.involuntary) == (80, 20, 1, 1)
    assert (loader.running_ms, loader.voluntary, loader.involuntary) == (30, 2, 0)
    assert (spinner.running_ms, spinner.running_pct) == (20, 20)
    assert [t.of_target for t in data.threads] == [True, True, False]
    assert [t.tid for t in data.preempted] == [TRAIN]


def test_interrupts_count_without_what_is_nested_in_them() -> None:
    def event(ms: float, entry: bool, soft: bool, vector: int) -> Row:
        return {"at_ns": int(ms * MS), "cpu": 1, "tid": 0, "soft": soft, "entry": entry, "vector": vector, "name": "x"}

    interrupts = [event(10, True, True, 3), event(12, True, False, 40), event(13, False, False, 40)]
    interrupts += [event(20, False, True, 3)]
    cpu = judged(interrupts=interrupts).data.cpus[1]
    assert (cpu.softirqs, cpu.softirq_pct) == (1, pytest.approx(9))
    assert (cpu.irqs, cpu.irq_pct) == (1, pytest.approx(1))


def test_migrations_count_where_they_lead_and_for_whom() -> None:
    moves = [{"at_ns": 45 * MS, "cpu": 0, "tid": LOADER, "from_cpu": 0, "to_cpu": 1}]
    data = judged(migrations=moves).data
    assert [cpu.migrations for cpu in data.cpus] == [0, 1]
    assert {t.tid: t.migrations for t in data.threads} == {TRAIN: 0, LOADER: 1, SPINNER: 0}


def test_holes_are_told_by_cpu_and_reason() -> None:
    holes = [
        {"start_ns": 1 * MS, "end_ns": 2 * MS, "cpu": 0, "lost": 5, "why": "lost"},
        {"start_ns": 20 * MS, "end_ns": 24 * MS, "cpu": 0, "lost": -1, "why": "lost"},
        {"start_ns": 70 * MS, "end_ns": 71 * MS, "cpu": 1, "lost": -1, "why": "unseen"},
    ]
    judgement = judged(holes=holes)
    assert [hole.model_dump() for hole in judgement.data.holes] == [
        {"cpu": 0, "why": "lost", "count": 2, "total_ms": 5, "max_ms": 4, "lost": 5},
        {"cpu": 1, "why": "unseen", "count": 1, "total_ms": 1, "max_ms": 1, "lost": -1},
    ]
    assert [cpu.lost for cpu in judgement.data.cpus] == [5, 0]
    assert judgement.data.cpus[0].unknown_pct == pytest.approx(23)  # nothing was told between the two either
    assert judgement.not_seen == [("untold_switches", "1")]


def test_the_table_holds_every_thread_and_no_formula() -> None:
    judgement = judged(top=1)
    assert len(judgement.data.threads) == 1
    assert judgement.totals == {"cpus": 2, "threads": 3, "preempted": 1, "holes": 0}
    (artifact,) = judgement.artifacts
    rows = list(csv.DictReader(io.StringIO(artifact.text)))
    assert [row["tid"] for row in rows] == [str(TRAIN), str(LOADER), str(SPINNER)]
    assert rows[1]["comm"] == "'=loader"


def test_the_tool_accuses_nobody() -> None:
    judgement = judged()
    assert judgement.findings == []
    assert judgement.seen == 9
    assert judgement.data.events["switches"] == 8
    assert ftrace_capture.TOOL.kinds == frozenset()


def test_a_trace_without_a_switch_is_no_data_only_when_it_is_proven(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    made = recording(switches=[], wakeups=[])
    assert envelope(ftrace_capture.TOOL, made, ftrace_capture.Params()).status is Status.PARTIAL
    made.manifest.collectors["ftrace"].proven = True
    result = envelope(ftrace_capture.TOOL, made, ftrace_capture.Params())
    assert result.status is Status.NO_DATA
    assert result.data.threads == []
    assert [cpu.busy_pct for cpu in result.data.cpus] == [0, 0]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"irq": 1, "softirq": 1}),
        ({"cpus": "0,2-3", "groups": " futex , "}, {"futex": 1, "cpus": 0b1101}),
        ({"groups": "", "buffer_mb": 0.5, "only_target": True, "pid": 1}, {"only_target": 1, "buffer_kb": 512}),
    ],
)
def test_parameters_become_options_of_the_collector(given: dict[str, Any], options: dict[str, int]) -> None:
    params = parse_params(ftrace_capture.Params, given)
    assert merge_needs(ftrace_capture.TOOL.needs(params))["ftrace"].as_dict() == options


@pytest.mark.parametrize("given", [{"cpus": "1-"}, {"groups": "irq;id"}, {"buffer_mb": 2000}, {"cpu": "0"}])
def test_bad_parameters_are_refused_in_one_line(given: dict[str, Any]) -> None:
    with pytest.raises(ToolError) as caught:
        parse_params(ftrace_capture.Params, given)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert "\n" not in str(caught.value)
