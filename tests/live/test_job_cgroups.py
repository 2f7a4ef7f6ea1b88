"""Real processes in control groups as container engines, kubelets and Slurm make them, found by what these say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from chat_jobs import job

from whystall.agent_server.job_lookup import inventory
from whystall.agent_server.job_lookup.models import Wanted
from whystall.agent_server.job_lookup.resolve import resolve

# A hierarchy of v1, else the unified one.
ROOTS = [Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")]
UID = "7e57ab1e-8c56-4d0b-9a4b-1b2c3d4e5f60"
ID = f"c{os.getpid():07x}" * 8


@contextmanager
def inside(path: str, pid: int) -> Iterator[None]:
    """Process `pid` in the control group `path` until the block ends; what was made for it is taken away."""
    root = next(root for root in ROOTS if (root / "cgroup.procs").exists())
    home = root / _of(pid, root).lstrip("/")
    made: list[Path] = []
    group = root
    for part in path.strip("/").split("/"):
        group /= part
        if not group.exists():
            group.mkdir()
            made.append(group)
    try:
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (home / "cgroup.procs").write_text(str(pid))
        for directory in reversed(made):
            directory.rmdir()


def _of(pid: int, root: Path) -> str:
    """Where in the hierarchy `root` the process is."""
    name = "" if root.name in ("unified", "cgroup") else root.name
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == name:
            return path
    raise AssertionError(f"{pid} is in no group of {root}")


@pytest.mark.parametrize(
    ("path", "text", "id"),
    [
        (f"docker/{ID}", ID[:12], f"container:{ID[:12]}"),
        (f"kubepods/burstable/pod{UID}/{ID}", UID, f"pod:{UID}"),
        (
            f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
            f"cri-containerd-{ID}.scope",
            ID,
            f"pod:{UID}",
        ),
        ("slurm/uid_0/job_987654321/step_0/task_0", "job 987654321", "slurm:987654321"),
        ("system.slice/slurmstepd.scope/job_987654321/step_batch", "987654321", "slurm:987654321"),
    ],
)
def test_a_process_is_found_by_its_control_group(path: str, text: str, id: str) -> None:
    with ExitStack() as stack:
        pid = stack.enter_context(job(SECRET="hunter2"))
        stack.enter_context(inside(path, pid))
        found = resolve(Wanted(text=text), inventory.read())
    assert (found.status, found.pid) == ("found", pid), found
    assert found.job is not None
    assert found.job.id == id
    assert "hunter2" not in found.model_dump_json()


def test_ranks_in_one_container_are_one_job() -> None:
    said = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(os.getpid())}
    with ExitStack() as stack:
        pids = [stack.enter_context(job(RANK=str(rank), **said)) for rank in range(2)]
        for pid in pids:
            stack.enter_context(inside(f"docker/{ID}", pid))
        found = resolve(Wanted(text=f"rank 1 {ID[:12]}"), inventory.read())
    assert (found.status, found.pid, found.rank) == ("found", pids[1], 1)
    assert found.job is not None
    assert [rank.pid for rank in found.job.ranks] == pids
