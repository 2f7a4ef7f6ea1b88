"""What is mounted where: /proc/PID/mountinfo (proc(5)), and one file's names under several tables of mounts. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from whystall.tools.contract.text import clean

REMOTE = ("nfs", "cifs", "smb", "fuse", "lustre", "ceph", "9p", "afs", "gpfs", "beegfs", "ocfs2", "gfs2", "virtiofs")
"""File systems where a look at a file may wait for a server that does not answer."""
_OPTION = 1 << 16  # of an overlay: the directories of all its layers


class Mount(NamedTuple):
    """A line of mountinfo; `root` and `point` are unescaped paths as they are on disk."""

    mount_id: int
    dev: str
    root: bytes
    point: bytes
    fstype: str
    super_options: frozenset[str]


def mountinfo(raw: bytes) -> list[Mount]:
    """Parse /proc/PID/mountinfo; the later of two mounts on the same point is what is seen there."""
    mounts = []
    for line in raw.splitlines():
        left, dash, right = line.partition(b" - ")
        words, tail = left.split(b" "), right.split(b" ")
        if not dash or len(words) < 6 or len(tail) < 3:
            continue
        options = frozenset(clean(o, _OPTION) for o in tail[2].split(b","))
        mounts.append(
            Mount(int(words[0]), clean(words[2]), _unescape(words[3]), _unescape(words[4]), clean(tail[0]), options)
        )
    return mounts


def below(path: bytes, top: bytes) -> bytes | None:
    """What follows directory `top` in `path`, with its leading slash (empty: `top` itself); None: it lies elsewhere."""
    top = top.rstrip(b"/")
    rest = path[len(top) :]
    return rest if path.startswith(top) and rest[:1] in (b"", b"/") else None


def _unescape(text: bytes) -> bytes:
    """Undo the octal escapes of mountinfo (blank, tab, newline, backslash)."""
    return re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8) & 0xFF]), text)
