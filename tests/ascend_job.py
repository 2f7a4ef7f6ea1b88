"""One small job on an Ascend device, as the framework's profiler writes it: as text and as database.

Layout and fields as torch_npu and msprof write them (seen in public samples). The main thread hands operators to a
queue; another thread launches them; a collective consists of tasks on its own stream.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

PID, MAIN, QUEUE = 3_096_504, 3_096_504, 3_099_702
DEVICE = 1
BEGIN = 1_736_408_883_000_000_000
"""Wall clock when the job begins, ns; all times below are ns since then."""
RAW_BEGIN = 172_163_581_670_080
MONO_BEGIN = 172_165_000_000_000

# name, start, end, thread, kind in the database
HOST = [
    ("ProfilerStep#50", 0, 900_000, MAIN, 50001),
    ("aten::mm", 10_130, 50_130, MAIN, 50001),
    ("Enqueue", 20_000, 25_000, MAIN, 50002),
    ("aclnnMm", 15_000, 45_000, MAIN, 50001),
    ("HcclAllreduce", 60_000, 90_000, MAIN, 50001),
    ("Dequeue@aclnnMm", 30_000, 80_000, QUEUE, 50002),
    ("train.py(3): main", 1_000, 899_000, MAIN, 50003),
]
# level, name, start, end, thread, connection
CALLS = [
    ("acl", "aclnnMm", 32_000, 78_000, QUEUE, 935),
    ("node", "launch", 905_000, 931_460, QUEUE, 953),  # late, after the step
    ("node", "launch", 100_000, 180_000, QUEUE, 1175),
    ("hccl", "Launch_Ffts", 150_000, 160_000, QUEUE, 1176),
    ("acl", "aclrtMemcpyAsync", 200_000, 204_000, QUEUE, 936),
    ("acl", "aclrtRecordEvent", 210_000, 211_000, QUEUE, 940),
    ("acl", "aclrtSynchronizeStreamWithTimeout", 300_000, 890_000, MAIN, 950),
    ("acl", "aclrtMemcpy", 891_000, 895_000, MAIN, 951),
    ("acl", "aclopCompileAndExecute", 220_000, 230_000, QUEUE, 1404),
]
# name, type as text, type in the database, start, end, stream, connection, has details in the database
TASKS = [
    ("aclnnMm_MatMulCommon_MatMulV2", "AI_CORE", "KERNEL_AICORE", 940_000, 993_741, 2, 953, True),
    ("MEMCPY_ASYNC", "PCIE_DMA_SQE", "MEMCPY_ASYNC", 240_000, 840_077, 2, 936, False),
    ("EVENT_RECORD", "EVENT_RECORD_SQE", "EVENT_RECORD", 841_000, 841_020, 2, 940, False),
    ("Notify Wait", "Notify Wait", "Notify Wait", 245_000, 745_000, 4, 1175, False),
    ("SDMA", "SDMA", "SDMA", 745_000, 800_000, 4, 1175, False),
    ("MEMCPY_ASYNC", "SDMA_SQE", "MEMCPY_ASYNC", 850_000, 851_000, 2, 1404, False),
    ("aclnnMul_Mul", "MIX_AIV", "MIX_AIV", 860_000, 861_000, 2, 1405, True),  # nobody's
]
COLLECTIVES = [("hcom_allReduce__586_0_1", 244_000, 801_000, 1175)]
COUNT = 4_097_000  # of FP32
# The communicator's name, its hash as msprof computes it, and its ranks.
GROUP, GROUP_ID, RANKS = "10.0.0.1%eth0_60000_0_1736408000000011", "16139733143014082586", [1, 3, 5, 7]
# of the collective, ms: elapsed, under way, waiting, idle
TIMES = (0.557, 0.239, 0.055, 0.263)
# Rank within the group, MB and ms: the job's rank 3 is the second of its group.
LINKS = [("1-1", "LOCAL", 4.0, 0.01), ("1-0", "HCCS", 61.210624, 3.8604771875), ("1-3", "RDMA", 8.0, 4.0)]
# operator, connection, start of its task: what the profiler links
OWNERS = [("aclnnMm", 953, 940_000), ("HcclAllreduce", 1175, 244_000)]

Json = dict[str, Any]


def us(ns: int) -> str:
    """As the profiler prints an instant."""
    return f"{(BEGIN + ns) // 1000}.{(BEGIN + ns) % 1000:03d}"


def _section(place: int, device: int = DEVICE) -> int:
    return PID << 10 | place << 5 | device


def _x(name: str, pid: int, tid: int, start: int, end: int, **more: Any) -> Json:
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": us(start), "dur": (end - start) / 1000, **more}


def timeline(*, python: bool = True, communication: str = "HCCL") -> list[Json]:
    """The events of ``trace_view.json``; without `python`, those of msprof's own timeline."""
    cann, hardware, hccl, overlap = _section(7), _section(13), _section(15), _section(23)
    names = {cann: "CANN", hardware: "Ascend Hardware", hccl: communication, overlap: "Overlap Analysis"}
    categories = {50001: "cpu_op", 50003: "python_function"}
    events: list[Json] = []
    if python:
        names[PID] = "Python"
        for name, start, end, tid, kind in HOST:
            category = categories.get(kind, name.partition("@")[0].lower())
            events.append(_x(name, PID, tid, start, end, cat=category))
    levels = {"acl": "AscendCL", "node": "Node", "hccl": "Hccl"}
    for level, name, start, end, tid, connection in CALLS:
        args = {"Thread Id": tid, "Mode": "", "level": level, "connection_id": connection}
        events.append(_x(f"{levels[level]}@{name}", cann, tid, start, end, args=args))
    for name, kind, _, start, end, stream, connection, _ in TASKS:
        args = {"Model Id": 2**32 - 1, "Task Type": kind, "Physic Stream Id": stream, "connection_id": connection}
        events.append(_x(name, hardware, stream, start, end, args=args))
    for name, start, end, connection in COLLECTIVES:
        events.append(
            _x(name, hccl, 0, start, end, args={"connection_id": connection, "data_type": "FP32", "count": COUNT})
        )
    events.append(_x("Notify_Wait", hccl, 2, 245_000, 745_000, args={"task type": "Notify_Wait", "stream id": 4}))
    events.append(_x("Computing", overlap, 0, 940_000, 993_741))
    events.append({"ph": "C", "name": "HBM 0/Read", "pid": _section(17), "tid": 0, "ts": us(0), "args": {"Read": 1}})
    if python:
        starts = {name: start for name, start, *_ in HOST}
        lanes = {953: (hardware, 2), 1175: (hccl, 0)}
        for operator, connection, start in OWNERS:
            flow = {"name": "torch_to_npu", "cat": "async_npu", "id": BEGIN + start, "bp": "e"}
            pid, tid = lanes[connection]
            events.append({"ph": "s", **flow, "pid": PID, "tid": MAIN, "ts": us(starts[operator])})
            events.append({"ph": "f", **flow, "pid": pid, "tid": tid, "ts": us(start)})
    for pid, name in names.items():
        place = pid >> 5 & 31 if pid != PID else 0
        events.append({"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": place}})
    return events


