"""The check on jobs that Nsight Systems or the NCCL Inspector recorded: the same answer as from any other profiler."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from nsys_export import COLLECTIVE, COMM_INIT, Export, payload
from rank_files import write_uneven_job

from whystall.tools.ranks.slow_node_check.tables import Data
from whystall.tools.ranks.slow_node_check.tool import Params, judge
from whystall.tools.ranks.traces.gather import gather

pytestmark = pytest.mark.thorough

RANKS = 4
WORLD = 0xABCD


def answer(directory: Path) -> Data:
    return judge(gather(directory, jobs=1), Params()).data


def nsight(directory: Path, slow: int, *, payloads: bool = True) -> Path:
    """Twelve steps of five kernels and an all_reduce; those of rank `slow` take 60 % longer."""
    chance = random.Random(1)
    exports = []
    for rank in range(RANKS):
        one = Export(pid=4000 + rank)
        one.session(RANK=rank, WORLD_SIZE=RANKS)
        one.layouts()
        recorded = {"binaryData": payload(COMM_INIT, WORLD, RANKS, rank)} if payloads else {}
        one.range("ncclCommInitRank", 1, 2, **recorded)
        exports.append(one)
    begin = 1000
    for step in range(12):
        ready = []
        for rank, one in enumerate(exports):
            took = int(300 * (1.6 if rank == slow else 1)) + chance.randint(-5, 5)
            for number in range(5):
                at = begin + 20 + number * took
                one.kernel(f"void gemm{number}<float>(float*)", at, took - 1, launched=begin + 5 + 3 * number)
            recorded = {"binaryData": payload(COLLECTIVE, WORLD, 4096)} if payloads else {}
            one.range("ncclAllReduce", begin + 30, 8, **recorded)
            ready.append(begin + 25 + 5 * took)
        end = max(ready) + 50
        for rank, one in enumerate(exports):
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096>)"
            one.kernel(name, ready[rank], end - ready[rank], launched=begin + 31, stream=20)
            one.range(f"step {step}", begin, end - begin + 5)
        begin = end + 10
    directory.mkdir()
    for rank, one in enumerate(exports):
        one.write(directory / f"report{rank}.sqlite")
    return directory


def one_report(directory: Path, slow: int, steps: int, *, known: bool) -> Path:
    """Two processes in one report, perfectly periodic and without steps, which leave up to 20 us apart."""
    chance = random.Random(3)
    exports = [Export(pid=100 + rank) for rank in range(2)]
    exports[0].session()
    exports[0].layouts()
    if known:
        for rank, one in enumerate(exports):
            one.range("ncclCommInitRank", 1, 2, binaryData=payload(COMM_INIT, WORLD, 2, rank))
    begin = 1000
    for _ in range(steps):
        took = [480 if rank == slow else 300 for rank in range(2)]
        end = begin + 75 + 5 * max(took)
        for rank, one in enumerate(exports):
            for number in range(5):
                at = begin + 20 + number * took[rank]
                one.kernel(f"void gemm<(int){number}>(float*)", at, took[rank] - 1, launched=begin + 5, device=rank)
            recorded = {"binaryData": payload(COLLECTIVE, WORLD, 4096)} if known else {}
            one.range("ncclAllReduce", begin + 30, 8, **recorded)
            at, late = begin + 25 + 5 * took[rank], chance.randint(0, 20)
            name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
            one.kernel(name, at, end + late - at, launched=begin + 31, stream=20, device=rank)
        begin = end + 40
    exports[0].include(exports[1])
    directory.mkdir()
    exports[0].write(directory / "report.sqlite")
    return directory


def inspector(directory: Path, slow: int, *, verbose: bool) -> Path:
    """Sixty all_reduces that rank `slow` enters 900 us after the others."""
    chance = random.Random(2)
    logs: list[list[str]] = [[] for _ in range(RANKS)]
    begin = 1_752_867_229_000_000
    for number in range(60):
        entered = [begin + 3000 + chance.randint(0, 60) + (900 if rank == slow else 0) for rank in range(RANKS)]
        end = max(entered) + 200
        for rank, at in enumerate(entered):
            perf = {
                "coll": "AllReduce",
                "coll_sn": number,
                "coll_msg_size_bytes": 4096,
                "coll_exec_time_us": end - at,
                "coll_timing_source": "kernel_gpu",
            }
            if verbose:
                kernels = [{"channel_id": 0, "kernel_start_ts": at, "kernel_stop_ts": end}]
                perf["event_trace_ts"] = {"coll_start_ts": at - 30, "kernel_events": kernels}
            written = {"dump_timestamp_us": end + chance.randint(0, 500), "hostname": "node-1", "pid": 70 + rank}
            head = {"id": "0xaa", "rank": rank, "n_ranks": RANKS, "nnodes": 1}
            logs[rank].append(json.dumps({"header": head, "metadata": written, "coll_perf": perf}))
        begin = end
    directory.mkdir()
    for rank, lines in enumerate(logs):
        (directory / f"node-1-pid{70 + rank}.log").write_text("\n".join(lines) + "\n")
    return directory


@pytest.mark.parametrize("payloads", [True, False])
def test_a_rank_that_computes_slowly_in_nsight_systems(tmp_path: Path, payloads: bool) -> None:
    found = answer(nsight(tmp_path / "job", 2, payloads=payloads))
    assert (found.verdict, found.steps) == ("rank", 12)
    assert [(one.rank, one.slow_class, one.pid, one.confidence) for one in found.accused] == [
        (2, "compute_slow", 4002, "high")
    ]


def test_a_healthy_job_in_nsight_systems(tmp_path: Path) -> None:
    found = answer(nsight(tmp_path / "job", -1))
    assert (found.verdict, found.accused) == ("none", [])


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize(("slow", "accused"), [(3, [3]), (6, []), (-1, [])])
def test_three_ranks_of_eight_are_matched_by_their_ends(
    tmp_path: Path, slow: int, accused: list[int], stepped: bool
) -> None:
    """What they wait for may be a rank that was not traced, which is none of theirs."""
    found = answer(write_uneven_job(tmp_path, (0, 3, 5), slow, world=8, stepped=stepped))
    assert found.matched["matched"] == found.matched["rows"] == 120
    assert [one.rank for one in found.accused] == accused
    assert accused or (found.verdict, found.reasons) == ("cannot_tell", ["ranks_missing"])


@pytest.mark.parametrize("known", [True, False], ids=["payloads", "no payloads"])
@pytest.mark.parametrize("slow", [1, -1])
def test_processes_of_one_report_are_matched_by_its_clock(tmp_path: Path, slow: int, known: bool) -> None:
    """A periodic job fits itself shifted by any number of steps: only the common clock tells which is right."""
    found = answer(one_report(tmp_path / "job", slow, 120, known=known))
    assert found.matched["matched"] == found.matched["rows"] == 240
    assert [(one.rank, one.slow_class, one.pid) for one in found.accused] == [(1, "compute_slow", 101)] * (slow > 0)
    assert found.verdict == ("rank" if slow > 0 else "none")


def test_a_few_operations_of_one_report_are_matched_too(tmp_path: Path) -> None:
    found = answer(one_report(tmp_path / "job", 1, 3, known=True))
    assert (found.matched["matched"], found.verdict) == (6, "cannot_tell")


@pytest.mark.parametrize("verbose", [True, False])
def test_a_rank_that_comes_late_in_the_inspectors_logs(tmp_path: Path, verbose: bool) -> None:
    """Durations alone show which rank; its work is in no log of the Inspector."""
    found = answer(inspector(tmp_path / "job", 1, verbose=verbose))
    assert found.verdict == "rank"
    assert [(one.rank, one.slow_class) for one in found.accused] == [(1, "unattributed")]
    assert "no_work_seen" in found.reasons
    assert {(row.compute_ms, row.gap_ms) for row in found.ranks} == {(None, None)}


@pytest.mark.parametrize("verbose", [True, False])
def test_a_healthy_job_in_the_inspectors_logs(tmp_path: Path, verbose: bool) -> None:
    assert answer(inspector(tmp_path / "job", -1, verbose=verbose)).accused == []
