"""Control groups and mounts as they were recorded on nodes of many kinds."""

from __future__ import annotations

import pytest

from whystall.tools.node import cgroups
from whystall.tools.node.cgroups import Grouped, proc_cgroup
from whystall.tools.node.mounts import mountinfo

ID = "3f4a" * 16
OTHER = "0b1c" * 16
UID = "0f2d5f7c-8c56-4d0b-9a4b-1b2c3d4e5f60"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"12:pids:/docker/{ID}", Grouped(ID, "docker")),
        (f"0::/system.slice/docker-{ID}.scope", Grouped(ID, "docker")),
        (f"11:memory:/kubepods/burstable/pod{UID}/{ID}", Grouped(ID, "kubernetes", UID)),
        (f"11:memory:/kubepods/pod{UID}/{ID}", Grouped(ID, "kubernetes", UID)),
        (
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
            f"{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope",
            Grouped(ID, "containerd", UID),
        ),
        (
            f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/crio-{ID}.scope",
            Grouped(ID, "crio", UID),
        ),
        (
            "4:memory:/system.slice/containerd.service/kubepods-besteffort-pod"
            f"{UID.replace('-', '_')}.slice:cri-containerd:{ID}",
            Grouped(ID, "containerd", UID),
        ),
        # kind: the node is a container itself, and its pods count
        (
            f"0::/docker/{OTHER}/kubelet/kubepods/besteffort/pod{UID}/{ID}",
            Grouped(ID, "kubernetes", UID),
        ),
        # openEuler's iSulad
        (f"0::/isulad/{ID}", Grouped(ID, "isulad")),
        (f"0::/system.slice/isulad-{ID}.scope/init", Grouped(ID, "isulad")),
        # whoever may make control groups in its container can take no other's name
        (f"0::/kubepods/pod{UID}/{ID}/docker-{OTHER}.scope", Grouped(ID, "kubernetes", UID)),
        (f"0::/kubepods/pod{UID}/{ID}/kubepods/pod{'ab12' * 8}/{OTHER}", Grouped(ID, "kubernetes", UID)),
        (f"0::/docker/{ID}/docker/{OTHER}", Grouped(ID, "docker")),
        # a static pod has a hash for a uid
        (f"0::/kubepods/burstable/pod{'ab12' * 8}/{ID}", Grouped(ID, "kubernetes", "ab12" * 8)),
        (f"0::/machine.slice/libpod-{ID}.scope/container", Grouped(ID, "libpod")),
        ("8:cpuset:/slurm/uid_1000/job_4242/step_0/task_0", Grouped(None, None, None, "4242", "0")),
        ("8:cpuset:/slurm_gpu-7/uid_1000/job_4242/step_batch", Grouped(None, None, None, "4242", "batch")),
        (
            "0::/system.slice/slurmstepd.scope/job_4242/step_extern/user/task_special",
            Grouped(None, None, None, "4242", "extern"),
        ),
        ("0::/system.slice/train@llama.service", Grouped(unit="train@llama.service")),
        # nobody's job: logins, services that hold others, the pause of a pod, somebody's directory
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice", Grouped()),
        ("0::/user.slice/user-1000.slice/session-3.scope", Grouped()),
        (f"0::/system.slice/crio-conmon-{ID}.scope", Grouped()),
        ("0::/job_4242/step_0", Grouped()),
        ("0::/", Grouped()),
        ("garbage", Grouped()),
        ("", Grouped()),
    ],
)
def test_control_groups(line: str, expected: Grouped) -> None:
    assert cgroups.grouped(line) == expected


def test_hierarchies_are_read_together() -> None:
    raw = f"12:devices:/\n9:name=systemd:/docker/{ID}\n3:memory:/slurm/uid_0/job_7/step_0\n0::/\n"
    assert cgroups.grouped(raw) == Grouped(ID, "docker", None, "7", "0")
    assert cgroups.path_of(raw) == f"/docker/{ID}"
    assert cgroups.path_of("0::/\n") == ""


def test_cgroup_paths_may_contain_colons_and_be_deleted() -> None:
    raw = b"4:cpu,cpuacct:/a:b\n3:memory:/x (deleted)\n1:name=systemd:/s\n0::/u\n"
    assert proc_cgroup(raw) == {
        **{"cpu": b"/a:b", "cpuacct": b"/a:b", "memory": b"/x", "name=systemd": b"/s", "": b"/u"}
    }


def test_mountinfo_undoes_escapes_and_optional_fields() -> None:
    raw = b"32 31 0:29 /docker/x /sys/fs/my\\040cgroup rw shared:9 master:1 - cgroup cgroup rw,cpu,cpuacct\n?\n"
    (mount,) = mountinfo(raw)
    assert (mount.root, mount.point, mount.fstype, mount.dev) == (b"/docker/x", b"/sys/fs/my cgroup", "cgroup", "0:29")
    assert mount.super_options == {"rw", "cpu", "cpuacct"}
