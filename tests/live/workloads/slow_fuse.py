#!/usr/bin/env python3
"""A pass-through FUSE file system that makes chosen operations slow by a known time.

It speaks the /dev/fuse protocol itself (see linux/fuse.h), so it needs no library: files of one
directory, with lookup, getattr, setattr (size), create, open, read, write, flush, fsync, release,
unlink and rename.  Several threads serve, so that a delay holds up its own caller only.  Every served
request of a delayed kind is logged: ``request`` with op, path, delay_s, and when.

``--delay fsync=0.25 --delay read=0.1``: seconds per operation.  A write(2) or read(2) is cut by the
kernel into requests of at most 1 MiB, each delayed.  Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import itertools
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workload import Workload

LOOKUP, FORGET, GETATTR, SETATTR, UNLINK, RENAME, OPEN, READ, WRITE = 1, 2, 3, 4, 10, 12, 14, 15, 16
STATFS, RELEASE, FSYNC, FLUSH, INIT, INTERRUPT, CREATE = 17, 18, 20, 25, 26, 36, 35
DESTROY, BATCH_FORGET, RENAME2 = 38, 42, 45
NAMES = {
    LOOKUP: "lookup",
    GETATTR: "getattr",
    SETATTR: "setattr",
    UNLINK: "unlink",
    RENAME: "rename",
    RENAME2: "rename",
    OPEN: "open",
    CREATE: "create",
    READ: "read",
    WRITE: "write",
    FSYNC: "fsync",
    FLUSH: "flush",
}
IN_HEADER = struct.Struct("=IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, extension, padding
OUT_HEADER = struct.Struct("=IiQ")  # length, error, unique
ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
MAX_WRITE = 1 << 20
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22
FATTR_SIZE, FATTR_FH = 1 << 3, 1 << 6
DIRECT_IO = 1
ROOT = 1
SERVERS = 4
MS_NOSUID_NODEV = 2 | 4
DETACH = 2


class FileServer:
    """The file system: nodes are numbers, each the name of a file in ``backing``."""

    def __init__(self, backing: Path, delays: dict[str, float], flags: int, work: Workload) -> None:
        self._backing = backing
        self._delays = delays
        self._flags = flags
        self._work = work
        self._lock = threading.Lock()
        self._paths = {ROOT: backing}
        self._nodes = {backing: ROOT}
        self._numbers = itertools.count(ROOT + 1)
        self._handlers: dict[int, Callable[[int, memoryview], bytes]] = {
            INIT: self._init,
            LOOKUP: lambda node, body: self._entry(self._child(node, body)),
            GETATTR: lambda node, body: self._attributes(os.lstat(self._paths[node])),
            SETATTR: self._setattr,
            UNLINK: self._unlink,
            RENAME: lambda node, body: self._rename(node, body, 8),
            RENAME2: lambda node, body: self._rename(node, body, 16),
            OPEN: lambda node, body: self._open(self._paths[node], struct.unpack_from("=I", body)[0]),
            CREATE: self._create,
            READ: self._read,
            WRITE: self._write,
            STATFS: self._statfs,
            RELEASE: self._release,
            FSYNC: self._fsync,
            FLUSH: lambda node, body: b"",
            DESTROY: lambda node, body: b"",
        }

    def serve(self, device: int) -> None:
        """Answer requests until the file system is unmounted (ENODEV)."""
        while True:
            try:
                request = os.read(device, MAX_WRITE + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.ENOENT, errno.EINTR):  # the caller went away meanwhile
                    continue
                raise
            _, opcode, unique, node, *_ = IN_HEADER.unpack_from(request)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):  # these want no answer
                continue
            code, answer = self._answer(opcode, node, memoryview(request)[IN_HEADER.size :])
            with contextlib.suppress(FileNotFoundError):  # interrupted: nobody waits for it any more
                os.write(device, OUT_HEADER.pack(OUT_HEADER.size + len(answer), -code, unique) + answer)

    def _answer(self, opcode: int, node: int, body: memoryview) -> tuple[int, bytes]:
        handler = self._handlers.get(opcode)
        if handler is None:
            return errno.ENOSYS, b""
        try:
            name = NAMES.get(opcode, "")
            delay = self._delays.get(name)
            if delay is None:
                return 0, handler(node, body)
            with self._work.act("request", op=name, path=str(self._paths[node]), delay_s=delay):
                time.sleep(delay)
                return 0, handler(node, body)
        except OSError as error:
            return error.errno or errno.EIO, b""
        except KeyError:
            return errno.ESTALE, b""

    @staticmethod
    def _init(_node: int, body: memoryview) -> bytes:
        _, minor, readahead, _ = struct.unpack_from("=IIII", body)
        # major, minor, max_readahead, flags, max_background, threshold, max_write, granularity, pages, ...
        fields = (
            7,
            min(minor, 31),
            readahead,
            BIG_WRITES | MAX_PAGES,
            12,
            9,
            MAX_WRITE,
            1,
            MAX_WRITE // 4096,
            0,
        )
        return struct.pack("=IIIIHHIIHH8I", *fields, *[0] * 8)

    def _child(self, node: int, body: memoryview) -> Path:
        return self._paths[node] / os.fsdecode(bytes(body).split(b"\0")[0])

    def _node(self, path: Path) -> int:
        with self._lock:
            if path not in self._nodes:
                self._nodes[path] = next(self._numbers)
                self._paths[self._nodes[path]] = path
            return self._nodes[path]

    def _attr(self, found: os.stat_result) -> bytes:
        times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
        return ATTR.pack(
            found.st_ino,
            found.st_size,
            found.st_blocks,
            *(time // 10**9 for time in times),
            *(time % 10**9 for time in times),
            found.st_mode,
            found.st_nlink,
            found.st_uid,
            found.st_gid,
            0,
            4096,
            0,
        )

    def _entry(self, path: Path) -> bytes:
        """A directory entry that the kernel may not cache: every stat asks again."""
        found = os.lstat(path)
        return struct.pack("=QQQQII", self._node(path), 0, 0, 0, 0, 0) + self._attr(found)

    def _attributes(self, found: os.stat_result) -> bytes:
        return struct.pack("=QII", 0, 0, 0) + self._attr(found)

    def _setattr(self, node: int, body: memoryview) -> bytes:
        valid, _, _, size = struct.unpack_from("=IIQQ", body)
        if valid & FATTR_SIZE:
            os.truncate(self._paths[node], size)
        return self._attributes(os.lstat(self._paths[node]))

    def _unlink(self, node: int, body: memoryview) -> bytes:
        path = self._child(node, body)
        path.unlink()
        with self._lock:
            self._nodes.pop(path, None)  # the number stays known: the file may still be open
        return b""

    def _rename(self, node: int, body: memoryview, skip: int) -> bytes:
        (target,) = struct.unpack_from("=Q", body)
        old, new = (os.fsdecode(name) for name in bytes(body[skip:]).split(b"\0")[:2])
        source, destination = self._paths[node] / old, self._paths[target] / new
        source.rename(destination)
        with self._lock:
            moved = self._nodes.pop(source)
            self._nodes[destination] = moved
            self._paths[moved] = destination
        return b""

    def _open(self, path: Path, flags: int) -> bytes:
        fd = os.open(path, flags & ~(os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_DIRECT | os.O_APPEND))
        return struct.pack("=QII", fd, self._flags, 0)

    def _create(self, node: int, body: memoryview) -> bytes:
        flags, mode = struct.unpack_from("=II", body)
        path = self._child(node, body[16:])
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, mode & 0o777))
        return self._entry(path) + self._open(path, flags)

    @staticmethod
    def _read(_node: int, body: memoryview) -> bytes:
        fd, offset, size = struct.unpack_from("=QQI", body)
        return os.pread(fd, size, offset)

    @staticmethod
    def _write(_node: int, body: memoryview) -> bytes:
        fd, offset, size = struct.unpack_from("=QQI", body)
        return struct.pack("=II", os.pwrite(fd, body[40 : 40 + size], offset), 0)

    def _statfs(self, _node: int, _body: memoryview) -> bytes:
        found = os.statvfs(self._backing)
        head = (found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree)
        return struct.pack("=5Q4I6I", *head, found.f_bsize, found.f_namemax, found.f_frsize, 0, *[0] * 6)

    @staticmethod
    def _release(_node: int, body: memoryview) -> bytes:
        os.close(struct.unpack_from("=Q", body)[0])
        return b""

    @staticmethod
    def _fsync(_node: int, body: memoryview) -> bytes:
        os.fsync(struct.unpack_from("=Q", body)[0])
        return b""


def system(name: str, *arguments: object) -> None:
    """Call mount(2) or umount2(2); raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def delay(text: str) -> tuple[str, float]:
    """``operation=seconds``."""
    name, _, value = text.partition("=")
    if name not in NAMES.values():
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(sorted(set(NAMES.values())))}")
    return name, float(value)


def main() -> None:
    from workload import Workload

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--backing", type=Path, required=True, help="directory whose files are served")
    parser.add_argument("--mount", type=Path, required=True, help="empty directory to mount on")
    parser.add_argument("--delay", type=delay, action="append", default=[], metavar="OP=SECONDS")
    parser.add_argument("--direct-io", action="store_true", help="no page cache: one read(2), one request")
    work = Workload(parser)
    options = work.options
    options.backing, options.mount = options.backing.resolve(), options.mount.resolve()
    delays = dict(options.delay)
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    data = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    target = os.fsencode(options.mount)
    system("mount", b"whystall-slow", target, b"fuse.slow", ctypes.c_ulong(MS_NOSUID_NODEV), data)
    served = FileServer(options.backing, delays, DIRECT_IO if options.direct_io else 0, work)
    threads = [threading.Thread(target=served.serve, args=(device,), daemon=True) for _ in range(SERVERS)]
    for thread in threads:
        thread.start()
    try:
        options.backing, options.mount, options.delay = str(options.backing), str(options.mount), delays
        work.start()
        work.stopped.wait()
    finally:
        system("umount2", target, DETACH)
    for thread in threads:
        thread.join(5)
    work.emit("end")


if __name__ == "__main__":
    main()
