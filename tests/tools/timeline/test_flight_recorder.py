"""Flight Recorder dumps, pickled and JSON, of NCCL and gloo, whole and damaged."""

from __future__ import annotations

import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from flight_dumps import MS, T0, Rank, write

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files.formats import Head, Match
from whystall.tools.timeline.nccl import flight_recorder
from whystall.tools.timeline.nccl.flight_recorder import detect, named_rank, read
from whystall.tools.timeline.profiles import candidates, open_profile, with_work

RECORDED = Path(__file__).parents[2] / "recorded" / "flight_recorder"
SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "flight_recorder"
GROUPS = {"0": ("default_pg", range(4)), "7": ("TP", (2, 3))}


def rank_three() -> Rank:
    one = Rank(3, GROUPS)
    one.does("0").does("7", "_all_gather_base", sizes=[[4, 8]], dtype="BFloat16")
    one.does("7", "send 1->0", state="started", time_discovered_started_ns=T0 + 9 * MS)
    return one.does("0", state="scheduled", sizes=[[2, 3], [5]])


def rows(path: Path, *columns: str) -> list[tuple[Any, ...]]:
    return read(path).collectives.select(columns).rows()


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_what_a_rank_asked_for_and_what_became_of_it(tmp_path: Path, form: str) -> None:
    place = write(tmp_path, rank_three(), form=form)
    (path,) = place.iterdir()
    profile = read(path)
    assert (profile.rank, profile.source, profile.clock) == (3, "flight_recorder", "real")
    assert (profile.run.world_size, profile.run.backend) == (4, "nccl")
    assert profile.activities.is_empty()
    everyone, pair = "0|0,1,2,3", "7|2,3"
    columns = ("op", "group", "seq", "bytes", "dtype", "peer", "state")
    assert rows(path, *columns) == [
        ("all_reduce", everyone, 1, 4000, "Float", -1, "completed"),
        ("all_gather", pair, 1, 64, "BFloat16", -1, "completed"),
        ("all_reduce", everyone, 2, 44, "Float", -1, "scheduled"),
        ("send", pair, 1, 4000, "Float", 2, "started"),
    ]
    # An operation begins where the recorder saw it begin, else where it was asked for; its end is known or 0.
    assert rows(path, "launch_ns", "start_ns", "end_ns") == [
        (T0 + 1 * MS, T0 + 1 * MS, T0 + 3 * MS // 2),
        (T0 + 2 * MS, T0 + 2 * MS, T0 + 5 * MS // 2),
        (T0 + 4 * MS, T0 + 4 * MS, 0),
        (T0 + 3 * MS, T0 + 9 * MS, 0),
    ]
    assert profile.groups.rows() == [(everyone, "0", "default_pg", [0, 1, 2, 3], 4), (pair, "7", "TP", [2, 3], 2)]
    assert dict(profile.notes) == {"starts_unknown": "3 of 4"}


def test_an_end_beside_an_unknown_start(tmp_path: Path) -> None:
    one = Rank(0, {"0": ("default_pg", (0, 1))}).does("0", time_discovered_completed_ns=T0)  # clocks may step back
    (path,) = write(tmp_path, one).iterdir()
    assert rows(path, "start_ns", "end_ns", "state") == [(T0 + MS, T0 + MS, "completed")]


def test_counters_tell_what_the_ring_forgot(tmp_path: Path) -> None:
    one = Rank(3, GROUPS).does("0", state="scheduled", seq=9).counts("0", 9, 8).counts("7", 40, 40)
    (path,) = write(tmp_path, one).iterdir()
    # The second group has no entry; both sides number groups in the order they were made.
    assert read(path).progress.rows() == [("0|0,1,2,3", 9, 8), ("7|2,3", 40, 40)]


def test_counters_of_groups_used_point_to_point_count_something_else(tmp_path: Path) -> None:
    one = Rank(3, GROUPS).does("7", "send 1->0", state="scheduled", seq=70).counts("0", 3, 3).counts("7", 70, 69)
    (path,) = write(tmp_path, one).iterdir()
    assert read(path).progress.rows() == [("0|0,1,2,3", 3, 3)]


def test_counters_that_disagree_with_the_last_entry(tmp_path: Path) -> None:
    """What gloo sends it counts, but does not record."""
    one = Rank(3, GROUPS, backend="gloo").does("0", seq=12).does("7", seq=4).counts("0", 13, 13).counts("7", 4, 4)
    (path,) = write(tmp_path, one).iterdir()
    assert read(path).progress.rows() == [("7|2,3", 4, -1)]


def test_counters_that_no_order_explains_are_left_out(tmp_path: Path) -> None:
    one = Rank(3, {"pg-a": ("default_pg", range(4)), "pg-b": ("TP", (2, 3))}).does("pg-b", seq=5).counts("pg-b", 5, 4)
    one.status["17"] = {"last_enqueued_collective": 1, "last_completed_collective": 1}
    (path,) = write(tmp_path, one).iterdir()
    assert read(path).progress.rows() == [("pg-b|2,3", 5, 4)]


def test_what_a_counter_has_is_done_is_done(tmp_path: Path) -> None:
    one = Rank(3, GROUPS).does("0", state="scheduled").does("0", state="scheduled").counts("0", 2, 1)
    (path,) = write(tmp_path, one).iterdir()
    assert rows(path, "seq", "state", "end_ns") == [(1, "completed", 0), (2, "scheduled", 0)]


@pytest.mark.parametrize("retired", [True, False])
def test_calls_in_a_batch_stand_as_the_batch_does(tmp_path: Path, retired: bool) -> None:
    one = (
        Rank(3, GROUPS)
        .does("7", "send 1->0", state="scheduled", seq=4)
        .does("7", "recv 1<-0", state="scheduled", seq=4)
    )
    one.does("7", "coalesced", state="scheduled", is_p2p=True, p2p_seq_id=4, sizes=[], retired=retired)
    (path,) = write(tmp_path, one).iterdir()
    assert {state for (state,) in rows(path, "state")} == {"completed" if retired else "scheduled"}


@pytest.mark.parametrize(
    ("sizes", "dtypes", "expected"),
    [
        ([], [], 0),
        ([[]], ["Long"], 8),
        ([[3], [2, 2]], ["Half", "Double"], 38),
        ([[0, 5]], ["Float"], 0),
        ([[10]], ["Float8_e4m3fn"], 10),
        ([[10]], ["Secret"], -1),
        ([[-1]], ["Float"], -1),
        ([[2**40, 2**40]], ["Float"], -1),
        ([[10], [10]], ["Float", "Float", "Float"], -1),
        ([[10]], [], -1),
    ],
)
def test_bytes(tmp_path: Path, sizes: list[list[int]], dtypes: list[str], expected: int) -> None:
    one = Rank(0, {"0": ("default_pg", (0,))})
    one.does("0", input_sizes=sizes, input_dtypes=dtypes, output_sizes=[], output_dtypes=[])
    (path,) = write(tmp_path, one).iterdir()
    assert rows(path, "bytes") == [(expected,)]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("_dump_3", 3),
        ("nccl_trace_rank_12", 12),
        ("comm_lib_trace_rank_4", 4),
        ("_dump_7.json", 7),
        ("rank5.pkl", 5),
        ("job42_rank-6.json.gz", 6),
        ("_dump_", -1),
        ("ranking3x", -1),
        ("_dump_99999999", -1),
    ],
)
def test_the_rank_in_a_name(name: str, rank: int) -> None:
    assert named_rank(Path("rank9") / name) == rank


