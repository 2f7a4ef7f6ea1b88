"""Kineto traces of every age, from text as libkineto prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BLIND_SPOTS
from whystall.tools.timeline.kineto import trace as kineto
from whystall.tools.timeline.profile import KINDS, Profile

BASE = 1_711_964_646_000_000_000
AT = 4_458_676_000_000.0
PID = 4242
Event = dict[str, Any]


def host(category: str, name: str, ts: float, dur: float, *, tid: int = PID, correlation: int = 0) -> Event:
    args = {"External id": 1} | ({"correlation": correlation} if correlation else {})
    return {"ph": "X", "cat": category, "name": name, "pid": PID, "tid": tid, "ts": AT + ts, "dur": dur, "args": args}


def work(
    category: str, name: str, ts: float, dur: float, correlation: int, *, stream: int = 7, **args: object
) -> Event:
    lane = {"device": 3, "stream": stream, "correlation": correlation, **args}
    return {"ph": "X", "cat": category, "name": name, "pid": 3, "tid": stream, "ts": AT + ts, "dur": dur, "args": lane}


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
JOB = [
    host("user_annotation", "ProfilerStep#5", 0.0, 100.0),
    host("user_annotation", "ProfilerStep#6", 100.0, 100.0),
    host("cpu_op", "aten::mm", 10.125, 20.5),
    host("cuda_runtime", "cudaLaunchKernel", 12.001, 5.0, correlation=11),
    host("cuda_runtime", "cudaMemcpyAsync", 95.0, 2.0, correlation=12),
    host("cuda_driver", "cuLaunchKernel", 110.0, 2.0, tid=4300, correlation=13),
    host("cuda_runtime", "cudaMemcpy", 120.0, 30.0, correlation=14),
    host("cuda_runtime", "cudaStreamSynchronize", 160.0, 30.0, correlation=15),
    host("cuda_runtime", "cudaFuncGetAttributes", 5.0, 1.0, correlation=16),
    work("kernel", "gemm<float>(int)", 20.25, 70.75, 11),
    work("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 105.0, 2.0, 12),
    work("kernel", NCCL, 130.0, 9.0, 13, stream=20),
    work("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 140.0, 9.0, 14),
    {"ph": "s", "id": 11, "pid": PID, "tid": PID, "ts": AT + 12.001, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 11, "pid": 3, "tid": 7, "ts": AT + 20.25, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": PID, "tid": PID, "ts": AT, "args": {}},
    {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": AT, "args": {"name": "python3"}},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler", "ts": AT},
    {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#5", "pid": 3, "tid": 7, "ts": AT + 20, "dur": 9.0},
    {"ph": "X", "cat": "python_function", "name": "a.py(3): f", "pid": 0, "tid": 0, "ts": AT + 1, "dur": 9.0},
]  # fmt: skip


def read(tmp_path: Path, events: list[Event], **top: object) -> Profile:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, **top, "traceEvents": events, "baseTimeNanoseconds": BASE}))
    return kineto.read(path)


def rows(profile: Profile, *kinds: str) -> list[tuple[Any, ...]]:
    """Name, start and end in ns since the job began, thread, step - by start."""
    frame = profile.activities.filter(pl.col("kind").is_in(kinds))
    begin = BASE + int(AT) * 1000
    return frame.select("name", pl.col("start_ns") - begin, pl.col("end_ns") - begin, "tid", "step").rows()


def test_kinds_times_and_threads_of_host_work(tmp_path: Path) -> None:
    profile = read(tmp_path, JOB)
    assert rows(profile, "operator") == [("aten::mm", 10_125, 30_625, PID, 5)]
    assert rows(profile, "launch") == [
        ("cudaLaunchKernel", 12_001, 17_001, PID, 5),
        ("cudaMemcpyAsync", 95_000, 97_000, PID, 5),
        ("cuLaunchKernel", 110_000, 112_000, 4300, 6),
    ]
    assert rows(profile, "sync") == [
        ("cudaMemcpy", 120_000, 150_000, PID, 6),
        ("cudaStreamSynchronize", 160_000, 190_000, PID, 6),
    ]
    assert rows(profile, "python") == [("a.py(3): f", 1_000, 10_000, -1, 5)]  # its profiler did not know the thread
    assert set(profile.activities["kind"].unique()) <= set(KINDS)


def test_device_work_belongs_to_the_thread_and_the_step_of_its_launch(tmp_path: Path) -> None:
    profile = read(tmp_path, JOB)
    assert rows(profile, "kernel", "memcpy", "collective") == [
        ("gemm<float>(int)", 20_250, 91_000, PID, 5),
        ("Memcpy HtoD (Pageable -> Device)", 105_000, 107_000, PID, 5),  # runs in step 6
        (NCCL, 130_000, 139_000, 4300, 6),
        ("Memcpy DtoH (Device -> Pageable)", 140_000, 149_000, PID, 6),
    ]
    device = profile.activities.filter(pl.col("kind").is_in(["kernel", "collective"]))
    assert device.select("device", "stream", "correlation", "pid").rows() == [(3, 7, 11, PID), (3, 20, 13, PID)]
    assert profile.activities.filter(kind="operator").select("device", "stream").rows() == [(-1, -1)]


def test_ranges_projected_onto_a_device_are_no_work_of_it(tmp_path: Path) -> None:
    projected = read(tmp_path, JOB).activities.filter((pl.col("kind") == "other") & (pl.col("device") >= 0))
    assert projected.select("name", "pid", "tid", "device", "stream").rows() == [("ProfilerStep#5", -1, -1, 3, 7)]


def test_steps_are_those_of_the_host(tmp_path: Path) -> None:
    profile = read(tmp_path, JOB)
    begin = BASE + int(AT) * 1000
    assert profile.steps.rows() == [
        (begin, begin + 100_000, 5, PID, PID),
        (begin + 100_000, begin + 200_000, 6, PID, PID),
    ]


def test_clock_source_and_notes(tmp_path: Path) -> None:
    profile = read(tmp_path, JOB, distributedInfo={"backend": "nccl", "rank": 12, "world_size": 16})
    assert (profile.clock, profile.source, profile.rank, profile.bridges) == ("real", "kineto", 12, ())
    assert profile.notes == ()


@pytest.mark.parametrize("info", [None, {}, [], {"rank": "0"}, {"rank": -3}, {"rank": 2**40}])
def test_a_rank_that_is_none_is_unknown(tmp_path: Path, info: object) -> None:
    assert read(tmp_path, JOB, distributedInfo=info).rank == -1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "collective"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "collective"),
        ("nccldevkernel_sendrecv", "collective"),
        ("rcclGenericKernel", "collective"),
        ("void at::native::elementwise_kernel<2>()", "kernel"),
    ],
)
def test_kernels_of_communication_libraries_are_collectives(tmp_path: Path, name: str, kind: str) -> None:
    profile = read(tmp_path, [work("kernel", name, 1, 2, 5)])
    assert profile.activities["kind"].to_list() == [kind]


def test_the_profiler_knows_collectives_that_the_name_does_not_tell(tmp_path: Path) -> None:
    events = [work("kernel", "generic_kernel", 1, 2, 5, **{"Collective name": "allreduce"})]
    assert read(tmp_path, events).activities["kind"].to_list() == ["collective"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaDeviceSynchronize", "sync"),
        ("cudaEventSynchronize", "sync"),
        ("cuStreamSynchronize", "sync"),
        ("hipStreamSynchronize", "sync"),
        ("cudaMemcpyToSymbol", "sync"),
        ("cuMemcpyDtoH_v2", "sync"),
        ("hipMemcpyWithStream", "sync"),
        ("cudaMemcpyAsync_ptsz", "launch"),
        ("cudaMemcpy2DAsync", "launch"),
        ("cudaMemsetAsync", "launch"),
        ("cudaLaunchKernelExC", "launch"),
        ("cudaGraphLaunch", "launch"),
        ("hipLaunchKernel", "launch"),
        ("hipExtModuleLaunchKernel", "launch"),
        ("cudaEventQuery", "other"),
        ("cudaStreamWaitEvent", "other"),
        ("cudaMalloc", "other"),
    ],
)
def test_calls_that_enqueue_and_calls_that_wait(tmp_path: Path, name: str, kind: str) -> None:
    assert read(tmp_path, [host("cuda_runtime", name, 1, 2, correlation=9)]).activities["kind"].to_list() == [kind]


def test_a_call_that_enqueued_work_is_a_launch_whatever_its_name(tmp_path: Path) -> None:
    events = [host("privateuse1_runtime", "doSomething", 1, 2, correlation=9), work("kernel", "k", 5, 2, 9)]
    assert read(tmp_path, events).activities["kind"].to_list() == ["launch", "kernel"]


def test_a_correlation_of_zero_ties_nothing(tmp_path: Path) -> None:
    call = host("cuda_runtime", "cudaLaunchKernel", 1, 2) | {"args": {"correlation": 0}}
    profile = read(tmp_path, [call, work("kernel", "k", 5, 2, 0)])
    assert rows(profile, "kernel") == [("k", 5_000, 7_000, -1, -1)]
    assert profile.notes == (("launch_unknown", "1 of 1"),)


def test_one_graph_launch_owns_all_its_kernels(tmp_path: Path) -> None:
    events = [host("cuda_runtime", "cudaGraphLaunch", 1, 2, correlation=9)]
    profile = read(tmp_path, [*events, *(work("kernel", f"k{i}", 5 + i, 1, 9) for i in range(3))])
    assert [row[3] for row in rows(profile, "kernel")] == [PID] * 3


def test_absolute_times_of_2021_with_its_categories(tmp_path: Path) -> None:
    begin = 1_621_401_187_223_005
    path = tmp_path / "trace.json"
    events: list[Event] = [
        {"ph": "X", "cat": "Operator", "name": "ProfilerStep#3", "pid": 31, "tid": "31", "ts": begin, "dur": 500},
        {"ph": "X", "cat": "Operator", "name": "aten::add", "pid": 31, "tid": "31", "ts": begin + 5, "dur": 20},
        {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "pid": 31, "tid": "31", "ts": begin + 7, "dur": 5,
         "args": {"cbid": 211, "correlation": 311}},
        {"ph": "X", "cat": "Kernel", "name": "add", "pid": 0, "tid": "stream 7", "ts": begin + 20, "dur": 4,
         "args": {"device": 0, "context": 1, "stream": 7, "correlation": 311}},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy DtoH", "pid": 0, "tid": "stream 7", "ts": begin + 30, "dur": 1,
         "args": {"device": 0, "stream": 7, "correlation": 400}},
        {"ph": "X", "cat": "Memset", "name": "Memset", "pid": 0, "tid": "stream 7", "ts": begin + 40, "dur": 1},
    ]  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    profile = kineto.read(path)
    assert profile.activities["kind"].to_list() == ["annotation", "operator", "launch", "kernel", "memcpy", "memset"]
    assert profile.activities["start_ns"][0] == begin * 1000
    assert profile.activities["tid"].to_list() == [31, 31, 31, 31, -1, -1]
    assert profile.activities["stream"].to_list() == [-1, -1, -1, 7, 7, 7]
    assert profile.activities["device"].to_list() == [-1, -1, -1, 0, 0, 0]
    assert profile.steps["step"].to_list() == [3]
    assert profile.notes == (("launch_unknown", "2 of 3"),)
    assert profile.clock == "real"


def test_absolute_times_with_decimals_lose_nothing(tmp_path: Path) -> None:
    begin = 1_709_251_200_000_000
    texts = ", ".join(
        f'{{"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": {begin + i}.{i:03d}, "dur": 0.{i:03d}}}'
        for i in range(1000)
    )
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{texts}]}}')
    profile = kineto.read(path)
    assert profile.activities["start_ns"].to_list() == [(begin + i) * 1000 + i for i in range(1000)]
    assert (profile.activities["end_ns"] - profile.activities["start_ns"]).to_list() == list(range(1000))


def test_a_base_is_not_added_to_times_that_are_absolute(tmp_path: Path) -> None:
    event = host("cpu_op", "op", 0, 1) | {"ts": 1_709_251_200_000_000}
    assert read(tmp_path, [event]).activities["start_ns"].to_list() == [1_709_251_200_000_000_000]


@pytest.mark.parametrize("base", [None, "soon", -5, 10**30, 1.5])
def test_without_a_base_the_clock_is_unknown(tmp_path: Path, base: object) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [host("cpu_op", "op", 0, 1)], "baseTimeNanoseconds": base}))
    profile = kineto.read(path)
    assert (profile.clock, profile.activities["start_ns"].to_list()) == ("", [int(AT) * 1000])


def test_a_trace_of_the_cpu_alone_reports_it(tmp_path: Path) -> None:
    profile = read(tmp_path, JOB[:3])
    assert profile.activities["kind"].to_list() == ["annotation", "operator", "annotation"]
    assert profile.notes == (("no_device_work", ""),)
    assert {code for code, _ in profile.notes} <= BLIND_SPOTS


def test_names_are_made_inert_and_long_ones_cut(tmp_path: Path) -> None:
    names = ["\x1b[31mred\x1b[0m\n", "\u202eright", "<script>alert(1)</script>", "x" * 5000]
    profile = read(tmp_path, [host("cpu_op", name, i, 1) for i, name in enumerate(names)])
    found = profile.activities["name"].to_list()
    assert found[:3] == ["\\x1b[31mred\\x1b[0m\\x0a", "\\u202eright", "<script>alert(1)</script>"]
    assert len(found[3]) == 1024


def test_numbers_that_are_none_cost_their_event(tmp_path: Path) -> None:
    odd = [host("cpu_op", "a", 1, 1) | {"ts": "soon"}, host("cpu_op", "b", 1, 1) | {"dur": 1e300}]
    profile = read(tmp_path, [*odd, host("cpu_op", "good", 1, 1) | {"pid": 2**40, "tid": "x"}])
    assert profile.activities.select("name", "pid", "tid").rows() == [("good", -1, -1)]
    assert ("odd_events", "2") in profile.notes


def test_a_negative_length_is_none(tmp_path: Path) -> None:
    assert rows(read(tmp_path, [host("cpu_op", "op", 5, -3)]), "operator") == [("op", 5_000, 5_000, PID, -1)]


def test_work_of_a_device_without_an_end_is_not_read(tmp_path: Path) -> None:
    events = [host("cpu_op", "op", 5, 1), work("kernel", "gemm", 7, 2, 3), work("kernel", NCCL, 9, -4, 5)]
    profile = read(tmp_path, events)
    assert [row[0] for row in rows(profile, "kernel", "collective")] == ["gemm"]
    assert ("odd_events", "1") in profile.notes


@pytest.mark.parametrize(
    "events", [[], [{"ph": "M", "name": "x"}], [{"ph": "X", "cat": "Trace", "name": "x"}], [5, "x"]]
)
def test_no_activity_is_an_error(tmp_path: Path, events: list[Event]) -> None:
    with pytest.raises(ToolError) as caught:
        read(tmp_path, events)
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_the_same_file_gives_the_same_rows(tmp_path: Path) -> None:
    ties = [host("cpu_op", f"op{i}", 5.0, 1.0) for i in range(500)]
    first, again = read(tmp_path, ties), read(tmp_path, ties)
    assert first.activities.equals(again.activities)
    assert first.activities["name"].to_list() == [event["name"] for event in ties]
