"""Advise how to read or write a file, from what is known of its I/O and from trials. Pure.

Source of the thresholds: autoIO (Qian et al., FAST '24) never uses direct I/O below 32 KiB and always from 2 MiB on;
its rules in between depend on pressure and contention of its own disks, so there advice needs trials. Upstream Lustre
(2.17) switches writes at 2 MiB and reads at 8 MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from whystall.tools.host.hybrid_io_advise.trials import Compared, Operation, cpu_crossover, crossover, nearest

Method = Literal["buffered", "direct", "dontneed", "readahead"]
Reason = Literal[
    "already_direct",
    "cached",
    "direct_slower_here",
    "direct_unsupported",
    "dropped_before_reread",
    "evicted_before_reread",
    "faster_here",
    "in_memory",
    "large",
    "less_cpu_here",
    "no_crossover",
    "no_harm",
    "no_pressure",
    "read_back",
    "reread",
    "reread_unknown",
    "slower_here",
    "small",
    "small_and_cold",
    "untried",
    "write_not_waited",
]
"""Why a method is advised; ``..._here``: as measured on that file system. The sentences are in prompts/."""

ALWAYS_DIRECT = 2 << 20
NEVER_DIRECT = 32 << 10
READAHEAD_UP_TO = 128 << 10
"""The kernel's default readahead (read_ahead_kb 128): larger requests keep a disk busy by themselves."""
REREAD_PCT = 5.0
"""From this share of reread or cached pages on, the cache serves the data. Edges of requests and untracked pages cause
smaller shares for files that are read once."""
CACHED_PCT = 20.0
"""Pages cached before they were requested; remains of an earlier write or read are less."""
HALF_AS_LONG_AGAIN = 2 / 3
"""Direct I/O that costs less CPU time and is not clearly slower may be slower by up to this. (A contended disk serves
single direct requests up to 1.5 times as slowly as readahead, which keeps several in flight.)"""
ONE_PASS_PCT = 90.0
"""Share of the tracked pages touched at most once: one pass, except for headers and indexes."""
THRASH_PCT = 30.0
"""Share of the added pages that were refaults (see `cache_streams`): reread data does not stay cached."""
STALLED_PCT = 5.0
"""Share of the window blocked in such reads; less is within normal step-to-step variation (STALL_PCT)."""


@dataclass(frozen=True)
class Observed:
    """What is known of one process's reads or writes of one file or numbered series. Percents; None: unknown.

    `request_bytes`: half of the bytes moved in requests at least this large. `reread_pct`: share of the pages read by
    any process that had been read before in the window; for a writer: read back. `cached_pct`: cached before they were
    requested. `refaulted_pct`: of the added pages. `pressed`: pages were evicted under pressure; `harms`: and another
    process suffers, as `page_cache` judges. `waited`: the writer waits for the disk (sync, throttling). `sequential`:
    known to read forward. `stalled_pct`: of the window, blocked in its reads. `direct_pct`: of the bytes, already
    direct. `cache_bytes`: bytes added to the page cache. `numbers`: its files in the recording.
    """

    operation: Operation
    request_bytes: int
    requests: int = 0
    bytes: int = 0
    path: str | None = None
    files: int = 1
    pid: int | None = None
    comm: str | None = None
    dev: str = ""
    filesystem: str = ""
    reread_pct: float | None = None
    cached_pct: float | None = None
    one_pass_pct: float | None = None
    refaulted_pct: float | None = None
    pressed: bool = False
    harms: bool = False
    waited: bool = False
    sequential: bool | None = None
    stalled_pct: float = 0.0
    direct_pct: float = 0.0
    cache_bytes: int = 0
    numbers: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Advice:
    """A method, the reason (a code), and the trials of it (`tried`; None: the advice is a rule).

    `crossover_bytes`: size from which direct I/O was faster in trials; None: not tried or not found. `direct_bytes`:
    size from which direct is advised. `change`: it differs from today's method; if not, `tried` is of direct I/O.
    """

    method: Method
    reason: Reason
    tried: Compared | None = None
    crossover_bytes: int | None = None
    direct_bytes: int | None = None
    change: bool = False


@dataclass(frozen=True)
class Tried:
    """The trials on one file system (see `trials.compare`); `refused`: codes why there are none."""

    compared: Sequence[Compared] = ()
    refused: Sequence[str] = ()

    def of(self, operation: Operation, method: str) -> list[Compared]:
        """Return those of one operation and method."""
        return [c for c in self.compared if c.operation == operation and c.way == method]


