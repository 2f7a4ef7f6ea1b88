"""A diagnosis of traces beside stored runs: which operators got slower, on all ranks or on one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import polars as pl
import pytest
from making import finding
from test_causes import candidates
from topologies import own, result

from whystall.agent_server.app import App
from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.diagnosis.replay import replay
from whystall.agent_server.inputs.ranks import Runs, gathered
from whystall.knowledge_base.models import CauseState, Diagnosis, Verdict
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.toolbox import registry

TRACES = Path(__file__).parents[2] / "recorded" / "ranks" / "nothing"
_TIMES = ("total_ns", "p10_ns", "p50_ns", "p90_ns", "p99_ns")


@pytest.fixture(scope="module")
def tables() -> dict[str, pl.DataFrame]:
    """The tables of the recorded run."""
    return {name.partition(".")[2]: frame for name, frame in gathered(Runs(str(TRACES))).tables().items()}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    with App(tmp_path / "kb.db").closing() as one:
        yield one


def store(app: App, tables: dict[str, pl.DataFrame], factor: float) -> None:
    """Store three earlier runs whose operators took `factor` times as long as in the recorded run."""
    for day in range(1, 4):
        by = factor * (1 + day / 1000)
        scaled = tables["latencies"].with_columns(
            *(((pl.col(name) * by).cast(pl.Int64)) for name in _TIMES),
            blocks=pl.col("blocks").list.eval((pl.element() * by).cast(pl.Int64)),
        )
        app.kb().operator_baselines.add("good", tables | {"latencies": scaled}, f"2026-01-0{day}T00:00:00Z")


def diagnosed(app: App, **params: object) -> Diagnosis:
    return anyio.run(lambda: app.diagnose(DiagnoseParams.model_validate({"traces": str(TRACES), **params})))


def test_operators_that_are_slower_on_all_ranks_are_a_likely_cause(
    app: App, tables: dict[str, pl.DataFrame], tmp_path: Path
) -> None:
    store(app, tables, 0.5)
    found = diagnosed(app, baseline="good")
    assert (found.verdict, found.cause) == (Verdict.LIKELY, "operator_regression")
    assert "one_source" in found.missing
    assert found.victim is not None
    assert (found.victim.type, found.victim.rank) == ("job", None)
    first = next(f for f in found.findings if f.id == found.chain[0])
    assert (first.kind, first.metrics["ranks_pct"]) == ("run.operator_latency", 100)
    (transcript,) = (tmp_path / "home").glob("**/*.jsonl")
    again = anyio.run(lambda: replay(transcript, {tool.name: tool for tool in registry().all()}))
    assert again.difference is None


def test_without_slower_operators_or_a_baseline_there_is_no_such_cause(
    app: App, tables: dict[str, pl.DataFrame]
) -> None:
    store(app, tables, 1.0)
    same, alone = diagnosed(app, baseline="good"), diagnosed(app)
    assert (same.verdict, same.cause) == (alone.verdict, alone.cause)
    states = {a.cause: a.state for a in same.assessments}
    assert states["operator_regression"] is not CauseState.SUPPORTED
    assert "operator_regression" not in {a.cause for a in alone.assessments}


def test_an_unknown_baseline_and_one_without_traces_are_errors(app: App) -> None:
    with pytest.raises(ToolError) as unknown:
        diagnosed(app, baseline="none")
    with pytest.raises(ToolError) as useless:
        diagnosed(app, traces=None, baseline="good")
    assert (unknown.value.code, useless.value.code) == (ErrorCode.NOT_FOUND, ErrorCode.BAD_ARGUMENT)


def test_one_slower_rank_is_no_regression_of_all() -> None:
    one = finding("run.operator_latency", window_pct=20, ranks_pct=12.5, change_pct=50)
    faster = finding("run.operator_latency", ranks_pct=100, change_pct=-50)
    assert "operator_regression" not in candidates(one, faster)
    assert "operator_regression" in candidates(
        finding("run.operator_latency", window_pct=20, ranks_pct=100, change_pct=50)
    )


def test_a_slow_rank_far_from_its_gpu_has_that_in_its_evidence(app: App, tmp_path: Path) -> None:
    traces = TRACES.parent / "compute"
    hosts = gathered(Runs(str(traces))).table("ranks.ranks").select("rank", "host").rows()
    file = json.loads(own(1, gpus=8))
    host = hosts[0][1].split(".")[0]
    for name, rows in file["tables"].items():
        for row in rows:
            row[2 if name == "sources" else 0] = host
    (tmp_path / "topology.json").write_text(json.dumps(file))
    sick = [("gpu.pcie", {"device": f"GPU{at}"}, "major") for at in range(8)]
    (tmp_path / f"{host}.json").write_text(result("gpu_health", *sick))
    found = diagnosed(
        app, traces=str(traces), topology=[str(tmp_path / "topology.json"), str(tmp_path / f"{host}.json")]
    )
    slow = found.victim.rank if found.victim else None
    assert found.cause in ("slow_rank_compute", "slow_rank")
    named = [f for f in found.findings if f.kind == "topology.device_marked" and f.subject.rank == slow]
    assert len(named) == 1
    (supported,) = (a for a in found.assessments if a.cause == "slow_rank_compute")
    assert named[0].id in supported.for_
    assert "one_source" in found.missing or "host_unseen" in found.missing
