"""Two simulated runs of a job: what was changed is named, on the right ranks, and equal runs are silent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rank_jobs import Fault, Plan, simulate

from whystall.agent_server.presentation.headlines import headline_of
from whystall.prompts.render import LANGS, words
from whystall.tools.contract.findings import Finding, Polarity, Severity
from whystall.tools.contract.registry import Judgement
from whystall.tools.ranks.compare_runs.tables import REASONS, CompareData
from whystall.tools.ranks.compare_runs.tool import Params, judge
from whystall.tools.ranks.traces.gather import gather, with_before
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list

pytestmark = pytest.mark.thorough

BEFORE = Plan(ranks=4, steps=20, seed=1)
AFTER = replace(BEFORE, seed=2)
Tables = dict[str, pl.DataFrame]
HOSTILE = "gemm</td>\x1b[31m"


def recorded(before: Plan, after: Plan, change: Callable[[Tables], None] | None = None) -> Recording:
    """Both runs in one recording, as gathering makes it; `change`: to the tables."""
    earlier, later = simulate(before).recording, simulate(after).recording
    manifest = later.manifest.model_copy(deep=True)
    manifest.collectors["ranks_before"] = earlier.manifest.collectors["ranks"].model_copy(deep=True)
    manifest.window_ns = max(earlier.manifest.window_ns, later.manifest.window_ns)
    tables = {name.replace("ranks.", "ranks_before."): table for name, table in earlier.tables().items()}
    tables |= later.tables()
    if change:
        change(tables)
    return Recording.in_memory(manifest, tables)


def compared(
    before: Plan, after: Plan, change: Callable[[Tables], None] | None = None, **params: Any
) -> Judgement[CompareData]:
    return judge(recorded(before, after, change), Params(**params))


def differences(judged: Judgement[CompareData]) -> dict[tuple[str, str, str], Finding]:
    """Findings of what differs, by what, name and ranks; the step's own comes first."""
    first, *rest = judged.findings
    assert first.kind == "run.step_time"
    assert {one.kind for one in rest} <= {"run.difference"}
    return {tuple(one.attributes.get(key, "") for key in ("what", "name", "ranks")): one for one in rest}  # type: ignore[misc]


def slowed(*faults: Fault, **more: Any) -> Plan:
    return replace(AFTER, faults=faults, **more)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("device", [True, False])
def test_equal_runs_are_equal(seed: int, device: bool) -> None:
    plan = replace(BEFORE, device=device)
    judged = compared(replace(plan, seed=100 + 2 * seed), replace(plan, seed=101 + 2 * seed))
    (finding,) = judged.findings
    assert judged.data.verdict == "none"
    assert set(judged.data.reasons) <= {"below_min"}  # one in a hundred is sure of a difference too small to matter
    assert (finding.kind, finding.polarity) == ("run.step_time", Polarity.NORMAL)
    assert judged.data.slow_steps == []


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_vary_much_accuse_no_rank(seed: int) -> None:
    plan = replace(BEFORE, jitter=0.25)
    judged = compared(replace(plan, seed=200 + 2 * seed), replace(plan, seed=201 + 2 * seed))
    assert judged.data.verdict in ("none", "cannot_tell")
    assert all(one.polarity is Polarity.NORMAL for one in judged.findings)
    if judged.data.verdict == "cannot_tell":  # a difference that could hide is not reported as absent
        assert (judged.findings, judged.data.reasons) == ([], ["too_noisy"])


def test_a_rank_that_computes_longer() -> None:
    judged = compared(BEFORE, slowed(Fault("compute", (2,), ms=12)))
    found = differences(judged)
    data = judged.data
    assert (data.verdict, data.shape) == ("slower", "all_steps")
    assert judged.findings[0].severity is Severity.CRITICAL
    assert judged.findings[0].metrics["change_pct"] == pytest.approx(25, abs=2)
    compute = found["compute", "", "2"]
    assert compute.metrics["change_ms"] == pytest.approx(12, abs=0.5)
    assert compute.metrics["of_change_pct"] == pytest.approx(100, abs=10)
    # the fault is spread over four operators; the others wait and are not named
    assert {key[1] for key in found if key[0] == "operator"} == {
        f"{name}_{phase}" for name in ("gemm", "attention") for phase in ("forward", "backward")
    }
    assert {key[2] for key in found} == {"2"}
    assert data.ranks[0].rank == 2
    assert data.ranks[0].p_value < 1e-6 < 0.01 < data.ranks[1].p_value
    assert data.ranks[1].waiting_change_ms == pytest.approx(11.4, abs=0.5)
    assert {row.rank for row in data.slow_steps} == {2}
    assert {row.what for row in data.slow_steps} == {"compute"}


