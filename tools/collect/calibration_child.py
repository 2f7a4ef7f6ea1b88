"""The trials of one calibration: buffered and direct I/O on a temporary file, in a process of its own.

Run with the plan as JSON and the parent's PID as arguments; prints one JSON object per line: trials, a refusal, and the
proofs. It is a separate process so that its CPU time is that of the trials alone, that it can be abandoned if a disk
never answers, and that the file, which has no name, is gone however it ends.

The ways, each from the same buffer, sequentially, in requests of one size:

* read: ``buffered`` (the file's pages dropped before), ``warm`` (the same pages at once again), ``direct`` (O_DIRECT),
  ``uncached`` (RWF_DONTCACHE, Linux 6.14, commit 8026e49bff9b), ``readahead`` (requested by POSIX_FADV_WILLNEED),
  ``dontneed`` (buffered, and dropped every 8 MiB by POSIX_FADV_DONTNEED).
* write, of a new file: ``buffered`` (until the last write returned), ``synced`` (the same, until fdatasync returned),
  ``direct`` (O_DIRECT, until fdatasync returned).
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from whystall.tools.collect.residency import residency

MIB = 1 << 20
SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, MIB, 4 * MIB, 16 * MIB)
"""Request sizes in steps of four: they show where one way becomes faster, and are few enough to repeat each often."""
READ_ROUNDS = 16
"""Trials per size. Ranks 5 and 12 of 16 samples bound the median with 92 % confidence."""
_WRITE_ROUNDS = 8
"""Fewer, as writes wear a disk. Ranks 2 and 7 of 8 samples bound the median with 93 % confidence."""
_LARGE = 4 * MIB
_LARGE_ROUNDS = 5
"""For sizes from `_LARGE`, which cost most. The extremes of 5 samples bound the median with 94 % confidence."""
FILE = 16 * MIB
"""Size of the file for reads, and limit of the one for writes; less if there is little free space."""
LEAST_FILE = 2 * MIB
_DROP_BYTES = 8 * MIB
"""Bytes dropped at a time, since single pages of large folios would stay."""
_READAHEAD = 256 << 10
"""Limit of request sizes with readahead: larger requests keep a device busy without it."""
_DONTCACHE = 0x80  # RWF_DONTCACHE of linux/fs.h
_QUIET_S = 0.5
"""Time for readahead still in progress after a read: the largest windows are some MiB."""
_TRIAL_SHARE = 0.04
"""Limit of one trial as a share of all time, so that every size has at least two trials on a slow disk."""


class Refused(Exception):
    """No trials, or no more, are possible here: `code` and `detail`."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


@dataclass
class Plan:
    """Trials of `operations` (read, write) in `directory`, for at most `seconds` and `written` bytes."""

    directory: str
    operations: list[str]
    seconds: float
    written: int
    sizes: list[int] = field(default_factory=lambda: list(SIZES))
    file: int = FILE

    def __post_init__(self) -> None:
        self.sizes = [size for size in self.sizes if size <= self.file]


def _rounds(operation: str, size: int) -> int:
    if operation == "read":
        return READ_ROUNDS
    return _LARGE_ROUNDS if size >= _LARGE else _WRITE_ROUNDS


def _region(operation: str, size: int) -> int:
    """Return the bytes of one trial: enough requests to measure, and few writes."""
    if operation == "write":
        return max(size, min(32 * size, 512 << 10))
    return max(4 * size, MIB)


