"""Where we run, read off namespaces and the marks that container runtimes leave."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from whystall.agent_server.doctor.containers import container, situation
from whystall.agent_server.doctor.report_model import State
from whystall.agent_server.doctor.view import View

MakeHost = Callable[..., View]
ID = "0123456789abcdef" * 4
LAYERS = {"/proc/self/mounts": "overlay / overlay rw 0 0\nproc /proc proc rw 0 0\n"}
POD = "/kubepods.slice/kubepods-pod0a1b2c3d_0001_0002_0003_0a1b2c3d4e5f.slice"
SAME = {"/proc/1/ns/mnt": "->mnt:[4026531841]", "/proc/self/ns/mnt": "->mnt:[4026531841]"}
OTHER = {"/proc/1/ns/mnt": "->mnt:[4026531841]", "/proc/self/ns/mnt": "->mnt:[4026532777]"}


@pytest.mark.parametrize(
    "files",
    [
        {**SAME, "/.dockerenv": ""},  # a machine made of an image
        {"/proc/self/mounts": "/dev/vda / ext4 rw 0 0\n", "/.dockerenv": ""},  # the same, not told about process 1
        {},
    ],
)
def test_on_the_host(files: dict[str, str], host: MakeHost) -> None:
    check = container(host(files))
    assert (check.state, check.found) == (State.OK, "none; on the host itself")


@pytest.mark.parametrize(
    ("files", "own", "found", "fix"),
    [
        ({"/.dockerenv": ""}, ("pid",), "in docker; own namespaces: processes", "docker run --pid=host ..."),
        ({"/run/.containerenv": ""}, ("pid",), "in podman; own", "podman run --pid=host ..."),
        (
            {"/run/.containerenv": ""},
            ("pid", "user"),
            "in podman; own namespaces: processes, users",
            "podman run --pid=host ...",
        ),
        ({"/run/.containerenv": "", **LAYERS}, ("user",), "in podman; sees", "sudo podman run --privileged"),
        ({"/proc/self/cgroup": f"0::/system.slice/docker-{ID}.scope\n"}, ("pid",), f"in docker {ID[:12]}", "docker"),
        ({}, ("pid",), "own namespaces: processes", "leave this PID namespace"),
        ({}, ("user",), "own namespaces: users", "leave this user namespace"),
        (
            {
                "/proc/self/environ": "KUBERNETES_SERVICE_HOST=10.0.0.1\0HOSTNAME=train-0\0",
                "/var/run/secrets/kubernetes.io/serviceaccount/namespace": "team",
            },
            ("pid",),
            "in kubernetes team/train-0",
            "kubectl apply -f deploy/daemonset.yaml (or in the pod's spec: hostPID: true)",
        ),
    ],
)
def test_what_is_hidden_and_the_setting_that_shows_it(
    files: dict[str, str], own: tuple[str, ...], found: str, fix: str, host: MakeHost
) -> None:
    check = container(host(files, own=own))
    assert check.state is State.LIMITED
    assert check.found.startswith(found)
    assert check.fix.startswith(fix)
    assert check.means


def test_a_container_without_a_name_leaves_no_gap_in_any_language(host: MakeHost) -> None:
    view = host({"/.dockerenv": ""}, own=("pid",))
    chinese = View(root=view.root, lang="zh", uid=view.uid)
    assert container(chinese).found.startswith("在 docker 中；独立的命名空间：进程")


@pytest.mark.parametrize("files", [OTHER, LAYERS])
def test_a_sidecar_with_the_hosts_processes_is_well(files: dict[str, str], host: MakeHost) -> None:
    group = {"/proc/self/cgroup": f"0::{POD}/cri-containerd-{ID}.scope\n"}
    view = host({**files, **group, "/proc/self/environ": "POD_NAME=whystall-x2b\0"}, own=("cgroup",))
    check = container(view)
    assert check.state is State.OK
    assert check.found == "in kubernetes whystall-x2b; sees the host's processes; own namespaces: control groups"
    assert situation(view).kubernetes


def test_names_of_strangers_are_inert(host: MakeHost) -> None:
    view = host({"/proc/self/environ": b"KUBERNETES_SERVICE_HOST=x\0POD_NAME=a\x1b[31m\0"}, own=("pid",))
    assert "\x1b" not in container(view).found
