"""Group processes into jobs. Pure.

A batch system, launcher, MPI, Kubernetes or container identifies a job; without one, a job is a process and those of
its children that do the same work (workers of a data loader). Launchers and shells belong to what they started.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from whystall.agent_server.job_lookup.cmdline import LAUNCHERS
from whystall.agent_server.job_lookup.models import Inventory, Job, Kind, Process, Rank

_PIDS = 1000
_RANKS = 1024
_Key = tuple[Kind, str]
_LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0")  # noqa: S104 - what others write
# Modules of Python's multiprocessing helpers.
_HELPERS = ("multiprocessing.spawn", "multiprocessing.forkserver", "multiprocessing.resource_tracker")


def jobs(inventory: Inventory) -> list[Job]:
    """Return the jobs of this host, those with ranks first, then the oldest."""
    groups: dict[_Key, list[Process]] = defaultdict(list)
    keys = keys_of(inventory)
    for process in inventory.processes:
        groups[keys[process.pid]].append(process)
    made = [job_of(key, members, inventory.now_s) for key, members in groups.items()]
    return sorted(made, key=lambda job: (not job.ranks, -job.age_s, job.pid))


def keys_of(inventory: Inventory) -> dict[int, _Key]:
    """Return the job of each process by pid."""
    processes = {process.pid: process for process in inventory.processes}
    keys: dict[int, _Key] = {}
    for process in processes.values():
        key = _stated_key(process, inventory.own)
        if key is not None:
            keys[process.pid] = key
    _assign_launchers(processes, keys)
    for pid in processes:
        _inherit_key(pid, processes, keys)
    return keys


def job_of(key: _Key, members: Sequence[Process], now: float) -> Job:
    """Make a job of `members`. `now`: seconds since boot."""
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
    """Return possible names of `process`, the most specific first."""
    identity = process.identity
    named = (identity.job_name, identity.run_id, identity.pod_name, identity.slurm_array, process.program, process.comm)
    unit = process.grouped.unit
    return list(dict.fromkeys(name for name in (*named, unit.removesuffix(".service") if unit else None) if name))


def _stated_key(process: Process, own: str | None) -> _Key | None:
    """Return the job that the process's environment or control group states."""
    identity = process.identity
    container = process.grouped.container
    if process.slurm_job is not None:
        return ("slurm", process.slurm_job)
    if identity.rank is not None and identity.run_id is not None:
        return ("run", identity.run_id)
    if identity.rank is not None and identity.mpi_job is not None:
        return ("mpi", identity.mpi_job)
    if identity.rank is not None and identity.master is not None:
        # a loopback address is local to its container
        inside = f"{container[:12]}/" if container and identity.master.startswith(_LOOPBACK) else ""
        return ("run", f"{inside}{identity.master}")
    if process.pod_uid is not None:
        return ("pod", process.pod_uid)
    if container is not None and container != own:
        return ("container", container)
    if process.grouped.unit is not None:
        return ("unit", process.grouped.unit)
    return None


def _assign_launchers(processes: Mapping[int, Process], keys: dict[int, _Key]) -> None:
    """Assign launchers to the job of all their children."""
    children: dict[int, list[int]] = defaultdict(list)
    for process in processes.values():
        children[process.ppid].append(process.pid)
    # Repeat until nothing changes, since a parent needs the keys of its children first.
    pending = [p for p in processes.values() if p.pid not in keys and p.program in LAUNCHERS]
    while pending:
        remaining = []
        for process in pending:
            below = {keys.get(child) for child in children[process.pid]}
            if len(below) == 1 and (key := below.pop()) is not None:
                keys[process.pid] = key
            else:
                remaining.append(process)
        if len(remaining) == len(pending):
            return
        pending = remaining


def _inherit_key(pid: int, processes: Mapping[int, Process], keys: dict[int, _Key]) -> _Key:
    """Return the key of a process, inherited from its parents if it has none, and store it for all on the path."""
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
    """Return whether `process` belongs to its `parent`: a copy of it, a helper of Python, or a child that cleared its
    environment.
    """
    if any(word.startswith(_HELPERS) or "spawn_main" in word for word in process.words):
        return True
    if process.words == parent.words and process.program == parent.program and parent.program not in LAUNCHERS:
        return True
    return keys.get(parent.pid, ("process", ""))[0] in ("slurm", "run", "mpi", "pod")


def _ranks(ordered: Sequence[Process]) -> list[Rank]:
    """Return each rank once, with its first process that is no launcher."""
    found: dict[int, Process] = {}
    for process in ordered:
        rank = process.identity.rank
        if rank is None:
            continue
        other = found.get(rank)
        if other is None or (other.program in LAUNCHERS and process.program not in LAUNCHERS):
            found[rank] = process
    by_rank = sorted(found.items())
    return [Rank(rank=rank, pid=p.pid, local_rank=p.identity.local_rank) for rank, p in by_rank]


def _workers(ordered: Sequence[Process]) -> list[Process]:
    """Return the processes that are neither launchers nor children of another one."""
    working = [p for p in ordered if p.program not in LAUNCHERS] or list(ordered)
    pids = {p.pid for p in working}
    return [p for p in working if p.ppid not in pids] or working


def _name(ordered: Iterable[Process], main: Process) -> str:
    """Return the name in the environment, else the program of `main`."""
    for process in (main, *ordered):
        identity = process.identity
        if name := identity.job_name or identity.pod_name or identity.run_id:
            return name
    return main.program
