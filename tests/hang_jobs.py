"""Jobs that hang, as recordings made by hand: how many operations each rank has begun, where it is, and which ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from recordings import Scene

from whystall.tools.contract.registry import Judgement
from whystall.tools.host.hang.tables import Data
from whystall.tools.host.hang.tool import Params, judge

WRAPPER = "wrapper (torch/distributed/c10d_logger.py:83)"
ALL_REDUCE = (
    "all_reduce (torch/distributed/distributed_c10d.py:3000)",
    "wrapper (torch/distributed/c10d_logger.py:83)",
)
GATHER = ("all_gather (torch/distributed/distributed_c10d.py:4000)", WRAPPER)
TRAIN = ("train (job.py:10)", "<module> (job.py:12)")
BACKWARD = ("_engine_run_backward (torch/autograd/graph.py:824)", "backward (torch/_tensor.py:648)", *TRAIN)
WAIT = {"state": "S", "syscall": "futex", "wchan": "futex_do_wait"}
READ = {"state": "S", "syscall": "read", "wchan": "pipe_read", "object": "pipe:[77]"}
WORLD = "0"


@dataclass(frozen=True)
class R:
    """A rank: collectives begun by group, the stack, and columns of its thread; pairs: at the start and at the end."""

    started: dict[str, int | tuple[int, int]] = field(default_factory=lambda: {WORLD: 38})
    stack: tuple[str, ...] = (*ALL_REDUCE, *TRAIN)
    row: dict[str, object] = field(default_factory=lambda: dict(WAIT))
    backend: str = "gloo"


INSIDE = R()
LOADS = R({WORLD: 37}, ("load (job.py:6)", *TRAIN), dict(READ))
COMPUTES = R({WORLD: 37}, ("forward (model.py:41)", *TRAIN), {"state": "R"})


def judged(
    *ranks: R,
    sizes: dict[str, int] | None = None,
    members: dict[str, list[int]] | None = None,
    looks: str = "start end",
) -> Judgement[Data]:
    """The job of `ranks`; `members`: global ranks of groups other than the one of all; `looks`: when it was read."""
    scene = Scene(window_s=2)
    for rank, one in enumerate(ranks):
        pid = 100 + rank
        stack = scene.stack(one.stack, kernel=False)
        scene.seen("threads", looks=looks, pid=pid, tid=pid, comm="python", **one.row, pystack=stack, lock=0)
        for group, started in one.started.items():
            of = (members or {}).get(group, [*range(len(ranks))])
            size = (sizes or {}).get(group, len(of))
            number = of[rank] if len(set(of)) < len(of) else of.index(rank)
            place = {"backend": one.backend, "name": group, "rank": number, "size": size}
            scene.seen("process_groups", looks=looks, pid=pid, group=1000 + int(group), started=started, **place)
    return judge(scene.build(), Params())


def late(found: Judgement[Data]) -> list[int]:
    return [one.rank for one in found.data.late]


# --- ranks that have ended ---------------------------------------------------------------------------------------

LAUNCHER = 50
SHUTDOWN = ("_shutdown (python3.11/threading.py:1590)",)
Row = dict[str, Any]


def process(pid: int, **columns: Any) -> Row:
    """A process as `job_processes` has it, started by the launcher; what is not given is not known."""
    numbers = dict.fromkeys(("rank", "local_rank", "local_size", "group_rank", "world_size", "exit_code"), -1)
    base = {"pid": pid, "ppid": LAUNCHER, "comm": "python", "state": "S", "start_ticks": pid, "one_host": False}
    return base | numbers | columns


def ended(rank: int, status: int) -> Row:
    """The process of a rank as its launcher has not waited for it; `status`: as of wait(2)."""
    return process(100 + rank, state="Z", exit_code=status)


def logged(rank: int, exception: str, *, path: str = "/logs/job.log", line: int = 0, local_rank: int = -1) -> Row:
    """An exception in a log; `rank` -1: its lines have no label."""
    name, _, text = exception.partition(": ")
    frames = [f"step (job.py:{20 + rank})", "<module> (job.py:12)"]
    return {
        "path": path, "rank": rank, "local_rank": local_rank, "line": line, "exception": name, "detail": text,
        "frames": frames, "of_other": "closed by peer" in text,
    }  # fmt: skip


def kill(pid: int, *, comm: str = "python", of_job: bool = False, cgroup: str = "/") -> Row:
    """A process that the kernel killed for lack of memory."""
    return {"pid": pid, "comm": comm, "cgroup": cgroup, "limit_cgroup": "", "of_job": of_job, "count": 1}


def failed_job(
    alive: dict[int, R],
    *more: Row,
    size: int = 4,
    known: Row | None = None,
    logs: Sequence[Row] = (),
    kills: Sequence[Row] = (),
    idle_s: dict[int, float] | None = None,
    left: Sequence[int] = (),
    copies: Sequence[int] = (),
) -> Judgement[Data]:
    """A job of `size` ranks, of which those `alive` live.

    Args:
        more: processes beside theirs, or instead of them.
        known: what the environments of the living state, beside rank and local rank; None: nothing.
        idle_s: how long the main threads of ranks have not run.
        left: ranks that lived at the start of the window.
        copies: processes that these ranks have forked, with the memory but not with the threads that serve the groups.
    """
    scene = Scene(window_s=2)
    rows = {}
    for rank in sorted({*alive, *left}):
        pid, one, looks = 100 + rank, alive.get(rank, INSIDE), "start end" if rank in alive else "start"
        stack = scene.stack(one.stack, kernel=False)
        scene.seen("threads", looks=looks, pid=pid, tid=pid, comm="python", **one.row, pystack=stack, lock=0)
        place = {"backend": one.backend, "name": WORLD, "rank": rank, "size": size, "served": 1}
        for started in one.started.values():
            scene.seen("process_groups", looks=looks, pid=pid, group=1000, started=started, **place)
        if rank in alive:
            rows[pid] = process(pid, **({"rank": rank, "local_rank": rank} | known if known is not None else {}))
    for rank in copies:
        pid = 200 + rank
        scene.seen("threads", pid=pid, tid=pid, comm="python", **READ, pystack=scene.stack(TRAIN, kernel=False), lock=0)
        place = {"backend": "gloo", "name": WORLD, "rank": rank, "size": size, "served": 0}
        scene.seen("process_groups", pid=pid, group=1000, started=37, **place)
        rows[pid] = process(pid, ppid=100 + rank)
    rows |= {row["pid"]: row for row in more}
    scene.tables["job_processes.processes"] = [row | {"at_ns": scene.window_ns} for row in rows.values()]
    scene.tables["job_processes.exceptions"] = list(logs)
    scene.tables["job_processes.oom_kills"] = list(kills)
    scene.tables["job_processes.idle"] = [
        {"pid": 100 + rank, "idle_ns": int(seconds * 1e9)} for rank, seconds in (idle_s or {}).items()
    ]
    return judge(scene.build(), Params())