class Trials:
    """The trials of one plan. `run` yields rows; at its end, or when it raises `Refused`, no file is left."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._written = 0
        self._end = time.monotonic() + plan.seconds
        self._uncached = True
        self._unaligned: set[int] = set()
        # Results of `_prove`; None if the kernel has no residency for this file system.
        self.proof: dict[str, bool | None] = {"cold": None, "direct": None}
        self._buffer = mmap.mmap(-1, max(plan.sizes))  # page-aligned, as direct I/O requires
        self._buffer.write(os.urandom(len(self._buffer)))  # not compressible by a file system
        self._view = memoryview(self._buffer)

    def run(self) -> Iterator[dict[str, Any]]:
        """Yield every trial as a row; the ways are interleaved, so that changes of the load affect all of them."""
        with Unnamed(self._plan.directory) as old, Unnamed(self._plan.directory) as new:
            if "read" in self._plan.operations:
                self._fill(old)
                self._prove(old)
            for trial in range(READ_ROUNDS):
                for operation in self._plan.operations:
                    for size in self._plan.sizes:
                        if trial < _rounds(operation, size) and size not in self._unaligned:
                            if time.monotonic() >= self._end:
                                return
                            file = old if operation == "read" else new
                            yield from self._try(file, operation, size, trial)

    def _try(self, file: Unnamed, operation: str, size: int, trial: int) -> Iterator[dict[str, Any]]:
        ways = self._read_ways(size) if operation == "read" else ["synced", "direct"]
        first = trial % len(ways)
        for way in ways[first:] + ways[:first]:
            try:
                done = self._read(file, way, size, trial) if operation == "read" else self._write(file, way, size)
            except OSError as error:
                if way == "direct" and error.errno == errno.EINVAL and size < max(self._plan.sizes):
                    self._unaligned.add(size)  # smaller than a block of this file system
                    return
                if way == "uncached" and error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                    self._uncached = False
                    continue
                raise refusal(error) from error
            for name, bytes_done, wall_ns, cpu_ns in done:
                yield {
                    "operation": operation,
                    "way": name,
                    "request_bytes": size,
                    "bytes": bytes_done,
                    "wall_ns": wall_ns,
                    "cpu_ns": cpu_ns,
                    "trial": trial,
                }

    def _read_ways(self, size: int) -> list[str]:
        extra = ["uncached"] if self._uncached else []
        return ["buffered", "direct", "dontneed", *extra, *(["readahead"] if size <= _READAHEAD else [])]

    def _read(self, file: Unnamed, way: str, size: int, trial: int) -> list[tuple[str, int, int, int]]:
        length = min(_region("read", size), self._plan.file)
        start = (trial * length) % (self._plan.file - length + 1) // _READAHEAD * _READAHEAD
        file.drop()
        descriptor, flags = (file.direct, 0) if way == "direct" else (file.fd, 0)
        if way == "uncached":
            flags = _DONTCACHE
        done = [(way, *self._timed(lambda: self._pass(descriptor, size, start, length, flags, way)))]
        if way == "buffered":
            done.append(("warm", *self._timed(lambda: self._pass(file.fd, size, start, length, 0, "warm"))))
        file.drop()
        return done

    def _pass(self, descriptor: int, size: int, start: int, length: int, flags: int, way: str) -> int:
        """Read the region once, at least one request; return the bytes read before the time was up."""
        if way == "readahead":
            os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)
        until, moved, dropped, into = self._until(), 0, 0, [self._view[:size]]
        while moved < length:
            got = os.preadv(descriptor, into, start + moved, flags)
            if got != size:
                raise Refused("short_read", f"{got} of {size}")
            moved += got
            late = time.monotonic() > until
            if way == "dontneed" and (moved - dropped >= _DROP_BYTES or moved >= length or late):
                os.posix_fadvise(descriptor, start + dropped, moved - dropped, os.POSIX_FADV_DONTNEED)
                dropped = moved
            if late:
                break
        return moved

    def _write(self, file: Unnamed, way: str, size: int) -> list[tuple[str, int, int, int]]:
        length = min(_region("write", size), self._plan.file)
        if self._written + length > self._plan.written:
            return []
        os.ftruncate(file.fd, 0)
        descriptor = file.direct if way == "direct" else file.fd
        until, moved, data = self._until(), 0, self._view[:size]
        cpu, wall = time.process_time_ns(), time.monotonic_ns()
        while moved < length:
            put = os.pwrite(descriptor, data, moved)
            moved += put
            if put != size:
                raise Refused("no_room", f"wrote {put} of {size}")
            if time.monotonic() > until:
                break
        calls = (time.monotonic_ns() - wall, time.process_time_ns() - cpu)
        os.fdatasync(descriptor)
        whole = (time.monotonic_ns() - wall, time.process_time_ns() - cpu)
        self._written += moved
        file.drop()
        done = [(way, moved, *whole)]
        return [("buffered", moved, *calls), *done] if way == "synced" else done

    def _until(self) -> float:
        return min(self._end, time.monotonic() + _TRIAL_SHARE * self._plan.seconds)

    @staticmethod
    def _timed(work: Any) -> tuple[int, int, int]:
        cpu, wall = time.process_time_ns(), time.monotonic_ns()
        moved = work()
        return moved, time.monotonic_ns() - wall, time.process_time_ns() - cpu

    def _fill(self, file: Unnamed) -> None:
        try:
            for at in range(0, self._plan.file, MIB):
                if os.pwrite(file.fd, self._view[:MIB], at) != MIB:
                    raise Refused("no_room", "short write")
                if time.monotonic() > self._end:
                    raise Refused("too_slow", f"{at} bytes in {self._plan.seconds:g} s")
            os.fdatasync(file.fd)
        except OSError as error:
            raise refusal(error) from error
        self._written += self._plan.file

    def _prove(self, file: Unnamed) -> None:
        """Check that pages can be dropped, and that direct reads leave none in the cache."""
        size = MIB
        os.preadv(file.fd, [self._view[:size]], 0)
        if not file.resident():
            return  # unknown here (overlayfs does not show the pages of the lower file)
        file.drop()
        self.proof["cold"] = file.resident() == 0
        if not self.proof["cold"]:
            raise Refused("not_cold", "pages stay after POSIX_FADV_DONTNEED")
        try:
            os.preadv(file.direct, [self._view[:size]], 0)
        except OSError as error:
            raise refusal(error) from error
        self.proof["direct"] = file.resident() == 0
        if not self.proof["direct"]:
            raise Refused("not_direct", "O_DIRECT is accepted, but reads go through the page cache")


class Unnamed:
    """A file without a name, opened twice: `fd` buffered, `direct` with O_DIRECT. Raises `Refused` if impossible."""

    def __init__(self, directory: str) -> None:
        self.fd = _create(directory)
        try:
            self.direct = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            os.close(self.fd)
            raise Refused("no_direct", os.strerror(error.errno or 0)) from error

    def drop(self) -> None:
        """Drop all its pages from the cache, also dirty ones and those of readahead in progress, which would speed up
        or slow down the next trial."""
        os.fdatasync(self.fd)
        until = time.monotonic() + _QUIET_S
        while True:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not self.resident() or time.monotonic() > until:
                return
            time.sleep(0.0005)

    def resident(self) -> int:
        """Return its bytes in the page cache; 0 also if unknown."""
        try:
            return residency(self.fd, FILE).cached
        except OSError:
            return 0

    def __enter__(self) -> Unnamed:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.direct)
        os.close(self.fd)


def _create(directory: str) -> int:
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # Without O_TMPFILE: EOPNOTSUPP; EISDIR on kernels before 3.11.
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOSYS):
            raise refusal(error) from error
    path = os.path.join(directory, f".whystall-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.unlink(path)  # while it is empty, so that nothing is left however we end
    except OSError as error:
        raise refusal(error) from error
    return descriptor


_CODES = {
    errno.EACCES: "not_permitted",
    errno.EPERM: "not_permitted",
    errno.EROFS: "read_only",
    errno.ENOSPC: "no_room",
    errno.EDQUOT: "no_room",
    errno.EFBIG: "no_room",  # RLIMIT_FSIZE; Python ignores its signal
    errno.ENOENT: "no_directory",
    errno.ENOTDIR: "no_directory",
    errno.EINVAL: "no_direct",
    errno.EOPNOTSUPP: "no_direct",
}


def refusal(error: OSError) -> Refused:
    """Return `error` as the reason to end the trials."""
    number = error.errno or 0
    return Refused(_CODES.get(number, "io_error"), os.strerror(number) if number else str(error))


def _die_with(parent: int) -> None:
    """Be killed when the parent ends."""
    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None, use_errno=True).prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> None:
    """Run the plan in the first argument, for the process in the second."""
    plan, parent = Plan(**json.loads(sys.argv[1])), int(sys.argv[2])
    _die_with(parent)

    def send(row: dict[str, Any]) -> None:
        os.write(1, json.dumps(row).encode() + b"\n")

    trials = Trials(plan)
    with suppress(BrokenPipeError):
        try:
            for row in trials.run():
                send({"trial": row})
        except Refused as why:
            send({"refusal": [why.code, why.detail]})
        except OSError as error:
            refused = refusal(error)
            send({"refusal": [refused.code, refused.detail]})
        send({"proof": trials.proof})


if __name__ == "__main__":
    main()
