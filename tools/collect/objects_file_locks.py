"""Parse /proc/locks (proc_locks(5)): file locks, and the processes that wait for them."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from typing import NamedTuple

from whystall.tools.contract.text import clean

_EOF = (1 << 63) - 1
_KINDS = {b"FLOCK": "flock", b"POSIX": "posix", b"OFDLCK": "ofd", b"LEASE": "lease", b"DELEG": "lease"}
# 2: -> POSIX  ADVISORY  WRITE 1235 08:01:131 0 EOF
# 3: -> LEASE  BREAKER   READ 1235 <none>:0 0 EOF
_LINE = re.compile(
    rb"^(\d+):\s+(->\s+)?(\w+)\s+(\w+)\s+(\w+)\s+(-?\d+)\s+(?:([0-9a-f]+):([0-9a-f]+):(\d+)|<none>:0)"
    rb"\s+(\d+)\s+(\d+|EOF)"
)


class FileLock(NamedTuple):
    """A lock or a request for one; the columns of ``objects.file_locks``. `pid` -1: held by an open file description,
    not by a process."""

    kind: str
    exclusive: bool
    pid: int
    dev: str
    ino: int
    start_byte: int
    end_byte: int
    waits: bool
    holder_pid: int


def file_locks(raw: bytes) -> list[FileLock]:
    """Return the locks of a /proc/locks; a request follows the lock that it waits for::

    1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF
    1: -> FLOCK  ADVISORY  WRITE 4712 08:01:131 0 EOF

    The kernel names no file for who waits for the end of a lease: it is that of the lease.
    """
    found: list[FileLock] = []
    holder, number = -1, b""
    for line in raw.splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        waits = match[2] is not None and match[1] == number
        pid = int(match[6])
        if match[7]:
            dev, ino = f"{int(match[7], 16)}:{int(match[8], 16)}", int(match[9])
        elif waits and found:
            dev, ino = found[-1].dev, found[-1].ino
        else:
            continue
        if not waits:
            holder, number = pid, match[1]
        found.append(
            FileLock(
                kind=_KINDS.get(match[3], clean(match[3].lower())),
                exclusive=match[5] == b"WRITE",
                pid=pid,
                dev=dev,
                ino=ino,
                start_byte=int(match[10]),
                end_byte=_EOF if match[11] == b"EOF" else int(match[11]),
                waits=waits,
                holder_pid=holder if waits else -1,
            )
        )
    return found


def concerning(locks: Iterable[FileLock], pids: Container[int] | None) -> list[FileLock]:
    """Return the locks by interest: of files with a request of `pids` all locks and requests, then what `pids` hold,
    then all others, for which `pids` may ask without waiting. None: all files with requests."""
    locks = list(locks)
    awaited = {(lock.dev, lock.ino) for lock in locks if lock.waits}
    ours = {(lock.dev, lock.ino) for lock in locks if pids is None or lock.pid in pids}
    contended = [lock for lock in locks if (lock.dev, lock.ino) in awaited & ours]
    if pids is None:
        return contended
    others = [lock for lock in locks if lock not in contended]
    return contended + sorted(others, key=lambda lock: lock.pid not in pids)


def same_lock(fdinfo: bytes, lock: FileLock) -> bool:
    """Return whether the file of a /proc/PID/fdinfo/N holds `lock`; such files have lines ``lock:\\t1: FLOCK ...``."""
    listed = file_locks(b"\n".join(line[5:].strip() for line in fdinfo.splitlines() if line.startswith(b"lock:")))
    return any((one.dev, one.ino, one.kind) == (lock.dev, lock.ino, lock.kind) for one in listed)
