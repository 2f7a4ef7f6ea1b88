"""Parse /proc/PID/mountinfo (proc(5)). Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from whystall.tools.contract.text import clean

REMOTE = ("nfs", "cifs", "smb", "fuse", "lustre", "ceph", "9p", "afs", "gpfs", "beegfs", "ocfs2", "gfs2", "virtiofs")
"""File systems on which opening a file may block on an unresponsive server."""
_OPTION = 1 << 16  # most bytes of an option; an overlay has the directories of all its layers


class Mount(NamedTuple):
    """A line of mountinfo; `root` and `point` are unescaped paths as they are on disk."""

    mount_id: int
    dev: str
    root: bytes
    point: bytes
    fstype: str
    super_options: frozenset[str]


def mountinfo(raw: bytes) -> list[Mount]:
    """Parse /proc/PID/mountinfo; of two mounts on the same point the later one counts."""
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
    """Return the part of `path` after directory `top`, from its slash on (empty: `top` itself); None: elsewhere."""
    top = top.rstrip(b"/")
    rest = path[len(top) :]
    return rest if path.startswith(top) and rest[:1] in (b"", b"/") else None


def _unescape(text: bytes) -> bytes:
    """Undo the octal escapes of mountinfo (blank, tab, newline, backslash)."""
    return re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8) & 0xFF]), text)