def test_the_rank_its_groups_tell(tmp_path: Path) -> None:
    three = rank_three()
    three.groups = {**three.groups, "9": ("DP", (1, 3))}
    for name in ("x.pkl", "_dump_0"):  # a wrong name too: only rank 3 is in all of them
        (tmp_path / name).write_bytes(pickle.dumps(three.content()))
        assert read(tmp_path / name).rank == 3


def test_a_name_that_the_groups_rule_out(tmp_path: Path) -> None:
    (tmp_path / "_dump_1").write_bytes(pickle.dumps(rank_three().content()))
    with pytest.raises(ToolError, match=r"called rank 1, but its groups are of others: \[2, 3\]"):
        read(tmp_path / "_dump_1")


def test_groups_of_which_only_the_name_is_reported(tmp_path: Path) -> None:
    content = Rank(1, {"": ("", ()), "0": ("default_pg", ()), "1": ("pair", ())}, backend="gloo").does("1").content()
    content["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[]"}}
    (tmp_path / "_dump_1").write_bytes(pickle.dumps(content))
    profile = read(tmp_path / "_dump_1")
    assert profile.groups.rows() == [("1", "1", "pair", [], -1)]
    assert profile.run.world_size == -1
    assert "group_guessed" in dict(profile.notes)


@pytest.mark.parametrize("name", ["absent", "absent_json"])
def test_a_recorded_hang_of_gloo(name: str) -> None:
    """What is over with gloo is retired and still called scheduled."""
    for rank in range(4):
        suffix = ".json" if name.endswith("json") else ""
        profile = read(RECORDED / name / f"_dump_{rank}{suffix}")
        states = profile.collectives["state"].to_list()
        assert profile.rank == rank
        assert profile.run.backend == "gloo"
        assert states == ["completed"] * 6 + ["scheduled"] * (rank != 2)
        assert set(profile.collectives["end_ns"]) == {0}
        assert profile.progress.rows() == [("0", 6 + (rank != 2), -1)]  # gloo counts failures as done


def test_both_forms_of_one_recording_agree() -> None:
    for rank in range(4):
        one, other = (read(RECORDED / name) for name in (f"absent/_dump_{rank}", f"absent_json/_dump_{rank}.json"))
        assert one.collectives.equals(other.collectives)
        assert (one.groups.rows(), one.notes) == (other.groups.rows(), other.notes)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not here")
