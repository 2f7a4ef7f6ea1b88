"""Real jobs of four ranks, each with its fault, recorded once (tests/recorded/ranks/make.py): judged without torch."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ranks_table import VARIANTS, score

from whystall.tools.ranks.slow_node_check.tool import TOOL, Params
from whystall.tools.ranks.traces.gather import gather
from whystall.tools.recording.judging import judge
from whystall.tools.timeline.rank_data.rank_list import rank_list

pytestmark = pytest.mark.thorough

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


def without_steps(variant: str, directory: Path, ranks: Sequence[int] = range(4)) -> Path:
    """The traces as a profiler without a schedule writes them."""
    for rank in ranks:
        trace = json.loads(gzip.decompress((RECORDED / variant / f"rank{rank}.json.gz").read_bytes()))
        events = trace["traceEvents"]
        trace["traceEvents"] = [one for one in events if not str(one.get("name")).startswith("ProfilerStep")]
        (directory / f"rank{rank}.json").write_text(json.dumps(trace))
    return directory


@pytest.mark.parametrize(
    ("variant", "verdict", "accused"),
    [
        ("compute", "rank", [2]),
        ("loader", "rank", [2]),
        ("quota", "rank", [2]),
        ("two", "several", [2, 3]),
        ("moving", "moving", []),
        ("nothing", "none", []),
        ("nothing_workers", "none", []),
    ],
)
def test_without_steps_operations_take_their_place(
    variant: str, verdict: str, accused: list[int], tmp_path: Path
) -> None:
    """One all_reduce per step: they are matched by their order, and come at even distances."""
    data = judged(without_steps(variant, tmp_path))["data"]
    assert (data["verdict"], [row["rank"] for row in data["accused"]]) == (verdict, accused)
    assert data["matched"]["matched"] == data["matched"]["rows"] == 96


@pytest.mark.parametrize("variant", ["layers", "nothing_mesh", "loader_workers"])
def test_where_steps_cannot_be_estimated_the_answer_shows_how_to_mark_them(variant: str, tmp_path: Path) -> None:
    result = judged(without_steps(variant, tmp_path))
    assert (result["data"]["verdict"], result["data"]["accused"]) == ("cannot_tell", [])
    details = {spot["code"]: spot["detail"] for spot in result["coverage"]["not_seen"]}
    assert details["no_steps"] == "with torch.profiler.record_function(f'ProfilerStep#{step}'):"


@pytest.mark.parametrize("variant", ["compute", "nothing"])
@pytest.mark.parametrize("ranks", [(1, 3), (0, 1, 3)])
def test_without_steps_and_the_slow_rank_no_rank_is_accused(
    variant: str, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    result = judged(without_steps(variant, tmp_path, ranks))
    assert result["data"]["accused"] == []
    assert result["data"]["matched"]["matched"] == 24 * len(ranks)
    missing = {spot["code"]: spot["detail"] for spot in result["coverage"]["not_seen"]}["ranks_missing"]
    assert missing == rank_list(set(range(4)) - set(ranks))


def test_captures_shifted_by_an_operation_are_not_matched_by_order(tmp_path: Path) -> None:
    """Rank 1 lacks the first operation, the others the last: as many, and none the same at any place."""
    for path in without_steps("compute", tmp_path).glob("*.json"):
        trace = json.loads(path.read_text())
        ranges = sorted(
            (one for one in trace["traceEvents"] if one.get("name") == "gloo:all_reduce"), key=lambda one: one["ts"]
        )
        first, last = ranges[0]["ts"] + ranges[0]["dur"], ranges[-1]["ts"]
        trace["traceEvents"] = [
            one
            for one in trace["traceEvents"]
            if (one.get("ts", 0) > first if path.name == "rank1.json" else one.get("ts", 0) < last)
        ]
        path.write_text(json.dumps(trace))
    data = judged(tmp_path)["data"]
    assert data["matched"]["rows"] == 92
    assert 88 <= data["matched"]["matched"] <= 91
    assert (data["verdict"], [row["rank"] for row in data["accused"]]) == ("rank", [2])
