#!/usr/bin/env python3
"""A job with a memory limit: every step reads a hot file again, while a stream of files is read once.

``--streamer self``   the stepping thread reads the stream itself, a part per step
``--streamer other``  a child process in the same cgroup streams without a pause
``--streamer none``   no stream: evictions, if any, are due to the size of the hot file

Lines: ``step`` (latency_s; hot_s: reading the hot file; compute_s; hot_device_bytes: bytes of it read from the device,
from /proc/self/io; streamed_bytes), ``stream`` by the child after every file (pid, path, bytes), ``end`` with the
cgroup's counters.  Files of the stream are sparse unless ``--filled``: they use the page cache like others, but no
disk space.  Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _cgroups import Cgroup
from _workload import Workload

MIB = 1 << 20
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
STREAMER = "shard-loader"
_libc = ctypes.CDLL(None)


def write_uncached(path: Path, mib: int) -> None:
    """Write a file of random bytes to the disk, and drop it from the page cache."""
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Stream:
    """Files that are read sequentially, one after another."""

    def __init__(self, directory: Path, options: argparse.Namespace) -> None:
        self._request = options.request_kib * 1024
        self.paths = [directory / f"shard_{number:04d}.bin" for number in range(options.shards)]
        for path in self.paths:
            if options.filled:
                write_uncached(path, options.shard_mib)
            else:
                path.touch()
                os.truncate(path, options.shard_mib * MIB)
        self._buffer = bytearray(self._request)

    def requests(self) -> Iterator[tuple[Path, int]]:
        """Read one request per iteration, and yield its file and size; start over after the last file."""
        while True:
            for path in self.paths:
                fd = os.open(path, os.O_RDONLY)
                try:
                    while got := os.readv(fd, [self._buffer]):
                        yield path, got
                finally:
                    os.close(fd)


class Hot:
    """A file that is read repeatedly."""

    def __init__(self, path: Path, mib: int, request: int) -> None:
        self.path = path
        self._size = mib * MIB
        write_uncached(path, mib)
        self._fd = os.open(path, os.O_RDONLY)
        self._buffer = bytearray(request)

    def read(self) -> None:
        """Read the whole file."""
        for offset in range(0, self._size, len(self._buffer)):
            os.preadv(self._fd, [self._buffer], offset)


def device_bytes() -> int:
    """Return the bytes this process has read from devices so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def stream_without_end(work: Workload, stream: Stream, pause_s: float) -> None:
    """Run the child: stream until killed, at the latest with the parent."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _libc.prctl(PR_SET_NAME, STREAMER.encode(), 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    last, total = None, 0
    for path, got in stream.requests():
        if last is not None and path != last:
            work.emit("stream", pid=os.getpid(), path=str(last), bytes=total)
            total = 0
        last, total = path, total + got
        if pause_s:
            time.sleep(pause_s)


def compute(seconds: float) -> None:
    """Use the CPU for `seconds`."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(500))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", default=tempfile.gettempdir(), help="of the hot file, on a disk")
    parser.add_argument("--stream-directory", help="of the stream's files (default: as the hot file)")
    parser.add_argument("--streamer", choices=("self", "other", "none"), default="self")
    parser.add_argument("--hot-mib", type=int, default=24)
    parser.add_argument("--hot-request-kib", type=int, default=128)
    parser.add_argument("--limit-mib", type=int, default=80, help="of the cgroup, this interpreter included; 0: none")
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--shard-mib", type=int, default=256)
    parser.add_argument("--request-kib", type=int, default=4096, help="of the stream")
    parser.add_argument("--stream-mib", type=int, default=128, help="per step, where the job streams itself")
    parser.add_argument("--stream-pause-ms", type=float, default=0, help="of the child, after every request")
    parser.add_argument("--compute-ms", type=float, default=100, help="per step")
    parser.add_argument("--fixed-names", action="store_true", help="directories have the same names in every run")
    parser.add_argument("--filled", action="store_true", help="write the stream's files, instead of sparse ones")
    parser.add_argument("--steps", type=int, default=10**6)
    work = Workload(parser)
    options = work.options
    with contextlib.ExitStack() as stack:
        directory = shards = place(options.directory, "job", stack, fixed=options.fixed_names)
        if options.stream_directory:
            shards = place(options.stream_directory, "data", stack, fixed=options.fixed_names)
        hot = Hot(directory / "embedding.bin", options.hot_mib, options.hot_request_kib * 1024)
        stream = Stream(shards, options)
        group = stack.enter_context(Cgroup("memory"))
        if options.limit_mib:
            group.limit_memory(options.limit_mib * MIB)
        group.enroll(os.getpid())
        child = os.fork() if options.streamer == "other" else 0
        if options.streamer == "other" and child == 0:
            stream_without_end(work, stream, options.stream_pause_ms / 1e3)
        work.start(
            hot=str(hot.path), shards_in=str(shards), streamer_pid=child, cgroup=group.name, cgroup_path=str(group.path)
        )
        run(work, hot, stream)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        work.emit("end", **group.counters())


def place(parent: str, name: str, stack: contextlib.ExitStack, *, fixed: bool) -> Path:
    """Return a new directory, removed with `stack`; `fixed`: with the same name in every run."""
    path = Path(parent) / name if fixed else Path(tempfile.mkdtemp(prefix=f"whystall-{name}-", dir=parent))
    path.mkdir(exist_ok=not fixed)
    stack.callback(shutil.rmtree, path)
    return path


def run(work: Workload, hot: Hot, stream: Stream) -> None:
    """Run steps until stopped."""
    options = work.options
    requests = stream.requests()
    for number in range(options.steps):
        if work.stopped.is_set():
            return
        with work.act("step", number=number) as facts:
            streamed = 0
            while options.streamer == "self" and streamed < options.stream_mib * MIB:
                streamed += next(requests)[1]
            began, before = time.monotonic(), device_bytes()
            hot.read()
            read = time.monotonic()
            facts |= {"hot_s": read - began, "hot_device_bytes": device_bytes() - before, "streamed_bytes": streamed}
            compute(options.compute_ms / 1e3)
            facts["compute_s"] = time.monotonic() - read


if __name__ == "__main__":
    main()
