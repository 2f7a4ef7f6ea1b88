"""Relations between findings of real recordings: true ones are supported, false ones are not.

A finding is written ``kind``, ``-kind`` if it is normal, with ``@`` and its thread, command or disk where several are
of that kind; anything else is a cause.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import anyio
import pytest
import test_cache_causes as caches
import test_host_bound_causes as host_bound
import test_investigation as scenes
from recordings import PID, Scene, checkpoints
from solving import new_case

from whystall.agent_server.diagnosis import rules
from whystall.agent_server.diagnosis.case import Case
from whystall.agent_server.diagnosis.grounded_conclusion import facts_of
from whystall.agent_server.diagnosis.grounding.relations import CaseFacts, fault
from whystall.agent_server.diagnosis.observer import RecordedObserver
from whystall.knowledge_base.models import Claim
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.findings import Finding, Polarity
from whystall.tools.contract.kinds import KINDS
from whystall.tools.recording.store import Recording

RECORDED = Path(__file__).parents[2] / "recorded"
SAVER, BYSTANDER = 5000, 6000
TAKES = ("get (python3.11/queue.py:171)", "next_batch (train.py:41)")


def saver() -> Scene:
    """The job waits for a process that syncs; another process syncs too, and nobody waits for it."""
    scene = Scene().thread(user=30).process(PID, "train", cpu=30)
    for pid, name in ((SAVER, "saver"), (BYSTANDER, "backup")):
        scene.thread(pid, name, pid=pid, blocked=50).process(pid, name, ppid=PID)
    for second in range(12):
        turn = {"context": "task", "runnable_ns": 0}
        scene.wait(second + 0.2, 700, "futex", lock=64, waker=(SAVER, SAVER, "saver"), user=TAKES, **turn)
        scene.call(second + 0.2, 650, "fsync", "/data/out.bin", tid=SAVER)
        scene.call(second + 0.05, 500, "fsync", "/data/backup.tar", tid=BYSTANDER)
    return scene


def turns() -> Scene:
    """Slow reads first, a slow sync later."""
    scene = Scene().thread(user=40, blocked=50)
    for number in range(4):
        scene.call(1 + number, 700, "pread64", f"/data/shard_{number}.tar", size=1 << 20)
    return checkpoints(scene, first_s=6.0, every_s=1.5)


def disks() -> Scene:
    """The checkpoints are on one slow disk; another disk is slow too, for others."""
    scene = checkpoints(Scene().thread(user=65, system=2, blocked=30)).disk("loop7", busy=99, await_ms=200)
    scene.disk("sdb", busy=100, await_ms=400).requests("loop7", "write", 200, 90).requests("sdb", "read", 300, 90)
    scene.tables.setdefault("proc.partitions", []).append({"dev": "7:0", "device": "loop7"})
    return scene


def unproven() -> Recording:
    """System calls were not proven to be observed."""
    return scenes.sync_checkpoint().build(unproven=["syscalls"])


def pollution() -> Any:
    """Another process streams a file through the cache and pushes out what the job reads."""
    cache = caches.at_its_limit(caches.slow_reads(caches.HOT))
    cache.places[caches.OTHER] = "/job"
    return caches.rereading(caches.streaming(cache, pid=caches.OTHER), pid=PID, back=2000)


def file_lock() -> Scene:
    """The job waits for a lock of a file that another process has."""
    scene = Scene(window_s=10).thread(PID, "train").process(PID, "train", cpu=1)
    scene.wait(1, 9000, "flock", "/data/index.lock", user=("flock", "index (job.py:3)"), still=True)
    scene.seen("file_locks", looks="end", kind="flock", pid=PID, waits=True, holder_pid=900, path="/data/index.lock")
    stack = scene.stack(("rebuild (other.py:8)", "main (other.py:30)"), kernel=False)
    doing = {"state": "S", "syscall": "clock_nanosleep", "tracer_pid": 0, "pystack": stack}
    return scene.seen("threads", pid=900, tid=900, comm="indexer", **doing)


def gpu() -> Scene:
    """A neighbour on the CPU of the dispatch thread keeps an accelerator waiting."""
    return host_bound.neighbour(profiled=True)


def untied() -> Scene:
    """The thread waits uninterruptibly, not for the disk that is slow."""
    scene = Scene().thread(user=70, blocked=30).disk("sdb", busy=100, await_ms=300).requests("sdb", "read", 300, 90)
    for second in range(12):
        scene.wait(second, 300, "", state="D", stack=("__schedule", "rwsem_down_read_slowpath", "do_user_addr_fault"))
    return scene


@cache
def solved(name: str) -> tuple[Case, CaseFacts]:
    """The case of a recording or scene, as the rules leave it."""
    if (RECORDED / name).is_dir():
        recording = Recording.open(RECORDED / name, COLLECTORS)
    else:
        made = (globals().get(name) or getattr(scenes, name))()
        recording = made if isinstance(made, Recording) else made.build()
    symptom = "training is slow, the GPU is idle" if name == "gpu" else "slow"
    case = new_case(RecordedObserver(recording), symptom)
    anyio.run(lambda: rules.finish(case))
    return case, facts_of(case)


def id_of(case: Case, wanted: str) -> str:
    """The id of the worst finding that `wanted` describes, or `wanted`."""
    kind, _, about = wanted.removeprefix("-").partition("@")
    if kind not in KINDS:
        return wanted
    polarity = Polarity.NORMAL if wanted.startswith("-") else Polarity.ABNORMAL
    found = [f for f in case.findings if f.kind == kind and f.polarity is polarity and (not about or about in who(f))]
    assert found, wanted
    return max(found, key=lambda f: (f.severity.rank, f.window_pct)).id


def who(finding: Finding) -> list[str]:
    subject = finding.subject
    return [str(part) for part in (subject.device, subject.comm, subject.tid or subject.pid) if part is not None]


def refused(name: str, text: str) -> str | None:
    """The code of the fault of ``RELATION SUBJECT OBJECT [as ROLE] [SHARE %]``."""
    case, facts = solved(name)
    relation, subject, object, *more = text.split()
    given = {"relation": relation, "subject": id_of(case, subject), "object": id_of(case, object)}
    given |= {"role": more[1]} if more[:1] == ["as"] else {"share_pct": float(more[0])} if more else {}
    found = fault(Claim.model_validate(given), facts)
    return found and found.code


TRUE = {
    "checkpoint": """
        causes file.slow_sync offcpu.blocked
        causes file.slow_sync process.io_wait
        causes file.slow_sync -thread.time
        causes file.slow_sync sync_checkpoint_write
        is_symptom_of offcpu.blocked file.slow_sync
        is_symptom_of process.io_wait sync_checkpoint_write
        is_symptom_of -thread.time sync_checkpoint_write
        waits_for offcpu.blocked file.slow_sync as file
        explains_share_of file.slow_sync sync_checkpoint_write 60.9
        explains_share_of file.slow_sync -thread.time 59
        explains_share_of offcpu.blocked sync_checkpoint_write 60
        rules_out -sched.runqueue_delay cpu_contention
        rules_out -memory.swap swap_wait
        rules_out -disk.saturated@loop0 slow_device
        rules_out -file.slow_read slow_file_read
        rules_out -cgroup.cpu_throttled cgroup_cpu_throttling
        precedes file.slow_sync offcpu.blocked
    """,
    "quota": """
        causes cgroup.cpu_throttled sched.runqueue_delay
        causes cgroup.cpu_throttled offcpu.preempted
        causes cgroup.cpu_throttled cgroup_cpu_throttling
        is_symptom_of sched.runqueue_delay cgroup.cpu_throttled
        is_symptom_of -thread.time cgroup_cpu_throttling
        explains_share_of cgroup.cpu_throttled sched.runqueue_delay 59.7
        explains_share_of offcpu.preempted cgroup_cpu_throttling 50
        rules_out -file.slow_sync sync_checkpoint_write
    """,
    "thrash": """
        causes memory.cgroup_limit file.slow_read
        causes memory.cgroup_limit page_cache_thrash
        causes file.slow_read process.io_wait
        causes syscall.cpu_time process.system_time
        is_symptom_of offcpu.blocked memory.cgroup_limit
        explains_share_of file.slow_read process.io_wait 74
        rules_out -lock.wait deadlock
    """,
    "contended_cpu": """
        causes cpu.neighbour cpu.saturated
        causes cpu.neighbour sched.runqueue_delay
        causes cpu.saturated offcpu.preempted
        causes cpu.neighbour cpu_contention
        is_symptom_of offcpu.preempted cpu_contention
        explains_share_of sched.runqueue_delay cpu_contention 48
        rules_out -block.slow_io slow_device
    """,
    "lock_fight": """
        waits_for path.wait path.waker as holder
        waits_for lock.wait path.waker as holder
        waits_for offcpu.lock_wait@4000 -thread.time@helper as waker
        waits_for offcpu.lock_wait@helper -path.running
        causes path.waker path.wait as holder
        causes path.waker lock_held_computing
        is_symptom_of path.wait lock_held_computing
        is_symptom_of offcpu.lock_wait@4000 path.waker
        explains_share_of path.waker path.wait 45
        rules_out -file.slow_sync fsync_storm
    """,
    "lock_behind_a_slow_file": """
        waits_for path.wait file.slow_sync
        waits_for path.wait path.waker as waker
        causes file.slow_sync path.wait
        causes file.slow_sync offcpu.blocked@logger
        causes path.waker path.wait
        is_symptom_of path.wait offcpu.blocked@logger
        explains_share_of path.waker path.wait 38
        explains_share_of file.slow_sync path.wait 39
        precedes file.slow_sync path.wait
    """,
    "saver": """
        waits_for path.wait path.waker@saver as peer
        waits_for path.wait -thread.time@saver
        causes path.waker@saver path.wait
        explains_share_of path.waker@saver path.wait 64
        is_symptom_of path.wait path.waker@saver
    """,
    "turns": """
        precedes file.slow_read file.slow_sync
        causes file.slow_read offcpu.blocked
        causes file.slow_sync process.io_wait
    """,
    "neighbours_disk": """
        causes disk.saturated block.slow_io
    """,
    "disks": """
        causes block.slow_io@loop7 file.slow_sync
        causes disk.saturated@loop7 offcpu.blocked
        causes disk.saturated@loop7 sync_checkpoint_write
        waits_for file.slow_sync disk.saturated@loop7 as device
        is_symptom_of file.slow_sync block.slow_io@loop7
    """,
    "pollution": """
        causes cache.streaming cache.thrash
        causes cache.streaming file.slow_read
        causes cache.streaming cache_pollution
        causes cache.thrash offcpu.blocked
        is_symptom_of file.slow_read cache_pollution
    """,
    "file_lock": """
        waits_for offcpu.lock_wait lock.held as holder
        causes lock.held offcpu.lock_wait
        explains_share_of lock.file offcpu.lock_wait 90
        is_symptom_of offcpu.lock_wait lock_wait
    """,
    "gpu": """
        causes sched.preempted_by accel.host_bound
        causes accel.host_bound accel.idle
        causes sched.preempted_by core_neighbour
        explains_share_of sched.preempted_by accel.host_bound 29
    """,
}
FALSE = {
    "checkpoint": """
        causes offcpu.blocked file.slow_sync ! reversed
        causes process.io_wait file.slow_sync ! reversed
        causes -sched.runqueue_delay offcpu.blocked ! normal
        causes -disk.saturated@loop0 file.slow_sync ! normal
        causes -memory.reclaim sync_checkpoint_write ! normal
        causes -block.slow_io@vda file.slow_sync ! normal
        causes -cpu.neighbour file.slow_sync ! normal
        causes file.slow_sync cpu_contention ! contradicted
        causes file.slow_sync slow_rank ! not_examined
        is_symptom_of file.slow_sync offcpu.blocked ! reversed
        is_symptom_of -memory.swap sync_checkpoint_write ! normal
        waits_for file.slow_sync offcpu.blocked
        waits_for offcpu.blocked -cpu.neighbour ! not_named
        waits_for offcpu.blocked file.slow_sync as holder ! role
        explains_share_of file.slow_sync sync_checkpoint_write 75 ! share
        explains_share_of file.slow_sync -thread.time 60.9 ! share
        explains_share_of offcpu.blocked -sched.runqueue_delay
        explains_share_of -file.slow_read -thread.time 5 ! share
        explains_share_of offcpu.blocked file.slow_sync ! reversed
        rules_out -file.slow_read sync_checkpoint_write ! contradicted
        rules_out -memory.swap cpu_contention ! not_covered
        rules_out -cpu.neighbour slow_device ! not_covered
        rules_out -file.slow_write slow_rank ! not_examined
        rules_out -thread.time silent_peer ! not_examined
        rules_out -file.slow_read packet_loss
        precedes offcpu.blocked file.slow_sync ! order
        precedes process.io_wait offcpu.blocked ! no_instant
        precedes file.slow_sync process.io_wait ! no_instant
    """,
    "quota": """
        causes sched.runqueue_delay cgroup.cpu_throttled ! reversed
        causes sched.runqueue_delay cgroup_cpu_throttling ! reversed
        causes -cpu.saturated sched.runqueue_delay ! normal
        causes -block.slow_io offcpu.preempted ! normal
        rules_out -cpu.saturated cgroup_cpu_throttling ! contradicted
        explains_share_of cgroup.cpu_throttled sched.runqueue_delay 72 ! share
        explains_share_of sched.runqueue_delay cgroup.cpu_throttled ! reversed
    """,
    "thrash": """
        causes file.slow_read memory.cgroup_limit ! reversed
        causes file.slow_read memory_reclaim
        causes syscall.cpu_time process.io_wait ! not_tied
        causes -disk.saturated file.slow_read ! normal
        explains_share_of file.slow_read page_cache_thrash 90 ! share
        rules_out -memory.reclaim memory_reclaim ! contradicted
    """,
    "contended_cpu": """
        causes sched.runqueue_delay cpu.saturated ! reversed
        causes cpu.saturated cpu.neighbour ! reversed
        causes sched.runqueue_delay cpu_contention ! reversed
        is_symptom_of cpu.neighbour cpu_contention ! reversed
        rules_out -sched.runqueue_delay cgroup_cpu_throttling ! contradicted
        explains_share_of sched.runqueue_delay cpu_contention 60 ! share
    """,
    "lock_fight": """
        waits_for path.waker path.wait ! reversed
        waits_for path.wait -path.running ! not_named
        causes path.wait path.waker ! reversed
        causes offcpu.lock_wait@helper path.wait ! not_tied
        causes path.wait offcpu.lock_wait@helper
        explains_share_of path.wait path.waker ! reversed
        explains_share_of path.wait -path.running
        explains_share_of path.waker path.wait 60 ! share
    """,
    "lock_behind_a_slow_file": """
        waits_for file.slow_sync path.wait ! reversed
        causes path.wait file.slow_sync ! reversed
        explains_share_of path.waker path.wait 45 ! share
        explains_share_of file.slow_sync -thread.time@train ! not_tied
        precedes path.wait file.slow_sync ! order
        rules_out -file.slow_read worker_waiting ! contradicted
    """,
    "saver": """
        waits_for path.wait -thread.time@backup ! not_named
        causes -thread.time@backup path.wait ! normal
        explains_share_of path.waker@saver path.wait 90 ! share
        causes path.wait path.waker@saver ! reversed
    """,
    "turns": """
        precedes file.slow_sync file.slow_read ! order
        causes file.slow_read file.slow_sync ! not_tied
        explains_share_of file.slow_read file.slow_sync ! not_tied
    """,
    "neighbours_disk": """
        causes disk.saturated -file.slow_sync ! normal
        causes block.slow_io -offcpu.blocked ! normal
        causes block.slow_io disk.saturated ! reversed
        rules_out -file.slow_sync data_loader_slow
    """,
    "disks": """
        causes block.slow_io@sdb file.slow_sync ! not_tied
        causes disk.saturated@sdb offcpu.blocked ! not_tied
        causes disk.saturated@sdb sync_checkpoint_write ! not_tied
        waits_for file.slow_sync disk.saturated@sdb
        causes disk.saturated@sdb block.slow_io@loop7 ! not_tied
    """,
    "untied": """
        causes disk.saturated offcpu.blocked ! not_tied
        causes block.slow_io offcpu.blocked ! not_tied
        waits_for offcpu.blocked disk.saturated ! not_named
    """,
    "unproven": """
        rules_out -process.system_time slow_file_read ! not_examined
        rules_out -memory.swap metadata_stall ! not_examined
    """,
    "pollution": """
        causes cache.thrash cache.streaming ! reversed
        is_symptom_of cache.streaming file.slow_read
        waits_for offcpu.blocked cache.streaming ! not_named
        explains_share_of cache.streaming file.slow_read 30 ! share
    """,
    "file_lock": """
        waits_for lock.held offcpu.lock_wait
        causes offcpu.lock_wait lock.held ! reversed
        explains_share_of lock.file offcpu.lock_wait 95 ! share
        rules_out lock.file deadlock
    """,
    "gpu": """
        causes accel.idle accel.host_bound ! reversed
        causes accel.idle core_neighbour ! reversed
        causes -thread.time accel.idle ! normal
        explains_share_of sched.preempted_by accel.host_bound 45 ! share
    """,
    "slow_helper": """
        causes file.slow_sync@writer -thread.time@worker
        explains_share_of file.slow_sync@writer -thread.time@worker ! not_tied
        is_symptom_of -thread.time@worker file.slow_sync@writer
        causes file.slow_sync@writer sync_checkpoint_write ! contradicted
    """,
}


def rows(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(name, line.strip()) for name, lines in table.items() for line in lines.strip().splitlines()]


@pytest.mark.parametrize(("name", "text"), rows(TRUE))
def test_a_true_relation_is_supported(name: str, text: str) -> None:
    assert refused(name, text) is None


@pytest.mark.parametrize(("name", "text"), rows(FALSE))
def test_a_false_relation_is_refused_with_its_reason(name: str, text: str) -> None:
    claim, _, code = text.partition(" ! ")
    found = refused(name, claim)
    assert found == code if code else found


@pytest.mark.parametrize(
    ("relation", "subject", "object", "code"),
    [
        ("causes", "F999", "F1", "no_finding"),
        ("causes", "F1", "gremlins", "no_finding"),
        ("causes", "F1", "F1", "wrong_object"),
        ("rules_out", "F2", "F24", "wrong_object"),
        ("precedes", "F24", "sync_checkpoint_write", "wrong_object"),
    ],
)
def test_what_cannot_be_related_is_refused(relation: str, subject: str, object: str, code: str) -> None:
    claim = Claim.model_validate({"relation": relation, "subject": subject, "object": object})
    found = fault(claim, solved("checkpoint")[1])
    assert found is not None
    assert found.code == code
