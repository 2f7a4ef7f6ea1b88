"""What each rank of a job did at the end of a window, and whether it made progress in it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.common.snapshots import first_snapshot, last_snapshot
from whystall.tools.host.common.thread_states import ThreadState, ThreadStates
from whystall.tools.recording.store import Recording

COLLECTIVE = "collective"
"""The role of code (`path_codes.ROLES`) that waits for other ranks."""
_BACKWARD = ("torch/autograd/", "torch/_tensor.py")
# Waits of native code for another thread, on a condition variable.
_HANDOVER = ("queue", "lock", "barrier")
DEFAULT_GROUP = "0"
"""torch's name of the group of all ranks (`torch.distributed.distributed_c10d._process_group_name`)."""
# The end of a group, for which its members need not wait.
_LEAVES = "destroy_process_group"
# Backends whose operations a device executes: the program continues, and waits for the device later.
_ON_DEVICE = ("nccl", "hccl", "xccl", "ucc")


@dataclass(frozen=True)
class GroupKey:
    """A process group of a job, as its members name it. `size`: number of members, on all hosts."""

    backend: str
    name: str
    size: int


@dataclass(frozen=True)
class Membership:
    """A rank in a group. `started`: operations that it has begun; `before`: at the start of the window, None if it
    was not read then."""

    rank: int
    started: int
    before: int | None
    description: str


@dataclass(frozen=True)
class RankState:
    """A rank, and what its thread did that advances it: the one in a collective, else the main thread.

    `rank`: of the whole job, -1 if unknown; `host`: empty for the observed one. `doing`: ``running`` (on a CPU, or
    waiting for one), or what it waits for (`path_codes.WAITS`), of `object`, which `whom` holds, for at least `idle_s`
    seconds (None: not known); `line`: of the program. `collective`: the function of the library in which it waits for
    others, as ``all_reduce``; empty outside of one. `in_collective`: it waits in one, or in one that the backward pass
    began; `waits_for_device`: for a device that may run one; `spins`: taken to do so, see `may_spin`. `still`: neither
    that thread nor a group of it moved within the window. `frames`: innermost first.
    """

    rank: int
    pid: int
    tid: int
    comm: str
    groups: dict[GroupKey, Membership]
    still: bool
    doing: str
    object: str
    whom: str
    line: str
    idle_s: float | None
    collective: str
    in_collective: bool
    waits_for_device: bool
    frames: tuple[str, ...] = ()
    host: str = ""
    spins: bool = False

    @property
    def running(self) -> bool:
        """Whether it is on a CPU or waits for one."""
        return self.doing == RUNNING

    @property
    def may_spin(self) -> bool:
        """Whether it may wait for its device by looking again and again, as CUDA does by default: it runs, and was at
        the same line before. One that computes may look alike."""
        return self.running and self.still and any(key.backend in _ON_DEVICE for key in self.groups)

    @property
    def waits_for_ranks(self) -> bool:
        """Whether it waits in a collective, or for a device that may run one."""
        return self.in_collective or self.waits_for_device or self.spins

    @property
    def process(self) -> tuple[str, int]:
        """Its process, which no other rank has."""
        return self.host, self.pid


def ranks_of(recording: Recording, known: ThreadStates) -> list[RankState]:
    """Return the ranks with a process group in `recording`, by rank."""
    before = _groups(first_snapshot(recording, "process_groups"))
    after = _groups(last_snapshot(recording, "process_groups"))
    early = _waits(recording, first_snapshot(recording, "threads"))
    late = _waits(recording, last_snapshot(recording, "threads"))
    idle = _idle(recording)
    found = []
    for pid, groups in after.items():
        threads = known.of_process(pid)
        if not threads:
            continue
        thread = next((one for one in threads if one.place.role == COLLECTIVE), threads[0])
        earlier = before.get(pid, {})
        joined = {
            key: Membership(rank, started, earlier[key][1] if key in earlier else None, description)
            for key, (rank, started, description) in groups.items()
        }
        moved = any(one.before is not None and one.before != one.started for one in joined.values())
        state = RankState(
            rank=_rank(groups),
            pid=pid,
            tid=thread.tid,
            comm=known.comms.get(pid, thread.comm),
            groups=joined,
            still=not moved and early.get(thread.tid) == late.get(thread.tid),
            doing=thread.kind.code,
            object=known.objects.name(thread.object),
            whom=known.whom(thread),
            line=thread.place.line,
            idle_s=None if thread.kind.code == RUNNING else idle.get(thread.tid),
            collective=_collective(thread),
            in_collective=_in_collective(thread),
            waits_for_device=thread.kind.code == "device" or thread.place.in_device_call,
            frames=thread.frames or thread.kernel,
        )
        found.append(state)
    return sorted(found, key=lambda one: (one.rank, one.pid))


def early_pids(recording: Recording) -> dict[int, int]:
    """Return the process of each rank at the start of the window."""
    return {_rank(groups): pid for pid, groups in _groups(first_snapshot(recording, "process_groups")).items()}


def _idle(recording: Recording) -> dict[int, float]:
    """Return for how long threads have not run, in seconds: main threads, by their process."""
    if not recording.has("job_processes"):
        return {}
    return {pid: ns / 1e9 for pid, ns in recording.table("job_processes.idle").select("pid", "idle_ns").iter_rows()}


def _collective(thread: ThreadState) -> str:
    if thread.place.role != COLLECTIVE:
        return ""
    # the outermost function of the library is the one that the program called
    library = reversed(thread.place.library)
    name = next((name for name, module in library if not module.endswith("c10d_logger.py")), "")
    return name if name != _LEAVES else ""


def _in_collective(thread: ThreadState) -> bool:
    if _collective(thread):
        return True
    library = thread.place.library
    in_backward = bool(library) and library[-1][1].startswith(_BACKWARD)
    return in_backward and thread.kind.code in _HANDOVER and not thread.owner_tid


def _rank(groups: dict[GroupKey, tuple[int, int, str]]) -> int:
    """Return the rank in the group of all, which is the largest; -1 if it is not known to be that."""
    for key, (rank, _, _) in groups.items():
        if key.name == DEFAULT_GROUP and key.size == max(one.size for one in groups):
            return rank
    return next(iter(groups.values()))[0] if len(groups) == 1 else -1


def _groups(rows: pl.DataFrame) -> dict[int, dict[GroupKey, tuple[int, int, str]]]:
    """Return (rank, started, description) by process and group, without copies in forked processes."""
    found: dict[int, dict[GroupKey, tuple[int, int, str]]] = {}
    served = 1 in rows["served"]
    for row in rows.iter_rows(named=True):
        if served and row["served"] == 0:
            continue
        key = GroupKey(row["backend"], row["name"], row["size"])
        found.setdefault(row["pid"], {})[key] = (row["rank"], row["started"], row["description"])
    return found


def _waits(recording: Recording, rows: pl.DataFrame) -> dict[int, tuple[object, ...]]:
    """Return what distinguishes the place of each thread, by tid."""
    return {
        row["tid"]: (row["state"].strip() == "R", row["syscall"], row["object"], row["lock"], row["pystack"])
        for row in rows.iter_rows(named=True)
    }
