"""Profiles onto traces' clocks: exact where the clocks allow, with a residual where they differ, refused else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import polars as pl
import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BLIND_SPOTS
from whystall.tools.timeline.alignment.align import DRIFT_LIMIT_PPM, Alignment, align, apply
from whystall.tools.timeline.alignment.check import evidence
from whystall.tools.timeline.profile import ACTIVITIES, STEPS, ClockBridge, Profile
from whystall.tools.timeline.sched import TABLES, SchedTrace, empty_tables

MS, SECOND = 1_000_000, 1_000_000_000
PID, TID = 700, 701
REAL = 1_795_000_000 * SECOND
MONO = 14_000 * SECOND
RAW = MONO - 250 * MS
"""The clocks at the start of the trace."""
LENGTH = 2 * SECOND
PERIOD, BUSY = 20 * MS, 4 * MS
"""The thread works 4 ms of every 20 ms."""

Point = tuple[int, int, int, int]


def point(at: int, *, raw_ppm: int = 0, step: int = 0, error: int = 300) -> dict[str, int]:
    """The clocks `at` ns after the start: `raw_ppm`: how much faster mono_raw runs; `step`: the wall clock was set."""
    raw = RAW + at + at * raw_ppm // 10**6
    return {"mono": MONO + at, "mono_raw": raw, "boot": MONO + at + 7, "real": REAL + at + step, "error_ns": error}


def trace(
    clock: str = "mono",
    points: Sequence[dict[str, int]] = (point(0), point(LENGTH)),
    *,
    start: int | None = None,
    busy: int = BUSY,
    cpus: tuple[int, ...] = (0, 1),
    other_cpu: bool = False,
    named: bool = True,
) -> SchedTrace:
    """A thread on CPU 0 that runs the first `busy` of each `PERIOD` and then sleeps, on the trace's `clock`."""
    begin = start if start is not None else {"mono_raw": RAW, "mono": MONO, "boot": MONO + 7}.get(clock, MONO)
    switches, wakeups = [], []
    common = {"cpu": 0, "prev_prio": 120, "next_prio": 120, "prev_arrived_ns": 0, "preempted": False}
    for at in range(begin + MS, begin + LENGTH - PERIOD, PERIOD):
        switches.append({**common, "at_ns": at, "prev_tid": 0, "prev_state": "R", "next_tid": TID})
        switches.append({**common, "at_ns": at + busy, "prev_tid": TID, "prev_state": "S", "next_tid": 0})
        wake = {
            "cpu": 1,
            "waker_tid": 9,
            "context": "task",
            "prio": 120,
            "tid": TID,
            "target_cpu": 1 if other_cpu else 0,
        }
        wakeups += [{**wake, "at_ns": at - 5_000, "kind": kind} for kind in ("waking", "wakeup")]
    tables = empty_tables()
    tables["switches"] = pl.DataFrame(switches, schema=TABLES["switches"])
    tables["wakeups"] = pl.DataFrame(wakeups, schema=TABLES["wakeups"])
    tables["clocks"] = pl.DataFrame(list(points), schema=TABLES["clocks"])
    if named:
        name = {"at_ns": begin, "tid": TID, "pid": PID, "comm": "python"}
        tables["names"] = pl.DataFrame([name], schema=TABLES["names"])
    return SchedTrace(tables=tables, start_ns=begin, end_ns=begin + LENGTH, cpus=cpus, clock=clock)


def profile(
    begin: int = REAL,
    *,
    clock: str = "real",
    source: str = "kineto",
    bridges: tuple[ClockBridge, ...] = (),
    pid: int = PID,
    tid: int = TID,
    shift: int = 0,
) -> Profile:
    """The operators of that thread: one per period, 1 ms into its work and 2 ms long; `shift`: all of them so late."""
    rows = [
        {"start_ns": at, "end_ns": at + 2 * MS, "kind": "operator", "name": "op", "pid": pid, "tid": tid,
         "device": -1, "stream": -1, "correlation": -1, "step": 3}
        for at in range(begin + 2 * MS + shift, begin + LENGTH - PERIOD + shift, PERIOD)
    ]  # fmt: skip
    step = {"start_ns": begin + shift, "end_ns": begin + LENGTH + shift, "step": 3, "pid": pid, "tid": tid}
    tables = {"activities": pl.DataFrame(rows, schema=ACTIVITIES), "steps": pl.DataFrame([step], schema=STEPS)}
    return Profile(tables=tables, clock=clock, source=source, bridges=bridges)


