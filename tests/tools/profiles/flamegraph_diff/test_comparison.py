"""What explains the difference of two profiles, on programs whose truth is known: the frame where a change arises, none
where nothing changed, and no more certainty than the samples give.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from sampled_programs import Program, profile_of, random_program, sampled

from whystall.tools.profiles.flamegraph_diff.comparison import Difference, compare
from whystall.tools.profiles.flamegraph_diff.data import ChangeRow
from whystall.tools.profiles.flamegraph_diff.rows import rows_of
from whystall.tools.stacks.model import NO_TIME, StackProfile
from whystall.tools.stacks.tree import Part

TRAIN = Program(
    [
        ("main", "train"),
        ("main", "train", "loader", "decode", "memcpy"),
        ("main", "train", "loader", "decode"),
        ("main", "train", "forward", "gemm"),
        ("main", "train", "forward", "gelu"),
        ("main", "train", "backward", "gemm"),
        ("main", "train", "optim", "adam"),
        ("main", "train", "optim", "adam", "memcpy"),
        ("main", "log", "json"),
        ("main", "train", "f"),
        ("main", "train", "f", "helper"),
    ],
    [2, 5, 8, 20, 6, 30, 8, 3, 4, 6, 8],
    [1, 2, 3, 5, 2, 6, 2, 2, 1, 4, 2],
    loop=True,
)
TWO = Program([("main", "heavy"), ("main", "light")], [70, 30], [7, 3], loop=True)


def run(program: Program, seed: int, **how: Any) -> StackProfile:
    return sampled(program, np.random.default_rng(seed), **{"seconds": 60.0, **how})


def found(before: StackProfile, after: StackProfile, **how: Any) -> tuple[Difference, list[ChangeRow]]:
    difference = compare(Part(before), Part(after), **how)
    return difference, rows_of(difference, Part(before), Part(after))


def proven(rows: list[ChangeRow]) -> list[tuple[str, str, str, str]]:
    return [(row.direction, row.name, row.what, row.callee) for row in rows if row.role == "proven"]


def without_times(profile: StackProfile, unit: str = "samples") -> StackProfile:
    samples = profile.samples.with_columns(at_ns=pl.lit(NO_TIME, pl.Int64))
    events = profile.events.with_columns(unit=pl.lit(unit))
    return replace(profile, tables={**profile.tables, "samples": samples, "events": events})


def with_added(program: Program, stack: tuple[str, ...], share: float) -> Program:
    return Program([*program.stacks, stack], [*program.shares, share], [*program.stays_ms, 3.0], program.loop)


def with_stack(program: Program, at: int, stack: tuple[str, ...]) -> Program:
    stacks = [stack if number == at else one for number, one in enumerate(program.stacks)]
    return Program(stacks, program.shares, program.stays_ms, program.loop)


TWO_CALLERS = Program(
    [
        ("main", "parse"),
        ("main", "encode"),
        ("main", "encode", "digest"),
        ("main", "store"),
        ("main", "store", "digest"),
    ],
    [55, 10, 10, 20, 5],
    [5, 2, 2, 4, 2],
    loop=True,
)


@pytest.mark.parametrize("seed", range(12))
def test_a_function_that_one_of_two_callers_calls_more_has_not_changed_itself(seed: int) -> None:
    rng = np.random.default_rng(seed)
    how: dict[str, Any] = {"seconds": 8.0, "hz": 499}
    _, more = found(sampled(TWO_CALLERS, rng, **how), sampled(TWO_CALLERS.slower("encode", 2, "digest"), rng, **how))
    _, slower = found(sampled(TWO_CALLERS, rng, **how), sampled(TWO_CALLERS.slower("digest", 2), rng, **how))
    assert proven(more) == [("grew", "encode", "calls", "digest")]
    assert proven(slower) == [("grew", "digest", "own", "")]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loop", [True, False])
def test_two_runs_of_one_program_show_no_difference(seed: int, loop: bool) -> None:
    rng = np.random.default_rng(seed)
    made = random_program(rng)
    program = Program(made.stacks, made.shares, made.stays_ms, loop)
    before, after = sampled(program, rng, seconds=20, hz=49), sampled(program, rng, seconds=60, hz=199)
    difference, rows = found(before, after)
    assert (difference.verdict, proven(rows)) == ("alike", [])
    assert difference.bound is not None
    assert not difference.proven.any()


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_a_function_that_takes_twice_as_long_is_named_first(share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    made = random_program(rng, share=share)
    program = Program(made.stacks, made.shares, made.stays_ms, loop=True)
    difference, rows = found(sampled(program, rng, hz=199), sampled(program.slower("target", 2), rng, hz=199))
    assert difference.verdict == "differs"
    assert proven(rows) == [("grew", "target", "own", "")]
    assert rows[0].low_pct < 100 * (2 * share / (1 + share) - share) < rows[0].high_pct
    assert rows[0].relative == pytest.approx(2, rel=0.3)
    assert rows[0].cost_pct == pytest.approx(100 * share, rel=0.3)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (TRAIN.slower("f", 2), ("grew", "f", "own", "")),
        (TRAIN.slower("helper", 2), ("grew", "helper", "own", "")),
        # all of it grew alike: it is called more often, or does more rounds
        (TRAIN.called_more("f", 2), ("grew", "f", "total", "")),
        (TRAIN.called_more("backward", 2), ("grew", "backward", "total", "")),
        # a function that many call became slower, or one of them calls it more
        (TRAIN.slower("memcpy", 2), ("grew", "memcpy", "own", "")),
        (TRAIN.slower("decode", 3, "memcpy"), ("grew", "decode", "calls", "memcpy")),
        (TRAIN.slower("gemm", 0.5), ("shrank", "gemm", "own", "")),
        (with_added(TRAIN, ("main", "train", "audit", "hash"), 10), ("appeared", "audit", "total", "")),
    ],
)
def test_a_change_is_told_where_it_arises(changed: Program, expected: tuple[str, str, str, str]) -> None:
    difference, rows = found(run(TRAIN, 0), run(changed, 1))
    assert proven(rows) == [expected]
    marked = {difference.tree.label(int(node)) for node in np.nonzero(difference.proven)[0]}
    assert {"main", expected[1]} <= marked
    assert "json" not in marked


def test_what_vanished_is_seen_as_well_as_what_appeared() -> None:
    _, rows = found(run(with_added(TRAIN, ("main", "train", "audit", "hash"), 10), 1), run(TRAIN, 0))
    assert proven(rows) == [("vanished", "audit", "total", "")]
    assert rows[0].after_pct == 0
    assert rows[0].ratio == 0


def test_what_others_push_aside_is_an_effect_and_no_finding() -> None:
    _, rows = found(run(TRAIN, 0, seconds=240), run(TRAIN.slower("helper", 5), 1, seconds=240))
    assert proven(rows) == [("grew", "helper", "own", "")]
    pushed = {row.name: row for row in rows if row.role == "effect"}
    assert pushed["gemm"].change_pct < -5
    assert pushed["gemm"].relative == pytest.approx(1, abs=0.05)


def test_two_changes_are_both_named() -> None:
    _, rows = found(run(TRAIN, 0), run(TRAIN.slower("adam", 2).slower("helper", 3), 1))
    assert proven(rows) == [("grew", "helper", "own", ""), ("grew", "adam", "own", "")]


def test_a_callee_with_another_caller_moved() -> None:
    _, rows = found(run(TRAIN, 0), run(with_stack(TRAIN, 1, ("main", "log", "memcpy")), 1))
    assert proven(rows) == [("moved", "log", "calls", "memcpy")]
    assert rows[0].counterpart == "decode"
    assert abs(rows[0].change_pct) < 3


def test_a_function_written_into_its_caller_moved() -> None:
    _, rows = found(run(TRAIN, 0), run(with_stack(TRAIN, 10, ("main", "train", "f")), 1))
    assert proven(rows) == [("moved", "f", "own", "")]
    assert rows[0].counterpart == "helper"


@pytest.mark.parametrize("names", [{"forward": "forward_v2"}, {"gelu": "gelu_v2"}, {"train": "fit", "loader": "feed"}])
def test_another_name_is_no_change(names: dict[str, str]) -> None:
    difference, rows = found(run(TRAIN, 0), run(TRAIN.with_names(names), 1))
    assert (difference.verdict, proven(rows)) == ("alike", [])
    assert {(row.counterpart, row.name) for row in rows if row.direction == "renamed"} == set(names.items())


def test_a_slower_function_is_found_beneath_one_that_was_renamed() -> None:
    _, rows = found(run(TRAIN, 0), run(TRAIN.slower("helper", 2).with_names({"train": "fit"}), 1))
    assert proven(rows) == [("grew", "helper", "own", "")]
    assert rows[0].path == ["main", "fit", "f"]


@pytest.mark.parametrize(("function", "factor"), [("heavy", 2.0), ("light", 2.0)])
def test_of_two_functions_the_slower_is_named_although_shares_alone_cannot_tell(function: str, factor: float) -> None:
    difference, rows = found(run(TWO, 0), run(TWO.slower(function, factor), 1))
    assert proven(rows) == [("grew", function, "own", "")]
    assert difference.reasons == ("no_common_scale",)
    assert [row.role for row in rows] == ["proven", "effect"]


def test_equal_work_tells_which_of_two_functions_changed() -> None:
    # as much of light() in both runs: heavy() alone explains the rest
    difference, rows = found(run(TWO, 0), run(TWO.slower("heavy", 2), 1, seconds=102))
    assert (proven(rows), difference.reasons) == ([("grew", "heavy", "own", "")], ())
    assert rows[0].relative == pytest.approx(2, rel=0.15)
    _, rows = found(run(TWO, 0), run(TWO.slower("light", 0.5), 1, seconds=51))
    assert proven(rows) == [("shrank", "light", "own", "")]


def test_a_run_in_bursts_is_no_proof() -> None:
    """Two checkpoints in one window and none in the other: many samples, two events."""
    rng = np.random.default_rng(5)
    calm = Program([("main", "work"), ("main", "rest")], [60, 40], [2, 3])
    before, after = sampled(calm, rng, seconds=30), sampled(calm, rng, seconds=30)
    burst = ("main", "save")
    stacks = [("main", "work"), ("main", "rest"), burst]
    at = after.samples["at_ns"].to_numpy()
    which = rng.integers(0, 2, len(at))
    which[(at > 5e9) & (at < 6.5e9)] = 2
    which[(at > 20e9) & (at < 21.5e9)] = 2
    _, rows = found(
        profile_of(stacks[:2], rng.integers(0, 2, before.samples.height), before.samples["at_ns"].to_numpy()),
        profile_of(stacks, which, at),
    )
    assert proven(rows) == []
    assert [row.name for row in rows if row.role == "possible"] in ([], ["save"])


def test_steps_of_a_complete_record_are_its_units() -> None:
    rng = np.random.default_rng(4)

    def steps(slow: float) -> StackProfile:
        at, spans, which = [], [], []
        now = 0.0
        for _ in range(20):
            for stack, ms in enumerate((6.0, 3.0 * slow, 1.0)):
                span = ms * 1e6 * rng.normal(1, 0.03)
                at.append(int(now))
                spans.append(int(span))
                which.append(stack)
                now += span
        stacks = [("step", "forward"), ("step", "backward"), ("step", "optim")]
        return profile_of(stacks, which, at, spans, unit="ns", event="host", spans=spans, kind="operator")

    difference, rows = found(steps(1), steps(1))
    assert (difference.verdict, difference.before.how, proven(rows)) == ("alike", "steps", [])
    assert difference.bound is not None
    assert difference.bound < 5
    _, rows = found(steps(1), steps(1.3))
    assert proven(rows) == [("grew", "backward", "own", "")]


def test_counts_without_times_are_judged_by_the_scatter_of_what_did_not_change() -> None:
    before, after = (without_times(one) for one in (run(TRAIN, 0), run(TRAIN.slower("helper", 2), 1)))
    difference, rows = found(before, after)
    assert (difference.before.how, difference.reasons) == ("counts", ("bursts_estimated",))
    assert proven(rows) == [("grew", "helper", "own", "")]
    difference, rows = found(without_times(run(TRAIN, 0)), without_times(run(TRAIN, 1)))
    assert (difference.verdict, proven(rows)) == ("alike", [])


def test_one_side_with_times_shows_the_bursts_of_both() -> None:
    before, after = run(TWO, 0), without_times(run(TWO.slower("heavy", 2), 1))
    difference, rows = found(before, after)
    assert (difference.bursts.factor, difference.verdict) == (1.0, "differs")
    assert [row.name for row in rows if row.role == "proven"] == ["heavy"]


def test_durations_without_instants_prove_nothing_but_are_ranked() -> None:
    before, after = (without_times(one, "ns") for one in (run(TRAIN, 0), run(TRAIN.slower("helper", 3), 1)))
    difference, rows = found(before, after)
    assert (difference.verdict, difference.reasons, difference.bound) == ("cannot_tell", ("not_samples",), None)
    assert (rows[0].name, rows[0].role, rows[0].p_value) == ("helper", "possible", None)


def test_what_moved_most_is_shown_even_when_chance_cannot_be_told() -> None:
    stacks = [("main", "train", "fwd"), ("main", "load"), ("main", "train", "bwd"), ("main", "log")]
    before = profile_of(stacks, np.arange(4), weights=np.array([400.0, 300, 250, 50]))
    after = profile_of(stacks, np.arange(4), weights=np.array([800.0, 300, 250, 60]))
    difference = compare(Part(before), Part(after))
    assert (difference.verdict, difference.reasons) == ("cannot_tell", ("few_functions",))
    first = difference.rows[0]
    assert (difference.tree.labels[first.group.frame], first.role) == ("fwd", "possible")
    assert (round(first.before, 1), round(first.after, 1)) == (40.0, 56.7)
    assert not difference.proven.any()


def test_few_samples_tell_nothing() -> None:
    difference, rows = found(run(TRAIN, 0, seconds=0.3), run(TRAIN.slower("helper", 2), 1, seconds=0.3))
    assert (difference.verdict, difference.reasons) == ("cannot_tell", ("few_samples",))
    assert proven(rows) == []


def test_a_single_sample_on_either_side_is_no_error() -> None:
    one = profile_of([("main",)], [0], [0])
    for before, after in ((one, one), (one, run(TRAIN, 0)), (run(TRAIN, 0), one)):
        difference, rows = found(before, after)
        assert difference.verdict == "cannot_tell"
        assert proven(rows) == []


def test_a_span_against_the_rest() -> None:
    first, second = run(TRAIN, 0, seconds=40), run(TRAIN.slower("helper", 4), 1, seconds=20)
    later = second.samples.with_columns(pl.col("at_ns") + 40_000_000_000)
    both = replace(first, tables={**first.tables, "samples": pl.concat([first.samples, later])})
    span = (40_000_000_000, 60_000_000_000)
    difference = compare(Part(both, span_ns=span, outside=True), Part(both, span_ns=span))
    rows = rows_of(difference, Part(both, span_ns=span, outside=True), Part(both, span_ns=span))
    assert proven(rows) == [("grew", "helper", "own", "")]
    half = (10_000_000_000, 30_000_000_000)
    assert compare(Part(first, span_ns=half, outside=True), Part(first, span_ns=half)).verdict == "alike"


def test_recursion_counts_once() -> None:
    deep = [("main", *["fib"] * depth) for depth in range(1, 30)] + [
        ("main", "other"),
        ("main", "third"),
        ("main", "x"),
    ]
    shares = [1.0] * 29 + [20.0, 25.0, 30.0]
    program = Program(deep, shares, [1.0] * len(deep), loop=True)
    _, rows = found(run(program, 0), run(program.slower("fib", 2), 1))
    assert proven(rows)[0][:2] == ("grew", "fib")
    assert rows[0].before_pct < 40
