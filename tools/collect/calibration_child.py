"""The trials of one calibration: buffered beside direct I/O on a temporary file of our own, in a process of its own.

Run as ``python -m whystall.tools.collect.calibration_child PLAN`` with the plan as JSON; prints one JSON object per
line: a trial, a refusal, and what proves them. A process of its own: its CPU time is that of the trials alone, it can
be left behind where a disk never answers, and whatever ends it (a kill too) ends the file, which has no name.

The ways, each from the same buffer, sequentially, in requests of one size:

* read: ``buffered`` (the file's pages dropped before), ``warm`` (the same pages at once again), ``direct`` (O_DIRECT),
  ``uncached`` (RWF_DONTCACHE, Linux 6.14, commit 8026e49bff9b), ``readahead`` (announced by POSIX_FADV_WILLNEED),
  ``dontneed`` (buffered, and every 8 MiB given back by POSIX_FADV_DONTNEED).
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
"""Sizes of requests: a step of four tells where the ways cross, and few enough to try each often."""
READ_ROUNDS = 16
"""How often each size is tried. Of sixteen, the fifth and the twelfth bound the median with 92 %."""
_WRITE_ROUNDS = 8
"""Writes wear a disk: of eight, the second and the seventh bound it with 93 %."""
_LARGE = 4 * MIB
_LARGE_ROUNDS = 5
"""Those from `_LARGE` on cost the most; five bound it from the least to the most, with 94 %."""
FILE = 16 * MIB
"""Of the file that is read; what is written is as much at most. A smaller one where there is little room."""
LEAST_FILE = 2 * MIB
_GIVE_BACK = 8 * MIB
"""So much at a time is given back: single pages of large folios stay."""
_READAHEAD = 256 << 10
"""Up to this size, reads are tried with readahead announced: larger ones keep a device busy by themselves."""
_DONTCACHE = 0x80  # RWF_DONTCACHE of linux/fs.h
_QUIET_S = 0.5
"""What readahead may still be under way after a read: the largest windows are some MiB."""
_TRIAL_SHARE = 0.04
"""Of the time in all, what one trial may take: then every size is tried twice at least, however slow the disk."""


class Refused(Exception):
    """Nothing, or no more, can be tried here: `code` and `detail`."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail


@dataclass
class Plan:
    """What to try: `operations` (read, write) in `directory`, for so many `seconds` and bytes `written` at most."""

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
    """Bytes that one trial moves: enough requests to time, and no more of a disk than it takes."""
    if operation == "write":
        return max(size, min(32 * size, 512 << 10))
    return max(4 * size, MIB)


class Trials:
    """The trials of one plan. `run` yields rows; at its end, or when it raises `Refused`, nothing is left."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._written = 0
        self._end = time.monotonic() + plan.seconds
        self._uncached = True
        self._unaligned: set[int] = set()
        # What the file's residency showed: None where the kernel does not tell it for this file system.
        self.proof: dict[str, bool | None] = {"cold": None, "direct": None}
        self._buffer = mmap.mmap(-1, max(plan.sizes))  # its start is that of a page: direct I/O takes it as it is
        self._buffer.write(os.urandom(len(self._buffer)))  # nothing that a file system could compress
        self._view = memoryview(self._buffer)

    def run(self) -> Iterator[dict[str, Any]]:
        """Every trial as a row; interleaved, so that what changes meanwhile changes all ways alike."""
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
        turn = trial % len(ways)
        for way in ways[turn:] + ways[:turn]:
            try:
                done = self._read(file, way, size, trial) if operation == "read" else self._write(file, way, size)
            except OSError as error:
                if way == "direct" and error.errno == errno.EINVAL and size < max(self._plan.sizes):
                    self._unaligned.add(size)  # smaller than what this file system takes as a unit
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
        """Read the region once; how many bytes came before the time was up, one request at least."""
        if way == "readahead":
            os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)
        until, moved, given, into = self._until(), 0, 0, [self._view[:size]]
        while moved < length:
            got = os.preadv(descriptor, into, start + moved, flags)
            if got != size:
                raise Refused("short_read", f"{got} of {size}")
            moved += got
            late = time.monotonic() > until
            if way == "dontneed" and (moved - given >= _GIVE_BACK or moved >= length or late):
                os.posix_fadvise(descriptor, start + given, moved - given, os.POSIX_FADV_DONTNEED)
                given = moved
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
        """That pages can be dropped, and that direct reads leave none: else neither way is what it is called."""
        size = MIB
        os.preadv(file.fd, [self._view[:size]], 0)
        if not file.resident():
            return  # not told here (overlayfs shows none of the pages of the file beneath)
        file.drop()
        self.proof["cold"] = file.resident() == 0
        if not self.proof["cold"]:
            raise Refused("not_cold", "pages stay when they are advised away")
        try:
            os.preadv(file.direct, [self._view[:size]], 0)
        except OSError as error:
            raise refusal(error) from error
        self.proof["direct"] = file.resident() == 0
        if not self.proof["direct"]:
            raise Refused("not_direct", "O_DIRECT is taken, but goes through the page cache")


class Unnamed:
    """A file without a name that nobody else can open, twice: `fd` buffered, `direct` with O_DIRECT. `Refused` where
    there can be none."""

    def __init__(self, directory: str) -> None:
        self.fd = _create(directory)
        try:
            self.direct = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            os.close(self.fd)
            raise Refused("no_direct", os.strerror(error.errno or 0)) from error

    def drop(self) -> None:
        """Drop all of its pages from the cache, also those that are dirty, and those that readahead still brings in:
        they would be found there by the next trial, or keep the disk busy while it runs.
        """
        os.fdatasync(self.fd)
        until = time.monotonic() + _QUIET_S
        while True:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if not self.resident() or time.monotonic() > until:
                return
            time.sleep(0.0005)

    def resident(self) -> int:
        """Bytes of it in the page cache; 0 also where the kernel does not tell."""
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
        # Without O_TMPFILE: EOPNOTSUPP; kernels before 3.11 see a directory opened for writing.
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOSYS):
            raise refusal(error) from error
    path = os.path.join(directory, f".whystall-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        os.unlink(path)  # while it is empty: whatever happens from here on, no bytes of it stay
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
    """`error` as the reason why nothing more is tried."""
    number = error.errno or 0
    return Refused(_CODES.get(number, "io_error"), os.strerror(number) if number else str(error))


def _die_with(parent: int) -> None:
    """Be killed when the parent ends, however it does."""
    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None, use_errno=True).prctl(set_death_signal, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit(1)


def main() -> None:
    """Run the plan in the first argument, for the process in the second."""
    plan, parent = Plan(**json.loads(sys.argv[1])), int(sys.argv[2])
    _die_with(parent)

    def say(row: dict[str, Any]) -> None:
        os.write(1, json.dumps(row).encode() + b"\n")

    trials = Trials(plan)
    with suppress(BrokenPipeError):
        try:
            for row in trials.run():
                say({"trial": row})
        except Refused as why:
            say({"refusal": [why.code, why.detail]})
        except OSError as error:
            refused = refusal(error)
            say({"refusal": [refused.code, refused.detail]})
        say({"proof": trials.proof})


if __name__ == "__main__":
    main()
