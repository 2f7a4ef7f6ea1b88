"""A synchronous job with a known slow rank, as the tables of many tools hold it. Shares no code with their readers.

Every step each rank fetches data, computes, and meets the others of its stage in an all_reduce that none leaves before
all have entered: it ends `TRANSFER` after the last one has come.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

TRANSFER = 4.0
COMPUTE, DATA, IDLE = 60.0, 5.0, 3.0
EPOCH_MS = 1_764_246_877_000.0


@dataclass(frozen=True)
class Part:
    """One rank's step, instants in ms since the start of the job."""

    rank: int
    stage: int
    step: int
    start: float
    data: float
    compute: float
    idle: float
    arrived: float
    end: float

    @property
    def waited(self) -> float:
        """Return the length of its all_reduce."""
        return self.end - self.arrived


def job(
    ranks: int = 4,
    steps: int = 20,
    *,
    slow: Sequence[int] = (),
    fault: str = "compute",
    factor: float = 1.4,
    stages: int = 1,
    stage_factor: float = 1.0,
    jitter: float = 0.01,
    seed: int = 1,
) -> list[Part]:
    """Return the parts of a job. `fault`: compute, data or idle, `factor` times as long on the ranks `slow`; for data
    and idle the extra time is that of computing. `stage_factor`: work of the last of `stages`."""
    dice = random.Random(seed)
    parts: list[Part] = []
    width = ranks // stages
    begin = [0.0] * stages
    for step in range(1, steps + 1):
        for stage in range(stages):
            found = []
            for rank in range(stage * width, (stage + 1) * width):
                extra = COMPUTE * (factor - 1) if rank in slow else 0.0
                data, compute, idle = (
                    (length + (extra if fault == name else 0.0)) * (1 + dice.uniform(-jitter, jitter))
                    for name, length in (("data", DATA), ("compute", COMPUTE), ("idle", IDLE))
                )
                compute *= stage_factor if stage == stages - 1 and stages > 1 else 1.0
                found.append((rank, data, compute, idle, begin[stage] + data + compute + idle))
            end = max(arrived for *_, arrived in found) + TRANSFER
            parts += [
                Part(rank, stage, step, begin[stage], data, compute, idle, arrived, end)
                for rank, data, compute, idle, arrived in found
            ]
            begin[stage] = end
    return parts


def of(parts: Sequence[Part], rank: int) -> list[Part]:
    return [one for one in parts if one.rank == rank]


def ranks_of(parts: Sequence[Part]) -> list[int]:
    return sorted({one.rank for one in parts})


