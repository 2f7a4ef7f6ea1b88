"""Which processes are watched."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from whystall.agent_server.job_lookup.inventory import start_ticks
from whystall.agent_server.job_lookup.models import Inventory, Process
from whystall.agent_server.watch.jobs import MOST, JobList, Selection
from whystall.agent_server.watch.own_process import thread_ended
from whystall.tools.node.ai_programs import has_ai_library, is_ai_program
from whystall.tools.node.environment import Identity


def process(pid: int, program: str = "train.py", ppid: int = 1, started: float = 0, **more: object) -> Process:
    return Process(pid, ppid, "python3", "S", pid * 10, started, program, (f"/app/{program}",), **more)  # type: ignore[arg-type]


class Host:
    """The processes of a host, and how often they were read."""

    def __init__(self, *processes: Process) -> None:
        self.processes = list(processes)
        self.reads = 0
        self.now = 100.0

    def read(self) -> Inventory:
        self.reads += 1
        return Inventory(list(self.processes), now_s=self.now)

    def listing(self) -> frozenset[int]:
        return frozenset(one.pid for one in self.processes)

    def watch(self, selection: Selection, library: set[int] = frozenset()) -> JobList:  # type: ignore[assignment]
        return JobList(selection, 10.0, self.read, lambda pid: pid in library, self.listing)


def leaders(listed: JobList) -> dict[str, set[int]]:
    return {job.id: set(job.leaders) for job in listed.jobs}


def test_everything_that_looks_like_training_or_serving_is_watched() -> None:
    ranks = [process(20 + n, identity=Identity(rank=n, run_id="r1", world_size=2)) for n in range(2)]
    host = Host(process(10), process(11, "vllm"), process(12, "backup.py"), *ranks)
    listed = host.watch(Selection(), {10})
    assert listed.renew(0)
    assert leaders(listed) == {"run:r1": {20, 21}, "process:10": {10}, "process:11": {11}}
    assert listed.jobs[0].ranks == {20: 0, 21: 1}


@pytest.mark.parametrize(
    ("selection", "pid"),
    [
        (Selection(pids=(10,)), 10),
        (Selection(names=("eval.py",)), 11),
        (Selection(cgroups=("/sys/fs/cgroup/jobs",)), 12),
        (Selection(slurm_jobs=("77",)), 13),
        (Selection(pods=("llama-0",)), 14),
    ],
)
def test_a_named_job_is_watched_alone(selection: Selection, pid: int) -> None:
    host = Host(
        process(10),
        process(11, "eval.py"),
        process(12, "other.py", cgroup="/jobs/a"),
        process(13, "s.py", identity=Identity(slurm_job="77")),
        process(14, "p.py", identity=Identity(pod_name="llama-0", pod_uid="u")),
        process(15, "q.py", cgroup="/jobs2"),
    )
    listed = host.watch(selection)
    listed.renew(0)
    assert [set(job.leaders) for job in listed.jobs] == [{pid}]


def test_a_similar_name_is_not_taken() -> None:
    host = Host(process(10, "train_llama.py"))
    listed = host.watch(Selection(names=("train_lama.py",)))
    listed.renew(0)
    assert listed.jobs == []


def test_commands_that_start_and_end_each_second_cause_no_scan() -> None:
    host = Host(process(10))
    listed = host.watch(Selection(pids=(10,)))
    listed.renew(0)
    listed.renew(20)
    before = host.reads
    for second in range(40, 400, 6):
        host.processes[1:] = [process(1000 + second, "ls", started=host.now)]
        listed.renew(float(second))
    assert host.reads == before


def test_a_new_process_is_taken_once_it_has_lived_for_a_while_and_an_ended_one_leaves() -> None:
    host = Host(process(10))
    listed = host.watch(Selection(), {10, 30})
    listed.renew(0)
    listed.renew(20)
    host.processes.append(process(30, started=host.now))
    host.now += 3
    assert not listed.renew(40)
    host.now += 20
    assert listed.renew(60)
    assert leaders(listed) == {"process:10": {10}, "process:30": {30}}
    del host.processes[0]
    assert listed.renew(120)
    assert leaders(listed) == {"process:30": {30}}


def test_the_number_of_processes_is_bounded() -> None:
    host = Host(*(process(1000 + n) for n in range(MOST + 20)))
    listed = host.watch(Selection(), {one.pid for one in host.processes})
    listed.renew(0)
    assert len(listed.jobs) == MOST
    assert listed.beyond == 20


def test_a_job_of_more_processes_than_are_watched_leaves_room_for_none_but_is_watched() -> None:
    ranks = [process(2000 + n, identity=Identity(rank=n, run_id="huge")) for n in range(MOST + 100)]
    host = Host(process(10), process(11), *ranks)
    listed = host.watch(Selection(), {10, 11})
    listed.renew(0)
    assert {id: len(found) for id, found in leaders(listed).items()} == {"run:huge": MOST}
    assert listed.beyond == 3, "two, and the one that is watched in part"
    host.processes = [process(10), *ranks[: MOST - 1], process(11)]
    host.now += 20
    listed.renew(100)
    assert {id: len(found) for id, found in leaders(listed).items()} == {"run:huge": MOST - 1, "process:10": 1}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"7f0-7f1 r-xp 0 08:01 9 /x/torch/lib/libtorch_cpu.so\n", True),
        (b"7f0-7f1 r-xp 0 08:01 9 /x/lib/libnccl.so.2.18.5\n", True),
        (b"7f0-7f1 r-xp 0 08:01 9 /x/lib/libnccl_profiler.so\n", False),
        (b"7f0-7f1 r-xp 0 08:01 9 /x/libtorch_cpu/readme\n", False),
        (b"\xff\x00" * 50, False),
    ],
)
def test_a_library_of_a_framework_is_found_in_the_maps(tmp_path: Path, line: bytes, found: bool) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/maps").write_bytes(b"55-56 r--p 0 08:01 3 /usr/bin/python3\n" + line)
    assert has_ai_library(7, tmp_path) is found


def test_programs_are_whole_names() -> None:
    assert is_ai_program("vllm")
    assert not is_ai_program("my-vllm-backup.sh")


def test_a_thread_has_ended_that_is_gone_or_of_another_process_of_the_same_number() -> None:
    pid, started = os.getpid(), start_ticks(os.getpid())
    assert started is not None
    assert not thread_ended(pid, pid, started)
    assert thread_ended(pid, pid, started + 1), "the number was used again"
    begun, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (begun.set(), end.wait()))
    thread.start()
    begun.wait()
    tid = thread.native_id
    assert tid is not None
    assert not thread_ended(pid, tid, started)
    end.set()
    thread.join()
    while Path(f"/proc/{pid}/task/{tid}").exists():  # the kernel removes it a little later
        time.sleep(0.001)
    assert thread_ended(pid, tid, started)
    assert not thread_ended(1 << 23, 1 << 23, 5), "a process that has ended is found by its absence"
