"""Random jobs: every number of one quantity is the same in the tables, findings, text, page and diagnosis."""

from __future__ import annotations

import base64
import html
import json
import re
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rank_jobs import Fault, Plan, simulate

from whystall.agent_server.diagnosis.ranks import rank_diagnosis
from whystall.agent_server.presentation.pages import judged
from whystall.agent_server.presentation.texts import diagnosis_text, result_text
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Verdict
from whystall.prompts.quantities import quantity
from whystall.prompts.render import words
from whystall.tools.ranks.analysis.analyse import analyse
from whystall.tools.ranks.compare_runs import tool as compare_runs
from whystall.tools.ranks.compare_runs.tables import CompareData
from whystall.tools.ranks.job import job_of
from whystall.tools.ranks.slow_node_check import tool as slow_node_check
from whystall.tools.ranks.slow_node_check.tables import Data
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.thorough

CAUSES = load_causes()
EXACT = {"rel": 1e-6, "abs": 1e-6}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


@st.composite
def plans(draw: st.DrawFn, *, faulty: bool = True) -> Plan:
    """A small job of any shape, healthy or with up to two faults, whose traces may lack operations."""
    ranks = draw(st.sampled_from((2, 3, 4, 8)))
    shape = draw(st.sampled_from(({}, {"tensor": 2}, {"stages": 2}, {"overlap": True}, {"world_reduce": True})))
    if ranks < 4:
        shape = {"overlap": draw(st.booleans())}
    if ranks == 3:
        shape = {}
    faults = st.builds(
        Fault,
        st.sampled_from(("compute", "gap", "loader", "transfer")),
        st.lists(st.integers(0, ranks - 1), min_size=1, max_size=2, unique=True).map(tuple),
        ms=st.sampled_from((4.0, 12.0, 30.0)),
        factor=st.just(4.0),
        since=st.sampled_from((0, 0, 6)),
        every=st.sampled_from((0, 0, 3)),
        period=st.sampled_from((1, 1, 4)),
    )
    return Plan(
        ranks=ranks,
        steps=draw(st.sampled_from((3, 5, 8, 12, 16, 24))),
        seed=draw(st.integers(0, 10_000)),
        device=draw(st.booleans()),
        jitter=draw(st.sampled_from((0.02, 0.1, 0.4))),
        lost=draw(st.sampled_from((0.0, 0.0, 0.05))),
        clock_ms=draw(st.sampled_from((0.0, 50.0))),
        has_steps=draw(st.sampled_from((True, True, False))),
        faults=tuple(draw(st.lists(faults, max_size=2))) if faulty else (),
        **shape,
    )


def random_jobs(examples: int) -> Any:
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=slow)


# --- slow_node_check ------------------------------------------------------------------------------------------------


@random_jobs(40)
@given(plans())
@example(Plan(ranks=4, steps=24, faults=(Fault("compute", (1,), ms=30, period=4),)))
def test_the_numbers_of_slow_node_check_agree(plan: Plan) -> None:
    recording = simulate(plan).recording
    result = judged(slow_node_check.TOOL, recording, slow_node_check.Params(top=200), "en")
    data: Data = result.data
    check_table(recording, data)
    check_findings(result.findings, data)
    printed = result_text(result, "en")
    if data.step_ms is not None:
        assert f"{data.steps} steps, median {quantity(data.step_ms, 'ms')}" in printed
    if data.lost_pct is not None:
        assert f"{quantity(data.lost_pct, 'pct')} of the time is lost in waiting" in printed
    for artifact in result.artifacts:
        if artifact.uri.endswith("ranks.html"):
            check_page(Path(artifact.path).read_text("utf-8"), data)
    check_diagnosis(recording, result, data)


def check_table(recording: Recording, data: Data) -> None:
    """The parts of a rank make its step; no wait is longer than its step; who was waited for makes up all waiting."""
    analysis = analyse(job_of(recording))
    own, waits = analysis.own, analysis.awaited
    assert ((own["wait_ns"] >= 0) & (own["wait_ns"] <= own["step_ns"])).all()
    assert ((waits["wait_ns"] > 0) & (waits["rank"] != waits["last"])).all()
    for row in data.ranks:
        assert row.own_ms + row.wait_ms == pytest.approx(row.step_ms, **EXACT)
        of_rank = own.filter(own["rank"] == row.rank)
        assert of_rank["step_ns"].mean() == pytest.approx(row.step_ms * 1e6)
        waited = waits.filter(waits["rank"] == row.rank)["wait_ns"].sum()
        assert waited / row.steps == pytest.approx(row.wait_ms * 1e6, abs=1)
    if data.lost_pct is not None:
        lost = sum(row.wait_ms for row in data.ranks) / sum(row.step_ms for row in data.ranks)
        assert 100 * lost == pytest.approx(data.lost_pct, abs=1e-3)


