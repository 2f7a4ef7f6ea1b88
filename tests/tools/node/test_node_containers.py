"""Names of containers and pods, from what the node's own files say; laid out as kubelets and runtimes do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from whystall.tools.node.containers import Containers, parse_place, place
from whystall.tools.node.pods import Pods

ID, OTHER = "3f4a" * 16, "0b1c" * 16
UID = "0f2d5f7c-8c56-4d0b-9a4b-1b2c3d4e5f60"
GROUP = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope"


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A sidecar's /proc of a node whose root is ``node`` beside it: two processes of one container, one of none."""
    proc = tmp_path / "proc"
    for name, mounts in (("self", "ours"), ("1", "node"), ("7", "pod"), ("8", "pod"), ("9", "node")):
        (proc / name / "ns").mkdir(parents=True)
        os.symlink(f"mnt:[{mounts}]", proc / name / "ns/mnt")
        (proc / name / "mountinfo").write_text("1 1 0:5 / / rw - overlay overlay rw\n")
    for pid, inside, group in ((7, 1, GROUP), (8, 22, GROUP), (9, 0, "/system.slice/ssh.service")):
        (proc / str(pid) / "cgroup").write_text(f"0::{group}\n")
        (proc / str(pid) / "status").write_text(f"Name:\tx\nNSpid:\t{pid}{f'	{inside}' if inside else ''}\n")
    (tmp_path / "node/etc").mkdir(parents=True)
    (tmp_path / "node/etc/hostname").write_text("gpu-7\n")
    os.symlink(tmp_path / "node", proc / "1/root")
    (tmp_path / "box/etc").mkdir(parents=True)
    os.symlink(tmp_path / "box", proc / "7/root")
    return tmp_path


def lay(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def bundle(node: Path, where: str, told: object) -> None:
    lay(node / "node" / where.format(ID), json.dumps(told))


CONTAINERD = "run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json"
NAMES = {"io.kubernetes.cri.sandbox-namespace": "ml", "io.kubernetes.cri.sandbox-name": "train-0"}
CRIO = {"io.kubernetes.pod.namespace": "ml", "io.kubernetes.pod.name": "train-0"}


@pytest.mark.parametrize(
    ("where", "told", "expected"),
    [
        (CONTAINERD, {"annotations": NAMES}, "ml/train-0"),
        ("run/containers/storage/overlay-containers/{}/userdata/config.json", {"annotations": CRIO}, "ml/train-0"),
        ("var/lib/docker/containers/{}/config.v2.json", {"Config": {"Labels": CRIO}}, "ml/train-0"),
        ("run/elsewhere/{}/config.json", {"annotations": NAMES}, None),
        (CONTAINERD, {"annotations": {**NAMES, "io.kubernetes.cri.sandbox-name": "Not\nA Name"}}, None),
        (CONTAINERD, {"annotations": {**NAMES, "io.kubernetes.cri.sandbox-namespace": 7}}, None),
        (CONTAINERD, {"annotations": [1]}, None),
        (CONTAINERD, [], None),
    ],
)
def test_what_the_runtime_was_told(node: Path, where: str, told: object, expected: str | None) -> None:
    bundle(node, where, told)
    assert Pods(node / "proc").name(UID, ID) == expected


def test_the_kubelets_logs_go_first(node: Path) -> None:
    bundle(node, CONTAINERD, {"annotations": CRIO})
    for name in (f"prod_llama-1_{UID}", "prod_llama-2_other", "no-pod", "bad name_x_y"):
        (node / "node/var/log/pods" / name).mkdir(parents=True)
    pods = Pods(node / "proc")
    assert pods.name(UID, ID) == "prod/llama-1"
    assert pods.name("nobody", None) is None
    assert pods.name("other", None) == "prod/llama-2"


def test_what_the_container_calls_itself_is_the_last_resort(node: Path) -> None:
    lay(node / "box/etc/hostname", "train-0\n")
    assert Pods(node / "proc").name(UID, ID, 7) == "train-0"
    lay(node / "box/run/secrets/kubernetes.io/serviceaccount/namespace", "ml")
    assert Pods(node / "proc").name(UID, ID, 7) == "ml/train-0"
    assert Pods(node / "proc").name(None, ID, 7) is None, "a container of no pod has a host name too"


@pytest.mark.parametrize("damage", ["node's name", "link", "pipe", "not a name", "remote", "nothing"])
def test_what_is_no_name_of_the_pod_is_not_taken_for_one(node: Path, damage: str) -> None:
    name = node / "box/etc/hostname"
    if damage == "link":
        lay(node / "secret", "train-0\n")
        name.symlink_to(node / "secret")
    elif damage == "pipe":
        os.mkfifo(name)
    elif damage == "node's name":  # the pod is in the network of its host
        os.symlink("uts:[ours]", node / "proc/self/ns/uts")
        os.symlink("uts:[node]", node / "proc/1/ns/uts")
        name.write_text("gpu-7\n")
    elif damage == "remote":
        name.write_text("train-0\n")
        (node / "proc/7/mountinfo").write_text("1 1 0:5 / / rw - fuse.overlayfs o rw\n")
    elif damage == "not a name":
        name.write_text("\x1b[31m$(reboot)\n")
    assert Pods(node / "proc").name(UID, ID, 7) is None


def test_processes_are_told_with_their_container(node: Path) -> None:
    bundle(node, CONTAINERD, {"annotations": NAMES})
    containers = Containers(node / "proc")
    containers.locate([7, 8, 9, 10, -1, 0])
    (entry,) = containers.located({7, 9, 10})
    assert (entry.id, entry.runtime, entry.pod, entry.pod_uid) == (ID, "containerd", "ml/train-0", UID)
    assert entry.pids == {7: 1}
    assert containers.located({9}) == []
    assert entry.place == "pod ml/train-0"


def test_a_container_or_pod_is_found_by_the_words_people_have_for_it(node: Path) -> None:
    bundle(node, CONTAINERD, {"annotations": NAMES})
    containers = Containers(node / "proc")
    whole = {(7, GROUP), (8, GROUP)}
    pod = GROUP.rpartition("/")[0]
    for words in (ID, ID[:12], f"containerd://{ID}", f"container:{ID[:16]}"):
        assert {(pid, group) for pid, _, group in containers.find(words, [7, 8, 9])} == whole
    for words in ("pod:ml/train-0", "pod:train-0", f"pod:{UID}"):
        assert {(pid, group) for pid, _, group in containers.find(words, [7, 8, 9])} == {(7, pod), (8, pod)}
    for words in (OTHER, "pod:ml", "pod:other/train-0", "ml/train-0", "/system.slice", "pod:"):
        assert containers.find(words, [7, 8, 9]) == []
    assert parse_place(ID[:11]) is None
    assert (place(ID, None), place(ID, "ml/x"), place(None, None)) == (f"container {ID[:12]}", "pod ml/x", "")