def _write(path: Path, rows: Sequence[Sequence[Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def intervals(parts: Sequence[Part]) -> list[tuple[int, int, str, float, float]]:
    """Rows rank, step, phase, start, end in seconds."""
    rows = []
    for one in parts:
        loaded = one.start + one.data
        for phase, begin, end in (
            ("data", one.start, loaded),
            ("compute", loaded + one.idle, one.arrived),
            ("communication", one.arrived, one.end),
        ):
            rows.append((one.rank, one.step, phase, begin / 1e3, end / 1e3))
    return rows


def plain(path: Path, parts: Sequence[Part]) -> Path:
    return _write(path, [("rank", "step", "phase", "start", "end"), *intervals(parts)])


def plain_parquet(path: Path, parts: Sequence[Part]) -> Path:
    """The same in ns, with a stage and fields of its own."""
    stage = {one.rank: one.stage for one in parts}
    rows = [(r, s, p, round(b * 1e9), round(e * 1e9), f"pp{stage[r]}", "own") for r, s, p, b, e in intervals(parts)]
    pl.DataFrame(
        rows, schema=["rank", "step", "phase", "start_ns", "end_ns", "stage", "mine"], orient="row"
    ).write_parquet(path)
    return path


def plain_sums(path: Path, parts: Sequence[Part]) -> Path:
    rows = [("rank", "step", "phase", "duration_ms", "stage")]
    for one in parts:
        for phase, length in (
            ("data", one.data),
            ("compute", one.compute),
            ("communication", one.waited),
            ("idle", one.idle),
        ):
            rows.append((one.rank, one.step, phase, length, one.stage))  # type: ignore[arg-type]
    return _write(path, rows)


_STEP_TIME = ("Computing", "Communication(Not Overlapped)", "Overlapped", "Communication", "Free", "Stage", "Bubble")


def _step_time(one: Part, bubble: float = 0.0) -> list[float]:
    us = [one.compute, one.waited, 0.0, one.waited, one.data + one.idle, one.end - one.start - bubble, bubble]
    return [1e3 * value for value in us]


def _operation(one: Part) -> dict[str, Any]:
    times = {
        "Start Timestamp(us)": (EPOCH_MS + one.arrived) * 1e3,
        "Elapse Time(ms)": one.waited,
        "Transit Time(ms)": TRANSFER,
        "Wait Time(ms)": one.waited - TRANSFER,
        "Synchronization Time(ms)": one.waited - TRANSFER,
        "Idle Time(ms)": 0.0,
    }
    return {"Communication Time Info": times, "Communication Bandwidth Info": {}}


def ascend_exports(directory: Path, parts: Sequence[Part], *, operations: bool = True) -> Path:
    """Directories of torch_npu with exported tables only."""
    for rank in ranks_of(parts):
        place = directory / f"node_{4000 + rank}_20251127120000000_ascend_pt"
        output = place / "ASCEND_PROFILER_OUTPUT"
        rows = [
            ("Device_id", "Step", *_STEP_TIME),
            *([rank % 8, one.step, *_step_time(one)] for one in of(parts, rank)),
        ]
        _write(output / "step_trace_time.csv", rows)
        (place / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank}))
        if operations:
            steps = {
                f"step{one.step}": {
                    "p2p": {},
                    "collective": {f"hcom_allReduce__586_{one.step}_1@11394183861583396586": _operation(one)},
                }
                for one in of(parts, rank)
            }
            (output / "communication.json").write_text(json.dumps(steps))
    return directory


def ascend_cluster(directory: Path, parts: Sequence[Part], *, stages: bool = True, bubble: float = 0.0) -> Path:
    """The output of msprof-analyze: the table of all ranks, with a row per stage."""
    rows: list[Sequence[Any]] = [("Step", "Type", "Index", *_STEP_TIME)]
    for step in sorted({one.step for one in parts}):
        now = [one for one in parts if one.step == step]
        rows += [(step, "rank", one.rank, *_step_time(one, bubble)) for one in now]
        for stage in sorted({one.stage for one in now}) if stages else ():
            members = [one for one in now if one.stage == stage]
            top = [max(values) for values in zip(*(_step_time(one) for one in members), strict=True)]
            rows.append((step, "stage", str(tuple(one.rank for one in members)), *top))
    _write(directory / "cluster_step_trace_time.csv", rows)
    return directory


def ascend_cluster_operations(directory: Path, parts: Sequence[Part]) -> Path:
    groups: dict[str, Any] = {}
    for one in parts:
        members = str(tuple(r for r in ranks_of(parts) if of(parts, r)[0].stage == one.stage))
        name = f"hcom_allReduce__{500 + one.stage}_{one.step}_1@11394183861583396{500 + one.stage}"
        operation = groups.setdefault(members, {}).setdefault(f"step{one.step}", {}).setdefault(name, {})
        operation[str(one.rank)] = _operation(one)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cluster_communication.json").write_text(json.dumps(groups))
    return directory


def mindspore(directory: Path, parts: Sequence[Part], *, cluster: bool = True, hccl: bool = True) -> Path:
    """Tables of MindSpore's profiler; a tick is 10 ns, a last row holds averages."""
    for rank in ranks_of(parts):
        head = ["step_num", "start_point", "end_point", "total", "fp_point", "bp_point"]
        head += ["iteration_interval", "fp_and_bp", "tail"]
        rows: list[Sequence[Any]] = [head]
        for one in of(parts, rank):
            begin, end = (round((15_000_000 + at) * 1e5) for at in (one.start + one.data, one.end))
            tail = round(one.waited * 1e5)
            rows.append(
                (one.step, begin, end, end - begin, begin, end - tail, round(one.data * 1e5), end - begin - tail, tail)
            )
        rows.append((0, 0, 0, 1, 0, 0, 1, 1, 1))
        _write(directory / f"step_trace_raw_{rank}_detail_time.csv", rows)
        if cluster:
            name = f"ascend_cluster_analyse_data-parallel_1_{len(ranks_of(parts))}_{rank}.csv"
            times = [
                ("computation", "communication_alone_time"),
                *((one.compute, one.waited) for one in of(parts, rank)),
            ]
            _write(directory / name, times)
        if hccl:
            rows = [("step_num", "communication_cost", "wait_cost", "link_info", "communication_operator_cost")]
            rows += [
                (one.step, one.waited, one.waited - TRANSFER, json.dumps({"0-1": [1, 2]}), "{}")
                for one in of(parts, rank)
            ]
            _write(directory / f"hccl_raw_{rank}.csv", [*rows, ("-", 1, 1, "{}", "{}")])
    return directory


def _timeline(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """NDTimeline's rows: forward and backward of one microbatch, the gradients' reduction, the optimizer."""
    rows = []
    width = len({one.rank for one in parts if one.stage == 0})
    for one in parts:
        begin = one.data + one.idle
        half = one.compute / 2
        for optype, start, length in (
            ("forward-compute", begin, half),
            ("backward-compute", begin + half, one.compute - half),
            ("grads-reduce-scatter", one.arrived - one.start, one.waited - 1.0),
            ("optimizer", one.end - one.start - 1.0, 1.0),
        ):
            rows.append(
                {
                    "dp_rank": one.rank % width,
                    "stage": one.stage,
                    "rank": one.rank,
                    "step": 7 * one.step,  # only some steps are sampled
                    "optype": optype,
                    "start_ts": start / 1e3,
                    "duration": length / 1e3,
                    "seq_id": 0,
                }
            )
    return rows


def ndtimeline(directory: Path, parts: Sequence[Part]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(_timeline(parts)).with_columns(pl.col("optype").cast(pl.Categorical)).write_parquet(
        directory / "trace-T.parquet"
    )
    return directory


def ndtimeline_trace(path: Path, parts: Sequence[Part]) -> Path:
    """Its Chrome trace: a process per data-parallel rank, a thread per pipeline stage and stream."""
    events: list[dict[str, Any]] = []
    lanes = set()
    for row in _timeline(parts):
        stream = 0 if row["optype"].endswith("compute") else 1
        pid, tid = row["dp_rank"], 2 * row["stage"] + stream
        lanes.add((pid, tid, row["stage"], ("compute", "dp-comm")[stream]))
        events.append(
            {
                "name": row["optype"], "cat": row["optype"], "ph": "X", "pid": pid, "tid": tid,
                "ts": row["start_ts"] * 1e6, "dur": row["duration"] * 1e6, "args": {"step": row["step"], "seq_id": 0},
            }
        )  # fmt: skip
    for pid, tid, stage, name in sorted(lanes):
        label = {"name": f"PP rank {stage}, TP rank 0, {name}"}
        events.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid, "args": label})
        events.append({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"DP rank [{pid}]"}})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    return path