def check_findings(findings: Any, data: Data) -> None:
    accused = {row.rank: row for row in data.accused}
    replicas = {row.rank: row for row in data.replicas}
    for finding in findings:
        seen, row = finding.metrics, accused.get(finding.subject.rank)
        if finding.kind == "rank.even" and data.lost_pct is not None:
            assert seen["lost_pct"] == data.lost_pct
        if row is None or finding.polarity.value == "normal":
            continue
        assert seen["window_pct"] == row.job_pct
        evidence = {one.what: one for one in row.evidence}
        if finding.kind == "rank.late":
            assert (seen["lost_ms"], seen["votes"], seen["steps"]) == (row.lost_ms_per_step, row.votes, row.steps)
        if finding.kind == "rank.intermittent":
            slow = row.slow_steps
            assert slow is not None
            assert (seen["lost_ms"], seen["total_ms"]) == (row.lost_ms_per_step, slow.lost_ms)
            assert seen["total_ms"] == pytest.approx(seen["lost_ms"] * seen["slow_steps"])
            assert (seen["slow_steps"], seen["steps"]) == (slow.count, row.steps) == (row.votes, data.steps)
            assert (seen["first_step"], seen["last_step"]) == (slow.steps[0], slow.steps[-1])
            assert seen.get("period_steps") == slow.period
        if "own_ms" in seen:
            assert (seen["own_ms"], seen["peers_ms"]) == (evidence["own_time"].mine, evidence["own_time"].peers)
            assert seen["excess_ms"] == pytest.approx(seen["own_ms"] - seen["peers_ms"])
            assert seen["ratio"] == pytest.approx(seen["own_ms"] / seen["peers_ms"])
        if finding.kind == "replica.slow":
            assert seen["p50_ms"] == replicas[row.rank].p50_ms
    for row in data.accused:
        if row.slow_steps is not None:
            assert row.lost_ms_per_step is not None
            whole = sum(one.step_ms for one in data.ranks if one.rank == row.rank) * data.steps
            assert row.slow_steps.lost_ms == pytest.approx(whole * row.job_pct / 100, rel=1e-3)
        elif row.began_step is None and row.lost_ms_per_step is not None and not data.replicas:
            assert row.of_step_pct == pytest.approx(100 * row.lost_ms_per_step / (data.step_ms or 1))


def check_page(page: str, data: Data) -> None:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    figures = json.loads(found[1])["figures"]
    lines = re.findall(r'<tr(?: class="accused")?><td class="number">(\d+)</td>(.*?)</tr>', page)
    assert {int(rank) for rank, _ in lines} == {row.rank for row in data.ranks}
    table = {int(rank): re.findall(r'<td class="number">([^<]*)</td>', cells) for rank, cells in lines}
    parts = figures["parts"]
    bars = [floats(values) for values in parts["parts"]]
    waits = parts["names"].index(words("en")["rank_page"]["part_wait"]) if any_wait(data) else None
    ranks = [first for first, _ in parts["rows"]]
    matrix = floats(figures["waits"]["values"]["waits"]) if "waits" in figures else []
    for row in data.ranks:
        known = (row.step_ms, row.own_ms, row.wait_ms, row.compute_ms, row.gap_ms)
        assert table[row.rank] == ["" if value is None else f"{value:.2f} ms" for value in known]
        place = ranks.index(row.rank)
        assert sum(bar[place] for bar in bars) == pytest.approx(row.step_ms, rel=1e-3)
        if waits is not None:
            assert bars[waits][place] == pytest.approx(row.wait_ms, rel=1e-4, abs=1e-5)
        if matrix:
            line = [first for first, _ in figures["waits"]["rows"]].index(row.rank)
            count = len(figures["waits"]["rows"])
            assert sum(matrix[line * count : (line + 1) * count]) == pytest.approx(row.wait_ms, rel=1e-3, abs=1e-4)
    for accused in data.accused:
        if accused.lost_ms_per_step is not None:
            assert quantity(accused.lost_ms_per_step, "ms") in html.unescape(page)
        if accused.slow_steps is not None:
            assert quantity(accused.slow_steps.lost_ms, "ms") in html.unescape(page)
            (line,) = re.findall(r'<path class="slow_steps" d="([^"]*)"', page) if len(data.accused) == 1 else [None]
            assert line is None or line.count("M") == accused.slow_steps.count


