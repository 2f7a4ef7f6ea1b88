"""What slow_node_check offers next: the difference of the slow rank to the median of its peers, ready to be called."""

from __future__ import annotations

import shlex
from typing import Any

import polars as pl
import pytest
from rank_jobs import Fault, Plan, simulate

from whystall.agent_server.presentation.headlines import headline_of
from whystall.tools.contract.params import parse_params
from whystall.tools.profiles.flamegraph_diff import tool as flamegraph_diff
from whystall.tools.ranks.slow_node_check.tables import Data
from whystall.tools.ranks.slow_node_check.tool import Params, judge
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.tables import file_of

pytestmark = pytest.mark.thorough


def check(plan: Plan, traces: str | None = None, paths: dict[int, str] | None = None) -> Data:
    recording = simulate(plan).recording
    if paths is not None:
        tables = recording.tables()
        named = pl.col("rank").replace_strict(paths, default="", return_dtype=pl.String).alias("path")
        tables = {**tables, "ranks.ranks": tables["ranks.ranks"].with_columns(named)}
        recording = Recording.in_memory(recording.manifest, tables)
    return judge(recording, Params(top=200, traces=traces)).data


def slow(*ranks: int, kind: Any = "compute", ms: float = 20.0, **plan: Any) -> Plan:
    return Plan(ranks=plan.pop("size", 4), faults=(Fault(kind, ranks, ms=ms, factor=plan.pop("factor", 1.0)),), **plan)


FILES = {rank: f"host{rank}/rank{rank}.json.gz" for rank in range(8)}


def test_the_slow_rank_against_the_median_of_its_peers() -> None:
    data = check(slow(2), "/data/run", FILES)
    (call,) = data.next
    own = {row.rank: row.own_ms for row in data.ranks if row.rank != 2}
    assert (call.tool, call.rank) == ("flamegraph_diff", 2)
    assert own[call.peer] == sorted(own.values())[1]
    assert call.arguments == {
        "before": f"/data/run/host{call.peer}/rank{call.peer}.json.gz",
        "after": "/data/run/host2/rank2.json.gz",
    }
    parse_params(flamegraph_diff.Params, dict(call.arguments))


def test_another_stage_is_no_peer_and_neither_is_another_slow_rank() -> None:
    staged = check(slow(1, size=8, stages=2, ms=30.0), "/data/run", FILES)
    assert [call.rank for call in staged.next] == [1]
    assert staged.next[0].peer in {0, 2, 3}
    two = check(slow(0, 3), "/data/run", FILES)
    assert {call.rank for call in two.next} == {row.rank for row in two.accused}
    assert {call.peer for call in two.next} <= {1, 2}


def test_a_gathered_run_names_the_ranks_alone() -> None:
    for traces in (None, "s3://bucket/run"):
        (call,) = check(slow(2), traces, FILES).next
        assert call.arguments == {"before_rank": call.peer, "after_rank": 2}


def test_a_file_of_several_ranks_is_reported_by_rank() -> None:
    (call,) = check(slow(2), "/data/run", dict.fromkeys(range(4), "all.sqlite")).next
    assert call.arguments == {"before": "/data/run", "before_rank": call.peer, "after": "/data/run", "after_rank": 2}


def test_a_slow_link_and_a_healthy_job_have_nothing_to_compare() -> None:
    assert check(Plan(), "/data/run", FILES).next == []
    linked = check(slow(0, 1, kind="link", size=8, tensor=2, factor=12.0), "/data/run", FILES)
    assert [row.slow_class for row in linked.accused if row.slow_class != "communication_slow"] == []
    assert linked.next == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_command_can_be_pasted(lang: Any) -> None:
    hostile = "/data/my run; rm -rf $HOME `id` '\""
    data = check(slow(2), hostile, FILES)
    (line,) = [line for line in headline_of("slow_node_check", data, lang) if "flamegraph_diff" in line]
    words = shlex.split(line[line.index("whystall run") :])
    assert words[:3] == ["whystall", "run", "flamegraph_diff"]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert given == {f"--{name}": value for name, value in data.next[0].arguments.items()}


def test_without_the_traces_the_command_reports_what_is_missing() -> None:
    data = check(slow(2))
    (line,) = [line for line in headline_of("slow_node_check", data, "en") if "flamegraph_diff" in line]
    assert f"--before TRACES --after TRACES --before-rank {data.next[0].peer} --after-rank 2" in line


def test_a_rank_whose_work_is_not_in_its_trace_is_not_offered() -> None:
    recording = simulate(slow(2)).recording
    tables = recording.tables()
    hidden = tables["ranks.operators"].filter(pl.col("rank") != 2)
    seen = judge(
        Recording.in_memory(recording.manifest, {**tables, "ranks.operators": hidden}), Params(traces="/data/run")
    ).data
    assert [row.rank for row in seen.accused] == [2]
    assert seen.next == []


def test_a_path_within_a_file_of_several_ranks_names_file_and_number() -> None:
    assert file_of("node0/report.sqlite#12") == ("node0/report.sqlite", 12)
    for path in ("run#1.json", "#3", "trace.json", ""):
        assert file_of(path) == (path, None)
