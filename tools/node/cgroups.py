"""Parse the control groups of a process into its container, pod, Slurm job and unit. Pure.

Path formats of Docker, containerd and CRI-O with the drivers ``cgroupfs`` and ``systemd`` (kubelet's
``cm/cgroup_manager_linux.go``: ``kubepods/burstable/podUID/ID`` and ``kubepods-burstable-podUID.slice``, where the
dashes of the uid are underscores), by Podman, by Slurm (``cgroup/v1``: ``slurm/uid_U/job_J/step_S``; ``cgroup/v2``:
``slurmstepd.scope/job_J/step_S``) and by systemd. Only groups of the node's runtime count: within a
container processes may create control groups with any names. Nodes may be containers themselves (kind): their pods
count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from whystall.tools.contract.text import clean

_ID = r"[0-9a-f]{64}"
# docker-ID.scope, cri-containerd-ID.scope, crio-ID.scope, libpod-ID.scope, isulad-ID.scope; conmon is no container
_SCOPE = re.compile(rf"^(?P<runtime>docker|cri-containerd|crio|libpod|nerdctl|containerd|isulad)-(?P<id>{_ID})\.scope$")
# containerd with the driver of another kind than the kubelet's: SLICE:cri-containerd:ID
_COLON = re.compile(rf"^(?P<slice>[^:]*):(?P<runtime>[a-z-]+):(?P<id>{_ID})$")
_BARE = re.compile(rf"^(?:(?P<runtime>crio|libpod)-)?(?P<id>{_ID}|[0-9a-f]{{32}}-[0-9]{{6,12}})$")
_POD = re.compile(
    r"^(?:kubelet-)?(?:kubepods-)?(?:burstable-|besteffort-|guaranteed-)?pod"
    r"(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$"
)
_PARENTS = {
    "docker": "docker",
    "libpod_parent": "libpod",
    "ecs": "docker",
    "isulad": "isulad",
    "default": "containerd",
    "k8s.io": "containerd",
}
_SLURM = re.compile(r"^job_(?P<job>[0-9]{1,12})$")
_STEP = re.compile(r"^step_(?P<step>[0-9]{1,12}|batch|extern|interactive)$")
_SLURM_ROOT = re.compile(r"^(?:slurm(?:_.+)?|(?:.+_)?slurmstepd\.scope)$")
_UNIT = re.compile(r"^(?P<unit>[^/]+\.service)$")
# Units of whole logins or of infrastructure, which are no jobs.
_NO_JOB = re.compile(r"^(?:user@\d+|containerd|docker|kubelet|crio|slurmd|slurmstepd|ssh|sshd)\.service$")


@dataclass(frozen=True, slots=True)
class Grouped:
    """The container, pod, Slurm job and unit of a control group."""

    container: str | None = None
    runtime: str | None = None
    pod_uid: str | None = None
    slurm_job: str | None = None
    slurm_step: str | None = None
    unit: str | None = None


def proc_cgroup(raw: bytes) -> dict[str, bytes]:
    """Parse /proc/PID/cgroup: controller name to path as it is on disk; ``""`` is the unified (v2) hierarchy. Paths
    are relative to our own cgroup namespace (see `CgroupView.membership` in ``hierarchies.py``).
    """
    found: dict[str, bytes] = {}
    for line in raw.splitlines():
        parts = line.split(b":", 2)
        if len(parts) == 3:
            for controller in parts[1].split(b","):
                found[clean(controller)] = parts[2].removesuffix(b" (deleted)")
    return found


def grouped(raw: str) -> Grouped:
    """Parse `raw`, the content of /proc/PID/cgroup; the hierarchy with most information counts first."""
    found = [of_path(line.split(":", 2)[2]) for line in raw.splitlines() if line.count(":") >= 2]
    values: dict[str, str | None] = {}
    for name in Grouped.__slots__:
        values[name] = next((value for one in found if (value := getattr(one, name)) is not None), None)
    return Grouped(**values)


def path_of(raw: str) -> str:
    """Return the longest path in `raw`, for `TargetParams.cgroup`; empty if the process is in no group."""
    paths = [line.split(":", 2)[2] for line in raw.splitlines() if line.count(":") >= 2]
    longest = max(paths, key=len, default="")
    return "" if longest == "/" else longest


def group_of(path: str, name: str) -> str:
    """Return `path` up to the control group of the container or pod `name` (its id or uid); all of it without one."""
    parts = path.split("/")
    named = [at for at, part in enumerate(parts) if name in part.replace("_", "-")]
    return "/".join(parts[: named[-1] + 1]) if named else path


def of_path(path: str) -> Grouped:
    """Parse one path."""
    container = runtime = pod = job = step = unit = None
    slurm = False
    parts = [part for part in path.split("/") if part]
    for place, part in enumerate(parts):
        if pod is None and (match := _POD.match(part)) is not None:
            pod = match["uid"].replace("_", "-")
            container = runtime = None  # the node itself is a container
        elif container is None and (match := _SCOPE.match(part) or _COLON.match(part)) is not None:
            container, runtime = match["id"], match["runtime"].removeprefix("cri-")
            if "slice" in match.re.groupindex and (inner := _POD.match(match["slice"])) is not None:
                pod = inner["uid"].replace("_", "-")
        elif container is None and (match := _BARE.match(part)) is not None:
            parent = parts[place - 1] if place else ""
            container = match["id"]
            runtime = match["runtime"] or _PARENTS.get(parent) or ("kubernetes" if pod else None)
        elif _SLURM_ROOT.match(part):
            slurm = True
        elif slurm and (match := _SLURM.match(part)) is not None:
            job = match["job"]
        elif job is not None and (match := _STEP.match(part)) is not None:
            step = match["step"]
        elif _UNIT.match(part) and not _NO_JOB.match(part):
            unit = part
    return Grouped(container, runtime, pod, job, step, unit)