def any_wait(data: Data) -> bool:
    return any(row.wait_ms > 0 for row in data.ranks)


def floats(text: str) -> list[float]:
    return list(array("f", base64.b64decode(text)))


def check_diagnosis(recording: Recording, result: Any, data: Data) -> None:
    found = rank_diagnosis(CAUSES, result, recording.manifest.id, "", len(data.ranks))
    assert found.verdict is not Verdict.CONFIRMED, "one set of traces is one source"
    printed = diagnosis_text(found, CAUSES, "en")
    if data.verdict == "none":
        assert found.victim is not None
        assert found.victim.lost_pct == pytest.approx(data.lost_pct or 0.0)
        assert (found.verdict is Verdict.HEALTHY) is ((data.lost_pct or 0.0) < 10)
        assert f"loses {quantity(data.lost_pct or 0.0, 'pct')}" in printed
    elif found.victim is not None and data.accused:
        assert found.victim.lost_pct == pytest.approx(data.accused[0].job_pct)


# --- compare_runs ---------------------------------------------------------------------------------------------------


@random_jobs(25)
@given(plans(faulty=False), st.integers(0, 1000), st.sampled_from(("", "compute", "gap", "transfer")))
def test_the_numbers_of_compare_runs_agree(plan: Plan, seed: int, fault: Any) -> None:
    later = {**vars(plan), "seed": seed, "lost": 0.0}
    if fault:
        later["faults"] = (Fault(fault, tuple(range(plan.ranks)), ms=15, factor=4),)
    before, after = simulate(Plan(**{**vars(plan), "lost": 0.0})).recording, simulate(Plan(**later)).recording
    manifest = after.manifest.model_copy(deep=True)
    manifest.collectors["ranks_before"] = before.manifest.collectors["ranks"].model_copy(deep=True)
    tables = {name.replace("ranks.", "ranks_before."): table for name, table in before.tables().items()}
    recording = Recording.in_memory(manifest, tables | after.tables())
    result = judge(compare_runs.TOOL, recording, compare_runs.Params(top=200))
    data: CompareData = result.data
    if data.step_before_ms is None or data.step_after_ms is None or data.change_ms is None:
        return
    assert data.change_ms == pytest.approx(data.step_after_ms - data.step_before_ms)
    assert data.change_pct == pytest.approx(100 * data.change_ms / data.step_before_ms)
    assert {"slower": data.change_ms > 0, "faster": data.change_ms < 0}.get(data.verdict, True)
    printed = result_text(result, "en")
    first = (
        f"a step takes {quantity(data.step_after_ms, 'ms')} instead of {quantity(data.step_before_ms, 'ms')} (means;"
    )
    assert first in printed
    assert sum(part.change_ms for part in data.parts) == pytest.approx(data.change_ms, abs=1e-6) or not data.parts
    for rank in data.ranks:
        parts = ("compute", "loader", "gap", "transfer", "waiting", "rest")
        sums = sum(getattr(rank, f"{part}_change_ms") for part in parts)
        assert sums == pytest.approx(rank.step_change_ms, abs=1e-6)
        assert rank.step_after_ms - rank.step_before_ms == pytest.approx(rank.step_change_ms, abs=1e-6)
    for row in (*data.parts, *data.operators):
        assert row.after_ms - row.before_ms == pytest.approx(row.change_ms, abs=1e-6)
    kinds = Counter(finding.kind for finding in result.findings)
    assert kinds["run.step_time"] <= 1
    for finding in result.findings:
        seen = finding.metrics
        if finding.kind == "run.step_time":
            assert (seen["before_ms"], seen["after_ms"]) == (data.step_before_ms, data.step_after_ms)
            assert seen["change_pct"] == data.change_pct
        else:
            assert seen["change_ms"] == pytest.approx(seen["after_ms"] - seen["before_ms"])
            assert seen["of_change_pct"] == pytest.approx(100 * seen["change_ms"] / data.change_ms)