@pytest.mark.parametrize("kind", ["loader", "gap"])
def test_a_host_that_is_late(kind: Any) -> None:
    found = differences(compared(BEFORE, slowed(Fault(kind, (1,), ms=12))))
    assert set(found) == {(kind, "", "1")}
    assert found[kind, "", "1"].metrics["change_ms"] == pytest.approx(12, abs=0.5)


def test_a_link_that_is_slow_for_all() -> None:
    judged = compared(BEFORE, replace(AFTER, transfer_ms=4))
    found = differences(judged)
    assert {(what, ranks) for what, _, ranks in found} == {("transfer", "0-3")}
    ((_, name, _),) = found
    assert re.fullmatch(r"all_reduce \d+ B x4", name)
    rows = judged.data.collectives
    assert len(rows) == 4
    for row in rows:
        assert (row.transfer_before_ms, row.transfer_after_ms) == (pytest.approx(1, abs=0.1), pytest.approx(4, abs=0.4))
        assert row.gb_per_s_before is not None
        assert row.gb_per_s_after == pytest.approx(row.gb_per_s_before / 4, rel=0.2)
        assert row.p_value is not None
        assert row.p_value < 0.01


def test_a_slow_link_of_some_groups_names_their_ranks() -> None:
    plan = replace(BEFORE, ranks=8, tensor=2)
    judged = compared(plan, replace(plan, seed=2, faults=(Fault("link", (3,), factor=8),)))
    names = {row.size: row.ranks for row in judged.data.collectives}
    assert names == {2: "2-3", 4: "1, 3, 5, 7"}


def test_hidden_transfers_cost_nothing() -> None:
    plan = replace(BEFORE, overlap=True, compute_ms=80)
    assert compared(plan, replace(plan, seed=2, transfer_ms=2)).data.verdict == "none"


def _more_work(count: int, ms: float) -> Callable[[Tables], None]:
    """The operators' tables as if one alone made the difference: `count` times the calls, `ms` more per step."""

    def change(tables: Tables) -> None:
        before = tables["ranks_before.operators"]
        own = pl.col("name") == "gemm_forward"
        tables["ranks.operators"] = before.with_columns(
            count=pl.when(own).then(pl.col("count") * count).otherwise("count"),
            total_ns=pl.when(own).then(pl.col("total_ns") + int(ms * 20e6)).otherwise("total_ns"),
            name=pl.when(own).then(pl.lit(HOSTILE)).otherwise("name"),
        )
        tables["ranks_before.operators"] = before.with_columns(
            name=pl.when(own).then(pl.lit(HOSTILE)).otherwise("name")
        )

    return change


@pytest.mark.parametrize(("times", "by"), [(1, "length"), (3, "count")])
def test_an_operator_runs_longer_or_more_often(times: int, by: str) -> None:
    fault = Fault("compute", (0, 1, 2, 3), ms=12)
    judged = compared(BEFORE, slowed(fault), _more_work(times, 12))
    row = judged.data.operators[0]
    assert row.name == HOSTILE
    assert row.change_ms == pytest.approx(12, abs=0.1)
    assert row.count_after == pytest.approx(times * row.count_before)
    longest = max(abs(row.by_count_ms), abs(row.by_length_ms))
    assert longest == abs(row.by_count_ms if by == "count" else row.by_length_ms)
    assert row.by_count_ms + row.by_length_ms == pytest.approx(row.change_ms)
    operators = {key[1:]: one for key, one in differences(judged).items() if key[0] == "operator"}
    ((name, ranks),) = operators
    assert "\x1b" not in name
    assert ranks == "0-3"
    (one,) = operators.values()
    assert one.metrics["count_after"] == pytest.approx(times * one.metrics["count_before"])


