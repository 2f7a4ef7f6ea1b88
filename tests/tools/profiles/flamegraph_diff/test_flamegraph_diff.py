"""The tool around the comparison: what it refuses, what it says of what it compared, its findings, its folded file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from sampled_programs import Program, profile_of, sampled

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Polarity
from whystall.tools.contract.params import parse_params
from whystall.tools.contract.registry import Judgement
from whystall.tools.profiles.flamegraph_diff.data import DiffData
from whystall.tools.profiles.flamegraph_diff.tool import TOOL, Params
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.model import StackProfile
from whystall.tools.stacks.recorded import recording_of

STACKS = [("main", "step", "parse"), ("main", "step", "save"), ("main", "log"), ("main", "step")]
PROGRAM = Program(STACKS, [50, 20, 20, 10], [2, 3, 2, 1], loop=True)


def run(seed: int, program: Program = PROGRAM) -> StackProfile:
    return sampled(program, np.random.default_rng(seed), seconds=60)


def judged(before: StackProfile, after: StackProfile, **params: Any) -> Judgement[DiffData]:
    return TOOL.judge(recording_of(after, before=before), Params(**params))


def measured(profile: StackProfile, event: str, unit: str) -> StackProfile:
    events = profile.events.with_columns(name=pl.lit(event), unit=pl.lit(unit))
    return replace(profile, tables={**profile.tables, "events": events})


def empty() -> StackProfile:
    return Builder().profile("folded")


def test_a_change_becomes_a_finding_with_numbers_that_fit_its_row() -> None:
    judgement = judged(run(0), run(1, PROGRAM.slower("save", 2)))
    data, (finding, *others) = judgement.data, judgement.findings
    assert (data.verdict, data.event, data.unit, others) == ("differs", "cpu-clock", "samples", [])
    row = data.rows[0]
    assert (row.name, row.path, row.direction) == ("save", ["main", "step"], "grew")
    assert (finding.kind, finding.polarity) == ("profile.change", Polarity.ABNORMAL)
    assert finding.attributes == {"name": "save", "path": "step < main", "event": "cpu-clock", "direction": "grew"}
    assert finding.metrics["change_pct"] == row.change_pct
    assert row.low_pct < row.change_pct < row.high_pct
    assert row.change_pct == pytest.approx(row.after_pct - row.before_pct)
    assert row.ratio == pytest.approx(row.after_pct / row.before_pct)
    assert (data.samples_before, data.samples) == (5940, 5940)
    assert data.span_s == pytest.approx(60, rel=0.01)
    assert judgement.seen == 11880


def test_no_difference_is_a_finding_with_its_bound() -> None:
    judgement = judged(run(0), run(1))
    (finding,) = judgement.findings
    assert (judgement.data.verdict, finding.kind, finding.polarity) == ("alike", "profile.alike", Polarity.NORMAL)
    assert finding.metrics["bound_pct"] == judgement.data.bound_pct


def test_a_smaller_change_than_asked_for_is_none() -> None:
    before, after = run(0), run(1, PROGRAM.slower("save", 2))
    assert judged(before, after, min_pct=30).findings[0].kind == "profile.alike"


@pytest.mark.parametrize("side", ["before", "after"])
def test_an_empty_side_is_named(side: str) -> None:
    full = recording_of(run(0), before=run(1))
    collector = "samples_before" if side == "before" else "samples"
    tables = {**full.tables(), f"{collector}.samples": empty().samples}
    with pytest.raises(ToolError) as error:
        TOOL.judge(type(full).in_memory(full.manifest, tables), Params())
    assert error.value.code is ErrorCode.BAD_TRACE
    assert side in error.value.message


@pytest.mark.parametrize(
    ("event", "unit"), [("cpu-clock", "bytes"), ("cpu-clock", "ns"), ("wall", "samples"), ("cache-misses", "samples")]
)
def test_different_measures_are_refused_and_both_named(event: str, unit: str) -> None:
    with pytest.raises(ToolError) as error:
        judged(run(0), measured(run(1), event, unit))
    assert error.value.code is ErrorCode.BAD_ARGUMENT
    assert "before cpu-clock in samples, after " + f"{event} in {unit}" in error.value.message


def test_events_that_all_tell_where_cpus_are_may_differ_and_that_is_said() -> None:
    data = judged(run(0), measured(run(1), "cycles:u", "samples")).data
    assert data.verdict == "alike"
    assert {row.code for row in data.checks if row.code} == {"other_event"}


def test_units_of_time_are_one_measure() -> None:
    weights = np.full(600, 1e7)
    which = np.random.default_rng(1).integers(0, 4, 600)
    at = np.arange(600) * 10_000_000
    nanoseconds = profile_of(STACKS, which, at, weights, unit="ns")
    microseconds = profile_of(STACKS, which, at, weights / 1e3, unit="us")
    data = judged(nanoseconds, microseconds).data
    assert [row for row in data.rows if row.role == "proven"] == []


def test_profiles_with_nothing_in_common_say_so() -> None:
    other = Program([("start", "a"), ("start", "b"), ("start", "c")], [50, 30, 20], [1, 1, 1], loop=True)
    data = judged(run(0), run(1, other)).data
    assert "little_in_common" in data.reasons
    assert data.common_pct == 0


def test_kinds_that_one_side_lacks_are_said() -> None:
    python = profile_of(STACKS, np.zeros(500, int), np.arange(500) * 10_000_000, kind="python")
    checks = {row.what: row for row in judged(python, run(0)).data.checks}
    assert (checks["kinds"].effect, checks["kinds"].code, checks["kinds"].before) == (
        "limited",
        "other_kinds",
        "python",
    )


def test_an_event_that_is_absent_names_the_side() -> None:
    with pytest.raises(ToolError) as error:
        judged(run(0), run(1), event="wall")
    assert error.value.code is ErrorCode.BAD_ARGUMENT
    assert error.value.message.startswith("before")


def test_a_python_function_is_one_whatever_its_lines_and_told_with_the_line_that_has_most() -> None:
    def written(line: int, share: float, seed: int) -> StackProfile:
        rng = np.random.default_rng(seed)
        builder = Builder()
        event = builder.event("cpu-clock")
        main = builder.call(-1, builder.frame("main", "/old/train.py" if seed else "/new/train.py", 10, "python"))
        save = [builder.call(main, builder.frame("save", "/any/train.py", line + more, "python")) for more in (0, 1)]
        work = [builder.call(main, builder.frame(f"work{at}", "train.py", 30 + at, "python")) for at in range(4)]
        for tick in range(6000):
            stack = save[int(rng.random() < 0.8)] if rng.random() < share else work[int(rng.integers(4))]
            builder.sample(stack, event, at_ns=tick * 10_000_000)
        return builder.profile("ebpf")

    row = judged(written(40, 0.1, 0), written(70, 0.3, 1)).data.rows[0]
    assert (row.name, row.code, row.frame_kind, row.direction) == ("save", "train.py:71", "python", "grew")
    assert row.path == ["main (train.py)"]


def test_the_folded_file_keeps_fractions_and_both_sides() -> None:
    before = profile_of([("a;b", "x"), ("a;b", "gone")], [0, 0, 0, 1], range(4))
    after = profile_of([("a;b", "x"), ("a;b", "new")], [0, 1, 1], range(3))
    (artifact,) = judged(before, after).artifacts
    lines = dict(line.split(" ", 1) for line in artifact.text.splitlines())
    assert lines == {"a:b;x": "2.25 1", "a:b;gone": "0.75 0", "a:b;new": "0 2"}


def test_parameters_are_bounded() -> None:
    for wrong in ({"before_rank": -1}, {"min_pct": 0}, {"top": 0}, {"after": ""}, {"color": 1}):
        with pytest.raises(ToolError) as error:
            parse_params(Params, wrong)
        assert error.value.code is ErrorCode.BAD_ARGUMENT


def test_interrupts_of_a_busy_host_are_no_change_of_the_program() -> None:
    which = np.random.default_rng(2).integers(0, len(STACKS), 2000)
    at = np.arange(2000) * 10_000_000
    quiet, busy = profile_of(STACKS, which, at), profile_of(STACKS, which, at)
    stacks, frames = busy.stacks, busy.frames
    entry = pl.DataFrame(
        [(frames.height, "asm_sysvec_reschedule_ipi", "", 0, "kernel")], schema=frames.schema, orient="row"
    )
    leaves = sorted(set(busy.samples["stack"]))
    calls = pl.DataFrame(
        [(stacks.height + at, leaf, frames.height) for at, leaf in enumerate(leaves)],
        schema=stacks.schema,
        orient="row",
    )
    hit = pl.Series(np.arange(2000) % 16 == 0)
    moved = busy.samples["stack"].replace_strict(leaves, list(range(stacks.height, stacks.height + len(leaves))))
    samples = busy.samples.with_columns(
        pl.when(hit).then(moved.cast(pl.Int32)).otherwise(pl.col("stack")).alias("stack")
    )
    tables = {"samples": samples, "stacks": pl.concat([stacks, calls]), "frames": pl.concat([frames, entry])}
    judgement = judged(quiet, replace(busy, tables={**busy.tables, **tables}))
    assert judgement.data.verdict == "alike"
    told = {row.what: row for row in judgement.data.checks}["interrupts"]
    assert (told.before, told.after, told.code) == ("0 %", "6.2 %", "other_interrupts")


def test_what_folded_counts_suggest_is_not_called_chance() -> None:
    """16 points of a thousand samples: plain if each stands by itself, and without instants nothing tells that."""
    sides = []
    for slow in (300, 600):
        made = Builder()
        event, main = made.event("samples"), made.frame("main")
        for name, count in (("fast", 700), ("slow", slow)):
            made.sample(made.stack([main, made.frame(name)]), event, count)
        sides.append(made.profile("folded"))
    told = judged(*sides).data
    assert (told.verdict, told.reasons) == ("cannot_tell", ["few_functions"])
    assert told.rows[0].name == "slow"
    assert judged(sides[0], sides[0]).data.verdict == "alike"


def test_amounts_are_told_in_units_people_read() -> None:
    sides = [measured(run(seed), "device", "ns") for seed in (0, 1)]
    (row,) = [row for row in judged(*sides).data.checks if row.what == "weight"]
    assert "e+" not in row.before + row.after
    assert row.before.endswith(" ms")
