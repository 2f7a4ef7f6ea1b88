"""The options and the summary of a capture. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ENGINES = ("auto", "tracefs", "trace-cmd")
MODES = ("auto", "ring", "stream")
GROUPS = ("sched", "irq", "softirq", "futex", "syscalls", "block", "power")
"""Groups of events (`whystall.tools.collect.ftrace.events`)."""
DEFAULT_GROUPS = ("sched", "irq", "softirq")
DEFAULT_BUFFER_KB = 16 << 10
"""Per CPU, if there is enough memory."""
# A longer capture may overwrite its first events: "auto" then writes while it records.
RING_S = 10.0


@dataclass(frozen=True)
class RecordOptions:
    """A capture. Every field has a default that is safe in production.

    `cpus`: empty means all (see `cpus.parse_cpus`). `duration_s` <= 0: until stopped. `mode`: ``ring`` keeps the newest
    events in the kernel and writes them once at the end, which disturbs least; ``stream`` writes continuously;
    ``auto``: ring up to 10 s, else stream. `clock`: a name in the host's `trace_clock`.
    `buffer_kb`: of the kernel, per CPU; 0: 16 MiB, less if all CPUs together would take more than 1/16 of the available
    memory. `pids`: threads or processes to follow, empty means all; `children`: also their present descendants. Threads
    and processes that they start later are always followed, as the kernel does not distinguish them.
    `in_namespace`: the `pids` are those inside a container; `namespace_of`: a process of that container (a PID of the
    host), needed only if several containers have such a PID. `rotate_bytes` > 0: start a new file after that many bytes
    (stream only); `keep` > 0: remove the oldest files beyond that number. `min_free_bytes`: recording ends before the
    file system has less space than this.
    """

    cpus: tuple[int, ...] = ()
    groups: tuple[str, ...] = DEFAULT_GROUPS
    duration_s: float = 0.0
    mode: str = "auto"
    clock: str = "mono"
    buffer_kb: int = 0
    pids: tuple[int, ...] = ()
    children: bool = False
    in_namespace: bool = False
    namespace_of: int | None = None
    rotate_bytes: int = 0
    keep: int = 0
    min_free_bytes: int = 256 << 20
    engine: str = "auto"


@dataclass(frozen=True)
class CpuLoss:
    """Events of one CPU that are not in the capture: `overrun`: overwritten by newer ones; `dropped`: not
    recorded."""

    cpu: int
    overrun: int
    dropped: int


@dataclass(frozen=True)
class Progress:
    """Progress of a capture. `phase`: ``recording`` or ``writing`` (the rest of the ring); `elapsed_s`: since the phase
    began; `written`: bytes in all files; `lost`: events lost so far, as far as known.
    """

    phase: str
    elapsed_s: float
    written: int
    lost: int


@dataclass(frozen=True)
class Recorded:
    """The summary of a finished capture.

    `files`: oldest first; several with rotation. `events`: written, including removed files; -1: unknown.
    `start_ns`, `end_ns`: the span, CLOCK_MONOTONIC. `stopped_by`: ``duration``, ``asked``, ``disk_guard`` (too little
    space; the file ends early but complete) or ``target_exited``. `engine`: that recorded; `why`: the reason if it is
    not the requested one, or if it needed a private mount. `notes`: (blind spot code, detail). `stop_s`: from the
    request to stop until recording had ended and the instance was removed, without `write_s`, the time to write the
    ring.
    """

    files: tuple[Path, ...]
    bytes: int
    events: int
    losses: tuple[CpuLoss, ...]
    start_ns: int
    end_ns: int
    stopped_by: str
    clock: str
    cpus: tuple[int, ...]
    engine: str
    why: str = ""
    notes: tuple[tuple[str, str], ...] = ()
    stop_s: float = 0.0
    write_s: float = 0.0

    @property
    def lost(self) -> int:
        """Return the events lost on all CPUs."""
        return sum(loss.overrun + loss.dropped for loss in self.losses)