def test_a_name_that_one_run_does_not_list_may_be_among_its_others() -> None:
    def change(tables: Tables) -> None:
        for name in ("ranks", "ranks_before"):
            rows = tables[f"{name}.operators"]
            hidden = pl.col("name") == "optimizer"
            if name == "ranks":
                rows = rows.with_columns(name=pl.when(hidden).then(pl.lit("(others)")).otherwise("name"))
            tables[f"{name}.operators"] = rows

    judged = compared(BEFORE, AFTER, change)
    (others,) = [row for row in judged.data.operators if row.name in ("(others)", "optimizer")]
    assert others.name == "(others)"
    assert others.change_ms == pytest.approx(0, abs=0.1)


def test_parts_add_up() -> None:
    plan = replace(BEFORE, ranks=8, tensor=2, stages=2, steps=12)
    data = compared(plan, replace(plan, seed=2, faults=(Fault("gap", (5,), ms=12),))).data
    assert data.change_ms is not None
    assert sum(row.change_ms for row in data.parts) == pytest.approx(data.change_ms)
    assert sum(row.after_ms for row in data.parts) == pytest.approx(data.step_after_ms)
    assert len(data.ranks) == 8
    for row in data.ranks:
        parts = ("compute", "loader", "gap", "transfer", "waiting", "rest")
        assert sum(getattr(row, f"{part}_change_ms") for part in parts) == pytest.approx(row.step_change_ms)
    work = sum(row.change_ms for row in data.operators)
    compute = [row.compute_change_ms for row in data.ranks]
    assert data.operators[-1].kind == "rest"
    assert work == pytest.approx(sum(compute) / len(compute))


def test_the_step_at_which_it_began() -> None:
    judged = compared(BEFORE, slowed(Fault("compute", (2,), ms=20, since=8)))
    assert (judged.data.shape, judged.data.began_step) == ("since_step", 8)
    assert ("compute", "", "2") in differences(judged)
    assert min(row.step for row in judged.data.slow_steps[:5]) >= 8


def test_some_steps_only() -> None:
    long = replace(BEFORE, steps=60)
    faults = [Fault("loader", (1,), ms=60, since=step, until=step + 1) for step in range(5, 60, 6)]
    judged = compared(long, replace(long, seed=2, faults=tuple(faults)))
    assert (judged.data.verdict, judged.data.shape) == ("slower", "some_steps")
    assert set(differences(judged)) == {("loader", "", "1")}
    assert {row.step for row in judged.data.slow_steps} == set(range(5, 60, 6))


def test_a_few_odd_steps_are_set_aside() -> None:
    """A checkpoint in one of the runs is no other speed."""
    judged = compared(BEFORE, slowed(Fault("gap", (0,), ms=500, since=11, until=12)))
    assert (judged.data.verdict, judged.data.reasons) == ("none", ["odd_steps"])
    assert (judged.data.set_aside, judged.data.steps_after) == (1, 19)


def test_ranks_that_take_turns_are_not_accused() -> None:
    found = differences(compared(BEFORE, slowed(Fault("compute", (0, 1, 2, 3), ms=20, every=3))))
    assert set(found) == {("compute", "", "")}


def test_time_to_spare_costs_nothing() -> None:
    """Rank 3 got slower and still waits for rank 1, which is as slow as before."""
    straggler = Fault("compute", (1,), ms=15)
    judged = compared(replace(BEFORE, faults=(straggler,)), slowed(straggler, Fault("compute", (3,), ms=8)))
    assert judged.data.verdict == "none"
    # all compute longer: it is the straggler's share of it that every step costs
    judged = compared(replace(BEFORE, faults=(straggler,)), slowed(straggler, compute_ms=50))
    assert ("compute", "", "1") in differences(judged)


def test_a_run_that_is_faster() -> None:
    judged = compared(replace(BEFORE, faults=(Fault("compute", (2,), ms=12),)), AFTER)
    assert judged.data.verdict == "faster"
    assert {one.severity for one in judged.findings} == {Severity.INFO}
    assert differences(judged)["compute", "", "2"].metrics["change_ms"] == pytest.approx(-12, abs=0.5)


