"""Control groups as they are seen from the node, from a sidecar, and from a cgroup namespace of one's own."""

from __future__ import annotations

import os
from pathlib import Path

from whystall.tools.node.hierarchies import CgroupView
from whystall.tools.node.vantage import host_name, in_sidecar, node_path

POD, OTHER = "kubepods/burstable/podA", "kubepods/besteffort/podB"


def made(root: Path, *, sidecar: bool, relative: bool) -> Path:
    """A /proc below `root` of a node with a unified hierarchy; we are in `POD`/own."""
    proc, node = root / "proc", root / "node"
    (node / "etc").mkdir(parents=True)
    for name, groups in ((f"{POD}/own", str(os.getpid())), (f"{POD}/app", "40"), (f"{OTHER}/app", "50")):
        directory = node / "sys/fs/cgroup" / name
        directory.mkdir(parents=True)
        (directory / "cgroup.procs").write_text(f"3\n{groups}\n")
        for above in directory.parents:
            if above == node / "sys/fs":
                break
            (above / "cgroup.procs").write_text("")
    for name, namespace in (("self", "mine"), ("1", "node")):
        (proc / name / "ns").mkdir(parents=True)
        for kind in ("mnt", "uts"):
            os.symlink(f"{kind}:[{namespace if sidecar else 'mine'}]", proc / name / "ns" / kind)
    os.symlink(node, proc / "1/root")
    top = "/../../../.." if relative else "/"
    (proc / "1/mountinfo").write_text(f"30 1 0:26 {top} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (proc / "self/mountinfo").write_text("9 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    (proc / "self/cgroup").write_text("0::/\n" if relative else f"0::/{POD}/own\n")
    return proc


def told(proc: Path, path: str) -> str:
    view = CgroupView(proc)
    raw = f"0::{path}\n".encode()
    assert view.lines(raw) == b"0::" + view.membership(raw)[""] + b"\n"
    return view.membership(raw)[""].decode()


def test_a_namespace_of_ones_own_is_found_in_the_nodes_tree(tmp_path: Path) -> None:
    proc = made(tmp_path, sidecar=True, relative=True)
    (mount,) = CgroupView(proc).mounts
    assert (mount.root, mount.point.decode()) == (b"/", str(proc / "1/root/sys/fs/cgroup"))
    assert told(proc, "/") == f"/{POD}/own"
    assert told(proc, "/../app") == f"/{POD}/app"
    assert told(proc, "/../../../besteffort/podB/app") == f"/{OTHER}/app"
    assert told(proc, "/../../../../init.scope") == "/init.scope"
    assert told(proc, "/../../../..") == "/"


def test_ourselves_below_the_namespaces_root(tmp_path: Path) -> None:
    proc = made(tmp_path, sidecar=True, relative=True)
    (proc / "self/cgroup").write_text("0::/own\n")
    (proc / "1/mountinfo").write_text("30 1 0:26 /../../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    assert told(proc, "/app") == f"/{POD}/app"
    assert told(proc, "/../../besteffort/podB/app") == f"/{OTHER}/app"


def test_in_the_nodes_own_namespace_paths_stay(tmp_path: Path) -> None:
    for sidecar in (True, False):
        proc = made(tmp_path / str(sidecar), sidecar=sidecar, relative=False)
        assert told(proc, f"/{OTHER}/app") == f"/{OTHER}/app"
        point = CgroupView(proc).mounts[0].point.decode()
        assert point == (str(proc / "1/root/sys/fs/cgroup") if sidecar else "/sys/fs/cgroup")


def test_where_we_are_not_found_nothing_is_made_up(tmp_path: Path) -> None:
    proc = made(tmp_path, sidecar=True, relative=True)
    (tmp_path / "node/sys/fs/cgroup" / POD / "own/cgroup.procs").write_text("")
    assert told(proc, "/../app") == "/../app"


def test_a_sidecar_finds_the_nodes_files_and_name(tmp_path: Path) -> None:
    proc = made(tmp_path, sidecar=True, relative=True)
    (tmp_path / "node/etc/hostname").write_text("# a comment\ngpu-7\x1b\n")
    assert in_sidecar(proc)
    assert node_path("/var/log/pods", proc) == proc / "1/root/var/log/pods"
    assert host_name(proc) == "gpu-7\\x1b"
    same = made(tmp_path / "same", sidecar=False, relative=False)
    assert not in_sidecar(same)
    assert node_path("/var/log/pods", same) == Path("/var/log/pods")
    assert host_name(same) == os.uname().nodename


def test_a_service_with_the_nodes_files_is_called_as_the_node_is_now(tmp_path: Path) -> None:
    proc = made(tmp_path, sidecar=True, relative=False)
    (tmp_path / "node/etc/hostname").write_text("localhost\n")
    assert host_name(proc) == "localhost"
    os.unlink(proc / "1/root")
    os.symlink("/", proc / "1/root")
    assert host_name(proc) == os.uname().nodename


def test_what_may_not_be_read_is_no_sidecar(tmp_path: Path) -> None:
    assert not in_sidecar(tmp_path)
    assert CgroupView(tmp_path).mounts == []