class _Texts(dict[str, int]):
    def __missing__(self, text: str) -> int:
        self[text] = number = len(self) + 7
        return number


def database(path: Path, *, python: bool = True) -> None:
    """The same as ``ascend_pytorch_profiler_N.db``; without `python`, as msprof's own database."""
    texts = _Texts()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT)")
        db.execute(
            "CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId "
            "INTEGER, globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER)"
        )
        db.execute("CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE CANN_API (startNs, endNs, type, globalTid, connectionId INTEGER PRIMARY KEY, name)")
        db.execute(
            "CREATE TABLE COMMUNICATION_OP (opName, startNs, endNs, connectionId, groupName, opId, dataType, count)"
        )
        db.execute("CREATE TABLE ENUM_HCCL_DATA_TYPE (id INTEGER PRIMARY KEY, name TEXT)")
        db.execute("INSERT INTO ENUM_HCCL_DATA_TYPE VALUES (4, 'FP32')")
        db.execute("CREATE TABLE HOST_INFO (hostUid TEXT, hostName TEXT)")
        db.execute("INSERT INTO HOST_INFO VALUES ('3538958389648580163', 'node7')")
        db.execute("CREATE TABLE META_DATA (name TEXT, value TEXT)")
        db.execute("INSERT INTO META_DATA VALUES ('parallel_group_info', ?)", (json.dumps(groups()),))
        types = {"acl": 20000, "node": 10000, "hccl": 5500}
        for level, name, start, end, tid, connection in CALLS:
            row = (BEGIN + start, BEGIN + end, types[level], PID << 32 | tid, connection, texts[name])
            db.execute("INSERT INTO CANN_API VALUES (?,?,?,?,?,?)", row)
        for number, (name, _, kind, start, end, stream, connection, details) in enumerate(TASKS):
            task = (BEGIN + start, BEGIN + end, DEVICE, connection, number, PID, texts[kind], 0, stream, number)
            db.execute("INSERT INTO TASK VALUES (?,?,?,?,?,?,?,?,?,?)", task)
            if details:
                db.execute("INSERT INTO COMPUTE_TASK_INFO VALUES (?,?)", (texts[name], number))
        for number, (name, start, end, connection) in enumerate(COLLECTIVES):
            operation = (texts[name], BEGIN + start, BEGIN + end, connection, texts[GROUP], number, 4, COUNT)
            db.execute("INSERT INTO COMMUNICATION_OP VALUES (?,?,?,?,?,?,?,?)", operation)
        if python:
            db.execute("CREATE TABLE PYTORCH_API (startNs TEXT, endNs TEXT, globalTid, connectionId, name, type)")
            db.execute("CREATE TABLE CONNECTION_IDS (id INTEGER, connectionId INTEGER)")
            db.execute("CREATE TABLE RANK_DEVICE_MAP (rankId INTEGER, deviceId INTEGER)")
            db.execute("INSERT INTO RANK_DEVICE_MAP VALUES (?,?)", (3, DEVICE))
            linked = {operator: (number, connection) for number, (operator, connection, _) in enumerate(OWNERS, 300)}
            db.executemany("INSERT INTO CONNECTION_IDS VALUES (?,?)", linked.values())
            for name, start, end, tid, kind in HOST:
                times = (str(BEGIN + start), str(BEGIN + end))
                link = linked.get(name, (None,))[0]
                row = (*times, PID << 32 | tid, link, texts[name], kind)
                db.execute("INSERT INTO PYTORCH_API VALUES (?,?,?,?,?,?)", row)
        db.executemany("INSERT INTO STRING_IDS VALUES (?,?)", [(number, text) for text, number in texts.items()])