def refused(code: ErrorCode, of: SchedTrace, what: Profile) -> ToolError:
    with pytest.raises(ToolError) as caught:
        align(of, what)
    assert caught.value.code is code
    assert caught.value.remedy
    return caught.value


def test_the_same_rate_needs_no_drift() -> None:
    found = align(trace(), profile())
    assert found.at(REAL + 5 * MS) == MONO + 5 * MS
    assert (found.drift_ppt, found.residual_ns, found.method, found.notes) == (0, 300, "real > mono", ())


@pytest.mark.parametrize("clock", ["mono", "boot", "mono_raw"])
def test_any_clock_of_the_table_will_do(clock: str) -> None:
    begin = {"mono": MONO, "boot": MONO + 7, "mono_raw": RAW}[clock]
    assert align(trace(clock), profile()).at(REAL) == begin


def test_the_reading_of_the_smallest_error_is_trusted() -> None:
    points = [point(0, error=90_000) | {"real": REAL + 40_000}, point(LENGTH, error=200)]
    found = align(trace(points=points), profile())
    assert found.at(REAL) == MONO
    assert found.residual_ns == 90_000 + 40_000


@pytest.mark.parametrize("ppm", [-180, -1, 1, 42, 499])
def test_a_drift_is_corrected_by_two_points(ppm: int) -> None:
    points = [point(0, raw_ppm=ppm), point(LENGTH, raw_ppm=ppm)]
    found = align(trace("mono_raw", points), profile())
    for at in (0, LENGTH // 3, LENGTH):
        assert abs(found.at(REAL + at) - (RAW + at + at * ppm // 10**6)) <= 1
    assert found.residual_ns <= 300 + 1
    assert found.drift_ppt == ppm * 10**6


def test_without_the_correction_it_would_be_off() -> None:
    points = [point(0, raw_ppm=200), point(LENGTH, raw_ppm=200)]
    assert align(trace("mono_raw", points), profile()).at(REAL + LENGTH) - (RAW + LENGTH) == 400_000


def test_the_arithmetic_is_that_of_whole_numbers() -> None:
    chance = random.Random(5)
    for _ in range(300):
        drift = chance.randrange(-500 * 10**6, 500 * 10**6)
        one = Alignment(REAL, MONO, drift, "", 0)
        passed = chance.randrange(-(10**13), 10**13)
        exact = MONO + passed + Fraction(passed * drift, 10**12)
        assert abs(one.at(REAL + passed) - exact) <= 2
        column = pl.DataFrame({"t": [REAL + passed]}).select(one.expression("t")).item()
        assert column == one.at(REAL + passed)


def test_one_reading_leaves_the_drift_unknown_unless_the_clocks_share_their_rate() -> None:
    assert align(trace(points=[point(0)]), profile()).residual_ns == 300
    found = align(trace("mono_raw", [point(0)]), profile())
    assert found.residual_ns == 300 + LENGTH * DRIFT_LIMIT_PPM // 10**6


def test_readings_between_tell_what_a_line_misses() -> None:
    points = [point(0), point(LENGTH // 2) | {"mono_raw": RAW + LENGTH // 2 + 12_000}, point(LENGTH)]
    assert align(trace("mono_raw", points), profile()).residual_ns == 300 + 12_000


def test_a_wall_clock_that_was_set_is_reported_or_refused() -> None:
    found = align(trace(points=[point(0), point(LENGTH, step=2 * MS)]), profile())
    assert found.residual_ns == 300 + 2 * MS
    error = refused(ErrorCode.CLOCK_MISMATCH, trace(points=[point(0), point(LENGTH, step=SECOND)]), profile())
    assert "1000.0 ms" in error.message


def test_a_step_is_no_drift() -> None:
    points = [point(0), point(LENGTH) | {"mono_raw": RAW + LENGTH + 5 * MS}]  # 2500 ppm
    found = align(trace("mono_raw", points), profile())
    assert (found.drift_ppt, found.residual_ns) == (0, 300 + 5 * MS)


def test_damaged_readings_are_left_out() -> None:
    zeros = dict.fromkeys(TABLES["clocks"], 0)
    assert align(trace(points=[zeros, point(0), point(0) | {"error_ns": -1}]), profile()).at(REAL) == MONO
    error = refused(ErrorCode.CLOCK_MISMATCH, trace(points=[zeros]), profile())
    assert "'real'" in error.message or "(real)" in error.message


@pytest.mark.parametrize("clock", ["local", "global", "perf", "uptime", "counter", "x86-tsc", "tai", ""])
def test_clocks_that_profilers_do_not_know_are_refused_with_the_remedy(clock: str) -> None:
    error = refused(ErrorCode.CLOCK_MISMATCH, trace(clock), profile())
    assert "--clock mono_raw or mono" in error.remedy


def test_nothing_shared_is_refused() -> None:
    refused(ErrorCode.CLOCK_MISMATCH, trace(points=[]), profile())
    refused(ErrorCode.CLOCK_MISMATCH, trace(), profile(clock=""))
    bridge = ClockBridge(REAL, "mono_raw", RAW)
    refused(ErrorCode.CLOCK_MISMATCH, trace("mono", []), profile(clock="", source="msprof", bridges=(bridge,)))


def test_a_profile_on_the_traces_own_clock_needs_no_readings() -> None:
    found = align(trace(points=[]), profile(MONO, clock="mono"))
    assert (found.at(MONO + 5), found.residual_ns, found.method) == (MONO + 5, 0, "mono")


def test_a_bridge_to_the_traces_clock_needs_no_readings() -> None:
    bridge = ClockBridge(REAL, "mono_raw", RAW)
    found = align(trace("mono_raw", []), profile(source="ascend_text", bridges=(bridge,)))
    assert (found.at(REAL + 5 * MS), found.method) == (RAW + 5 * MS, "profile > mono_raw")


def test_bridges_at_both_ends_correct_the_drift() -> None:
    """An Ascend profile counts at the rate of mono_raw; mono gained 80 us meanwhile."""
    bridges = (ClockBridge(REAL, "mono", MONO), ClockBridge(REAL + LENGTH, "mono", MONO + LENGTH + 80_000))
    found = align(trace("mono", []), profile(source="ascend_db", bridges=bridges))
    assert abs(found.at(REAL + LENGTH) - (MONO + LENGTH + 80_000)) <= 1
    assert found.residual_ns < 10_000


def test_a_bridge_leads_on_through_the_traces_readings() -> None:
    points = [point(0, raw_ppm=-100), point(LENGTH, raw_ppm=-100)]
    profiled = profile(source="ascend_text", bridges=(ClockBridge(REAL, "mono_raw", RAW),))
    found = align(trace("mono", points), profiled)
    assert found.method == "profile > mono_raw > mono"
    # 2 s of mono_raw are 200 us more of mono
    assert abs(found.at(REAL + LENGTH) - (MONO + LENGTH + 200_020)) <= 2
    assert found.residual_ns < 10_000


def test_an_ascend_profile_only_looks_like_the_wall_clock() -> None:
    found = align(trace(), profile(source="ascend_text"))
    assert found.method == "real > mono"
    assert found.residual_ns >= (LENGTH - PERIOD) * DRIFT_LIMIT_PPM // 10**6


@pytest.mark.parametrize(
    ("shift", "words"), [(-3600 * SECOND, "before the trace"), (10 * SECOND, "after the trace"), (10**15, "after")]
)
def test_profiles_of_another_time_are_refused_naming_both_spans(shift: int, words: str) -> None:
    error = refused(ErrorCode.NO_OVERLAP, trace(), profile(shift=shift))
    assert words in error.message
    assert "14000.000 to 14002.000 s" in error.message
    assert f"{(MONO + shift) / 1e9:.3f} to " in error.message


def test_apply_moves_both_tables_and_keeps_the_notes() -> None:
    one = Alignment(REAL, MONO, 0, "real > mono", 300, (("alignment_unproven", "x"),))
    moved = apply(profile(), one)
    assert moved.activities["start_ns"][0] == MONO + 2 * MS
    assert moved.steps.row(0) == (MONO, MONO + LENGTH, 3, PID, TID)
    assert (moved.clock, moved.bridges, moved.notes) == ("", (), (("alignment_unproven", "x"),))


# --- evidence by content


def test_right_alignments_agree_and_wrong_ones_that_overlap_do_not() -> None:
    right = evidence(trace(), profile(MONO))
    assert (right.points, right.agreeing) == (198, 1.0)
    assert right.by_chance == pytest.approx(BUSY / PERIOD, abs=0.02)
    assert right.kappa == 1.0
    wrong = evidence(trace(), profile(MONO, shift=9 * MS))
    assert wrong.agreeing == 0.0


@pytest.mark.parametrize("wrong", [9 * MS, -9 * MS, 13 * PERIOD + 9 * MS])
def test_a_wrong_clock_that_happens_to_overlap_is_refused(wrong: int) -> None:
    error = refused(ErrorCode.CLOCK_MISMATCH, trace(), profile(shift=wrong))
    assert "did not run" in error.message
    assert "0% of" in error.message


def test_threads_that_run_all_the_time_prove_nothing() -> None:
    found = align(trace(busy=PERIOD - 10_000), profile())
    assert [code for code, _ in found.notes] == ["alignment_unproven"]


@pytest.mark.parametrize("who", [{"tid": 44}, {"pid": 12}])
def test_threads_of_another_namespace_prove_nothing_and_refute_nothing(who: dict[str, int]) -> None:
    """Inside a container a process counts its own numbers; the same number is someone else outside."""
    found = align(trace(), profile(shift=9 * MS, **who))
    assert found.notes == (("alignment_unproven", "0 instants of known threads"),)


def test_a_trace_that_knows_no_processes_goes_by_threads() -> None:
    assert align(trace(named=False), profile()).notes == ()
    refused(ErrorCode.CLOCK_MISMATCH, trace(named=False), profile(shift=9 * MS))


def test_what_a_hole_hides_speaks_neither_for_nor_against() -> None:
    seen = trace()
    half = MONO + LENGTH // 2
    hole = {"start_ns": half, "end_ns": MONO + LENGTH, "cpu": -1, "lost": 500, "why": "lost"}
    tables = {name: frame.filter(pl.col("at_ns") < half) if name in ("switches", "wakeups") else frame
              for name, frame in seen.tables.items()}  # fmt: skip
    tables["holes"] = pl.DataFrame([hole], schema=TABLES["holes"])
    found = evidence(replace(seen, tables=tables), profile(MONO))
    assert found.agreeing == 1.0
    assert 90 <= found.points <= 104


def test_half_of_the_evidence_is_a_doubt() -> None:
    whole = profile()
    halves = pl.concat([whole.activities[::2], profile(shift=9 * MS).activities[1::2]]).sort("start_ns")
    mixed = Profile(tables={"activities": halves, "steps": whole.steps}, clock="real", source="kineto")
    found = align(trace(), mixed)
    assert [code for code, _ in found.notes] == ["alignment_doubtful"]
    assert {code for code, _ in found.notes} <= BLIND_SPOTS


def test_where_some_cpus_were_not_traced_a_thread_not_observed_may_have_run() -> None:
    found = align(trace(cpus=(0,), other_cpu=True), profile(shift=9 * MS))
    assert [code for code, _ in found.notes] == ["alignment_doubtful"]


def test_a_few_instants_are_no_evidence() -> None:
    whole = profile(shift=9 * MS)
    few = Profile(tables={**whole.tables, "activities": whole.activities[:20]}, clock="real", source="kineto")
    assert align(trace(), few).notes == (("alignment_unproven", "40 instants of known threads"),)
