"""The processes that a window observes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import TargetParams
from whystall.tools.contract.text import clean, clean_path
from whystall.tools.node.containers import Container, Containers, parse_place, place
from whystall.tools.node.vantage import node_path

_CGROUP_ROOT = "/sys/fs/cgroup"


class Target(BaseModel):
    """A resolved target. `pids` are process ids at the start; empty with `everything`. `follow`: children too.
    `container` and `pod` (as in `Subject`): set if all of them run there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    everything: bool
    pid: int | None = None
    comm: Annotated[str, AfterValidator(clean)] | None = None
    cgroup: Annotated[str, AfterValidator(clean_path)] | None = None
    pids: list[int] = Field(default_factory=list)
    follow: bool = False
    container: Annotated[str, AfterValidator(clean)] | None = None
    pod: Annotated[str, AfterValidator(clean)] | None = None

    @property
    def sole_pid(self) -> int | None:
        """The process id if the target is exactly one process, else None."""
        return self.pid if not self.follow and len(self.pids) <= 1 else None

    def describe(self) -> str:
        """Return a short phrase: ``pid 7``, ``comm python3``, ``cgroup /a/b``, ``host``; with the container or pod."""
        where = place(self.container, self.pod)
        if self.pid is not None:
            text = f"pid {self.pid}" + (f" ({self.comm})" if self.comm else "")
        elif self.cgroup is not None:
            text = f"cgroup {self.cgroup}"
        else:
            text = f"comm {self.comm}" if self.comm is not None else "host"
        return f"{text}, {where}" if where else text


def resolve(params: TargetParams) -> Target:
    """Return the target of `params`, with its present processes.

    Raises `ToolError`: no_such_process when the pid or comm matches none, no_such_cgroup when the cgroup, container or
    pod does not exist or has no process, bad_argument when several containers or pods match.
    """
    if params.pid is not None:
        return _placed(_one_process(params.pid, params.children))
    if params.comm is not None:
        pids = [pid for pid in all_pids() if comm_of(pid) == params.comm and alive(pid)]
        if not pids:
            raise ToolError(
                ErrorCode.NO_SUCH_PROCESS,
                f"no process is called {clean(params.comm)!r}",
                "use the exact name of `ps -o comm` (at most 15 characters)",
            )
        pids = _family(pids, params.children)
        return _placed(Target(everything=False, comm=params.comm, pids=pids, follow=params.children))
    if params.cgroup is not None:
        pids = cgroup_pids(params.cgroup)
        if not pids and parse_place(params.cgroup) is not None:
            return _in_container(params.cgroup)
        if not pids:
            raise ToolError(
                ErrorCode.NO_SUCH_CGROUP,
                f"cgroup {clean(params.cgroup)!r} does not exist or is empty",
                "give a path below /sys/fs/cgroup, as /proc/PID/cgroup shows it, the id of a container, or pod:NAME",
            )
        return _placed(Target(everything=False, cgroup=params.cgroup, pids=pids, follow=True))
    return Target(everything=True)


def renewed(target: Target) -> Target:
    """Return `target` with its processes as they are now: children may have started since. Unchanged if it follows
    none, or if all its processes have ended."""
    if not target.follow:
        return target
    pids = cgroup_pids(target.cgroup) if target.cgroup is not None else []
    known = [pid for pid in {*target.pids, *pids} if alive(pid)]
    return target.model_copy(update={"pids": children_of(known)}) if known else target


def _placed(target: Target) -> Target:
    """Return `target` with the container and the pod that all its processes run in."""
    containers = Containers()
    found = [containers.of(pid) for pid in target.pids]
    ids, pods = {one.id if one else None for one in found}, {_pod(one) for one in found}
    return target.model_copy(
        update={"container": ids.pop() if len(ids) == 1 else None, "pod": pods.pop() if len(pods) == 1 else None}
    )


def _pod(container: Container | None) -> str | None:
    return container.pod or container.pod_uid if container is not None else None


def _in_container(named: str) -> Target:
    """Return the processes of the container or pod `named`."""
    found = [(p, entry, group) for p, entry, group in Containers().find(named, all_pids()) if alive(p)]
    kind, name = parse_place(named) or ("", named)
    if not found:
        raise ToolError(
            ErrorCode.NO_SUCH_CGROUP, f"no {kind} {clean(name)!r} runs here", "list what runs here with `whystall jobs`"
        )
    groups = {group for _, _, group in found}
    if len(groups) > 1:
        places = sorted({entry.id or "" if kind == "container" else _pod(entry) or "" for _, entry, _ in found})
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"{len(groups)} match {clean(name)!r}: {', '.join(places[:8])}",
            "give the whole id, or pod:NAMESPACE/NAME",
        )
    pids = sorted(pid for pid, _, _ in found)
    return _placed(Target(everything=False, cgroup=groups.pop(), pids=pids, follow=True))


def cgroup_pids(cgroup: str) -> list[int]:
    """Return the processes of `cgroup` and its descendants, in every hierarchy (v1 controllers or v2), sorted."""
    relative = cgroup.removeprefix(_CGROUP_ROOT).strip("/")
    if ".." in Path(relative).parts:
        return []
    top = node_path(_CGROUP_ROOT)
    # With cgroup v2 the directories at the top are groups, not hierarchies.
    hierarchies = [] if (top / "cgroup.procs").exists() else [d for d in sorted(top.glob("*")) if d.is_dir()]
    roots = [top / relative, *(d / relative for d in hierarchies)]
    pids: set[int] = set()
    for root in roots:
        for procs in root.rglob("cgroup.procs") if relative else ():
            try:
                pids.update(int(line) for line in procs.read_text().split())
            except OSError:
                continue  # the cgroup vanished while we walked
    return sorted(pids)


def children_of(pids: list[int]) -> list[int]:
    """Return `pids` and all their present descendants, sorted."""
    parents: dict[int, list[int]] = {}
    for pid in all_pids():
        parents.setdefault(_parent(pid), []).append(pid)
    found, queue = set(pids), list(pids)
    while queue:
        for child in parents.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)
    return sorted(found)


def alive(pid: int) -> bool:
    """Return whether `pid` is a process that has not exited (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def _family(pids: list[int], follow: bool) -> list[int]:
    return children_of(pids) if follow else sorted(pids)


def _one_process(pid: int, follow: bool) -> Target:
    tgid = _status_field(pid, "Tgid")
    if tgid is None:
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, f"no process has pid {pid}", "list processes with `ps -e`")
    if tgid != pid:
        raise ToolError(ErrorCode.NO_SUCH_PROCESS, f"{pid} is a thread of process {tgid}", f"use pid {tgid}")
    if not alive(pid):
        raise ToolError(
            ErrorCode.NO_SUCH_PROCESS,
            f"process {pid} has exited and was not reaped by its parent (zombie)",
            "list processes with `ps -e`",
        )
    return Target(everything=False, pid=pid, comm=comm_of(pid), pids=_family([pid], follow), follow=follow)


def all_pids() -> list[int]:
    """Return the ids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def comm_of(pid: int) -> str:
    try:
        return clean(Path(f"/proc/{pid}/comm").read_bytes().removesuffix(b"\n"))
    except OSError:
        return ""


def _parent(pid: int) -> int:
    return _status_field(pid, "PPid") or 0


def _status_field(pid: int, name: str) -> int | None:
    try:
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(name.encode() + b":"):
                return int(line.split()[1])
    except OSError:
        return None
    return None