def chrome(path: Path, parts: Sequence[Part], *, named: bool = True) -> Path:
    """A trace of a tool of one's own: one process per rank."""
    first = 500 if named else 0
    events: list[dict[str, Any]] = []
    for rank in ranks_of(parts) if named else ():
        events.append(
            {"name": "process_name", "ph": "M", "pid": first + rank, "args": {"name": f"Rank {rank} (node0)"}}
        )
    names = {"data": ("data", "next_batch"), "compute": ("op", "layers"), "communication": ("op", "all_reduce(grads)")}
    for rank, step, phase, begin, end in intervals(parts):
        cat, name = names[phase]
        events.append(
            {
                "name": name, "cat": cat, "ph": "X", "pid": first + rank, "tid": 1, "ts": begin * 1e6,
                "dur": (end - begin) * 1e6, "args": {"step": step},
            }
        )  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def nccl_calls(path: Path, parts: Sequence[Part]) -> Path:
    lines = ["ring log opened"]
    for one in sorted(parts, key=lambda part: part.arrived):
        at = (EPOCH_MS + one.arrived) / 1e3
        lines.append(
            f"[save_count 1] [{at:.9f}] [Rank {one.rank}] Fun AllReduce Data 25165824 stream 0x562a9d0b5020"
            f" opCount {one.step} groupHash -5956285979098587305"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def xpu_timer(path: Path, ranks: int, *, hung: Sequence[int] = ()) -> Path:
    lines = ["# TYPE XPU_TIMER_MM_KERNEL_AVG_LATENCY gauge"]
    for rank in range(ranks):
        where = f'ip="10.0.0.1",job_name="j",level="7",local_rank="{rank % 8}",operation="Matmul",rank="{rank}"'
        lines.append(f'XPU_TIMER_MM_KERNEL_AVG_LATENCY{{dtype="bf16",{where}}} {19000 + 9000 * (rank == 1)}')
        where = f'ip="10.0.0.1",job_name="j",local_rank="{rank % 8}",pod_name="p",rank="{rank}"'
        lines.append(f"XPU_TIMER_COMMON_HANG{{{where}}} {int(rank in hung)}")
    path.write_text("\n".join(lines) + "\n")
    return path
