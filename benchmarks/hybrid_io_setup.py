"""Memory cgroup, files in a known cache state, programs and their measurements for the hybrid I/O benchmark."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import PYTHON, ROOT, Metrics, child_command
from whystall.tools.hybrid_io import build as hybrid_build
from whystall.tools.hybrid_io.run import Options, environment, library

MIB = 1 << 20
_FIO_JOB = Path(__file__).resolve().parent / "fio" / "one_pass.fio"
_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


class Unmeasurable(RuntimeError):
    """A requirement of the benchmark is missing; one line for the report."""


@contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Create a memory cgroup with this limit, version 1 or 2; kill its processes and remove it at the end."""
    name = f"whystall-bench-{os.getpid()}"
    if (_V1 / "memory.limit_in_bytes").exists():
        group, limit = _V1 / name, "memory.limit_in_bytes"
    elif "memory" in _text(_V2 / "cgroup.subtree_control").split():
        group, limit = _V2 / name, "memory.max"
    else:
        raise Unmeasurable("no memory cgroup can be made: neither version's controller is enabled")
    try:
        group.mkdir()
    except OSError as error:
        raise Unmeasurable(f"no memory cgroup can be made: {error.strerror}") from error
    try:
        (group / limit).write_text(str(limit_bytes))
        yield group
    finally:
        for _ in range(100):
            for pid in _text(group / "cgroup.procs").split():
                with suppress(OSError):
                    os.kill(int(pid), 9)
            try:
                group.rmdir()  # the pages still charged go to the parent
                break
            except OSError:
                time.sleep(0.05)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def in_cgroup(group: Path | None, command: Sequence[str]) -> list[str]:
    """Return the command line of a child that is in `group` from its first page on."""
    if group is None:
        return child_command(command)
    enter = 'echo $$ > "$0" && exec "$@"'
    return child_command(["/bin/sh", "-c", enter, str(group / "cgroup.procs"), *command])


def forget(*paths: Path) -> None:
    """Write these files back, and drop them from the page cache."""
    for path in paths:
        if path.exists():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def make_file(path: Path, size: int) -> None:
    """Write a file of incompressible data to the disk, and leave none of it cached."""
    buffer = mmap.mmap(-1, 8 * MIB)
    buffer.write(os.urandom(MIB) * 8)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with memoryview(buffer) as view:
            for at in range(0, size, 8 * MIB):
                os.write(fd, view[: min(8 * MIB, size - at)])
                if at % (256 * MIB) == 0:
                    os.fsync(fd)
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    forget(path)


def resident(path: Path) -> int:
    """Return the bytes of the file that are in the page cache, by mincore(2)."""
    size = path.stat().st_size
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = os.open(path, os.O_RDONLY)
    try:
        at = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        present = (ctypes.c_ubyte * pages)()
        if libc.mincore(at, size, present):
            raise OSError(ctypes.get_errno(), "mincore")
        libc.munmap(at, size)
    finally:
        os.close(fd)
    return sum(page & 1 for page in present) * mmap.PAGESIZE


@dataclass(frozen=True)
class Kernel:
    """CPU seconds of kernel threads since boot, which work for buffered I/O."""

    workers_s: float
    kswapd_s: float

    @classmethod
    def now(cls) -> Kernel:
        """Read the time of all kernel workers, for whatever process: compare with an idle machine."""
        workers = kswapd = 0.0
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = stat.read_text()
                name = text[text.index("(") + 1 : text.rindex(")")]
                if name.startswith("kworker"):
                    workers += int((stat.parent / "schedstat").read_text().split()[0]) / 1e9
                elif name.startswith("kswapd"):
                    kswapd += int((stat.parent / "schedstat").read_text().split()[0]) / 1e9
            except (OSError, ValueError):
                continue  # it ended
        return cls(workers, kswapd)

    def since(self, before: Kernel) -> Kernel:
        return Kernel(self.workers_s - before.workers_s, self.kswapd_s - before.kswapd_s)


