"""Nsight Systems exports: what ran, its steps, its collectives, of any version."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from nsys_export import COLLECTIVE, COMM_INIT, EPOCH, PEER, PID, TID, Export, payload

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline.nsys import export as nsys
from whystall.tools.timeline.nsys.names import kernel_name, range_name
from whystall.tools.timeline.nsys.steps import step_numbers
from whystall.tools.timeline.profile import Profile
from whystall.tools.timeline.profiles import candidates, open_profile

SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "nsys" / "h100_2gpu_1s.sqlite"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<(unsigned long)4096>)"
WORLD, PAIR = 0xFEDC_BA98_7654_3210, 0x1234


def job(**variables: object) -> Export:
    """Two steps of training on one rank of four."""
    one = Export()
    one.session(**variables)
    one.layouts()
    one.range("ncclCommInitRank", 1, 2, binaryData=payload(COMM_INIT, WORLD, 4, 3), eventType=59)
    one.range("ncclCommInitRank", 4, 2, binaryData=payload(COMM_INIT, PAIR, 2, 1), eventType=59)
    for step, at in ((7, 1000), (8, 2000)):
        one.range(f"step {step}", at, 900, by_id=True)
        one.range("aten::mm, op_id = 12, sizes = [[8, 8]]", at + 10, 40)
        one.kernel("void gemm<float, 128>(float*)", at + 30, 300, launched=at + 20)
        one.range("ncclAllReduce", at + 100, 30, binaryData=payload(COLLECTIVE, WORLD, 4096))
        one.kernel(REDUCE, at + 330, 200, launched=at + 110, stream=20)
        one.range("ncclAllGather", at + 140, 30, binaryData=payload(COLLECTIVE, PAIR, 1000))
        one.kernel(GENERIC, at + 530, 100, launched=at + 150, stream=20)
        one.call("cudaStreamSynchronize_v3020", at + 200, 600)
    return one


def rows(profile: Profile, kind: str) -> list[tuple[object, ...]]:
    frame = profile.activities.filter(pl.col("kind") == kind)
    return frame.select("name", (pl.col("start_ns") - EPOCH) // 1000, "pid", "tid", "device", "stream", "step").rows()


def test_a_kernel_has_its_grid_and_block_and_the_run_its_device(tmp_path: Path) -> None:
    one = job()
    one.add("TARGET_INFO_GPU", vmId=0, id=0, name="NVIDIA H200\x1b[0m")
    extents = dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), (64, 2, 1, 128, 1, 1), strict=True))
    one.rows["CUPTI_ACTIVITY_KIND_KERNEL"][0] |= extents
    profile = open_profile(one.write(tmp_path / "report.sqlite"))
    shapes = profile.activities.with_columns(shape=profile.shapes).filter(pl.col("kind") == "kernel")["shape"]
    assert shapes.to_list() == ["grid [64,2,1] block [128,1,1]", ""]
    assert profile.run.environment == (("device", "NVIDIA H200\\x1b[0m"),)


@pytest.mark.parametrize("name", ["report.sqlite", "report.db", "anything"])
def test_what_ran(tmp_path: Path, name: str) -> None:
    profile = open_profile(job().write(tmp_path / name))
    assert (profile.source, profile.clock) == ("nsys", "real")
    assert rows(profile, "kernel") == [
        ("gemm<float, 128>", 1030, PID, TID, 0, 7, 7),
        ("gemm<float, 128>", 2030, PID, TID, 0, 7, 8),
    ]
    assert [row[:2] for row in rows(profile, "launch")] == [
        ("cudaLaunchKernel", at + launch) for at in (1000, 2000) for launch in (20, 110, 150)
    ]
    assert [row[:2] for row in rows(profile, "sync")] == [("cudaStreamSynchronize", at + 200) for at in (1000, 2000)]
    assert [row[:2] for row in rows(profile, "operator")] == [("aten::mm", at + 10) for at in (1000, 2000)]
    assert profile.steps.select("step", (pl.col("end_ns") - pl.col("start_ns")) // 1000, "tid").rows() == [
        (7, 900, TID),
        (8, 900, TID),
    ]
    assert profile.notes == ()


def test_its_collectives(tmp_path: Path) -> None:
    profile = nsys.read(job().write(tmp_path / "report.sqlite"))
    columns = ("op", "group", "bytes", "dtype", "step", "lane", "state", "seq")
    world, pair = f"{WORLD:#x}", f"{PAIR:#x}"
    one_step = [("all_reduce", world, 4096, "Float"), ("all_gather", pair, 2000, "")]  # two ranks with 1000 each
    assert profile.collectives.select(columns).rows() == [
        (*recorded, step, 20, "completed", -1) for step in (7, 8) for recorded in one_step
    ]
    assert profile.collectives.select((pl.col("launch_ns") - EPOCH) // 1000).to_series().to_list() == [
        1110,
        1150,
        2110,
        2150,
    ]
    assert profile.groups.rows() == [(pair, pair, "", [], 2), (world, world, "", [], 4)]
    # The rank within the communicator of most ranks is the rank, when nothing else has it.
    assert (profile.rank, profile.run.world_size, profile.run.backend, profile.run.pid) == (3, 4, "nccl", PID)


def test_calls_in_a_group(tmp_path: Path) -> None:
    """Kernels of a group are launched at its end, after all its calls."""
    one = Export()
    one.session()
    one.layouts()
    one.range("ncclCommInitRank", 1, 2, binaryData=payload(COMM_INIT, WORLD, 4, 3))
    one.range("ncclGroupStart", 90, 1)
    one.range("ncclSend", 100, 5, binaryData=payload(PEER, WORLD, 512, 2))
    one.range("ncclGroupEnd", 110, 20)
    one.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)", 200, 50, launched=120)
    one.kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)", 300, 50, launched=100, tid=99)
    found = nsys.read(one.write(tmp_path / "report.sqlite")).collectives
    assert found.select("op", "bytes", "peer", "group").rows() == [
        ("send", 512, 2, f"{WORLD:#x}"),
        ("send_recv", -1, -1, ""),  # of another thread
    ]


def test_without_payloads_nothing_has_the_group(tmp_path: Path) -> None:
    one = job()
    path = one.write(tmp_path / "rank2.sqlite", without=("binaryData", "jsonText", "domainId"))
    profile = nsys.read(path)
    assert profile.collectives.select("op", "group", "bytes").rows() == 2 * [
        ("all_reduce", "", -1),
        ("all_gather", "", -1),
    ]
    assert dict(profile.notes)["group_guessed"] == "4 of 4 name none"
    assert profile.groups.is_empty()
    assert profile.rank == 2


def test_columns_an_older_version_does_not_have(tmp_path: Path) -> None:
    gone = ("eventType", "textId", "shortName", "callchainId", "globalPid", "eventClass", "binaryData")
    one = job()
    for row in one.rows["NVTX_EVENTS"]:
        row["text"] = row.get("text") or "step 1"
    profile = nsys.read(one.write(tmp_path / "report.sqlite", without=gone))
    assert len(rows(profile, "kernel")) == 2
    assert set(profile.steps["step"]) == {1}


def test_without_the_start_of_the_session_there_is_no_clock(tmp_path: Path) -> None:
    one = job()
    del one.rows["TARGET_INFO_SESSION_START_TIME"]
    profile = nsys.read(one.write(tmp_path / "report.sqlite"))
    assert profile.clock == ""
    assert profile.activities["start_ns"][0] == 1000


@pytest.mark.parametrize(
    ("name", "variables", "rank", "world"),
    [
        ("a.sqlite", {"RANK": 5, "WORLD_SIZE": 16}, 5, 16),
        ("rank1.sqlite", {"RANK": 5, "LOCAL_RANK": 2}, 5, 4),
        ("out_rank-1.sqlite", {"LOCAL_RANK": 2, "MY_RANK": 3}, 1, 4),
        ("a.sqlite", {"RANK": "7777777"}, 3, 4),
    ],
)
def test_which_rank(tmp_path: Path, name: str, variables: dict[str, object], rank: int, world: int) -> None:
    path = job(**variables).write(tmp_path / name)
    profile = open_profile(path)
    assert (profile.rank, profile.run.world_size, profile.run.host) == (rank, world, "node-1\\x1b[0m")
    assert "hunter2" not in repr(profile)


def test_a_directory_of_ranks(tmp_path: Path) -> None:
    for rank in (1, 0):
        job(RANK=rank).write(tmp_path / f"report{rank}.sqlite")
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as connection:
        connection.execute("CREATE TABLE NVTX_EVENTS (start INTEGER)")
    (tmp_path / "broken.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 200)
    assert [(one.rank, one.path.name) for one in candidates(tmp_path)] == [(0, "report0.sqlite"), (1, "report1.sqlite")]


def test_processes_whose_numbers_collide(tmp_path: Path) -> None:
    one, other = job(), Export(pid=99)
    other.kernel("other<int>()", 1500, 10, launched=1400)
    one.include(other)
    profile = nsys.read(one.write(tmp_path / "report.sqlite"))
    kernels = profile.activities.filter(pl.col("kind") == "kernel").select("name", "pid").rows()
    assert ("other<int>", 99) in kernels
    assert ("gemm<float, 128>", PID) in kernels
    assert profile.run.pid == -1  # more than one worked


def two_processes(path: Path, *, devices: tuple[int, int] = (0, 1), strays: int = 0) -> Path:
    """A report of two processes, of which the second was started first, and one that touched a device."""
    one, other, stray = Export(pid=31), Export(pid=30), Export(pid=40)
    one.session(RANK=7, WORLD_SIZE=16)
    for export, device in ((one, devices[0]), (other, devices[1])):
        for number in range(300):
            name = f"void gemm<(int){export.pid}>(float*)"
            export.kernel(name, 100 * number, 50, launched=100 * number, device=device)
    for number in range(strays):
        stray.kernel("probe()", 100 * number, 1, launched=100 * number)
    one.include(other)
    one.include(stray)
    return one.write(path)


def test_each_process_of_a_report_is_a_rank(tmp_path: Path) -> None:
    """In the order of devices; the environment is that of what started them, and tells no rank."""
    path = two_processes(tmp_path / "rank5.sqlite", strays=2)
    found = nsys.read_ranks(path)
    assert [(one.rank, one.run.pid, one.run.world_size) for one in found] == [(-1, 31, -1), (-1, 30, -1)]
    assert [set(one.activities.filter(pl.col("kind") == "kernel")["name"]) for one in found] == [
        {"gemm<31>"},
        {"gemm<30>"},
    ]
    assert [one.notes for one in found] == [(), ()]
    assert [open_profile(path, rank).run.pid for rank in (0, 1)] == [31, 30]
    assert open_profile(path).activities.height == sum(one.activities.height for one in found) + 4
    with pytest.raises(ToolError, match="no profile of rank 2") as raised:
        open_profile(path, 2)
    assert raised.value.remedy == "there are: 0, 1"


def test_processes_that_each_see_one_device_are_ordered_by_number(tmp_path: Path) -> None:
    found = nsys.read_ranks(two_processes(tmp_path / "a.sqlite", devices=(0, 0)))
    assert [one.run.pid for one in found] == [30, 31]


def test_the_communicators_of_each_process_have_its_rank(tmp_path: Path) -> None:
    exports = [Export(pid=30 + rank) for rank in range(2)]
    exports[0].session()
    exports[0].layouts()
    for rank, one in enumerate(exports):
        one.range("ncclCommInitRank", 1, 2, binaryData=payload(COMM_INIT, WORLD, 2, 1 - rank))
        one.kernel(REDUCE, 100, 10, launched=50, device=rank)
    exports[0].include(exports[1])
    found = nsys.read_ranks(exports[0].write(tmp_path / "a.sqlite"))
    assert [(one.rank, one.run.world_size) for one in found] == [(1, 2), (0, 2)]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("aten::mm, op_id = 12, sizes = [[8, 8], [8, 8]], input_op_ids = [(3,0)]", "aten::mm"),
        (
            "autograd::engine::evaluate_function: MulBackward0, seq = 7, op_id = 9",
            "autograd::engine::evaluate_function: MulBackward0",
        ),
        ("FSDP::pre_forward (layer.3), op_id = 314", "FSDP::pre_forward (layer.3)"),
        ("detach_, seq = 0", "detach_"),
        ("load, then seq", "load, then seq"),
    ],
)
def test_ranges_lose_the_counters_of_pytorch(text: str, name: str) -> None:
    assert range_name(text) == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (REDUCE, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm *, unsigned long)",
            "ncclKernel_AllReduce_RING_LL_Sum_float",
        ),
        ("void rccl_main_kernel<(int)1, (bool)0>(ncclDevComm *)", "rccl_main_kernel"),
        ("void at::add<(int)128, (unsigned long)2, Mul<float>>(int, T2 *)", "at::add<128, 2, Mul<float>>"),
        ("void f<g(int)::[lambda() (instance 1)]>(T1, h<T2>::type *)", "f<g(int)::[lambda() (instance 1)]>"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("()", "()"),
        (")", ")"),
    ],
)
def test_kernels_lose_parameters_and_casts(text: str, name: str) -> None:
    assert kernel_name(text) == name


@pytest.mark.skipif(not SAMPLE.is_file(), reason="the public samples are not here")
def test_the_public_sample() -> None:
    """Two processes with 1721 kernels each, of 28 encoder layers; no collective falls into its second."""
    found = nsys.read_ranks(SAMPLE)
    assert [(one.rank, one.run.pid, one.run.host) for one in found] == [(-1, 111, "modal"), (-1, 112, "modal")]
    names = [set(one.activities["name"]) for one in found]
    assert names[0] == names[1]
    assert not any("op_id" in name or "<(int)" in name for name in names[0])
    counts = [one.activities.filter(pl.col("kind") == "kernel").height for one in found]
    assert counts == [1721, 1721]


def test_graphs_copies_and_open_ranges(tmp_path: Path) -> None:
    one = Export()
    one.session()
    one.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY", start=10, end=20, deviceId=1, streamId=3, correlationId=9, copyKind=1, bytes=5
    )
    one.add("CUPTI_ACTIVITY_KIND_MEMSET", start=30, end=20, deviceId=1, streamId=3, correlationId=0, bytes=5)
    one.range("still open", 1, None)
    one.range("a marker", 1, 5, eventType=34)
    profile = nsys.read(one.write(tmp_path / "report.sqlite"))
    assert profile.activities.select("kind", "name", "device", "correlation").rows() == [
        ("memcpy", "Memcpy HtoD", 1, 9),
        ("memset", "Memset", 1, -1),
    ]
    assert (profile.activities["end_ns"] >= profile.activities["start_ns"]).all()


def test_odd_rows_are_counted(tmp_path: Path) -> None:
    one = job()
    row = {"end": 5, "nameId": one.text("cudaFree"), "globalTid": "x", "correlationId": b"\xff"}
    one.add("CUPTI_ACTIVITY_KIND_RUNTIME", start="soon", **row)
    one.add("CUPTI_ACTIVITY_KIND_RUNTIME", start=4, **row)
    profile = nsys.read(one.write(tmp_path / "report.sqlite"))
    assert dict(profile.notes)["odd_events"] == "1"
    assert ("cudaFree", -1) in profile.activities.select("name", "tid").rows()


def test_hostile_payloads_and_names(tmp_path: Path) -> None:
    one = Export()
    one.session()
    one.layouts()
    one.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=1, schemaId=101, type=22, name="Rank", offset=-400)
    one.add("NVTX_PAYLOAD_SCHEMA_ENTRIES", domainId=1, schemaId=101, type=22, name="No. of ranks", offset="far")
    for data in (b"", b"\0" * 31, payload(COLLECTIVE, WORLD, 2**63)[:40], "text", 7, payload(COLLECTIVE, WORLD, 2**63)):
        one.range("ncclAllReduce", 100, 30, binaryData=data)
    one.kernel(REDUCE + "\x1b]0;\u202e", 200, 5, launched=110)
    one.range("<script>\x1b[31m", 1, 5)
    profile = nsys.read(one.write(tmp_path / "report.sqlite"))
    assert profile.collectives["bytes"].to_list() == [-1]
    assert not any(character in repr(profile.activities["name"].to_list()) for character in ("\x1b", "\u202e"))


@pytest.mark.parametrize("content", [b"SQLite format 3\0", b"SQLite format 3\0" + b"x" * 5000])
def test_damage(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "report.sqlite").write_bytes(content)
    with pytest.raises(ToolError) as caught:
        nsys.read(tmp_path / "report.sqlite")
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_a_database_cut_short(tmp_path: Path) -> None:
    whole = job().write(tmp_path / "report.sqlite").read_bytes()
    (tmp_path / "cut.sqlite").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ToolError, match="damaged"):
        nsys.read(tmp_path / "cut.sqlite")


def test_one_with_nothing_in_it(tmp_path: Path) -> None:
    one = Export()
    one.session()
    one.add("NVTX_EVENTS", start=5, end=None, eventType=75, text="NCCL")
    with pytest.raises(ToolError, match="no activity"):
        nsys.read(one.write(tmp_path / "report.sqlite"))
    with pytest.raises(ToolError, match="No such file"):
        nsys.read(tmp_path / "missing.sqlite")


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["ProfilerStep#3", "ProfilerStep#4"], [3, 4]),
        (["step 3", "step 4", "ProfilerStep#9"], [9]),
        (["step_1", "step_2", "forward"], [1, 2]),
        (["Iteration: 10", "Iteration: 11", "iter=12"], [10, 11]),
        (["train_step", "train_step", "train_step"], [0, 1, 2]),
        (["global_step 5", "batch 1", "batch 2"], [1, 2]),
        (["sample_0 step=1", "stepping stone", "steps", "step one", "step 1.5"], []),
        (["step::12 (rank 3)"], [12]),
        (["step 99999999999"], []),
        ([], []),
    ],
)
def test_what_is_a_step(texts: list[str], numbers: list[int]) -> None:
    frame = pl.DataFrame(
        {
            "label": pl.Series(texts, dtype=pl.String),
            "pid": [1] * len(texts),
            "tid": [2] * len(texts),
            "start": range(0, 10 * len(texts), 10),
            "end": range(9, 10 * len(texts) + 9, 10),
        }
    )
    assert sorted(step_numbers(frame).values()) == numbers


def test_steps_of_one_thread_only() -> None:
    frame = pl.DataFrame(
        {
            "label": ["step 1", "step 1", "step 2", "step 1"],
            "pid": [1] * 4,
            "tid": [2, 3, 3, 4],
            "start": [0, 0, 10, 0],
            "end": [100, 5, 15, 7],
        }
    )
    assert step_numbers(frame) == {1: 1, 2: 2}


def test_a_report_that_was_not_exported(tmp_path: Path) -> None:
    (tmp_path / "rank1.nsys-rep").write_bytes(b"\x1c\x0d not for us")
    with pytest.raises(ToolError, match="not exported") as caught:
        open_profile(tmp_path / "rank1.nsys-rep")
    assert caught.value.remedy == "nsys export --type sqlite rank1.nsys-rep"
    job().write(tmp_path / "rank0.sqlite")
    (tmp_path / "rank0.nsys-rep").write_bytes(b"\x1c\x0d")  # its export lies beside it
    found = candidates(tmp_path)
    assert [(one.rank, one.path.name) for one in found] == [(0, "rank0.sqlite"), (1, "rank1.nsys-rep")]
    with pytest.raises(ToolError, match="not exported"):
        found[1].read()
