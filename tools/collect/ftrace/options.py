"""What a capture is asked for, and what it says of itself when it is done. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ENGINES = ("auto", "tracefs", "trace-cmd")
MODES = ("auto", "ring", "stream")
GROUPS = ("sched", "irq", "softirq", "futex", "syscalls", "block", "power")
"""Groups of events; `whystall.tools.collect.ftrace.events` says what is in each."""
DEFAULT_GROUPS = ("sched", "irq", "softirq")
DEFAULT_BUFFER_KB = 16 << 10
"""Per CPU, where memory is plenty."""
# Longer than this a ring may forget its beginning: "auto" writes while it records.
RING_S = 10.0


@dataclass(frozen=True)
class RecordOptions:
    """A capture. Every field has a default that is safe in production.

    `cpus`: empty means all (see `cpus.parse_cpus`). `duration_s` <= 0: until stopped. `mode`: ``ring`` keeps the newest
    events in the kernel and writes them once, at the end, without disturbing the run; ``stream`` writes all the time
    and needs no end; ``auto``: ring up to 10 s, else stream. `clock`: a name the host's `trace_clock` lists.
    `buffer_kb`: of the kernel, per CPU; 0: 16 MiB, less where all CPUs together would take more than 1/16 of the memory
    available. `pids`: threads or processes to follow, empty means all, `children`:
    and all that descend from them now. Whatever they start later is followed too (the kernel tells no thread from a
    process there). `in_namespace`: the `pids` are as seen inside a container;
    `namespace_of`: a process of that container (a PID of the host), needed only where several have such a PID.
    `rotate_bytes` > 0: begin a new file after that many bytes (stream only); `keep` > 0: remove the oldest beyond so
    many. `min_free_bytes`: recording ends before the file system has less room than this.
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
    """Events of one CPU that are not in the capture: `overrun` overwritten by newer ones, `dropped` not taken."""

    cpu: int
    overrun: int
    dropped: int


@dataclass(frozen=True)
class Progress:
    """How far a capture is: `phase` is ``recording`` or ``writing`` (what the ring still holds), each with the seconds
    since it began; `written` bytes in all files so far; `lost` events, as far as it is known yet.
    """

    phase: str
    elapsed_s: float
    written: int
    lost: int


@dataclass(frozen=True)
class Recorded:
    """A capture that is done.

    `files`: oldest first; several with rotation. `events` written, in those files and in removed ones; -1: not counted.
    `start_ns`, `end_ns`: the span, CLOCK_MONOTONIC. `stopped_by`: ``duration``, ``asked``, ``disk_guard`` (the room ran
    short; the file ends early but whole) or ``target_exited``. `engine`: who recorded, and `why` not the one asked for,
    or what it took. `notes`: (blind spot code, detail) for what the capture cannot show. `stop_s`: from the wish to
    stop until the kernel recorded no more and the instance was gone, without `write_s`, the time spent writing the
    ring out.
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
        """Events lost on all CPUs."""
        return sum(loss.overrun + loss.dropped for loss in self.losses)
