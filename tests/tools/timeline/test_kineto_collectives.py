"""Collectives on a device, from Kineto traces of every age: one row each, whatever the trace has of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from whystall.tools.contract.result import BLIND_SPOTS
from whystall.tools.timeline.collectives import COLLECTIVES
from whystall.tools.timeline.kineto import trace as kineto
from whystall.tools.timeline.profile import Profile

pytestmark = pytest.mark.thorough

PID = 4242
BASE = 1_711_964_646_000_000_000
SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "kineto" / "collective_args.json.gz"
Event = dict[str, Any]

NEW = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
OLD = "ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"


def host(category: str, name: str, ts: float, dur: float, *, tid: int = PID, **args: Any) -> Event:
    return {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name: str, ts: float, dur: float, correlation: int, *, device: int = 0, **args: Any) -> Event:
    lane = {"device": device, "stream": 20, "correlation": correlation, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": 20, "ts": ts, "dur": dur, "args": lane}


def launch(ts: float, correlation: int, *, tid: int = PID) -> Event:
    return host("cuda_runtime", "cudaLaunchKernelExC", ts, 2.0, tid=tid, correlation=correlation)


def recorded(name: str = "allreduce", elements: Any = 1000, **more: Any) -> dict[str, Any]:
    return {
        "Collective name": name,
        "dtype": "BFloat16",
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "Group size": 2,
        "Process Group Name": "3",
        "Process Group Description": "dp",
        "Process Group Ranks": "[1, 5]",
    } | more


def read(tmp_path: Path, events: list[Event], **top: Any) -> Profile:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events, "baseTimeNanoseconds": BASE}))
    return kineto.read(path)


def row(profile: Profile, *columns: str) -> tuple[Any, ...]:
    assert profile.collectives.height == 1
    return profile.collectives.select(columns or ("op", "group", "bytes", "dtype")).row(0)


def test_a_kernel_that_describes_itself(tmp_path: Path) -> None:
    steps = [host("user_annotation", "ProfilerStep#7", 0, 100), host("user_annotation", "ProfilerStep#8", 100, 100)]
    events = [*steps, launch(90, 5), kernel(NEW, 120.5, 30.25, 5, **recorded(Seq=17))]
    profile = read(tmp_path, events)
    assert profile.collectives.schema == COLLECTIVES
    assert profile.collectives.row(0, named=True) == {
        "start_ns": BASE + 120_500,
        "end_ns": BASE + 150_750,
        "op": "all_reduce",
        "group": "3|1,5",
        "seq": 17,
        "bytes": 2000,
        "dtype": "BFloat16",
        "peer": -1,
        "launch_ns": BASE + 90_000,
        "step": 7,  # of its launch
        "device": 0,
        "lane": 20,
        "state": "completed",
        "vendor_wait_ns": -1,
    }
    assert profile.groups.rows() == [("3|1,5", "3", "dp", [1, 5], 2)]


def test_without_its_launch_it_belongs_to_the_step_it_began_in(tmp_path: Path) -> None:
    events = [host("user_annotation", "ProfilerStep#7", 0, 100), kernel(NEW, 50, 30, 5, **recorded())]
    assert row(read(tmp_path, events), "launch_ns", "step") == (0, 7)


def test_an_older_kernel_is_described_by_the_record_it_was_launched_under(tmp_path: Path) -> None:
    record = host("cpu_op", "record_param_comms", 10, 20, **{"External id": 9}, **recorded("_allgather_base", 500))
    events = [
        host("cpu_op", "c10d::_allgather_base_", 9, 30),
        record,
        host("user_annotation", "nccl:_all_gather_base", 12, 10),
        launch(15, 5),
        kernel(OLD, 40, 30, 5, **{"External id": 9}),
        host("cpu_op", "record_param_comms", 50, 20, **{"External id": 10}, **recorded("wait", 0)),
    ]
    assert row(read(tmp_path, events)) == ("all_gather", "3|1,5", 1000, "BFloat16")


def test_a_kernel_without_an_id_is_found_by_its_launch(tmp_path: Path) -> None:
    def record(ts: float, name: str, tid: int) -> Event:
        return host("cpu_op", "record_param_comms", ts, 20, tid=tid, **recorded(name))

    events = [
        record(10, "broadcast", PID),
        record(50, "reduce_scatter", PID),
        record(50, "allgather", 77),
        launch(55, 5),
        kernel("ncclKernel_SendRecv(x)", 80, 30, 5),
    ]
    assert row(read(tmp_path, events))[0] == "reduce_scatter"
    late = [record(10, "broadcast", PID), launch(55, 5), kernel("ncclKernel_Reduce(x)", 80, 30, 5)]
    assert row(read(tmp_path, late)) == ("reduce", "", -1, "")


@pytest.mark.parametrize(
    ("name", "op"),
    [
        (NEW, "all_reduce"),
        (OLD, "all_gather"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half", "reduce_scatter"),
        ("nccldevkernel_broadcast_ring_ll", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("rcclGenericKernel<1, false>(ncclDevComm*)", "other"),
        ("ncclDevKernel_Reduce_Sum_bf16_RING_LL", "reduce"),
    ],
)
def test_the_oldest_kernels_say_it_in_their_names(tmp_path: Path, name: str, op: str) -> None:
    assert row(read(tmp_path, [kernel(name, 1, 2, 5)])) == (op, "", -1, "")


@pytest.mark.parametrize(
    ("name", "collective", "op"),
    [
        ("ncclDevKernel_Generic(x)", "allreduce_coalesced", "all_reduce"),
        ("ncclDevKernel_SendRecv(x)", "all_to_all", "all_to_all"),
        ("ncclDevKernel_SendRecv(x)", "all_to_allv", "all_to_all_v"),
        ("ncclDevKernel_SendRecv(x)", "send", "send"),
        ("ncclDevKernel_SendRecv(x)", "coalesced", "send_recv"),
        ("ncclDevKernel_AllReduce_Sum(x)", "barrier", "barrier"),
        ("ncclDevKernel_Broadcast(x)", "_broadcast_oop", "broadcast"),
    ],
)
def test_the_librarys_word_counts_before_the_kernels_name(tmp_path: Path, name: str, collective: str, op: str) -> None:
    assert row(read(tmp_path, [kernel(name, 1, 2, 5, **recorded(collective))]))[0] == op


def test_kernels_of_one_record_are_one_collective(tmp_path: Path) -> None:
    """A ragged all_gather is several broadcasts, launched one after the other."""
    args = {"External id": 9, **recorded("all_gather")}
    events = [
        host("cpu_op", "record_param_comms", 10, 20, **args),
        launch(15, 5),
        launch(18, 6),
        kernel("ncclDevKernel_Broadcast(x)", 40, 10, 5, **args),
        kernel("ncclDevKernel_Broadcast(x)", 55, 10, 6, **args),
        host("cpu_op", "record_param_comms", 100, 20, **(args | {"External id": 12})),
        launch(105, 7),
        kernel("ncclDevKernel_Broadcast(x)", 140, 10, 7, **(args | {"External id": 12})),
    ]
    frame = read(tmp_path, events).collectives
    assert frame.select("op", "start_ns", "end_ns", "launch_ns").rows() == [
        ("all_gather", BASE + 40_000, BASE + 65_000, BASE + 15_000),
        ("all_gather", BASE + 140_000, BASE + 150_000, BASE + 105_000),
    ]


def test_kernels_of_one_graph_are_not_one_collective(tmp_path: Path) -> None:
    """A replayed graph is one launch, and its kernels share its id."""
    events = [host("cuda_runtime", "cudaGraphLaunch", 5, 3, correlation=5)]
    events += [kernel(NEW, 40 + 20 * i, 10, 5, **{"External id": 3}) for i in range(3)]
    frame = read(tmp_path, events).collectives
    assert frame.height == 3
    assert set(frame["launch_ns"]) == {BASE + 5_000}


def test_sends_know_their_peer_and_have_no_number_of_their_own(tmp_path: Path) -> None:
    """PyTorch gives a send the number of the next collective."""
    events = [
        kernel("ncclDevKernel_SendRecv(x)", 1, 2, 5, **recorded("send", Seq=4, **{"Dst Rank": 5})),
        kernel("ncclDevKernel_SendRecv(x)", 9, 2, 6, **recorded("recv", Seq=4, **{"Src Rank": "5"})),
    ]
    assert read(tmp_path, events).collectives.select("op", "peer", "seq").rows() == [("send", 5, -1), ("recv", 5, -1)]


def test_the_larger_side_is_the_payload(tmp_path: Path) -> None:
    args = recorded("_allgather_base", 10) | {"Out msg nelems": "80", "dtype": "Float"}
    assert row(read(tmp_path, [kernel(NEW, 1, 2, 5, **args)]), "bytes") == (320,)


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("Half", 2), ("Long", 8), ("Byte", 1), ("Float8_e4m3fn", 1), ("c10::Half", 2), ("", -1), ("Frobnicated", -1)],
)
def test_sizes_of_types(tmp_path: Path, dtype: str, size: int) -> None:
    profile = read(tmp_path, [kernel(NEW, 1, 2, 5, **recorded(elements=1) | {"dtype": dtype})])
    assert row(profile, "bytes") == (size,)


def test_what_is_known_of_the_run(tmp_path: Path) -> None:
    info = {"backend": "cuda:nccl", "rank": 1, "world_size": 8}
    events = [host("user_annotation", "ProfilerStep#1", 0, 10), kernel(NEW, 1, 2, 5)]
    profile = read(tmp_path, events, distributedInfo=info, host_name="node\x1b[31m7")
    assert (profile.run.world_size, profile.run.backend, profile.run.pid) == (8, "cuda:nccl", PID)
    assert profile.run.host == "node\\x1b[31m7"


def test_a_file_of_2021(tmp_path: Path) -> None:
    def event(category: str, name: str, ts: float, tid: int, **args: Any) -> Event:
        return {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": tid, "ts": ts, "dur": 5, "args": args}

    at = 1_619_000_000_000_000
    events = [
        event("Operator", "ProfilerStep#2", at, PID),
        event("Operator", "record_param_comms", at + 1, PID),
        event("Runtime", "cudaLaunchKernel", at + 2, PID, correlation=5),
        event("Kernel", "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", at + 9, 7, device=0, stream=7,
              correlation=5, **{"external id": 3}),
    ]  # fmt: skip
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    profile = kineto.read(path)
    assert row(profile, "op", "step", "launch_ns", "start_ns") == (
        "all_reduce", 2, (at + 2) * 1000, (at + 9) * 1000
    )  # fmt: skip
    assert (profile.run.world_size, profile.run.backend, profile.run.host) == (-1, "", "")
    assert profile.groups.is_empty()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Collective name", ["allreduce"]),
        ("Collective name", {"a": 1}),
        ("dtype", 1.5),
        ("In msg nelems", "many"),
        ("In msg nelems", -7),
        ("Out msg nelems", [1]),
        ("Out msg nelems", 2**70),
        ("Seq", "x"),
        ("Process Group Name", ["0"]),
    ],
)
def test_an_odd_argument_is_counted_and_the_collective_stays(tmp_path: Path, key: str, value: object) -> None:
    profile = read(tmp_path, [kernel(NEW, 1, 2, 5, **recorded() | {key: value}), kernel(NEW, 9, 2, 6, **recorded())])
    assert profile.collectives.height == 2
    assert profile.activities["kind"].to_list() == ["collective"] * 2
    assert ("odd_events", "1") in profile.notes


@pytest.mark.parametrize("key", ["External id", "Group size", "Global rank start", "Global rank stride", "Src Rank",
                                 "Process Group Ranks", "Process Group Description"])  # fmt: skip
@pytest.mark.parametrize("value", [None, "", "x", -3, 1.5, [], [[1]], {}, True, 2**80, "[0, 1, ...]"])
def test_nothing_in_an_argument_stops_the_reader(tmp_path: Path, key: str, value: object) -> None:
    profile = read(tmp_path, [kernel(NEW, 1, 2, 5, **recorded() | {key: value})])
    assert row(profile, "op") == ("all_reduce",)
    assert {code for code, _ in profile.notes} <= BLIND_SPOTS


def test_names_are_made_inert(tmp_path: Path) -> None:
    args = recorded(**{"Process Group Name": "\x1b]0;x\x07", "Process Group Description": "<b>\u202e"})
    profile = read(tmp_path, [kernel(NEW, 1, 2, 5, **args | {"dtype": "\x00" * 999})])
    assert profile.groups["name"].to_list() == ["\\x1b]0;x\\x07"]
    assert profile.groups["description"].to_list() == ["<b>\\u202e"]
    assert len(profile.collectives["dtype"][0]) <= 256


@pytest.mark.skipif(not SAMPLE.exists(), reason="public sample data not at hand")
def test_the_public_sample() -> None:
    frame = kineto.read(SAMPLE).collectives
    assert frame["op"].value_counts().sort("op").rows() == [("all_reduce", 15), ("broadcast", 6)]
    assert set(frame["group"]) == {"0|0,1"}
    assert (frame["launch_ns"] > 0).all()
    assert (frame["launch_ns"] < frame["start_ns"]).all()
    assert frame["bytes"].min() == 424