def groups() -> Json:
    """``parallel_group_info`` of the metadata."""
    return {GROUP: {"group_name": "dp", "group_rank": RANKS.index(3), "global_ranks": RANKS}}


def communication(*, skew_ns: int = 0) -> Json:
    """``communication.json``; `skew_ns`: of its instants against the timeline's."""
    name, start, _, _ = COLLECTIVES[0]
    elapse, transit, wait, idle = TIMES
    info: Json = {
        "Start Timestamp(us)": (BEGIN + start + skew_ns) / 1000,
        "Elapse Time(ms)": elapse,
        "Transit Time(ms)": transit,
        "Wait Time(ms)": wait,
        "Synchronization Time(ms)": wait,
        "Idle Time(ms)": idle,
    }
    operation = {"Communication Time Info": info, "Communication Bandwidth Info": {"HCCS": {"Transit Size(MB)": 1}}}
    total = {"Communication Time Info": {key: info[key] for key in info if key != "Start Timestamp(us)"}}
    return {"step50": {"p2p": {}, "collective": {f"{name}@{GROUP_ID}": operation, "Total Op Info": total}}}


def matrix(*, total: bool = True) -> Json:
    """``communication_matrix.json``; without `total`, the chosen operations only."""
    links = {
        pair: {"Transport Type": transport, "Transit Size(MB)": size, "Transit Time(ms)": took}
        for pair, transport, size, took in LINKS
    }
    chosen = {pair: link | {"Op Name": COLLECTIVES[0][0]} for pair, link in links.items()}
    entries = {f"allreduce-{which}@{GROUP_ID}": chosen for which in ("top1", "middle", "bottom1")}
    if total:
        entries[f"allreduce-total@{GROUP_ID}"] = links
    return {"step50": {"p2p": {}, "collective": entries}}


def communication_files(directory: Path) -> None:
    """What the profiler measured, beside a timeline, and the metadata, in a ``*_ascend_pt`` directory."""
    output = directory / "ASCEND_PROFILER_OUTPUT"
    (output / "communication.json").write_text(json.dumps(communication()))
    (output / "communication_matrix.json").write_text(json.dumps(matrix()))
    (directory / "profiler_metadata.json").write_text(json.dumps({"parallel_group_info": groups()}))


