"""Decide when a continuous recording gives memory back: it is the first to shrink when the host, or its own control
group, is short of memory, and grows again later.

Sources: Documentation/accounting/psi.rst (``some``: the share of time in which a task waited for memory), and proc(5):
MemAvailable, which on hosts without PSI is all that there is.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from whystall.tools.collect.proc_cgroup import Hierarchies, Place, read_file
from whystall.tools.collect.proc_memory_sizes import GroupMemory, read_group, read_host
from whystall.tools.node.hierarchies import CgroupView

_PERIOD_NS = 5_000_000_000
_STALLED, _CALM_STALLED = 0.10, 0.01
_SCARCE, _CALM = 0.05, 0.10
_GROW_AFTER_NS = 300_000_000_000
_FREE_AGAIN_NS = 60_000_000_000


@dataclass(frozen=True)
class MemoryState:
    """`stalled`: share of the last 10 s in which some task waited for memory; `available`: share of the memory, of the
    host or of a control group of this process, whichever has least; `own_bytes`: private memory of this process."""

    stalled: float
    available: float
    own_bytes: int


class MemoryLook:
    """Reads the state of the memory: call it."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._places: list[Place] = []
        with suppress(OSError):  # without control groups, only the host counts
            view = CgroupView(Path(proc))
            membership = view.membership(Path(proc, "self/cgroup").read_bytes())
            self._places = [place for place in Hierarchies(view.mounts).places([membership]) if place.memory]

    def __call__(self) -> MemoryState:
        groups = [read_host(self._proc), *map(read_group, self._places)]
        files = [f"{self._proc}/pressure/memory".encode()]
        files += [place.memory + b"/memory.pressure" for place in self._places if place.version == 2 and place.memory]
        return MemoryState(
            max((stalled_share(read_file(file)) for file in files), default=0.0),
            min((_available(one) for one in groups if one is not None), default=1.0),
            own_bytes(read_file(f"{self._proc}/self/status".encode())),
        )


def stalled_share(raw: bytes) -> float:
    """Return the share of ``some`` over 10 s; 0 if it is not there.

    some avg10=12.50 avg60=3.10 avg300=0.70 total=812345
    """
    for line in raw.splitlines():
        if line.startswith(b"some avg10="):
            with suppress(ValueError):
                return float(line.split()[1].removeprefix(b"avg10=")) / 100
    return 0.0


def own_bytes(raw: bytes) -> int:
    """Return private memory and shared memory without a file, of the content of /proc/PID/status."""
    found = 0
    for line in raw.splitlines():
        if line.startswith((b"RssAnon:", b"RssShmem:")):
            found += int(line.split()[1]) << 10
    return found


def _available(one: GroupMemory) -> float:
    if one.limit_bytes <= 0 or one.used_bytes < 0:
        return 1.0
    return (one.limit_bytes - one.used_bytes + max(0, one.reclaimable_bytes)) / one.limit_bytes


class MemoryGuard:
    """Decides when to shrink, to free caches, and to grow again."""

    def __init__(
        self,
        limit_bytes: int,
        look: Callable[[], MemoryState] | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`limit_bytes`: of private memory; above it, caches are freed."""
        self._limit_bytes, self._look, self._clock = limit_bytes, look or MemoryLook(), clock
        self._due = self._scarce_at = 0
        self._freed_at = -2 * _FREE_AGAIN_NS
        self.small = False
        """Whether memory was scarce, and has not been plentiful for long since."""
        self.note = ""

    def check(self) -> Literal["", "free", "shrink", "grow"]:
        """Return what to do now; call it each second."""
        now = self._clock()
        if now < self._due:
            return ""
        self._due = now + _PERIOD_NS
        state = self._look()
        if state.stalled >= _STALLED or state.available < _SCARCE:
            self._scarce_at = now
            if self.small:
                return ""
            self.small = True
            why = f"{100 * state.available:.0f} % available, {100 * state.stalled:.0f} % of the time waited for it"
            self.note = f"memory was scarce ({why}): the log is smaller"
            return "shrink"
        if state.own_bytes > self._limit_bytes and now - self._freed_at >= _FREE_AGAIN_NS:
            again, self._freed_at = now - self._freed_at < 2 * _FREE_AGAIN_NS, now
            if again and not self.small:  # the caches were not it
                self.small, self._scarce_at = True, now
                self.note = f"this process used {state.own_bytes >> 20} MiB: the log is smaller"
                return "shrink"
            return "free"
        if not self.small:
            return ""
        if state.stalled > _CALM_STALLED or state.available < _CALM:
            self._scarce_at = now
        elif now - self._scarce_at >= _GROW_AFTER_NS:
            self.small, self.note = False, ""
            return "grow"
        return ""


def free_memory(caches: Iterable[Callable[[], object]]) -> None:
    """Empty `caches`, and return what is free then to the kernel."""
    for one in caches:
        one()
    gc.collect()
    with suppress(OSError, AttributeError):  # only the GNU C library has it
        ctypes.CDLL(None).malloc_trim(0)
