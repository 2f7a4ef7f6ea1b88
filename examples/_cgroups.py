"""Temporary cgroups with a CPU quota or a memory limit: v1 if the controller is mounted there, else v2."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path
from types import TracebackType

PERIOD_US = 100_000
_counter = itertools.count()


class Cgroup:
    """One cgroup of ``controller`` ("cpu" or "memory"); leaving the context kills its processes and removes it."""

    def __init__(self, controller: str) -> None:
        self.legacy, root = _hierarchy(controller)
        if not self.legacy:
            (root / "cgroup.subtree_control").write_text(f"+{controller}")
        self.path = root / f"whystall-{controller}-{os.getpid()}-{next(_counter)}"
        self.path.mkdir()

    @property
    def name(self) -> str:
        """Return the cgroup's path inside its hierarchy, as /proc/PID/cgroup shows it."""
        return f"/{self.path.name}"

    def enroll(self, pid: int) -> None:
        """Move a process here, with all its threads and future children."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def command(self, argv: list[str]) -> list[str]:
        """Return the command line that runs ``argv`` inside from its first instruction."""
        return ["/bin/sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.path / "cgroup.procs"), *argv]

    def limit_cpus(self, cpus: float, period_us: int = PERIOD_US) -> None:
        """Limit CPU time to that of ``cpus`` CPUs in every period."""
        quota = int(cpus * period_us)
        if self.legacy:
            (self.path / "cpu.cfs_period_us").write_text(str(period_us))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (self.path / "cpu.max").write_text(f"{quota} {period_us}")

    def limit_memory(self, size: int) -> None:
        """Limit memory to ``size`` bytes, page cache included."""
        (self.path / ("memory.limit_in_bytes" if self.legacy else "memory.max")).write_text(str(size))

    def stat(self, file: str) -> dict[str, int]:
        """Read a file of "key value" lines, such as cpu.stat or memory.stat."""
        pairs = (line.split() for line in (self.path / file).read_text().splitlines())
        return {key: int(value) for key, value in pairs}

    def counters(self) -> dict[str, int]:
        """Return how often the memory limit was hit, and refaults of file pages (-1: not reported)."""
        hit = int((self.path / "memory.failcnt").read_text()) if self.legacy else self.stat("memory.events")["max"]
        return {"limit_hits": hit, "refaults": self.stat("memory.stat").get("workingset_refault_file", -1)}

    def __enter__(self) -> Cgroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadline = time.monotonic() + 10
        while True:
            for pid in map(int, (self.path / "cgroup.procs").read_text().split()):
                if pid == os.getpid():
                    (self.path.parent / "cgroup.procs").write_text(str(pid))
                else:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            try:
                self.path.rmdir()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.02)


def _hierarchy(controller: str) -> tuple[bool, Path]:
    """Return whether the controller is mounted as v1, and where; raise RuntimeError if it is not mounted."""
    unified = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        path, (kind, _, options) = Path(left.split()[4]), right.split()[:3]
        if kind == "cgroup" and controller in options.split(","):
            return True, path
        if kind == "cgroup2" and controller in (path / "cgroup.controllers").read_text().split():
            unified = path
    if unified is None:
        raise RuntimeError(f"no cgroup controller {controller!r} is mounted")
    return False, unified
