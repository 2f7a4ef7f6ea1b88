"""Stored runs end to end: traces of torch's profiler, the database, and the judgement of later runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from whystall.agent_server.app import App
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import ToolResult

SCRIPT = Path(__file__).parents[2] / "torch_runs.py"
RECORDED = Path(__file__).parents[2] / "recorded" / "ranks"


def traced(place: Path, shapes: str, *runs: str) -> None:
    words = [sys.executable, str(SCRIPT), str(place), shapes, *runs]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def judged(app: App, name: str, after: Path) -> ToolResult[Any]:
    async def run() -> ToolResult[Any]:
        return await app.run_tool("compare_runs", {"baseline": name, "after": str(after), "top": 100})

    return anyio.run(run)


def claimed(result: ToolResult[Any]) -> set[tuple[str, str]]:
    """Operators that a finding calls slower than in the stored runs, with their ranks."""
    found = [one for one in result.findings if one.kind == "run.operator_latency" and one.polarity.value == "abnormal"]
    return {(one.attributes["name"], one.attributes["ranks"]) for one in found if one.metrics["change_pct"] > 0}


@pytest.mark.thorough
@pytest.mark.parametrize("shapes", ["shapes", "plain"])
def test_a_slower_operator_of_one_rank_is_named_and_an_equal_run_accuses_none(tmp_path: Path, shapes: str) -> None:
    traced(tmp_path / "runs", shapes, "one", "two", "three", "four", "equal", "slow:300@1")
    name = "probe::work float[64,96]" if shapes == "shapes" else "probe::work"
    with App(tmp_path / "kb.db").closing() as app:
        for run in ("one", "two", "three", "four"):
            assert app.store_baseline("job", tmp_path / "runs" / run).new
        slow, equal = (judged(app, "job", tmp_path / "runs" / run) for run in ("slow", "equal"))
    assert (name, "1") in claimed(slow)
    rows = {(row.name, row.rank): row for row in slow.data.latencies}
    work = rows["probe::work", 1]
    # 600 us of processor time instead of 300; the profiler adds to both
    assert work.low_pct < 100 < work.high_pct + 10
    assert rows["probe::work", 0].state != "slower"
    # without shapes the difference between two ranks may be one of the mix, if one of them was disturbed
    assert work.peers_slower or shapes == "plain"
    assert name not in {of for of, _ in claimed(equal)}
    assert ("shapes_unknown" in slow.data.reasons) == (shapes == "plain")


def test_a_recorded_run_equals_itself_and_is_stored_once(tmp_path: Path) -> None:
    with App(tmp_path / "kb.db").closing() as app:
        first, again = (app.store_baseline("job", RECORDED / "nothing") for _ in range(2))
        assert (first.new, again.new) == (True, False)
        result = judged(app, "job", RECORDED / "nothing")
        assert claimed(result) == set()
        assert result.data.verdict == "none"
        assert "one_run" in result.data.reasons


def test_an_unknown_baseline_is_an_error_of_one_line(tmp_path: Path) -> None:
    with App(tmp_path / "kb.db").closing() as app, pytest.raises(ToolError) as caught:
        judged(app, "none", RECORDED / "nothing")
    assert caught.value.code is ErrorCode.NOT_FOUND
    assert caught.value.remedy == "list them with `whystall baselines list`"


def test_an_earlier_run_and_a_baseline_exclude_each_other(tmp_path: Path) -> None:
    async def run(app: App) -> None:
        words = {"baseline": "job", "before": str(RECORDED / "nothing"), "after": str(RECORDED / "compute")}
        await app.run_tool("compare_runs", words)

    with App(tmp_path / "kb.db").closing() as app, pytest.raises(ToolError, match="exclude each other"):
        anyio.run(run, app)
