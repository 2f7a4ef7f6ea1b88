"""Collectives, groups and links of Ascend profiles: the same job as text and as database, and what may be missing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from ascend_job import (
    BEGIN,
    COUNT,
    DEVICE,
    GROUP,
    GROUP_ID,
    PID,
    RANKS,
    analysis,
    communication,
    communication_files,
    database,
    groups,
    matrix,
    prof_directory,
    profiler_info,
    text_directory,
    timeline,
)

from whystall.tools.contract.result import BLIND_SPOTS
from whystall.tools.timeline.ascend import directory as ascend
from whystall.tools.timeline.ascend import msprof
from whystall.tools.timeline.ascend.groups import Communicators, hashed, number_of
from whystall.tools.timeline.collectives import COLLECTIVES, LINKS
from whystall.tools.timeline.profile import Profile

SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "ascend"
OUTPUT = "ASCEND_PROFILER_OUTPUT"
KEY = f"{GROUP}|1,3,5,7"


def text(parent: Path) -> Path:
    directory = text_directory(parent, "node7_3096504_20250109000000000_ascend_pt")
    communication_files(directory)
    return directory


def db(parent: Path) -> Path:
    output = parent / "h_ascend_pt" / OUTPUT
    output.mkdir(parents=True)
    database(output / "ascend_pytorch_profiler_3.db")
    analysis(output / "analysis.db")
    (output.parent / "profiler_info_3.json").write_text(json.dumps(profiler_info()))
    return output.parent


@pytest.fixture(params=[text, db])
def profile(request: pytest.FixtureRequest, tmp_path: Path) -> Profile:
    return ascend.read(request.param(tmp_path))


def write(directory: Path, name: str, content: Any) -> None:
    (directory / OUTPUT / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_collective_is_one_row_with_all_that_is_known(profile: Profile) -> None:
    assert profile.collectives.schema == COLLECTIVES
    assert profile.collectives.height == 1
    assert profile.collectives.row(0, named=True) == {
        "start_ns": BEGIN + 244_000,
        "end_ns": BEGIN + 801_000,
        "op": "all_reduce",
        "group": KEY,
        "seq": 0,
        "bytes": COUNT * 4,
        "dtype": "FP32",
        "peer": -1,
        "launch_ns": BEGIN + 100_000,
        "step": 50,
        "device": DEVICE,
        "lane": 4,
        "state": "completed",
        "vendor_wait_ns": 318_000,
    }
    assert {code for code, _ in profile.notes} == {"launch_unknown"}


def test_the_group_and_the_run(profile: Profile) -> None:
    assert profile.groups.rows() == [(KEY, GROUP, "dp", RANKS, 4)]
    assert (profile.run.backend, profile.run.host, profile.run.pid) == ("hccl", "node7", PID)


def test_links_are_between_ranks_of_the_job_and_sums_of_all_operations(profile: Profile) -> None:
    assert profile.links.schema == LINKS
    assert profile.links.rows() == [(50, 3, 1, "HCCS", 61_210_624, 3_860_477), (50, 3, 7, "RDMA", 8_000_000, 4_000_000)]


def test_without_measures_the_timeline_has_the_collectives(tmp_path: Path) -> None:
    profile = ascend.read(text_directory(tmp_path))
    row = profile.collectives.select("op", "group", "seq", "bytes", "vendor_wait_ns", "step").row(0)
    assert row == ("all_reduce", "586", 0, COUNT * 4, -1, 50)
    assert profile.links.is_empty()
    assert profile.run.world_size == -1


def test_without_metadata_a_group_is_its_hash_and_its_ranks_are_unknown(tmp_path: Path) -> None:
    directory = text(tmp_path)
    (directory / "profiler_metadata.json").unlink()
    profile = ascend.read(directory)
    assert profile.groups.rows() == [(GROUP_ID, GROUP_ID, "", [], -1)]
    assert profile.collectives["group"].to_list() == [GROUP_ID]
    # The only group is the job's; but rank 3 is not among those that sent.
    assert profile.links.is_empty()


def test_ranks_of_the_only_group_are_those_of_the_job_where_this_rank_is_the_one_that_sent(tmp_path: Path) -> None:
    directory = text(tmp_path)
    (directory / "profiler_metadata.json").unlink()
    (directory / "profiler_info_3.json").rename(directory / "profiler_info_1.json")
    (directory / "profiler_info_1.json").write_text(json.dumps(profiler_info(rank=1)))
    profile = ascend.read(directory)
    assert profile.links.select("source", "target").rows() == [(1, 0), (1, 3)]
    assert profile.run.world_size == 4  # it has at least that many
    content = matrix()
    content["step50"]["collective"]["allreduce-total@123"] = {"0-1": {}}
    content["step50"]["p2p"]["send-top1@123"] = {
        "1-0": {"Transport Type": "HCCS", "Transit Size(MB)": 1, "Transit Time(ms)": 1, "Op Name": "hcom_send__123_0_1"}
    }
    write(directory, "communication_matrix.json", content)
    assert ascend.read(directory).links.is_empty()  # two groups: whose ranks are they?


def test_a_measured_operation_the_timeline_has_not(tmp_path: Path) -> None:
    directory = text(tmp_path)
    content = communication()
    name = f"hcom_send__586_4_1@{GROUP_ID}"
    times = content["step50"]["collective"].pop(f"hcom_allReduce__586_0_1@{GROUP_ID}")
    content["step50"]["p2p"][name] = times
    write(directory, "communication.json", content)
    frame = ascend.read(directory).collectives
    assert frame.select("op", "seq", "group", "vendor_wait_ns", "step", "lane", "launch_ns").rows() == [
        ("all_reduce", 0, KEY, -1, 50, 4, BEGIN + 100_000),
        ("send", 4, KEY, 318_000, 50, -1, 0),
    ]
    start, end = frame.filter(op="send").select("start_ns", "end_ns").row(0)
    assert abs(start - BEGIN - 244_000) < 500  # written as a float of microseconds
    assert end - start == 557_000


def test_measures_are_matched_with_the_nearest_of_the_same_name(tmp_path: Path) -> None:
    directory = text(tmp_path)
    write(directory, "communication.json", communication(skew_ns=-40_000))
    assert ascend.read(directory).collectives["vendor_wait_ns"].to_list() == [318_000]
    write(directory, "communication.json", communication(skew_ns=5_000_000))
    assert ascend.read(directory).collectives["vendor_wait_ns"].to_list() == [-1, 318_000]


def test_where_only_pieces_are_in_the_timeline_the_measures_count(tmp_path: Path) -> None:
    directory = text(tmp_path)
    events = [e for e in timeline() if not str(e["name"]).startswith("hcom_")]
    piece = next(e for e in events if e["name"] == "SDMA")
    write(directory, "trace_view.json", [*events, {**piece, "name": "hcom_allReduce_kernel"}])
    frame = ascend.read(directory).collectives
    assert frame.select("op", "vendor_wait_ns", "device").rows() == [("all_reduce", 318_000, -1)]


def test_without_totals_each_chosen_operation_counts_once(tmp_path: Path) -> None:
    directory = text(tmp_path)
    write(directory, "communication_matrix.json", matrix(total=False))
    assert ascend.read(directory).links["bytes"].to_list() == [61_210_624, 8_000_000]


def test_the_peer_in_a_group_of_two(tmp_path: Path) -> None:
    directory = text(tmp_path)
    pair = {GROUP: {"group_name": "pp", "group_rank": 1, "global_ranks": [7, 3]}}
    (directory / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": pair}))
    events = [{**e, "name": str(e["name"]).replace("allReduce", "receive")} for e in timeline()]
    write(directory, "trace_view.json", events)
    (directory / OUTPUT / "communication.json").unlink()
    assert ascend.read(directory).collectives.select("op", "peer").rows() == [("recv", 7)]


def test_a_database_without_counts_and_without_measures(tmp_path: Path) -> None:
    directory = db(tmp_path)
    (directory / OUTPUT / "analysis.db").unlink()
    with sqlite3.connect(directory / OUTPUT / "ascend_pytorch_profiler_3.db") as connection:
        connection.execute("ALTER TABLE COMMUNICATION_OP DROP COLUMN count")
        connection.execute("DELETE FROM META_DATA")
    profile = ascend.read(directory)
    row = profile.collectives.select("op", "group", "bytes", "dtype", "vendor_wait_ns").row(0)
    assert row == ("all_reduce", GROUP, -1, "", -1)
    assert profile.groups.rows() == [(GROUP, GROUP, "", [], -1)]


def test_msprofs_own_database(tmp_path: Path) -> None:
    directory = prof_directory(tmp_path)
    database(directory / "msprof_20250109000000.db", python=False)
    profile = msprof.read(directory)
    assert profile.collectives.select("op", "group", "bytes").rows() == [("all_reduce", KEY, COUNT * 4)]


@pytest.mark.parametrize("name", ["communication.json", "communication_matrix.json"])
@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"step50": 1}', '{"step50": {"collective": []}}', '{"step50": {"collective": {"a@1": 7}}}'],
)
def test_a_damaged_file_is_counted_and_the_rest_stays(tmp_path: Path, name: str, content: str) -> None:
    directory = text(tmp_path)
    write(directory, name, content)
    profile = ascend.read(directory)
    assert profile.collectives.height == 1
    assert ("odd_events", "1") in profile.notes
    assert {code for code, _ in profile.notes} <= BLIND_SPOTS


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Start Timestamp(us)", "soon"),
        ("Start Timestamp(us)", []),
        ("Start Timestamp(us)", -4),
        ("Elapse Time(ms)", None),
        ("Elapse Time(ms)", -1),
        ("Elapse Time(ms)", 1e300),
        ("Elapse Time(ms)", {}),
    ],
)
def test_odd_times_are_counted(tmp_path: Path, key: str, value: object) -> None:
    directory = text(tmp_path)
    content = communication()
    content["step50"]["collective"][f"hcom_allReduce__586_0_1@{GROUP_ID}"]["Communication Time Info"][key] = value
    write(directory, "communication.json", content)
    profile = ascend.read(directory)
    assert profile.collectives["vendor_wait_ns"].to_list() == [-1]
    assert ("odd_events", "1") in profile.notes


@pytest.mark.parametrize("link", [3, None, {}, {"Transit Size(MB)": -1, "Transit Time(ms)": 1},
                                  {"Transit Size(MB)": "x", "Transit Time(ms)": 1}])  # fmt: skip
def test_odd_links_are_counted(tmp_path: Path, link: object) -> None:
    directory = text(tmp_path)
    content = matrix()
    content["step50"]["collective"][f"allreduce-total@{GROUP_ID}"]["1-0"] = link
    write(directory, "communication_matrix.json", content)
    profile = ascend.read(directory)
    assert profile.links["target"].to_list() == [7]
    assert ("odd_events", "1") in profile.notes


def test_pairs_that_are_none_and_ranks_beyond_the_group(tmp_path: Path) -> None:
    directory = text(tmp_path)
    content = matrix()
    link = content["step50"]["collective"][f"allreduce-total@{GROUP_ID}"]
    link |= {"a-b": link["1-0"], "1": link["1-0"], "1-99": link["1-0"]}
    write(directory, "communication_matrix.json", content)
    profile = ascend.read(directory)
    assert profile.links["target"].to_list() == [1, 7]
    assert ("odd_events", "2") in profile.notes


@pytest.mark.parametrize(
    ("info", "odd"),
    [
        (None, 0),
        ("", 0),
        ("{", 1),
        ([], 1),
        ({GROUP: 3}, 1),
        ({GROUP: {"global_ranks": "all"}}, 1),
        ({GROUP: {"global_ranks": [0, -1]}}, 1),
        ({GROUP: {"global_ranks": [0, 1], "group_name": ["x"]}}, 0),
    ],
)
def test_odd_metadata_is_counted(info: object, odd: int) -> None:
    assert Communicators(info).odd == odd


def test_a_group_by_name_hash_and_digits() -> None:
    found = Communicators(json.dumps(groups()))
    assert hashed(GROUP) == GROUP_ID
    assert found.of(GROUP) == found.of(GROUP_ID) == found.of("", "hcom_allReduce__586_0_1") == KEY
    assert found.of("", "hcom_allReduce__123_0_1") == "123"
    assert found.of("", "SomethingElse") == ""
    assert found.of("999") == "999"


def test_the_default_group_shows_how_large_the_job_is() -> None:
    assert Communicators({"a": {"group_name": "default_group", "global_ranks": list(range(16))}}).world_size == 16


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("hcom_allReduce__586_17_1", 17),
        ("hcom_BatchSendRecv__101_0_1", 0),
        ("hcom_send__822_3", 3),
        ("hcom_allReduce_", -1),
        ("", -1),
        ("x" * 10_000, -1),
    ],
)
def test_numbers_of_operations(name: str, number: int) -> None:
    assert number_of(name) == number


def test_hostile_names_are_made_inert(tmp_path: Path) -> None:
    directory = text(tmp_path)
    pair = {"\x1b[2J": {"group_name": "<script>\u202e", "group_rank": 1, "global_ranks": [3, 7]}}
    (directory / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": pair}))
    assert ascend.read(directory).groups.filter(size=2).select("group", "description").rows() == [
        ("\\x1b[2J|3,7", "<script>\\u202e")
    ]


@pytest.mark.skipif(not SAMPLES.exists(), reason="public sample data not at hand")
@pytest.mark.parametrize("form", ["text", "db"])
def test_the_public_samples(form: str) -> None:
    found = [ascend.read(SAMPLES / form / f"rank{rank}_ascend_pt") for rank in (0, 1)]
    for rank, profile in enumerate(found):
        frame = profile.collectives
        assert frame.select("op", "seq").rows() == [("all_reduce", number) for number in range(4)]
        assert (frame["vendor_wait_ns"] > 0).all()
        assert (frame["vendor_wait_ns"] < frame["end_ns"] - frame["start_ns"]).all()
        assert (frame["launch_ns"] > 0).all()
        assert set(profile.links["source"]) == {rank}
        assert set(profile.links["target"]) == set(range(8)) - {rank}
        assert profile.run.world_size == 8
    assert found[0].collectives["group"].to_list() == found[1].collectives["group"].to_list()
    assert found[0].collectives["bytes"].to_list() == found[1].collectives["bytes"].to_list()
