"""Real jobs of four ranks, each with its fault, recorded once (tests/recorded/ranks/make.py): judged without torch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ranks_table import VARIANTS, score

from whystall.tools.ranks.slow_node_check.tool import TOOL, Params
from whystall.tools.ranks.traces.gather import gather
from whystall.tools.recording.judging import judge

RECORDED = Path(__file__).parents[2] / "recorded" / "ranks"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def judged(traces: Path) -> dict[str, Any]:
    result = judge(TOOL, gather(traces), Params())
    answer: dict[str, Any] = result.model_dump(mode="json")
    return answer


def truth(variant: str) -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads((RECORDED / variant / "truth.json").read_text())
    return recorded


def test_all_variants_are_recorded() -> None:
    assert {path.parent.name for path in RECORDED.glob("*/truth.json")} == set(VARIANTS)


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_job_gets_its_verdict_ranks_and_class(variant: str) -> None:
    recorded = truth(variant)
    result = judged(RECORDED / variant)
    found = score(variant, recorded["slow_ranks"], result)
    assert found.right, f"{found}\n{json.dumps(result['data'], indent=1)}"


@pytest.mark.parametrize("variant", [name for name, of in VARIANTS.items() if of.named and of.slow])
def test_a_rank_costs_no_more_than_the_others_waited(variant: str) -> None:
    result = judged(RECORDED / variant)
    data = result["data"]
    assert {row["rank"] for row in data["ranks"]} == set(range(4))
    for row in data["accused"]:
        assert 0 < row["lost_ms_per_step"] < data["step_ms"]
        waited = max(other["wait_ms"] for other in data["ranks"] if other["rank"] != row["rank"])
        assert row["lost_ms_per_step"] <= 1.1 * waited


@pytest.mark.parametrize("variant", [name for name, of in VARIANTS.items() if of.slow_class and not of.wired])
def test_without_the_slow_rank_no_other_rank_is_accused(variant: str, tmp_path: Path) -> None:
    """Its trace is missing: the others must not be blamed for the wait they share."""
    recorded = truth(variant)
    for trace in (RECORDED / variant).glob("rank*.json.gz"):
        if trace.name != f"rank{recorded['slow_ranks'][0]}.json.gz":
            shutil.copy(trace, tmp_path)
    result = judged(tmp_path)
    accused = {row["rank"] for row in result["data"]["accused"]}
    assert accused <= set(recorded["slow_ranks"])
    assert "ranks_missing" in {spot["code"] for spot in result["coverage"]["not_seen"]}
