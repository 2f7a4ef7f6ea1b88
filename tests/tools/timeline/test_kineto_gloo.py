"""Collectives the host carries out: recorded traces of gloo jobs, and traces made by hand where those have no case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whystall.tools.contract.result import BLIND_SPOTS
from whystall.tools.timeline.collectives import COLLECTIVES
from whystall.tools.timeline.kineto import trace as kineto
from whystall.tools.timeline.profile import Profile

RECORDED = Path(__file__).parents[2] / "recorded" / "gloo"
WORLD = "0|0,1,2,3"
PID = 1000
Event = dict[str, Any]


def recorded(job: str, rank: int = 1) -> Profile:
    return kineto.read(RECORDED / f"{job}_rank{rank}.json.gz")


def of_step(profile: Profile, step: int = 2) -> list[tuple[Any, ...]]:
    frame = profile.collectives.filter(step=step)
    return frame.select("op", "group", "bytes", "dtype", "peer").rows()


# As the program in record.py asks for them, in the group of four.
STEP = [
    ("all_reduce", 4000),
    ("all_reduce", 2000),
    ("all_reduce", 2000),
    ("all_gather", 1600),
    ("all_gather", 160),
    ("reduce_scatter", 160),
    ("all_to_all", 64),
    ("all_to_all_v", 20),
    ("barrier", 0),
]


def test_a_step_of_a_job_with_one_group() -> None:
    profile = recorded("one")
    assert [row[:3] for row in of_step(profile)] == [(op, WORLD, size) for op, size in STEP] + [("recv", WORLD, 1200)]
    assert profile.groups.rows() == [(WORLD, "0", "default_pg", [0, 1, 2, 3], 4)]
    assert profile.run.world_size == 4
    assert profile.run.backend == "gloo"
    assert profile.run.pid > 0
    assert profile.run.host
    assert dict(profile.notes).keys() == {"no_device_work"}


def test_a_collective_is_one_row_with_the_instant_the_host_asked_for_it() -> None:
    frame = recorded("one").collectives
    assert frame.height == 2 * (len(STEP) + 1)
    assert frame.schema == COLLECTIVES
    delay = frame["start_ns"] - frame["launch_ns"]
    assert (delay >= 0).all()
    assert (delay < 1_000_000_000).all()
    assert (frame["end_ns"] > frame["start_ns"]).all()
    assert set(frame["device"]) == {-1}
    assert frame["start_ns"].is_sorted()


def test_the_receiving_rank_waits_from_the_request_until_the_data_is_there() -> None:
    """The program computes for 1 ms between asking and waiting."""
    received = recorded("one").collectives.filter(op="recv")
    assert received["peer"].to_list() == [0, 0]
    assert ((received["end_ns"] - received["start_ns"]) >= 1_000_000).all()
    assert (received["start_ns"] == received["launch_ns"]).all()


def test_two_groups_are_distinguished_by_their_threads() -> None:
    """Message sizes say which group it was; the reader does not look at them for that."""
    keys = {0: "1|0,1", 1: "1|0,1", 2: "2|2,3", 3: "2|2,3"}
    for rank, half in keys.items():
        profile = recorded("two", rank)
        known = dict(profile.collectives.filter(pl.col("bytes") >= 4000).select("bytes", "group").unique().rows())
        assert known == {4000: WORLD, 8000: half}
        assert set(profile.groups["group"]) == {WORLD, half}
        assert "group_guessed" in dict(profile.notes)
        assert {code for code, _ in profile.notes} <= BLIND_SPOTS


def test_the_group_of_a_send_is_not_recorded_but_its_peer_is_the_same_in_all_it_may_be() -> None:
    sent = recorded("two", 0).collectives.filter(op="send")
    assert sent.select("group", "peer").rows() == [("", 1), ("", 1)]


def test_three_groups_two_of_them_with_the_same_ranks() -> None:
    frame = recorded("three").collectives.filter(pl.col("bytes") >= 4000)
    assert dict(frame.select("bytes", "group").unique().rows()) == {
        4000: WORLD,
        8000: "1|0,1",
        12000: "3|0,1,2,3",
    }


def test_with_an_unused_group_no_group_is_named() -> None:
    """Four threads and three groups: the idle one is unknown."""
    profile = recorded("unused")
    assert set(profile.collectives["group"]) == {""}
    assert profile.groups.height == 3
    assert "group_guessed" not in dict(profile.notes)


def x(name: str, category: str, ts: float, dur: float, tid: int, **args: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": dur, "args": args}


def ask(name: str, ts: float, dur: float = 5.0, dims: object = (), tid: int = PID, inputs: object = ()) -> Event:
    return x(f"c10d::{name}", "cpu_op", ts, dur, tid, **{"Input Dims": dims, "Concrete Inputs": inputs})


def work(name: str, ts: float, dur: float, tid: int, dims: object = (), types: object = ("float",)) -> Event:
    return x(f"gloo:{name}", "user_annotation", ts, dur, tid, **{"Input Dims": dims, "Input type": types})


def read(tmp_path: Path, events: list[Event], *groups: Event, **top: Any) -> Profile:
    info = {"backend": "gloo", "rank": 0, "world_size": 4, "pg_config": list(groups)}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": info, **top, "traceEvents": events}))
    return kineto.read(path)


def group(name: str, *ranks: int, backend: str = "cpu:gloo") -> Event:
    return {"pg_name": name, "pg_desc": "", "backend_config": backend, "pg_size": len(ranks), "ranks": list(ranks)}


ALL, HALF = group("0", 0, 1, 2, 3), group("1", 0, 1)
SIZE = [[100]]


@pytest.mark.parametrize(
    ("threads", "groups"),
    [
        ([1010, 1011, 1014, 1015], ["0|0,1,2,3"] * 2 + ["1|0,1"] * 2),
        # an idle one: neighbours are of one group
        ([1010, 1011, 1014], ["0|0,1,2,3"] * 2 + ["1|0,1"]),
        ([1010, 1013, 1014], ["0|0,1,2,3"] + ["1|0,1"] * 2),
        # an idle one, and other processes' threads in between: two ways
        ([1010, 1012, 1014], [""] * 3),
        ([1010, 1011], [""] * 2),
        ([1010, 1011, 1014, 1015, 1020], [""] * 5),
        # numbers began again at the largest: 5 is younger than 1010
        ([1010, 1011, 5, 6], ["0|0,1,2,3"] * 2 + ["1|0,1"] * 2),
    ],
)
def test_which_threads_are_of_which_group(tmp_path: Path, threads: list[int], groups: list[str]) -> None:
    events = [work("all_reduce", 10.0 * i, 5, tid, SIZE) for i, tid in enumerate(threads)]
    profile = read(tmp_path, events, ALL, HALF)
    assert profile.collectives["group"].to_list() == groups


def test_groups_of_other_backends_have_no_such_threads(tmp_path: Path) -> None:
    events = [work("all_reduce", 0, 5, 1010, SIZE)]
    profile = read(tmp_path, events, group("0", 0, 1, backend="cuda:nccl"), group("7", 0, 1, backend="gloo"))
    assert profile.collectives["group"].to_list() == ["7|0,1"]


def test_work_is_matched_with_who_asked_in_order_and_by_size(tmp_path: Path) -> None:
    events = [
        ask("allreduce_", 0, dims=[[[100]], []]),
        ask("allreduce_", 10, dims=[[[200]], []]),
        ask("allreduce_", 20, dims=[[[100]], []]),
        # the second group is served first
        work("all_reduce", 30, 5, 1014, [[200]]),
        work("all_reduce", 40, 5, 1010, [[100]]),
        work("all_reduce", 50, 5, 1011, [[100]]),
        work("all_reduce", 60, 5, 1011, [[100]]),  # asked before the trace began
    ]
    frame = read(tmp_path, events, ALL).collectives
    assert frame.select("bytes", "launch_ns").rows() == [(800, 10_000), (400, 0), (400, 20_000), (400, 0)]


def test_an_instant_zero_is_no_launch(tmp_path: Path) -> None:
    events = [ask("broadcast_", 5, dims=[[[8]]]), work("broadcast", 9, 5, 1010, [[8]])]
    frame = read(tmp_path, events, ALL, baseTimeNanoseconds=1_711_964_646_000_000_000).collectives
    begin = 1_711_964_646_000_000_000
    assert frame.select("start_ns", "launch_ns").rows() == [(begin + 9_000, begin + 5_000)]


def test_operators_for_nccl_asked_for_nothing_on_the_host(tmp_path: Path) -> None:
    events = [
        ask("allreduce_", 0, 20, dims=[[[100]]]),
        x("record_param_comms", "cpu_op", 5, 5, PID, **{"Collective name": "allreduce"}),
        ask("allreduce_", 30, 20, dims=[[[100]]]),
        work("all_reduce", 60, 5, 1010, [[100]]),
    ]
    frame = read(tmp_path, events, ALL).collectives
    assert frame.select("op", "launch_ns").rows() == [("all_reduce", 30_000)]


def test_nccl_on_the_host_only_makes_no_rows(tmp_path: Path) -> None:
    """Its ranges end when the work is enqueued: durations that mean nothing."""
    events = [ask("allreduce_", 0), x("nccl:all_reduce", "user_annotation", 1, 2, PID)]
    assert read(tmp_path, events, ALL).collectives.is_empty()


def test_a_step_is_that_of_the_asking_instant(tmp_path: Path) -> None:
    events = [
        x("ProfilerStep#4", "user_annotation", 0, 100, PID),
        x("ProfilerStep#5", "user_annotation", 100, 100, PID),
        ask("allreduce_", 90, dims=[[[100]]]),
        work("all_reduce", 110, 5, 1010, [[100]]),
    ]
    assert read(tmp_path, events, ALL).collectives["step"].to_list() == [4]


@pytest.mark.parametrize(
    ("name", "op"),
    [("recvAnySource", "recv"), ("sparse_all_reduce", "all_reduce"), ("reduce", "reduce"), ("scatter", "scatter")],
)
def test_names_of_operations(tmp_path: Path, name: str, op: str) -> None:
    assert read(tmp_path, [work(name, 0, 5, 1010)], ALL).collectives["op"].to_list() == [op]


def test_mpi_runs_on_the_host_too(tmp_path: Path) -> None:
    events = [x("mpi:all_reduce", "user_annotation", 3, 5, 1010, **{"Input Dims": SIZE, "Input type": ["double"]})]
    frame = read(tmp_path, events, group("0", 0, 1, backend="mpi")).collectives
    assert frame.select("op", "bytes", "group").rows() == [("all_reduce", 800, "")]


def test_the_peer_of_a_send_is_a_rank_of_the_group(tmp_path: Path) -> None:
    send = [ask("send", 0, 10, [[[4]], [], [], []], inputs=["", "", "1", "0"]), work("send", 8, 3, PID, [[4]])]
    assert read(tmp_path, send, group("3", 5, 7)).collectives["peer"].to_list() == [7]
    assert read(tmp_path, send, group("0", 0, 1, 5, 7), group("3", 5, 7)).collectives["peer"].to_list() == [-1]
    row = read(tmp_path, send, group("3", 5, 7)).collectives.select("start_ns", "end_ns", "group", "bytes").row(0)
    assert row == (0, 11_000, "3|5,7", 16)


@pytest.mark.parametrize(
    ("index", "peer"),
    [
        ("2", 2),  # the pair has no such member
        ("0", 1),  # in the group of all it would be this rank
        ("1", -1),  # 1 of all, or 3 of the pair
    ],
)
def test_groups_that_cannot_be_meant_leave_one_peer(tmp_path: Path, index: str, peer: int) -> None:
    send = [ask("send", 0, 10, [[[4]], [], [], []], inputs=["", "", index, "0"]), work("send", 8, 3, PID, [[4]])]
    assert read(tmp_path, send, ALL, group("3", 1, 3)).collectives["peer"].to_list() == [peer]


def test_the_peer_is_unknown_where_the_ranks_of_a_group_are(tmp_path: Path) -> None:
    send = [ask("send", 0, 10, [[[4]], [], [], []], inputs=["", "", "2", "0"]), work("send", 8, 3, PID, [[4]])]
    hidden = {**group("3", 1, 3), "ranks": None}
    assert read(tmp_path, send, ALL, hidden).collectives["peer"].to_list() == [-1]


@pytest.mark.parametrize(
    "dims",
    [[[-1]], [["a"]], "x", [[2**40, 2**40]], {"a": 1}, [[[[[[1]]]]]], [[1.5]], [None], 7],
)
def test_odd_sizes_are_counted_and_the_collective_stays(tmp_path: Path, dims: object) -> None:
    profile = read(tmp_path, [work("all_reduce", 0, 5, 1010, dims), work("all_reduce", 9, 5, 1010, SIZE)], ALL)
    assert profile.collectives["bytes"].to_list() == [-1, 400]
    assert ("odd_events", "1") in profile.notes


@pytest.mark.parametrize("types", [[], ["no such"], [None], "float", {"a": 1}, [["float"]]])
def test_an_unknown_type_has_no_bytes(tmp_path: Path, types: object) -> None:
    frame = read(tmp_path, [work("all_reduce", 0, 5, 1010, SIZE, types)], ALL).collectives
    assert frame["bytes"].to_list() == [-1]


@pytest.mark.parametrize("inputs", [[], ["", "", "x"], ["", "", -1], ["", "", [1]], {"a": 1}, ["", "", 2**80]])
def test_odd_peers_are_unknown(tmp_path: Path, inputs: object) -> None:
    events = [ask("send", 0, 10, SIZE, inputs=inputs), work("send", 8, 3, PID, [[4]])]
    assert read(tmp_path, events, ALL).collectives["peer"].to_list() == [-1]