def test_the_public_sample() -> None:
    for rank in range(16):
        one = read(SAMPLES / "sixteen_ranks_pickle" / f"_dump_{rank}")
        other = read(SAMPLES / "sixteen_ranks_json" / f"_dump_{rank}.json")
        assert (one.rank, one.run.world_size, one.run.backend) == (rank, 16, "nccl")
        assert one.collectives.equals(other.collectives)
        assert one.progress.sort("group").equals(other.progress.sort("group"))
        assert set(one.collectives["state"]) == {"scheduled"}
        p2p = one.collectives.filter(pl.col("op").is_in(["send", "recv"]))
        pipeline = {rank % 4 + 4 * stage for stage in range(4)} - {rank}
        assert set(p2p["peer"]) <= pipeline
        assert p2p["bytes"].unique().to_list() == [4096 * 5120 * 2]


class _Calls:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("true",)


def test_a_pickle_that_tries_to_import(tmp_path: Path) -> None:
    content = rank_three().content()
    content["entries"].append(_Calls())
    (tmp_path / "_dump_3").write_bytes(pickle.dumps(content, 2))
    (tmp_path / "_dump_2").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(_Calls()))
    for name in ("_dump_3", "_dump_2", "model.pkl"):
        with pytest.raises(ToolError, match=r"tries to import (posix|nt|os)\.system") as caught:
            open_profile(tmp_path / name)
        assert caught.value.code is ErrorCode.BAD_TRACE
    # among other files its name makes it a dump, so that it is reported; any other pickle is ignored
    assert [one.path.name for one in candidates(tmp_path)] == ["_dump_2", "_dump_3"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "empty"),
        (b"\x80\x02}", "damaged"),
        (b"{", "no Flight Recorder dump"),
        (b'{"version": "2.9"}', "without entries"),
        (b'{"version": "2.9", "entries": 5}', "no Flight Recorder dump"),
        (b"[" * 100_000, "no Flight Recorder dump"),
        (b'{"version": "9.1", "entries": []}', "version 9.1"),
        (b'{"entries": []}', "version unknown"),
        (pickle.dumps([1, 2]), "a pickle without entries"),
        (pickle.dumps({"version": "2.9", "entries": {}}), "a pickle without entries"),
        (gzip.compress(b'{"version": "2.9"', mtime=0)[:-9], "damaged"),
        (b"garbage", "damaged"),
    ],
)
def test_what_is_no_dump(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "_dump_0").write_bytes(content)
    with pytest.raises(ToolError, match=text) as caught:
        read(tmp_path / "_dump_0")
    assert caught.value.code is ErrorCode.BAD_TRACE
    assert "\n" not in caught.value.message


def test_a_dump_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = pickle.dumps(rank_three().content(), 2)
    path = tmp_path / "_dump_3"
    for length in range(1, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(ToolError):
            read(path)


def test_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "_LIMIT", 1 << 20)
    path = tmp_path / "_dump_0.json.gz"
    path.write_bytes(gzip.compress(b'{"version": "2.9", "entries": [' + b" " * (4 << 20) + b"]}"))
    with pytest.raises(ToolError, match="larger than 1 MiB"):
        read(path)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_entries_that_make_no_sense_are_counted(tmp_path: Path, form: str) -> None:
    one = rank_three()
    one.entries += [{"profiling_name": 5}, {"time_created_ns": "x"}, {"input_sizes": [[[1]]]}]  # type: ignore[dict-item]
    one.entries.append({"profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"]})
    (path,) = write(tmp_path, one, form=form).iterdir()
    profile = read(path)
    assert dict(profile.notes)["odd_events"] == "3"
    assert profile.collectives.row(0, named=True)["seq"] == -1  # nothing known of it but its name


def test_hostile_names_are_inert(tmp_path: Path) -> None:
    evil = "<script>\x1b[31m\u202e"
    one = Rank(0, {evil: (evil, (0, 1))}, backend=evil).does(evil, dtype=evil)
    (path,) = write(tmp_path, one).iterdir()
    profile = read(path)
    text = str(profile.groups.rows()) + str(profile.collectives.rows()) + profile.run.backend
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_what_is_a_dump_is_detected_without_loading_it(tmp_path: Path) -> None:
    write(tmp_path, rank_three())
    write(tmp_path, rank_three(), form="json")
    (tmp_path / "kineto.json").write_text('{"distributedInfo": {"pg_config": []}, "deviceProperties": []}')
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"weights": [1, 2]}))
    (tmp_path / "config.json").write_text('{"profiling_name": 1')  # what it begins with decides
    (tmp_path / "notes").write_text("pg_config")
    seen = sorted(path.name for path in tmp_path.iterdir() if detect(Head(path)) is Match.CERTAIN)
    assert seen == ["_dump_3", "_dump_3.json", "config.json"]


def test_a_dump_is_no_profile_of_work(tmp_path: Path) -> None:
    found = candidates(write(tmp_path, rank_three()))
    assert [(one.rank, one.source) for one in found] == [(3, "flight_recorder")]
    with pytest.raises(ToolError, match="holds the collectives of a rank") as caught:
        with_work(found)
    assert "slow_node_check" in caught.value.remedy
    assert open_profile(tmp_path).source == "flight_recorder"
    (tmp_path / "trace.json").write_text(
        '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 5, "dur": 1}]}'
    )
    assert open_profile(tmp_path).source == "kineto"  # a profile of work is preferred
