"""Paths of files that are known within their file system only, as nodes and containers have it mounted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from whystall.bpf import layout
from whystall.bpf.capture import File, FileKey
from whystall.tools.collect.mounted import resolve, tables, whole_paths
from whystall.tools.node.mounts import mountinfo

NODE = mountinfo(b"""20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 8:1 /var/x /elsewhere rw - ext4 /dev/sda1 rw
22 20 8:2 / /mnt/my\\040disk rw - xfs /dev/sda2 rw
23 20 8:3 /sub /bound rw - ext4 /dev/sda3 rw
""")
LAYERS = ":".join(f"/var/lib/containerd/snapshots/{n}/fs" for n in range(120, 90, -1))
UPPER = "/var/lib/containerd/snapshots/130/fs"
POD = mountinfo(
    f"""77 49 0:40 / / rw - overlay overlay rw,lowerdir={LAYERS},upperdir={UPPER},workdir=/w
94 77 8:2 /volumes/pvc-1 /data rw - xfs /dev/sda2 rw
95 77 8:2 /volumes/pvc-1/sets /data/sets rw - xfs /dev/sda2 rw
""".encode()
)
NEWER = mountinfo(b"77 49 0:40 / / rw - overlay o rw,lowerdir+=/l/2,lowerdir+=/l/1,upperdir=/u\n")


@pytest.mark.parametrize(
    ("dev", "path", "known", "expected"),
    [
        ("8:2", b"/volumes/pvc-1/a.bin", [POD, NODE], b"/data/a.bin"),
        ("8:2", b"/volumes/pvc-1/sets/a.bin", [POD, NODE], b"/data/sets/a.bin"),
        # another's volume on the same file system is seen by the node alone
        ("8:2", b"/volumes/pvc-10/a.bin", [POD, NODE], b"/mnt/my disk/volumes/pvc-10/a.bin"),
        ("8:1", b"/var/lib/containerd/snapshots/91/fs/usr/lib/x.so", [POD, NODE], b"/usr/lib/x.so"),
        ("8:1", b"/var/lib/containerd/snapshots/130/fs/root/y", [POD, NODE], b"/root/y"),
        (
            "8:1",
            b"/var/lib/containerd/snapshots/13/fs/root/y",
            [POD, NODE],
            b"/var/lib/containerd/snapshots/13/fs/root/y",
        ),
        ("8:1", b"/l/1/opt/z", [NEWER, NODE], b"/opt/z"),
        ("8:1", b"/var/x/y", [NODE], b"/var/x/y"),
        ("8:3", b"/other/y", [NODE], None),
        ("8:3", b"/sub/y", [NODE], b"/bound/y"),
        ("8:9", b"/y", [POD, NODE], None),
        ("8:9", b"/y", [], None),
    ],
)
def test_a_file_is_called_as_the_target_sees_it_else_as_the_node(
    dev: str, path: bytes, known: list[list[object]], expected: bytes | None
) -> None:
    assert resolve(dev, path, known) == expected  # type: ignore[arg-type]


DISK = 8 << 20 | 2


@pytest.mark.parametrize(
    ("dev", "flags", "path", "left"),
    [
        (DISK, layout.FILE_NO_MOUNT, b"/mnt/my disk/a.bin", 0),
        (DISK, layout.FILE_NO_MOUNT | layout.FILE_UNLINKED, b"/mnt/my disk/a.bin", layout.FILE_UNLINKED),
        (8 << 20 | 9, layout.FILE_NO_MOUNT, b"/a.bin", layout.FILE_NO_MOUNT),
        (DISK, layout.FILE_NO_MOUNT | layout.FILE_TRUNCATED, b"/a.bin", layout.FILE_NO_MOUNT | layout.FILE_TRUNCATED),
        (DISK, 0, b"/a.bin", 0),
    ],
)
def test_only_what_lacks_its_mount_is_completed(dev: int, flags: int, path: bytes, left: int) -> None:
    key = FileKey(dev, 1, 1)
    found = whole_paths({key: File(key, b"/a.bin", flags, 1, 0o100644, b"xfs")}, [NODE])
    assert (found[key].path, found[key].flags) == (path, left)


def test_each_mount_namespace_is_read_once_and_the_nodes_is_the_last(tmp_path: Path) -> None:
    for name, namespace, mounts in (("7", "a", "1"), ("8", "a", "2"), ("9", "b", "3"), ("self", "c", "4")):
        (tmp_path / name / "ns").mkdir(parents=True)
        os.symlink(f"mnt:[{namespace}]", tmp_path / name / "ns/mnt")
        (tmp_path / name / "mountinfo").write_text(f"{mounts} 1 8:1 / / rw - ext4 d rw\n")
    found = tables([7, 8, 9, 10], tmp_path)
    assert [[mount.mount_id for mount in table] for table in found] == [[1], [3], [4]]