def test_a_small_change_is_none_unless_asked_for() -> None:
    after = slowed(Fault("compute", (2,), ms=1.5))
    assert compared(BEFORE, after).data.reasons == ["below_min"]
    assert compared(BEFORE, after, min_pct=1).data.verdict == "slower"


@pytest.mark.parametrize(("steps", "verdict"), [(4, "cannot_tell"), (5, "slower")])
def test_few_steps(steps: int, verdict: str) -> None:
    judged = compared(replace(BEFORE, steps=steps), slowed(Fault("compute", (2,), ms=12), steps=steps))
    assert judged.data.verdict == verdict
    if verdict == "cannot_tell":
        assert (judged.data.reasons, judged.findings) == (["few_steps"], [])
        assert judged.not_seen == [("few_steps", "4 before, 4 after")]
        assert judged.data.change_ms is not None  # the figures are reported all the same
    else:
        assert ("compute", "", "2") in differences(judged)


def test_without_collectives_ranks_are_compared_one_by_one() -> None:
    plan = replace(BEFORE, collectives=False)
    judged = compared(plan, replace(plan, seed=2, faults=(Fault("compute", (0,), ms=40),)))
    assert ("no_collectives", "") in judged.not_seen
    assert ("compute", "", "0") in differences(judged)


def test_without_steps() -> None:
    plan = replace(BEFORE, has_steps=False)
    judged = compared(plan, replace(plan, seed=2, faults=(Fault("compute", (2,), ms=12),)))
    assert ("no_steps", "") in judged.not_seen
    assert ("compute", "", "2") in differences(judged)


# --- the same configuration -----------------------------------------------------------------------------------


def _set(table: str, **values: Any) -> Callable[[Tables], None]:
    def change(tables: Tables) -> None:
        kinds = tables[table].schema
        tables[table] = tables[table].with_columns(
            pl.lit(value, kinds[key]).alias(key) for key, value in values.items()
        )

    return change


def _rename_operators(tables: Tables) -> None:
    tables["ranks.operators"] = tables["ranks.operators"].with_columns(pl.col("name").str.to_uppercase())


def _other_payloads(tables: Tables) -> None:
    tables["ranks.collectives"] = tables["ranks.collectives"].with_columns(pl.col("bytes") * 16)


@pytest.mark.parametrize(
    ("after", "change", "code"),
    [
        (replace(AFTER, ranks=8), _rename_operators, "other_world_size"),
        (replace(AFTER, ranks=8), _other_payloads, "other_world_size"),
        (replace(AFTER, ranks=8, tensor=2), None, "other_world_size"),
        (replace(AFTER, tensor=2), None, "other_groups"),
        (AFTER, _set("ranks.ranks", backend="gloo"), "other_backend"),
        (AFTER, _set("ranks.ranks", device=False), "other_device"),
        (AFTER, _rename_operators, "other_operators"),
        (AFTER, _other_payloads, "other_collectives"),
    ],
)
def test_another_configuration_is_refused(after: Plan, change: Any, code: str) -> None:
    judged = compared(BEFORE, after, change)
    data = judged.data
    assert (data.verdict, judged.findings) == ("cannot_tell", [])
    assert code in data.reasons
    assert data.checks[0].effect == "refused"
    assert (data.parts, data.ranks, data.change_ms) == ([], [], None)
    assert {row.effect for row in data.checks if row.code == code} == {"refused"}


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_another_number_of_ranks_with_the_same_work_is_compared_per_rank(ranks: int) -> None:
    judged = compared(BEFORE, replace(AFTER, ranks=ranks, faults=(Fault("compute", tuple(range(ranks)), ms=8),)))
    assert "world_sizes_differ" in judged.data.reasons
    assert judged.data.verdict == "slower"
    assert judged.data.change_ms == pytest.approx(8, abs=2.5)
    assert [row.rank for row in sorted(judged.data.ranks, key=lambda row: row.rank)] == [*range(min(ranks, 4))]
    named = [one.attributes for one in judged.findings if one.kind == "run.difference"]
    assert ("compute", "") in {(one["what"], one.get("name", "")) for one in named}
    assert {one["what"] for one in named} <= {"compute", "operator"}