def steps_of(output: str) -> list[Metrics]:
    return [{key: value for key, value in json.loads(line).items() if key != "step"} for line in output.splitlines()]


@dataclass(frozen=True)
class Way:
    """One method of I/O: the command that runs the steps."""

    name: str
    command: tuple[str, ...]

    def run(self, steps: Iterable[str], group: Path | None) -> list[Metrics]:
        """Run the steps in one process within `group`; return the measurements of each."""
        done = subprocess.run(in_cgroup(group, [*self.command, *steps]), capture_output=True, text=True, cwd=ROOT)
        if done.returncode:
            raise Unmeasurable(f"{self.name}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
        return steps_of(done.stdout)


BUFFERED, DIRECT, PRELOADED, UNALIGNED = "BIO", "DIO", "hybrid-run", "hybrid-run, malloc"
PLAIN, OBJECT = "open()", "hybrid_open()"


def ways(program: Path) -> dict[str, Way]:
    """Return the methods: a C program with buffered and direct I/O and with ``hybrid-run``, and Python's file objects.

    `UNALIGNED` has its data in memory of malloc, as most programs do, so that direct I/O needs a copy.
    """
    shim = ("env", *_preload(), str(program), "steps")
    python = (PYTHON, "-m", "benchmarks.hybrid_io_load")
    return {
        BUFFERED: Way(BUFFERED, (str(program), "steps", "buffered")),
        DIRECT: Way(DIRECT, (str(program), "steps", "direct")),
        PRELOADED: Way(PRELOADED, (*shim, "buffered")),
        UNALIGNED: Way(UNALIGNED, (*shim, "unaligned")),
        PLAIN: Way(PLAIN, (*python, "plain")),
        OBJECT: Way(OBJECT, (*python, "hybrid")),
    }


def _preload() -> list[str]:
    """Return the variables that ``hybrid-run`` sets; the command itself would add its own pages to the cgroup."""
    for name in hybrid_build.LIBRARIES:
        hybrid_build.build(name)
    nowhere = Path(os.devnull)  # its counters stay in the process
    return [f"{name}={value}" for name, value in environment(library(), Options(), nowhere, {}).items()]


class Neighbour:
    """The process that re-reads its hot set, in the same cgroup."""

    def __init__(self, program: Path, group: Path | None, path: Path, size: int, record: int, rate: int) -> None:
        words = [str(program), "hot", str(path), str(size), str(record), str(rate)]
        self._process = subprocess.Popen(
            in_cgroup(group, words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._line() != "ready":
            raise Unmeasurable("the neighbour did not start")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def seen(self) -> Metrics:
        """Return its measurements since the previous call."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        latency, account = (steps_of(self._line())[0] for _ in range(2))
        return {**latency, **account}

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def have_fio() -> bool:
    return shutil.which("fio") is not None


def fio(group: Path | None, path: Path, op: str, size: int, block: int, direct: bool) -> Metrics:
    """Do the same I/O with fio; return wall and CPU time, ns."""
    with tempfile.TemporaryDirectory(prefix="whystall-fio-") as scratch:  # for its state files
        done = subprocess.run(
            in_cgroup(group, ["fio", "--output-format=json", f"--section={op}", str(_FIO_JOB)]),
            capture_output=True,
            text=True,
            cwd=scratch,
            env={**os.environ, "FILE": str(path), "BYTES": str(size), "BLOCK": str(block), "DIRECT": str(int(direct))},
        )
    if done.returncode:
        raise Unmeasurable(f"fio: {(done.stderr.strip() or done.stdout.strip() or 'no word').splitlines()[-1]}")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    wall_ns = job[op]["runtime"] * 1e6
    cpu_ns = job["job_runtime"] * 1e6 * (job["usr_cpu"] + job["sys_cpu"]) / 100
    return {"wall_ns": wall_ns, "cpu_ns": cpu_ns}