def analysis(path: Path, *, skew_ns: int = 13_000) -> None:
    """``analysis.db``: the same in tables."""
    name, start, _, _ = COLLECTIVES[0]
    elapse, transit, wait, idle = TIMES
    with sqlite3.connect(path) as db:
        db.execute(
            "CREATE TABLE CommAnalyzerTime (hccl_op_name TEXT, group_name TEXT, start_timestamp NUMERIC, elapse_time "
            "NUMERIC, transit_time NUMERIC, wait_time NUMERIC, synchronization_time NUMERIC, idle_time NUMERIC, step "
            "TEXT, type TEXT)"
        )
        at = (BEGIN + start + skew_ns) / 1000
        row = (name, GROUP_ID, at, elapse, transit, wait, wait, idle, "step50", "collective")
        db.execute("INSERT INTO CommAnalyzerTime VALUES (?,?,?,?,?,?,?,?,?,?)", row)
        db.execute(
            "CREATE TABLE CommAnalyzerMatrix (hccl_op_name TEXT, group_name TEXT, src_rank TEXT, dst_rank TEXT, "
            "transport_type TEXT, transit_size NUMERIC, transit_time NUMERIC, bandwidth NUMERIC, step TEXT, type TEXT, "
            "op_name TEXT)"
        )
        for label in ("allreduce-top1", "allreduce-total"):
            for pair, transport, size, took in LINKS:
                link = (label, GROUP_ID, *pair.split("-"), transport, size, took, 0, "step50", "collective", name)
                db.execute("INSERT INTO CommAnalyzerMatrix VALUES (?,?,?,?,?,?,?,?,?,?,?)", link)


def profiler_info(*, rank: int = 3, activities: tuple[str, ...] = ("CPU", "NPU")) -> Json:
    """``profiler_info_N.json`` of today's torch_npu."""
    names = [f"ProfilerActivity.{name}" for name in activities]
    return {
        "config": {"common_config": {"activities": names}, "experimental_config": {"_profiler_level": "Level1"}},
        "start_info": {"syscnt_enable": True, "freq": 100, "start_cnt": 17238197612056, "start_monotonic": RAW_BEGIN},
        "end_info": {"collectionTimeEnd": BEGIN + 2_000_000_000, "MonotonicTimeEnd": MONO_BEGIN + 2_000_000_000},
        "rank_id": rank,
    }


def host_files(host: Path, *, slew_ns: int = 0) -> None:
    """The clock files of msprof's ``host`` directory; `slew_ns`: what the wall clock gains in the 2 s until the end."""
    host.mkdir(parents=True)
    start = {"collectionTimeBegin": str(BEGIN // 1000), "clockMonotonicRaw": str(RAW_BEGIN), "cntvct": "0"}
    end = {
        "collectionTimeEnd": f"{(BEGIN + 2_000_000_000 + slew_ns) // 1000}",
        "clockMonotonicRaw": str(RAW_BEGIN + 2_000_000_000),
    }
    (host / "start_info").write_text(json.dumps(start))
    (host / "start_info.done").write_text("filesize:107\n")
    (host / "end_info").write_text(json.dumps(end))
    (host / "host_start.log").write_text(f"[Host]\nclock_monotonic_raw: {RAW_BEGIN}\ncntvct: 9\ncntvct_diff: 0\n")
    (host / "info.json").write_text(json.dumps({"CPU": [{"Frequency": "100.000000"}], "pid": str(PID)}))


def text_directory(parent: Path, name: str = "host_1_ascend_pt", *, rank: int = 3, prof: bool = True) -> Path:
    """A ``*_ascend_pt`` directory with a timeline."""
    directory = parent / name
    output = directory / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output / "trace_view.json").write_text(json.dumps(timeline()))
    (directory / f"profiler_info_{rank}.json").write_text(json.dumps(profiler_info(rank=rank)))
    if prof:
        host_files(directory / "PROF_000001_20250109_ABC" / "host")
    return directory


def prof_directory(parent: Path, name: str = "PROF_000001_20250109000000000_ABC") -> Path:
    """A ``PROF_*`` directory of msprof, not exported."""
    directory = parent / name
    host_files(directory / "host")
    device = directory / f"device_{DEVICE}"
    device.mkdir()
    (device / f"start_info.{DEVICE}").write_text((directory / "host" / "start_info").read_text())
    (device / f"end_info.{DEVICE}").write_text((directory / "host" / "end_info").read_text())
    (device / f"dev_start.log.{DEVICE}").write_text("clock_monotonic_raw: 0\ncntvct: 1833256145654\n")
    return directory