def test_what_differs_a_little_is_reported() -> None:
    judged = compared(replace(BEFORE, missing=(3,)), slowed(Fault("loader", (1,), ms=12), missing=(0,)))
    assert "ranks_differ" in judged.data.reasons
    assert [row.rank for row in judged.data.ranks] == [1, 2]
    judged = compared(BEFORE, replace(AFTER, layers=5))
    assert "collectives_differ" in judged.data.reasons
    judged = compared(BEFORE, AFTER, _set("ranks.ranks", host="elsewhere"))
    assert judged.data.reasons == ["hosts_differ"]
    judged = compared(BEFORE, slowed(Fault("compute", (2,), ms=12)), _set("ranks.ranks", source="nsys"))
    assert "other_format" in judged.data.reasons
    assert (judged.data.verdict, judged.data.parts, judged.data.operators) == ("slower", [], [])


def test_runs_without_common_ranks() -> None:
    judged = compared(replace(BEFORE, missing=(2, 3)), replace(AFTER, missing=(0, 1)))
    assert "no_common_ranks" in judged.data.reasons


# --- words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lang", LANGS)
def test_every_code_has_words(lang: Any) -> None:
    text = words(lang)["compared"]
    assert text["reasons"].keys() == set(REASONS)
    judged = compared(BEFORE, replace(AFTER, ranks=8), _set("ranks.ranks", host=HOSTILE))
    lines = headline_of("compare_runs", judged.data, lang)
    assert len(lines) >= 3
    assert not any("\x1b" in line for line in lines)
    judged = compared(BEFORE, slowed(Fault("compute", (2,), ms=20, since=8)))
    lines = headline_of("compare_runs", judged.data, lang)
    assert any("8" in line for line in lines)
    assert "+25" in "".join(lines)


# --- real jobs ------------------------------------------------------------------------------------------------

RECORDED = Path(__file__).parents[2] / "recorded" / "ranks"


def real(before: str, after: str) -> Judgement[CompareData]:
    """Two recorded jobs of four ranks, see make.py beside them."""
    return judge(with_before(gather(str(RECORDED / after)), str(RECORDED / before)), Params())


@pytest.mark.parametrize(
    ("after", "what"), [("compute", "compute"), ("two", "compute"), ("quota", "compute"), ("loader", "loader")]
)
def test_real_faults_are_named_beside_the_sound_run(after: str, what: str) -> None:
    slow = json.loads((RECORDED / after / "truth.json").read_text())["slow_ranks"]
    judged = real("nothing", after)
    found = differences(judged)
    assert judged.data.verdict == "slower"
    dearest = max(found.values(), key=lambda one: one.metrics["change_ms"])
    assert dearest.attributes["what"] == what
    # one of two slow ranks may have waited for the other and cost nothing
    costly = {rank_list(slow), *map(str, slow)}
    assert {key[2] for key in found if key[0] in ("compute", "loader", "gap")} <= costly


@pytest.mark.parametrize(("before", "what"), [("compute", "compute"), ("loader", "loader")])
def test_a_real_job_that_was_mended_is_faster(before: str, what: str) -> None:
    """The operators that are gone were most of the work of the slow run."""
    judged = real(before, "nothing")
    assert judged.data.verdict == "faster"
    assert judged.data.parts[0].what == what
    assert judged.data.parts[0].change_ms < 0


def test_a_real_slow_link() -> None:
    found = differences(real("nothing", "link"))
    assert max(found, key=lambda key: found[key].metrics["change_ms"])[0] == "transfer"


def test_a_real_run_beside_itself() -> None:
    judged = real("nothing", "nothing")
    assert judged.data.change_ms == 0
    assert judged.data.verdict in ("none", "cannot_tell")
    assert all(one.polarity is Polarity.NORMAL for one in judged.findings)


def test_real_jobs_of_another_shape_are_refused() -> None:
    assert real("nothing", "layers").data.checks[0].effect == "refused"