_IN_MEMORY = frozenset(
    {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs", "proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs"}
)
_NO_DIRECT = frozenset({"no_direct", "not_direct", "in_memory", "fuse"})


def advise(seen: Observed, tried: Tried) -> Advice:
    """Return the advice; `buffered` whenever something is unknown that a change would depend on."""
    found = _advised(seen, tried)
    if found.method == "dontneed":  # chosen for the cost of direct I/O, but it has trials of its own
        return replace(found, tried=nearest(tried.of(seen.operation, "dontneed"), seen.request_bytes))
    return found


def _advised(seen: Observed, tried: Tried) -> Advice:
    if seen.filesystem in _IN_MEMORY:
        return Advice("buffered", "in_memory")
    if seen.direct_pct >= 50:
        return _already_direct(seen, tried)
    found = _kept(seen) or _stalled(seen, tried)
    if found is not None:
        return found
    rows = tried.of(seen.operation, "direct")
    found = _one_pass(seen, tried, nearest(rows, seen.request_bytes))
    crossing = crossover(rows)
    if found.method != "direct":
        return replace(found, crossover_bytes=crossing)
    since = crossing if found.reason == "faster_here" else cpu_crossover(rows) if found.tried else ALWAYS_DIRECT
    return replace(found, crossover_bytes=crossing, direct_bytes=min(since or seen.request_bytes, seen.request_bytes))


def _kept(seen: Observed) -> Advice | None:
    """Return the advice to keep using the cache if it serves this data or may; else None."""
    touched: Reason = "read_back" if seen.operation == "write" else "reread"
    if seen.reread_pct is None:
        return Advice("buffered", "reread_unknown")
    if seen.reread_pct >= REREAD_PCT:
        missed = seen.cached_pct is not None and seen.cached_pct < 50
        if seen.operation == "read" and missed and (seen.refaulted_pct or 0.0) >= THRASH_PCT:
            return Advice("buffered", "evicted_before_reread")
        # A cache that served the rereads would have held as much, or shown refaults.
        gone = seen.cached_pct is not None and seen.cached_pct < seen.reread_pct / 2
        kept = seen.refaulted_pct is None or seen.refaulted_pct >= REREAD_PCT
        return Advice(
            "buffered", "dropped_before_reread" if seen.operation == "read" and gone and not kept else touched
        )
    if seen.cached_pct is not None and seen.cached_pct >= CACHED_PCT and seen.operation == "read":
        return Advice("buffered", "cached")
    if seen.one_pass_pct is not None and seen.one_pass_pct < ONE_PASS_PCT:
        return Advice("buffered", touched)
    return None


def _stalled(seen: Observed, tried: Tried) -> Advice | None:
    """Return advice for reads that wait for one small piece after another; else None."""
    small = seen.operation == "read" and seen.request_bytes <= READAHEAD_UP_TO
    if not (small and seen.sequential and seen.stalled_pct >= STALLED_PCT):
        return None
    found = nearest(tried.of("read", "readahead"), seen.request_bytes)
    if found is None:
        return Advice("readahead", "small_and_cold", change=True)
    return Advice("readahead", "faster_here", found, change=True) if found.clear == "faster" else None


def _one_pass(seen: Observed, tried: Tried, found: Compared | None) -> Advice:
    """Return advice for data that passes the cache once. `found`: the trials of direct I/O at this size."""
    waits = seen.operation == "write" and seen.waited
    if not (seen.harms or seen.pressed or waits):
        return Advice("buffered", _unharmed(seen), found)
    if seen.operation == "write" and not seen.waited:
        # Today its calls return once the data is in memory; direct I/O would make the writer wait for the disk.
        return (
            Advice("dontneed", "write_not_waited", change=True) if seen.harms else Advice("buffered", _unharmed(seen))
        )
    if found is not None and found.clear == "faster":
        return Advice("direct", "faster_here", found, change=True)
    if not seen.harms:
        # Nothing would gain from a change.
        slower = found is not None and found.clear == "slower"
        return Advice("buffered", "slower_here" if slower else "no_crossover" if found else _unharmed(seen), found)
    if _NO_DIRECT & set(tried.refused):
        return Advice("dontneed", "direct_unsupported", change=True)
    if found is None:
        if seen.request_bytes >= ALWAYS_DIRECT:
            return Advice("direct", "large", change=True)
        return Advice("dontneed", "small" if seen.request_bytes < NEVER_DIRECT else "untried", change=True)
    if found.clear == "slower":
        return Advice("dontneed", "slower_here", change=True)
    if found.less_cpu and found.low_ratio >= HALF_AS_LONG_AGAIN:
        return Advice("direct", "less_cpu_here", found, change=True)
    return Advice("dontneed", "no_crossover", change=True)


def _unharmed(seen: Observed) -> Reason:
    return "no_harm" if seen.pressed else "no_pressure"


def _already_direct(seen: Observed, tried: Tried) -> Advice:
    """Return advice for direct I/O in use: readahead saves small sequential requests; trials do not cover others."""
    rows = tried.of(seen.operation, "direct")
    found = nearest(rows, seen.request_bytes)
    forward = seen.operation == "write" or bool(seen.sequential)
    if found is not None and found.clear == "slower" and forward:
        return Advice("buffered", "direct_slower_here", found.turned(), crossover(rows), change=True)
    return Advice("direct", "already_direct", found, crossover(rows))
