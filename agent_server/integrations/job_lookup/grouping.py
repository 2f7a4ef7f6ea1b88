"""Which processes are one job. Pure.

What a batch system, a launcher, MPI, Kubernetes or a container says makes processes one job; without any, a process and
those of its children that do the same work (workers of a data loader). Launchers and shells belong to what they
started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from whystall.agent_server.integrations.job_lookup.cmdline import LAUNCHERS
from whystall.agent_server.integrations.job_lookup.models import Inventory, Job, Kind, Process, Rank

_PIDS = 1000
_RANKS = 1024
_Key = tuple[Kind, str]
_LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0")  # noqa: S104 - what others write
# What Python's multiprocessing starts its helpers with.
_HELPERS = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker")


def jobs(inventory: Inventory) -> list[Job]:
    """The jobs of this host, those with ranks first, then the oldest."""
    groups: dict[_Key, list[Process]] = defaultdict(list)
    keys = keys_of(inventory)
    for process in inventory.processes:
        groups[keys[process.pid]].append(process)
    made = [job_of(key, members, inventory.now_s) for key, members in groups.items()]
    return sorted(made, key=lambda job: (not job.ranks, -job.age_s, job.pid))


def keys_of(inventory: Inventory) -> dict[int, _Key]:
    """The job that each process belongs to, by pid."""
    processes = {process.pid: process for process in inventory.processes}
    keys: dict[int, _Key] = {}
    for process in processes.values():
        key = _own_key(process, inventory.own)
        if key is not None:
            keys[process.pid] = key
    _upward(processes, keys)
    for pid in processes:
        _family(pid, processes, keys)
    return keys


def job_of(key: _Key, members: Sequence[Process], now: float) -> Job:
    """`members` as one job. `now`: seconds since the start of the host, for its age."""
    kind, name = key
    ordered = sorted(members, key=lambda p: (p.started_s, p.pid))
    ranks = _ranks(ordered)
    workers = _workers(ordered)
    main = next((p for p in ordered if ranks and p.pid == ranks[0].pid), None) or workers[0]
    return Job(
        id=f"{kind}:{name[:12] if kind == 'container' else name}",
        kind=kind,
        name=_name(ordered, main),
        pid=main.pid,
        program=main.program,
        processes=len(ordered),
        pids=[p.pid for p in ordered][:_PIDS],
        workers=[p.pid for p in workers][:_RANKS],
        ranks=ranks[:_RANKS],
        world_size=next((p.identity.world_size for p in ordered if p.identity.world_size), None),
        pod=next((p.identity.pod_name for p in ordered if p.identity.pod_name), None),
        namespace=next((p.identity.namespace for p in ordered if p.identity.namespace), None),
        container=next((p.grouped.container for p in ordered if p.grouped.container), None),
        age_s=max(0.0, now - ordered[0].started_s),
    )


def names_of(process: Process) -> list[str]:
    """What people would call `process`, the most telling first."""
    said = process.identity
    named = (said.job_name, said.run_id, said.pod_name, said.slurm_array, process.program, process.comm)
    unit = process.grouped.unit
    return list(dict.fromkeys(name for name in (*named, unit.removesuffix(".service") if unit else None) if name))


def _own_key(process: Process, own: str | None) -> _Key | None:
    """The job that `process` itself says it belongs to."""
    said = process.identity
    container = process.grouped.container
    if process.slurm_job is not None:
        return ("slurm", process.slurm_job)
    if said.rank is not None and said.run_id is not None:
        return ("run", said.run_id)
    if said.rank is not None and said.mpi_job is not None:
        return ("mpi", said.mpi_job)
    if said.rank is not None and said.master is not None:
        # the same address means another job in another container, where it is each one's own
        inside = f"{container[:12]}/" if container and said.master.startswith(_LOOPBACK) else ""
        return ("run", f"{inside}{said.master}")
    if process.pod_uid is not None:
        return ("pod", process.pod_uid)
    if container is not None and container != own:
        return ("container", container)
    if process.grouped.unit is not None:
        return ("unit", process.grouped.unit)
    return None


def _upward(processes: Mapping[int, Process], keys: dict[int, _Key]) -> None:
    """Give launchers to the job of all that they started."""
    children: dict[int, list[int]] = defaultdict(list)
    for process in processes.values():
        children[process.ppid].append(process.pid)
    # A parent is looked at once its children have been: the youngest first is nearly so, and some rounds are enough.
    pending = [p for p in processes.values() if p.pid not in keys and p.program in LAUNCHERS]
    while pending:
        left = []
        for process in pending:
            below = {keys.get(child) for child in children[process.pid]}
            if len(below) == 1 and (key := below.pop()) is not None:
                keys[process.pid] = key
            else:
                left.append(process)
        if len(left) == len(pending):
            return
        pending = left


def _family(pid: int, processes: Mapping[int, Process], keys: dict[int, _Key]) -> _Key:
    """The key of a process, found along its parents where it says nothing itself; kept for all on the way."""
    path: list[int] = []
    while pid not in keys:
        process = processes[pid]
        parent = processes.get(process.ppid)
        path.append(pid)
        if parent is None or parent.pid in path or not _same_work(process, parent, keys):
            keys[pid] = ("process", str(pid))
            break
        pid = parent.pid
    key = keys[pid]
    for below in path:
        keys[below] = key
    return key


def _same_work(process: Process, parent: Process, keys: Mapping[int, _Key]) -> bool:
    """Whether `process` belongs to its `parent`: a copy of it, a helper of Python, or of a job with a name of its own
    (whose child cleared its environment).
    """
    if any(word.startswith(_HELPERS) or "spawn_main" in word for word in process.words):
        return True
    if process.words == parent.words and process.program == parent.program and parent.program not in LAUNCHERS:
        return True
    return keys.get(parent.pid, ("process", ""))[0] in ("slurm", "run", "mpi", "pod")


def _ranks(ordered: Sequence[Process]) -> list[Rank]:
    """Each rank of a job once, with the process that does its work: the first that is no launcher."""
    found: dict[int, Process] = {}
    for process in ordered:
        rank = process.identity.rank
        if rank is None:
            continue
        other = found.get(rank)
        if other is None or (other.program in LAUNCHERS and process.program not in LAUNCHERS):
            found[rank] = process
    told = sorted(found.items())
    # One process that was given rank 0 of 1 is no job of ranks, but a job
    return [Rank(rank=rank, pid=p.pid, local_rank=p.identity.local_rank) for rank, p in told]


def _workers(ordered: Sequence[Process]) -> list[Process]:
    """Those that do the work: no launchers, and none that another of them started."""
    at_work = [p for p in ordered if p.program not in LAUNCHERS] or list(ordered)
    pids = {p.pid for p in at_work}
    return [p for p in at_work if p.ppid not in pids] or at_work


def _name(ordered: Iterable[Process], main: Process) -> str:
    """What people call it: the name that its environment gives, else the program of `main`."""
    for process in (main, *ordered):
        said = process.identity
        if name := said.job_name or said.pod_name or said.run_id:
            return name
    return main.program
