"""Topologies that hosts state, merged into one cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from topologies import own

from whystall.agent_server.fleet.answers import Answer
from whystall.agent_server.fleet.merge import FleetResult, merge
from whystall.agent_server.fleet.text import fleet_text
from whystall.agent_server.inputs.topology import open_topology
from whystall.agent_server.interfaces import serialize
from whystall.tools.contract.foreign_json import inert
from whystall.tools.host.cluster_topology.tool import TOOL, Params
from whystall.tools.recording.judging import artifact_path, judge


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def answers(tmp_path: Path, hosts: int = 3, **changed: dict[str, Any]) -> list[Answer]:
    """What each host answers that knows only itself."""
    whole = json.loads(own(hosts, **changed))
    found = []
    for at in range(hosts):
        host = f"node{at}"
        mine = {
            name: [row for row in rows if row[2 if name == "sources" else 0] == host]
            for name, rows in whole["tables"].items()
        }
        mine["groups"] = [["pp_0", f"{8 * at}-{8 * at + 7}"], ["world", f"0-{8 * hosts - 1}"]]
        file = tmp_path / f"{host}.json"
        file.write_text(json.dumps({"whystall_topology": 1, "tables": mine}))
        result = judge(TOOL, open_topology(Params(files=[str(file)], top=200), None), Params(top=200))
        found.append(Answer(host, "answered", reply=inert(serialize.structured(result))))
    return found


def merged(found: list[Answer]) -> FleetResult:
    return merge("cluster_topology", found, {"top": 200})


def test_hosts_are_merged_into_one_cluster_with_its_ranks_groups_and_page(tmp_path: Path) -> None:
    result = merged(answers(tmp_path, r9={"cpus": "56-111"}))
    data: Any = result.joint
    assert [(row.host, row.gpus, row.nics, row.ranks, row.nvlink) for row in data.hosts] == [
        ("node1", 8, 8, "8-15", 18),
        ("node0", 8, 8, "0-7", 18),
        ("node2", 8, 8, "16-23", 18),
    ]
    assert [(row.rank, row.host, row.what) for row in data.affinity] == [(9, "node1", "cpu")]
    assert {(row.name, row.ranks, row.hosts) for row in data.groups if row.name == "world"} == {("world", "0-23", 3)}
    assert (result.verdict, result.suspect and result.suspect.rank) == ("abnormal", 9)
    page, svg = (
        artifact_path(one.uri).read_text()
        for one in result.artifacts
        if one.media_type in ("text/html", "image/svg+xml")
    )
    assert all(f"node{at}" in text for at in range(3) for text in (page, svg))
    assert "topology.html" in fleet_text(result, "en")


def test_a_host_states_only_itself_and_what_is_no_row_is_counted(tmp_path: Path) -> None:
    found = answers(tmp_path)
    data = found[1].reply["data"]  # type: ignore[index]
    data["devices"][0]["host"] = "node2"
    data["ranks"][0] = {"rank": "x"}
    data["links"] = "no list"
    data["ranks"][1]["rank"] = 0  # node0 has it too
    result = merged(found)
    joint: Any = result.joint
    assert {row.host: row.gpus for row in joint.hosts} == dict.fromkeys(("node0", "node1", "node2"), 8)
    assert [(one.rank, one.hosts) for one in result.disputed] == [(0, ["node0", "node1"])]
    assert 0 not in {row.rank for row in joint.ranks}
    assert {row.host: row.unread for row in result.hosts}["node1"] == 1
    assert result.verdict == "clear_in_part"


def test_no_answer_is_no_cluster() -> None:
    result = merged([Answer("node0", "unreachable", "refused"), Answer("node1", "answered", reply={"data": 3})])
    assert (result.verdict, result.answered) == ("unknown", 1)
