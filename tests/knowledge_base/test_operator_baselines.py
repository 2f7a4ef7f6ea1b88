"""The stored runs: what is kept, what gives way, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whystall.knowledge_base import operator_baselines
from whystall.knowledge_base.store import KnowledgeBase
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.rank_data.tables import LATENCIES, TABLES

AT = "2026-01-01T00:00:00Z"


@pytest.fixture
def kb(tmp_path: Path) -> Iterator[KnowledgeBase]:
    with KnowledgeBase(tmp_path / "kb.db") as opened:
        yield opened


def run(ns: int, names: int = 2) -> dict[str, pl.DataFrame]:
    """A run of one rank, whose operators take about `ns`."""
    rows: list[dict[str, Any]] = [
        {"rank": 0, "kind": "kernel", "name": f"op{n}", "shape": "'; DROP TABLE state; --", "count": 9, "per_step": 1.5}
        | {"total_ns": ns + n, "p10_ns": ns, "p50_ns": ns, "p90_ns": ns, "p99_ns": ns}
        | {"blocks": [ns, ns + 1], "block_steps": [3, 4]}
        for n in range(names)
    ]
    head = {"rank": 0, "source": "kineto", "device": True, "world_size": 8}
    empty = [pl.lit(None).cast(dtype).alias(name) for name, dtype in TABLES["ranks"].items() if name not in head]
    ranks = pl.DataFrame([head]).with_columns(empty)
    environment = pl.DataFrame([(0, "device", "NVIDIA H200")], schema=TABLES["environment"], orient="row")
    return {"ranks": ranks, "latencies": pl.DataFrame(rows, schema=LATENCIES), "environment": environment}


def test_what_is_stored_is_read_back(kb: KnowledgeBase) -> None:
    first, second = run(100), run(200)
    kb.operator_baselines.add("job", first, AT)
    kb.operator_baselines.add("job", second, "2026-01-02T00:00:00Z")
    found = kb.operator_baselines.load("job")
    for n, one in enumerate((first, second)):
        stored = found["latencies"].filter(pl.col("run") == n).drop("run").sort("name")
        assert stored.equals(one["latencies"].sort("name"))
    assert found["runs"].rows() == [
        (0, AT, "kineto", True, 8),
        (1, "2026-01-02T00:00:00Z", "kineto", True, 8),
    ]
    assert found["environment"].rows() == [(0, 0, "device", "NVIDIA H200"), (1, 0, "device", "NVIDIA H200")]


def test_a_run_counts_once_and_each_baseline_is_apart(kb: KnowledgeBase) -> None:
    assert kb.operator_baselines.add("job", run(100), AT).new
    assert not kb.operator_baselines.add("job", run(100), "2026-02-01T00:00:00Z").new
    assert kb.operator_baselines.add("other", run(100), AT).new
    assert [(one.name, one.runs, one.operators) for one in kb.operator_baselines.all()] == [
        ("job", 1, 2),
        ("other", 1, 2),
    ]


def test_the_oldest_runs_give_way(kb: KnowledgeBase) -> None:
    dropped = [kb.operator_baselines.add("job", run(100 + n), AT).dropped for n in range(operator_baselines.RUNS + 2)]
    assert dropped == [0] * operator_baselines.RUNS + [1, 1]
    (one,) = kb.operator_baselines.all()
    assert (one.runs, one.operators) == (operator_baselines.RUNS, 2 * operator_baselines.RUNS)
    assert kb.operator_baselines.load("job")["latencies"]["p50_ns"].min() == 102


def test_operators_beyond_the_bound_are_counted_and_left_out(
    kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_baselines, "ROWS", 3)
    stored = kb.operator_baselines.add("job", run(100, names=5), AT)
    assert (stored.operators, stored.left_out) == (3, 2)
    assert set(kb.operator_baselines.load("job")["latencies"]["name"]) == {"op2", "op3", "op4"}


def test_a_deleted_baseline_leaves_nothing(kb: KnowledgeBase) -> None:
    kb.operator_baselines.add("job", run(100), AT)
    kb.operator_baselines.add("other", run(100), AT)
    assert kb.operator_baselines.delete("job") == 1
    assert [(one.name, one.operators) for one in kb.operator_baselines.all()] == [("other", 2)]
    for missing in (kb.operator_baselines.delete, kb.operator_baselines.load):
        with pytest.raises(ToolError) as caught:
            missing("job")
        assert caught.value.code is ErrorCode.NOT_FOUND


@pytest.mark.parametrize("name", ["", "-job", "a b", "x" * 65, "../job", "job\n"])
def test_a_name_of_other_characters_is_refused(kb: KnowledgeBase, name: str) -> None:
    with pytest.raises(ToolError) as caught:
        kb.operator_baselines.add(name, run(100), AT)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_a_run_without_operators_is_refused(kb: KnowledgeBase) -> None:
    with pytest.raises(ToolError, match="no operators or kernels"):
        kb.operator_baselines.add("job", run(100, names=0), AT)


def test_the_number_of_baselines_is_bounded(kb: KnowledgeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_baselines, "NAMES", 1)
    kb.operator_baselines.add("job", run(100), AT)
    kb.operator_baselines.add("job", run(101), AT)
    with pytest.raises(ToolError, match="1 baselines already"):
        kb.operator_baselines.add("other", run(100), AT)
